"""The results of a run: counts and times of each process, their sum, and the figure or the reasons why there is none. Pure.

Times are HdrHistograms, so that any number of processes and any length of run fit in a message. A run that was interrupted, had a failure
or showed a violation has no figure, only reasons.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, get_args

import msgspec

from loadtest.openloop.checker import Ledger, Reason
from loadtest.openloop.plan import LoadPlan
from loadtest.rig.latencies import Latencies

_Key = TypeVar("_Key")
FAILURES_LISTED: Final = 10
CORES_MAX: Final = 0.9
LAG_MS_MAX: Final = 10.0
"""A load whose process uses more, or wakes up later (p99), measures its own delays too."""


class StageTally(msgspec.Struct):
    """The answered submissions of one stage."""

    submissions: int = 0
    latency: Latencies = msgspec.field(default_factory=Latencies)
    """From the intended start to the complete answer."""
    late: Latencies = msgspec.field(default_factory=Latencies)
    """From the intended start to the first byte sent: the wait for a free user, and the load's own delay (`Tally.lag`)."""
    answered_last_s: float = 0.0
    """The time of the last answer, in seconds from the start of the run."""


class Tally(msgspec.Struct):
    """The results of one process so far. A later one of the same process replaces it; those of all processes add up."""

    stages: list[StageTally]
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
    cores: float = 0.0
    """The mean cores that the process used while it sent; of several processes, those of the busiest."""
    lag: Latencies = msgspec.field(default_factory=Latencies)
    """From the intended start to the wake-up of a user that was free: the load's own delay."""
    finished: bool = False
    """True if every arrival is accounted for, and the decisions were replayed."""

    def answered_at(self, seconds: float) -> None:
        """Count an answer `seconds` after the start."""
        tenth = int(seconds * 10)
        self.answered_by_tenth[tenth] = self.answered_by_tenth.get(tenth, 0) + 1

    def fail(self, text: str) -> None:
        """Count a failed submission."""
        self.failed += 1
        if len(self.failures) < FAILURES_LISTED:
            self.failures.append(text)

    def retry(self, why: str) -> None:
        """Count an attempt that will be repeated."""
        self.retried[why] = self.retried.get(why, 0) + 1


def total(tallies: Sequence[Tally], stages: int) -> Tally:
    """Returns the sum of all tallies."""
    tally = Tally([StageTally() for _ in range(stages)], finished=bool(tallies) and all(each.finished for each in tallies))
    for each in tallies:
        for mine, theirs in zip(tally.stages, each.stages, strict=True):
            mine.submissions += theirs.submissions
            mine.latency.add_all(theirs.latency)
            mine.late.add_all(theirs.late)
            mine.answered_last_s = max(mine.answered_last_s, theirs.answered_last_s)
        for name in ("answered", "failed", "decided", "cpu_seconds"):
            setattr(tally, name, getattr(tally, name) + getattr(each, name))
        tally.cores = max(tally.cores, each.cores)
        tally.lag.add_all(each.lag)
        _add(tally.retried, each.retried)
        _add(tally.counts, each.counts)
        _add(tally.answered_by_tenth, each.answered_by_tenth)
        tally.failures += each.failures[: FAILURES_LISTED - len(tally.failures)]
        tally.violations += each.violations
    return tally


def _add(into: dict[_Key, int], more: Mapping[_Key, int]) -> None:
    for key, count in more.items():
        into[key] = into.get(key, 0) + count


def encode(tally: Tally) -> Any:
    """Returns a tally as a message for Locust's connection."""
    return msgspec.to_builtins(tally, str_keys=False, enc_hook=lambda histogram: histogram.encode())


def decode(message: Any) -> Tally:
    """Returns the tally that `encode` wrote."""
    return msgspec.convert(message, Tally, dec_hook=lambda _, text: Latencies.decode(text))


PERCENTS = (50, 90, 99, 99.9)


def reasons_against(tally: Tally, ledger: Ledger, *, submissions: int, problems: Sequence[str] = ()) -> list[str]:
    """Returns the reasons why the run has no figure, empty if it has one. `problems`: errors of the load's own processes."""
    reasons = list(problems)
    violations = tally.violations + ledger.violations
    if violations:
        reasons.append(f"the notary broke its promises: {len(violations)} violations")
        reasons += violations
    if tally.failed:
        reasons.append(f"{tally.failed:,} of {submissions:,} submissions failed")
        reasons += tally.failures
    accounted = tally.answered + tally.failed
    if accounted < submissions or not tally.finished:
        reasons.append(f"interrupted: {submissions - accounted:,} of {submissions:,} submissions were neither answered nor given up")
    if not reasons and tally.decided != ledger.positions_seen:
        reasons.append(f"{tally.decided:,} transactions were decided, at {ledger.positions_seen:,} positions")
    return reasons


def figure(plan: LoadPlan, tally: Tally) -> dict[str, Any]:
    """Returns the figure of a complete run. Requests are transactions; a submission carries `submission_requests` of them."""
    counted = [at for at, stage in enumerate(plan.stages) if stage.counts]
    return {
        "requests": sum([tally.stages[at].submissions for at in counted]) * plan.mix.submission_requests,
        "submissions": sum([tally.stages[at].submissions for at in counted]),
        "transactions_decided": tally.decided,
        "outcomes": {outcome: tally.counts.get(outcome, 0) for outcome in ("committed", *get_args(Reason))},
        "repeated_with_the_same_answer": tally.counts.get("repeated", 0),
        "receipts_verified": tally.counts.get("receipts_verified", 0),
        "attempts_retried": dict(sorted(tally.retried.items())),
        "load_cpu_seconds": round(tally.cpu_seconds, 1),
        "load_cores_of_busiest": round(tally.cores, 2),
        "load_lag_ms_p99": round(tally.lag.percentile_ms(99), 1),
        "answered_by_tenth": [tally.answered_by_tenth.get(tenth, 0) for tenth in range(max(tally.answered_by_tenth, default=-1) + 1)],
        "stages": [_stage(plan, at, tally.stages[at]) for at in counted],
    }


def _stage(plan: LoadPlan, at: int, tally: StageTally) -> dict[str, Any]:
    stage = plan.stages[at]
    requests = tally.submissions * plan.mix.submission_requests
    # Divide by the time until the last answer: requests answered after the stage's end were not answered at its rate.
    began_s = sum([before.seconds for before in plan.stages[:at]])
    seconds = max(stage.seconds, tally.answered_last_s - began_s)
    return {
        "stage": stage.name,
        "intended_requests_per_s": stage.requests_per_s,
        "seconds": stage.seconds,
        "requests": requests,
        "requests_per_s": round(requests / seconds, 1),
        "submissions_per_s": round(tally.submissions / seconds, 1),
        **{f"latency_ms_p{percent:g}": round(tally.latency.percentile_ms(percent), 1) for percent in PERCENTS},
        "latency_ms_max": round(tally.latency.percentile_ms(100), 1),
        "late_ms_p99": round(tally.late.percentile_ms(99), 1),
    }


COLUMNS: Final = (
    ("requests/s", 12, "requests_per_s"), ("submissions/s", 15, "submissions_per_s"), ("p50 ms", 9, "latency_ms_p50"),
    ("p90 ms", 9, "latency_ms_p90"), ("p99 ms", 9, "latency_ms_p99"), ("max ms", 9, "latency_ms_max"), ("late p99", 10, "late_ms_p99"),
)  # fmt: skip
"""(head, width, the figure of a stage)."""


def lines_of(figures: dict[str, Any]) -> list[str]:
    """Returns a figure as text lines."""
    lines = [
        f"{figures['requests']:,} requests in {figures['submissions']:,} submissions; "
        f"{figures['transactions_decided']:,} transactions decided, those of a warm-up included: "
        + ", ".join([f"{count:,} {outcome}" for outcome, count in figures["outcomes"].items() if count]),
        f"repeated, with the same answer: {figures['repeated_with_the_same_answer']:,}; "
        f"receipts verified: {figures['receipts_verified']:,}; attempts retried: {figures['attempts_retried'] or 'none'}",
        f"the load: {figures['load_cpu_seconds']:,} CPU seconds, {figures['load_cores_of_busiest']:.2f} cores of its busiest process; "
        f"its own delay {figures['load_lag_ms_p99']:,.1f} ms (p99)",
        f"{'stage':<24}" + "".join([f"{head:>{width}}" for head, width, _ in COLUMNS]),
    ]
    lines += [
        f"{stage['stage']:<24}" + "".join([f"{stage[name]:>{width},.1f}" for _, width, name in COLUMNS]) for stage in figures["stages"]
    ]
    if figures["load_cores_of_busiest"] >= CORES_MAX or figures["load_lag_ms_p99"] > LAG_MS_MAX:
        lines.append("WARNING: the load itself was short of CPU time, and the latencies include its delays: add --processes or a machine")
    return lines
