"""Tests that a worker that loses payloads, or keeps some that can never count, is found."""

import pytest

from joiner import Joiner
from ordering.log import ORDERING, Record
from tests.checkers import memory
from tests.checkers.records import key_of
from tests.checkers.replay import replay
from tests.checkers.signed_log import SignedLog
from tests.checkers.violation import Kind, Violation

PARTITIONS = 2


def a_log() -> SignedLog:
    """A log with a hole at its head, and payloads: one behind it, one of an unregistered incarnation, some that are past or never count."""
    log = SignedLog(PARTITIONS)
    log.register("w1")
    log.payload(1, 1, "other bytes")
    log.payload(1, 1, "a")
    log.entry(1, 1, "a")
    log.payload(1, 1, "a")
    log.entry(1, 2, "hole", partition=1)
    log.entry(1, 3, "early")
    log.payload(1, 3, "early")
    log.put(0, key_of(1, 3), None)
    log.payload(2, 1, "ahead", partition=1)
    log.payload(2, 1, "ahead, other bytes", partition=1)
    log.payload(2, 0, "never", partition=1)
    return log


class Worker:
    """A joiner with its persisted state."""

    def __init__(self) -> None:
        self.joiner = Joiner()
        self.offsets_next = {ORDERING: 0}

    def step(self, *records: Record) -> None:
        ready = self.joiner.step(records, 0)
        if ready.advanced:
            self.offsets_next = dict(ready.offsets_next)


def found_in(log: SignedLog, worker: Worker, offsets_next: dict[int, int] | None = None, more: int = 0) -> list[Violation]:
    offsets = worker.offsets_next if offsets_next is None else offsets_next
    return memory.violations(
        log.by_partition,
        replay(log.by_partition, offsets[ORDERING]),
        read_next=worker.joiner.read_next(),
        offsets_next=offsets,
        buffered_records=worker.joiner.buffered_records + more,
    )


def reading(log: SignedLog) -> Worker:
    """A worker that has read the complete log."""
    worker = Worker()
    worker.step(*[record for records in log.by_partition.values() for record in records])
    return worker


def test_joiner_keeps_what_may_count() -> None:
    """A joiner keeps each payload that may still count, and would read each again, whether it reads record by record or all at once."""
    log = a_log()
    log.register("w2")
    log.fill(1, 2, "hole", partition=1)
    log.fence(2, 0)
    everything = [record for records in log.by_partition.values() for record in records]
    for pieces in ([[record] for record in everything], [everything]):
        worker = Worker()
        for piece in pieces:
            worker.step(*piece)
            assert found_in(log, worker) == []


def test_joiner_at_a_hole_keeps_what_may_count() -> None:
    """A joiner whose head waits keeps the payloads behind it, and may drop records that are no content of its head."""
    log = a_log()
    log.payload(1, 2, "no content of the hole", partition=1)
    worker = reading(log)
    assert worker.joiner.hole is not None
    assert found_in(log, worker) == []


@pytest.mark.parametrize(("too_many", "kind"), [(2, Kind.HOARDED), (-1, Kind.FORGOTTEN)])
def test_wrong_number_of_payloads_is_found(too_many: int, kind: Kind) -> None:
    """One buffered payload too many, or one too few, is found."""
    log = a_log()
    assert [violation.kind for violation in found_in(log, reading(log), more=too_many)] == [kind]


def test_resuming_past_a_payload_is_found() -> None:
    """A persisted offset behind a payload that may still count is found: the payload would be lost at the next start (R8)."""
    log = a_log()
    worker = reading(log)
    early = next(record.offset for record in log.by_partition[0] if record.key == key_of(1, 3))
    found = found_in(log, worker, {**worker.offsets_next, 0: early + 1})
    assert [violation.kind for violation in found] == [Kind.FORGOTTEN]
    assert "partition 0, payload (1, 3)" in found[0].place
    assert found_in(log, worker, {**worker.offsets_next, 0: early}) == []


def test_resuming_past_one_of_two_values_is_found() -> None:
    """Without an entry each value under a key may be its content, so both the first and the second must be read again (R3)."""
    log = SignedLog(PARTITIONS)
    log.payload(1, 1, "a")
    second = log.payload(1, 1, "b")
    worker = reading(log)
    assert found_in(log, worker) == []
    assert [violation.kind for violation in found_in(log, worker, {ORDERING: 1, 0: second.offset})] == [Kind.FORGOTTEN]
    assert [violation.kind for violation in found_in(log, worker, more=-1)] == [Kind.FORGOTTEN]


def test_head_ahead_of_the_log_is_found() -> None:
    """A worker that applied records past a hole of its log is reported as ahead of it."""
    log = a_log()
    worker = reading(log)
    assert [violation.kind for violation in found_in(log, worker, {**worker.offsets_next, ORDERING: 4})] == [Kind.AHEAD_OF_LOG]
