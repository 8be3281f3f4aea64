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


def _flip(row: tuple[bytes, bytes], at: int) -> tuple[bytes, bytes]:
    key, value = row
    return key, value[:at] + bytes((value[at] ^ 1,)) + value[at + 1 :]


def another_log_time(rows: Changed) -> None:
    rows["decisions"][7] = _flip(rows["decisions"][7], 15)


def another_outcome(rows: Changed) -> None:
    rows["decisions"][7] = _flip(rows["decisions"][7], 16)


def a_lost_decision(rows: Changed) -> None:
    rows["decisions"].pop(3)


def a_conflict_with_another(rows: Changed) -> None:
    at = next(at for at, (_, value) in enumerate(rows["decisions"]) if len(value) > 17)
    rows["decisions"][at] = _flip(rows["decisions"][at], 17 + 36 + 1)


def half_a_conflict(rows: Changed) -> None:
    rows["decisions"][7] = (rows["decisions"][7][0], rows["decisions"][7][1] + bytes(30))


def an_outcome_that_is_none(rows: Changed) -> None:
    key, value = rows["decisions"][7]
    rows["decisions"][7] = (key, value[:16] + b"\x09" + value[17:])


def a_position_of_another(rows: Changed) -> None:
    rows["positions"][5] = (rows["positions"][5][0], rows["positions"][6][1])


def a_lost_position(rows: Changed) -> None:
    rows["positions"].pop()


def a_state_consumed_by_another(rows: Changed) -> None:
    rows["states"][5] = _flip(rows["states"][5], 0)


def a_state_consumed_elsewhere(rows: Changed) -> None:
    rows["states"][5] = _flip(rows["states"][5], 39)


def a_lost_state(rows: Changed) -> None:
    rows["states"].pop(5)


def a_state_that_nobody_consumed(rows: Changed) -> None:
    rows["states"].append((bytes(36), rows["states"][5][1]))


def a_short_state(rows: Changed) -> None:
    rows["states"].append((bytes(35), rows["states"][5][1]))


def an_altered_full_tile(rows: Changed) -> None:
    rows["tiles"][0] = _flip(rows["tiles"][0], 100)


def an_altered_upper_tile(rows: Changed) -> None:
    rows["tiles"][-1] = _flip(rows["tiles"][-1], 0)


def a_short_tile(rows: Changed) -> None:
    rows["tiles"][1] = (rows["tiles"][1][0], rows["tiles"][1][1][:-32])


def a_tile_too_many(rows: Changed) -> None:
    rows["tiles"].append((b"\x02" + bytes(8), bytes(32)))


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        (another_log_time, [Kind.WRONG_DECISION]),
        (another_outcome, [Kind.WRONG_DECISION]),
        (a_lost_decision, [Kind.WRONG_DECISION]),
        (a_conflict_with_another, [Kind.WRONG_DECISION]),
        (half_a_conflict, [Kind.UNREADABLE, Kind.WRONG_DECISION]),
        (an_outcome_that_is_none, [Kind.UNREADABLE, Kind.WRONG_DECISION]),
        (a_position_of_another, [Kind.WRONG_POSITION]),
        (a_lost_position, [Kind.WRONG_POSITION]),
        (a_state_consumed_by_another, [Kind.WRONG_STATE]),
        (a_state_consumed_elsewhere, [Kind.WRONG_STATE]),
        (a_lost_state, [Kind.WRONG_STATE]),
        (a_state_that_nobody_consumed, [Kind.WRONG_STATE]),
        (a_short_state, [Kind.UNREADABLE]),
        (an_altered_full_tile, [Kind.WRONG_TILE]),
        (an_altered_upper_tile, [Kind.WRONG_TILE]),
        (a_short_tile, [Kind.WRONG_TILE]),
        (a_tile_too_many, [Kind.WRONG_TILE]),
    ],
)
def test_an_altered_row_is_found_once(fault: Callable[[Changed], None], kinds: list[Kind], rows: Changed, replayed: Replayed) -> None:
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
