"""Tests of the machine's clocks."""

import subprocess
import sys
import time

import pytest

from ordering.clock import uptime_s
from tests.rights import needs_root

SUSPENDED_S = 3600.0


def test_uptime_advances_with_the_machine() -> None:
    """It advances as the monotonic clock does while the machine runs."""
    began_s, uptime_began_s = time.monotonic(), uptime_s()
    time.sleep(0.01)
    assert 0.01 <= uptime_s() - uptime_began_s <= time.monotonic() - began_s + 0.5


@needs_root
@pytest.mark.seconds
def test_uptime_counts_a_suspension() -> None:
    """The kernel shifts this clock when a machine was suspended. A time namespace shifts it for one process, as after an hour."""
    shifted = ["unshare", "--time", "--boottime", f"{SUSPENDED_S:g}", sys.executable, "-P", "-c"]
    asked = "from ordering.clock import uptime_s; print(uptime_s())"
    began_s = uptime_s()
    done = subprocess.run([*shifted, asked], capture_output=True, text=True, check=True, timeout=60)
    assert began_s + SUSPENDED_S <= float(done.stdout) <= uptime_s() + SUSPENDED_S
