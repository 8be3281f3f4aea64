"""Marks for tests with special requirements on the machine."""

import os
import sys

import pytest

needs_root = pytest.mark.skipif(
    # In CI such a test fails instead, so that nothing is skipped silently.
    not os.environ.get("CI") and (sys.platform != "linux" or os.geteuid() != 0),
    reason="makes network namespaces and mounts: run it as root, on Linux",
)
