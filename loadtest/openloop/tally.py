"""What became of a process's submissions: counts and times, in a form that travels, and that adds up. Pure.

Times are kept as counts by size, each size one percent above the one before: percentiles are that exact, and any number of processes and
any length of run fit in a message.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

_Key = TypeVar("_Key")
_STEP: Final = math.log(1.01)
FAILURES_TOLD: Final = 10


class Times(msgspec.Struct):
    """How long things took, in milliseconds."""

    counts: dict[int, int] = {}
    """By size: size n stands for 1.01 ** n milliseconds."""
    ms_max: float = 0.0

    def add(self, ms: float) -> None:
        """One more."""
        size = math.ceil(math.log(max(ms, 0.01)) / _STEP)
        self.counts[size] = self.counts.get(size, 0) + 1
        self.ms_max = max(self.ms_max, ms)

    def add_all(self, other: "Times") -> None:
        """All of another's."""
        for size, count in other.counts.items():
            self.counts[size] = self.counts.get(size, 0) + count
        self.ms_max = max(self.ms_max, other.ms_max)

    def percentile_ms(self, percent: float) -> float:
        """What so many percent took at most; 0 of none."""
        wanted, seen = sum(self.counts.values()) * percent / 100, 0
        for size in sorted(self.counts):
            seen += self.counts[size]
            if seen >= wanted:
                return min(1.01**size, self.ms_max)
        return 0.0


class StageTally(msgspec.Struct):
    """One stage's answered submissions."""

    submissions: int = 0
    latency: Times = msgspec.field(default_factory=Times)
    """From the intended start to the whole answer."""
    late: Times = msgspec.field(default_factory=Times)
    """From the intended start to the first byte out: what the load's own side took of that."""
    answered_last_s: float = 0.0
    """When the last answer came, from the start of the run."""


class Tally(msgspec.Struct):
    """One process's part, so far. A later one of the same process stands in its place; those of all processes add up."""

    stages: list[StageTally]
    sent: int = 0
    """Submissions that left at least once."""
    answered: int = 0
    """Submissions whose decisions are all here and as they must be."""
    answered_by_tenth: dict[int, int] = {}
    """The same, by the tenth of a second since the start of the run in which the whole answer was here."""
    failed: int = 0
    """Submissions that are not, or were never sent."""
    failures: list[str] = []
    """The first few of them, told."""
    retried: dict[str, int] = {}
    """Attempts that brought no whole answer, by what they brought: the same bytes were sent again."""
    counts: dict[str, int] = {}
    decided: int = 0
    violations: list[str] = []
    cpu_seconds: float = 0.0
    finished: bool = False
    """Whether every slot is accounted for, and the decisions were settled."""

    def answered_at(self, seconds: float) -> None:
        """Count an answer so long after the start."""
        tenth = int(seconds * 10)
        self.answered_by_tenth[tenth] = self.answered_by_tenth.get(tenth, 0) + 1

    def fail(self, text: str) -> None:
        """One submission more that failed."""
        self.failed += 1
        if len(self.failures) < FAILURES_TOLD:
            self.failures.append(text)

    def retry(self, why: str) -> None:
        """One attempt more that is made again."""
        self.retried[why] = self.retried.get(why, 0) + 1


def total(tallies: Sequence[Tally], stages: int) -> Tally:
    """All of them together."""
    whole = Tally([StageTally() for _ in range(stages)], finished=bool(tallies) and all(each.finished for each in tallies))
    for each in tallies:
        for mine, theirs in zip(whole.stages, each.stages, strict=True):
            mine.submissions += theirs.submissions
            mine.latency.add_all(theirs.latency)
            mine.late.add_all(theirs.late)
            mine.answered_last_s = max(mine.answered_last_s, theirs.answered_last_s)
        for name in ("sent", "answered", "failed", "decided", "cpu_seconds"):
            setattr(whole, name, getattr(whole, name) + getattr(each, name))
        _add(whole.retried, each.retried)
        _add(whole.counts, each.counts)
        _add(whole.answered_by_tenth, each.answered_by_tenth)
        whole.failures += each.failures[: FAILURES_TOLD - len(whole.failures)]
        whole.violations += each.violations
    return whole


def _add(into: dict[_Key, int], more: Mapping[_Key, int]) -> None:
    for what, count in more.items():
        into[what] = into.get(what, 0) + count
