"""The rate at which signed submissions are answered over HTTP: real workers, real brokers, and the load in a process of its own."""

import asyncio
import uuid
from statistics import mean
from typing import Any, Final

import msgspec

from loadtest.bench.load import LoadResult, Plan
from loadtest.bench.raw import Idle, idle_latency
from loadtest.bench.report import Report, progress
from loadtest.rig import Place, log_name, run_module

INPUTS: Final = 4
IDLE_PAIRS: Final = 200
WARM_UP_S: Final = 4.0
GOALS: Final = {1: "2,500 requests/s", 100: "15,000 requests/s"}
"""By the requests of a submission; with three brokers and 4 inputs."""


class Case(msgspec.Struct, frozen=True):
    """One kind of load."""

    requests: int
    """Requests of a submission."""
    inputs: int
    beside_without_receipts: bool = False
    """True if the same load without receipts also runs before and after, which shows their cost and the machine's noise."""
    connections: int = 0
    """The connections to each worker; 0 for as many as keep it busy."""


def connections_of(requests: int, inputs: int = INPUTS) -> int:
    """Returns the number of connections that keep one worker busy with such submissions."""
    return 16 if inputs > 100 else {1: 64, 10: 32}.get(requests, 24)


def ahead_of(requests: int, inputs: int, seconds: float) -> int:
    """Returns the number of submissions to generate for a closed loop of this length: more than any known machine decides."""
    per_s = 250 if inputs > 100 else {1: 7_000, 10: 2_000}.get(requests, (60_000 if inputs == 1 else 40_000) / requests)
    return max(1, int(per_s * seconds))


def plan_of(place: Place, case: Case, seconds: float, seed: int, *, receipts: bool = True) -> Plan:
    """Returns the plan of a closed loop for that case."""
    return Plan(
        urls=place.urls,
        # Each load has its own states: they can be consumed only once.
        seed=seed,
        requests=case.requests,
        inputs=case.inputs,
        connections=(case.connections or connections_of(case.requests, case.inputs)) * len(place.urls),
        seconds=seconds,
        submissions_max=ahead_of(case.requests, case.inputs, seconds),
        pids=dict(place.pids),
        receipts=receipts,
    )


def warm_up(place: Place, seconds: float, seed: int) -> None:
    """Run two loads without figures: brokers that were just started compile their code for seconds."""
    for requests in (1, 100):
        run_load(plan_of(place, Case(requests, INPUTS), seconds / 2, seed + requests))


def measure(report: Report, place: Place, case: Case, seconds: float, seed: int) -> None:
    """Measure the figure `end-to-end` for one case."""
    log = place.log_name
    outcomes = []
    if case.beside_without_receipts:
        outcomes.append(run_load(plan_of(place, case, seconds / 2, seed + 1, receipts=False)))
    plan = plan_of(place, case, seconds, seed)
    outcomes.append(outcome := run_load(plan))
    figures = _figures(outcome)
    if case.beside_without_receipts:
        outcomes.append(run_load(plan_of(place, case, seconds / 2, seed + 2, receipts=False)))
        without = [each.requests / each.seconds if each.seconds else 0.0 for each in (outcomes[0], outcomes[2])]
        figures["without_receipts_requests_per_s"] = mean(without)
        figures["without_receipts_before_after"] = [round(rate) for rate in without]
        figures["taken_by_receipts_percent"] = 100 * (1 - figures["requests_per_s"] / mean(without)) if all(without) else 0.0
    report.add(
        "end-to-end",
        name_of(case, place),
        figures,
        parameters_of(plan, log),
        GOALS.get(case.requests) if log == log_name(3) and case.inputs == INPUTS else None,
        failed=any([*map(failed, outcomes)]),  # a list, so that every outcome prints its failures
    )


def name_of(case: Case, place: Place) -> str:
    """Returns the name of a case on that notary."""
    workers = "" if len(place.urls) == 1 else f", {len(place.urls)} workers"
    if place.intake:
        workers += f", {place.intake} intake {'process' if place.intake == 1 else 'processes'}"
    inputs = "1 input" if case.inputs == 1 else f"{case.inputs:,} inputs"
    connections = f", {case.connections} connections" if case.connections else ""
    return f"{case.requests} a submission, {inputs}, {place.log_name}{workers}{connections}"


def measure_idle(report: Report, place: Place, seconds: float, seed: int) -> None:
    """Measure the latency of one client on an idle system, between two measurements of two appends alone."""
    bootstrap = place.bootstrap
    idles: list[Idle] = []
    plan = Plan(place.urls, seed, 1, INPUTS, 1, max(seconds / 2, 3.0), int(max(seconds / 2, 3.0) * 1_000), dict(place.pids))
    if bootstrap:
        idles.append(asyncio.run(idle_latency(bootstrap, f"idle-{uuid.uuid4().hex[:8]}", IDLE_PAIRS, seed)))
    outcome = run_load(plan)
    figures = _figures(outcome)
    if bootstrap:
        idles.append(asyncio.run(idle_latency(bootstrap, f"idle-{uuid.uuid4().hex[:8]}", IDLE_PAIRS, seed)))
        figures["two_appends_ms_p50"] = two_appends_ms = mean([idle.ms_p50 for idle in idles])
        figures["two_appends_ms_p50_before_after"] = [round(idle.ms_p50, 2) for idle in idles]
        figures["times_two_appends"] = outcome.latency_ms_p50 / two_appends_ms
    goal = "at most 2 times two appends" if bootstrap else None
    case = f"idle round trip, {place.log_name}"
    report.add("end-to-end", case, figures, parameters_of(plan, place.log_name), goal, failed=failed(outcome))


def run_load(plan: Plan) -> LoadResult:
    """Run one load in its own process; returns its outcome."""
    progress(f"load: {plan.requests} requests a submission, {plan.inputs} inputs, {plan.connections} connections, {plan.seconds:g} s")
    # Generating the bodies takes as long as sending them, on a busy machine several times as long.
    return run_module("loadtest.bench.load", plan, LoadResult, plan.seconds * 10 + 120)


def failed(outcome: LoadResult) -> bool:
    """Returns True if a load had an error, or no answer at all; prints its failures."""
    for failure in outcome.failures:
        progress(f"load: {failure}")
    return bool(outcome.errors) or not outcome.requests


def _figures(outcome: LoadResult) -> dict[str, Any]:
    thousands = max(outcome.requests, 1) / 1000
    figures: dict[str, Any] = {
        "requests_per_s": outcome.requests / outcome.seconds if outcome.seconds else 0.0,
        "latency_ms_p50": outcome.latency_ms_p50,
        "latency_ms_p99": outcome.latency_ms_p99,
        "errors": outcome.errors,
    }
    spent = dict(outcome.cpu_seconds)
    # CPU time of other processes on this machine: if it is high, requests a second mean little.
    others_s = spent.pop("machine") - sum(spent.values())
    figures["others_cores"] = max(0.0, others_s / outcome.seconds) if outcome.seconds else 0.0
    for who, spent_s in sorted(spent.items()):
        figures[f"{who}_cpu_s_per_1000"] = spent_s / thousands
    if outcome.ran_out:
        figures["ran_out"] = True
    return figures


def parameters_of(plan: Plan, log: str) -> dict[str, Any]:
    """Returns the parameters of a load for its line; `log` is the name of the log under test."""
    told = msgspec.structs.asdict(plan)
    kept = {key: value for key, value in told.items() if key not in ("urls", "pids", "marked", "submissions_max")}
    return {"log": log, "workers": len(plan.urls), **kept}
