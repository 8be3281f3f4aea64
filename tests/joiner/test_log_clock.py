"""Tests the comparison of a worker's clock with the times in the log (R6)."""

import pytest

from joiner.log_clock import LogClock
from joiner.ready import OrderedBatch
from joiner.settings import DriverSettings

NOW_MS = 1_800_000_000_000
BEHIND_MS = DriverSettings().clock_behind_ms_max
AHEAD_MS = DriverSettings().clock_ahead_ms_max
ALARM_MS = DriverSettings().clock_alarm_ms


@pytest.mark.parametrize(
    ("log_ms", "text"),
    [
        (None, None),
        (NOW_MS, None),
        (NOW_MS + BEHIND_MS, None),
        (NOW_MS + BEHIND_MS + 1, "clock is 600 s behind"),
        (NOW_MS - AHEAD_MS, None),
        (NOW_MS - AHEAD_MS - 1, "clock is 2678400 s ahead of"),
    ],
)
def test_a_clock_far_from_the_last_time_in_the_log(log_ms: int | None, text: str | None) -> None:
    """A clock at a limit is believed, and one beyond it is not, unless an operator has accepted it."""
    why = LogClock(DriverSettings(), lambda: NOW_MS).suspicion(log_ms)
    assert why is None if text is None else text in (why or "")
    assert LogClock(DriverSettings(clock_accepted=True), lambda: NOW_MS).suspicion(log_ms) is None


def _own(append_time_ms: int, sent_at_ms: int) -> OrderedBatch:
    return OrderedBatch(7, 1, 1, append_time_ms, False, (), append_time_ms, sent_at_ms)


@pytest.mark.parametrize(
    ("append_time_ms", "sent_at_ms", "skew_ms"),
    [
        (NOW_MS - 5, NOW_MS - 10, 0),  # between the two, so the clocks may agree
        (NOW_MS + 70_000, NOW_MS - 10, 70_000),
        (NOW_MS - 70_010, NOW_MS - 10, -70_000),
    ],
)
def test_the_skew_is_the_smallest_that_our_entry_allows(append_time_ms: int, sent_at_ms: int, skew_ms: int) -> None:
    """Our entry was appended after we sent it and before we read it; an append time outside of that shows a skew."""
    clock = LogClock(DriverSettings(), lambda: NOW_MS)
    clock.check(_own(append_time_ms, sent_at_ms))
    assert clock.skew_ms == skew_ms


def test_a_lasting_skew_is_an_alarm_once() -> None:
    """An alarm is due when the skew begins, and again only after the clocks have agreed."""
    clock = LogClock(DriverSettings(), lambda: NOW_MS)
    skews_ms = (ALARM_MS, ALARM_MS + 1, ALARM_MS + 2, 0, ALARM_MS + 3)
    assert [clock.check(_own(NOW_MS + skew_ms, NOW_MS)) for skew_ms in skews_ms] == [False, True, False, False, True]
