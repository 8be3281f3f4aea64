"""What a process of this room ends with. Nothing is imported here, so that it can be said without Spark's packages too."""

from typing import Final

CLEAN: Final = 0
"""The log is as it should be, or it was archived or restored."""
VIOLATED: Final = 1
"""Violations were found."""
COULD_NOT: Final = 2
"""It could not be done, or nothing can be said; stderr says why."""
