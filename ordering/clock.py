"""This machine's wall clock. The composition root passes it on; no code that decides reads it (R6)."""

import time


def clock_ms() -> int:
    """Returns the wall clock in milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000
