"""Tests the detection of stalled positions: only one with more to come can stall, from the check that saw it there first."""

import pytest

from joiner.stalled import StallDetector

BEHIND = ({0: 5}, {0: 6}, 100, {0: 0})
CHECKS = {
    "behind its end and not moved": [BEHIND, ({0: 5}, {0: 9}, 103, {0: 3})],
    "at its end in between": [BEHIND, ({0: 5}, {0: 5}, 101, {}), ({0: 5}, {0: 6}, 102, {0: 0})],
    "left out of a check in between": [BEHIND, ({0: 5}, {}, 101, {}), ({0: 5}, {0: 6}, 102, {0: 0})],
    "moved, however far behind": [({0: 5, 1: 5}, {0: 99, 1: 99}, 100, {0: 0, 1: 0}), ({0: 6, 1: 5}, {0: 99, 1: 99}, 104, {0: 0, 1: 4})],
}
"""Positions, ends, time, and the seconds for which each position is stalled."""


@pytest.mark.parametrize("checks", CHECKS.values(), ids=CHECKS)
def test_a_position_behind_its_end_stalls(checks: list[tuple[dict[int, int], dict[int, int], float, dict[int, float]]]) -> None:
    """A position behind its end that does not move is stalled since the check that saw it there first."""
    detector = StallDetector()
    assert [detector.update(positions, ends, at_s) for positions, ends, at_s, _ in checks] == [stalled for *_, stalled in checks]
