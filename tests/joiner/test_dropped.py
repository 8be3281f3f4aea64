"""Tests the records that were dropped for lack of memory: their first offset, and the summary of their names."""

import pytest

from joiner.dropped import NAMES_MAX, Awaited, Dropped


@pytest.mark.parametrize("count", [1, NAMES_MAX, NAMES_MAX + 1, 5 * NAMES_MAX])
def test_no_dropped_name_is_missed(count: int) -> None:
    """Every name that was dropped is reported, also once there are too many to keep them all."""
    dropped = Dropped(7)
    for number in range(count):
        dropped.add(9, number, 1 << 60)
    assert all(dropped.may_have(number, 1 << 60) for number in range(count))
    assert dropped.offset == 7


@pytest.mark.parametrize("count", [NAMES_MAX, 5 * NAMES_MAX])
def test_other_names_are_rarely_reported(count: int) -> None:
    """A name that was not dropped is not reported, or rarely when there are many: each report costs a second reading."""
    dropped = Dropped(0)
    for number in range(count):
        dropped.add(9, number, 1)
    assert sum(dropped.may_have(number, 2) for number in range(10_000)) <= (0 if count == NAMES_MAX else 10)


@pytest.mark.parametrize("count", [3, NAMES_MAX + 1])
def test_a_snapshot_has_all_of_them(count: int) -> None:
    """A value restored from a snapshot equals the original, and later additions to one do not change the other."""
    dropped = Dropped(3)
    dropped.awaited = Awaited(1, 0, 1, 1, bytes(32))
    for number in range(count):
        dropped.add(9, number, 1)
    snapshot = dropped.snapshot()
    other = Dropped.restored(snapshot)
    assert other == dropped
    other.add(9, 1, 2)
    assert other != dropped
    assert dropped.snapshot() == snapshot
