"""Tests that the replay and the joiner's core agree on any log: random logs with every kind of record, good, copied, stale and forged."""

import pytest

from joiner import Joiner, JoinerLimits
from ordering.errors import FatalCode
from ordering.log import ORDERING, Record
from tests.checkers.random_logs import random_log
from tests.checkers.records import Settle
from tests.checkers.replay import Replayed, Why, replay
from tests.checkers.signed_log import SignedLog
from tests.examples import some

pytestmark = pytest.mark.seconds


class Reading:
    """A joiner that reads a log in pieces; every suspicion because of a foreign view turns out to be unfounded."""

    def __init__(self, log: SignedLog, piece: int) -> None:
        self.joiner = Joiner(limits=JoinerLimits(step_requests_max=2))
        self.batches: list[tuple[int, int, int, int, bool, list[str]]] = []
        self.stopped: FatalCode | None = None
        at = dict.fromkeys(log.by_partition, 0)
        while True:
            records: list[Record] = []
            for partition, read in at.items():
                # The joiner gets only the records of the partitions that the log has declared by then.
                if partition == ORDERING or (self.joiner.log_state and partition < self.joiner.log_state.payload_partitions):
                    records += log.by_partition[partition][read : read + piece]
                    at[partition] = min(read + piece, len(log.by_partition[partition]))
            if not self._step(records) and not records:
                return

    def _step(self, records: list[Record]) -> bool:
        ready = self.joiner.step(records, 0)
        for b in ready.batches:
            ids = [request.transaction_id.hex() for request in b.requests]
            self.batches.append((b.offset, b.incarnation, b.sequence, b.log_time_ms, b.filled, ids))
        if ready.evidence is not None:
            self.joiner.examined(ready.evidence)
            return True
        self.stopped = None if ready.stop is None else ready.stop.code
        return ready.advanced


def _compare(replayed: Replayed, reading: Reading) -> None:
    joiner = reading.joiner
    assert joiner.offset_head == replayed.offset_head
    assert (joiner.history.view.seen, joiner.history.view.history) == (replayed.seen, replayed.history)
    assert (replayed.ended_by == "hole") == (joiner.hole is not None)
    assert (replayed.ended_by == "activate") == (reading.stopped is FatalCode.FORMAT_TOO_NEW)
    expected_batches = [(b.offset, b.incarnation, b.sequence, b.log_time, b.signed_fill, list(b.ids)) for b in replayed.batches]
    assert reading.batches == expected_batches
    assert joiner.log_state is not None
    assert joiner.log_state.settled == replayed.settled
    _compare_incarnations(replayed, joiner)


def _compare_incarnations(replayed: Replayed, joiner: Joiner) -> None:
    state = joiner.log_state
    assert state is not None
    assert (state.log_id, state.notary_name, list(state.keys)) == (replayed.log_id, replayed.name, replayed.keys)
    assert (state.payload_partitions, list(state.formats)) == (replayed.partitions, replayed.versions)
    assert joiner.log_time_ms == replayed.log_time
    for expected in replayed.incarnations:
        other = joiner.incarnations.get(expected.incarnation)
        assert other is not None
        assert (expected.name, expected.nonce, expected.sequence_last, expected.fenced) == (
            other.name,
            other.nonce,
            other.sequence_last,
            other.fenced,
        )
        assert (expected.active_at, expected.format_version) == (other.active_at_ms, other.format_version)
    assert joiner.incarnations.get(len(replayed.incarnations) + 1) is None


@pytest.mark.parametrize("seed", range(some(300)))
def test_replay_joins_as_the_joiner_does(seed: int) -> None:
    """The joiner and the replay agree on history, batches, log time, incarnations, keys and first hole of any log, for any piece size."""
    log = random_log(seed, 25)
    reading = Reading(log, (1, 3, 100)[seed % 3])
    # A worker stops at a settle record of another history, which the replay skips.
    offset_stop = reading.joiner.offset_head if reading.stopped is FatalCode.HISTORY_DIFFERS else None
    _compare(replay(log.by_partition, offset_stop), reading)
    if offset_stop is not None:
        assert isinstance(log.replayed().records[offset_stop].record, Settle)
        assert log.replayed().records[offset_stop].why_not is Why.OTHER_VIEW


@pytest.mark.parametrize("seed", range(some(100)))
def test_the_ordering_topic_alone_shows_the_same_incarnations(seed: int) -> None:
    """A reader of the ordering topic alone agrees with the replay on log time, incarnations, keys, formats and partitions."""
    log = random_log(seed, 25)
    replayed = replay(log.by_partition)
    joiner = Joiner(ordering_only=True)
    records = log.by_partition[ORDERING][: replayed.offset_head]
    while joiner.step(records, 0).advanced:
        records = []
    _compare_incarnations(replayed, joiner)
