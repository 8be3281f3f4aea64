"""This machine's clocks. The composition root passes them on; no code that decides reads them (R6)."""

import functools
import time
from collections.abc import Callable
from typing import Final


def clock_ms() -> int:
    """Returns the wall clock in milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux; elsewhere the nearest one
uptime_s: Final[Callable[[], float]] = functools.partial(time.clock_gettime, _SINCE_BOOT)
"""Returns the seconds since this machine started. It never runs backwards.

Unlike `time.monotonic`, it counts the time for which the machine was suspended. So a worker notices that it did not run (R10).
"""
