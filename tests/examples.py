"""The number of examples that property tests draw: the variable EXAMPLES scales it, 0.2 in `make check` and 10 in `make nightly`."""

import os

SCALE = float(os.environ.get("EXAMPLES", "1"))
EXAMPLES_MIN = 5


def some(examples: int) -> int:
    """Returns this number of examples, scaled."""
    return max(EXAMPLES_MIN, round(examples * SCALE))
