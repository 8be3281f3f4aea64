"""Every interleaving of small scopes, on the real joiner (R2 to R5, R8).

The room promises: for each named scope (`named`), **every** order in which its records can come into the log, with its faults at every
moment, and **every** order in which its readers can read that log, crash and go on, is visited, and in each state reached
- a reader has emitted what the complete log says (`tests.properties.reference.joined`), in that order, each batch once, and having
  read everything it has emitted everything: so two readers never disagree, and a restart neither loses nor repeats;
- it knows the lives that the log says, at that log time, and buffers nothing that can never count;
- it has not paused the partition that the hole at its head is to be filled from, nor the ordering stream while it waits for nothing;
- when nothing more need come, it proposes to fill its hole and to fence silent lives whose orphans it holds; in the end nothing is left.

The search is breadth first, so that a trace is as short as any. States are compared whole, never by a digest. What makes it end soon,
and why nothing is lost by it:

- *What cannot matter any more is not part of a state* (`frozen`, `expected`): worlds are one in which the joiners, what the log says,
  the rest of the log that a reader may yet read, and what is under way are the same. What is judged and not read again is forgotten.
- *Readers are held against the log, not against each other*: two that agree with it agree. `two-readers` looks all the same.
- *lazy: a record is written when the first reader gets to it.* Writing it earlier would show to nobody: who fills and fences is a move
  of its own, possible at any place of a stream.
- *late: a send is lost, or a life crashes, when nothing else explains what does not come*, or when what was sent after it comes. Both
  show only in what never comes.
- *A state is not visited again with fewer faults left*: faults need not happen, so it can do nothing that it could not before.
- *A step that crashes before it is persisted is no move*: nothing of it is left, so it is the crash before its records were handed in.
- *Each step of a joiner is computed once* (`reading`): it is pure. Clocks and offsets are relative: see `frozen`.

`test_reductions` turns the first, `lazy` and `late` off in small scopes, and comes to the same states of the joiner and of the log.

Not reduced, on purpose: that reading one stream commutes with reading another, that one step with many records is as many steps, and that
a restart comes to the same state as no restart, is what the search finds out.

    python -m tests.scopes --scope NAME      runs one again; a violation is found at the same state with the same trace
"""

import time
from array import array
from collections import deque
from collections.abc import Callable

import msgspec

from joiner import Joiner
from tests.scopes.frozen import Frozen
from tests.scopes.reading import JoinerMaker
from tests.scopes.rules import Broken, Key, Rules
from tests.scopes.scope import Scope
from tests.scopes.world import Left, told

PROGRESS_STATES = 1_000


class Explored(msgspec.Struct, frozen=True):
    """What a search found; `violation` is empty when all holds, `whole` says that no state was left out."""

    scope: str
    states: int
    transitions: int
    ends: int  # terminal states: nothing more must come, and nobody proposes anything
    joiner_states: int
    joiner_steps: int
    seconds: float  # of this process
    whole: bool
    violation: str = ""
    trace: tuple[str, ...] = ()


class Search:
    """The search of one scope. `merge`, `lazy` and `late` turn reductions off, for the test that holds them to be harmless."""

    def __init__(self, scope: Scope, make: JoinerMaker = Joiner, *, merge: bool = True, lazy: bool = True, late: bool = True) -> None:
        self._scope = scope
        self._merge = merge
        self.rules = Rules(scope, make, merge=merge, lazy=lazy, late=late)
        self._visited: dict[bytes, list[tuple[Left, int]]] = {}
        # Per state visited, in the order of the visits: the state that led to it, and by which of its moves.
        self._before, self._by = array("q", [0]), array("H", [0])

    @property
    def joiners(self) -> frozenset[Frozen]:
        """The states of the joiner that were met."""
        return self.rules.readings.joiners

    def run(self, states_max: int | None = None, progress: Callable[[int, float], None] = lambda states, seconds: None) -> Explored:
        """Visit all states, or `states_max` of them, or all up to the first violation."""
        began_s = time.process_time()
        first = self.rules.first()
        self._is_new(self.rules.key(first))
        frontier = deque([first])
        at = transitions = ends = 0
        violation, trace = "", ()
        whole = True
        while frontier and whole:
            world = frontier.popleft()
            try:
                following, ended = self.rules.after(world)
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
            whole = states_max is None or len(self._before) < states_max or not frontier
        return Explored(
            self._scope.name,
            len(self._before),
            transitions,
            ends,
            len(self.joiners),
            self.rules.readings.steps,
            time.process_time() - began_s,
            whole and not violation,
            violation,
            trace,
        )

    def _is_new(self, key: Key) -> bool:
        """Whether no world was visited that is the same and may do as much."""
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
        """The moves from the beginning, told by going them once more."""
        states = [at]
        while states[-1]:
            states.append(self._before[states[-1]])
        world = self.rules.first()
        texts = []
        for state in reversed(states[:-1]):
            following, _ = self.rules.after(world)
            move, later = following[self._by[state]]
            texts.append(told(self._scope, world, move))
            world = later
        if problem.move is not None:
            texts.append(told(self._scope, world, problem.move))
        return tuple(texts)
