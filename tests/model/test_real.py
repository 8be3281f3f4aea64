"""The real joiner and index decide the model's histories as the model does (R11)."""

import pytest

from tests.model.real import check_real

pytestmark = pytest.mark.seconds


def test_histories_that_broke_a_rule_hold() -> None:
    """Each of these histories has found a hole in the rules, and real readers decide it as the model does.

    8: a settle record of the lost history is behind the entry that is sealed. 362: a lost settle record comes back on the new side.
    31004137: a seal outlives a second loss, and a batch of the new side has the same number and the same payload.
    """
    for seed in (8, 362, 31004137):
        check_real(seed)


@pytest.mark.parametrize("first", [1, *[pytest.param(first, marks=pytest.mark.nightly) for first in (21, 41)]])
def test_real_readers_decide_as_the_model(first: int) -> None:
    """Real records of twenty random histories of disasters and salvages take effect and decide as in the model."""
    for seed in range(first, first + 20):
        check_real(seed)
