"""Tests of contradictions that a complete worker finds while it is busy with other records (R10)."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any

import msgspec
import pytest

import joiner.driver
from joiner import JoinerLimits, Ready
from joiner.driver import VERIFY_AT_ONCE
from joiner.recheck import find_again
from ordering.errors import FatalCode, OutOfRange
from ordering.log import ORDERING, LogOffsets, Reader, Record
from ordering.records import Register, View
from tests.joiner.faulty import DRIVER, PARTITIONS, FaultyLog, Start, Worker, ready_worker, reason
from tests.joiner.history import nonce

PATIENT = msgspec.structs.replace(DRIVER, stall_ms=60_000, interrupted_after_ms=200)


def _shorter(offsets: dict[int, LogOffsets]) -> None:
    """Let the ordering topic end after its first record."""
    offsets[ORDERING] = msgspec.structs.replace(offsets[ORDERING], log_end=1)


def _replace_last(worker: Worker, log: FaultyLog) -> None:
    """Put another record in the place of the last one that took effect, without an interruption."""
    last = worker.joiner.history.last
    assert last is not None
    was = log.read(ORDERING, last.offset, 1 << 20, 1)[0]
    log._records[ORDERING][last.offset] = Record(ORDERING, last.offset, was.append_time_ms + 1, None, b"another")


def _held(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Let a function of the driver return its result only when the second event is set. The first one is set once it has one."""
    real, entered, go_on = getattr(joiner.driver, name), asyncio.Event(), asyncio.Event()

    async def held(*arguments: Any, **options: Any) -> str:
        found: str = await real(*arguments, **options)
        entered.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(joiner.driver, name, held)
    return entered, go_on


def _compare_slowly(worker: Worker, log: FaultyLog) -> None:
    """Interrupt reading. The mark of one payload partition comes only when the records of the others have been held for long."""
    marked = next(partition for partition in worker.joiner.marks if partition != ORDERING)
    until_s = worker.driver._now_s() + 1.5 * worker.driver._settings.interrupted_after_s
    delayed: list[Record] = []

    def late(records: list[Record]) -> list[Record]:
        delayed.extend(record for record in records if record.partition == marked)
        others = [record for record in records if record.partition != marked]
        if worker.driver._now_s() < until_s:
            return others
        log.on_poll = None
        return others + delayed

    log.on_poll = late
    log.interruptions += 1


def _check_at_first_effect(worker: Worker, prepare: Callable[[], None]) -> "asyncio.Future[None]":
    """At the first step with an effect: `prepare`, and have the watchdog look at the log. Returns a future of the end of this look."""
    looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    looking: list[asyncio.Task[None]] = []

    def observe(ready: Ready) -> None:
        if ready.effects and not looking:
            prepare()
            looking.append(asyncio.create_task(worker.driver._check_log()))
            looking[0].add_done_callback(lambda done: looked.set_result(done.result()))

    worker.driver.observers.append(observe)
    return looked


async def test_nothing_of_a_poll_is_applied_after_a_contradiction(start: Start, log: FaultyLog) -> None:
    """The log contradicts the index while the first chunk of a poll is applied. The other chunks are not applied."""
    worker = await ready_worker(start)
    readers, applied = log.readers, 0

    def shorten() -> None:
        log.on_offsets = _shorter

    looked = _check_at_first_effect(worker, shorten)

    def observe(ready: Ready) -> None:
        nonlocal applied
        if looked.done() and log.readers == readers:
            applied += len(ready.effects)

    worker.driver.observers.append(observe)
    for number in range(4 * VERIFY_AT_ONCE):
        log.register(f"other {number}")
    await looked
    await asyncio.sleep(0.2)
    assert applied == 0


async def test_a_tail_lost_while_a_poll_is_applied(start: Start, log: FaultyLog) -> None:
    """The log loses the part of a poll that is not applied yet. The worker continues with the shorter log."""
    worker = await ready_worker(start)
    looked = _check_at_first_effect(worker, lambda: log.cut(worker.joiner.offset_head, *log.ends()[1:]))
    for number in range(4 * VERIFY_AT_ONCE):
        log.register(f"other {number}")
    await looked
    assert "contradicts" in (worker.driver.suspicion() or "")
    await worker.until(lambda: worker.driver.not_ready() is None)
    assert worker.joiner.offset_head == log.end(ORDERING)


async def test_a_contradiction_outlasts_an_examination_under_way(start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an examination does not resume serving if the log was found to be shorter meanwhile."""
    worker = await ready_worker(start)
    entered, go_on = _held(monkeypatch, "examine")
    log.put_signed(Register(nonce("w2"), View(77, bytes(32)), 1, "w2", "0"))
    await entered.wait()
    readers, log.on_offsets = log.readers, _shorter
    await worker.until(lambda: "contradicts" in (worker.driver.suspicion() or ""))
    applied: list[Ready] = []
    worker.driver.observers.append(lambda ready: applied.append(ready) if ready.effects and log.readers == readers else None)
    go_on.set()
    await asyncio.sleep(0.1)
    assert not applied


async def test_a_contradiction_outlasts_a_look_at_held_records(start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for records that were held back and are read again before they are applied."""
    worker = await ready_worker(start, driver=PATIENT)
    entered, go_on = _held(monkeypatch, "find_again")
    _compare_slowly(worker, log)
    await entered.wait()
    driver, readers, log.on_offsets = worker.driver, log.readers, _shorter
    await worker.until(lambda: "contradicts" in (driver.suspicion() or ""))
    resumed: list[int] = []
    agreed = driver._agreed

    def agree() -> None:
        agreed()
        if log.readers == readers and driver.suspicion() is None:
            resumed.append(readers)

    monkeypatch.setattr(driver, "_agreed", agree)
    go_on.set()
    await asyncio.sleep(0.05)
    assert not resumed


async def test_a_slow_look_at_held_records_is_repeated_alone(start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that need long to return the held records, too, do not make the worker compare all again: it would never be ready."""
    worker = await ready_worker(start, driver=PATIENT)
    real, looks = find_again, 0

    async def slowly(*arguments: Any) -> str:
        nonlocal looks
        looks += 1
        found: str = await real(*arguments)
        await asyncio.sleep(0 if looks % 3 == 0 else 1.5 * worker.driver._settings.interrupted_after_s)
        return found

    monkeypatch.setattr(joiner.driver, "find_again", slowly)
    interruptions = worker.driver.interruptions
    _compare_slowly(worker, log)
    await worker.until(lambda: worker.driver.interruptions > interruptions)
    await worker.until(lambda: worker.driver.not_ready() is None)
    assert looks >= 3
    assert worker.driver.interruptions - interruptions < looks, "each slow look led to another comparison"


async def test_held_records_that_a_second_look_finds_lost(start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow first look finds the held records; the log loses them before the second one, which decides."""
    worker = await ready_worker(start, driver=PATIENT)
    real, seen = find_again, worker.joiner.history.seen
    ends = log.ends()

    async def slowly(*arguments: Any) -> str:
        found: str = await real(*arguments)
        if not found and log.end(ORDERING) > ends[0]:
            await asyncio.sleep(1.5 * worker.driver._settings.interrupted_after_s)
            log.cut(*ends)
        return found

    monkeypatch.setattr(joiner.driver, "find_again", slowly)
    _compare_slowly(worker, log)
    log.register("other")
    await worker.until(lambda: log.ends() == ends)
    await worker.until(lambda: worker.driver.not_ready() is None)
    assert worker.joiner.history.seen == seen


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_foreign_view_whose_record_is_lost(start: Start, log: FaultyLog, is_replaced: bool) -> None:
    """A foreign view could not be examined, and its record is cut off; another one may be in its place. The worker is ready again."""
    worker = await ready_worker(start)
    ends = log.ends()
    log.without_leader = set(range(PARTITIONS))  # so the contents cannot be compared
    log_offsets = log.offsets

    async def led() -> Mapping[int, LogOffsets]:
        return {partition: offsets for partition, offsets in (await log_offsets()).items() if partition == ORDERING}

    log.offsets = led  # type: ignore[method-assign]
    log.put_signed(Register(nonce("w2"), View(77, bytes(32)), 1, "w2", "0"))
    await worker.until(reason(worker, "a record shows another history"))
    log.cut(*ends)
    if is_replaced:
        log.register("w2", "another")  # before this worker asks for the log's end again
        log.interruptions += 1  # the new leader, as the reader reports it
    log.offsets = log_offsets  # type: ignore[method-assign]
    log.without_leader = set()
    await worker.until(lambda: worker.driver.not_ready() is None)
    assert worker.joiner.offset_head == log.end(ORDERING)
    assert worker.joiner.suspicions.open == {}
    assert len(await worker.decided("b")) == 1


def _opens_slowly(log: FaultyLog, seconds: float, poll: Callable[[Reader, int, int], Awaitable[list[Record]]] | None = None) -> None:
    """Let each reader open after this time, as Kafka's while a broker is unreachable. `poll(reader, number of the poll, ms)` polls it."""
    open_reader = log.open_reader

    async def slow(offsets_next: Mapping[int, int]) -> Reader:
        await asyncio.sleep(seconds)
        reader = await open_reader(offsets_next)
        if poll is not None:
            inner, polls = copy.copy(reader), count(1)

            async def polled(timeout_ms: int) -> list[Record]:
                return await poll(inner, next(polls), timeout_ms)

            reader.poll = polled  # type: ignore[method-assign]
        return reader

    log.open_reader = slow  # type: ignore[method-assign]


@pytest.mark.parametrize("lost", ["a record", "a record, seen after an empty poll", "the offset to read"])
async def test_a_loss_stops_a_worker_whose_readers_open_slowly(start: Start, log: FaultyLog, lost: str) -> None:
    """Each comparison takes longer than a contradiction may last. The worker stops nevertheless."""
    worker = await ready_worker(start)
    if lost != "the offset to read":
        _replace_last(worker, log)

    async def poll(reader: Reader, number: int, timeout_ms: int) -> list[Record]:
        if lost == "the offset to read":
            raise OutOfRange("the offset is gone")
        return [] if "empty" in lost and number == 1 else await reader.poll(timeout_ms)

    _opens_slowly(log, 1.2 * DRIVER.contradiction_s, poll)
    log.interruptions += 1
    assert (await worker.dies()).code is FatalCode.INDEX_AHEAD_OF_LOG


@pytest.mark.parametrize("share", [0.0, 0.3, 1.2])
async def test_lost_content_stops_a_worker_whose_readers_open_slowly(start: Start, log: FaultyLog, share: float) -> None:
    """A content that a writer has passed is missing for the limit. The worker stops, however long its readers take to open."""
    log.register("w2")
    log.entry(1, 1, "lost", partition=1)
    log.entry(1, 2, "b", partition=1, view=View(3, bytes(32)))
    _opens_slowly(log, share * DRIVER.contradiction_s)
    assert (await start().dies()).code is FatalCode.CONTENT_LOST


async def test_a_contradiction_before_a_pause_is_another_one(start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is paused during a look at the log, for longer than a contradiction may last. The log may agree soon after."""
    worker = await ready_worker(start)
    driver, now_s, paused_s = worker.driver, worker.driver._now_s, 0.0

    def paused(offsets: dict[int, LogOffsets]) -> None:
        nonlocal paused_s
        paused_s = 1.5 * DRIVER.contradiction_s
        _shorter(offsets)

    monkeypatch.setattr(driver, "_now_s", lambda: now_s() + paused_s)
    log.on_offsets = _shorter
    await driver._check_log()
    log.on_offsets = paused
    await driver._check_log()
    assert "contradicts" in (driver.suspicion() or "")
    log.on_offsets = None
    assert len(await worker.decided("b")) == 1


async def test_lost_content_in_a_busy_partition_stops_a_worker(start: Start, log: FaultyLog) -> None:
    """Records come into the partition all the time, and a poll takes longer than they need: the worker has never read all of them."""
    log.register("w2")
    log.entry(1, 1, "lost", partition=1)
    log.entry(1, 2, "b", partition=1, view=View(3, bytes(32)))

    async def poll(reader: Reader, number: int, timeout_ms: int) -> list[Record]:
        records = await reader.poll(timeout_ms)
        await asyncio.sleep(0.01)
        return records

    async def write() -> None:
        for number in count():
            log.put(1, None, b"orphan %d" % number)
            await asyncio.sleep(0.002)

    _opens_slowly(log, 0.0, poll)
    writing = asyncio.create_task(write())
    try:
        assert (await start().dies()).code is FatalCode.CONTENT_LOST
    finally:
        writing.cancel()


async def test_two_short_contradictions_with_a_silent_partition_between(start: Start, log: FaultyLog) -> None:
    """A broker lags, then it returns nothing for longer than a contradiction may last, then it lags once more. The worker continues."""
    worker = await ready_worker(start)
    open_reader, opened, loop = log.open_reader, 0, asyncio.get_running_loop()

    async def opens(offsets_next: Mapping[int, int]) -> Reader:
        nonlocal opened
        reader = await open_reader(offsets_next)
        if ORDERING not in offsets_next or worker.driver._reader is not None:
            return reader  # not the driver's own
        opened += 1
        number, poll, silent_until_s = opened, reader.poll, loop.time() + 1.5 * DRIVER.contradiction_s

        async def polled(timeout_ms: int) -> list[Record]:
            if number == 2 and loop.time() < silent_until_s:
                await asyncio.sleep(timeout_ms / 1000)
                return []
            records = await poll(timeout_ms)
            if number > 2:
                return records
            return [Record(each.partition, each.offset, each.append_time_ms, each.key, b"another") for each in records]

        reader.poll = polled  # type: ignore[method-assign]
        return reader

    log.open_reader = opens  # type: ignore[method-assign]
    log.interruptions += 1
    await worker.until(lambda: opened >= 3 and worker.driver.not_ready() is None)
    assert len(await worker.decided("b")) == 1


async def test_a_loss_found_before_a_fill_stops_the_answers(start: Start, log: FaultyLog) -> None:
    """A worker that wants to fill a hole compares the log first. If the log is another one, it stops."""
    worker = await ready_worker(start, limits=JoinerLimits(hole_timeout_ms=20))
    log.register("w2")
    await worker.until(lambda: worker.joiner.offset_head == log.end(ORDERING))
    _replace_last(worker, log)
    log.entry(1, 77, "hole")  # of this worker's own incarnation; its payload never comes
    await worker.until(lambda: "contradicts" in (worker.driver.suspicion() or ""))
    assert (await worker.dies()).code is FatalCode.INDEX_AHEAD_OF_LOG
