"""Ten parties fill a worker together, then one of them sends ten times as much: the share that the other nine keep.

    python -P -m loadtest.bench.figures.fairness [--seconds 10]     one case alone

Each party is a closed loop of a few connections, and its rate is its share. The greedy party sends more in two ways: with ten times as many
connections; or by an open loop at ten times its rate, which sends again at once after a rejection and ignores Retry-After. Each way is
measured between two even loads, and compared with their mean. The clients of all parties are in one process, where the answers to the
greedy party delay the other clients. So the figures are too low rather than too high.
"""

import argparse
import sys
from collections.abc import Sequence
from statistics import mean
from typing import Any, Final

import msgspec

from loadtest.bench import figure
from loadtest.bench.figure import Figure, Part, RunOptions, Step, both, columns, formatted, number
from loadtest.bench.loads import INPUTS, Case, closed_load, failed, name_of, offer_figures, offer_for, parameters_of, run_loads, run_offer
from loadtest.bench.report import Report, ResultLine
from loadtest.rig.arguments import above_zero
from loadtest.rig.closed_loop import ClosedLoad, LoadResult
from loadtest.rig.notaries import RunningNotary, log_name

TIMES: Final = 10
PARTIES: Final = tuple([f"O=Bench Party {number},L=Paris,C=FR" for number in range(10)])
"""The first is the greedy one."""
CASES: Final = (Case(100, INPUTS, connections=100), Case(1, INPUTS, connections=400))
"""Enough connections of each party for its share: with few, it would keep its share only while nothing else waited."""
GOAL: Final = "others keep 0.9 of theirs"
OPEN_CONNECTIONS_MAX: Final = 1_000
"""The connections of the open loop; a worker admits 2,000 by default."""
WARM_UP_S_MAX: Final = 4.0
SECONDS: Final = 10.0


class Phase(msgspec.Struct, frozen=True):
    """One load of all parties."""

    greedy: dict[str, Any]
    others: Sequence[LoadResult]
    cores: dict[str, float]
    failed: bool

    @property
    def rates(self) -> list[float]:
        """The requests a second of each of the others."""
        return [result.requests_per_s for result in self.others]

    @property
    def p99_ms(self) -> float:
        """The largest p99 of the others."""
        return max([result.latency_ms_p99 for result in self.others])


def measure(report: Report, running: RunningNotary, case: Case, seconds: float, seed: int) -> None:
    """Measure the figure for one case: both ways of the greedy party."""
    fill = closed_load(running, case, min(WARM_UP_S_MAX, seconds), seed)
    # In the warm-up nothing is known of the rate; no party gets more than twice its share.
    warm_up = _loads(fill, 2 * fill.submissions_max // len(PARTIES))
    capacity = sum([result.requests_per_s for result in run_loads(warm_up)])
    if not capacity:
        raise RuntimeError("the capacity could not be measured: nothing was decided")
    share = int(2 * capacity * seconds / len(PARTIES) / case.requests) + 100

    def loads(at: int, times: int = 1) -> list[ClosedLoad]:
        return _loads(msgspec.structs.replace(fill, seconds=seconds, seed=seed + at), share, times)

    even = [_closed(loads(1))]
    connections = _closed(loads(2, TIMES))
    even.append(_closed(loads(3)))
    rate = TIMES * mean([phase.greedy["greedy_requests_per_s"] for phase in even])
    open_loop = _open(running, case, loads(4), rate, capacity)
    even.append(_closed(loads(5)))
    parameters = parameters_of(warm_up[1], running.log_name) | {"parties": len(PARTIES), "times": TIMES, "seconds": seconds, "seed": seed}
    del parameters["party"]
    for way, during, around in (("the connections", connections, even[:2]), ("its rate", open_loop, even[1:])):
        name = f"{TIMES} times {way}, {name_of(case, running)}"
        wrong = during.failed or around[0].failed or around[1].failed
        report.add("fairness", name, _figures(during, around), parameters, GOAL, failed=wrong)


def _loads(load: ClosedLoad, submissions_max: int, times: int = 1) -> list[ClosedLoad]:
    """Returns the loads of all parties, equal parts of this one; the greedy party has `times` the connections."""
    connections = -(-load.connections // len(PARTIES))
    return [
        msgspec.structs.replace(
            load,
            party=party,
            seed=1_000 * load.seed + at,
            connections=connections if at else connections * times,
            submissions_max=submissions_max if at else submissions_max * min(times, 5),  # each is two tenths of all: five are all
        )
        for at, party in enumerate(PARTIES)
    ]


def _closed(loads: Sequence[ClosedLoad]) -> Phase:
    greedy, *others = results = run_loads(loads)
    answers = greedy.submissions + greedy.rejected
    figures = {
        "greedy_requests_per_s": greedy.requests_per_s,
        "greedy_rejected_share": greedy.rejected / answers if answers else 0.0,
        "greedy_latency_ms_p99": greedy.latency_ms_p99,
    }
    return Phase(figures, others, _cores(others), any([*map(failed, results)]))


def _open(running: RunningNotary, case: Case, loads: Sequence[ClosedLoad], rate: float, capacity: float) -> Phase:
    greedy, *others = loads
    offer = offer_for(
        running,
        case,
        greedy.seconds,
        greedy.seed,
        rate=rate,
        capacity=capacity,
        connections_max=OPEN_CONNECTIONS_MAX,
        party=greedy.party,
        beside=others,
    )
    offered = run_offer(offer)
    measured = offer_figures(offer, offered)
    figures = {
        "greedy_requests_per_s": measured["goodput_requests_per_s"],
        "greedy_rejected_share": measured["rejected_share"],
        "greedy_latency_ms_p99": measured["from_sending_ms_p99"],
        "greedy_due_requests_per_s": measured["due_requests_per_s"],
        "greedy_sent_requests_per_s": measured["sent_requests_per_s"],
    }
    return Phase(figures, offered.beside, _cores(offered.beside), any([failed(offered), *map(failed, offered.beside)]))


def _cores(results: Sequence[LoadResult]) -> dict[str, float]:
    return {f"{name}_cores": spent_s / results[0].seconds for name, spent_s in results[0].cpu_seconds.items()} if results[0].seconds else {}


def _figures(during: Phase, around: Sequence[Phase]) -> dict[str, Any]:
    base = [mean(rates) for rates in zip(*[phase.rates for phase in around], strict=True)]
    ratios = [rate / its for rate, its in zip(during.rates, base, strict=True) if its]
    return {
        "others_kept": sum(during.rates) / sum(base) if sum(base) else 0.0,
        "least_kept": min(ratios, default=0.0),
        "others_before_after_requests_per_s": [round(sum(phase.rates)) for phase in around],
        "others_requests_per_s": sum(during.rates),
        "others_latency_ms_p99_before_after": [round(phase.p99_ms, 1) for phase in around],
        "others_latency_ms_p99": during.p99_ms,
        "ran_out": bool([result for phase in (during, *around) for result in phase.others if result.ran_out]),
        "others_rejected": sum([result.rejected for result in during.others]),
        "greedy_before_after_requests_per_s": [round(phase.greedy["greedy_requests_per_s"]) for phase in around],
        **during.greedy,
        **during.cores,
    }


def _parts(report: Report, options: RunOptions) -> list[Part]:
    brokers, seconds = 1 if options.brokers is None else options.brokers, options.seconds

    def step(at: int, case: Case) -> Step:
        text = f"fairness: {case.requests} a submission, {log_name(brokers)}"
        took_s = 6 * figure.load_s(2 * seconds)  # twice as many bodies as are sent
        return Step(text, took_s, lambda running: measure(report, running, case, seconds, options.seed + 100 * at))

    steps = [step(at, case) for at, case in enumerate(CASES)]
    return [figure.part_on_notary("fairness", brokers, steps, PARTIES)]


def main(arguments: list[str] | None = None) -> int:
    """Measure one case alone; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.bench.figures.fairness", description="The share that others keep.")
    parser.add_argument("--seconds", type=above_zero, default=SECONDS, metavar="S", help=f"of each of the loads (default: {SECONDS:g})")
    figure.add_arguments(parser, "bench-fairness.jsonl")
    chosen = parser.parse_args(arguments)
    connections = next((case.connections for case in CASES if case.requests == chosen.submission_requests), 0)
    case = Case(chosen.submission_requests, chosen.inputs, connections=connections)
    return figure.run_alone(chosen, lambda report, running: measure(report, running, case, chosen.seconds, chosen.seed), PARTIES)


# ---- the table ----


def _part(line: ResultLine) -> str:
    """Returns the greedy party's part of all decisions meanwhile; a tenth is fair."""
    greedy, others = line.figures["greedy_requests_per_s"], line.figures["others_requests_per_s"]
    return f"{greedy / (greedy + others) if greedy else 0.0:.2f}"


_rows = columns(
    ("one of ten parties sends", figure.case_of),
    ("the others, before and after", lambda line: both(line.figures["others_before_after_requests_per_s"], "/s")),
    ("meanwhile", number("others_requests_per_s", "/s")),
    ("they keep", formatted("others_kept", "{:.2f}")),
    ("the one with least", formatted("least_kept", "{:.2f}")),
    ("their p99, before and after", lambda line: both(line.figures["others_latency_ms_p99_before_after"], " ms")),
    ("meanwhile", number("others_latency_ms_p99", " ms")),
    ("the greedy one decided, before and after", lambda line: both(line.figures["greedy_before_after_requests_per_s"], "/s")),
    ("meanwhile", number("greedy_requests_per_s", "/s")),
    ("its part of all", _part),
    ("of its submissions rejected", formatted("greedy_rejected_share", "{:.0%}")),
)

FIGURES = (
    Figure(
        "fairness",
        "what do nine parties lose when the tenth sends ten times its share?",
        _parts,
        {"fairness": _rows},
    ),
)

if __name__ == "__main__":
    sys.exit(main())
