"""The command line: `python -P -m loadtest.peers [--only notary,postgresql,…] [--seconds N] [--loads N:CONNECTIONS,…] [--json FILE]`.

`--fetch` fetches the peers instead, once: Debian's PostgreSQL if there is none, and etcd built from its modules.

Exit codes: 0 measured; 1 a peer gave a wrong answer, or none; 2 the measurement was impossible.
"""

import argparse
import contextlib
import logging
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from deploy.local import CannotRun, Cluster
from deploy.local.commands import install_debian
from deploy.local.ports import free_ports
from loadtest.bench.figure import exit_code
from loadtest.bench.figures.peers import add_results, measure_limits
from loadtest.bench.loads import INPUTS, Case, run_load
from loadtest.bench.report import Report
from loadtest.peers import etcd, postgresql
from loadtest.peers.contest import contest, recheck
from loadtest.peers.etcd import Etcd
from loadtest.peers.http_adapter import is_ready
from loadtest.peers.servers import Servers
from loadtest.rig.arguments import above_zero, count
from loadtest.rig.closed_loop import ClosedLoad, LoadResult
from loadtest.rig.notaries import brokers_of, make
from loadtest.rig.progress import progress

WARM_UP_S: Final = 3.0
WARM_UP_REQUESTS_PER_S, WARM_UP_ONES_PER_S = 50_000, 5_000
"""The requests generated ahead for each second of a first load; later loads generate 1.5 times its result."""


# ---- the notary itself, as one of the systems compared ----


class OurWorker:
    """One worker, started by a module that takes the flags of `notary serve`."""

    def __init__(self, servers: Servers, config: Path, module: Sequence[str], cluster: Cluster, *, acceptors: int = 0) -> None:
        """Called by `started` only."""
        self._servers = servers
        self._config = config
        self._command = ["env", f"NOTARY_HTTP_ACCEPTOR_PROCESSES={acceptors}", sys.executable, "-P", "-m", *module]
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
    cluster: Cluster, module: Sequence[str] = ("notary", "serve"), *, acceptors: int = 0, options: Sequence[str] = ()
) -> Iterator[OurWorker]:
    """Yields a worker with `acceptors` acceptor processes, on a log of its own in these brokers, for the length of a block.

    `options` are for `notary init`.
    """
    with Servers.opened(module[0]) as servers:
        config = make(servers.folder / "notary", cluster.bootstrap, f"peer-{uuid.uuid4().hex[:8]}", *options)
        worker = OurWorker(servers, config, module, cluster, acceptors=acceptors)
        worker.start()
        yield worker


# ---- all of them, in turns ----

Peer: TypeAlias = OurWorker | Etcd | postgresql.Postgresql
PEERS: Final[Mapping[str, Callable[[], AbstractContextManager[Peer]]]] = {
    "postgresql": postgresql.started,
    "postgresql-3": lambda: postgresql.started(standbys=2),
    "postgresql-jpa": lambda: postgresql.started("jpa"),
    "etcd": etcd.started,
    "etcd-1": lambda: etcd.started(members=1),
}
ON_BROKERS: Final[Mapping[str, Callable[[Cluster], AbstractContextManager[Peer]]]] = {
    "notary": our_worker,
    "notary-acceptor": lambda cluster: our_worker(cluster, acceptors=1),
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
    peers: Mapping[str, Peer], case: Case, seconds: float, rounds: int, seed: int, wrong: Mapping[str, list[str]]
) -> dict[str, list[LoadResult]]:
    """Returns the results of each peer's loads; the first is a warm-up and estimates the size of the next. Extends `wrong`.

    Each load has a seed of its own: its states can be consumed only once.
    """
    results: dict[str, list[LoadResult]] = {name: [] for name in peers}
    ahead_per_s = dict.fromkeys(peers, WARM_UP_ONES_PER_S if case.requests == 1 else WARM_UP_REQUESTS_PER_S / case.requests)
    for turn in range(rounds + 1):
        for name, peer in peers.items():
            took_s = seconds if turn else min(seconds, WARM_UP_S)
            # Pending writes of the previous load must not slow this one.
            os.sync()
            seed += 1
            load = ClosedLoad(
                urls=[peer.url],
                seed=seed,
                requests=case.requests,
                inputs=case.inputs,
                connections=case.connections_each,
                seconds=took_s,
                submissions_max=max(int(ahead_per_s[name] * took_s), 1),
                pids=peer.pids(),
                receipts=False,
            )
            progress(f"{name}, {'round ' + str(turn) if turn else 'warming up'}")
            result = run_load(load)
            wrong[name].extend(result.failures)
            if result.submissions:
                wrong[name].extend(recheck(peer.url, seed, case.requests, case.inputs))
            if turn:
                results[name].append(result)
            else:
                ahead_per_s[name] = max(1.5 * result.submissions / max(result.seconds, 0.1), 20.0)
    return results


# ---- the command line ----

LIMITS: Final = "limits"
NAMES: Final = (*ON_BROKERS, *PEERS, LIMITS)
SEED_STEP: Final = 1_000
DEBIAN_PACKAGE: Final = "postgresql-15"


def main(arguments: list[str] | None = None) -> int:
    """Compare the peers; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.peers", description="Other systems at the notary's work, in the same run.")
    parser.add_argument("--only", default=",".join(NAMES), metavar="NAME,…", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--seconds", type=above_zero, default=10.0, help="of each load, of which a fifth warms up (default: 10)")
    parser.add_argument("--rounds", type=count, default=2, help="turns of each (default: 2)")
    parser.add_argument(
        "--loads",
        default="1,1:256,100",
        metavar="N[:CONNECTIONS],…",
        help="requests of a submission, and the connections if they should be others than usual (default: 1,1:256,100)",
    )
    out = "bench-peers.jsonl"
    parser.add_argument("--json", default=out, metavar="FILE", help=f"where the JSON lines are added (default: {out})")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3, help="of the notary and of single-topic (default: 3)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is generated (default: 1)")
    parser.add_argument("--fetch", action="store_true", help="fetch PostgreSQL and build etcd, where they are missing")
    chosen = parser.parse_args(arguments)
    if chosen.fetch:
        return fetch()
    names = chosen.only.split(",")
    if unknown := set(names) - set(NAMES):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(NAMES)}")
    try:
        cases = [_case(load) for load in chosen.loads.split(",")]
    except ValueError as problem:
        parser.error(f"--loads {chosen.loads}: {problem}")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    in_order = [name for name in NAMES if name in names]
    measure = partial(
        compare, names=in_order, cases=cases, seconds=chosen.seconds, rounds=chosen.rounds, brokers=chosen.brokers, seed=chosen.seed
    )
    return exit_code(measure, chosen.json)


def compare(report: Report, names: list[str], cases: list[Case], seconds: float, rounds: int, brokers: int, seed: int) -> None:
    """Start the peers, measure them in turns, report."""
    with ExitStack() as stack:
        cluster = stack.enter_context(brokers_of(brokers)) if {*ON_BROKERS, LIMITS} & set(names) else None
        peers: dict[str, Peer] = {}
        for name in names:
            if name != LIMITS:
                progress(f"starting {name}")
                peers[name] = stack.enter_context(start(name, cluster))
        wrong = {name: contest(peer.url, seed) for name, peer in peers.items()}
        results: list[dict[str, list[LoadResult]]] = []
        shares: list[float | None] = []
        for at, case in enumerate(cases if peers else []):
            report.others.begin()
            results.append(take_turns(peers, case, seconds, rounds, seed + SEED_STEP * (at + 1), wrong))
            shares.append(report.others.share())
        alone: dict[int, float] = {}
        if LIMITS in names:
            assert cluster is not None
            member = peers.get("etcd")
            # After the turns: brokers that were just started are several times slower, and would make the limit look too low.
            etcd_alone = member.load_alone if isinstance(member, Etcd) else None
            alone = measure_limits(report, cluster.bootstrap, etcd_alone, seconds / 2, seed)
        parameters = {"seconds": seconds, "rounds": rounds, "brokers": brokers, "seed": seed}
        for case, of_all, share in zip(cases, results, shares, strict=False):
            add_results(report, of_all, case, parameters, wrong, alone.get(case.requests), share)


def _case(load: str) -> Case:
    """Returns the case of a load as the command line names it. Raises `ValueError`."""
    numbers = re.fullmatch("([1-9][0-9]*)(?::([1-9][0-9]*))?", load)
    if numbers is None:
        raise ValueError(f"expected N or N:CONNECTIONS, as in 1 or 1:256, got {load!r}")
    return Case(int(numbers[1]), INPUTS, int(numbers[2] or 0))


def fetch() -> int:
    """Fetch the peers that are missing; returns 0, or 2 after printing the remedy."""
    try:
        _fetch_postgresql()
        etcd.build()
    except CannotRun as problem:
        progress(str(problem))
        return 2
    return 0


def _fetch_postgresql() -> None:
    try:
        postgresql.find_binaries()
    except CannotRun as missing:
        try:
            install_debian(DEBIAN_PACKAGE)
        except CannotRun as problem:
            raise CannotRun(f"{missing}\n{problem}") from None
        postgresql.find_binaries()


if __name__ == "__main__":
    sys.exit(main())
