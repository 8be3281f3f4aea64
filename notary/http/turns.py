"""Work in pieces, spread over turns of the event loop. Between two turns the loop serves the log and all other calls."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from math import inf
from typing import Final, TypeAlias

from notary.duty_cycle import DutyCycle
from ordering.pieces import Pieces

TURN_US: Final = 2_000
"""The estimated time (`ordering.pieces.Pieces`) for answers to submissions in a turn of the loop."""
READ_TURN_US: Final = 400
"""The same for answers to reads, in an active slice."""
SHARE_US: Final = 500
"""The time after which another party or address has its turn."""
READS_BEGUN_MAX: Final = 32
"""The number of addresses whose reads are answered at one time. A read that has begun may use several MB: 10,000 conflicts."""
CALL_US: Final = 20
"""The time to write an answer."""
BEHIND_S: Final = 0.05
"""The queue of decided submissions is standing if it was never empty for this time (RFC 8289)."""


Work: TypeAlias = Pieces[int | None]
"""Work in pieces. It may return the estimated time of its last piece, in microseconds, instead of a pause after it."""


class _Ring:
    """Lanes of work, one for each party or address. Each lane in turn has a share of the time."""

    __slots__ = ("_begun", "_begun_max", "_lanes")

    def __init__(self, begun_max: float = inf) -> None:
        """With `begun_max`, each lane ends one work before the next, and while that many lanes have begun one, no other lane begins any:
        begun work uses memory. Without it, the works of a lane take turns.
        """
        self._begun_max = begun_max
        self._lanes: OrderedDict[tuple[str, bool], deque[Work]] = OrderedDict()
        self._begun: dict[tuple[str, bool], None] = {}
        """The lanes whose first work has begun, in the order of their turns; none without `begun_max`."""

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, name: tuple[str, bool], work: Work) -> None:
        """Append work to a lane."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = deque()
        lane.append(work)

    def do(self, budget_us: int) -> None:
        """Do work until its estimated time reaches `budget_us`, or no work is left."""
        spent_us = 0
        while self._lanes and spent_us < budget_us:
            name = next(iter(self._lanes if len(self._begun) < self._begun_max else self._begun))
            self._begun.pop(name, None)
            try:
                spent_us = self._do_lane(name, spent_us, spent_us + SHARE_US)
            finally:
                if self._lanes[name]:
                    self._lanes.move_to_end(name)
                else:
                    del self._lanes[name]

    def _do_lane(self, name: tuple[str, bool], spent_us: int, until_us: int) -> int:
        """Do work of a lane until its estimated time reaches `until_us`. Returns the estimated time; `spent_us` is spent already."""
        lane = self._lanes[name]
        while lane and spent_us < until_us:
            work = lane.popleft()
            try:
                while spent_us < until_us:
                    spent_us += next(work)
            except StopIteration as done:
                spent_us += CALL_US + (done.value or 0)
                continue
            if self._begun_max == inf:
                lane.append(work)
            else:
                lane.appendleft(work)
                self._begun[name] = None
        return spent_us


class Turns:
    """The answers of one application that are made in pieces, a share of a turn at a time.

    Answers to submissions are made in each turn, a party at a time. Answers to reads are made in active slices (`DutyCycle`), an address at
    a time. So a client that wants a thousand large answers at once delays only itself.
    """

    def __init__(self, may_read: Callable[[], bool], duty: DutyCycle) -> None:
        """`may_read` returns whether answers may be read from the index. One call a turn suffices: nothing else runs during a turn."""
        self._may_read = may_read
        self._duty = duty
        self._parties, self._addresses = _Ring(), _Ring(READS_BEGUN_MAX)
        self._is_scheduled = False
        self.is_suspended = False
        """True if serving is suspended in this turn: nothing may be read from the index."""

    def do(self, work: Work, *, party: str = "", network: str = "", counts: bool = False) -> None:
        """Do `work` from the next turn of the loop on, in the lane of a party, or else of a client's address.

        `counts`: the work is an answer that `AnswerBacklog` counts. These answers of a party have a lane of their own. Behind the party's
        repeated submissions, whose number has no limit, they would wait, and the gate would decode nothing meanwhile.
        `work` must not raise: its call would not be answered.
        """
        if party:
            self._parties.add((party, counts), work)
            self._schedule_parties()
        else:
            self._addresses.add((network, False), work)
            self._duty.call(self._do_addresses)

    def _schedule_parties(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._do_parties)

    def _do_parties(self) -> None:
        self._is_scheduled = False
        self._do(self._parties, TURN_US)

    def _do_addresses(self) -> None:
        self._do(self._addresses, READ_TURN_US)

    def _do(self, ring: _Ring, turn_us: int) -> None:
        self.is_suspended = not self._may_read()
        try:
            ring.do(turn_us)
        finally:  # a bug in one piece of work must not keep the rest from its turns
            if self._parties:
                self._schedule_parties()
            if self._addresses:
                self._duty.call(self._do_addresses)


class AnswerBacklog:
    """The decided submissions whose answers are not made yet.

    The event loop divides its time between deciding and answering. Without a bound, overload would make this queue as long as there are
    connections, and each client would wait for its answer although its submission is decided.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.caught_up: Callable[[], None] = lambda: None
        """Called when a standing queue has become empty. The application sets it."""
        self._clock_s = clock_s
        self._size = 0
        self._never_empty_since_s = 0.0

    def enter(self) -> None:
        """A submission is decided."""
        if not self._size:
            self._never_empty_since_s = self._clock_s()
        self._size += 1

    def leave(self) -> None:
        """The answer to a decided submission is made."""
        is_last = self._size == 1 and self.is_standing()
        self._size -= 1
        if is_last:
            self.caught_up()

    def is_standing(self) -> bool:
        """Returns True if the queue was never empty in the last `BEHIND_S`."""
        return self._size > 0 and self._clock_s() - self._never_empty_since_s > BEHIND_S
