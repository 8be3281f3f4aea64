"""One worker, put together. No logic: what each part does is said where it lives."""

import asyncio
import logging
import os
import time

from joiner import Driver, Joiner, QueueLimits, Ready, Sender, SenderSettings
from joiner.driver import check_same_log
from notary import keys
from notary.admission import Admission
from notary.config import Config
from notary.decision import Decision
from notary.index import Index
from notary.metrics import Metrics
from notary.parties import Parties
from notary.version import VERSION
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError
from ordering.kafka import KafkaLog, KafkaTimeouts
from ordering.log import Log

logger = logging.getLogger("notary.worker")

PARTIES_LOOK_S = 2.0


def clock_ms() -> int:
    """This machine's clock."""
    return time.time_ns() // 1_000_000


async def open_log(config: Config) -> Log:
    """The log that the configuration names. Raises `NotReady` while it cannot be reached, `ConfigurationError` if it is not fit."""
    if config.log.kind == "embedded":
        return EmbeddedLog.open(config.path(config.log.directory), clock_ms)
    return await KafkaLog.open(
        config.log.bootstrap,
        config.log.topic_prefix,
        client_id=f"notary-{config.worker.name}",
        security=config.kafka_security,
        timeouts=KafkaTimeouts(append_ms=config.log.append_timeout_ms),
    )


class Worker:
    """The parts of one worker, wired. `run` lives until it is cancelled or a part says `Fatal`."""

    def __init__(self, config: Config, log: Log, index: Index) -> None:
        self.config = config
        self.log = log
        self.index = index
        key = keys.load(config.path(config.key_file)).public_key()
        self.verifier_key = keys.verifier_key(config.origin, key)
        self.parties = Parties(config.path(config.parties_file))
        self.admission = Admission(config.name, self.parties, config.limits.party_requests_per_s, time.monotonic)
        self.metrics = Metrics()
        self.sender: Sender[Decision] = Sender(
            log,
            SenderSettings(
                worker_name=config.worker.name,
                software_version=VERSION,
                data_centre=config.worker.data_centre or None,
                queue=QueueLimits(
                    pending_requests_max=config.limits.pending_requests_max,
                    pending_bytes_max=config.limits.pending_bytes_max,
                ),
            ),
            clock_ms,
            lambda: os.urandom(16),
        )
        joiner = Joiner(
            config.name,
            log.payload_partitions,
            index.joiner_state(log.payload_partitions),
            config.joiner_limits,
            self.sender.unresolved,
        )
        self.driver: Driver[Decision] = Driver(log, joiner, index, self.sender, config.driver_settings, clock_ms, self._observe)
        self.metrics.watch(self.driver, self.sender, index, lambda: self.not_ready() is None)

    @classmethod
    async def start(cls, config: Config, log: Log) -> "Worker":
        """A worker on an open log, its index opened and held against the log (R8).

        Raises `ConfigurationError` or `Fatal`; `NotReady`: try again.
        """
        index = Index.open(
            config.index_directory,
            notary_name=config.name,
            log_identity=log.identity,
            payload_partitions=log.payload_partitions,
            settings=config.index_settings,
        )
        try:
            await check_same_log(log, index.joiner_state(log.payload_partitions).offsets_next, index.judged_digest)
            return cls(config, log, index)
        except BaseException:
            index.close()
            raise

    def not_ready(self) -> str | None:
        """Why this worker takes no submission now; None when it does."""
        return self.driver.not_ready() or self.sender.not_ready(self.config.worker.append_wait_ms_max / 1000)

    async def run(self) -> None:
        """Read, decide, answer."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.driver.run(), name="driver")
            tasks.create_task(self._follow_parties(), name="parties")

    def close(self) -> None:
        """Let go of the index."""
        self.admission.close()
        self.index.close()

    def _observe(self, ready: Ready) -> None:
        self.metrics.observe(ready)
        self.metrics.count_decisions(self.index.take_outcome_counts())

    async def _follow_parties(self) -> None:
        while True:
            await asyncio.sleep(PARTIES_LOOK_S)
            try:
                self.parties.reload()
            except ConfigurationError as problem:
                logger.error("the parties stay as they were: %s", problem)
