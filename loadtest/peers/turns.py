"""The peers and their turns: a load for each, then again for each, so that other activity of the machine affects all."""

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from deploy.local import Cluster
from deploy.local.ports import free_ports
from loadtest.bench.loads import INPUTS, connections_of, run_load
from loadtest.peers import etcd, postgresql
from loadtest.peers.contest import recheck
from loadtest.peers.front import is_ready
from loadtest.peers.servers import Servers
from loadtest.rig import make
from loadtest.rig.closed_loop import ClosedLoad, LoadResult
from loadtest.rig.progress import progress

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


# ---- the notary itself, as one of the systems compared ----


class OurWorker:
    """One worker, started by a module that takes the flags of `notary serve`."""

    def __init__(self, servers: Servers, config: Path, module: Sequence[str], cluster: Cluster, *, intake: int = 0) -> None:
        """Called by `started` only."""
        self._servers = servers
        self._config = config
        self._command = ["env", f"NOTARY_HTTP_INTAKE_PROCESSES={intake}", sys.executable, "-P", "-m", *module]
        self._cluster = cluster
        self.url = ""

    def start(self) -> None:
        """Start the worker on its existing index."""
        (port,) = free_ports(1)
        self.url = url = f"http://127.0.0.1:{port}"
        flags = ["--config", str(self._config), "--name", "peer", "--listen", f"127.0.0.1:{port}"]
        self._servers.start("worker", [*self._command, *flags], lambda: is_ready(url))

    def crash(self) -> None:
        """Kill the worker; the brokers continue."""
        self._servers.kill("worker")

    def pids(self) -> dict[str, list[int]]:
        """Returns the processes that run now."""
        brokers = [broker.process.pid for broker in self._cluster.state.brokers if broker.process]
        return {"server": brokers, "worker": self._servers.pids("worker")}


@contextlib.contextmanager
def our_worker(
    cluster: Cluster, module: Sequence[str] = ("notary", "serve"), *, intake: int = 0, options: Sequence[str] = ()
) -> Iterator[OurWorker]:
    """Yields a worker with `intake` acceptor processes, on a log of its own in these brokers, for the length of a block.

    `options` are for `notary init`.
    """
    with Servers.opened(module[0]) as servers:
        config = make(servers.folder / "notary", cluster.bootstrap, f"peer-{uuid.uuid4().hex[:8]}", *options)
        worker = OurWorker(servers, config, module, cluster, intake=intake)
        worker.start()
        yield worker


# ---- all of them, in turns ----

PEERS: Final[Mapping[str, Callable[[], AbstractContextManager[Peer]]]] = {
    "postgresql": postgresql.started,
    "postgresql-3": lambda: postgresql.started(standbys=2),
    "postgresql-jpa": lambda: postgresql.started("jpa"),
    "etcd": etcd.started,
    "etcd-1": lambda: etcd.started(members=1),
}
ON_BROKERS: Final[Mapping[str, Callable[[Cluster], AbstractContextManager[Peer]]]] = {
    "notary": our_worker,
    "notary-intake": lambda cluster: our_worker(cluster, intake=1),
    # It creates two topics, of which only the ordering topic is used.
    "single-topic": lambda cluster: our_worker(cluster, ["loadtest.peers.single_topic"], options=["--partitions", "1"]),
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
    """Returns the results of each peer's loads; the first is a warm-up and estimates the size of the next. Extends `wrong`.

    Each load has a seed of its own: its states can be consumed only once.
    """
    results: dict[str, list[LoadResult]] = {name: [] for name in peers}
    ahead_per_s = dict.fromkeys(peers, WARM_UP_REQUESTS_PER_S.get(requests, WARM_UP_REQUESTS_PER_S_ELSE) / requests)
    for turn in range(rounds + 1):
        for name, peer in peers.items():
            took_s = seconds if turn else min(seconds, WARM_UP_S)
            # Pending writes of the previous load must not slow this one.
            os.sync()
            seed += 1
            load = ClosedLoad(
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
            result = run_load(load)
            wrong[name].extend(result.failures)
            if result.submissions:
                wrong[name].extend(recheck(peer.url, seed, requests, INPUTS))
            if turn:
                results[name].append(result)
            else:
                ahead_per_s[name] = max(1.5 * result.submissions / max(result.seconds, 0.1), 20.0)
    return results
