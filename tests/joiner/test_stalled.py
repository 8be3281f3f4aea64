"""Tests the detection of stalled positions: only one with more to come can stall, from the check that saw it there first."""

import pytest

from joiner.settings import DriverSettings
from joiner.stalled import StallDetector, Stalls
from ordering.log import ORDERING

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


SETTINGS = DriverSettings(unreachable_ms=3_000, stall_ms=10_000)


def test_a_stalled_reader_is_replaced_once_in_a_while() -> None:
    """Another reader must replace one that stalls for longer than `stall_s`, and the next one gets as long."""
    stalls = Stalls(SETTINGS, 0)
    replaced = [at_s for at_s in range(40) if stalls.update({1: 5}, {1: 6}, 0, None, at_s)]
    assert replaced == [11, 22, 33]


def test_a_stall_of_the_head_is_no_stall_of_the_reader() -> None:
    """A head that waits for a missing payload makes the worker not ready, and no other reader would help."""
    stalls = Stalls(SETTINGS, 0)
    assert not any(stalls.update({ORDERING: 9}, {}, 7, 9, at_s) for at_s in range(12))
    assert (stalls.head_s, stalls.longest_s) == (11, 0)
    assert "the head of the order has not moved for more than 10 s" in (stalls.not_ready() or "")
    stalls.update({ORDERING: 9}, {}, 9, 9, 12)
    assert (stalls.head_s, stalls.not_ready()) == (0, None)


def test_a_partition_that_returns_nothing_is_named() -> None:
    """A worker that cannot read a topic-partition for longer than `unreachable_s` names it."""
    stalls = Stalls(SETTINGS, 0)
    for at_s in (0, 3):
        stalls.update({1: 5, 2: 5}, {1: 5, 2: 6}, 0, None, at_s)
    assert (stalls.partitions_s, stalls.not_ready()) == ({2: 3}, None)
    stalls.update({1: 5, 2: 5}, {1: 5, 2: 6}, 0, None, 3.1)
    assert stalls.not_ready() == "payload partition 2 has records that could not be read for more than 3 s"
