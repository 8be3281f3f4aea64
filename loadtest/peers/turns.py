"""The peers, and their turns: a load for each, then again for each, so that other activity of the machine affects all."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol

from deploy.local import Cluster
from loadtest.bench import end_to_end
from loadtest.bench.end_to_end import connections_of
from loadtest.bench.load import Outcome, Plan
from loadtest.bench.report import progress
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
) -> dict[str, list[Outcome]]:
    """Returns the outcomes of each peer's loads; the first is a warm-up and estimates the size of the next. Extends `wrong`.

    Each load has a seed of its own: its states can be consumed only once.
    """
    outcomes: dict[str, list[Outcome]] = {name: [] for name in peers}
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
