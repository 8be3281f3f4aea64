"""Tests that the replay and the joiner's core agree on any log: random logs with every kind of record, good, copied, stale and forged."""

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joiner import Joiner, JoinerLimits
from ordering.log import ORDERING, Record
from tests.checkers.records import FORMAT_VERSION, View, key_of
from tests.checkers.replay import Replayed
from tests.checkers.signed_log import SignedLog, payload_of, private_key, public
from tests.examples import some

pytestmark = pytest.mark.seconds


PARTITIONS = 2
SHARED = settings(deadline=None, max_examples=some(300), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

small = st.integers(0, 3)
keys = st.sampled_from(["notary", "second", "third"])
labels = st.sampled_from("abc")


class Writing:
    """A log that hypothesis writes, step by step."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.log = SignedLog(PARTITIONS)

    def write(self) -> SignedLog:
        steps: list[Callable[[], object]] = [
            self._register,
            self._batch,
            self._batch,
            self._batch,
            self._batch,
            self._undecided,
            self._payload,
            self._fill,
            self._worker_record,
            self._owner_record,
            self._rotate,
            self._copy,
            self._forged,
        ]
        self.log.register("w1")
        for step in self.draw(st.lists(st.sampled_from(steps), min_size=4, max_size=30)):
            step()
        return self.log

    def _view(self) -> View | None:
        """Draw a view: mostly the writer's own history, or one a few records old, sometimes another."""
        kind = self.draw(st.sampled_from(["own", "own", "old", "foreign", "ahead", "none"]))
        own = self.log.view()
        if kind == "old":
            return self.log.view(self.draw(st.integers(1, own.seen)))
        foreign = {"foreign": View(own.seen, bytes(32)), "ahead": View(own.seen + 1, own.history), "none": View(0, own.history)}
        return foreign.get(kind)

    def _register(self) -> None:
        name = self.draw(st.sampled_from(["w1", "w2"]))
        nonce = self.draw(st.sampled_from([None, None, "the same"]))
        self.log.register(name, nonce, reads=self.draw(st.integers(1, 3)), view=self._view())

    def _name(self) -> tuple[int, int]:
        """Draw the name of a batch: mostly the next one of an incarnation that has not ended."""
        replayed = self.log.replayed()
        going_on = [state for state in replayed.incarnations if not state.fenced]
        if going_on and self.draw(st.integers(0, 3)) > 0:
            state = self.draw(st.sampled_from(going_on))
            return state.incarnation, state.sequence_last + 1
        return self.draw(st.tuples(st.integers(0, 3), st.integers(0, 5)))

    def _key(self) -> Ed25519PrivateKey:
        """Draw a key: mostly the one in force."""
        return private_key(self.draw(keys)) if not self.draw(st.integers(0, 3)) else self.log.key

    def _batch(self) -> None:
        """Append an entry, with none, one or two contents before or after it."""
        incarnation, sequence = self._name()
        partition, label = self.draw(st.integers(0, self.log.replayed().partitions)), self.draw(labels)
        contents = self.draw(st.lists(st.sampled_from(["payload", "payload", "fill", "bad fill", "other", "null"]), min_size=1, max_size=3))
        after = self.draw(st.integers(0, len(contents)))
        at = self.draw(st.sampled_from([None, None, None, 0, 1_500_000, 100_000_000]))
        sent_at = self.draw(st.sampled_from([None, None, 0, 1_000_000, 2_000_000]))
        view, key = self._view(), self._key()
        for number, content in enumerate([*contents, "end"]):
            if number == after:
                self.log.entry(incarnation, sequence, label, partition=partition, view=view, by=key, at=at, sent_at=sent_at)
            match content:
                case "payload":
                    self.log.payload(incarnation, sequence, label, partition=partition)
                case "fill":
                    self.log.fill(incarnation, sequence, label, partition=partition, by=self._key())
                case "bad fill":
                    self.log.fill(incarnation, sequence, label + "x", partition=partition)
                case "other":
                    self.log.payload(incarnation, sequence, label + "x", partition=partition)
                case "null":
                    self.log.put(partition, key_of(incarnation, sequence), None)
        if self.log.replayed().ended_by == "hole" and self.draw(st.integers(0, 3)):
            self.log.payload(incarnation, sequence, label, partition=partition)

    def _undecided(self) -> None:
        """Append a payload with the right hash that decides nothing."""
        value = self.draw(st.sampled_from([b"", b"[]", b"garbage", payload_of("b")]))
        incarnation, sequence = self._name()
        self.log.payload(incarnation, sequence, value=value)
        self.log.entry(incarnation, sequence, value=value, ids=["00" * 32], view=self._view())

    def _payload(self) -> None:
        value = self.draw(st.sampled_from([None, b"", b"[]", payload_of("a"), payload_of("b")]))
        key = key_of(*self.draw(st.tuples(st.integers(1, 3), st.integers(1, 5))))
        self.log.put(self.draw(small), self.draw(st.sampled_from([key, key, key, None, b"short"])), value)

    def _fill(self) -> None:
        incarnation, sequence = self.draw(st.tuples(st.integers(1, 3), st.integers(1, 5)))
        self.log.fill(incarnation, sequence, self.draw(labels), partition=self.draw(small), by=private_key(self.draw(keys)))

    def _worker_record(self) -> None:
        if self.draw(st.booleans()):
            incarnations = self.log.replayed().incarnations
            last = {state.incarnation: state.sequence_last for state in incarnations}
            incarnation = self.draw(small)
            self.log.fence(incarnation, self.draw(st.sampled_from([0, last.get(incarnation, 0)])), view=self._view())
        else:
            self.log.checkpoint(self.draw(small), self.draw(small), view=self._view())

    def _owner_record(self) -> None:
        kind = self.draw(st.sampled_from(["retire", "partitions", "activate", "settle"]))
        if kind == "retire":
            self.log.retire(self.draw(small))
        elif kind == "partitions":
            self.log.partitions(self.draw(st.integers(1, 4)))
        elif kind == "activate":
            self.log.activate(self.draw(st.sampled_from([0, 1, FORMAT_VERSION + 1])))
        else:
            self.log.settle(self.log.view(self.draw(st.integers(1, self.log.view().seen))))

    def _rotate(self) -> None:
        key = private_key(self.draw(keys))
        if public(key) not in self.log.replayed().keys:
            self.log.change_key(key)
        else:
            self.log.write(7, self.log.key_body(key))

    def _copy(self) -> None:
        partition = self.draw(st.sampled_from(sorted(self.log.by_partition)))
        if self.log.by_partition[partition]:
            self.log.again(self.draw(st.sampled_from(self.log.by_partition[partition])))

    def _forged(self) -> None:
        record = self.draw(st.sampled_from(self.log.by_partition[ORDERING]))
        assert record.value is not None
        at = self.draw(st.integers(0, len(record.value) - 1))
        self.log.put(ORDERING, None, record.value[:at] + bytes([record.value[at] ^ 1]) + record.value[at + 1 :])


@st.composite
def logs(draw: st.DrawFn) -> SignedLog:
    """Draw a random log."""
    return Writing(draw).write()


class Reading:
    """A joiner that reads a log in pieces; every suspicion because of a foreign view turns out to be unfounded."""

    def __init__(self, log: SignedLog, piece: int) -> None:
        self.joiner = Joiner(limits=JoinerLimits(step_requests_max=2))
        self.batches: list[tuple[int, int, int, int, bool]] = []
        self.stopped = False
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
        self.batches += [(b.offset, b.incarnation, b.sequence, b.log_time_ms, b.filled) for b in ready.batches]
        if ready.evidence is not None:
            self.joiner.examined(ready.evidence)
            return True
        self.stopped = ready.stop is not None
        return ready.advanced


def _compare(replayed: Replayed, reading: Reading) -> None:
    joiner = reading.joiner
    assert joiner.offset_head == replayed.offset_head
    assert (joiner.history.view.seen, joiner.history.view.history) == (replayed.seen, replayed.history)
    assert (replayed.ended_by == "hole") == (joiner.hole is not None)
    assert (replayed.ended_by == "activate") == reading.stopped
    assert joiner.log_time_ms == replayed.log_time
    assert reading.batches == [(b.offset, b.incarnation, b.sequence, b.log_time, b.signed_fill) for b in replayed.batches]
    state = joiner.log_state
    assert state is not None
    assert (state.log_id, state.notary_name, list(state.keys)) == (replayed.log_id, replayed.name, replayed.keys)
    assert (state.payload_partitions, list(state.formats), state.settled) == (replayed.partitions, replayed.versions, replayed.settled)
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


@SHARED
@given(logs(), st.sampled_from([1, 3, 100]))
def test_replay_joins_as_the_joiner_does(log: SignedLog, piece: int) -> None:
    """The joiner and the replay agree on history, batches, log time, incarnations, keys and first hole of any log, for any piece size."""
    _compare(log.replayed(), Reading(log, piece))
