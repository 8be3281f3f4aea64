"""What a worker does when it is asked for several times what it can do: `python -m loadtest.bench.overload [--times 5] [--seconds 10]`.

First its capacity, by a closed loop; then an open loop (`offered`) at so many times that. What counts: whether it still decides as much as
it can (goodput), how long those wait that it lets in, how quickly it refuses the others, whether its Retry-After is true, its memory.

Exit codes: 0 measured; 1 a load saw errors; 2 it could not be measured.
"""

import argparse
import sys
from typing import Any

from deploy.local import CannotRun
from loadtest.bench.end_to_end import failed, log_name, run_load
from loadtest.bench.load import Outcome, Plan
from loadtest.bench.offered import Offer, Offered
from loadtest.bench.place import Place, brokers_of, interrupt_once, workers_on
from loadtest.bench.process import run_module
from loadtest.bench.report import Report, lines_to, progress
from ordering.errors import NotaryError

TIMES, SECONDS = 5.0, 10.0
CONNECTIONS_MAX = 1_500
"""Of the open loop; a worker takes 2,000 unless told."""
PROBES = 16
CAPACITY_CONNECTIONS = {1: 64}
CAPACITY_CONNECTIONS_ELSE = 24


def measure(
    report: Report,
    place: Place,
    log: str,
    seconds: float,
    seed: int,
    *,
    requests: int = 100,
    inputs: int = 1,
    times: float = TIMES,
    connections_max: int = CONNECTIONS_MAX,
) -> None:
    """The figure `overload`."""
    capacity = capacity_of(place, requests, inputs, seconds, seed)
    capacity_per_s = capacity.requests / capacity.seconds if capacity.seconds else 0.0
    if failed(capacity) or not capacity_per_s:
        raise RuntimeError("the capacity could not be measured: the closed loop saw errors")
    offer = Offer(
        urls=place.urls,
        seed=seed + 2,
        requests=requests,
        inputs=inputs,
        requests_per_s=times * capacity_per_s,
        seconds=seconds,
        decided_per_s_max=1.5 * capacity_per_s,
        connections_max=connections_max,
        pids=dict(place.pids),
        probes=PROBES,
    )
    outcome = run_offer(offer)
    for failure in outcome.failures:
        progress(f"load: {failure}")
    figures = {"capacity_requests_per_s": capacity_per_s, "times": times} | figures_of(offer, outcome)
    figures["goodput_share_of_capacity"] = figures["goodput_requests_per_s"] / capacity_per_s
    parameters = {"log": log, "workers": len(place.urls)} | {
        name: getattr(offer, name) for name in ("requests", "inputs", "seconds", "connections_max", "probes", "seed", "receipts")
    }
    case = f"{times:g} times the capacity, {requests} a submission, {inputs} inputs, {log}"
    report.add("overload", case, figures, parameters, failed=bool(outcome.errors))


def capacity_of(place: Place, requests: int, inputs: int, seconds: float, seed: int) -> Outcome:
    """What a closed loop gets decided, after one that warms up."""
    connections = CAPACITY_CONNECTIONS.get(requests, CAPACITY_CONNECTIONS_ELSE) * len(place.urls)
    ahead = {1: 4_500}.get(requests, 30_000) / requests

    def plan(number: int, seconds: float) -> Plan:
        return Plan(place.urls, seed + number, requests, inputs, connections, seconds, int(ahead * seconds), dict(place.pids))

    run_load(plan(0, min(4.0, seconds / 2)))
    return run_load(plan(1, seconds))


def run_offer(offer: Offer) -> Offered:
    """One open loop in its own process."""
    progress(f"load: {offer.requests_per_s:,.0f} requests/s are due, {offer.requests} a submission, {offer.seconds:g} s")
    return run_module("loadtest.bench.offered", offer, Offered, offer.seconds * 10 + 180)


def figures_of(offer: Offer, outcome: Offered) -> dict[str, Any]:
    """What an open loop says. `wait`: until a refused client that asks again and again is let in; `told`: what Retry-After said."""
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
        "unsent_share": outcome.unsent / max(outcome.due, 1),
        "latency_ms_p50": outcome.decided_ms.p50,
        "latency_ms_p99": outcome.decided_ms.p99,
        "from_sending_ms_p50": outcome.answered_ms.p50,
        "from_sending_ms_p99": outcome.answered_ms.p99,
        "late_ms_p99": outcome.late_ms.p99,
        "refusal_ms_p50": outcome.refused_ms.p50,
        "refusal_ms_p99": outcome.refused_ms.p99,
        "told_s_p50": outcome.told_s.p50,
        "told_s_max": outcome.told_s.max,
        "probe_told_s_p50": outcome.probe_told_s.p50,
        "wait_s_p50": outcome.probe_waited_s.p50,
        "wait_s_p99": outcome.probe_waited_s.p99,
        "wait_to_told_p50": outcome.probe_waited_to_told.p50,
        "wait_to_told_p99": outcome.probe_waited_to_told.p99,
        "waits": outcome.probe_waited_s.count,
        "obedient_returns": outcome.obedient,
        "obedient_taken_at_first_return_share": outcome.obedient_taken_at_once / outcome.obedient if outcome.obedient else None,
        "obedient_wait_s_p50": outcome.obedient_waited_s.p50,
        "obedient_wait_s_max": outcome.obedient_waited_s.max,
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


def main(arguments: list[str] | None = None) -> int:
    """Measure; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.overload", description="Several times what a worker can do.")
    parser.add_argument("--times", type=float, default=TIMES, metavar="N", help=f"of the capacity (default: {TIMES:g})")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=f"of each of the two loads (default: {SECONDS:g})")
    parser.add_argument("--submission-requests", type=int, default=100, metavar="N", help="requests of a submission (default: 100)")
    parser.add_argument("--inputs", type=int, default=1, metavar="N", help="inputs of a request (default: 1)")
    parser.add_argument("--brokers", type=int, choices=(0, 1, 3), default=1, help="0: the embedded log (default: 1)")
    parser.add_argument("--connections", type=int, default=CONNECTIONS_MAX, metavar="N", help=f"at most (default: {CONNECTIONS_MAX:,})")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is made (default: 1)")
    parser.add_argument("--out", default="bench-overload.jsonl", metavar="FILE", help="where the JSON line is added; - is stdout")
    chosen = parser.parse_args(arguments)
    interrupt_once()
    try:
        with lines_to(chosen.out, append=True) as lines, brokers_of(chosen.brokers) as cluster, workers_on(cluster) as place:
            report = Report(lines, sys.stderr if chosen.out == "-" else sys.stdout)
            measure(
                report,
                place,
                log_name(chosen.brokers),
                chosen.seconds,
                chosen.seed,
                requests=chosen.submission_requests,
                inputs=chosen.inputs,
                times=chosen.times,
                connections_max=chosen.connections,
            )
            report.print_table()
    except (CannotRun, NotaryError, RuntimeError, OSError) as problem:
        progress(f"cannot go on: {problem}")
        return 2
    except KeyboardInterrupt:
        progress("interrupted")
        return 2
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
