"""What a test may need of the machine that not everybody has."""

import os
import sys

import pytest

needs_root = pytest.mark.skipif(
    # Where everything is to be shown it fails instead: nothing is left out there without a word.
    not os.environ.get("CI") and (sys.platform != "linux" or os.geteuid() != 0),
    reason="makes network namespaces and mounts: run it as root, on Linux",
)
