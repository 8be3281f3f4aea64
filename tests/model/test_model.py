"""The model of salvage holds on random histories, and each broken rule is noticed (docs/salvage.md)."""

import pytest

from tests.model.__main__ import one
from tests.model.faults import FAULTS


@pytest.mark.parametrize("first", range(1, 301, 50))
def test_histories(first: int) -> None:
    """Fifty random histories of disasters and salvages keep every property."""
    assert [(seed, why) for seed in range(first, first + 50) if (why := one(seed)[0])] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str) -> None:
    """A rule that is broken is noticed at the seed that is kept with it."""
    assert one(FAULTS[fault].seed, frozenset([fault]))[0]
