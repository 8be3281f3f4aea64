"""The values of the flags, and the notes of a scenario for its reader."""

import time
from dataclasses import dataclass, field

import pytest

SESSION_TIMEOUT_MS = 2_000
"""The time for which a broker may be silent before others lead its partitions."""
CALL_S_MAX = 4.0
"""The time after which a client cancels a call and tries another worker: a frozen worker never replies. Workers must answer within 2 s."""
LONG_S = 60
SEEN = pytest.StashKey[list[str]]()
"""A line for each scenario, printed at the end of the run."""


@dataclass(frozen=True)
class ChaosFlags:
    """The values of the flags."""

    seconds: float
    seed: int
    delay_ms: float

    @property
    def long(self) -> bool:
        """True if the run is long enough for all variants."""
        return self.seconds >= LONG_S

    @property
    def times(self) -> int:
        """The number of repetitions: one in a short run, three in a long one."""
        return 3 if self.long else 1


@dataclass
class Timeline:
    """The events of a scenario, with their times."""

    began_s: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)

    def __call__(self, what: str) -> None:
        self.lines.append(f"{time.monotonic() - self.began_s:7.2f} s  {what}")
