"""Tests of the core: foreign views, the suspicions (`suspicions`) that follow, and the records that end them (R10)."""

import pytest

from joiner import Ready
from joiner.evidence import EXAMINED_MAX, Evidence, Suspicions
from ordering.errors import FatalCode
from ordering.log import ORDERING, Record
from ordering.records import Checkpoint, Entry, Fence, Register, View
from tests.joiner.history import Reading, kinds, nonce, registered, rest

FOREIGN = View(2, b"another history".ljust(32))
AHEAD = View(99, b"more than there is".ljust(32))


def _examined(reading: Reading, *records: Record) -> Ready:
    """Pass the records to the joiner, examine the one foreign view among them as the driver does, and continue."""
    ready = reading.step(*records)
    assert ready.evidence is not None
    reading.joiner.examined(ready.evidence)
    return reading.step()


def _open(reading: Reading) -> set[str]:
    return set(reading.joiner.suspicions.open)


# ---- views ----


@pytest.mark.parametrize("view", [FOREIGN, AHEAD], ids=["another-hash", "more-records"])
@pytest.mark.parametrize("kind", ["entry", "register", "fence", "checkpoint"])
def test_a_foreign_view_stops_the_core_in_front_of_its_record(view: View, kind: str) -> None:
    """A record with a foreign view waits at the head until the driver has compared the history with the log; then it is processed."""
    history, reading = registered("w1", "w2")
    entry = history.entry(1, 1, "a", view=view)
    del history.by_partition[ORDERING][-1]
    records = {
        "entry": lambda: history.put(ORDERING, None, entry.value),
        "register": lambda: history.register("w3", view=view),
        "fence": lambda: history.ordering(Fence(1, view, 2, 0)),
        "checkpoint": lambda: history.checkpoint(1, 0, view=view),
    }
    record = records[kind]()
    ready = reading.step(history.payload(1, 1, "a"), record, history.register("behind"))
    assert ready.evidence == Evidence(record.offset, view, "w3" if kind == "register" else "w1", 3)
    assert not ready.advanced
    assert reading.step().evidence == ready.evidence
    reading.joiner.examined(ready.evidence)
    ready = reading.step()
    assert ready.evidence is None
    assert kinds(ready) == ["foreign-view"] + ["skipped"] * (kind == "checkpoint")
    assert reading.view.seen == 4 + (kind != "checkpoint")
    assert ready.roots_seen == []


def test_own_views_agree() -> None:
    """A view of the reader's own history is remembered as the last point of agreement."""
    history, reading = registered("w1", "w2")
    ready = reading.step(history.register("w3", view=reading.view))
    assert (ready.evidence, ready.agreed, reading.joiner.suspicions.agreed) == (None, 3, 3)
    assert reading.step(history.register("w4", view=history.view)).agreed == 3
    assert reading.restarted().joiner.suspicions.agreed == 3


def test_a_view_of_the_readers_own_name_proves_nothing() -> None:
    """A record of the reader's own name was written from the reader's own index: it is not the last place where somebody agreed."""
    history, reading = registered("w1", "reader")
    agreed = reading.joiner.suspicions.agreed
    reading.step(history.payload(2, 1, "a"), history.entry(2, 1, "a", view=reading.view))
    assert reading.joiner.history.seen == 4
    assert reading.joiner.suspicions.agreed == agreed


def test_a_view_older_than_what_is_kept_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view older than the history that the reader keeps raises no suspicion and confirms nothing."""
    monkeypatch.setattr("joiner.history.HISTORY_KEPT", 2)
    history, reading = registered("w1", "w2", "w3")
    agreed = reading.joiner.suspicions.agreed
    ready = reading.step(history.register("w4", view=FOREIGN))
    assert (ready.evidence, ready.agreed) == (None, agreed)
    assert len(ready.registered) == 1
    assert kinds(ready) == []


def test_views_that_were_looked_into_are_bounded() -> None:
    """The number of remembered views is bounded: a view that was dropped is examined again."""
    suspicions = Suspicions()
    for seen in range(EXAMINED_MAX + 1):
        suspicions.examined(View(seen, bytes(32)))
    assert suspicions.is_examined(View(EXAMINED_MAX, bytes(32)))
    assert not suspicions.is_examined(View(0, bytes(32)))


# ---- suspicions ----


def test_a_later_suspicion_of_the_same_writer_moves_the_place() -> None:
    """A view ends a suspicion only if it covers the last place at which that writer raised it."""
    history, reading = registered("w1", "w2")
    _examined(reading, history.register("w3", view=FOREIGN))
    between = reading.view
    _examined(reading, history.entry(3, 1, view=AHEAD), history.payload(3, 1))
    reading.step(history.register("w4", view=between))
    assert _open(reading) == {"w3"}
    reading.step(history.register("w5", view=reading.view))
    assert _open(reading) == set()


def test_the_end_of_a_suspicion_is_persisted_with_the_record_that_ended_it() -> None:
    """The step that processes the ending record returns the suspicions that are left."""
    history, reading = registered("w1", "w2")
    _examined(reading, history.register("w3", view=FOREIGN))
    ready = reading.step(history.checkpoint(1, 0, view=reading.view))
    assert ready.advanced
    assert ready.suspicions == {}


# ---- settle ----


def test_settle_of_an_earlier_place_leaves_later_suspicions() -> None:
    """Suspicions raised after the settled place stay."""
    history, reading = registered("w1", "w2")
    early = reading.view
    reading.step(history.register("w4"))
    _examined(reading, history.register("w3", view=FOREIGN))
    ready = reading.step(history.settle(early))
    assert _open(reading) == {"w3"}
    assert kinds(ready) == []


def test_a_copy_of_a_settle_record_does_nothing() -> None:
    """A copy of a settle record, or one for an older place, has no effect: it does not end later suspicions."""
    history, reading = registered("w1", "w2")
    early = reading.view
    reading.step(history.register("w4"))
    settle = history.settle(reading.view)
    reading.step(settle)
    reading.joiner.suspicions.open = {"w3": 1}
    before = reading.view
    ready = reading.step(history.put(ORDERING, None, settle.value), history.settle(early))
    assert kinds(ready) == ["skipped", "skipped"]
    assert (_open(reading), reading.view) == ({"w3"}, before)


def test_settle_of_another_history_stops() -> None:
    """A worker stops before a settle record of another history, keeps its index, and stops there again."""
    history, reading = registered("w1", "w2")
    ready = reading.step(history.settle(FOREIGN), history.register("w4"))
    assert ready.stop is not None
    assert ready.stop.code is FatalCode.HISTORY_DIFFERS
    assert not ready.advanced
    again = reading.restarted().step(*rest(history, reading.state))
    assert str(again.stop) == str(ready.stop)


def test_settle_is_no_view_of_a_worker() -> None:
    """A settle record is no worker's view: it confirms nothing and raises no suspicion."""
    history, reading = registered("w1", "w2")
    agreed = reading.joiner.suspicions.agreed
    ready = reading.step(history.settle(reading.view))
    assert (ready.agreed, ready.evidence) == (agreed, None)


def test_names_of_the_records() -> None:
    """The writer of a record is the worker that registered its incarnation; that of a register record is the name in it, otherwise none."""
    history, reading = registered("w1", "w2")
    view = AHEAD
    writers = []
    for record in (
        Entry(2, 1, view, 0, 0, bytes(32), ()),
        Register(nonce("x"), view, 1, "w7", "0"),
        Fence(2, view, 9, 9),
        Checkpoint(8, view, 0, bytes(32)),
    ):
        ready = Reading(state=reading.state).step(Record(ORDERING, 3, 0, None, history.ordering(record).value))
        assert ready.evidence is not None
        writers.append(ready.evidence.writer)
    assert writers == ["w2", "w7", "w2", ""]
