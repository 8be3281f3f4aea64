"""Opens the log that a configuration names, and checks that it is this notary's."""

from typing import assert_never

from notary.access import check_writable
from notary.config import Config
from ordering.clock import clock_ms
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError
from ordering.genesis import read_genesis
from ordering.kafka import KafkaLog, KafkaTimeouts
from ordering.log import Log
from ordering.records import Genesis


async def open_log(config: Config, *, mirror: bool = False) -> Log:
    """Returns the log that the configuration names. With `mirror` it may also be a mirror that was not failed over.

    Raises `NotReady` while the log cannot be reached, `ConfigurationError` or `Fatal` if it is unfit.
    """
    match config.log.kind:
        case "embedded":
            check_writable(config.path(config.log.directory), "the log", "`[log] directory` (NOTARY_LOG_DIRECTORY)")
            return EmbeddedLog.open(config.path(config.log.directory), clock_ms)
        case "kafka":
            return await KafkaLog.open(
                config.log.bootstrap,
                config.log.topic_prefix,
                client_id=f"notary-{config.worker.name}",
                security=config.kafka_security,
                timeouts=KafkaTimeouts(append_ms=config.log.append_timeout_ms),
                mirror=mirror,
            )
        case kind:
            assert_never(kind)


async def identify(config: Config, log: Log) -> tuple[str, str]:
    """Returns (notary name, identity) of a log, which an index stores. Raises `ConfigurationError` for another notary's log."""
    genesis, log_id = await read_genesis(log)
    check_genesis(config, genesis)
    return genesis.notary_name, f"{log.identity} {log_id.hex()}"


def check_genesis(config: Config, genesis: Genesis) -> None:
    """Raise `ConfigurationError` if the configuration differs from the log's genesis record (R10)."""
    for what, configured, found in (("name", config.name, genesis.notary_name), ("origin", config.origin, genesis.origin)):
        if configured != found:
            raise ConfigurationError(
                f"the configuration says {what} = {configured!r}, and this log's is {found!r}: it belongs to notary"
                f" {genesis.notary_name!r}. Correct the {what}, or name this notary's own log"
            )
