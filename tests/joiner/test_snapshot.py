"""Tests of `Joiner.snapshot` and `restore`: nothing of the state is left out, and a restored joiner continues like the first."""

from operator import attrgetter

import msgspec
import pytest

from joiner import Joiner, JoinerLimits
from joiner.evidence import Evidence
from tests.joiner.compared import differences, restored
from tests.joiner.history import History, Reading, named, own_batch

HOLE_MS = JoinerLimits().hole_timeout_ms


def _used() -> Joiner:
    """Returns a joiner whose every attribute has another value than those of the other tests."""
    history, reading = History(), Reading(name="reader")
    reading.step(history.genesis, history.register("other"), history.entry(1, 1, "x"), history.payload(1, 1, "x"))
    reading.step(history.entry(1, 2, "y"), history.payload(2, 1, "z"), now=1)
    reading.step(now=HOLE_MS + 1)
    return reading.joiner


def _waiting(limits: JoinerLimits | None = None) -> tuple[History, Reading]:
    """Returns a reader at a hole, with an entry and an undecodable record behind it, payloads of known and unknown incarnations, a fill."""
    history, reading = History(), Reading(limits)
    reading.step(history.genesis, history.register("w1"), history.register("w2"))
    reading.step(history.entry(1, 1, "a"), history.payload(1, 1, "a"))
    reading.step(history.entry(1, 2, "b"), history.entry(2, 1, "c", partition=1), history.put(-1, None, b"\x09nothing"), now=5)
    reading.step(history.payload(2, 1, "c", partition=1), history.payload(3, 1, "d"), history.payload(1, 2, "wrong"), now=6)
    assert reading.step(now=HOLE_MS + 5).fills
    return history, reading


def test_every_attribute_is_restored() -> None:
    """A joiner restored from a snapshot has the same attributes, whatever state it was in before."""
    _, reading = _waiting()
    assert restored(reading.joiner, _used()) == []
    assert restored(reading.joiner, Joiner(worker_name="reader")) == []


def test_an_attribute_that_is_left_out_is_found() -> None:
    """The comparison finds an attribute that the snapshot does not have."""
    _, reading = _waiting()
    reading.joiner._secret = 1  # type: ignore[attr-defined]
    assert restored(reading.joiner, Joiner(worker_name="reader")) == ["joiner._secret"]


@pytest.mark.parametrize(
    "name",
    [
        "applied.log_time_ms",
        "_offset_head",
        "_queue.ids",
        "_skipped",
        "_due.fills_due_ms",
        "_buffer_full",
        "applied.since_effect",
        "applied.payloads.is_rereading",
    ],
)
def test_the_comparison_finds_a_difference(name: str) -> None:
    """The comparison finds a single attribute with another value."""
    _, reading = _waiting()
    other = Joiner(worker_name="reader")
    assert restored(reading.joiner, other) == []
    *parts, last = name.split(".")
    part = attrgetter(".".join(parts))(other) if parts else other
    assert hasattr(part, last)
    setattr(part, last, "another")
    assert differences(reading.joiner, other) == [f"joiner.{name}"]


def test_a_restored_joiner_goes_on_like_the_first() -> None:
    """After a restore, the same records give the same batches, proposals and offsets."""
    history, reading = _waiting()
    other = Joiner(worker_name="reader")
    other.restore(reading.joiner.snapshot())
    records = [history.payload(1, 2, "b"), history.register("w1"), history.entry(2, 2, "e"), history.payload(2, 2, "e")]
    for record in records:
        first, second = reading.joiner.step([record], 2 * HOLE_MS), other.step([record], 2 * HOLE_MS)
        assert first == second
    assert named(first.batches) == [(2, 2, "1")]
    assert differences(reading.joiner, other) == []


def test_a_snapshot_does_not_change() -> None:
    """Later steps of the joiner change nothing in a snapshot, and a snapshot of a restored joiner is the same."""
    history, reading = _waiting()
    snapshot = reading.joiner.snapshot()
    text = msgspec.json.encode(snapshot)
    other = Joiner(worker_name="reader")
    other.restore(snapshot)
    assert other.snapshot() == snapshot
    assert hash(other.snapshot()) == hash(snapshot)
    reading.step(history.payload(1, 2, "b"), history.payload(3, 2, "f"))
    assert msgspec.json.encode(snapshot) == text
    assert reading.joiner.snapshot() != snapshot


def test_views_that_were_examined() -> None:
    """A snapshot has the suspicions, the views that were examined, and whether the joiner is live."""
    history, reading = _waiting()
    reading.joiner.suspicions.live = True
    reading.joiner.suspicions.open["w9"] = 3
    reading.joiner.examined(Evidence(1, history.view, "w1", 2))
    other = Joiner(worker_name="reader")
    assert restored(reading.joiner, other) == []
    assert other.suspicions.is_examined(history.view)


def test_records_that_were_dropped() -> None:
    """A restored joiner knows which records were dropped for lack of memory, and for which hole none was."""
    limits = JoinerLimits(buffer_bytes_max=2_000)
    history, reading = History(), Reading(limits)
    reading.step(history.genesis, history.register("w1"), history.register("w2"))
    reading.step(history.entry(1, 1, "a"))
    while not reading.joiner.snapshot().dropped:
        reading.step(history.payload(2, len(history.by_partition[0]) + 1, "b" * 1_000))
    other = Joiner(limits=limits, worker_name="reader")
    assert restored(reading.joiner, other) == []
    payload = history.payload(1, 1, "a")
    assert named(other.step([payload], 0).batches) == named(reading.step(payload).batches) == [(1, 1, "1")]


def test_batches_of_its_own_worker_change_nothing() -> None:
    """A step that is given this worker's own batches has the effects and the state of one that is not, and keeps none of them."""
    history = History()
    records = [history.genesis, history.register("w1"), history.entry(1, 1, "a"), history.payload(1, 1, "a"), history.entry(1, 2, "b")]
    own = {(1, 1): own_batch("a", records[2])}
    assert own[1, 1].value == records[3].value
    given, other = Joiner(worker_name="w1"), Joiner(worker_name="w1")
    assert given.step(records, 0, None, own) == other.step(records, 0)
    assert differences(given, other) == []
    assert given.snapshot() == other.snapshot()
    own.clear()
    late = history.payload(1, 2, "b")
    assert given.step([late], 0) == other.step([late], 0)
