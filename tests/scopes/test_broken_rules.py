"""Tests that the scopes can fail: for each broken rule one scope finds it."""

from collections.abc import Callable

import pytest

from joiner import Joiner
from tests.scopes.__main__ import violation_text
from tests.scopes.broken import BROKEN
from tests.scopes.explore import Search
from tests.scopes.named import SCOPES

pytestmark = pytest.mark.seconds


@pytest.mark.parametrize(("what", "make", "scope", "says"), BROKEN, ids=[broken[0] for broken in BROKEN])
def test_a_broken_rule_is_found(
    what: str, make: Callable[..., Joiner], scope: str, says: str, record_property: Callable[[str, object], None]
) -> None:
    """A joiner that breaks the rule is found, with the moves that lead there."""
    found = Search(SCOPES[scope], make).run()
    record_property("states", found.states)
    print(f"{what}: found after {found.states:,} states\n{violation_text(found)}")
    assert found.violation, f"{found.states:,} states visited, and nothing found"
    assert says in found.violation
    assert found.trace


def test_a_joiner_that_raises_is_a_violation() -> None:
    """An exception from the joiner is reported with its trace, like any other violation."""

    class Raises(Joiner):
        def _apply(self, *args: object, **how: object) -> None:
            assert not self._queue, "anything"

    found = Search(SCOPES["repeat"], Raises).run()
    assert "AssertionError" in found.violation
    assert found.trace == ("reader 1 reads the ordering topic 0: register of incarnation 1",)
