"""The results of a process's submissions: counts and times, in a form that can be sent and added up. Pure.

Times are histograms whose buckets grow by one percent, which is the error of a percentile. Any number of processes and any length of run
fit in a message.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

_Key = TypeVar("_Key")
_STEP: Final = math.log(1.01)
FAILURES_TOLD: Final = 10


class Times(msgspec.Struct):
    """A histogram of durations, in milliseconds."""

    counts: dict[int, int] = {}
    """By bucket: bucket n stands for 1.01 ** n milliseconds."""
    ms_max: float = 0.0

    def add(self, ms: float) -> None:
        """Add one duration."""
        size = math.ceil(math.log(max(ms, 0.01)) / _STEP)
        self.counts[size] = self.counts.get(size, 0) + 1
        self.ms_max = max(self.ms_max, ms)

    def add_all(self, other: "Times") -> None:
        """Add all durations of another histogram."""
        for size, count in other.counts.items():
            self.counts[size] = self.counts.get(size, 0) + count
        self.ms_max = max(self.ms_max, other.ms_max)

    def percentile_ms(self, percent: float) -> float:
        """Returns the duration that `percent` percent did not exceed; 0 when there are none."""
        wanted, seen = sum(self.counts.values()) * percent / 100, 0
        for size in sorted(self.counts):
            seen += self.counts[size]
            if seen >= wanted:
                return min(1.01**size, self.ms_max)
        return 0.0


class StageTally(msgspec.Struct):
    """The answered submissions of one stage."""

    submissions: int = 0
    latency: Times = msgspec.field(default_factory=Times)
    """From the intended start to the complete answer."""
    late: Times = msgspec.field(default_factory=Times)
    """From the intended start to the first byte sent: the load's own share of the latency."""
    answered_last_s: float = 0.0
    """The time of the last answer, in seconds from the start of the run."""


class Tally(msgspec.Struct):
    """The results of one process so far. A later one of the same process replaces it; those of all processes add up."""

    stages: list[StageTally]
    sent: int = 0
    """Submissions that were sent at least once."""
    answered: int = 0
    """Submissions whose decisions all arrived and are correct."""
    answered_by_tenth: dict[int, int] = {}
    """The same, by the tenth of a second since the start of the run in which the answer was complete."""
    failed: int = 0
    """Submissions that were not answered correctly, or never sent."""
    failures: list[str] = []
    """Descriptions of the first few of them."""
    retried: dict[str, int] = {}
    """Attempts without a complete answer, by their result: the same bytes were sent again."""
    counts: dict[str, int] = {}
    decided: int = 0
    violations: list[str] = []
    cpu_seconds: float = 0.0
    finished: bool = False
    """True if every slot is accounted for, and the decisions were replayed."""

    def answered_at(self, seconds: float) -> None:
        """Count an answer `seconds` after the start."""
        tenth = int(seconds * 10)
        self.answered_by_tenth[tenth] = self.answered_by_tenth.get(tenth, 0) + 1

    def fail(self, text: str) -> None:
        """Count a failed submission."""
        self.failed += 1
        if len(self.failures) < FAILURES_TOLD:
            self.failures.append(text)

    def retry(self, why: str) -> None:
        """Count an attempt that will be repeated."""
        self.retried[why] = self.retried.get(why, 0) + 1


def total(tallies: Sequence[Tally], stages: int) -> Tally:
    """Returns the sum of all tallies."""
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
