"""Open loops at rising rates: the curve from nearly idle to past the capacity, and the behaviour at several times the capacity.

    python -P -m loadtest.bench.figures.overload [--times 5] [--seconds 10]     `overload` alone

Closed loops measure the capacity; open loops send multiples of that. The results of `overload`: goodput compared with the capacity, the
latency of admitted submissions, the time to reject the others, the accuracy of Retry-After, and memory.

The capacity of one worker changes from minute to minute: RocksDB sorts a full memtable for up to ten seconds, which halves the rate on few
cores, and other machines share the processor (docs/performance.md). So `overload` alternates: a closed loop, an open loop, an open loop, a
closed loop, and so on, all on one worker. Its share is the mean of the open loops by that of the closed loops.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import msgspec

from loadtest.bench import figure
from loadtest.bench.figure import COLOURS, MARKS, Figure, Lines, Part, Row, RunOptions, Step, columns, formatted, number, thousands, values
from loadtest.bench.loads import Case, capacity_of, failed, name_of, offer_figures, offer_for, offer_parameters, run_offer
from loadtest.bench.report import Report
from loadtest.rig.arguments import above_zero, count
from loadtest.rig.notaries import RunningNotary, log_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

SHARES = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)
SHARES_QUICK = (0.1, 0.5, 0.8, 1.0, 1.25)
CURVES = {1: (Case(100, 4), Case(1, 4)), 3: (Case(100, 4),)}
CURVES_QUICK = {1: (Case(100, 4),)}
"""By the number of brokers."""
CURVE_S_MIN = 3.0
CURVE_CONNECTIONS_MAX = 500

TIMES, SECONDS, PAIRS = 5.0, 10.0, 4
CONNECTIONS_MAX = 1_500
"""The connections of the open loop; a worker admits 2,000 by default."""
PROBES = 32
CASE = Case(100, 1)


def measure_curve(
    report: Report, running: RunningNotary, case: Case, seconds: float, seed: int, shares: tuple[float, ...] = SHARES
) -> None:
    """Measure the figure `curve`: one line for each share of the rate that a closed loop reached just before."""
    capacity = capacity_of(running, case, seconds, seed)
    for at, share in enumerate(shares, 2):
        offer = offer_for(
            running, case, seconds, seed + at, rate=share * capacity, capacity=capacity, connections_max=CURVE_CONNECTIONS_MAX
        )
        offered = run_offer(offer)
        measured = offer_figures(offer, offered)
        figures = {"share_of_capacity": share, "capacity_requests_per_s": capacity} | {
            name: measured.get(name, False) for name in CURVE_FIGURES
        }
        parameters = offer_parameters(offer, running) | {"open_loop": True}
        report.add("curve", f"{name_of(case, running)}, at {share:.0%}", figures, parameters, failed=failed(offered))


CURVE_FIGURES = (
    "due_requests_per_s", "goodput_requests_per_s", "latency_ms_p50", "latency_ms_p99", "rejected_share", "unsent_share", "late_ms_p99",
    "worker_cores", "load_cores", "machine_cores", "errors", "ran_out",
)  # fmt: skip
"""The figures of an open loop that go into a line of the curve."""


def measure_overload(
    report: Report,
    running: RunningNotary,
    seconds: float,
    seed: int,
    *,
    case: Case = CASE,
    times: float = TIMES,
    pairs: int = PAIRS,
    connections_max: int = CONNECTIONS_MAX,
    connections_open: bool = True,
) -> None:
    """Measure the figure `overload`: `pairs` of a closed loop and an open loop, each `seconds` long."""
    capacity = capacity_of(running, case, seconds, seed)
    offer = offer_for(
        running,
        case,
        seconds,
        seed,
        rate=times * capacity,
        capacity=capacity,
        connections_max=connections_max,
        probes=PROBES,
        connections_open=connections_open,
    )
    closed: list[float] = []
    opened: list[dict[str, Any]] = []
    with_errors = False
    for load in range(2 * pairs):
        own_seed = seed + 3 * (load + 1)
        if load % 4 in {0, 3}:
            closed.append(capacity_of(running, case, seconds, own_seed))
        else:
            offered = run_offer(msgspec.structs.replace(offer, seed=own_seed))
            opened.append(offer_figures(offer, offered))
            with_errors |= failed(offered)
    figures = _together(opened)
    decided = [figures["goodput_requests_per_s"] for figures in opened]
    figures |= {
        "times": times,
        "pairs": pairs,
        "capacity_requests_per_s": mean(closed),
        "capacity_requests_per_s_min": min(closed),
        "capacity_requests_per_s_max": max(closed),
        "goodput_requests_per_s": mean(decided),
        "goodput_requests_per_s_min": min(decided),
        "goodput_requests_per_s_max": max(decided),
        "goodput_share_of_capacity": mean(decided) / mean(closed),
        "worker_mib_first": opened[0]["worker_mib_first"],
        "worker_mib_max": max(figures["worker_mib_max"] for figures in opened),
    }
    name = f"{times:g} times the capacity, {name_of(case, running)}{'' if connections_open else ', new connections'}"
    parameters = offer_parameters(offer, running, "connections_open", "probes")
    report.add("overload", name, figures, parameters, "decided at 0.95 of the capacity", failed=with_errors)


def _together(loads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the median of each figure over several loads, the course of the last one, and whether any of them ran out."""
    figures = {}
    for name in loads[-1]:
        values = [each for load in loads if (each := load.get(name)) is not None]
        figures[name] = loads[-1][name] if name == "by_time" else median(values) if values else None
    return figures | {"ran_out": any(load.get("ran_out") for load in loads)}


# ---- the parts of `make bench` ----


def _curve_parts(report: Report, options: RunOptions) -> list[Part]:
    curves = CURVES_QUICK if options.quick else CURVES
    shares = SHARES_QUICK if options.quick else SHARES
    seconds = max(options.seconds / 2, CURVE_S_MIN)

    def step(brokers: int, case: Case, at: int) -> Step:
        text = f"curve: {case.requests} a submission, {log_name(brokers)}"
        took_s = figure.load_s(seconds) * (len(shares) + 1) + 2 * len(shares)
        return Step(text, took_s, lambda running: measure_curve(report, running, case, seconds, options.seed + 1_000 * at, shares))

    def part(brokers: int, cases: Sequence[Case]) -> Part:
        steps = [step(brokers, case, at) for at, case in enumerate(cases, 1)]
        return figure.part_on_notary("curve", brokers, steps)

    chosen = curves if options.brokers is None else {options.brokers: curves.get(options.brokers, CURVES_QUICK[1])}
    return [part(brokers, cases) for brokers, cases in chosen.items()]


def _overload_parts(report: Report, options: RunOptions) -> list[Part]:
    brokers, seconds = 1 if options.brokers is None else options.brokers, options.seconds
    pairs = PAIRS // 2 if options.quick else PAIRS
    text = f"overload: {TIMES:g} times the capacity"
    took_s = (2 * pairs + 1) * (figure.load_s(seconds / 2) + figure.load_s(seconds))
    step = Step(text, took_s, lambda running: measure_overload(report, running, seconds, options.seed, pairs=pairs))
    return [figure.part_on_notary("overload", brokers, [step])]


def main(arguments: list[str] | None = None) -> int:
    """Measure `overload` alone; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -P -m loadtest.bench.figures.overload", description="A worker at several times its capacity."
    )
    parser.add_argument("--times", type=above_zero, default=TIMES, metavar="N", help=f"of the capacity (default: {TIMES:g})")
    parser.add_argument("--seconds", type=above_zero, default=SECONDS, metavar="S", help=f"of each load (default: {SECONDS:g})")
    parser.add_argument("--pairs", type=count, default=PAIRS, metavar="N", help=f"of a closed and an open loop (default: {PAIRS})")
    parser.add_argument("--connections", type=count, default=CONNECTIONS_MAX, metavar="N", help=f"at most (default: {CONNECTIONS_MAX:,})")
    parser.add_argument("--new-connections", action="store_true", help="opened when they are needed, not before the start")
    figure.add_arguments(parser, "bench-overload.jsonl")
    chosen = parser.parse_args(arguments)
    measure = partial(
        measure_overload,
        seconds=chosen.seconds,
        seed=chosen.seed,
        case=Case(chosen.submission_requests, chosen.inputs),
        times=chosen.times,
        pairs=chosen.pairs,
        connections_max=chosen.connections,
        connections_open=not chosen.new_connections,
    )
    return figure.run_alone(chosen, measure)


# ---- tables and pictures ----


_curve_rows = columns(
    ("case, at a share of its capacity", figure.case_of),
    ("due/s", "due_requests_per_s"),
    ("decided/s", "goodput_requests_per_s"),
    ("p50", number("latency_ms_p50", " ms")),
    ("p99", number("latency_ms_p99", " ms")),
    ("rejected", formatted("rejected_share", "{:.0%}")),
    ("not sent", formatted("unsent_share", "{:.0%}")),
    ("worker's cores", "worker_cores"),
)

OVERLOAD_ROWS = (
    ("pairs", "number of closed loops, and of open loops in turn with them", "{:,}"),
    ("capacity_requests_per_s", "the capacity: the mean of the closed loops, requests/s", "{:,.0f}"),
    ("capacity_requests_per_s_min", "the slowest of them", "{:,.0f}"),
    ("capacity_requests_per_s_max", "the fastest", "{:,.0f}"),
    ("due_requests_per_s", "due, requests/s", "{:,.0f}"),
    ("sent_requests_per_s", "sent (the rest found no connection), requests/s", "{:,.0f}"),
    ("goodput_requests_per_s", "**decided**: the mean of the open loops, requests/s", "{:,.0f}"),
    ("goodput_requests_per_s_min", "in the slowest of them", "{:,.0f}"),
    ("goodput_requests_per_s_max", "in the fastest", "{:,.0f}"),
    ("goodput_share_of_capacity", "of the capacity (goal: 95%)", "{:.0%}"),
    ("rejected_share", "of all answers: rejected (503)", "{:.0%}"),
    ("undecided_share", "admitted and not decided in time (202)", "{:.0%}"),
    ("dropped_share", "no answer, the connection ended", "{:.0%}"),
    ("from_sending_ms_p50", "admitted: median, from sending, ms", "{:,.0f}"),
    ("from_sending_ms_p99", "admitted: p99, from sending, ms", "{:,.0f}"),
    ("latency_ms_p99", "admitted: p99, from the intended start, ms", "{:,.0f}"),
    ("rejection_ms_p50", "a rejection takes, median, ms", "{:,.1f}"),
    ("rejection_ms_p99", "a rejection takes, p99, ms", "{:,.1f}"),
    ("retry_after_s_p50", "Retry-After, median, s", "{:,.0f}"),
    ("wait_s_p50", "rejected, and retried every 0.1 s: admitted after, median, s", "{:,.2f}"),
    ("wait_s_p99", "the same, p99, s", "{:,.2f}"),
    ("wait_to_retry_after_p50", "that wait, as a multiple of its Retry-After, median", "{:,.2f}"),
    ("waits", "number of submissions that were rejected first", "{:,}"),
    ("still_waiting", "number of those not admitted by the end", "{:,}"),
    ("obedient_admitted_share", "returned after Retry-After: admitted then", "{:.0%}"),
    ("obedient_returns", "number of such returns", "{:,}"),
    ("worker_mib_first", "the worker's memory at first, MiB", "{:,.0f}"),
    ("worker_mib_max", "and at most, MiB", "{:,.0f}"),
    ("worker_cores", "cores: worker", "{:,.2f}"),
    ("load_cores", "cores: load", "{:,.2f}"),
    ("machine_cores", "cores: everything on the machine", "{:,.2f}"),
)
"""(figure, its text, its format)."""


def _overload_rows(lines: Lines) -> Sequence[Row]:
    rows: list[Row] = [("", *map(figure.case_of, lines))]
    for name, text, form in OVERLOAD_ROWS:
        # Without waits there are no figures about them.
        cells = [line.figures.get(name) if line.figures.get("waits") or not name.startswith("wait_") else None for line in lines]
        rows.append((text, *["" if each is None else form.format(each) for each in cells]))
    return rows


def _draw_curve(picture: "Picture", lines: Lines) -> None:
    axes = picture.subplots()
    for at, (name, points) in enumerate(figure.series(lines, lambda line: line.case.rpartition(", at ")[0]).items()):
        points.sort(key=lambda line: line.figures["due_requests_per_s"])
        rates = [line.figures["goodput_requests_per_s"] for line in points]
        for which, dashes, filled in (("p99", "-", True), ("p50", "--", False)):
            # There is no latency where the queue was so long that no submission of the period was sent.
            latencies = [float("nan") if (ms := line.figures[f"latency_ms_{which}"]) is None else ms for line in points]
            style: dict[str, Any] = {"color": COLOURS[at], "marker": MARKS[at], "linestyle": dashes, "markersize": 5}
            label = f"{name}, {'99 of 100' if which == 'p99' else 'median'}"
            axes.plot(rates, latencies, label=label, markerfacecolor=COLOURS[at] if filled else "white", **style)
    axes.set(yscale="log", xlabel="decided requests a second", ylabel="milliseconds, from the intended start", xlim=(0, None))
    axes.set_title("Latency at growing load, past the capacity (open loop)")
    thousands(axes)
    axes.legend(fontsize=7)


def _draw_overload(picture: "Picture", lines: Lines) -> None:
    line = lines[-1]
    moments = line.figures["by_time"]
    rates, memory = picture.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    seconds, small = values(moments, "seconds"), {"markersize": 3}
    rates.plot(seconds, values(moments, "requests_per_s"), color=COLOURS[0], marker=MARKS[0], label="decided", **small)
    rejected = values(moments, "rejected_requests_per_s")
    rates.plot(seconds, rejected, color=COLOURS[1], marker=MARKS[1], linestyle="--", label="rejected", **small)
    rates.axhline(line.figures["capacity_requests_per_s"], color=COLOURS[6], linestyle=":", label="capacity, by closed loops")
    rates.set(ylabel="requests a second", ylim=(0, None))
    rates.set_title(f"Overload: {line.case}")
    memory.plot(seconds, values(moments, "worker_mib"), color=COLOURS[2])
    memory.set(xlabel="seconds", ylabel="worker, MiB", ylim=(0, None))
    thousands(rates)
    memory.xaxis.get_major_locator().set_params(integer=True)
    rates.legend(fontsize=7)


FIGURES = (
    Figure(
        "curve",
        "how long do answers take, from nearly idle to past the capacity?",
        _curve_parts,
        {"curve": _curve_rows},
        _draw_curve,
    ),
    Figure(
        "overload",
        "how does it behave at several times the capacity?",
        _overload_parts,
        {"overload": _overload_rows},
        _draw_overload,
    ),
)

if __name__ == "__main__":
    sys.exit(main())
