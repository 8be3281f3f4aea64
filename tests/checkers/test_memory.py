"""A worker that forgets payloads, or keeps those that never count, is found."""

import pytest

from joiner import Joiner, JoinerState
from ordering.log import ORDERING
from tests.checkers import memory
from tests.checkers.replay import replay
from tests.checkers.violation import Kind, Violation
from tests.joiner.history import NOTARY, History, Reading, rest

PARTITIONS = 2


def a_log() -> History:
    """A head at a hole, behind it a payload that came early; one of a life that has not registered; one that is past, one fenced."""
    log = History(PARTITIONS)
    log.register("w1")
    log.payload(1, 1, "a")
    log.entry(1, 1, "a")
    log.payload(1, 1, "a")
    log.entry(1, 2, "hole", partition=1)
    log.entry(1, 3, "early")
    log.payload(1, 3, "early")
    log.payload(2, 1, "ahead", partition=1)
    log.payload(2, 0, "never", partition=1)
    return log


def held(log: History, joiner: Joiner, offsets_next: dict[int, int], buffered: int) -> list[Violation]:
    replayed = replay(log.streams, NOTARY, PARTITIONS, offsets_next[ORDERING])
    return memory.violations(log.streams, replayed, read_next=joiner.read_next(), offsets_next=offsets_next, buffered_records=buffered)


def reading(log: History) -> Reading:
    worker = Reading()
    worker.step(*rest(log, JoinerState(dict.fromkeys(range(ORDERING, PARTITIONS), 0))))
    return worker


def test_joiner_keeps_what_may_count() -> None:
    """Record by record, and all at once: a joiner keeps each payload that may still count, and would read each again."""
    log = a_log()
    log.register("w2")
    log.fill(1, 2, partition=1)
    log.fence(2, 0)
    for records in ([[record] for stream in log.streams.values() for record in stream], [rest(log, Reading().state)]):
        worker = Reading()
        for some in records:
            worker.step(*some)
            assert held(log, worker.joiner, dict(worker.state.offsets_next), worker.joiner.buffered_records) == []


@pytest.mark.parametrize(("too_many", "kind"), [(1, Kind.HOARDED), (-1, Kind.FORGOTTEN)])
def test_wrong_number_of_payloads_is_found(too_many: int, kind: Kind) -> None:
    """One payload too many in memory never leaves it; one too few is never found again."""
    log = a_log()
    worker = reading(log)
    found = held(log, worker.joiner, dict(worker.state.offsets_next), worker.joiner.buffered_records + too_many)
    assert [violation.kind for violation in found] == [kind]


def test_resuming_past_a_payload_is_found() -> None:
    """An offset to read again from that lies behind a payload which may still count loses it at the next start (R8)."""
    log = a_log()
    worker = reading(log)
    offsets = dict(worker.state.offsets_next)
    offsets[0] += 1
    found = held(log, worker.joiner, offsets, worker.joiner.buffered_records)
    assert [violation.kind for violation in found] == [Kind.FORGOTTEN]
    assert "partition 0, payload (1, 3)" in found[0].place


def test_head_ahead_of_the_log_is_found() -> None:
    """A worker that judged past a hole of its log is ahead of it."""
    log = a_log()
    worker = reading(log)
    offsets = dict(worker.state.offsets_next) | {ORDERING: 3}
    assert [violation.kind for violation in held(log, worker.joiner, offsets, 3)] == [Kind.AHEAD_OF_LOG]
