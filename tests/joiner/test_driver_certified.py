"""Tests of complete workers on a log that has lost records, or that another worker reports to have lost some (R10)."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

import joiner.driver
import ordering.local_reader
from joiner import DriverSettings, JoinerLimits
from joiner.sender import KEY_WAIT_S, _Registering
from ordering.errors import FatalCode, NotReady
from ordering.log import ORDERING, LogOffsets, Reader, Record
from ordering.records import Activate, Entry, OrderingRecord, Register, Retire, Settle, View, batch_key, decode
from ordering.signatures import SigningKey, endorse_key
from tests.joiner.faulty import (
    DRIVER,
    PARTITIONS,
    SECOND,
    FaultyLog,
    Keys,
    Start,
    Worker,
    clock_ms,
    id_of,
    is_fill,
    ready_worker,
    reason,
    unpaused,
)
from tests.joiner.history import KEY, nonce, value

# ---- R10: after an interruption nothing is applied before the log was compared ----


@contextlib.contextmanager
def _applied_nothing(worker: Worker) -> Iterator[None]:
    """Check that nothing is applied inside the with block."""
    seen, position = worker.joiner.history.seen, worker.index.position_next
    yield
    assert (worker.joiner.history.seen, worker.index.position_next) == (seen, position)


async def _cut_after(start: Start, log: FaultyLog, **how: Any) -> tuple[Worker, list[int]]:
    """Returns a worker that has decided "a" and "b", and the log end offsets before "b"."""
    worker = await ready_worker(start, **how)
    ends = log.ends()
    await worker.decided("b")
    return worker, ends


async def test_interruption_that_the_reader_reports(start: Start, log: FaultyLog) -> None:
    """After an interruption that the reader reports, the marks are looked for before anything else is read, and one is missing."""
    worker, ends = await _cut_after(start, log)

    def interrupted(records: list[Record]) -> list[Record]:
        # This poll returns records of the log that has grown again.
        log.on_poll = None
        log.interruptions += 1
        log.regrow(ends)
        return [record for partition in (ORDERING, 0, 1, 2) for record in log.read(partition, 0, 1 << 20, 100)][-5:]

    with _applied_nothing(worker):
        log.on_poll = interrupted
        assert (await worker.dies()).code is FatalCode.INDEX_AHEAD_OF_LOG
    assert worker.driver.interruptions == 1


async def test_interruption_that_harmed_nothing(start: Start, log: FaultyLog) -> None:
    """After an interruption of an unchanged log the worker continues, and was suspended only for the time of the comparison."""
    worker = start()
    decisions = await worker.decided("a")
    for expected in (1, 2, 3):
        log.interruptions += 1
        assert "reading was interrupted" in (worker.driver.suspicion() or "")  # at once: no poll has returned yet
        await worker.until(lambda expected=expected: worker.driver.interruptions == expected and worker.driver.not_ready() is None)  # type: ignore[misc]
        assert await worker.decided("a") == decisions
    assert worker.sender.incarnation == 1


async def _stopped_before_a_foreign_view(start: Start, log: FaultyLog) -> int:
    """Returns the number of records in the view, in the last record of the log, of a worker that saw another history."""
    worker = await ready_worker(start)
    seen = worker.joiner.history.seen
    await worker.stop()
    log.put_signed(Register(nonce("w2"), View(seen, bytes(32)), 1, "w2", "0"))
    return seen


async def test_polled_records_are_applied_before_a_worker_is_live(start: Start, log: FaultyLog) -> None:
    """A foreign view in the last records of the log raises a suspicion: records that were only polled do not count as read."""
    seen = await _stopped_before_a_foreign_view(start, log)
    again = start()
    await again.until(lambda: again.joiner.offset_head == log.ends()[0])
    assert again.joiner.suspicions.open == {"w2": seen}
    assert not again.joiner.suspicions.live
    assert again.driver.caught_up_offset is None


async def test_records_that_a_failed_reader_lost_are_applied_before_a_worker_is_live(start: Start, log: FaultyLog) -> None:
    """The same for records that a failed poll has lost: the position of that reader is behind them."""
    seen = await _stopped_before_a_foreign_view(start, log)
    foreign = log.ends()[0] - 1

    def fail(records: list[Record]) -> list[Record]:
        log.on_poll = None
        raise NotReady("a record does not match its checksum")

    def withhold(records: list[Record]) -> list[Record]:
        log.on_poll = fail
        return [record for record in records if (record.partition, record.offset) != (ORDERING, foreign)]

    log.on_poll = withhold
    again = start()
    await again.until(lambda: again.joiner.offset_head == log.ends()[0])
    assert again.joiner.suspicions.open == {"w2": seen}
    assert not again.joiner.suspicions.live


async def test_a_failed_reader_ends_the_answers_at_once(start: Start, log: FaultyLog) -> None:
    """A worker whose reader has failed suspends its answers before any other task runs, not only when it opens another reader."""
    worker = await ready_worker(start)

    def fail(records: list[Record]) -> list[Record]:
        log.on_poll = None
        raise NotReady("a record does not match its checksum")

    readers, log.on_poll = log.readers, fail
    await worker.until(lambda: log.on_poll is None)
    assert log.readers == readers
    assert "reading was interrupted" in (worker.driver.suspicion() or "")
    await worker.until(lambda: worker.driver.not_ready() is None)


async def test_a_forged_payload_is_read_once(start: Start, log: FaultyLog) -> None:
    """Payloads under names that never register are kept for ever (R5), but records behind them are not read again after interruptions."""
    for partition in range(PARTITIONS):
        log.put(partition, batch_key(1_000, 1), b"forged")
    worker = start()
    while len(worker.joiner.marks) <= PARTITIONS or min(worker.joiner.marks.values(), key=lambda mark: mark.offset).offset < 5:
        await worker.decided(f"{log.ends()}")
    began: list[Mapping[int, int]] = []
    open_reader = log.open_reader

    async def noted(offsets_next: Mapping[int, int]) -> Reader:
        began.append(dict(offsets_next))
        return await open_reader(offsets_next)

    log.open_reader = noted  # type: ignore[method-assign]
    for expected in (1, 2):
        marks = {each: mark.offset for each, mark in worker.joiner.marks.items()}
        marks[ORDERING] = worker.joiner.history.last_run[0].offset
        log.interruptions += 1
        await worker.until(lambda expected=expected: worker.driver.interruptions == expected and worker.driver.not_ready() is None)  # type: ignore[misc]
        assert began.pop() == marks
        assert worker.joiner.unregistered[0] == PARTITIONS
        # A restart has an empty buffer, so it reads from there.
        assert worker.joiner._offsets_next().items() >= dict.fromkeys(range(PARTITIONS), 0).items()
        await worker.decided(f"after {expected}")


async def test_memory_is_bounded_under_a_flood(start: Start, log: FaultyLog) -> None:
    """A worker beside a flood of forged payloads, also after an interruption, holds no more than its limits, and decides as before."""
    limit = 20_000
    worker = start(limits=JoinerLimits(hole_timeout_ms=20, buffer_bytes_max=limit))
    await worker.decided("before")
    for number in range(1_000):
        for partition in range(PARTITIONS):
            log.put(partition, batch_key(10_000 + number, 1), bytes(1_000))
    most = 0

    def measured(records: list[Record]) -> list[Record]:
        nonlocal most
        most = max(most, worker.driver._recheck.held_bytes + worker.joiner.buffered_bytes)
        return records

    log.on_poll = measured
    while any(worker.joiner.marks[partition].offset < 1_000 for partition in worker.joiner.marks if partition != ORDERING):
        await worker.decided(f"{log.ends()}")
    readers = log.readers
    for number in range(9):
        await worker.decided(f"beside {number}")
    assert log.readers == readers, "nothing is read again for batches that were not dropped"
    log.interruptions += 1
    await worker.until(lambda: worker.driver.interruptions == 1 and worker.driver.not_ready() is None)
    await worker.decided("after")
    assert most < 4 * limit


async def test_what_was_kept_waits_for_its_partition(start: Start, log: FaultyLog) -> None:
    """A buffered payload is not applied before its partition was compared: if the log lost it, all other workers will use its fill."""
    ahead = value("ahead")
    worker = await ready_worker(start)
    (partition,) = [each for each in worker.joiner.marks if each != ORDERING]
    # It is before the mark, and its entry comes later.
    log.put(partition, batch_key(2, 1), ahead)
    await worker.until(lambda: worker.joiner.unregistered[0] == 1)
    while worker.joiner.marks[partition].offset <= log.ends()[partition + 1] - 2:
        await worker.decided(f"more {log.ends()}")
    log.register("other")
    await worker.until(lambda: worker.joiner.incarnations.get(2) is not None)
    log.on_poll = lambda records: [record for record in records if record.partition != partition]
    log.without_leader = {partition}
    log.interruptions += 1
    await worker.until(lambda: worker.driver.interruptions == 1 and worker.driver.not_ready() is None)
    with _applied_nothing(worker):
        log.entry(2, 1, "ahead", partition=partition)
        await worker.until(lambda: worker.joiner.hole_offset is not None)
        await asyncio.sleep(0.2)
    log.on_poll, log.without_leader = None, set()
    await worker.until(lambda: worker.index.decision(id_of("ahead")) is not None)


@pytest.mark.parametrize("where", ["in a poll", "with records in hand", "between two polls"])
async def test_a_process_that_did_not_run(start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A process that did not run for a while compares its index with the log before it applies or answers anything more.

    The pause may come in a poll, while the signatures of polled records are verified, or after a step and before the next poll.
    """
    stopped_s, running_s = 0.0, unpaused()
    worker, ends = await _cut_after(start, log, now_s=lambda: running_s() + stopped_s)
    await worker.until(lambda: worker.driver.not_ready() is None)
    verify, catch_up = worker.driver._verify, worker.driver._catch_up

    def stop() -> None:
        nonlocal stopped_s
        log.regrow(ends)
        stopped_s = 2.5

    def polled(records: list[Record]) -> list[Record]:
        log.on_poll = None
        stop()
        return [record for partition in (ORDERING, 0, 1, 2) for record in log.read(partition, 0, 1 << 20, 100)][-5:]

    def verified(records: Sequence[Record]) -> Any:
        if not records or stopped_s:
            return verify(records)
        stop()
        return {}

    with _applied_nothing(worker):
        match where:
            case "in a poll":
                log.on_poll = polled
                await worker.until(lambda: log.on_poll is None)
                assert worker.driver.suspicion() is not None
            case "with records in hand":
                monkeypatch.setattr(worker.driver, "_verify", verified)
                log.put(ORDERING, None, b"anything")
            case _:
                monkeypatch.setattr(worker.driver, "_catch_up", lambda: stop() if not stopped_s else catch_up())
        assert (await worker.dies()).code is FatalCode.INDEX_AHEAD_OF_LOG
    assert worker.driver.interruptions == 1


async def _waits_unread(start: Start, log: FaultyLog, **how: Any) -> tuple[Worker, list[int]]:
    """Returns a worker that paused the ordering topic because its queue is full behind a hole, and the log end offsets before the hole."""
    log.register("peer")
    worker = await ready_worker(start, limits=JoinerLimits(queue_ids_max=1), **how)
    log.without_leader = set(range(PARTITIONS))  # so that no worker fills the hole
    ends = log.ends()
    log.entry(1, 1, "late")
    await worker.until(lambda: ORDERING in worker.driver._paused)
    return worker, ends


@pytest.mark.seconds
async def test_queued_records_are_checked_while_the_ordering_topic_is_paused(start: Start, log: FaultyLog) -> None:
    """A worker that has paused the ordering topic notices that the log lost its queued records, though its reader sees no interruption."""
    worker, ends = await _waits_unread(start, log)
    log.cut(*ends)
    log.register("another")
    await worker.until(lambda: worker.joiner.offset_head == log.ends()[0])
    log.put(0, batch_key(1, 1), value("late"))
    log.without_leader = set()
    await worker.decided("b")
    assert worker.index.decision(id_of("late")) is None


@pytest.mark.seconds
@pytest.mark.parametrize("copied", [False, True])
async def test_buffered_payloads_are_checked_while_their_partition_is_paused(start: Start, log: FaultyLog, copied: bool) -> None:
    """A worker notices that the log lost a payload that it read before memory was full: other workers may see a fill in its place.

    `copied`: the brokers' clock stands, so a copy of the last payload that waits looks like the original. It hides no loss before it.
    """
    log.register("peer")
    worker = await ready_worker(start, limits=JoinerLimits(hole_timeout_ms=60_000, buffer_bytes_max=2_000))
    log.entry(1, 1, "late")
    ends, stands_at_ms = log.ends(), clock_ms()
    if copied:
        log._clock_ms = lambda: stands_at_ms
    log.put(1, batch_key(1, 2), value("b"))
    for n in range(20):
        log.put(1, batch_key(1, 3 + n), b"orphan" * 100)
    await worker.until(lambda: 1 in worker.driver._paused)
    log.cut(*ends)
    for n in range(20 if copied else 22):
        log.put(1, batch_key(1, 3 + n), b"another" * 100)
    if copied:
        log.put(1, batch_key(1, 22), b"orphan" * 100)  # at the same offset and time as before
    log.entry(1, 2, "b", partition=1)
    await worker.until(lambda: worker.driver.interruptions + worker.driver.readers_remade > 0)
    log.put(0, batch_key(1, 1), value("late"))
    await worker.until(lambda: worker.index.decision(id_of("late")) is not None and worker.joiner.hole is not None)
    assert worker.index.decision(id_of("b")) is None


async def test_a_partition_is_compared_though_memory_is_full(start: Start, log: FaultyLog) -> None:
    """While memory is full, a partition without a leader at the start is not paused before its mark is found: it may have lost records."""
    late, other = 0, 1
    log.register("peer")
    for partition in (late, other):
        log.put(partition, batch_key(1, 1 + partition), value(f"{partition}"))
        log.entry(1, 1 + partition, f"{partition}", partition=partition)
    worker = start()
    await worker.until(lambda: worker.index.position_next == 2)
    await worker.stop()
    for n in range(20):
        log.put(other, batch_key(1_000 + n, 1), b"orphan" * 100)
    held: list[Record] = []

    def without_late(records: list[Record]) -> list[Record]:
        held.extend([record for record in records if record.partition == late])
        return [record for record in records if record.partition != late]

    log.without_leader, log.on_poll = {late}, without_late
    again = start(limits=JoinerLimits(buffer_bytes_max=2_000))
    await again.until(lambda: again.driver.uncompared == {late} and other in again.driver._paused)
    await asyncio.sleep(5 * DRIVER.poll_ms / 1000)
    assert late not in again.driver._paused
    log.without_leader = set()
    log.on_poll = lambda records: [held.pop(0) for _ in list(held)] + records
    await again.until(lambda: not again.driver.uncompared and late in again.driver._paused)


async def test_nothing_is_applied_on_an_old_look_at_what_waits(start: Start, log: FaultyLog) -> None:
    """While a worker cannot check whether the log still holds its buffered records, it applies none of them, and reads them again."""
    worker, _ = await _waits_unread(start, log, driver=msgspec.structs.replace(DRIVER, interrupted_after_ms=200))

    def fail(log_offsets: dict[int, LogOffsets]) -> None:
        raise NotReady("no log end offset")

    log.on_offsets = fail
    await worker.until(lambda: worker.driver.interruptions > 0)
    log.on_offsets = None
    log.put(0, batch_key(1, 1), value("late"))
    await worker.until(lambda: worker.index.decision(id_of("late")) is not None)


async def test_answers_stop_with_the_process(start: Start, log: FaultyLog) -> None:
    """A process that was suspended answers nothing after it resumes, even before its reader returns."""
    stopped_s, running_s = 0.0, unpaused()
    worker = await ready_worker(start, now_s=lambda: running_s() + stopped_s)
    stopped_s = 2.5
    assert "this process did not run for a while" in (worker.driver.suspicion() or "")
    await worker.until(lambda: worker.driver.not_ready() is None)


async def test_nothing_is_handed_on_before_the_marks_of_all_partitions(start: Start, log: FaultyLog) -> None:
    """While one partition that has a leader returns nothing, the records of the others are held: its mark may be lost."""
    worker = start()
    await asyncio.gather(*[worker.decided(f"{n}") for n in range(30)])
    marked = [partition for partition in worker.joiner.marks if partition != ORDERING]
    await worker.stop()
    log.register("behind")
    seen = worker.joiner.history.seen
    log.on_poll = lambda records: [record for record in records if record.partition != marked[0]]
    again = start()
    await again.until(lambda: again.driver._recheck.waits_for == {marked[0]})
    await asyncio.sleep(10 * DRIVER.poll_ms / 1000)
    assert again.joiner.history.seen == seen
    assert "compared with this worker's index" in (again.driver.not_ready() or "")
    log.on_poll = None
    again.driver._new_reader_why = "the test wants another"
    await again.until(lambda: again.joiner.history.seen > seen)


@pytest.mark.parametrize("without_leader", [set(), set(range(PARTITIONS))], ids=["of-all-at-once", "of-some-later"])
async def test_a_comparison_that_takes_long_is_no_stall(
    start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch, without_leader: set[int]
) -> None:
    """A worker that must read far to find its marks again reads on: another reader would begin again, and never find them."""
    worker = start()
    for number in range(2 * PARTITIONS):
        if number == PARTITIONS:
            for record in range(100 * PARTITIONS):
                log.put(record % PARTITIONS, batch_key(1_000 + record, 1), b"forged")
        await worker.decided(str(number))
    await worker.stop()
    monkeypatch.setattr(ordering.local_reader, "POLL_RECORDS_MAX", 1)

    def slowly(records: list[Record]) -> list[Record]:
        time.sleep(0.002)  # so that reading takes much longer than `stall_ms`
        return records

    log.on_poll, log.without_leader = slowly, without_leader
    again = start()
    await again.until(lambda: again.driver.not_ready() is None and not again.driver.uncompared)
    assert again.driver.readers_remade == 0


async def test_a_forged_payload_does_not_fill_the_memory_at_each_look(start: Start, log: FaultyLog) -> None:
    """A forged payload of an unknown incarnation moves the start of reading; records that no entry can name are not held meanwhile."""
    log.put(0, batch_key(1 << 60, 1), b"forged")
    for n in range(50):
        log.put(0, batch_key(1, n), b"past")
    log.register("gone")
    log.fence(1, 0)
    log.without_leader = {1, 2}
    worker = await ready_worker(start)
    await worker.stop()
    again = start()
    held: list[int] = []

    def watched(records: list[Record]) -> list[Record]:
        held.append(len(again.driver._recheck._held))
        return [record for record in records if record.partition != ORDERING] if len(held) < 10 else records

    log.on_poll = watched
    again.driver._new_reader_why = "the test wants another"
    await again.until(lambda: again.driver.not_ready() is None)
    assert max(held) < 10


# ---- R10: appends, and their time ----


async def test_registers_only_after_catching_up(start: Start, log: FaultyLog) -> None:
    """A worker appends its register record only after it has processed all records that the log had when it was first asked."""
    log.register("peer")
    log.entry(1, 1, "late")
    log.without_leader = {0, 1, 2}  # so that no worker fills the hole
    worker = start()
    await worker.until(lambda: worker.joiner.hole is not None)
    await asyncio.sleep(5 * DRIVER.watch_s)
    assert [type(record).__name__ for record in log.records()] == ["Genesis", "Register", "Entry"]
    assert worker.driver.may_not_append() == "this worker has not read the log to its end yet"
    assert worker.driver.not_ready() is not None or worker.sender.not_ready() is not None
    log.put(0, batch_key(1, 1), value("late"))
    assert await worker.incarnations() == 2


async def test_does_not_register_while_it_suspects_itself(start: Start, log: FaultyLog) -> None:
    """A worker that met another history during its replay is not ready and appends nothing until another worker shows the same history."""
    log.put_signed(Register(nonce("w2"), View(7, bytes(32)), 1, "w2", "0"))
    worker = start()
    await worker.until(reason(worker, "'w2' saw another history"))
    ends = log.ends()
    await asyncio.sleep(5 * DRIVER.watch_s)
    assert (log.ends(), worker.sender.incarnation) == (ends, None)
    log.put_signed(Register(nonce("w3"), worker.joiner.history.view, 1, "w3", "0"))
    assert await worker.incarnations() == 3
    assert len(await worker.decided("a")) == 1


async def test_a_suspicion_in_a_log_with_one_writer(start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notary of one worker has no view of another's to compare from. Its replay of a long log ends in a suspicion; the owner ends it."""
    worker = start()
    for content in "abcd":
        await worker.decided(content)
    await worker.stop()
    monkeypatch.setattr("joiner.history.HISTORY_KEPT", 3)
    log.put_signed(Register(nonce("w2"), View(77, bytes(32)), 1, "w2", "0"))
    again = start()
    await again.until(reason(again, "'w2' saw another history"))
    log.put_signed(Settle(again.joiner.history.view))
    assert len(await again.decided("e")) == 1


async def test_a_live_worker_goes_on_after_a_foreign_view(start: Start, log: FaultyLog) -> None:
    """A worker that was ready compares its history with the log after a foreign view, finds all of it, and continues."""
    worker = start()
    decisions = await worker.decided("a")
    log.put_signed(Register(nonce("w2"), View(77, bytes(32)), 1, "w2", "0"))
    assert len(await worker.decided("b")) == 1
    assert await worker.decided("a") == decisions
    assert worker.joiner.suspicions.open == {}


async def test_a_foreign_view_of_a_log_that_lost_records(start: Start, log: FaultyLog) -> None:
    """A record before the marks that was replaced after it took effect is found by a foreign view: the worker stops and names it."""
    worker = start()
    for content in "abcd":  # the entries behind the lost one agree with this worker, and are its own: they prove nothing
        await worker.decided(content)
    await worker.until(lambda: worker.driver.not_ready() is None)
    entry = next(record for record in log.read(ORDERING, 0, 1 << 30, 1 << 20) if isinstance(decode(record.value), Entry))
    log._records[ORDERING][entry.offset] = Record(ORDERING, entry.offset, entry.append_time_ms, None, b"another")
    with _applied_nothing(worker):
        log.put_signed(Register(nonce("w2"), View(77, bytes(32)), 1, "w2", "0"))
        await worker.until(reason(worker, f"record {entry.offset} of the ordering topic"))
        ready_again = 0
        while not worker.running.done():
            ready_again += worker.driver.not_ready() is None
            await asyncio.sleep(0.002)
        assert f"record {entry.offset} of the ordering topic is not the one" in str(await worker.dies())
    assert not ready_again


@pytest.mark.parametrize("kind", [Entry, Register])
async def test_a_record_that_was_acknowledged_and_is_not_there(start: Start, log: FaultyLog, kind: type[OrderingRecord]) -> None:
    """A new incarnation sends an entry again that the log acknowledged and lost; a lost register record is written with another nonce."""
    lost: list[int] = []
    put = log.put

    def lose(partition: int, key: bytes | None, value: bytes | None) -> None:
        if partition == ORDERING and isinstance(decode(value), kind) and not lost:
            lost.append(partition)
            return
        put(partition, key, value)

    log.put = lose  # type: ignore[method-assign]
    worker = start()
    (decision,) = await worker.decided("a")
    assert lost
    incarnation = await worker.incarnations()
    assert incarnation == (2 if kind is Entry else 1)
    assert [(entry.incarnation, entry.sequence) for entry in log.entries()] == [(incarnation, 1)]
    assert decision.position == 0


# ---- rotation, retirement, clocks ----


def _rotate(log: FaultyLog, to: SigningKey = SECOND, after: SigningKey = KEY) -> None:
    log.put_signed(endorse_key(to, log.log_id, after.public_key))


async def test_rotation_with_a_batch_in_flight(start: Start, log: FaultyLog) -> None:
    """A batch that is in flight during a rotation is sent again by a new incarnation, with the new key; nothing is decided twice."""
    worker = await ready_worker(start, keys=Keys(KEY, SECOND))

    async def rotate_first(partition: int, key: bytes | None, value: bytes | None) -> None:
        if partition == ORDERING and isinstance(decode(value), Entry):
            log.on_append = None
            _rotate(log)

    log.on_append = rotate_first
    (decision,) = await worker.decided("b")
    assert decision.position == 1
    assert await worker.incarnations() == 2
    assert [(entry.incarnation, entry.sequence) for entry in log.entries() if entry.incarnation == 2] == [(2, 1)]
    assert worker.joiner.log_state is not None
    assert worker.joiner.log_state.key == SECOND.public_key


async def test_rotation_while_it_registers(start: Start, log: FaultyLog) -> None:
    """A register record that a rotation overtook never counts: it is written again with the new key."""

    async def rotate_first(partition: int, key: bytes | None, value: bytes | None) -> None:
        if partition == ORDERING:
            log.on_append = None
            _rotate(log)

    log.on_append = rotate_first
    worker = start(keys=Keys(KEY, SECOND))
    assert await worker.incarnations() == 1
    assert len(await worker.decided("a")) == 1


async def test_rotation_to_a_key_that_is_not_here(start: Start, log: FaultyLog) -> None:
    """A worker that does not have the new key yet is not ready and names the key that it needs; with that key it continues."""
    keys = Keys(KEY)
    worker = await ready_worker(start, keys=keys)
    _rotate(log)
    await worker.until(lambda: SECOND.public_key.hex() in (worker.sender.not_ready() or ""))
    keys.keys[SECOND.public_key] = SECOND
    assert len(await worker.decided("b")) == 1


async def test_rotation_in_the_step_that_registers(start: Start, log: FaultyLog) -> None:
    """A worker that reads its register record and a key record in one step begins another incarnation, with the new key."""

    def both(records: list[Record]) -> list[Record]:
        ordering = [record for record in records if record.partition == ORDERING]
        if not any(isinstance(decode(record.value), Register) for record in ordering):
            return records
        log.on_poll = None
        _rotate(log)
        return records + log.read(ORDERING, ordering[-1].offset + 1, 1 << 20, 10)

    log.on_poll = both
    worker = start(keys=Keys(KEY, SECOND))
    # Even without a batch: votes and checkpoints with the former key would be skipped for ever.
    assert await worker.incarnations(besides=1) == 2
    assert len(await worker.decided("a")) == 1


async def test_a_hole_before_a_rotation(start: Start, log: FaultyLog, caplog: pytest.LogCaptureFixture) -> None:
    """A hole before a rotation needs the former key; a worker without it logs that, and fills when an operator restores the key."""
    log.register("w2")
    log.entry(1, 1, "lost", partition=1)
    _rotate(log)
    keys = Keys(SECOND)
    worker = start(keys=keys)
    await worker.until(lambda: f"this fill needs the key {KEY.public_key.hex()}" in caplog.text)
    assert log.ends()[2] == 0
    keys.former[KEY.public_key] = KEY
    assert len(await worker.decided("a")) == 1
    assert worker.index.decision(id_of("lost")) is None


@pytest.mark.seconds
async def test_a_worker_without_a_key_of_the_log(start: Start, log: FaultyLog) -> None:
    """A worker that starts without the key in force appends nothing and stops; it reports the key that it needs and those that it has."""
    ends = log.ends()
    fatal = str(await start(keys=Keys(SECOND)).dies())
    assert KEY.public_key.hex() in fatal
    assert SECOND.public_key.hex() in fatal
    assert log.ends() == ends


@pytest.mark.seconds
async def test_waiting_for_a_key_begins_again_after_a_suspicion(start: Start, log: FaultyLog) -> None:
    """A worker without the key in force may not have read the record of a later key while it was suspended, so it waits again."""
    worker = start(keys=Keys(SECOND))
    await worker.until(lambda: worker.driver.may_not_append() is None)
    await asyncio.sleep(0.1)
    worker.sender.may_not_append = lambda: "suspended by the test"
    await asyncio.sleep(KEY_WAIT_S)
    worker.sender.may_not_append = worker.driver.may_not_append
    await asyncio.sleep(0.1)
    assert not worker.running.done()
    await worker.dies()


async def test_a_worker_that_is_retired_stops(start: Start, log: FaultyLog) -> None:
    """A worker whose incarnation the owner has retired stops with a clear error; after a restart it takes part again."""
    worker = await ready_worker(start)
    log.put_signed(Retire(1))
    assert (await worker.dies()).code is FatalCode.RETIRED
    await worker.stop()
    again = start()
    assert len(await again.decided("b")) == 1
    assert await again.incarnations() == 2


async def test_a_retire_record_of_an_earlier_incarnation(start: Start, log: FaultyLog) -> None:
    """A retire record for an incarnation that has ended stops no worker."""
    worker = await ready_worker(start)
    log.fence(1, 1)
    assert await worker.incarnations(besides=1) == 2
    log.put_signed(Retire(1))
    assert len(await worker.decided("b")) == 1


async def test_payloads_slower_than_the_timeout(start: Start, log: FaultyLog) -> None:
    """If every payload takes longer than `hole_timeout`, the second try is decided: its entry follows its payload."""

    async def slow(partition: int, key: bytes | None, value: bytes | None) -> None:
        if partition != ORDERING and not is_fill(value):
            await asyncio.sleep(0.2)

    log.on_append = slow
    worker = start()
    for position, label in enumerate("abc"):
        (decision,) = await worker.decided(label)
        assert decision.position == position
    assert worker.sender.batches_sent_again == 1
    assert [entry.sequence for entry in log.entries()] == [1, 2, 3, 4]


@pytest.mark.parametrize("ahead_ms", [-700_000, 32 * 86_400_000], ids=["behind", "ahead"])
async def test_a_clock_far_from_the_logs(start: Start, log: FaultyLog, ahead_ms: int) -> None:
    """A worker whose clock is far from log time admits nothing, does not register, and reports it, until the clocks agree."""
    off_ms = ahead_ms
    worker = start(clock=lambda: clock_ms() + off_ms)
    await worker.until(reason(worker, "one of them is wrong. Set the clock"))
    await asyncio.sleep(5 * DRIVER.watch_s)
    assert worker.sender.incarnation is None
    assert log.ends() == [1, 0, 0, 0]
    assert "one of them is wrong" in (worker.sender.not_ready() or "")
    off_ms = 0
    assert len(await worker.decided("a")) == 1


async def test_a_jump_that_a_person_has_accepted(start: Start, log: FaultyLog) -> None:
    """With `clock_accepted` the worker continues with its present clock."""
    worker = start(driver=DriverSettings(poll_ms=10, watch_ms=20, clock_accepted=True), clock=lambda: clock_ms() + 10 * 365 * 86_400_000)
    assert len(await worker.decided("a")) == 1


# ---- forgeries ----


async def test_forged_records_silence_nobody(start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of unsigned records is skipped; the worker compares the log once more and stays ready."""
    monkeypatch.setattr(joiner.driver, "CHECK_AGAIN_S", 0.1)
    worker = start(driver=DriverSettings(poll_ms=10, watch_ms=20))
    decisions = await worker.decided("a")
    await worker.until(lambda: worker.driver.not_ready() is None)
    for n in range(100):
        log.put_signed(Register(nonce(f"{n}"), View(99, bytes(32)), 9, "w1", "0"), SECOND)
        log.put_signed(Activate(9), SECOND)
        log.put_signed(Retire(1), KEY)
    decided = asyncio.ensure_future(worker.decided("b"))
    while not decided.done():
        assert worker.driver.not_ready() is None
        await asyncio.sleep(0)
    assert len(decided.result()) == 1
    await worker.until(lambda: not worker.driver._check_wanted)
    assert worker.driver.not_ready() is None
    assert await worker.decided("a") == decisions
    assert worker.sender.incarnation == 1


async def test_a_look_that_fails_is_repeated(start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a payload partition has no leader, the log cannot be compared. The worker does so later, without another bad signature."""
    monkeypatch.setattr(joiner.driver, "CHECK_AGAIN_S", 0.1)
    worker = start(driver=DriverSettings(poll_ms=10, watch_ms=20))
    await worker.decided("a")
    await worker.until(lambda: worker.driver.not_ready() is None)
    (partition,) = [each for each in worker.joiner.marks if each != ORDERING]
    offset = worker.joiner.marks[ORDERING].offset
    before = log.read(ORDERING, offset, 1, 1)[0]
    log._records[ORDERING][offset] = Record(ORDERING, offset, before.append_time_ms + 1, before.key, before.value)
    asked, checked_at_s = list[LogOffsets](), worker.driver._checked_at_s

    def without_leader(offsets: dict[int, LogOffsets]) -> None:
        asked.append(offsets.pop(partition))

    log.on_offsets = without_leader
    log.put_signed(Retire(1), KEY)
    await worker.until(lambda: worker.joiner.offset_head == log.ends()[0])
    await worker.until(lambda: worker.driver._checked_at_s > checked_at_s)
    watched = len(asked)
    await worker.until(lambda: len(asked) > watched + 2)
    assert worker.driver.not_ready() is None
    log.on_offsets = None
    await worker.until(reason(worker, f"record {offset} of the ordering topic"))


async def test_replay_of_many_records(start: Start, log: FaultyLog) -> None:
    """The signatures of many records, bad ones among them, are verified in a thread, and the replay gives the same decisions."""
    worker = start()
    for n in range(40):
        await asyncio.gather(*[worker.decided(f"{n} {m}") for m in range(3)])
        log.put(ORDERING, None, b"garbage")
        log.put_signed(Retire(1), SECOND)
    again = start("w2")
    await again.incarnations()
    await worker.until(lambda: worker.joiner.history.seen == again.joiner.history.seen)
    assert again.index.contents() == worker.index.contents()
    assert again.joiner.history.view == worker.joiner.history.view


async def test_a_partition_that_contradicted_is_waited_for(start: Start, log: FaultyLog) -> None:
    """A partition that has lost a mark, and then its leader, prevents the worker from continuing with the other partitions."""
    worker = await ready_worker(start, driver=DriverSettings(poll_ms=10, watch_ms=20, contradiction_ms=3_600_000))
    (partition,) = [each for each in worker.joiner.marks if each != ORDERING]
    offset = worker.joiner.marks[partition].offset
    before = log.read(partition, offset, 1, 1)[0]
    log._records[partition][offset] = Record(partition, offset, before.append_time_ms, before.key, b"another")
    log.interruptions += 1
    await worker.until(reason(worker, f"record {offset} of payload partition {partition}"))
    log.without_leader = {partition}
    log.on_poll = lambda records: [record for record in records if record.partition != partition]
    for _ in range(10):
        assert worker.driver.not_ready() is not None
        await asyncio.sleep(DRIVER.watch_s)
    log._records[partition][offset] = before
    log.without_leader = set()
    log.on_poll = None
    worker.driver._new_reader_why = "the test wants another"
    await worker.until(lambda: worker.driver.not_ready() is None)


async def test_payloads_under_unknown_names_keep_nobody_out(start: Start, log: FaultyLog) -> None:
    """A worker whose memory is full of payloads of unknown incarnations has caught up once it has applied all ordering records."""
    for n in range(50):
        for partition in range(PARTITIONS):
            log.put(partition, batch_key(1 << 60, n), b"forged" * 100)
    worker = start(limits=JoinerLimits(hole_timeout_ms=20, buffer_bytes_max=2_000))
    assert len(await worker.decided("a")) == 1
    assert await worker.incarnations() == 1


async def test_what_is_paused_is_not_read(start: Start, log: FaultyLog) -> None:
    """While the head waits and memory is full, a partition that it does not wait for stays paused; later it is read to its end."""
    log.register("peer")
    log.entry(1, 1, "late")
    log.without_leader = set(range(PARTITIONS))  # so that no worker fills the hole
    for n in range(50):
        log.put(1, batch_key(1, 2 + n), b"orphan" * 100)
    worker = start(limits=JoinerLimits(hole_timeout_ms=20, buffer_bytes_max=2_000))
    await worker.until(lambda: worker.joiner.hole is not None and worker.joiner.buffered_bytes > 2_000)
    read = worker.joiner.read_next()[1]
    for n in range(50):
        log.put(1, batch_key(1, 52 + n), b"orphan" * 100)
    await asyncio.sleep(10 * DRIVER.poll_ms / 1000)
    assert worker.joiner.read_next()[1] == read
    log.fence(1, 1)
    log.put(0, batch_key(1, 1), value("late"))
    await worker.until(lambda: worker.joiner.read_next()[1] == 100)


async def test_an_end_that_the_log_lost_is_not_waited_for(start: Start, log: FaultyLog) -> None:
    """If the log is shorter than when it acknowledged an append, reading it to its present end shows that the record is lost."""
    worker = await ready_worker(start)
    sender, head = worker.sender, worker.driver.joiner.offset_head
    registered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    sender._registering = _Registering(b"nonce", registered, KEY.public_key)
    sender._acknowledged.add(b"nonce")
    sender.expect(frozenset({b"nonce"}), head + 2)
    assert not registered.done()
    sender.expect(frozenset(), head)
    assert "is not in the log" in str(registered.exception())
