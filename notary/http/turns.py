"""Work in pieces, spread over turns of the event loop. Between two turns the loop serves the log and all other calls."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from ordering.pieces import Pieces

TURN_US: Final = 400
"""The estimated time for answers in one turn of the loop (`ordering.pieces.Pieces`)."""
OWED_US_MAX: Final = 4_000
"""The time by which answers to reads exceeded their part of a turn is a debt, up to this: the next turns make none until it is paid off."""
SHARE_US: Final = 500
"""The time after which another party or address has its turn."""
PARTIES_PART: Final = 2 / 3
"""The part of a turn that is reserved for answers to submissions, while there are any."""
CALL_US: Final = 20
"""The time to write an answer."""


class _Ring:
    """Lanes of work, one for each party or address. Each lane in turn has a share of the time."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, deque[Pieces[None]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, lane: str, work: Pieces[None]) -> None:
        """Append work to a lane."""
        self._lanes.setdefault(lane, deque()).append(work)

    def do(self, spent_us: int, until_us: float) -> int:
        """Do work until `until_us` is reached or no work is left. Returns the time spent, with `spent_us` of earlier work."""
        while self._lanes and spent_us < until_us:
            lane, works = next(iter(self._lanes.items()))
            try:
                spent_us = self._do_share(works, spent_us, spent_us + SHARE_US)
            finally:
                if works:
                    self._lanes.move_to_end(lane)
                else:
                    del self._lanes[lane]
        return spent_us

    def _do_share(self, works: deque[Pieces[None]], spent_us: int, until_us: int) -> int:
        while works and spent_us < until_us:
            work = works.popleft()
            try:
                while spent_us < until_us:
                    spent_us += next(work)
                works.append(work)
            except StopIteration:
                spent_us += CALL_US
        return spent_us


class Turns:
    """The answers of one application that are made in pieces, a share of a turn at a time.

    Answers to submissions have a fixed part of each turn, and answers to reads have the rest. All parties have equal shares of the first
    part, all addresses of the second. So a client that wants a thousand large answers at once delays only itself.
    """

    def __init__(self, may_read: Callable[[], bool], clock_s: Callable[[], float]) -> None:
        """`may_read` returns whether answers may be read from the index. One call a turn suffices: nothing else runs during a turn.

        `clock_s` is a monotonic clock.
        """
        self._may_read = may_read
        self._clock_s = clock_s
        self._parties, self._addresses = _Ring(), _Ring()
        self._comes = False
        self._owed_us = 0.0
        self.silent = False
        """True if nothing may be read from the index in this turn."""

    def do(self, work: Pieces[None], *, party: str = "", network: str = "") -> None:
        """Do `work` from the next turn of the loop on, in the lane of a party, or else of a client's address.

        `work` must not raise: its call would not be answered.
        """
        if party:
            self._parties.add(party, work)
        else:
            self._addresses.add(network, work)
        self._come()

    def _come(self) -> None:
        if not self._comes and (self._parties or self._addresses):
            self._comes = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._comes = False
        self.silent = not self._may_read()
        try:
            spent_us = self._parties.do(0, TURN_US * PARTIES_PART)
            spent_us = self._do_reads(spent_us)
            self._parties.do(spent_us, TURN_US)
        finally:  # a bug in one piece of work must not keep the rest from its turns
            self._come()

    def _do_reads(self, spent_us: int) -> int:
        """Do work of addresses, unless they owe time. Only they pay: their large pieces must not delay the answers to submissions."""
        part_us = max(TURN_US - spent_us, TURN_US * (1 - PARTIES_PART))
        if self._owed_us >= part_us:
            self._owed_us -= part_us
            return spent_us
        began_s = self._clock_s()
        try:
            return self._addresses.do(spent_us, spent_us + part_us)
        finally:
            owed_us = self._owed_us + (self._clock_s() - began_s) * 1e6 - part_us
            self._owed_us = min(max(0.0, owed_us), OWED_US_MAX)
