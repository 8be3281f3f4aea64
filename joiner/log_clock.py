"""Compares this worker's clock with the times in the log. It never changes a decision (R6)."""

from collections.abc import Callable

from joiner.ready import OrderedBatch
from joiner.settings import DriverSettings


class LogClock:
    """The log's clock beside this worker's, `clock_ms`: milliseconds since 1970."""

    def __init__(self, settings: DriverSettings, clock_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._clock_ms = clock_ms
        self.skew_ms = 0
        """The smallest possible lead of the log's clock over this worker's clock, from our last entry that was read back; negative: lag."""

    def suspicion(self, log_ms: int | None) -> str | None:
        """Returns the reason to admit nothing if this worker's clock is far from `log_ms`, the last time in the log; else None.

        `log_ms` is None while no record took effect. A wrong clock must not push log time forward for ever, or keep time windows open.
        """
        settings = self._settings
        if log_ms is None or settings.clock_accepted:
            return None
        ahead_ms = self._clock_ms() - log_ms
        if -settings.clock_behind_ms_max <= ahead_ms <= settings.clock_ahead_ms_max:
            return None
        return (
            f"this worker's clock is {abs(ahead_ms) / 1000:.0f} s {'ahead of' if ahead_ms > 0 else 'behind'} the last time in the log"
            f" ({log_ms} ms since 1970): one of them is wrong. Set the clock; if it is right, start with --accept-clock"
        )

    def check(self, own: OrderedBatch) -> bool:
        """Measure the skew by an entry of our own: it was appended after we sent it, and before now. Returns True if an alarm is due."""
        skew_ms = max(0, own.append_time_ms - self._clock_ms()) or min(0, own.append_time_ms - own.sent_at_ms)
        before_ms, self.skew_ms = self.skew_ms, skew_ms
        return abs(skew_ms) > self._settings.clock_alarm_ms >= abs(before_ms)
