"""The turns of the event loop in which unproven clients are served: while the worker has work, at most a third of the time.

A decision needs a dozen turns and more: it is read, decoded, appended, read back, applied and answered. If each of these turns also served
unproven clients up to a bound, the decision would wait for a dozen times this bound, however short it is. So all work for such clients is
done in the same turns, and the loop then rests from it for twice as long as that took. Meanwhile the turns are short, and decisions get on.
"""

import asyncio
from collections.abc import Callable
from typing import Final

REST: Final = 2
"""The length of a rest, in lengths of the on-turn before it."""
REST_S_MAX: Final = 0.02
"""The longest rest: a process that was stopped during a turn does not rest for as long."""


class DutyCycle:
    """The on-turns and rests of one event loop. Work that is bounded in itself asks `is_on`, or waits with `call`."""

    def __init__(self, clock_s: Callable[[], float], is_busy: Callable[[], bool] = lambda: False) -> None:
        """`clock_s` is a monotonic clock. `is_busy` returns True while other work is under way; without it there are no rests."""
        self._clock_s = clock_s
        self._is_busy = is_busy
        self._is_on = False
        self._began_s = self._rest_until_s = 0.0
        self._waiting: dict[Callable[[], None], None] = {}
        self._timer: asyncio.Handle | None = None

    def is_on(self) -> bool:
        """Returns True if work may be done in this turn of the loop."""
        if not self._is_on and (now_s := self._clock_s()) >= self._rest_until_s:
            self._begin(now_s)
        return self._is_on

    def call(self, work: Callable[[], None]) -> None:
        """Call `work` once in a later on-turn, however often it is given until then."""
        self._waiting[work] = None
        if self._timer is None:
            loop = asyncio.get_running_loop()
            rest_s = self._rest_until_s - self._clock_s()
            self._timer = loop.call_later(rest_s, self._go_on) if rest_s > 0 else loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Do in the next turn of the loop what waited for it."""
        self._timer = None
        waiting, self._waiting = self._waiting, {}
        if not self._is_on and self._clock_s() < self._rest_until_s:  # bytes that came began a turn before the timer did
            for work in waiting:
                self.call(work)
            return
        for work in waiting:
            asyncio.get_running_loop().call_soon(work)
        if not self._is_on:
            self._begin(self._clock_s())

    def _begin(self, now_s: float) -> None:
        self._is_on = True
        self._began_s = now_s
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self._is_on = False
        if self._is_busy():
            now_s = self._clock_s()
            self._rest_until_s = now_s + min(REST * (now_s - self._began_s), REST_S_MAX)
