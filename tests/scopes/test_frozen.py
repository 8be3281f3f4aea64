"""Tests that a joiner survives the conversion to a value and back: nothing is left out, nothing changes."""

import pytest

from joiner import Joiner, JoinerSnapshot
from tests.joiner.compared import restored
from tests.scopes import reading
from tests.scopes.explore import Search
from tests.scopes.frozen import NOW_MS, frozen
from tests.scopes.named import SCOPES


@pytest.mark.seconds
def test_no_attribute_is_left_out_in_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each state of a scope with little memory, a restored joiner has all attributes of the first one, and freezes to the same value."""
    compared = 0

    def and_compared(joiner: Joiner, now_ms: int, keep: bool) -> JoinerSnapshot:
        nonlocal compared
        compared += 1
        other = Joiner(limits=joiner.limits, worker_name="reader")
        assert restored(joiner, other) == []
        value = frozen(joiner, now_ms, keep)
        other.restore(value)
        assert frozen(other, NOW_MS, keep) == value
        assert other.snapshot() == value
        return value

    monkeypatch.setattr(reading, "frozen", and_compared)
    assert not Search(SCOPES["tight"]).run(2_000).violation
    assert compared > 100
