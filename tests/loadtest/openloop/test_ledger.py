"""Tests the ledger: the positions that all processes have received."""

import pytest

from loadtest.openloop.checker import PAGE, SEEN_POSITION, Checker, Ledger
from tests.loadtest.openloop.honest import Honest, asked


def _seen(*records: tuple[int, int]) -> bytes:
    """Returns encoded (position, log time) pairs, of transactions that are named after their positions."""
    return b"".join([SEEN_POSITION.pack(position, b"%8d" % position, log_time) for position, log_time in records])


def _violations(seen: bytes, *, first: int = 0, alone: bool = True) -> list[str]:
    ledger = Ledger(first)
    ledger.add(seen)
    ledger.close(alone=alone)
    return ledger.violations


def test_positions_of_all_checkers_are_dense() -> None:
    """Two processes of one honest notary receive all positions from the first on, repeated answers included."""
    honest, ledger, checkers = Honest(17), Ledger(17), [Checker(receipts=False) for _ in range(2)]
    for pair in zip(asked(100), asked(100, seed="t"), strict=True):
        for checker, one in zip(checkers, pair, strict=True):
            checker.answered(one, honest.answer(one), -1)
    for checker in checkers:
        ledger.add(checker.take_seen_positions())
    ledger.close(alone=True)
    assert ledger.violations == []
    assert ledger.positions_seen == honest.position_next - 17 == sum([checker.decided for checker in checkers])


@pytest.mark.parametrize("at", [0, 5, PAGE - 1, PAGE, 2 * PAGE])
def test_a_gap_is_found_anywhere(at: int) -> None:
    """A position that no process received is found anywhere; if other clients submit too, it may be theirs."""
    seen = _seen(*[(position, 1) for position in range(2 * PAGE + 9) if position != at])
    assert any("gaps" in text for text in _violations(seen))
    assert _violations(seen, alone=False) == []


@pytest.mark.parametrize(
    ("seen", "first", "why"),
    [
        (SEEN_POSITION.pack(3, b"one     ", 1) + SEEN_POSITION.pack(3, b"other   ", 1), 3, "position 3 was reported for"),
        (_seen((4, 1), (5, 1)), 5, "--seed"),
        (_seen((2, 30), (0, 20), (1, 31)), 0, "log time falls"),
    ],
    ids=["one position of two transactions", "a position from before the run: the seed was used already", "log time that falls"],
)
def test_contradicting_positions_are_found(seen: bytes, first: int, why: str) -> None:
    """Positions of all processes are compared, in whatever order the processes received them."""
    assert any(why in text for text in _violations(seen, first=first))
