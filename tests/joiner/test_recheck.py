"""Tests of the comparison with the log: finding the marks again, comparing the history, contradicting log end offsets (R10)."""

from collections.abc import Mapping

import pytest

from joiner import Joiner, JoinerLimits, Mark
from joiner.history import NONE_SKIPPED, fingerprint_of
from joiner.ready import Kept
from joiner.recheck import Recheck, contradiction, examine, find_again, to_find_again
from ordering.errors import NotReady
from ordering.log import ORDERING, LogOffsets, Record
from ordering.memory import MemoryLog
from ordering.records import batch_key
from tests.joiner.history import History, Reading

ALL = {ORDERING, 0, 1}


def _record(partition: int, offset: int, value: bytes = b"value") -> Record:
    return Record(partition, offset, 1_000 + offset, b"key", value)


def _marks(*places: tuple[int, int]) -> dict[int, Mark]:
    return {partition: Mark(offset, fingerprint_of(_record(partition, offset))) for partition, offset in places}


# ---- after an interruption ----


def test_held_until_all_marks_are_found() -> None:
    """Records of a new reader are held until every mark was found, and are then returned in their order, the marks among them."""
    recheck = Recheck(_marks((ORDERING, 3), (0, 7)))
    assert recheck.take([_record(ORDERING, 3), _record(ORDERING, 4)], ALL) == []
    assert (recheck.waits_for, recheck.done) == (frozenset({0}), False)
    assert recheck.take([_record(0, 6)], ALL) == []
    ready = recheck.take([_record(0, 7), _record(0, 8)], ALL)
    assert [(record.partition, record.offset) for record in ready] == [(ORDERING, 3), (ORDERING, 4), (0, 6), (0, 7), (0, 8)]
    assert (recheck.waits_for, recheck.done, recheck.lost) == (frozenset(), True, "")
    assert recheck.take([_record(0, 9)], ALL) == [_record(0, 9)]


def test_without_marks_the_first_poll_is_returned() -> None:
    """A worker that has applied nothing has no marks to find: its first poll is returned, even an empty one."""
    recheck = Recheck({})
    assert not recheck.done
    assert recheck.take([], ALL) == []
    assert recheck.done


@pytest.mark.parametrize(
    "found",
    [
        _record(0, 7, b"another value"),
        _record(0, 8),
        Record(0, 7, 999, b"key", b"value"),
        Record(0, 7, 1_007, b"another key", b"value"),
        Record(0, 7, 1_007, b"key", None),
    ],
    ids=["other-bytes", "missing", "other-time", "other-key", "no-value"],
)
def test_a_mark_that_is_gone(found: Record) -> None:
    """If another record, or none, is in the place of a mark, nothing more is returned, and the place is reported."""
    recheck = Recheck(_marks((ORDERING, 3), (0, 7)))
    recheck.take([_record(ORDERING, 3)], ALL)
    assert recheck.take([found], ALL) == []
    assert "record 7 of payload partition 0 is not the one that this index has applied" in recheck.lost
    assert not recheck.done


def test_partitions_without_a_leader_do_not_hold_up_the_others() -> None:
    """Partitions without a leader are left out, and the others go on; their later records are held until their marks were found."""
    recheck = Recheck(_marks((ORDERING, 3), (1, 7)))
    ready = recheck.take([_record(ORDERING, 3), _record(1, 6)], {ORDERING, 0})
    assert ready == [_record(ORDERING, 3)]
    assert (recheck.done, recheck.waits_for) == (True, frozenset({1}))
    assert recheck.take([_record(0, 1)], ALL) == [_record(0, 1)]
    assert recheck.take([_record(1, 7), _record(0, 2)], ALL) == [_record(1, 6), _record(1, 7), _record(0, 2)]
    assert recheck.waits_for == frozenset()


def test_a_partition_that_comes_back_as_another_log() -> None:
    """A partition that had no leader and returns with another record at its mark is noticed then."""
    recheck = Recheck(_marks((ORDERING, 3), (1, 7)))
    recheck.take([_record(ORDERING, 3)], {ORDERING})
    assert recheck.take([_record(1, 7, b"another")], ALL) == []
    assert "record 7 of payload partition 1" in recheck.lost


def test_the_ordering_topic_is_always_waited_for() -> None:
    """Without the ordering topic's mark nothing is returned, whatever leaders the partitions have."""
    recheck = Recheck(_marks((ORDERING, 3)))
    assert recheck.take([_record(0, 1)], {ORDERING, 0}) == []
    assert not recheck.done


class _Memory(Joiner):
    """The limits of a joiner that may need every hundredth record."""

    def may_count(self, record: Record) -> bool:
        return record.offset % 100 == 0


def test_what_can_never_be_asked_for_is_not_held() -> None:
    """Records that no entry can name are not held: there may be millions between an old forged payload and the mark."""
    recheck = Recheck(_marks((0, 1_000)), memory=_Memory())
    for offset in range(1_000):
        assert recheck.take([_record(0, offset)], ALL) == []
    assert len(recheck._held) == 10
    assert len(recheck.take([_record(0, 1_000)], ALL)) == 11


def test_what_was_kept_comes_first_and_after_the_mark_of_its_partition() -> None:
    """Kept records are returned first, once the mark of their partition was found, and stay for the next reading otherwise."""
    kept = {partition: Kept(8, [_record(partition, 2), _record(partition, 5)]) for partition in (0, 1)}
    recheck = Recheck(_marks((ORDERING, 3), (0, 7), (1, 7)), (), kept)
    assert recheck.take([_record(ORDERING, 3), _record(0, 7), _record(0, 8)], {ORDERING, 0}) == [
        _record(0, 2),
        _record(0, 5),
        _record(ORDERING, 3),
        _record(0, 7),
        _record(0, 8),
    ]
    assert recheck.kept == {1: kept[1]}
    again = Recheck(_marks((ORDERING, 3), (0, 7), (1, 7)), (), recheck.kept)
    assert again.take([_record(ORDERING, 3), _record(0, 7)], {ORDERING, 0, 1}) == []
    assert again.take([_record(1, 7)], {ORDERING, 0, 1})[:2] == kept[1].records
    assert again.kept == {}


# ---- log end offsets ----


OFFSETS = {ORDERING: LogOffsets(0, 10), 0: LogOffsets(0, 5), 1: LogOffsets(2, 5)}


@pytest.mark.parametrize(
    ("read_next", "marks", "says"),
    [
        ({ORDERING: 10, 0: 5, 1: 2}, _marks((ORDERING, 9), (0, 4)), ""),
        ({ORDERING: 11, 0: 5, 1: 2}, {}, "it has read the ordering topic up to offset 11, and the log ends at 10"),
        ({ORDERING: 3, 0: 0, 1: 2}, _marks((0, 5)), "it has read payload partition 0 up to offset 6, and the log ends at 5"),
        ({ORDERING: 3, 0: 0, 1: 1}, {}, "payload partition 1 begins at offset 2, needed from 1"),
        ({ORDERING: 3, 0: 0}, {}, "payload partition 1 begins at offset 2, needed from 0"),
    ],
    ids=["agrees", "read-beyond-the-end", "mark-beyond-the-end", "start-is-gone", "never-read-and-gone"],
)
def test_offsets_contradict_a_reader_past_the_end(read_next: Mapping[int, int], marks: Mapping[int, Mark], says: str) -> None:
    """Log offsets contradict a reader that was past the end, or needs records before the start; missing partitions contradict nothing."""
    found = contradiction(read_next, marks, OFFSETS)
    assert (says in found) if says else not found
    assert contradiction({0: 99}, _marks((0, 99)), {ORDERING: LogOffsets(0, 1)}) == ""


# ---- the history compared with the log ----


class _Log(MemoryLog):
    """A log with the records of a history's topic-partitions, which a test can change under its reader."""

    def __init__(self, history: History) -> None:
        super().__init__(2, identity="test")
        self._records = {partition: list(records) for partition, records in history.by_partition.items()}
        self.leaderless: set[int] = set()
        self.firsts: dict[int, int] = {}
        self.silent = False

    def put_back(self, record: Record) -> None:
        self._records[record.partition][record.offset] = record

    def cut(self, partition: int, end: int) -> None:
        del self._records[partition][end:]

    async def offsets(self) -> Mapping[int, LogOffsets]:
        has_leader = {partition: records for partition, records in self._records.items() if partition not in self.leaderless}
        return {partition: LogOffsets(self.firsts.get(partition, 0), len(records)) for partition, records in has_leader.items()}

    def read(self, partition: int, offset_next: int, bytes_max: int, records_max: int) -> list[Record]:
        return [] if self.silent else super().read(partition, offset_next, bytes_max, min(records_max, 2))

    def end(self, partition: int) -> int:
        return 0 if self.silent else super().end(partition)


def _applied() -> tuple[_Log, Reading]:
    history, reading = History(), Reading()
    records = [
        history.genesis,
        history.register("w1"),
        history.payload(1, 2, "b"),
        history.payload(1, 1, "a"),
        history.payload(8, 8, "never asked for"),
        history.entry(1, 1, "a"),
        history.put(ORDERING, None, b"garbage"),
        history.entry(1, 2, "b"),
        history.payload(1, 3, "c", partition=1),
        history.entry(1, 3, "c", partition=1),
    ]
    reading.step(*records)
    assert len(reading.batches) == 3
    return _Log(history), reading


async def _examine(log: _Log, reading: Reading, since: int = 0) -> str:
    return await examine(log, reading.joiner.history.since(since), reading.joiner.marks)


async def test_a_complete_log_passes() -> None:
    """A log that holds every record that took effect, with its content, passes the comparison, however far back it goes."""
    log, reading = _applied()
    assert [await _examine(log, reading, since) for since in (0, 1, 3, 5, 9)] == [""] * 5
    assert await examine(log, (), {}) == ""


@pytest.mark.parametrize(("partition", "offset"), [(ORDERING, 0), (ORDERING, 2), (ORDERING, 5), (0, 0), (0, 1), (1, 0)])
async def test_a_record_that_is_another(partition: int, offset: int) -> None:
    """Any record that took effect, entry or content, is reported if it has other bytes now."""
    log, reading = _applied()
    before = log.read(partition, offset, 1, 1)[0]
    log.put_back(Record(partition, offset, before.append_time_ms, before.key, b"another"))
    assert f"record {offset} of {'the ordering topic' if partition == ORDERING else f'payload partition {partition}'}" in await _examine(
        log, reading
    )


async def test_an_append_time_that_is_another() -> None:
    """A mirror that did not keep the append times of entries is another log, because log time depends on them."""
    log, reading = _applied()
    before = log.read(ORDERING, 2, 1, 1)[0]
    log.put_back(Record(ORDERING, 2, before.append_time_ms + 1, before.key, before.value))
    assert "record 2 of the ordering topic" in await _examine(log, reading)


async def test_what_was_skipped_before_an_effect_is_compared() -> None:
    """Another record in the place of a skipped ordering record is found: it may have an effect."""
    log, reading = _applied()
    log.put_back(Record(ORDERING, 3, 0, None, b"other garbage"))
    assert [await _examine(log, reading, since) for since in (4, 5)] == [await _examine(log, reading, 0), ""]
    found = await _examine(log, reading)
    assert "record 4 of the ordering topic" in found
    assert "or a record from 3 on is not the one that was skipped before it" in found


async def test_what_nobody_asked_for_may_be_another() -> None:
    """Payload records that were skipped are not compared, because an entry names its content by a hash."""
    log, reading = _applied()
    log.put_back(Record(0, 2, 0, batch_key(9, 9), b"other junk"))
    assert await _examine(log, reading) == ""


def _lost_and_copied() -> tuple[History, Reading]:
    """A log that lost a checkpoint and an entry; a register record has the checkpoint's place; the entry came again at its old time."""
    before, after = History(), History()
    for one in (before, after):
        one.register("w1")
        one.payload(1, 1, "a")
    before.checkpoint(1, 0)
    after.register("w2")
    for one in (before, after):
        one.entry(1, 1, "a", at=2_000_000)
    reading = Reading()
    reading.step(*before.by_partition[ORDERING], *before.by_partition[0])
    assert reading.joiner.history.seen == 3
    assert before.by_partition[ORDERING][3] == after.by_partition[ORDERING][3]
    return after, reading


async def test_a_copy_of_the_last_record_does_not_hide_another_before_it() -> None:
    """A copy of the last record with the same append time, from a stopped clock, does not hide that the log lost records before it."""
    after, reading = _lost_and_copied()
    joiner = reading.joiner
    assert "is not the one that this index has applied" in await examine(_Log(after), joiner.history.last_run, joiner.marks)
    recheck = Recheck({ORDERING: joiner.marks[ORDERING]}, joiner.history.last_run)
    assert recheck.offsets_first == {ORDERING: 1}
    assert recheck.take(after.by_partition[ORDERING][1:], ALL) == []
    assert "or a record from 2 on is not the one that was skipped before it" in recheck.lost


async def test_what_was_skipped_is_found_again_after_a_restart() -> None:
    """The count and the hash of skipped records are those of one reading, whatever was dropped and read again on the way."""
    history, reading = History(), Reading()
    reading.step(history.genesis, history.register("w1"), *[history.put(ORDERING, None, b"garbage %d" % number) for number in range(3)])
    reading.joiner.forget_unapplied()
    again = reading.restarted()
    rest = history.by_partition[ORDERING][2:]
    entry, payload = history.entry(1, 1, "a"), history.payload(1, 1, "a")
    for one in (reading, again):
        one.step(*rest, entry, payload)
        run = one.joiner.history.last_run
        assert [effect.skipped_first for effect in run] == [NONE_SKIPPED, 2]
        recheck = Recheck({ORDERING: one.joiner.marks[ORDERING]}, run)
        assert recheck.take(history.by_partition[ORDERING][1:], ALL) == [entry]
        assert not recheck.lost


def test_gaps_of_transaction_markers_do_no_harm() -> None:
    """Offsets of transaction markers, which any writer can create and no reader returns, leave gaps that do no harm."""
    history, reading = History(), Reading()
    before = [history.genesis, history.register("w1"), history.put(ORDERING, None, b"garbage")]
    behind = [history.checkpoint(1, 0), history.entry(1, 1, "a")]
    behind = [Record(ORDERING, record.offset + 5, record.append_time_ms, None, record.value) for record in behind]
    reading.step(*before, *behind, history.payload(1, 1, "a"))
    run = reading.joiner.history.last_run
    assert [effect.offset for effect in run] == [1, 9]
    recheck = Recheck({ORDERING: reading.joiner.marks[ORDERING]}, run)
    assert recheck.take([*before[1:], *behind], ALL) == [behind[-1]]
    assert not recheck.lost


@pytest.mark.parametrize("changed", [None, 2, 3, 4, 5])
async def test_what_waits_in_the_queue_is_found_again(changed: int | None) -> None:
    """A look compares the last record that waits, and all records before it with its append time, also those that took effect."""
    history, reading = History(), Reading()
    reading.step(history.genesis, history.register("w1", at=1_000))
    assert reading.joiner.queue_run == []
    reading.step(history.register("w2", at=2_000_000), history.put(ORDERING, None, b"garbage", at=2_000_000))
    reading.step(*[history.entry(1, sequence, "a", at=2_000_000) for sequence in (1, 2)])
    run = reading.joiner.queue_run
    assert [effect.offset for effect in run] == [1, 2, 5]
    log = _Log(history)
    if changed is not None:
        log.put_back(Record(ORDERING, changed, 2_000_000, None, b"another"))
    assert bool(await examine(log, run, {}, contents=False)) == (changed is not None)


async def test_a_look_at_a_long_queue_is_short() -> None:
    """A look at a queue of records with different append times reads two of them: the last one, and the one before it."""
    history, reading = History(), Reading()
    reading.step(*history.by_partition[ORDERING], history.register("w1"), *[history.entry(1, sequence, "a") for sequence in range(1, 9)])
    (last,) = reading.joiner.queue_run
    assert (last.skipped_first, last.offset) == (8, 9)
    assert await examine(_Log(history), [last], {}, contents=False) == ""


def test_a_flood_of_skipped_records_is_not_held() -> None:
    """A flood of skipped records between two effects is compared at a look, and needs no memory while other marks are awaited."""
    history, reading = History(), Reading(limits=JoinerLimits(step_requests_max=2_000))
    payload = history.payload(1, 1, "a")
    reading.step(history.genesis, history.register("w1"), payload)
    flood = [history.put(ORDERING, None, b"flood %d" % number) for number in range(1_000)]
    reading.step(*flood, history.entry(1, 1, "a"))
    joiner = reading.joiner
    recheck = Recheck(joiner.marks, joiner.history.last_run)
    assert recheck.take(history.by_partition[ORDERING][recheck.offsets_first[ORDERING] :], ALL) == []
    assert recheck.waits_for == {0}
    assert len(recheck._held) == 1
    assert recheck.take([payload], ALL) == [history.by_partition[ORDERING][-1], payload]


def test_a_look_begins_before_all_that_a_copy_may_stand_in_for() -> None:
    """A look begins before the first record with the last one's append time: a stopped clock may have given that time to copies."""
    before, after, reading = History(), History(), Reading()
    for one in (before, after):
        one.register("w1")
    before.entry(1, 1, "a", at=2_000_000)
    after.register("w2", at=2_000_000)
    for one in (before, after):
        one.entry(1, 2, "b", at=2_000_000)
        for sequence, label in ((1, "a"), (2, "b")):
            one.payload(1, sequence, label)
    reading.step(*before.by_partition[ORDERING], *before.by_partition[0])
    run = reading.joiner.history.last_run
    assert [effect.offset for effect in run] == [1, 2, 3]
    recheck = Recheck({ORDERING: reading.joiner.marks[ORDERING]}, run)
    assert recheck.take(after.by_partition[ORDERING][1:], ALL) == []
    assert "record 2 of the ordering topic" in recheck.lost


def test_a_copy_of_the_last_that_waits_does_not_hide_another_before_it() -> None:
    """All waiting records of the ordering topic are compared; of a payload partition only the last ones of one append time."""
    at_one_time = [Record(0, offset, 1_000, b"key", b"value") for offset in (7, 6, 5)]
    earlier = [Record(0, offset, 990 + offset, b"key", b"value") for offset in (3, 4)]
    others = [_record(1, 2), _record(1, 1), _record(1, 0), _record(ORDERING, 9), _record(ORDERING, 8), _record(ORDERING, 7)]
    wanted = to_find_again([*at_one_time, *earlier, *others])
    offsets = {partition: [sought.offset for sought in of_partition] for partition, of_partition in wanted.items()}
    assert offsets == {0: [4, 5, 6, 7], 1: [1, 2], ORDERING: [7, 8, 9]}
    assert wanted[0][2].found(Record(0, 6, 1_000, b"key", b"another")) is False


async def test_only_what_is_asked_for_is_compared() -> None:
    """Records before the last point of agreement are not read again."""
    log, reading = _applied()
    log.put_back(Record(ORDERING, 1, 0, None, b"another"))
    assert await _examine(log, reading, 3) == ""
    assert "record 1 of the ordering topic" in await _examine(log, reading, 2)


async def test_a_mark_is_compared_however_little_is_asked_for() -> None:
    """The marks of all topic-partitions are compared even when no history needs to be."""
    log, reading = _applied()
    log.put_back(Record(0, 1, 0, batch_key(1, 1), b"another"))
    assert "record 1 of payload partition 0" in await examine(log, (), reading.joiner.marks)


@pytest.mark.parametrize(("partition", "end"), [(ORDERING, 5), (0, 1), (1, 0)])
async def test_a_log_that_was_cut(partition: int, end: int) -> None:
    """A record beyond the log's present end is reported as missing at once."""
    log, reading = _applied()
    log.cut(partition, end)
    assert "is not the one that this index has applied" in await _examine(log, reading)


async def test_freed_payloads_are_not_compared() -> None:
    """Contents before a payload partition's start are left out, and later ones are not; ordering records are never left out."""
    log, reading = _applied()
    log.firsts = {0: 1}
    log.put_back(Record(0, 0, 0, b"", b"freed: nobody reads it"))
    assert await _examine(log, reading) == ""
    log.firsts = {0: 9, 1: 9}
    assert await _examine(log, reading) == ""
    log.firsts = {0: 1}
    log.put_back(Record(0, 1, 0, b"", b"another"))
    assert "record 1 of payload partition 0" in await _examine(log, reading)
    log.firsts = {0: 9, 1: 9, ORDERING: 1}
    assert "record 0 of the ordering topic" in await _examine(log, reading)


async def test_waiting_records_are_missed_though_the_partition_begins_later() -> None:
    """A payload that waits to be applied is not left out."""
    log, _ = _applied()
    log.firsts = {1: 1}
    wanted = to_find_again([log.read(1, 0, 1, 1)[0]])
    assert "record 0 of payload partition 1" in await find_again(log, wanted)


async def test_a_partition_without_a_leader_cannot_be_compared() -> None:
    """A partition without a leader cannot be compared: its records are neither present nor missing."""
    log, reading = _applied()
    log.leaderless = {0}
    with pytest.raises(NotReady, match="payload partition 0 has no leader"):
        await _examine(log, reading)
    log.leaderless = {1}
    assert await examine(log, reading.joiner.history.since(0)[:3], {}) == ""


async def test_a_log_that_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that does not return its records in time is not ready."""
    monkeypatch.setattr("joiner.recheck.EXAMINE_S_MAX", 0.05)
    monkeypatch.setattr("joiner.recheck.POLL_MS", 10)
    log, reading = _applied()
    log_offsets = await log.offsets()

    async def as_before() -> Mapping[int, LogOffsets]:
        return log_offsets

    log.offsets = as_before  # type: ignore[method-assign]
    reader = log.open_reader

    async def silent(offsets_next: Mapping[int, int]) -> object:
        opened = await reader(offsets_next)
        opened.pause = lambda partitions: None  # type: ignore[method-assign]
        opened._take = lambda: []  # type: ignore[method-assign]
        return opened

    log.open_reader = silent  # type: ignore[method-assign, assignment]
    with pytest.raises(NotReady, match="did not return"):
        await _examine(log, reading)
