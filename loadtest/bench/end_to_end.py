"""How fast signed submissions are answered over HTTP: a real worker, real brokers, and the load in a third process."""

import asyncio
import tempfile
import uuid
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from deploy.local import Cluster
from loadtest.bench.load import Outcome, Plan
from loadtest.bench.process import run_module
from loadtest.bench.raw import Idle, idle_latency
from loadtest.bench.report import Report, progress
from loadtest.bench.service import Service, serve

INPUTS = 4
IDLE_PAIRS = 200
WARM_UP_CONNECTIONS, WARM_UP_S = 64, 4.0

CASES = (
    (1, 64, 4_000, "1,500 requests/s"),
    (100, 24, 300, "10,000 requests/s"),
)
"""(requests of a submission, connections, submissions made ahead for each second, goal with three brokers)."""


def measure(report: Report, cluster: Cluster | None, brokers: int, seconds: float, seed: int) -> None:
    """The figure `end-to-end` on one log: Kafka with so many brokers, or the embedded one."""
    name = log_name(brokers)
    bootstrap = cluster.bootstrap if cluster else None
    pids = {"brokers": [b.process.pid for b in cluster.state.brokers if b.process]} if cluster else {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-notary-") as directory,
        serve(Path(directory) / "notary", bootstrap, f"bench-{uuid.uuid4().hex[:8]}") as service,
    ):
        pids["worker"] = [service.pid]
        # Brokers that were just started compile their code for seconds; nobody's figure is better for it.
        run_load(Plan([service.url], seed + 1, 1, INPUTS, WARM_UP_CONNECTIONS, WARM_UP_S, int(WARM_UP_S * 4_000), {}))
        for at, (requests, connections, ahead_per_s, goal) in enumerate(CASES):
            # Without receipts before and after: what the machine does meanwhile must not look like what receipts cost.
            found: list[Outcome] = []
            for turn, receipts in enumerate((False, True, False)):
                plan = Plan(
                    urls=[service.url],
                    # Each load has its own states: the second time they would be consumed.
                    seed=seed + 1_000 * (at + 1) + 100 * turn,
                    requests=requests,
                    inputs=INPUTS,
                    connections=connections,
                    seconds=seconds if receipts else seconds / 2,
                    submissions_max=int(ahead_per_s * seconds),
                    pids=pids,
                    receipts=receipts,
                )
                outcome = run_load(plan)
                found.append(outcome)
                if receipts:
                    figures, parameters = _figures(outcome), parameters_of(plan, name)
            without = [outcome.requests / outcome.seconds if outcome.seconds else 0.0 for outcome in (found[0], found[2])]
            figures["without_receipts_requests_per_s"] = mean(without)
            figures["without_receipts_before_after"] = [round(rate) for rate in without]
            figures["taken_by_receipts_percent"] = 100 * (1 - figures["requests_per_s"] / mean(without)) if all(without) else 0.0
            report.add(
                "end-to-end",
                f"{requests} a submission, {name}",
                figures,
                parameters,
                goal if brokers == 3 else None,
                failed=any(failed(outcome) for outcome in found),
            )

        # Last: by now everything is warm, the brokers most of all.
        _idle(report, name, service, bootstrap, pids, seconds, seed)


def log_name(brokers: int) -> str:
    """What a log of so many brokers is called; 0 is the embedded one."""
    return f"{brokers} brokers" if brokers > 1 else "1 broker" if brokers else "embedded log"


def _idle(
    report: Report, name: str, service: Service, bootstrap: str | None, pids: dict[str, list[int]], seconds: float, seed: int
) -> None:
    """One client on an idle system, its latency between two measurements of what two appends alone take."""
    idles: list[Idle] = []
    plan = Plan([service.url], seed, 1, INPUTS, 1, max(seconds / 2, 3.0), int(seconds * 500), pids)
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
    report.add("end-to-end", f"idle round trip, {name}", figures, parameters_of(plan, name), goal, failed=failed(outcome))


def run_load(plan: Plan) -> Outcome:
    """One load in its own process."""
    progress(f"load: {plan.requests} requests a submission, {plan.connections} connections, {plan.seconds:g} s")
    # Making the bodies takes as long again as sending them, on a busy machine several times that.
    return run_module("loadtest.bench.load", plan, Outcome, plan.seconds * 10 + 120)


def failed(outcome: Outcome) -> bool:
    """Whether a load saw an error, or nothing at all; its failures are told."""
    for failure in outcome.failures:
        progress(f"load: {failure}")
    return bool(outcome.errors) or not outcome.requests


def _figures(outcome: Outcome) -> dict[str, Any]:
    thousands = max(outcome.requests, 1) / 1000
    figures: dict[str, Any] = {
        "requests_per_s": outcome.requests / outcome.seconds if outcome.seconds else 0.0,
        "latency_ms_p50": outcome.latency_ms_p50,
        "latency_ms_p99": outcome.latency_ms_p99,
        "errors": outcome.errors,
    }
    spent = dict(outcome.cpu_seconds)
    # What others took of this machine meanwhile: with much of it, a run says little about requests a second.
    others_s = spent.pop("machine") - sum(spent.values())
    figures["others_cores"] = max(0.0, others_s / outcome.seconds) if outcome.seconds else 0.0
    for who, spent_s in sorted(spent.items()):
        figures[f"{who}_cpu_s_per_1000"] = spent_s / thousands
    if outcome.ran_out:
        figures["ran_out"] = True
    return figures


def parameters_of(plan: Plan, log: str) -> dict[str, Any]:
    """What a load was, for its line; `log` is the name of what it was on."""
    told = msgspec.structs.asdict(plan)
    return {"log": log, **{key: value for key, value in told.items() if key not in ("urls", "pids", "marked", "submissions_max")}}
