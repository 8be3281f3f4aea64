"""Tests that the reductions lose nothing: without them the search reaches the same states of the joiner and of the log."""

from functools import cache
from typing import Any

import pytest

from joiner import JoinerLimits
from tests.scopes.explore import Explored, Search
from tests.scopes.scope import Incarnation, Scope

pytestmark = pytest.mark.seconds

_TWO, _ONE = Incarnation("w1", (0, 1)), Incarnation("w2", (1,))
_SMALL = (
    Scope("lost", (_TWO,), lost=1, restarts=1),
    Scope("crash", (_TWO,), crashes=1, fills=1),
    Scope("crash and loss", (_TWO,), crashes=1, lost=1),
    Scope("two incarnations", (Incarnation("w1", (0,)), _ONE), repeats=1, lost=1),
    Scope("duplicate-name", (Incarnation("w1", (0,)), Incarnation("w1", (1,))), fills=1, restarts=1),
    Scope("fence", (Incarnation("w1", (0,)), _ONE), fences=1, crashes=1),
    Scope("short queue", (_TWO, _ONE), crashes=1, lost=1, limits=JoinerLimits(queue_ids_max=5, fence_bytes_min=0)),
    Scope("no stragglers", (_TWO, _ONE), crashes=1, lost=1, stragglers=False, limits=JoinerLimits(queue_ids_max=5, fence_bytes_min=0)),
    Scope("two readers", (Incarnation("w1", (0,)),), crashes=1, fills=1, readers=2),
)


@cache
def _reduced(scope: Scope) -> tuple[Search, Explored]:
    search = Search(scope)
    return search, search.run()


@pytest.mark.parametrize("scope", _SMALL, ids=lambda scope: scope.name)
@pytest.mark.parametrize("without", ["merge", "lazy", "late"])
def test_without_one_the_same_is_found(scope: Scope, without: str) -> None:
    """The search finds the same without one reduction: complete logs compared, records written before they are read, faults any time."""
    options: dict[str, Any] = {without: False}
    complete = Search(scope, **options)
    (reduced, few), many = _reduced(scope), complete.run()
    print(f"{scope.name}: {few.states:,} states, without {without}: {many.states:,}")
    assert not many.violation
    assert many.states >= few.states
    assert complete.joiners == reduced.joiners
    logs, fewer_logs = set(complete.rules.expectations.states), set(reduced.rules.expectations.states)
    if without == "lazy" and scope.limits != JoinerLimits():
        # Behind a paused topic-partition the log continues; here it is written although no reader reads it.
        assert fewer_logs <= logs
    else:
        assert fewer_logs == logs


def test_without_all_the_same_is_found() -> None:
    """Without all reductions together the search finds the same states of the joiner and of the log."""
    scope = Scope("all", (_TWO,), crashes=1, lost=1, fills=1)
    reduced, complete = Search(scope), Search(scope, merge=False, lazy=False, late=False)
    assert not reduced.run().violation
    assert not complete.run().violation
    assert complete.joiners == reduced.joiners
    assert set(complete.rules.expectations.states) == set(reduced.rules.expectations.states)
