"""Every interleaving of small scopes, on the real joiner (R2 to R5, R8).

For each named scope (`named`), the search visits **every** order in which its records can enter the log, with its faults at every moment,
and **every** order in which its readers can read that log, crash and resume. In each state it checks:
- a reader has emitted what follows from the complete log (`tests.checkers.replay`), in that order, each batch once, and after
  it has read everything it has emitted everything: so two readers never disagree, and a restart neither loses nor repeats a batch;
- it knows the incarnations that the log registers, at that log time, and buffers nothing that can never count;
- it has not paused the partition from which the hole at its head must be filled, nor the ordering topic while it waits for nothing;
- when nothing more need come, it proposes to fill its hole, and to fence silent incarnations whose orphans it buffers; in the end nothing
  waits.

The search is breadth first, so that a trace is as short as any. States are compared completely, never by a digest. These reductions make it
end soon, and lose nothing:

- *A state leaves out what cannot matter any more* (`frozen`, `expected`): states are equal if the joiners, the result of the log, the rest
  of the log that a reader may still read, and the sends in flight are equal. Records that were applied and are not read again are dropped.
- *Readers are compared with the log, not with each other*: two that agree with it agree. `two-readers` compares them all the same.
- *lazy: a record is written when the first reader gets to it.* No reader could notice an earlier write: fills and fences by a peer are
  moves of their own, possible at any place of a topic-partition.
- *late: a send is lost, or an incarnation crashes, when nothing else explains why a record does not come*, or when a later send comes. Both
  show only in records that never come.
- *A state is not visited again with fewer faults left*: faults need not happen, so it can do nothing that it could not before.
- *A step that crashes before it is persisted is no move*: nothing of it remains, so it equals the crash before its records were passed in.
- *Each step of a joiner is computed once* (`reading`): it is pure. Clocks and offsets are relative: see `frozen`.

`test_reductions` turns the first, `lazy` and `late` off in small scopes, and reaches the same states of the joiner and of the log.

Three equivalences are not assumed, because the search must find them: reading one topic-partition commutes with reading another, one step
with many records equals as many steps, and a restart leads to the same state as no restart.

    python -m tests.scopes --scope NAME      runs one again; a violation is found at the same state with the same trace
"""

import time
from array import array
from collections import deque
from collections.abc import Callable

import msgspec

from joiner import JoinerSnapshot
from tests.scopes.rules import Broken, Key, Rules
from tests.scopes.scope import Scope
from tests.scopes.state import Left, rendered

PROGRESS_STATES = 1_000


class Explored(msgspec.Struct, frozen=True):
    """The result of a search; `violation` is empty if everything holds, `complete` is true if the search was complete."""

    scope: str
    states: int
    transitions: int
    ends: int  # terminal states: nothing more must come, and no reader proposes anything
    joiner_states: int
    joiner_steps: int
    seconds: float  # CPU time of this process
    complete: bool
    violation: str = ""
    trace: tuple[str, ...] = ()


class Search:
    """The search of one scope. `merge`, `lazy` and `late` turn reductions off, for the test that shows them to be harmless."""

    def __init__(self, scope: Scope, *, merge: bool = True, lazy: bool = True, late: bool = True) -> None:
        self._scope = scope
        self._merge = merge
        self.rules = Rules(scope, merge=merge, lazy=lazy, late=late)
        self._visited: dict[bytes, list[tuple[Left, int]]] = {}
        # By visited state, in the order of the visits: its predecessor, and the index of the move that led to it.
        self._before, self._by = array("q", [0]), array("H", [0])

    @property
    def joiners(self) -> frozenset[JoinerSnapshot]:
        """The joiner states that the search has reached."""
        return self.rules.readings.joiners

    def run(self, states_max: int | None = None, progress: Callable[[int, float], None] = lambda states, seconds: None) -> Explored:
        """Visit all states, or `states_max` of them, or all up to the first violation."""
        began_s = time.process_time()
        first = self.rules.first()
        self._is_new(self.rules.key(first))
        frontier = deque([first])
        at = transitions = ends = 0
        violation = ""
        trace: tuple[str, ...] = ()
        complete = True
        while frontier and complete:
            state = frontier.popleft()
            try:
                following, ended = self.rules.after(state)
            except Broken as problem:
                violation, trace = str(problem), self._trace(at, problem)
                break
            ends += ended
            transitions += len(following)
            for by, (_, later) in enumerate(following):
                if self._is_new(self.rules.key(later)):
                    self._before.append(at)
                    self._by.append(by)
                    frontier.append(later)
            at += 1
            if at % PROGRESS_STATES == 0:
                progress(len(self._before), time.process_time() - began_s)
            complete = states_max is None or len(self._before) < states_max or not frontier
        return Explored(
            self._scope.name,
            len(self._before),
            transitions,
            ends,
            len(self.joiners),
            self.rules.readings.steps,
            time.process_time() - began_s,
            complete and not violation,
            violation,
            trace,
        )

    def _is_new(self, key: Key) -> bool:
        """Returns whether no equal state was visited with at least as many faults left."""
        core, left, written = key
        others = self._visited.setdefault(core, [])
        for more, more_written in others:
            if (left, written) == (more, more_written):
                return False
            if self._merge and left.within(more) and not written & ~more_written:
                return False
        others.append((left, written))
        return True

    def _trace(self, at: int, problem: Broken) -> tuple[str, ...]:
        """Returns the moves from the first state to this one, found by making them again."""
        states = [at]
        while states[-1]:
            states.append(self._before[states[-1]])
        state = self.rules.first()
        texts = []
        for number in reversed(states[:-1]):
            following, _ = self.rules.after(state)
            move, later = following[self._by[number]]
            texts.append(rendered(self._scope, state, move))
            state = later
        if problem.move is not None:
            texts.append(rendered(self._scope, state, problem.move))
        return tuple(texts)
