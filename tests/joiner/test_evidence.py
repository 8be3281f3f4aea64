"""Tests of the core: foreign views, the suspicions (`suspicions`) that follow, and the records that end them (R10)."""

import pytest

from joiner import Ready, RootSeen
from joiner.evidence import EXAMINED_MAX, Evidence, Suspicions
from ordering.errors import FatalCode
from ordering.log import ORDERING, Record
from ordering.records import Checkpoint, Entry, Fence, Register, View
from tests.joiner.history import History, Reading, named, nonce, rest

FOREIGN = View(2, b"another history".ljust(32))
AHEAD = View(99, b"more than there is".ljust(32))


def _begun(*names: str, live: bool = False, reader: str = "reader") -> tuple[History, Reading]:
    history, reading = History(), Reading(name=reader)
    reading.step(history.genesis, *[history.register(name) for name in names or ("w1", "w2")])
    reading.joiner.suspicions.live = live
    return history, reading


def _kinds(ready: Ready) -> list[str]:
    return [anomaly.kind for anomaly in ready.anomalies]


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
    history, reading = _begun()
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
    assert _kinds(ready) == ["foreign-view"] + ["skipped"] * (kind == "checkpoint")
    assert reading.view.seen == 4 + (kind != "checkpoint")
    assert ready.roots_seen == []


def test_a_foreign_view_does_not_decide_whether_its_record_counts() -> None:
    """An entry counts whatever its writer's view was, once that view was examined."""
    history, reading = _begun()
    ready = _examined(reading, history.entry(1, 1, "a", view=FOREIGN), history.payload(1, 1, "a"))
    assert named(ready.batches) == [(1, 1, "1")]


def test_a_record_that_does_not_count_is_evidence_too() -> None:
    """The view of a signed record that is skipped, because it came late or twice, is examined all the same."""
    history, reading = _begun()
    ready = reading.step(history.entry(9, 1, "a", view=FOREIGN))
    assert ready.evidence == Evidence(3, FOREIGN, "", 3)


def test_an_unsigned_record_is_no_evidence() -> None:
    """A record by a writer without the key causes no comparison."""
    history, reading = _begun()
    value = history.entry(1, 1, "a", view=FOREIGN).value or b""
    del history.by_partition[ORDERING][-1]
    ready = reading.step(history.put(ORDERING, None, value[:-1] + bytes([value[-1] ^ 1])))
    assert ready.evidence is None
    assert _kinds(ready) == ["unsigned"]


def test_own_views_agree() -> None:
    """A view of the reader's own history is remembered as the last point of agreement."""
    history, reading = _begun()
    ready = reading.step(history.register("w3", view=reading.view))
    assert (ready.evidence, ready.agreed, reading.joiner.suspicions.agreed) == (None, 3, 3)
    assert reading.step(history.register("w4", view=history.view)).agreed == 3
    assert reading.restarted().joiner.suspicions.agreed == 3


def test_a_view_of_the_readers_own_name_proves_nothing() -> None:
    """A record of the reader's own name was written from the reader's own index: it is not the last place where somebody agreed."""
    history, reading = _begun("w1", "reader")
    agreed = reading.joiner.suspicions.agreed
    reading.step(history.payload(2, 1, "a"), history.entry(2, 1, "a", view=reading.view))
    assert reading.joiner.history.seen == 4
    assert reading.joiner.suspicions.agreed == agreed


def test_a_view_older_than_what_is_kept_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view older than the history that the reader keeps raises no suspicion and confirms nothing."""
    monkeypatch.setattr("joiner.history.HISTORY_KEPT", 2)
    history, reading = _begun("w1", "w2", "w3")
    agreed = reading.joiner.suspicions.agreed
    ready = reading.step(history.register("w4", view=FOREIGN))
    assert (ready.evidence, ready.agreed) == (None, agreed)
    assert len(ready.registered) == 1
    assert _kinds(ready) == []


def test_a_view_is_looked_into_once() -> None:
    """The same foreign view in a second record is not examined again; another one is."""
    history, reading = _begun()
    _examined(reading, history.register("w3", view=FOREIGN))
    ready = reading.step(history.register("w4", view=FOREIGN))
    assert ready.evidence is None
    assert len(ready.registered) == 1
    assert reading.step(history.register("w5", view=AHEAD)).evidence is not None


def test_views_that_were_looked_into_are_bounded() -> None:
    """The number of remembered views is bounded: a view that was dropped is examined again."""
    suspicions = Suspicions()
    for seen in range(EXAMINED_MAX + 1):
        suspicions.examined(View(seen, bytes(32)))
    assert suspicions.is_examined(View(EXAMINED_MAX, bytes(32)))
    assert not suspicions.is_examined(View(0, bytes(32)))


def test_one_notice_for_a_foreign_view_that_waits() -> None:
    """An entry with a foreign view that waits for its content is reported once, not at every step."""
    history, reading = _begun()
    assert _kinds(_examined(reading, history.entry(1, 1, "a", view=FOREIGN))) == ["foreign-view"]
    assert [anomaly for _ in range(5) for anomaly in reading.step().anomalies] == []
    assert named(reading.step(history.payload(1, 1, "a")).batches) == [(1, 1, "1")]


def test_only_a_checkpoint_of_the_readers_own_history_is_compared() -> None:
    """The root of a worker with another history, or with a view that is too old, is not compared with this reader's tree."""
    history, reading = _begun(live=True)
    own = reading.view
    ready = _examined(reading, history.checkpoint(1, 7, view=FOREIGN), history.checkpoint(1, 8, view=own))
    assert [seen.size for seen in ready.roots_seen if isinstance(seen, RootSeen)] == [8]
    assert _kinds(ready) == ["foreign-view", "skipped"]


# ---- suspicions ----


def test_a_worker_that_replays_suspects_itself() -> None:
    """A foreign view that the log does not confirm makes a reader that has not been ready yet suspect its log, and names the writer."""
    history, reading = _begun()
    _examined(reading, history.register("w3", view=FOREIGN))
    assert _open(reading) == {"w3"}
    assert "'w3' saw another history" in reading.joiner.suspicions.describe()


def test_who_is_live_is_not() -> None:
    """A reader that was ready, and whose history the log confirms, suspects nothing."""
    history, reading = _begun(live=True)
    ready = _examined(reading, history.register("w3", view=FOREIGN))
    assert (_open(reading), ready.suspicions, reading.joiner.suspicions.describe()) == (set(), {}, "")
    assert _kinds(ready) == ["foreign-view"]


def test_a_view_of_another_worker_from_behind_the_place_ends_a_suspicion() -> None:
    """A later view of another worker ends a suspicion if it is the reader's own history and covers the place in question."""
    history, reading = _begun()
    _examined(reading, history.register("w3", view=FOREIGN))
    before = View(3, reading.joiner.history.since(3)[0].history)
    reading.step(history.register("w4", view=before))
    assert _open(reading) == {"w3"}, "that view is from before the place"
    reading.step(history.register("w5", view=reading.view))
    assert _open(reading) == set()


def test_neither_the_writer_nor_the_reader_ends_a_suspicion() -> None:
    """Neither the worker that caused a suspicion nor a record of the reader's own name, perhaps of an earlier process, can end it."""
    history, reading = _begun("w1", "reader", reader="reader")
    _examined(reading, history.entry(1, 1, "a", view=FOREIGN), history.payload(1, 1, "a"))
    assert _open(reading) == {"w1"}
    reading.step(history.register("w1", view=reading.view), history.entry(2, 1, "b", view=reading.view), history.payload(2, 1, "b"))
    assert _open(reading) == {"w1"}
    reading.step(history.register("reader", view=reading.view))
    assert _open(reading) == {"w1"}
    reading.step(history.register("w9", view=reading.view))
    assert _open(reading) == set()


def test_two_suspicions_need_two_others() -> None:
    """Two workers that caused a suspicion each end the other's, not their own."""
    history, reading = _begun()
    _examined(reading, history.entry(1, 1, view=FOREIGN), history.payload(1, 1))
    _examined(reading, history.entry(2, 1, view=AHEAD), history.payload(2, 1))
    assert _open(reading) == {"w1", "w2"}
    reading.step(history.entry(1, 2, view=reading.view), history.payload(1, 2))
    assert _open(reading) == {"w1"}
    reading.step(history.entry(2, 2, view=reading.view), history.payload(2, 2))
    assert _open(reading) == set()


def test_a_later_suspicion_of_the_same_writer_moves_the_place() -> None:
    """A view ends a suspicion only if it covers the last place at which that writer raised it."""
    history, reading = _begun()
    _examined(reading, history.register("w3", view=FOREIGN))
    between = reading.view
    _examined(reading, history.entry(3, 1, view=AHEAD), history.payload(3, 1))
    reading.step(history.register("w4", view=between))
    assert _open(reading) == {"w3"}
    reading.step(history.register("w5", view=reading.view))
    assert _open(reading) == set()


def test_suspicions_survive_a_restart() -> None:
    """A suspicion survives a restart, and the same records end it."""
    history, reading = _begun()
    ready = _examined(reading, history.register("w3", view=FOREIGN))
    assert ready.suspicions == {"w3": 3}
    again = reading.restarted()
    again.step(*rest(history, again.state))
    assert _open(again) == {"w3"}
    again.step(history.register("w4", view=again.view))
    assert _open(again) == set()
    assert _open(again.restarted()) == set()


def test_the_end_of_a_suspicion_is_persisted_with_the_record_that_ended_it() -> None:
    """The step that processes the ending record returns the suspicions that are left."""
    history, reading = _begun()
    _examined(reading, history.register("w3", view=FOREIGN))
    ready = reading.step(history.checkpoint(1, 0, view=reading.view))
    assert ready.advanced
    assert ready.suspicions == {}


# ---- settle ----


def test_settle_ends_suspicions() -> None:
    """A settle record with the reader's own history ends all suspicions up to it, and enters the history itself."""
    history, reading = _begun()
    _examined(reading, history.register("w3", view=FOREIGN))
    settled = reading.view
    ready = reading.step(history.settle(settled))
    assert (_open(reading), ready.suspicions) == (set(), {})
    assert reading.view.seen == settled.seen + 1
    assert reading.joiner.log_state is not None
    assert reading.joiner.log_state.settled == settled.seen


def test_settle_of_an_earlier_place_leaves_later_suspicions() -> None:
    """Suspicions raised after the settled place stay."""
    history, reading = _begun()
    early = reading.view
    reading.step(history.register("w4"))
    _examined(reading, history.register("w3", view=FOREIGN))
    ready = reading.step(history.settle(early))
    assert _open(reading) == {"w3"}
    assert _kinds(ready) == []


def test_a_copy_of_a_settle_record_does_nothing() -> None:
    """A copy of a settle record, or one for an older place, has no effect: it does not end later suspicions."""
    history, reading = _begun()
    early = reading.view
    reading.step(history.register("w4"))
    settle = history.settle(reading.view)
    reading.step(settle)
    reading.joiner.suspicions.open = {"w3": 1}
    before = reading.view
    ready = reading.step(history.put(ORDERING, None, settle.value), history.settle(early))
    assert _kinds(ready) == ["skipped", "skipped"]
    assert (_open(reading), reading.view) == ({"w3"}, before)


def test_settle_of_another_history_stops() -> None:
    """A worker stops before a settle record of another history, keeps its index, and stops there again."""
    history, reading = _begun()
    ready = reading.step(history.settle(FOREIGN), history.register("w4"))
    assert ready.stop is not None
    assert ready.stop.code is FatalCode.HISTORY_DIFFERS
    assert not ready.advanced
    again = reading.restarted().step(*rest(history, reading.state))
    assert str(again.stop) == str(ready.stop)


def test_a_settle_record_of_another_history_that_was_settled_since() -> None:
    """A settle record of another history that is older than the last settled one stops no worker: it may be a copy of a lost record."""
    history, reading = _begun()
    reading.step(history.settle(reading.view))
    ready = reading.step(history.settle(FOREIGN))
    assert (ready.stop, _kinds(ready)) == (None, ["skipped"])


def test_settle_is_no_view_of_a_worker() -> None:
    """A settle record is no worker's view: it confirms nothing and raises no suspicion."""
    history, reading = _begun()
    agreed = reading.joiner.suspicions.agreed
    ready = reading.step(history.settle(reading.view))
    assert (ready.agreed, ready.evidence) == (agreed, None)


def test_names_of_the_records() -> None:
    """The writer of a record is the worker that registered its incarnation; that of a register record is the name in it, otherwise none."""
    history, reading = _begun()
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
