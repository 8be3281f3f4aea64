"""The composition of one worker: makes its parts and connects them. It decides nothing; each part documents itself."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from joiner import Driver, Joiner, Sender
from notary.archive.schedule import ArchiveSchedule
from notary.config import Config
from notary.decision import Decision
from notary.gate import Gate
from notary.index import Index
from notary.keyring import Keyring, ReceiptKey
from notary.metrics import Metrics
from notary.open_log import identify
from notary.parties import Parties
from notary.quota import Quota
from notary.readiness import Readiness
from notary.receipts import Issuer
from notary.self_check import SelfCheck
from notary.snapshots.schedule import SnapshotSchedule
from notary.tickets import Tickets
from notary.topic_watch import TopicWatch
from notary.tracing import tracing_of
from notary.version import VERSION
from ordering.clock import clock_ms, uptime_s
from ordering.kafka import KafkaLog
from ordering.log import Log

GATE_TURN_S: Final = 0.002
"""The longest time that the gate works in one turn of the event loop."""


class Environment(msgspec.Struct, frozen=True):
    """Clocks and randomness, which a worker takes from its machine. They decide nothing (R6)."""

    clock_ms: Callable[[], int] = clock_ms
    """The wall clock, milliseconds since 1970."""
    now_s: Callable[[], float] = uptime_s
    """A clock that never runs backwards, and counts the time for which the machine was suspended."""
    nonce: Callable[[], bytes] = lambda: os.urandom(16)
    """Returns 16 random bytes, for a registration (R5)."""
    threads: bool = True
    """Whether signatures of log records may be verified in threads."""


class Worker:
    """The parts of one worker, connected. `run` lasts until it is cancelled or a part raises `Fatal`."""

    def __init__(self, config: Config, log: Log, index: Index, environment: Environment | None = None) -> None:
        around = environment or Environment()
        self.config = config
        self.clock_ms = around.clock_ms
        self.log = log
        self.index = index
        state = index.joiner_state()
        self.keyring = Keyring(config.key_files, around.now_s)
        self.receipt_key = ReceiptKey(self.keyring, None if state.log_state is None else state.log_state.key)
        self.issuer = Issuer(config.origin, self.receipt_key.private_key, index.tree.view)
        self.receipt_key.changed = self.issuer.sign_with
        self.parties = Parties(config.path(config.parties_file))
        self.metrics = Metrics()
        joiner = Joiner(state, config.joiner, config.worker.name, tree=index.tree)
        self.sender: Sender[Decision] = Sender(
            log,
            joiner,
            self.keyring,
            config.worker.name,
            VERSION,
            config.sender,
            config.queue,
            around.clock_ms,
            around.nonce,
        )
        self.sender.queue.weight_of = self.parties.weight_of
        self._verifiers = ThreadPoolExecutor(2, thread_name_prefix="log-signatures") if around.threads else None
        self.tracing = tracing_of(config.tracing, config.name, config.worker.name)
        if self.tracing is not None:
            self.sender.sending = self.tracing.sending
            self.metrics.watch_spans(self.tracing)
        self.driver: Driver[Decision] = Driver(
            log,
            joiner,
            index if self.tracing is None else self.tracing.applier(index),
            self.sender,
            config.driver,
            around.clock_ms,
            (self.metrics.observe, self.receipt_key.applied),
            around.now_s,
            self._verifiers,
        )
        self.self_check = SelfCheck(config.worker.name, self.driver, self.sender, index, config.self_check, around.now_s)
        self.readiness = Readiness(self.self_check, self.driver, self.sender)
        self.not_ready, self.serving_suspended = self.readiness.not_ready, self.readiness.serving_suspended
        self.tickets = Tickets(around.nonce() + around.nonce(), around.now_s)
        self.gate = Gate(
            config.name,
            self.parties,
            self.readiness.why_not_ready,
            around.now_s,
            bytes_max=config.queue.pending_bytes_max,
            body_s_max=config.http.body_s,
            turn_s_max=GATE_TURN_S,
            capacity=self.sender.queue,
            quota=Quota(config.quota, around.now_s, self.parties.requests_per_s_of),
            has_decided=index.has_decided,
            tickets=self.tickets,
        )
        self.sender.queue.capacity_freed = self.gate.resume
        self.topic_watch = TopicWatch(config, log)
        self.snapshots = SnapshotSchedule(config, index.log_identity, self.readiness.is_ready, around.clock_ms)
        self.archive = ArchiveSchedule(config, self.driver, self.sender, self.readiness.is_ready, around.now_s)
        parts = (self.driver, self.sender, index, self.issuer, self.self_check, self.topic_watch)
        self.metrics.watch(*parts, is_ready=self.readiness.is_ready)
        self.metrics.watch_gate(self.gate)
        self.metrics.watch_snapshots(self.snapshots)
        self.metrics.watch_archive(self.archive)
        if isinstance(log, KafkaLog):
            self.metrics.watch_brokers(log.brokers)

    @classmethod
    async def start(cls, config: Config, log: Log) -> "Worker":
        """Open the index and return a worker on an open log of its notary. Raises `ConfigurationError`, `Fatal` or `NotReady`."""
        notary_name, log_identity = await identify(config, log)
        index = Index.open(
            config.index_directory,
            notary_name=notary_name,
            log_identity=log_identity,
            worker_name=config.worker.name,
            settings=config.index,
        )
        try:
            return cls(config, log, index)
        except BaseException:
            index.close()
            raise

    async def run(self) -> None:
        """Read, decide, answer."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.driver.run(), name="driver")
            tasks.create_task(self.parties.follow(), name="parties")
            tasks.create_task(self.self_check.run(), name="self-check")
            tasks.create_task(self.topic_watch.run(), name="topics")
            tasks.create_task(self.snapshots.run(), name="snapshots")
            tasks.create_task(self.archive.run(), name="archive")

    def close(self) -> None:
        """Close the index, and end the threads for signatures and the tracing."""
        if self._verifiers is not None:
            self._verifiers.shutdown(wait=False, cancel_futures=True)
        self.index.close()
        if self.tracing is not None:
            self.tracing.close()
