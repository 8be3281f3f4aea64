"""Tests the ledger: the positions that all processes have received."""

import pytest

from loadtest.openloop.checker import HEARD, PAGE, Checker, Ledger
from tests.loadtest.openloop.honest import Honest, asked


def _heard(*records: tuple[int, int]) -> bytes:
    """Returns encoded (position, log time) pairs, of transactions that are named after their positions."""
    return b"".join([HEARD.pack(position, b"%8d" % position, log_time) for position, log_time in records])


def _violations(heard: bytes, *, first: int = 0, alone: bool = True) -> list[str]:
    ledger = Ledger(first)
    ledger.hear(heard)
    ledger.close(alone=alone)
    return ledger.violations


def test_what_checkers_hear_is_dense() -> None:
    """Two processes of one honest notary receive all positions from the first on, repeated answers included."""
    honest, ledger, checkers = Honest(17), Ledger(17), [Checker(receipts=False) for _ in range(2)]
    for pair in zip(asked(100), asked(100, seed="t"), strict=True):
        for checker, one in zip(checkers, pair, strict=True):
            checker.answered(one, honest.answer(one), -1)
    for checker in checkers:
        ledger.hear(checker.take_heard())
    ledger.close(alone=True)
    assert ledger.violations == []
    assert ledger.heard == honest.position_next - 17 == sum([checker.decided for checker in checkers])


@pytest.mark.parametrize("at", [0, 5, PAGE - 1, PAGE, 2 * PAGE])
def test_a_gap_is_found_anywhere(at: int) -> None:
    """A position that no process received is found anywhere; if other clients submit too, it may be theirs."""
    heard = _heard(*[(position, 1) for position in range(2 * PAGE + 9) if position != at])
    assert any("gaps" in text for text in _violations(heard))
    assert _violations(heard, alone=False) == []


def test_one_position_of_two_transactions() -> None:
    """Two processes that receive one position for different transactions are found."""
    heard = HEARD.pack(3, b"one     ", 1) + HEARD.pack(3, b"other   ", 1)
    assert any("position 3 was reported for" in text for text in _violations(heard, first=3))


def test_a_position_from_before_the_run() -> None:
    """A position from before the run means that its request was sent before: the message says that the seed was used already."""
    assert any("--seed" in text for text in _violations(_heard((4, 1), (5, 1)), first=5))


def test_log_time_that_falls() -> None:
    """Log times that fall as positions rise are found, in whatever order the processes received them."""
    assert any("log time falls" in text for text in _violations(_heard((2, 30), (0, 20), (1, 31))))
