"""`notary mirror`: copies the log into a mirror in another cluster, until SIGTERM or SIGINT (docs/runbook.md, Failover to a mirror).

`notary failover --prepare` has made the mirror's topics. The command only reads the log, and needs neither the notary's key nor an index.
"""

import argparse
import asyncio
import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvloop
from prometheus_client import start_http_server

from notary.cli import owner
from notary.config import Config, load
from notary.exit_codes import EXIT_DONE
from notary.http.settings import parse_listen
from notary.logs import set_up_logging
from notary.metrics import mirror_registry
from notary.mirror import AGAIN_S, LogMirror, logger
from notary.open_log import open_log
from notary.topic_watch import TopicWatch
from ordering.errors import ConfigurationError, NotReady
from ordering.kafka import KafkaLog
from ordering.topics import add_partitions, uses_append_times


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary mirror`."""
    parser.add_argument("--config", required=True, type=Path, metavar="F", help="notary.toml, which names the log")
    add_target_arguments(parser)
    parser.add_argument("--health-listen", metavar="HOST:PORT", help="serve Prometheus metrics there, at /metrics")
    parser.add_argument("--json", action="store_true", help="log in JSON lines")


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name the mirror."""
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--to", metavar="BROKERS", help="the brokers with the mirror, HOST:PORT,HOST:PORT; the rest is as in --config")
    target.add_argument("--to-config", type=Path, metavar="F", help="a notary.toml whose [log] names the mirror, with its own certificates")


def source_and_target(arguments: argparse.Namespace) -> tuple[Config, Config]:
    """Returns the configuration of `--config`, and the same with the mirror as its log. Raises `ConfigurationError`."""
    source = load(arguments.config)
    if arguments.to_config:
        # A container's environment is about `--config`.
        target = source.with_log_of(load(arguments.to_config, environment={}))
    else:
        target = load(arguments.config, {"log.bootstrap": arguments.to})
    for config, file in ((source, arguments.config), (target, arguments.to_config or arguments.config)):
        if config.log.kind != "kafka":
            raise ConfigurationError(f"{file} has an embedded log: only a log in Kafka has a mirror")
    return source, target


def refuse_one_log(source: Config, target: Config) -> None:
    """Raise `ConfigurationError` if both name the same topics, as the environment may make them."""
    if (source.log.bootstrap, source.log.topic_prefix) == (target.log.bootstrap, target.log.topic_prefix):
        raise ConfigurationError(
            f"the log and its mirror would be the same topics, {source.log.topic_prefix} at {source.log.bootstrap}: name the mirror's"
            " brokers with --to or --to-config, and check the variable NOTARY_LOG_BOOTSTRAP, which replaces those of --config"
        )


def run(arguments: argparse.Namespace) -> int:
    """Copy until a signal. Returns 0 then."""
    source, target = source_and_target(arguments)
    refuse_one_log(source, target)
    listen = parse_listen(arguments.health_listen) if arguments.health_listen else None
    set_up_logging("info", as_json=arguments.json)
    return uvloop.run(_until_stopped(source, target, listen))


async def _until_stopped(source: Config, target: Config, listen: tuple[str, int] | None) -> int:
    mirroring, loop = asyncio.create_task(_mirror(source, target, listen)), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, mirroring.cancel)
    try:
        await mirroring
    except asyncio.CancelledError:
        logger.info("stopped by a signal")
    return EXIT_DONE


async def _mirror(source: Config, target: Config, listen: tuple[str, int] | None) -> None:
    """Copy until cancelled. While brokers cannot be reached at the start, try again, as later."""
    reported = ""
    while True:
        try:
            await _copy(source, target, listen)
        except NotReady as problem:
            if str(problem) != reported:
                reported = str(problem)
                logger.warning("copying cannot begin yet, trying again: %s", problem)
            await asyncio.sleep(AGAIN_S)


async def _copy(source: Config, target: Config, listen: tuple[str, int] | None) -> None:
    to, prefix, security = target.log.bootstrap, target.log.topic_prefix, target.kafka_security
    if await uses_append_times(to, prefix, security, either=True):
        raise ConfigurationError(
            f"the topics of {prefix} at {to} are a log and no mirror: they have the brokers' append times. Create the mirror's topics with"
            " `notary failover --prepare`. If they were a mirror, it was failed over: never copy in this direction again"
        )
    async with owner.opened(source, "mirror") as log:
        mirror = await open_log(target, mirror=True)
        try:
            assert isinstance(log.log, KafkaLog)
            assert isinstance(mirror, KafkaLog)
            logger.info("copying %s from %s to %s", source.log.topic_prefix, source.log.bootstrap, to)
            copying = LogMirror(log.log, mirror, lambda count: add_partitions(to, prefix, count, security))
            watch = TopicWatch(target, mirror=True)
            with _served(copying, watch, (source, target), listen):
                watching = asyncio.create_task(watch.run())
                try:
                    await copying.run()
                finally:
                    watching.cancel()
        finally:
            await mirror.close()


@contextlib.contextmanager
def _served(mirror: LogMirror, watch: TopicWatch, configs: Sequence[Config], listen: tuple[str, int] | None) -> Iterator[None]:
    """Serve the metrics for the length of a block; nothing if `listen` is None. Raises `ConfigurationError` for an impossible address."""
    if listen is None:
        yield
        return
    ends_s = [ends_s for config in configs if (ends_s := config.log_certificates_end_s) is not None]
    host, port = listen
    try:
        server, thread = start_http_server(port, host, mirror_registry(mirror, watch, min(ends_s, default=None)))
    except (OSError, UnicodeError) as problem:  # the second for a name that no resolver takes
        raise ConfigurationError(f"--health-listen {host}:{port}: {problem}: give an address of this machine with a free port") from None
    logger.info("metrics at http://%s:%d/metrics", host, server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
