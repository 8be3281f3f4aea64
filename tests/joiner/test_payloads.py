"""Tests that memory stays bounded whatever the payload partitions contain, and that dropped records are read again (R3, R5, R10).

A dropped record must never change which record is the content: otherwise a later one of its key would take its place.
"""

from hashlib import sha256

from joiner import JoinerLimits, Ready
from joiner.driver import VERIFY_AT_ONCE
from joiner.payloads import NEXT_BATCHES
from ordering.log import ORDERING, Record
from ordering.records import batch_key
from tests.joiner.history import Continued, History, Reading, compared_again, named, registered, requests, rest

LIMIT = 4_000
LIMITS = JoinerLimits(buffer_bytes_max=LIMIT)
FAR = NEXT_BATCHES + 1
"""A sequence that no worker needs next: such a payload is dropped like those of unknown incarnations."""


def _junk(history: History, incarnation: int, sequence: int, count: int = 1, partition: int = 0) -> list[Record]:
    return [history.put(partition, batch_key(incarnation, sequence), b"junk" * 250) for _ in range(count)]


def _flood(history: History, count: int = 20, partition: int = 0) -> list[Record]:
    """Append payloads of incarnations that never register: more than twice the limit."""
    return [record for n in range(count) for record in _junk(history, 1000 + n, 1, partition=partition)]


def _read_again(history: History, reading: Reading) -> Ready:
    """Continue as the driver does after `read_again`: forget, and pass in all records from there, the ordering topic first."""
    reading.joiner.forget_unapplied()
    state = reading.joiner.read_next()
    records = [record for partition, of_partition in history.by_partition.items() for record in of_partition[state.get(partition, 0) :]]
    return reading.step(*records)


def test_junk_under_the_heads_key_costs_nothing() -> None:
    """While the head waits, records under its key that are not its content are not kept."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"))
    ready = reading.step(*_junk(history, 1, 1, 100))
    assert (reading.joiner.buffered_bytes, reading.joiner.buffered_records) == (0, 0)
    assert [anomaly.kind for anomaly in ready.anomalies] == ["skipped"] * 100
    assert not ready.read_again
    assert [batch.requests for batch in reading.step(history.payload(1, 1, "a")).batches] == [requests("a")]


def test_junk_before_the_entry_gives_its_bytes_back() -> None:
    """Values that were kept under a key before its entry came are dropped when the entry waits at the head and none is its content."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(*_junk(history, 1, 1, 3))
    assert reading.joiner.buffered_bytes > 3_000
    reading.step(history.entry(1, 1, "a"))
    assert reading.joiner.buffered_bytes < 1_000
    reading.step(history.payload(1, 1, "a"))
    assert named(reading.batches) == [(1, 1, "1")]
    assert reading.joiner.buffered_bytes == 0


def test_junk_that_was_let_go_of_is_no_empty_payload() -> None:
    """An entry that names the hash of an empty payload waits for one: a record whose bytes were released does not count as empty."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(*_junk(history, 1, 1), history.entry(1, 1, payload_hash=sha256(b"").digest()))
    reading.step()
    assert reading.joiner.hole is not None
    reading.step(history.put(0, batch_key(1, 1), b""))
    assert reading.batches[0].offset == 3
    assert reading.state.marks[0].offset == 1


def test_other_keys_where_the_head_waits() -> None:
    """Records of other keys in the partition that the head waits for are dropped above twice the limit, and a restart reads them again."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"))
    for record in _flood(history, 40):
        ready = reading.step(record)
        assert reading.joiner.buffered_bytes <= 2 * LIMIT + 2_000
        assert not ready.read_again
        assert 0 not in ready.paused
    ready = reading.step(history.payload(1, 1, "a"))
    assert named(ready.batches) == [(1, 1, "1")]
    assert not ready.read_again
    assert ready.offsets_next == {ORDERING: 4, 0: 0}


def test_nothing_is_dropped_below_the_bound() -> None:
    """A buffer below twice its limit drops nothing, and nothing is read again."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"), *_flood(history, 4))
    ready = reading.step(history.payload(1, 1, "a"))
    assert not ready.read_again
    assert reading.joiner.buffered_records == 4
    assert not reading.joiner.snapshot().dropped


def _dropped_content() -> tuple[History, Reading]:
    """Returns a reader that dropped the content of (2, FAR) while (1, 1) waited, and its log."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"), history.entry(2, FAR, "b"))
    reading.step(*_flood(history), history.payload(2, FAR, "b"))
    return history, reading


def test_a_fill_behind_a_payload_that_was_dropped() -> None:
    """A dropped payload is still the content of its entry, although a fill for it comes later."""
    history, reading = _dropped_content()
    ready = reading.step(history.payload(1, 1, "a"))
    assert (named(ready.batches), ready.read_again) == ([(1, 1, "1")], True)
    assert reading.joiner.hole is None, "what may have been there is no hole, and nobody fills it"
    ready = reading.step(history.fill(2, FAR))
    assert (ready.batches, ready.fills, ready.read_again) == ([], [], True)
    _read_again(history, reading)
    assert named(reading.batches) == [(1, 1, "1"), (2, FAR, "1")]


def test_a_fill_that_came_in_the_same_step() -> None:
    """A dropped payload is still the content if one poll returns the head's content and the fill."""
    history, reading = _dropped_content()
    ready = reading.step(history.payload(1, 1, "a"), history.fill(2, FAR))
    assert (named(ready.batches), ready.read_again) == ([(1, 1, "1")], True)
    _read_again(history, reading)
    assert named(reading.batches) == [(1, 1, "1"), (2, FAR, "1")]


def test_what_lies_before_the_first_that_was_dropped_is_joined() -> None:
    """Contents that were read before anything was dropped are the first of their keys, and need not be read again."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"))
    reading.step(history.payload(2, 1, "b"), *_flood(history), history.fill(2, 1))
    ready = reading.step(history.payload(1, 1, "a"), history.entry(2, 1, "b"))
    assert named(reading.batches) == [(1, 1, "1"), (2, 1, "1")]
    assert not ready.read_again


def test_another_partition_goes_on() -> None:
    """An entry whose partition lost nothing is joined, although another partition must be read again."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"))
    reading.step(history.payload(2, 1, "b", partition=1), *_flood(history))
    reading.step(history.payload(1, 1, "a"), history.entry(2, 1, "b", partition=1))
    assert named(reading.batches) == [(1, 1, "1"), (2, 1, "1")]


def test_a_restart_after_something_was_dropped() -> None:
    """With the persisted offsets a restart reads again from the first dropped record."""
    history, reading = _dropped_content()
    reading.step(history.payload(1, 1, "a"))
    again = reading.restarted()
    assert again.step(*rest(history, again.state)).read_again
    _read_again(history, again)
    assert named(again.batches) == [(2, FAR, "1")]


def test_memory_is_bounded_without_a_hole() -> None:
    """Records that were fetched before reading paused are dropped above twice the limit too, while the head waits for nothing."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    ready = reading.step(*_flood(history, 500), history.payload(1, FAR, "a"))
    assert reading.joiner.buffered_bytes < 2 * LIMIT + 2_000
    assert ready.paused == {0, 1}
    assert not ready.read_again
    assert reading.step(history.entry(1, FAR, "a")).read_again
    _read_again(history, reading)
    assert named(reading.batches) == [(1, FAR, "1")]


def test_the_next_batches_are_kept_beside_a_flood() -> None:
    """The next batches of an incarnation in force may take half as much more, so they are joined without a second reading."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(*_flood(history), history.payload(1, NEXT_BATCHES, "a"), history.payload(2, FAR, "b"))
    ready = reading.step(history.entry(1, NEXT_BATCHES, "a"))
    assert (named(ready.batches), ready.read_again) == ([(1, NEXT_BATCHES, "1")], False)
    reading.step(*_junk(history, 1, NEXT_BATCHES + 1, 500))
    assert reading.joiner.buffered_bytes < 3 * LIMIT + 2_000


def test_a_batch_after_a_flood_is_read_once() -> None:
    """An entry whose name was not dropped is a hole at once: nothing is read again for it, however much was dropped before."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(*_flood(history, 100))
    ready = reading.step(history.entry(1, FAR, "a"))
    assert reading.joiner.hole is not None
    assert ready.paused == {1}
    assert not ready.read_again
    ready = reading.step(*_flood(history, 10), history.payload(1, FAR, "a"))
    assert (named(ready.batches), ready.read_again) == ([(1, FAR, "1")], False)


def test_free_memory_is_filled_again() -> None:
    """When memory is free again and nothing waits, dropped records are read again, once; so later batches are not read twice."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(*[record for sequence in range(FAR, FAR + 20) for record in _junk(history, 2, sequence)], history.payload(1, FAR, "a"))
    ready = reading.step(history.fence(2, 0))
    assert ready.read_again
    assert not _read_again(history, reading).read_again
    assert (reading.joiner.buffered_records, reading.joiner.snapshot().dropped) == (1, ())


def test_dropped_records_are_not_read_again_after_an_interruption() -> None:
    """Records that were dropped before the mark of a partition stay known: they exist as long as it does, and no entry waits for them."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"), *_flood(history), history.payload(2, FAR, "b"), history.payload(1, 1, "a"))
    mark = reading.joiner.marks[0].offset
    held_bytes, first = compared_again(history, reading)
    assert first[0] == mark
    assert held_bytes < 2 * LIMIT + 2_000
    assert reading.step(history.entry(2, FAR, "b")).read_again
    compared_again(history, reading)
    assert named(reading.batches) == [(1, 1, "1"), (2, FAR, "1")]


def test_a_content_dropped_in_a_comparison_is_no_hole() -> None:
    """The content of a hole that is first dropped after an interruption is read again; the fill behind it does not take its place."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"), *_flood(history), history.payload(1, 1, "a"))
    reading.step(history.entry(2, FAR, "b"))
    reading.step(*_flood(history))
    assert reading.joiner.hole is not None
    history.payload(2, FAR, "b")
    history.fill(2, FAR)
    compared_again(history, reading, 100)
    assert named(reading.batches) == [(1, 1, "1")]
    assert not reading.joiner.snapshot().has_hole
    compared_again(history, reading)
    assert named(reading.batches) == [(1, 1, "1"), (2, FAR, "1")]


WITHOUT_LEADER = {ORDERING, 1}
"""The topic-partitions that can be read while partition 0 has no leader."""


def _hole_not_compared() -> tuple[History, Reading, Continued]:
    """Returns a reader with the hole (2, FAR) in partition 0, which had no leader since an interruption; its content was dropped before."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"), *_flood(history), history.payload(2, FAR, "b"), history.payload(1, 1, "a"))
    continued = Continued(reading.joiner)
    history.entry(2, FAR, "b")
    reading.step(*continued.take(continued.unread(history, ORDERING), WITHOUT_LEADER))
    return history, reading, continued


def test_an_entry_in_a_partition_without_a_leader_is_a_hole() -> None:
    """After an interruption a partition without a leader gives nothing, so an entry that names a dropped content there waits."""
    _, reading, continued = _hole_not_compared()
    assert continued.recheck.waits_for == {0}
    assert reading.joiner.hole is not None


def test_a_fill_after_a_hole_is_compared_is_no_content() -> None:
    """A hole's content that was dropped before an interruption is read again; the fill behind a new flood does not take its place."""
    history, reading, continued = _hole_not_compared()
    _flood(history, 3)
    history.fill(2, FAR)
    assert reading.step(*continued.take(continued.unread(history, 0), history.by_partition)).read_again
    assert named(reading.batches) == [(1, 1, "1")]
    compared_again(history, reading)
    assert named(reading.batches) == [(1, 1, "1"), (2, FAR, "1")]


def test_copies_of_an_awaited_content_are_bounded_in_a_comparison() -> None:
    """A worker that reads the log again for a content holds its first record, and drops the copies of it above the limit."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"), *_flood(history), *[history.payload(2, FAR, "b") for _ in range(300)])
    reading.step(history.payload(1, 1, "a"))
    assert reading.step(history.entry(2, FAR, "b")).read_again
    held_bytes, _ = compared_again(history, reading)
    assert named(reading.batches) == [(1, 1, "1"), (2, FAR, "1")]
    assert held_bytes < 3 * LIMIT + 2_000


def _dropped_backwards() -> tuple[History, Reading]:
    """Returns a reader that dropped a flood, and in a comparison with the log the content of (2, FAR), which lies before the flood."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"), history.payload(2, FAR, "b"), *_flood(history), history.payload(1, 1, "a"))
    continued = Continued(reading.joiner)
    reading.step(*continued.take(continued.unread(history, ORDERING), WITHOUT_LEADER))
    reading.step(*continued.take(_flood(history, partition=1), WITHOUT_LEADER))  # fills the memory
    reading.step(*continued.take(continued.unread(history, 0), history.by_partition))
    return history, reading


def test_a_restart_reads_from_the_earliest_dropped_record() -> None:
    """The persisted offset of a partition does not pass a record that was dropped after later ones."""
    history, reading = _dropped_backwards()
    assert reading.step(history.register("w3")).offsets_next[0] == 0


def test_a_content_dropped_after_later_records_is_read_again() -> None:
    """A content that was dropped after the records behind it is still the first one: the fill at the end does not take its place."""
    history, reading = _dropped_backwards()
    reading.step(history.register("w3"))
    entry = history.entry(2, FAR, "b")
    history.fill(2, FAR)
    assert reading.step(entry).read_again
    compared_again(history, reading)
    assert named(reading.batches) == [(1, 1, "1"), (2, FAR, "1")]


def _readings_until_the_end(history: History, reading: Reading) -> int:
    """Read the log, and again when the joiner wants it, with steps of the driver's size. Returns the number of readings, 10 at most."""
    before = None
    for number in range(1, 10):
        continued = Continued(reading.joiner, before)
        before = continued.recheck
        unread = [record for partition in history.by_partition for record in continued.unread(history, partition)]
        if not _wants_another_reading(reading, continued.take(unread, history.by_partition)):
            return number
    return 10


def _wants_another_reading(reading: Reading, records: list[Record]) -> bool:
    for at in range(0, len(records), VERIFY_AT_ONCE):
        ready = reading.step(*records[at : at + VERIFY_AT_ONCE])
        while ready.more:
            ready = reading.step()
        if ready.read_again:
            return True
    return False


def test_forged_ordering_records_cause_no_endless_reading() -> None:
    """A record that is skipped is read again each time, so it is no reason to read dropped payloads again; an effect is one."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"), *_flood(history), history.payload(1, 1, "a"))
    for _ in range(VERIFY_AT_ONCE):
        history.put(ORDERING, None, b"garbage")
    history.entry(2, 1, "b")
    history.payload(2, 1, "b")
    again = reading.restarted()
    assert _readings_until_the_end(history, again) <= 2
    assert named(again.batches) == [(2, 1, "1")]


def test_a_checkpoint_causes_no_endless_reading() -> None:
    """A checkpoint changes nothing that a second reading finds: a worker that starts in a quiet log reads it at most twice."""
    history, reading = History(), Reading(limits=JoinerLimits(buffer_bytes_max=125 * LIMIT))
    reading.step(history.genesis, history.register("w1"))
    reading.step(history.entry(1, 1, "a"), *_flood(history, 700), history.payload(1, 1, "a"))
    history.checkpoint(1, 1, view=reading.view)
    assert _readings_until_the_end(history, reading.restarted()) <= 2


def test_memory_is_bounded_while_partitions_are_compared() -> None:
    """A worker that reads a flood again to find its mark holds no more than the limits, and finds the content that it needs in it."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 1, "a"), *_flood(history, 500), *_junk(history, 2, FAR, 500), history.payload(2, FAR, "b"))
    reading.step(*_flood(history, 500), history.payload(1, 1, "a"), history.entry(2, FAR, "b"))
    held_bytes, first = compared_again(history, reading)
    assert first[0] < 500 < reading.joiner.marks[0].offset
    assert held_bytes < 2 * LIMIT + 4_000
    assert named(reading.batches) == [(1, 1, "1"), (2, FAR, "1")]
    assert reading.joiner.buffered_bytes < 2 * LIMIT + 4_000


def test_progress_under_a_flood() -> None:
    """A partition with a flood before many contents is read to its end, batch by batch if necessary."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    flood = _flood(history, 30)
    entries = [history.entry(1 + n % 2, 1 + n // 2, f"{n}") for n in range(10)]
    payloads = [history.payload(1 + n % 2, 1 + n // 2, f"{n}") for n in reversed(range(10))]
    reading.step(*entries)
    ready = reading.step(*flood, *payloads)
    rounds = 0
    while ready.read_again:
        ready = _read_again(history, reading)
        rounds += 1
        assert rounds <= 10
    assert [batch.requests for batch in reading.batches] == [requests(f"{n}") for n in range(10)]


def test_which_records_may_count() -> None:
    """A payload may count until its incarnation is past it; a record without a value or a decodable key never may."""
    history, reading = registered("w1", "w2", limits=LIMITS)
    reading.step(history.entry(1, 3, "a"), history.payload(1, 3, "a"), history.fence(2, 0))
    may_count = reading.joiner.may_count
    assert [may_count(history.payload(*name, "x")) for name in ((1, 3), (1, 4), (2, 1), (9, 9))] == [False, True, False, True]
    assert not may_count(history.put(0, batch_key(9, 9), None))
    assert not may_count(history.put(0, b"short", b"x"))
    assert may_count(history.put(ORDERING, None, b"garbage"))
