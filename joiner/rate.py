"""A worker's measured capacity: its rate of decisions while there is always more to decide."""

import math
from collections import deque
from typing import Final

WINDOW_S = 1.0
STALL_S = 3.0
"""A pause in answers of this length means that the log is unreachable; such a window is not measured."""
SHORT_S = 0.1
"""A burst that is decided in less time than this is too short to measure."""
UNKNOWN_WAIT_S = 2
WAIT_S_MAX = 60


class Rate:
    """The requests answered per second, over windows of a second in which demand was not the limit.

    While every request is decided at once, the answer rate equals the request rate and does not show the capacity. So a window counts only
    when the queue never ran empty in it, or a request was rejected for lack of capacity.
    """

    def __init__(self) -> None:
        self.per_s = 0.0
        """The last estimate of the capacity, 0 before the first: each new window counts half, the previous estimate half."""
        self._since_s = self._last_s = 0.0
        self._answered = 0
        self._ran_dry = self._rejected = False

    def begin(self, now_s: float) -> None:
        """Start a window: from now on there is something to decide."""
        self._since_s = self._last_s = now_s
        self._answered, self._ran_dry, self._rejected = 0, False, False

    def ran_dry(self) -> None:
        """Record that every waiting request is in flight: the next batch could have carried more."""
        self._ran_dry = True

    def rejected(self) -> None:
        """Record that a request was rejected for lack of capacity: demand exceeds capacity."""
        self._rejected = True

    def answered(self, requests: int, now_s: float) -> None:
        """Count the requests answered now."""
        if now_s - self._last_s >= STALL_S:
            self.begin(now_s)
            return
        self._answered += requests
        self._last_s = now_s
        if now_s - self._since_s >= WINDOW_S:
            self._learn(now_s)
            self.begin(now_s)

    def end(self, now_s: float) -> None:
        """End the window: nothing is left to decide."""
        if now_s - self._since_s >= SHORT_S:
            self._learn(now_s)

    def seconds_for(self, requests: int) -> int:
        """Returns the seconds, an integer, until that many requests are answered, 1 to 60; 2 while the capacity is unknown."""
        return min(WAIT_S_MAX, max(1, math.ceil(requests / self.per_s))) if self.per_s else UNKNOWN_WAIT_S

    def _learn(self, now_s: float) -> None:
        if self._rejected or not self._ran_dry:
            seen_per_s = self._answered / (now_s - self._since_s)
            self.per_s = (self.per_s + seen_per_s) / 2 if self.per_s else seen_per_s


class Pace:
    """The recent rate of answered requests, whether or not there was more to decide: the highest of the last windows."""

    WINDOW_S: Final = 0.25
    WINDOWS: Final = 8

    def __init__(self) -> None:
        self.per_s = 0.0
        """0 before the first window has ended."""
        self._since_s: float | None = None
        self._answered = 0
        self._windows: deque[float] = deque(maxlen=self.WINDOWS)

    def begin(self, now_s: float) -> None:
        """Start a window now, and discard the count so far."""
        self._since_s, self._answered = now_s, 0

    def answered(self, requests: int, now_s: float) -> None:
        """Count the requests answered now."""
        if self._since_s is None:
            self.begin(now_s)  # these were decided before the window began
            return
        self._answered += requests
        if (lasted_s := now_s - self._since_s) >= self.WINDOW_S:
            self._windows.append(self._answered / lasted_s)
            self.per_s = max(self._windows)
            self.begin(now_s)


class Shortest:
    """The shortest time that was measured in the last one or two windows."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._since_s = 0.0
        self._last_window = self._this_window = math.inf

    def measured(self, took_s: float, now_s: float) -> None:
        """Record a time that was measured now."""
        if now_s - self._since_s >= self._window_s:
            self._since_s, self._last_window, self._this_window = now_s, self._this_window, math.inf
        self._this_window = min(self._this_window, took_s)

    def value(self) -> float:
        """Returns the shortest time, in seconds; 0 before the first measurement."""
        shortest = min(self._last_window, self._this_window)
        return 0.0 if shortest == math.inf else shortest
