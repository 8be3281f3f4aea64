"""The number of examples that property tests draw: the variable EXAMPLES scales it.

`make check` has 0.2, `make test` 0.5, and `make nightly` 10.
"""

import os

SCALE = float(os.environ.get("EXAMPLES", "1"))
EXAMPLES_MIN = 5


def some(examples: int) -> int:
    """Returns this number of examples, scaled."""
    return max(EXAMPLES_MIN, round(examples * SCALE))
