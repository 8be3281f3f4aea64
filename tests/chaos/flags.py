"""What the flags say, and what a scenario writes down for people."""

import time
from dataclasses import dataclass, field

import pytest

SESSION_TIMEOUT_MS = 2_000
"""So long a broker may be silent before others lead its partitions."""
CALL_S_MAX = 4.0
"""A client gives a call up then, and asks elsewhere: a frozen worker says nothing. Workers are asked to answer within 2 s."""
LONG_S = 60
SEEN = pytest.StashKey[list[str]]()
"""A line for each scenario, shown at the end of the run."""


@dataclass(frozen=True)
class Violence:
    """What the flags say."""

    seconds: float
    seed: int
    delay_ms: float

    @property
    def long(self) -> bool:
        """Whether there is time for everything."""
        return self.seconds >= LONG_S

    @property
    def times(self) -> int:
        """How often the same thing is done again: once in a short run, three times in a long one."""
        return 3 if self.long else 1


@dataclass
class Timeline:
    """What was done, and when."""

    began_s: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)

    def __call__(self, what: str) -> None:
        self.lines.append(f"{time.monotonic() - self.began_s:7.2f} s  {what}")
