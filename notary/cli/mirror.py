"""`notary mirror`: copies the log into a mirror in another cluster, until SIGTERM or SIGINT (docs/runbook.md, Failover to a mirror).

`notary failover --prepare` has made the mirror's topics. The command only reads the log, and needs neither the notary's key nor an index.
"""

import argparse
import asyncio
import signal
from pathlib import Path

import uvloop

from notary.cli import EXIT_DONE
from notary.config import Config, load
from notary.logs import set_up_logging
from notary.mirror import LogMirror, logger
from notary.open_log import identify, open_log
from ordering.errors import ConfigurationError
from ordering.kafka import KafkaLog
from ordering.topics import add_partitions, uses_append_times


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary mirror`."""
    parser.add_argument("--config", required=True, type=Path, metavar="F", help="notary.toml, which names the log")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--to", metavar="BROKERS", help="the brokers with the mirror, HOST:PORT,HOST:PORT; the rest is as in --config")
    target.add_argument("--to-config", type=Path, metavar="F", help="a notary.toml whose [log] names the mirror, with its own certificates")
    parser.add_argument("--json", action="store_true", help="log in JSON lines")


def run(arguments: argparse.Namespace) -> int:
    """Copy until a signal. Returns 0 then."""
    set_up_logging("info", as_json=arguments.json)
    source = load(arguments.config)
    target = load(arguments.to_config) if arguments.to_config else load(arguments.config, {"log.bootstrap": arguments.to})
    for config in (source, target):
        if config.log.kind != "kafka":
            raise ConfigurationError(f"{config.file} has an embedded log: only a log in Kafka has a mirror")
    return uvloop.run(_until_stopped(source, target))


async def _until_stopped(source: Config, target: Config) -> int:
    mirroring, loop = asyncio.create_task(_mirror(source, target)), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, mirroring.cancel)
    try:
        await mirroring
    except asyncio.CancelledError:
        logger.info("stopped by a signal")
    return EXIT_DONE


async def _mirror(source: Config, target: Config) -> None:
    to, prefix, security = target.log.bootstrap, target.log.topic_prefix, target.kafka_security
    if await uses_append_times(to, prefix, security):
        raise ConfigurationError(
            f"the topics of {prefix} at {to} are a log and no mirror: they have the brokers' append times. Create the mirror's topics with"
            " `notary failover --prepare`. If they were a mirror, it was failed over: never copy in this direction again"
        )
    log = await open_log(source)
    try:
        await identify(source, log)
        mirror = await open_log(target, mirror=True)
        try:
            assert isinstance(log, KafkaLog)
            assert isinstance(mirror, KafkaLog)
            logger.info("copying %s from %s to %s", source.log.topic_prefix, source.log.bootstrap, to)
            await LogMirror(log, mirror, lambda count: add_partitions(to, prefix, count, security)).run()
        finally:
            await mirror.close()
    finally:
        await log.close()
