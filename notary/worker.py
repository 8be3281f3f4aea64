"""One worker, put together. No logic: what each part does is said where it lives."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec

from joiner import Driver, Joiner, Ready, Sender
from notary import keys
from notary.access import check_writable
from notary.decision import Decision
from notary.gate import Gate
from notary.index import TILE_US, Index
from notary.keyring import Keyring
from notary.metrics import Metrics
from notary.parties import Parties
from notary.quota import Quota
from notary.receipts import Issuer
from notary.self_check import SelfCheck
from notary.snapshots.schedule import SnapshotSchedule
from notary.tickets import Tickets
from notary.topic_watch import TopicWatch
from notary.tracing import tracing_of
from notary.version import VERSION
from notary.wire import encode_in_pieces
from ordering.clock import clock_ms
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError, Fatal, NotReady
from ordering.genesis import read_genesis
from ordering.ids import TransactionId
from ordering.kafka import KafkaLog, KafkaTimeouts
from ordering.log import Log
from ordering.pieces import Pieces
from ordering.records import Genesis

if TYPE_CHECKING:
    from notary.config import Config

logger = logging.getLogger("notary.worker")

GATE_TURN_S: Final = 0.002
"""Of the loop's time, so much at once goes into what is to come in."""
RECEIPT_US: Final = 5
"""The making of a receipt from tiles that are in memory."""


async def open_log(config: "Config") -> Log:
    """The log that the configuration names. Raises `NotReady` while it is away, `ConfigurationError` or `Fatal` if it is not fit."""
    if config.log.kind == "embedded":
        check_writable(config.path(config.log.directory), "the log", "`[log] directory` (NOTARY_LOG_DIRECTORY)")
        return EmbeddedLog.open(config.path(config.log.directory), clock_ms)
    return await KafkaLog.open(
        config.log.bootstrap,
        config.log.topic_prefix,
        client_id=f"notary-{config.worker.name}",
        security=config.kafka_security,
        timeouts=KafkaTimeouts(append_ms=config.log.append_timeout_ms),
    )


async def identify(config: "Config", log: Log) -> tuple[str, str]:
    """Returns (notary name, identity) of a log, by which an index belongs to it. Raises `ConfigurationError` for another notary's log."""
    genesis, log_id = await read_genesis(log)
    check_genesis(config, genesis)
    return genesis.notary_name, f"{log.identity} {log_id.hex()}"


def check_genesis(config: "Config", genesis: Genesis) -> None:
    """Raise `ConfigurationError` where the configuration says otherwise than the log's genesis record (R10)."""
    for what, configured, found in (("name", config.name, genesis.notary_name), ("origin", config.origin, genesis.origin)):
        if configured != found:
            raise ConfigurationError(
                f"the configuration says {what} = {configured!r}, and this log's is {found!r}: it belongs to notary"
                f" {genesis.notary_name!r}. Correct the {what}, or name this notary's own log"
            )


class Environment(msgspec.Struct, frozen=True):
    """What a worker asks of its machine: clocks and randomness. None of it decides anything (R6)."""

    clock_ms: Callable[[], int] = clock_ms
    """The wall clock, milliseconds since 1970."""
    now_s: Callable[[], float] = time.monotonic
    """A clock that never runs backwards."""
    nonce: Callable[[], bytes] = lambda: os.urandom(16)
    """16 bytes that nobody has used."""
    threads: bool = True
    """Whether signatures of log records may be verified in threads."""


class Worker:
    """The parts of one worker, wired. `run` lives until it is cancelled or a part says `Fatal`."""

    def __init__(self, config: "Config", log: Log, index: Index, environment: Environment | None = None) -> None:
        around = environment or Environment()
        self.config = config
        self.clock_ms = around.clock_ms
        self.log = log
        self.index = index
        state = index.joiner_state()
        self.keyring = Keyring(config.path(config.key_file), config.path(config.key_history_file), config.origin, around.now_s)
        self._public_key = self.keyring.first
        if state.log_state is not None and self.keyring.key_for(state.log_state.key) is not None:
            self._public_key = state.log_state.key
        key = self.keyring.private_key(self._public_key)
        assert key is not None
        self.key_history = self.keyring.history(self._public_key)
        self.verifier_key = keys.verifier_key(config.origin, key.public_key())
        self.issuer = Issuer(config.origin, key, index.tree.view)
        self.parties = Parties(config.path(config.parties_file))
        self.metrics = Metrics()
        joiner = Joiner(state, config.joiner, config.worker.name)
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
        self.tickets = Tickets(around.nonce() + around.nonce(), around.now_s)
        self.gate = Gate(
            config.name,
            self.parties,
            self._closed,
            around.now_s,
            bytes_max=config.queue.pending_bytes_max,
            body_s_max=config.http.body_s,
            turn_s_max=GATE_TURN_S,
            room=self.sender.queue,
            quota=Quota(config.quota.party_requests_per_s, around.now_s, self.parties.requests_per_s_of),
            tickets=self.tickets,
        )
        self._verifiers = ThreadPoolExecutor(2, thread_name_prefix="log-signatures") if around.threads else None
        self.tracing = tracing_of(config.tracing, config.name, config.worker.name)
        if self.tracing is not None:
            self.sender.sending = self.tracing.sending
            self.metrics.watch_spans(self.tracing.spans)
        self.driver: Driver[Decision] = Driver(
            log,
            joiner,
            index if self.tracing is None else self.tracing.applier(index),
            self.sender,
            config.driver,
            around.clock_ms,
            self._observe,
            around.now_s,
            self._verifiers,
        )
        self.self_check = SelfCheck(config.worker.name, self.driver, self.sender, index, config.self_check, around.now_s)
        self.topic_watch = TopicWatch(config)
        self.snapshots = SnapshotSchedule(config, lambda: self.not_ready() is None, around.clock_ms)
        self._decided: dict[TransactionId, list[Callable[[], None]]] = {}
        self._fatal: Fatal | None = None
        self._failed = asyncio.Event()
        parts = (self.driver, self.sender, index, self.issuer, self.self_check, self.topic_watch)
        self.metrics.watch(*parts, is_ready=lambda: self.not_ready() is None)
        self.metrics.watch_gate(self.gate)
        self.metrics.watch_snapshots(self.snapshots)
        if isinstance(log, KafkaLog):
            self.metrics.watch_brokers(log.brokers)

    @classmethod
    async def start(cls, config: "Config", log: Log) -> "Worker":
        """A worker on an open log that is its notary's, its index opened. Raises `ConfigurationError`, `Fatal` or `NotReady`."""
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

    def not_ready(self) -> str | None:
        """Why this worker takes no submission now; None when it does."""
        return self.serving_suspended() or self.driver.not_ready() or self.sender.not_ready()

    def _closed(self) -> NotReady | None:
        return None if (why := self.not_ready()) is None else NotReady(why)

    def serving_suspended(self) -> str | None:
        """Why nothing may be answered from this worker's index; None when it may."""
        return self.self_check.serving_suspended() or self.driver.suspicion()

    def rendered(self, decision: Decision, *, receipts: bool) -> Pieces[bytes]:
        """A decision as it is answered."""
        receipt = b""
        if receipts:
            tiles_read = self.index.tree.tiles_read
            receipt = self.issuer.receipt_json(decision.position)
            yield RECEIPT_US + (self.index.tree.tiles_read - tiles_read) * TILE_US
        return (yield from encode_in_pieces(decision, receipt))

    def when_decided(self, transaction_id: TransactionId, call_back: Callable[[], None]) -> None:
        """Call it, once, in the step in which the transaction is decided here."""
        self._decided.setdefault(transaction_id, []).append(call_back)

    def forget(self, transaction_id: TransactionId, call_back: Callable[[], None]) -> None:
        """Do not call it any more."""
        waiting = self._decided.get(transaction_id, [])
        if call_back in waiting:
            waiting.remove(call_back)
        if not waiting:
            self._decided.pop(transaction_id, None)

    async def run(self) -> None:
        """Read, decide, answer."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.driver.run(), name="driver")
            tasks.create_task(self.parties.follow(), name="parties")
            tasks.create_task(self._until_failed(), name="failed")
            tasks.create_task(self.self_check.run(), name="self-check")
            tasks.create_task(self.topic_watch.run(), name="topics")
            tasks.create_task(self.snapshots.run(), name="snapshots")

    def fail(self, problem: Fatal) -> None:
        """Have `run` end with what someone met who only asked, as it ends with a `Fatal` of the driver."""
        self._fatal = self._fatal or problem
        self._failed.set()

    def close(self) -> None:
        """Let go of the index."""
        if self._verifiers is not None:
            self._verifiers.shutdown(wait=False, cancel_futures=True)
        self.index.close()
        if self.tracing is not None:
            self.tracing.close()

    def _observe(self, ready: Ready) -> None:
        self.metrics.observe(ready)
        if self.driver.joiner.log_state is not None and self.driver.joiner.log_state.key != self._public_key:
            self._rotate(self.driver.joiner.log_state.key)
        self.metrics.count_decisions(self.index.take_outcome_counts())
        if self._decided:
            for batch in ready.batches:
                for request in batch.requests:
                    for decided in self._decided.pop(request.transaction_id, ()):
                        decided()

    def _rotate(self, public_key: bytes) -> None:
        """Another key is in force in the log: sign receipts with it too, as soon as its files are here."""
        key = self.keyring.private_key(public_key)
        if key is None:
            return  # asked again with the next step; `not_ready` says what is missing
        try:
            self.key_history = self.keyring.history(public_key)
        except ConfigurationError as problem:
            logger.warning("the key history does not end with the key in force yet: %s", problem)
            return
        self._public_key = public_key
        self.verifier_key = keys.verifier_key(self.config.origin, key.public_key())
        self.issuer.sign_with(key)
        logger.info("another key of the notary is in force verifier_key=%s", self.verifier_key)

    async def _until_failed(self) -> None:
        await self._failed.wait()
        assert self._fatal is not None
        raise self._fatal
