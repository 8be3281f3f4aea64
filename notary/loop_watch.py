"""The longest recent turn of the event loop, measured by a timer: the timer's delay is the time for which everything else had to wait.

A timer every 50 ms takes about 1/400 of a core, on uvloop and asyncio alike, and less if the loop is busy anyway. A turn shorter than 50 ms
may be missed, and a longer one is reported up to 50 ms too short.
"""

import asyncio
from typing import Final

CHECK_S: Final = 0.05
WINDOW_CHECKS: Final = 600  # 30 s, and more where looks are late


class LoopWatch:
    """Measures one event loop, from `start` on until the loop ends."""

    def __init__(self) -> None:
        self._former_s = self._present_s = self._due_s = 0.0
        self._checks = 0

    @property
    def longest_s(self) -> float:
        """The longest turn of the last 30 to 60 s, in seconds. A read does not reset it, so several monitors may read it."""
        return max(self._former_s, self._present_s)

    def start(self) -> None:
        """Begin to measure the running loop."""
        self._wait(asyncio.get_running_loop())

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = loop.time() + CHECK_S
        loop.call_at(self._due_s, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._present_s = max(self._present_s, loop.time() - self._due_s)
        self._checks += 1
        if self._checks == WINDOW_CHECKS:
            self._former_s, self._present_s, self._checks = self._present_s, 0.0, 0
        self._wait(loop)
