"""Tests that index rows that differ from the log are found, under the right kind."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ordering.log import Record
from ordering.records import batch_key
from tests.checkers import indexes
from tests.checkers.honest import Honest, busy
from tests.checkers.indexes import Rows
from tests.checkers.replay import Replayed, replay
from tests.checkers.violation import Kind

Changed = dict[str, list[tuple[bytes, bytes]]]
Fault = Callable[[Changed], object]


@pytest.fixture(scope="module")
def notary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Honest]:
    """One notary for all tests; no test changes it."""
    made = busy(tmp_path_factory.mktemp("indexes") / "index", spends=260)
    yield made
    made.index.close()


@pytest.fixture(scope="module")
def replayed(notary: Honest) -> Replayed:
    return replay(notary.log.by_partition)


@pytest.fixture
def rows(notary: Honest) -> Changed:
    """The rows of the index, which a test may change."""
    return {family: list(found) for family, found in notary.rows().items()}


def _alters(family: str, at: int, change: Callable[[bytes], bytes]) -> Fault:
    """Returns a fault that changes the value of a row."""

    def fault(rows: Changed) -> None:
        key, value = rows[family][at]
        rows[family][at] = key, change(value)

    return fault


def _flips(family: str, at: int, byte: int) -> Fault:
    return _alters(family, at, lambda value: value[:byte] + bytes((value[byte] ^ 1,)) + value[byte + 1 :])


def _conflict_with_another(rows: Changed) -> None:
    at = next(at for at, (_, value) in enumerate(rows["decisions"]) if len(value) > 17)
    _flips("decisions", at, 17 + 36 + 1)(rows)


def _position_of_another(rows: Changed) -> None:
    rows["positions"][5] = (rows["positions"][5][0], rows["positions"][6][1])


FAULTS: dict[str, tuple[Fault, list[Kind]]] = {
    "another log time": (_flips("decisions", 7, 15), [Kind.WRONG_DECISION]),
    "another outcome": (_flips("decisions", 7, 16), [Kind.WRONG_DECISION]),
    "a lost decision": (lambda rows: rows["decisions"].pop(3), [Kind.WRONG_DECISION]),
    "a conflict with another": (_conflict_with_another, [Kind.WRONG_DECISION]),
    "half a conflict": (_alters("decisions", 7, lambda value: value + bytes(30)), [Kind.UNREADABLE, Kind.WRONG_DECISION]),
    "no outcome": (_alters("decisions", 7, lambda value: value[:16] + b"\x09" + value[17:]), [Kind.UNREADABLE, Kind.WRONG_DECISION]),
    "a position of another": (_position_of_another, [Kind.WRONG_POSITION]),
    "a lost position": (lambda rows: rows["positions"].pop(), [Kind.WRONG_POSITION]),
    "a state consumed by another": (_flips("states", 5, 0), [Kind.WRONG_STATE]),
    "a state consumed elsewhere": (_flips("states", 5, 39), [Kind.WRONG_STATE]),
    "a lost state": (lambda rows: rows["states"].pop(5), [Kind.WRONG_STATE]),
    "a state that nobody consumed": (lambda rows: rows["states"].append((bytes(36), rows["states"][5][1])), [Kind.WRONG_STATE]),
    "a short state": (lambda rows: rows["states"].append((bytes(35), rows["states"][5][1])), [Kind.UNREADABLE]),
    "an altered full tile": (_flips("tiles", 0, 100), [Kind.WRONG_TILE]),
    "an altered upper tile": (_flips("tiles", -1, 0), [Kind.WRONG_TILE]),
    "a short tile": (_alters("tiles", 1, lambda value: value[:-32]), [Kind.WRONG_TILE]),
    "a tile too many": (lambda rows: rows["tiles"].append((b"\x02" + bytes(8), bytes(32))), [Kind.WRONG_TILE]),
}


@pytest.mark.parametrize(("fault", "kinds"), FAULTS.values(), ids=FAULTS)
def test_an_altered_row_is_found_once(fault: Fault, kinds: list[Kind], rows: Changed, replayed: Replayed) -> None:
    """Each altered row is found, once; against a sound index it is found too."""
    sound: Rows = {family: list(found) for family, found in rows.items()}
    fault(rows)
    found = indexes.violations(rows, replayed)
    assert [violation.kind for violation in found] == kinds
    assert indexes.all_violations({"index": rows}, replayed) == found
    named = indexes.all_violations({"w1": sound, "w2": rows, "w3": sound}, replayed)
    assert [violation.kind for violation in named] == kinds
    assert all(violation.place.startswith("w2, ") for violation in named)
    differ = indexes.differences({"w1": sound, "w2": rows, "w3": sound})
    assert {violation.kind for violation in differ} == {Kind.INDEXES_DIFFER}
    assert all("w2" in violation.place and "w3" not in violation.place for violation in differ)


@pytest.mark.parametrize("until", [0, 3, 12, 40])
def test_index_that_is_behind_is_sound(until: int, notary: Honest, replayed: Replayed, tmp_path: Path) -> None:
    """An index that is behind is compared with the log, and with others, up to its own size."""
    behind = Honest(tmp_path / "index", notary.log)
    behind.read(until)
    assert indexes.height(behind.rows()) < len(replayed.decisions)
    assert indexes.violations(behind.rows(), replayed) == []
    assert indexes.differences({"w1": behind.rows(), "w2": notary.rows()}) == []
    assert indexes.all_violations({"w1": behind.rows(), "w2": notary.rows()}, replayed) == []
    behind.index.close()


def test_index_of_a_log_that_was_cut_is_ahead(notary: Honest, rows: Changed) -> None:
    """Decisions that the log no longer gives are one violation."""
    cut = notary.log.by_partition | {2: notary.log.by_partition[2][:1]}
    replayed = replay(cut)
    assert replayed.ended_by == "hole"
    assert [violation.kind for violation in indexes.violations(rows, replayed)] == [Kind.AHEAD_OF_LOG]


def test_index_of_another_log_is_found(notary: Honest, tmp_path: Path) -> None:
    """The index of a log in which a fill came first, so that a batch decided nothing, differs from there on."""
    behind = Honest(tmp_path / "index", notary.log)
    behind.read(12)
    named = notary.log.by_partition[0][0].value
    assert named is not None
    fill = Record(0, 0, 0, batch_key(1, 1), notary.log.fill_value(1, 1, named))
    filled = notary.log.by_partition | {0: [fill, *notary.log.by_partition[0]]}
    kinds = {violation.kind for violation in indexes.violations(behind.rows(), replay(filled))}
    assert kinds == {Kind.WRONG_DECISION, Kind.WRONG_POSITION, Kind.WRONG_STATE, Kind.WRONG_TILE}
    behind.index.close()


def test_rows_are_read_as_the_contract_writes_decisions(rows: Changed, replayed: Replayed) -> None:
    """The decisions and consumed states that are read from the rows are those of the replay."""
    assert indexes.decisions_of(rows) == replayed.decisions
    assert indexes.consumed_of(rows) == replayed.consumed.keys()
