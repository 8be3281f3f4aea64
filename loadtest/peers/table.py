"""The results of the turns: a JSON line for each peer, and a table for people."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, Final

from loadtest.bench.end_to_end import connections_of
from loadtest.bench.load import Outcome
from loadtest.bench.report import Report, progress
from loadtest.peers.turns import INPUTS

GOALS: Final = {"postgresql": "the notary does 3 times as much", "etcd": "the notary does 10 times as much"}
LIMIT_GOAL: Final = {100: "at least half of append and read"}
WRONG_TOLD: Final = 5
_HEADER: Final = ("requests/s", "p50 ms", "p99 ms", "server s/1000", "worker s/1000", "times: notary")


def add(
    report: Report,
    outcomes: Mapping[str, Sequence[Outcome]],
    requests: int,
    parameters: Mapping[str, Any],
    wrong: Mapping[str, Sequence[str]],
    append_and_read: float | None,
) -> None:
    """Report and print all peers' loads of one size. `append_and_read`: the rate of the log alone, in requests a second."""
    print(f"\n{requests} requests a submission, {connections_of(requests)} connections")
    print("  ".join([" " * 16, *[text.rjust(10) for text in _HEADER]]))
    rates = {name: mean([_rate(each) for each in of_one]) for name, of_one in outcomes.items()}
    for name, of_one in outcomes.items():
        figures, goal = _figures(of_one), GOALS.get(name)
        if "notary" in rates:
            figures["notary_times"] = rates["notary"] / rates[name] if rates[name] else 0.0
        if name == "notary" and append_and_read:
            figures["share_of_append_and_read"] = rates[name] / append_and_read
            goal = LIMIT_GOAL.get(requests)
        for text in wrong[name][:WRONG_TOLD]:
            progress(f"{name} is wrong: {text}")
        failed = bool(wrong[name]) or bool(figures["errors"]) or not rates[name]
        about = {"peer": name, "requests": requests, "inputs": INPUTS, "connections": connections_of(requests), **parameters}
        report.add("peers", f"{name}, {requests} a submission", figures, about, goal, failed=failed)
        cells = [f"{figures['requests_per_s']:,.0f}", *[f"{figures[key]:.1f}" for key in ("latency_ms_p50", "latency_ms_p99")]]
        cells += [f"{figures[f'{who}_cpu_s_per_1000']:.3f}" for who in ("server", "worker")]
        cells.append(f"{figures['notary_times']:.2f}" if "notary_times" in figures else "")
        row = [cell.rjust(max(len(text), 10)) for cell, text in zip(cells, _HEADER, strict=True)]
        print("  ".join([name.ljust(16), *row]) + ("  FAILED" if failed else ""), flush=True)


def _figures(of_one: Sequence[Outcome]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "requests_per_s": mean([_rate(each) for each in of_one]),
        "requests_per_s_of_rounds": [round(_rate(each)) for each in of_one],
        "latency_ms_p50": mean([each.latency_ms_p50 for each in of_one]),
        "latency_ms_p99": mean([each.latency_ms_p99 for each in of_one]),
    }
    requests = max(sum([each.requests for each in of_one]), 1)
    for who in ("server", "worker", "load"):
        figures[f"{who}_cpu_s_per_1000"] = sum([each.cpu_seconds[who] for each in of_one]) / requests * 1000
    figures["others_cores"] = mean([_others_cores(each) for each in of_one])
    figures["errors"] = sum([each.errors for each in of_one])
    if any(each.ran_out for each in of_one):
        figures["ran_out"] = True
    return figures


def _rate(outcome: Outcome) -> float:
    return outcome.requests / outcome.seconds if outcome.seconds else 0.0


def _others_cores(outcome: Outcome) -> float:
    """Returns the cores used by the rest of the machine: the idle peers, and all other processes."""
    spent = dict(outcome.cpu_seconds)
    return max(0.0, spent.pop("machine") - sum(spent.values())) / max(outcome.seconds, 0.001)
