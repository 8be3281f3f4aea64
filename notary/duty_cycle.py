"""The turns of the event loop in which unauthenticated clients are served: while the worker has work, at most a third of the time.

A client is authenticated if a new submission was admitted on its connection, or lately on any connection from its address. A decision needs
a dozen turns or more: its submission is read, decoded, appended, read back, applied and answered. If each turn also served unauthenticated
clients up to a time limit, the decision would wait for a dozen times this limit. So all work for these clients is done in the same turns,
the active slices. A pause follows, twice as long as the slice, in which the loop does no such work. Its turns are short, so that decisions
progress.
"""

import asyncio
from collections.abc import Callable
from typing import Final

PAUSE: Final = 2
"""The length of a pause, as a multiple of the active slice before it."""
PAUSE_S_MAX: Final = 0.02
"""The longest pause. If the process was suspended during an active slice, the pause after it is not longer."""


class DutyCycle:
    """The active slices and pauses of one event loop. Work with a time limit of its own checks `is_active`, or waits with `call`."""

    def __init__(self, clock_s: Callable[[], float], is_busy: Callable[[], bool] = lambda: False) -> None:
        """`clock_s` is a monotonic clock. `is_busy` returns True while other work is under way; without `is_busy` there are no pauses."""
        self._clock_s = clock_s
        self._is_busy = is_busy
        self._is_active = False
        self._began_s = self._pause_until_s = 0.0
        self._waiting: dict[Callable[[], None], None] = {}
        self._timer: asyncio.Handle | None = None

    def is_active(self) -> bool:
        """Returns True if work may be done in this turn of the loop."""
        if not self._is_active and (now_s := self._clock_s()) >= self._pause_until_s:
            self._begin(now_s)
        return self._is_active

    def call(self, work: Callable[[], None]) -> None:
        """Call `work` once in a later active slice, even if it is passed several times until then."""
        self._waiting[work] = None
        if self._timer is None:
            loop = asyncio.get_running_loop()
            pause_s = self._pause_until_s - self._clock_s()
            self._timer = loop.call_later(pause_s, self._go_on) if pause_s > 0 else loop.call_soon(self._go_on)

    def charge(self, seconds: float) -> None:
        """Count work that this active slice causes in later turns: the pause after it is longer."""
        self._began_s -= seconds

    def _go_on(self) -> None:
        """Begin an active slice, and schedule the waiting work in the next turn of the loop."""
        self._timer = None
        waiting, self._waiting = self._waiting, {}
        if not self._is_active and self._clock_s() < self._pause_until_s:  # received bytes began a slice before the timer did
            for work in waiting:
                self.call(work)
            return
        for work in waiting:
            asyncio.get_running_loop().call_soon(work)
        if not self._is_active:
            self._begin(self._clock_s())

    def _begin(self, now_s: float) -> None:
        self._is_active = True
        self._began_s = now_s
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self._is_active = False
        if self._is_busy():
            now_s = self._clock_s()
            self._pause_until_s = now_s + min(PAUSE * (now_s - self._began_s), PAUSE_S_MAX)
