"""A worker under several times its capacity: `python -P -m loadtest.bench.overload [--times 5] [--seconds 10]`.

First a closed loop measures its capacity; then an open loop (`offered`) sends a multiple of that. The results: goodput compared with the
capacity, the latency of admitted submissions, the time to reject the others, the accuracy of Retry-After, and memory.
"""

import argparse
import sys
from typing import Any

from loadtest.bench import alone
from loadtest.bench.end_to_end import Case, failed, name_of, plan_of, run_load
from loadtest.bench.load import LoadResult
from loadtest.bench.offer import Offer, Offered, Percentiles
from loadtest.bench.report import Report, progress
from loadtest.rig import Place, run_module

TIMES, SECONDS = 5.0, 10.0
CONNECTIONS_MAX = 1_500
"""The connections of the open loop; a worker admits 2,000 by default."""
PROBES = 32
CASE = Case(100, 1)


def measure(
    report: Report,
    place: Place,
    seconds: float,
    seed: int,
    *,
    case: Case = CASE,
    times: float = TIMES,
    connections_max: int = CONNECTIONS_MAX,
    connections_open: bool = True,
) -> None:
    """Measure the figure `overload`."""
    capacity = capacity_of(place, case, seconds, seed)
    capacity_per_s = capacity.requests / capacity.seconds if capacity.seconds else 0.0
    if failed(capacity) or not capacity_per_s:
        raise RuntimeError("the capacity could not be measured: the closed loop saw errors")
    offer = Offer(
        urls=place.urls,
        seed=seed + 2,
        requests=case.requests,
        inputs=case.inputs,
        requests_per_s=times * capacity_per_s,
        seconds=seconds,
        decided_per_s_max=1.5 * capacity_per_s,
        connections_max=connections_max,
        pids=dict(place.pids),
        probes=PROBES,
        connections_open=connections_open,
    )
    outcome = run_offer(offer)
    for failure in outcome.failures:
        progress(f"load: {failure}")
    figures = {"capacity_requests_per_s": capacity_per_s, "times": times} | figures_of(offer, outcome)
    figures["goodput_share_of_capacity"] = figures["goodput_requests_per_s"] / capacity_per_s
    told = ("requests", "inputs", "seconds", "connections_max", "connections_open", "probes", "seed", "receipts")
    parameters = {"log": place.log_name, "workers": len(place.urls)} | {name: getattr(offer, name) for name in told}
    how = "" if connections_open else ", new connections"
    text = f"{times:g} times the capacity, {name_of(case, place)}{how}"
    report.add("overload", text, figures, parameters, "decided at 0.9 of the capacity", failed=bool(outcome.errors))


def capacity_of(place: Place, case: Case, seconds: float, seed: int) -> LoadResult:
    """Returns the outcome of a closed loop, after a warm-up."""
    run_load(plan_of(place, case, min(4.0, seconds / 2), seed))
    return run_load(plan_of(place, case, seconds, seed + 1))


def run_offer(offer: Offer) -> Offered:
    """Run one open loop in its own process; returns its results."""
    progress(f"load: {offer.requests_per_s:,.0f} requests/s are due, {offer.requests} a submission, {offer.seconds:g} s")
    return run_module("loadtest.bench.offered", offer, Offered, offer.seconds * 10 + 180)


def figures_of(offer: Offer, outcome: Offered) -> dict[str, Any]:
    """Returns the figures of an open loop. `wait`: the time until a rejected client that keeps retrying is admitted.

    `told`: the Retry-After values.
    """
    seconds = outcome.seconds or 1e-9
    answers = outcome.decided + outcome.undecided + outcome.refused + outcome.dropped
    memory = [second.worker_mib for second in outcome.by_time]
    figures: dict[str, Any] = {
        "due_requests_per_s": outcome.due * offer.requests / seconds,
        "sent_requests_per_s": outcome.sent * offer.requests / seconds,
        "goodput_requests_per_s": outcome.decided * offer.requests / seconds,
        "refused_share": outcome.refused / answers if answers else 0.0,
        "undecided_share": outcome.undecided / answers if answers else 0.0,
        "dropped_share": outcome.dropped / answers if answers else 0.0,
        "unsent_share": outcome.unsent * offer.requests / (offer.requests_per_s * offer.seconds),
        "latency_ms_p50": _of(outcome.decided_ms, "p50"),
        "latency_ms_p99": _of(outcome.decided_ms, "p99"),
        "from_sending_ms_p50": _of(outcome.answered_ms, "p50"),
        "from_sending_ms_p99": _of(outcome.answered_ms, "p99"),
        "late_ms_p99": _of(outcome.late_ms, "p99"),
        "refusal_ms_p50": _of(outcome.refused_ms, "p50"),
        "refusal_ms_p99": _of(outcome.refused_ms, "p99"),
        "told_s_p50": _of(outcome.told_s, "p50"),
        "told_s_max": _of(outcome.told_s, "max"),
        "probe_told_s_p50": _of(outcome.probe_told_s, "p50"),
        "wait_s_p50": _of(outcome.probe_waited_s, "p50"),
        "wait_s_p99": _of(outcome.probe_waited_s, "p99"),
        "wait_to_told_p50": _of(outcome.probe_waited_to_told, "p50"),
        "wait_to_told_p99": _of(outcome.probe_waited_to_told, "p99"),
        "waits": outcome.probe_waited_s.count,
        "still_waiting": outcome.probe_waiting,
        "obedient_returns": outcome.obedient_returns,
        "obedient_taken_share": outcome.obedient_taken / outcome.obedient_returns if outcome.obedient_returns else None,
        "drained_s": outcome.drained_s,
        "worker_mib_first": memory[0] if memory else 0.0,
        "worker_mib_max": max(memory, default=0.0),
        **{f"{who}_cores": cpu_s / seconds for who, cpu_s in sorted(outcome.cpu_seconds.items())},
        "errors": outcome.errors,
        "by_time": [
            {
                "seconds": second.seconds,
                "requests_per_s": second.decided * offer.requests / (second.seconds - before),
                "refused_requests_per_s": second.refused * offer.requests / (second.seconds - before),
                "worker_mib": second.worker_mib,
            }
            for before, second in zip([0.0, *[each.seconds for each in outcome.by_time]], outcome.by_time, strict=False)
        ],
    }
    if outcome.ran_out:
        figures["ran_out"] = True
    return figures


def _of(times: Percentiles, which: str) -> float | None:
    """Returns None if there are no values: 0 would look like the best."""
    return float(getattr(times, which)) if times.count else None


def main(arguments: list[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.bench.overload", description="Several times what a worker can do.")
    parser.add_argument("--times", type=float, default=TIMES, metavar="N", help=f"of the capacity (default: {TIMES:g})")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=f"of each of the two loads (default: {SECONDS:g})")
    parser.add_argument("--connections", type=int, default=CONNECTIONS_MAX, metavar="N", help=f"at most (default: {CONNECTIONS_MAX:,})")
    parser.add_argument("--new-connections", action="store_true", help="made when they are needed, not before the start")
    alone.add_arguments(parser, "bench-overload.jsonl")
    chosen = parser.parse_args(arguments)
    case = Case(chosen.submission_requests, chosen.inputs)

    def measure_it(report: Report, place: Place) -> None:
        measure(
            report,
            place,
            chosen.seconds,
            chosen.seed,
            case=case,
            times=chosen.times,
            connections_max=chosen.connections,
            connections_open=not chosen.new_connections,
        )

    return alone.run(chosen, measure_it)


if __name__ == "__main__":
    sys.exit(main())
