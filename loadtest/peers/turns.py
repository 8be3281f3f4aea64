"""The peers, their turns, and their results.

A load for each, then again for each, so that other activity of the machine affects all.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from statistics import mean
from typing import Any, Final, Protocol

from deploy.local import Cluster
from loadtest.bench import end_to_end
from loadtest.bench.end_to_end import connections_of
from loadtest.bench.load import LoadResult, Plan
from loadtest.bench.report import Report, progress
from loadtest.peers import etcd, ours, postgresql, single_topic
from loadtest.peers.contest import recheck

INPUTS: Final = end_to_end.INPUTS
WARM_UP_S: Final = 3.0
WARM_UP_REQUESTS_PER_S: Final = {1: 5_000}
WARM_UP_REQUESTS_PER_S_ELSE: Final = 50_000
"""The requests generated ahead for each second of a first load; later loads generate 1.5 times its result."""


class Peer(Protocol):
    """A system that does the notary's work."""

    url: str

    def pids(self) -> dict[str, list[int]]:
        """Returns the processes of its servers and of its worker, now."""
        ...


PEERS: Final[Mapping[str, Callable[[], AbstractContextManager[Peer]]]] = {
    "postgresql": postgresql.started,
    "postgresql-3": lambda: postgresql.started(standbys=2),
    "postgresql-jpa": lambda: postgresql.started("jpa"),
    "etcd": etcd.started,
    "etcd-1": lambda: etcd.started(members=1),
}
ON_BROKERS: Final[Mapping[str, Callable[[Cluster], AbstractContextManager[Peer]]]] = {
    "notary": ours.started,
    "notary-intake": lambda cluster: ours.started(cluster, intake=1),
    "single-topic": single_topic.started,
}


def start(name: str, cluster: Cluster | None) -> AbstractContextManager[Peer]:
    """Starts one peer, for the length of a block. Those on brokers need `cluster`."""
    if name in PEERS:
        return PEERS[name]()
    assert cluster is not None
    return ON_BROKERS[name](cluster)


def take_turns(
    peers: Mapping[str, Peer], requests: int, seconds: float, rounds: int, seed: int, wrong: Mapping[str, list[str]]
) -> dict[str, list[LoadResult]]:
    """Returns the outcomes of each peer's loads; the first is a warm-up and estimates the size of the next. Extends `wrong`.

    Each load has a seed of its own: its states can be consumed only once.
    """
    outcomes: dict[str, list[LoadResult]] = {name: [] for name in peers}
    ahead_per_s = dict.fromkeys(peers, WARM_UP_REQUESTS_PER_S.get(requests, WARM_UP_REQUESTS_PER_S_ELSE) / requests)
    for turn in range(rounds + 1):
        for name, peer in peers.items():
            took_s = seconds if turn else min(seconds, WARM_UP_S)
            # Pending writes of the previous load must not slow this one.
            os.sync()
            seed += 1
            plan = Plan(
                urls=[peer.url],
                seed=seed,
                requests=requests,
                inputs=INPUTS,
                connections=connections_of(requests),
                seconds=took_s,
                submissions_max=max(int(ahead_per_s[name] * took_s), 1),
                pids=peer.pids(),
                receipts=False,
            )
            progress(f"{name}, {'round ' + str(turn) if turn else 'warming up'}")
            outcome = end_to_end.run_load(plan)
            wrong[name].extend(outcome.failures)
            if outcome.submissions:
                wrong[name].extend(recheck(peer.url, seed, requests, INPUTS))
            if turn:
                outcomes[name].append(outcome)
            else:
                ahead_per_s[name] = max(1.5 * outcome.submissions / max(outcome.seconds, 0.1), 20.0)
    return outcomes


GOALS: Final = {"postgresql": "the notary does 3 times as much", "etcd": "the notary does 10 times as much"}
LIMIT_GOAL: Final = {100: "at least half of append and read"}
WRONG_TOLD: Final = 5
_HEADER: Final = ("requests/s", "p50 ms", "p99 ms", "server s/1000", "worker s/1000", "times: notary")


def add_results(
    report: Report,
    outcomes: Mapping[str, Sequence[LoadResult]],
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


def _figures(of_one: Sequence[LoadResult]) -> dict[str, Any]:
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


def _rate(outcome: LoadResult) -> float:
    return outcome.requests / outcome.seconds if outcome.seconds else 0.0


def _others_cores(outcome: LoadResult) -> float:
    """Returns the cores used by the rest of the machine: the idle peers, and all other processes."""
    spent = dict(outcome.cpu_seconds)
    return max(0.0, spent.pop("machine") - sum(spent.values())) / max(outcome.seconds, 0.001)
