"""The model of salvage holds on random histories, and each broken rule is noticed (docs/salvage.md)."""

import pytest

from tests.model.__main__ import noticed, one
from tests.model.faults import FAULTS

pytestmark = pytest.mark.seconds


@pytest.mark.parametrize("first", [1, 51, *[pytest.param(first, marks=pytest.mark.nightly) for first in range(101, 301, 50)]])
def test_random_histories_keep_every_property(first: int) -> None:
    """Fifty random histories of disasters and salvages keep every property."""
    assert [(seed, why) for seed in range(first, first + 50) if (why := one(seed)[0])] == []


NOT_NOTICED = ("a key closes nothing", "any view", "items count at once", "keys are not compared")
"""No history of the first thousands needs these rules; tests/notary/salvage/test_choice.py and tests/scenarios/test_salvage.py do."""


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in NOT_NOTICED])
def test_a_broken_rule_is_noticed(fault: str) -> None:
    """A rule that is broken is noticed within the seeds that are kept with it."""
    assert noticed(fault, FAULTS[fault][1])[0]
