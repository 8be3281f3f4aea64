"""The figure of a run, or the reasons why it has none. Pure.

A run that was interrupted, had a failure or showed a violation has no figure, only reasons.
"""

from collections.abc import Sequence
from typing import Any

from loadtest.openloop.ledger import Ledger
from loadtest.openloop.plan import Plan
from loadtest.openloop.schedule import begin_of
from loadtest.openloop.tally import StageTally, Tally

PERCENTS = (50, 90, 99, 99.9)


def reasons_against(whole: Tally, ledger: Ledger, *, submissions: int, problems: Sequence[str] = ()) -> list[str]:
    """Returns the reasons why the run has no figure, empty if it has one. `problems`: errors of the load's own processes."""
    reasons = list(problems)
    violations = whole.violations + ledger.violations
    if violations:
        reasons.append(f"the notary broke its word: {len(violations)} violations")
        reasons += violations
    if whole.failed:
        reasons.append(f"{whole.failed:,} of {submissions:,} submissions failed")
        reasons += whole.failures
    accounted = whole.answered + whole.failed
    if accounted < submissions or not whole.finished:
        reasons.append(f"cut short: {submissions - accounted:,} of {submissions:,} submissions were neither answered nor given up")
    if not reasons and whole.decided != ledger.heard:
        reasons.append(f"{whole.decided:,} transactions were decided, at {ledger.heard:,} positions")
    return reasons


def figure(plan: Plan, whole: Tally) -> dict[str, Any]:
    """Returns the figure of a complete run. Requests are transactions; a submission carries `submission_requests` of them."""
    counted = [at for at, stage in enumerate(plan.stages) if stage.counts]
    return {
        "requests": sum([whole.stages[at].submissions for at in counted]) * plan.mix.submission_requests,
        "submissions": sum([whole.stages[at].submissions for at in counted]),
        "transactions_decided": whole.decided,
        "outcomes": {
            what: whole.counts.get(what, 0) for what in ("committed", "input-conflict", "reference-conflict", "outside-time-window")
        },
        "asked_again_and_told_the_same": whole.counts.get("repeated", 0),
        "receipts_verified": whole.counts.get("receipts_verified", 0),
        "attempts_retried": dict(sorted(whole.retried.items())),
        "load_cpu_seconds": round(whole.cpu_seconds, 1),
        "answered_by_tenth": [whole.answered_by_tenth.get(tenth, 0) for tenth in range(max(whole.answered_by_tenth, default=-1) + 1)],
        "stages": [_stage(plan, at, whole.stages[at]) for at in counted],
    }


def _stage(plan: Plan, at: int, tally: StageTally) -> dict[str, Any]:
    stage = plan.stages[at]
    requests = tally.submissions * plan.mix.submission_requests
    # Until the last answer: requests answered after the stage's end were not answered at its rate.
    seconds = max(stage.seconds, tally.answered_last_s - begin_of(plan.stages, at))
    return {
        "stage": stage.name,
        "intended_requests_per_s": stage.requests_per_s,
        "seconds": stage.seconds,
        "requests": requests,
        "requests_per_s": round(requests / seconds, 1),
        "submissions_per_s": round(tally.submissions / seconds, 1),
        **{f"latency_ms_p{percent:g}": round(tally.latency.percentile_ms(percent), 1) for percent in PERCENTS},
        "latency_ms_max": round(tally.latency.ms_max, 1),
        "late_ms_p99": round(tally.late.percentile_ms(99), 1),
    }


def lines_of(told: dict[str, Any]) -> list[str]:
    """Returns a figure as text lines."""
    lines = [
        f"{told['requests']:,} requests in {told['submissions']:,} submissions; "
        f"{told['transactions_decided']:,} transactions decided, those of a warm-up included: "
        + ", ".join([f"{count:,} {what}" for what, count in told["outcomes"].items() if count]),
        f"asked again and told the same: {told['asked_again_and_told_the_same']:,}; receipts verified: {told['receipts_verified']:,}; "
        f"attempts retried: {told['attempts_retried'] or 'none'}",
        f"{'stage':<24}{'requests/s':>12}{'submissions/s':>15}{'p50 ms':>9}{'p90 ms':>9}{'p99 ms':>9}{'max ms':>9}{'late p99':>10}",
    ]
    lines += [
        f"{stage['stage']:<24}{stage['requests_per_s']:>12,.1f}{stage['submissions_per_s']:>15,.1f}{stage['latency_ms_p50']:>9,.1f}"
        f"{stage['latency_ms_p90']:>9,.1f}{stage['latency_ms_p99']:>9,.1f}{stage['latency_ms_max']:>9,.1f}{stage['late_ms_p99']:>10,.1f}"
        for stage in told["stages"]
    ]
    return lines
