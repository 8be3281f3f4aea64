"""The rate at which signed submissions are answered over HTTP: real workers, real brokers, and the load in a process of its own.

Not every combination is measured. The cases vary one parameter at a time from a base case (3 brokers, 1 worker, 100 requests a submission,
4 inputs a request). Further cases are the corners where another part of the work is the limit.

| varied | cases |
|---|---|
| requests of a submission | 1, 10, 100 |
| inputs of a request | 1, 4; 1,000 with one request a submission (a hundred of them would exceed the limit of a submission) |
| workers | 1, 2 |
| the log | 3 brokers, 1 broker, embedded |
| connections | 64, 256, at one request a submission: more concurrent submissions make larger batches |
| acceptor processes | 0, 1 |
| corners | one request a submission on each log and with two workers (signatures and HTTP); 100 with 1 input on each log (the log) |
"""

import uuid
from collections.abc import Sequence
from statistics import mean
from typing import Final

import uvloop

from loadtest.bench.figure import Figure, Part, RunOptions, Step, both, case_of, columns, formatted, load_s, number
from loadtest.bench.figures.raw import idle_latency
from loadtest.bench.loads import INPUTS, Case, closed_load, failed, load_figures, name_of, parameters_of, run_load
from loadtest.bench.report import Report
from loadtest.rig.closed_loop import ClosedLoad, LoadResult
from loadtest.rig.notaries import RunningNotary, log_name, notary_name, notary_on

WARM_UP_S: Final = 4.0
GOALS: Final = {1: "2,500 requests/s", 100: "15,000 requests/s"}
"""By the requests of a submission; with three brokers and 4 inputs."""
BASE_CASE: Final = Case(100, 4)
CASES: Final[dict[tuple[int, int, int], tuple[Case, ...]]] = {
    (3, 1, 0): (BASE_CASE, Case(10, 4), Case(1, 4), Case(1, 4, connections=256), Case(100, 1), Case(1, 1_000)),
    (3, 1, 1): (Case(100, 4), Case(1, 4), Case(1, 4, connections=256)),
    (3, 2, 0): (Case(100, 4), Case(1, 4)),
    (1, 1, 0): (Case(100, 4), Case(1, 4), Case(100, 1)),
    (1, 1, 1): (Case(100, 4), Case(1, 4), Case(1, 4, connections=256)),
    (0, 1, 0): (Case(100, 4), Case(1, 4), Case(100, 1)),
}
"""By the number of brokers, of workers, and of acceptor processes of each."""


def parts(report: Report, options: RunOptions) -> list[Part]:
    """Returns a part for each log and number of workers."""
    return [
        _part(report, brokers, workers, acceptors, cases, options)
        for (brokers, workers, acceptors), cases in CASES.items()
        if options.brokers in (None, brokers)
    ]


def _part(report: Report, brokers: int, workers: int, acceptors: int, cases: Sequence[Case], options: RunOptions) -> Part:
    name = notary_name(brokers, workers, acceptors)
    seconds, seed, warm_up_s = options.seconds, options.seed, min(WARM_UP_S, options.seconds)
    base_case = BASE_CASE if (brokers, workers, acceptors) == (3, 1, 0) else None

    def step(case: Case, at: int) -> Step:
        # The base case has two loads without receipts too.
        took_s = load_s(seconds) + 2 * load_s(seconds / 2) * (case is base_case)
        connections = f", {case.connections} connections" if case.connections else ""
        text = f"end to end: {case.requests} a submission, {case.inputs} inputs, {name}{connections}"
        return Step(text, took_s, lambda running: measure(report, running, case, seconds, seed + 1_000 * at, without_too=case is base_case))

    steps = [Step(f"warming up, {name}", 2 * load_s(warm_up_s / 2), lambda running: warm_up(running, warm_up_s, seed))]
    steps += [step(case, at) for at, case in enumerate(cases, 1)]
    if workers == 1 and not acceptors:
        # Last: by now everything is warm, especially the brokers.
        text = f"end to end: idle, {name}"
        steps.append(Step(text, load_s(seconds / 2) + 5, lambda running: measure_idle(report, running, seconds, seed + 500)))
    return Part(f"end to end, {name}", lambda: notary_on(brokers, workers, acceptors=acceptors), steps)


def warm_up(running: RunningNotary, seconds: float, seed: int) -> None:
    """Run two loads without figures: brokers that were just started compile their code for seconds."""
    for requests in (1, 100):
        run_load(closed_load(running, Case(requests, INPUTS), seconds / 2, seed + requests))


def measure(report: Report, running: RunningNotary, case: Case, seconds: float, seed: int, *, without_too: bool = False) -> None:
    """Measure the figure for one case.

    `without_too`: the same load without receipts also runs before and after, which shows their cost and the machine's noise.
    """

    def without(seed: int) -> list[LoadResult]:
        return [run_load(closed_load(running, case, seconds / 2, seed, receipts=False))] if without_too else []

    before = without(seed + 1)
    load = closed_load(running, case, seconds, seed)
    result = run_load(load)
    after = without(seed + 2)
    figures = load_figures(result)
    if without_too:
        rates = [each.requests_per_s for each in (*before, *after)]
        figures["without_receipts_requests_per_s"] = mean(rates)
        figures["ran_out"] = any(each.ran_out for each in (*before, result, *after))
        figures["without_receipts_before_after"] = [round(rate) for rate in rates]
        figures["taken_by_receipts_percent"] = 100 * (1 - result.requests_per_s / mean(rates)) if all(rates) else 0.0
    report.add(
        "end-to-end",
        name_of(case, running),
        figures,
        parameters_of(load, running.log_name),
        GOALS.get(case.requests) if running.log_name == log_name(3) and case.inputs == INPUTS else None,
        failed=any([*map(failed, [*before, result, *after])]),  # a list, so that every result prints its failures
    )


def measure_idle(report: Report, running: RunningNotary, seconds: float, seed: int) -> None:
    """Measure the latency of one client on an idle system, between two measurements of two appends alone."""

    def two_appends_ms() -> list[float]:
        if not running.bootstrap:
            return []
        return [uvloop.run(idle_latency(running.bootstrap, f"idle-{uuid.uuid4().hex[:8]}", seed)).p50]

    load_seconds = max(seconds / 2, 3.0)
    load = ClosedLoad(running.urls, seed, 1, INPUTS, 1, load_seconds, int(load_seconds * 1_000), dict(running.pids))
    before = two_appends_ms()
    result = run_load(load)
    appends_ms = before + two_appends_ms()
    figures = load_figures(result)
    if appends_ms:
        figures["two_appends_ms_p50"] = mean(appends_ms)
        figures["two_appends_ms_p50_before_after"] = [round(ms, 2) for ms in appends_ms]
        figures["times_two_appends"] = result.latency_ms_p50 / mean(appends_ms)
    goal = "at most 2 times two appends" if appends_ms else None
    case = f"{IDLE}{running.log_name}"
    report.add("end-to-end", case, figures, parameters_of(load, running.log_name), goal, failed=failed(result))


IDLE: Final = "idle round trip, "


# ---- tables ----


_loads = columns(
    ("case", case_of),
    ("requests/s", "requests_per_s"),
    ("p50", number("latency_ms_p50", " ms")),
    ("p99", number("latency_ms_p99", " ms")),
    ("CPU s for 1,000 requests: worker", "worker_cpu_s_per_1000"),
    ("brokers", "brokers_cpu_s_per_1000"),
    ("load", "load_cpu_s_per_1000"),
    ("cores taken by others", "others_cores"),
    only=lambda line: not line.case.startswith(IDLE),
)

_idle = columns(
    ("one client, nothing else to do", lambda line: case_of(line).removeprefix(IDLE)),
    ("median", number("latency_ms_p50", " ms")),
    ("p99", number("latency_ms_p99", " ms")),
    ("two appends alone", number("two_appends_ms_p50", " ms")),
    ("times that", "times_two_appends"),
    only=lambda line: line.case.startswith(IDLE),
)

_receipts = columns(
    ("case", case_of),
    ("with receipts", number("requests_per_s", "/s")),
    ("without, before and after", lambda line: both(line.figures["without_receipts_before_after"], "/s")),
    ("taken by receipts", formatted("taken_by_receipts_percent", "{:.0f} %")),
    only=lambda line: "taken_by_receipts_percent" in line.figures,
)

FIGURES = (
    Figure(
        "end-to-end",
        "how fast are signed submissions answered over HTTP, and how long does one take on an idle system?",
        parts,
        {"end-to-end": _loads, "idle": _idle, "receipts": _receipts},
    ),
)
