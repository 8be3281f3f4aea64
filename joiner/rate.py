"""How fast a worker's submissions are decided when there is always one more: its capacity, as far as it has shown it."""

import math

WINDOW_S = 1.0
STALL_S = 3.0
"""While nothing is answered for so long the log is away: that says nothing of how fast it is."""
SHORT_S = 0.1
"""What is emptied in less than this says little."""
UNKNOWN_WAIT_S = 2
WAIT_S_MAX = 60


class Rate:
    """Requests answered a second, over windows of a second in which demand did not limit it.

    While what is asked is decided at once, requests answered a second are requests asked a second, and say nothing of how many could be.
    So a window counts only when the queue never ran dry in it, or somebody was refused.
    """

    def __init__(self) -> None:
        self.per_s = 0.0
        """The capacity last shown; 0 before the first time. Half of each new window, half of what was known."""
        self._since_s = self._last_s = 0.0
        self._answered = 0
        self._ran_dry = self._refused = False

    def begin(self, now_s: float) -> None:
        """From now on there is something to decide."""
        self._since_s = self._last_s = now_s
        self._answered, self._ran_dry, self._refused = 0, False, False

    def ran_dry(self) -> None:
        """Everything that waited is on its way: more could have been taken along."""
        self._ran_dry = True

    def refused(self) -> None:
        """Somebody was told to come later: there is more to decide than is decided."""
        self._refused = True

    def answered(self, requests: int, now_s: float) -> None:
        """So many were answered now."""
        if now_s - self._last_s >= STALL_S:
            self.begin(now_s)
            return
        self._answered += requests
        self._last_s = now_s
        if now_s - self._since_s >= WINDOW_S:
            self._learn(now_s)
            self.begin(now_s)

    def end(self, now_s: float) -> None:
        """Nothing is left to decide."""
        if now_s - self._since_s >= SHORT_S:
            self._learn(now_s)

    def seconds_for(self, requests: int) -> int:
        """Whole seconds until that many are answered, 1 to 60; 2 where nothing is known."""
        return min(WAIT_S_MAX, max(1, math.ceil(requests / self.per_s))) if self.per_s else UNKNOWN_WAIT_S

    def _learn(self, now_s: float) -> None:
        if self._refused or not self._ran_dry:
            seen_per_s = self._answered / (now_s - self._since_s)
            self.per_s = (self.per_s + seen_per_s) / 2 if self.per_s else seen_per_s
