"""Complete workers on an in-memory log that injects faults on demand: sender, driver and a real index, wired as in `notary.worker`.

The faults are wrappers around `MemoryLog` that keep its contract: an acknowledged append is in the log, a failed one may or may not be.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from joiner import Driver, DriverSettings, Joiner, JoinerLimits, QueueLimits, Sender, SenderSettings
from notary.decision import Decision
from notary.index import Index, IndexSettings
from ordering.errors import CorruptRecord, Fatal, NotReady, OutcomeUnknown
from ordering.log import ORDERING, Leader, Log, LogOffsets, Reader, Record, Writer
from ordering.memory import MemoryLog
from ordering.records import Entry, Fence, Genesis, OrderingRecord, OwnerRecord, Register, View, batch_key, decode
from ordering.signatures import FILL_BYTES, NO_LOG_ID, SigningKey, log_id_of, sign_record
from tests.joiner.history import KEY, NOTARY, OWNER, ask, nonce, requests, signing_key, value

PARTITIONS = 3
REOPEN_MS = 10
SMALL = IndexSettings(cache_bytes=1 << 20, write_buffer_bytes=64 << 10)
LIMITS = JoinerLimits(hole_timeout_ms=20)
DRIVER = DriverSettings(poll_ms=10, watch_ms=20, stall_ms=100, contradiction_ms=200)
SECOND = signing_key("second")

_ticks = itertools.count(1_760_000_000_000)
_nonces = itertools.count()


def clock_ms() -> int:
    return next(_ticks)


def unpaused() -> Callable[[], float]:
    """Returns a monotonic clock, in seconds, that leaves out pauses of this process: between two readings it advances by a second at most.

    A busy machine may stop the tests for seconds, and a worker that notices compares its log first. Only a test's own clock says so here.
    """
    shown_s = 0.0
    before_s = time.monotonic()

    def now_s() -> float:
        nonlocal shown_s, before_s
        real_s = time.monotonic()
        shown_s += min(real_s - before_s, 1.0)
        before_s = real_s
        return shown_s

    return now_s


class Keys:
    """The keys of one worker."""

    def __init__(self, *keys: SigningKey) -> None:
        self.keys = {key.public_key: key for key in keys}
        self.former: dict[bytes, SigningKey] = {}

    def key_for(self, public_key: bytes) -> SigningKey | None:
        return self.keys.get(public_key)

    def fill_key_for(self, public_key: bytes) -> SigningKey | None:
        return self.keys.get(public_key) or self.former.get(public_key)

    def public_keys(self) -> list[bytes]:
        return list(self.keys)


class FaultyLog(MemoryLog):
    """A `MemoryLog` that starts with a genesis record; a test can intercept its appends, polls and log end offsets."""

    def __init__(self) -> None:
        super().__init__(PARTITIONS, clock_ms)
        genesis = Genesis(bytes(16), PARTITIONS, KEY.public_key, OWNER.public_key, NOTARY, "notary.example/test")
        self.put(ORDERING, None, sign_record(genesis, NO_LOG_ID, OWNER))
        self.log_id = log_id_of(self.read(ORDERING, 0, 1, 1)[0].value or b"")
        self.view = View(1, self.log_id)
        self.interruptions = 0
        self.on_append: Callable[[int, bytes | None, bytes | None], Awaitable[None]] | None = None
        self.on_poll: Callable[[list[Record]], list[Record]] | None = None
        self.on_offsets: Callable[[dict[int, LogOffsets]], None] | None = None
        self.markers: dict[int, int] = {}
        self.without_leader: set[int] = set()
        self.readers = 0
        self.opened: set[object] = set()
        """The readers and writers that are not closed."""

    async def open_writer(self) -> Writer:  # type: ignore[override]
        return _FaultyWriter(self, await super().open_writer())

    async def open_reader(self, offsets_next: Mapping[int, int]) -> Reader:  # type: ignore[override]
        self.readers += 1
        return _FaultyReader(self, await super().open_reader(offsets_next), offsets_next)

    async def offsets(self) -> Mapping[int, LogOffsets]:
        log_offsets = {
            partition: LogOffsets(0, offsets.log_end + self.markers.get(partition, 0))
            for partition, offsets in (await super().offsets()).items()
        }
        if self.on_offsets is not None:
            self.on_offsets(log_offsets)
        return log_offsets

    def leaders(self) -> Mapping[int, Leader]:
        return {partition: leader for partition, leader in super().leaders().items() if partition not in self.without_leader}

    def cut(self, *ends: int) -> None:
        """Lose every record from these offsets on: of the ordering topic, then of each partition."""
        for records, end in zip(self._records.values(), ends, strict=True):
            del records[end:]

    def regrow(self, ends: list[int]) -> None:
        """Cut the log there, and append another signed history that is longer than the lost one."""
        self.cut(*ends)
        for number in range(9):
            self.register(f"another {number}")
            for partition in range(PARTITIONS):
                self.put(partition, batch_key(9, 9), b"another history")

    def ends(self) -> list[int]:
        return [len(records) for records in self._records.values()]

    def put_signed(self, record: OrderingRecord, key: SigningKey | None = None) -> None:
        """Append an ordering record as another writer, signed with `key` or with the key that such a record needs."""
        self.put(ORDERING, None, sign_record(record, self.log_id, key or (OWNER if isinstance(record, OwnerRecord) else KEY)))

    def register(self, name: str, nonce_of: str = "", version: int = 1) -> None:
        """Append the register record of another process."""
        self.put_signed(Register(nonce(nonce_of or name), self.view, version, name, "0"))

    def fence(self, incarnation: int, sequence_last: int) -> None:
        """Append a fence by another worker."""
        self.put_signed(Fence(0, self.view, incarnation, sequence_last))

    def entry(self, incarnation: int, sequence: int, *labels: str, partition: int = 0, view: View | None = None) -> None:
        """Append an entry for these requests, without its payload."""
        ids = tuple([request.transaction_id for request in requests(*labels)])
        asked = sha256(value(*labels)).digest()
        self.put_signed(Entry(incarnation, sequence, view or self.view, clock_ms(), partition, asked, ids))

    def entries(self) -> list[Entry]:
        return [record for record in self.records() if isinstance(record, Entry)]

    def records(self) -> list[OrderingRecord]:
        """Returns all ordering records that decode."""
        decoded: list[OrderingRecord] = []
        for record in self.read(ORDERING, 0, 1 << 30, 1 << 20):
            with contextlib.suppress(CorruptRecord):
                decoded.append(decode(record.value))
        return decoded


class _FaultyWriter:
    def __init__(self, log: FaultyLog, writer: Writer) -> None:
        self._log, self._writer = log, writer
        self._closed = asyncio.Event()
        log.opened.add(self)

    async def append(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        if self._log.on_append is not None:
            fault = asyncio.ensure_future(self._log.on_append(partition, key, value))
            closed = asyncio.ensure_future(self._closed.wait())
            try:
                await asyncio.wait([fault, closed], return_when=asyncio.FIRST_COMPLETED)
                if not fault.done():
                    raise OutcomeUnknown("the writer was closed")
                fault.result()
            finally:
                closed.cancel()
                fault.cancel()
        await self._writer.append(partition, key, value)

    async def close(self) -> None:
        self._closed.set()
        await self._writer.close()
        self._log.opened.discard(self)


class _FaultyReader:
    def __init__(self, log: FaultyLog, reader: Reader, offsets_next: Mapping[int, int]) -> None:
        self._log, self._reader = log, reader
        self._offsets_next = dict.fromkeys(range(ORDERING, log.payload_partitions), 0) | dict(offsets_next)
        self.pause = reader.pause
        log.opened.add(self)

    @property
    def interruptions(self) -> int:
        return self._log.interruptions

    async def close(self) -> None:
        await self._reader.close()
        self._log.opened.discard(self)

    async def poll(self, timeout_ms: int) -> list[Record]:
        records = await self._reader.poll(timeout_ms)
        if self._log.on_poll is not None:
            try:
                records = self._log.on_poll(records)
            except NotReady:
                # The position of Kafka's consumer is behind the records that a failed poll has lost.
                self._offsets_next = {partition: self._reader.offset_next(partition) for partition in self._offsets_next}
                raise
        self._offsets_next |= {record.partition: record.offset + 1 for record in records}
        return records

    def offset_next(self, partition: int) -> int:
        at = self._offsets_next[partition]
        return at + self._log.markers.get(partition, 0) if at == self._log.end(partition) else at


class Worker:
    """The parts of one worker, wired as in `notary.worker`."""

    def __init__(
        self,
        log: Log,
        directory: Path,
        name: str,
        driver: DriverSettings = DRIVER,
        limits: JoinerLimits = LIMITS,
        keys: Keys | None = None,
        clock: Callable[[], int] = clock_ms,
        now_s: Callable[[], float] | None = None,
        **settings: int,
    ) -> None:
        self.log, self.name, self.stopped = log, name, False
        self.index = Index.open(directory, notary_name=NOTARY, log_identity=log.identity, worker_name=name, settings=SMALL)
        self.joiner = Joiner(self.index.joiner_state(), limits, name)
        self.sender: Sender[Decision] = Sender(
            log,
            self.joiner,
            keys or Keys(KEY),
            name,
            "0.1",
            SenderSettings(reopen_wait_ms=REOPEN_MS),
            QueueLimits(**settings),
            clock,
            lambda: nonce(f"own {next(_nonces)}"),
        )
        self._executor = ThreadPoolExecutor(1)
        self.driver: Driver[Decision] = Driver(
            log, self.joiner, self.index, self.sender, driver, clock, now_s=now_s or unpaused(), executor=self._executor
        )
        self.running = asyncio.create_task(self.driver.run())

    async def decided(self, *labels: str) -> list[Decision]:
        """Submit these requests; returns their decisions. Fails if the worker dies meanwhile."""
        answer = ask(self.sender, *labels)
        first: list[asyncio.Future[Any]] = [answer, self.running]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            await self.running
        return list(await answer)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert not self.running.done(), self.running
            await asyncio.sleep(0.002)

    async def incarnations(self, besides: int | None = None) -> int:
        """Returns the worker's incarnation as soon as it has one other than `besides`."""
        await self.until(lambda: self.sender.incarnation not in (None, besides))
        assert self.sender.incarnation is not None
        return self.sender.incarnation

    async def dies(self) -> Fatal:
        """Returns the `Fatal` with which the worker stops."""
        with pytest.raises(BaseExceptionGroup) as caught:
            await self.running
        fatal, others = caught.value.split(Fatal)
        assert others is None
        assert fatal is not None
        first: BaseException = fatal
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        assert isinstance(first, Fatal)
        return first

    async def stop(self) -> None:
        if self.stopped:
            return
        self.stopped = True
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError, BaseExceptionGroup):
            await self.running
        self._executor.shutdown()
        self.index.close()


def is_fill(value: bytes | None) -> bool:
    return value is not None and len(value) == FILL_BYTES


def id_of(label: str) -> bytes:
    return requests(label)[0].transaction_id


Start = Callable[..., Worker]


async def ready_worker(start: Start, **how: Any) -> Worker:
    """Returns a worker that has decided "a" and is ready."""
    worker = start(**how)
    await worker.decided("a")
    await worker.until(lambda: worker.driver.not_ready() is None)
    return worker


def reason(worker: Worker, text: str) -> Callable[[], bool]:
    """Returns a condition: the worker is not ready, for a reason that contains this text."""
    return lambda: text in (worker.driver.not_ready() or "")
