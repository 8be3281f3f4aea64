"""The scopes by name: one for each single fault, some that combine faults, and larger ones for a machine that has the time."""

from joiner import JoinerLimits
from tests.scopes.scope import Incarnation, Scope

_W1, _W2 = Incarnation("w1", (0, 1)), Incarnation("w2", (1, 0))
_ONE = Incarnation("w2", (1,))
# `combined` bounds two things so that it ends within minutes: how far ahead the ordering topic is read (by the joiner's own limit), and
# the sends of the crashed incarnation, none of which arrive after they were missed. Smaller scopes bound neither. `combined-ahead` bounds
# neither as well; it needs hours and tens of gigabytes, and no run of it has ended yet.
_A, _B = Incarnation("w1", (0, 1, 0)), Incarnation("w2", (1, 0, 1))

_SHORT_QUEUE = JoinerLimits(queue_ids_max=5, fence_bytes_min=0)  # the ordering topic is paused while an entry waits: it weighs 7

_TIGHT = JoinerLimits(buffer_bytes_max=1, queue_ids_max=7, step_requests_max=1)
_SHORT_TIMEOUT = JoinerLimits(worker_timeout_ms=15_000, fence_bytes_min=0)

SCOPES = {
    scope.name: scope
    for scope in (
        Scope("lost-send", (_W1, _W2), lost=1, restarts=1),
        Scope("lost-fill", (Incarnation("w1", (0,)), _ONE), lost=2, crashes=1, fills=1),
        Scope("repeat", (_W1, _ONE), repeats=1, restarts=1),
        Scope("crash-between-sends", (_W1, _W2), crashes=1, restarts=1),
        Scope("fill-race", (_W1, _ONE), fills=1, ticks=1, crashes=1),
        Scope("duplicate-name", (Incarnation("w1", (0, 1)), Incarnation("w1", (1,)), Incarnation("w2", (0,))), restarts=1),
        Scope("fence-race", (Incarnation("w1", (0,)), _ONE), fences=1, crashes=1, restarts=1, limits=_SHORT_TIMEOUT),
        Scope("tight", (_W1, _W2), lost=1, restarts=1, limits=_TIGHT),
        Scope("portions", (_W1, _ONE), lost=1, repeats=1, portion_max=2),
        Scope("two-readers", (Incarnation("w1", (0,)), _ONE), crashes=1, fills=1, readers=2),
        Scope("combined-pairs", (_W1, _W2), crashes=1, stragglers=False, lost=1, repeats=1, fills=1, limits=_SHORT_QUEUE),
        Scope("combined", (_A, _B), crashes=1, stragglers=False, lost=1, repeats=1, fills=1, limits=_SHORT_QUEUE),
        Scope("combined-restart", (_A, _B), crashes=1, restarts=1, lost=1, repeats=1, fills=1, limits=_SHORT_QUEUE, large=True),
        Scope("combined-ahead", (_A, _B), crashes=1, lost=1, repeats=1, fills=1, large=True),
        Scope(
            "three-workers", (_W1, _W2, Incarnation("w3", (0, 1))), crashes=1, lost=1, repeats=1, fills=1, limits=_SHORT_QUEUE, large=True
        ),
        Scope("two-faults", (_W1, _W2), crashes=2, lost=2, repeats=2, fills=2, restarts=2, large=True),
    )
}
