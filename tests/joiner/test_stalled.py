"""Tests the detection of stalled positions: only one with more to come can stall, from the check that saw it there first."""

from joiner.stalled import StallDetector


def test_behind_and_not_moved() -> None:
    """A position behind its end that does not move is stalled since the check that saw it there first."""
    detector = StallDetector()
    assert detector.update({0: 5}, {0: 6}, 100) == {0: 0}
    assert detector.update({0: 5}, {0: 9}, 103) == {0: 3}


def test_a_position_at_its_end_is_not_stalled() -> None:
    """A position at its end is not stalled, and its time starts anew when more comes."""
    detector = StallDetector()
    detector.update({0: 5}, {0: 6}, 100)
    assert detector.update({0: 5}, {0: 5}, 101) == {}
    assert detector.update({0: 5}, {0: 6}, 102) == {0: 0}


def test_a_position_that_moves_is_not_stalled() -> None:
    """A position that moves is not stalled, however far behind it is."""
    detector = StallDetector()
    detector.update({0: 5, 1: 5}, {0: 99, 1: 99}, 100)
    assert detector.update({0: 6, 1: 5}, {0: 99, 1: 99}, 104) == {0: 0, 1: 4}


def test_a_position_left_out_starts_anew() -> None:
    """The time of a position that was left out of a check starts anew."""
    detector = StallDetector()
    detector.update({0: 5}, {0: 6}, 100)
    assert detector.update({0: 5}, {}, 101) == {}
    assert detector.update({0: 5}, {0: 6}, 102) == {0: 0}
