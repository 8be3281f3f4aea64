"""The command line: `python -P -m loadtest.peers [--only notary,postgresql,…] [--seconds N] [--requests-per-submission N] [--json FILE]`.

`--fetch` fetches the peers instead, once: Debian's PostgreSQL if there is none, and etcd built from its modules.

Exit codes: 0 measured; 1 a peer gave a wrong answer, or none; 2 the measurement was impossible.
"""

import argparse
import logging
import sys
from contextlib import ExitStack
from typing import Final

from deploy.commands import install_debian
from deploy.local import CannotRun
from loadtest.bench.figure import exit_code
from loadtest.bench.figures.peers import add_results, measure_limits
from loadtest.bench.report import Report, report_to
from loadtest.peers import etcd, postgresql
from loadtest.peers.contest import contest
from loadtest.peers.etcd import Etcd
from loadtest.peers.turns import ON_BROKERS, PEERS, Peer, start, take_turns
from loadtest.rig import brokers_of, interrupt_once
from loadtest.rig.closed_loop import LoadResult
from loadtest.rig.progress import progress

LIMITS: Final = "limits"
NAMES: Final = (*ON_BROKERS, *PEERS, LIMITS)
SEED_STEP: Final = 1_000
DEBIAN_PACKAGE: Final = "postgresql-15"


def main(arguments: list[str] | None = None) -> int:
    """Compare the peers; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.peers", description="Other systems at the notary's work, in the same run.")
    parser.add_argument("--only", default=",".join(NAMES), metavar="NAME,…", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load, of which a fifth warms up (default: 10)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each (default: 2)")
    parser.add_argument("--requests-per-submission", default="1,100", metavar="N,…", help="(default: 1,100)")
    parser.add_argument("--json", default="bench-peers.jsonl", metavar="FILE", help="where the JSON lines go (default: bench-peers.jsonl)")
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
        sizes = [int(size) for size in chosen.requests_per_submission.split(",")]
    except ValueError:
        parser.error("--requests-per-submission: numbers with commas between them")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    interrupt_once()

    def measured() -> Report:
        with report_to(chosen.json, table=False) as report:
            compare(report, [name for name in NAMES if name in names], sizes, chosen.seconds, chosen.rounds, chosen.brokers, chosen.seed)
        return report

    return exit_code(measured)


def compare(report: Report, names: list[str], sizes: list[int], seconds: float, rounds: int, brokers: int, seed: int) -> None:
    """Start the peers, measure them in turns, report."""
    with ExitStack() as stack:
        cluster = stack.enter_context(brokers_of(brokers)) if {*ON_BROKERS, LIMITS} & set(names) else None
        peers: dict[str, Peer] = {}
        for name in names:
            if name != LIMITS:
                progress(f"starting {name}")
                peers[name] = stack.enter_context(start(name, cluster))
        wrong = {name: contest(peer.url, seed) for name, peer in peers.items()}
        results: dict[int, dict[str, list[LoadResult]]] = {}
        shares: dict[int, float | None] = {}
        for at, size in enumerate(sizes if peers else []):
            report.begin()
            results[size] = take_turns(peers, size, seconds, rounds, seed + SEED_STEP * (at + 1), wrong)
            shares[size] = report.others_share()
        alone: dict[int, float] = {}
        if LIMITS in names:
            assert cluster is not None
            member = peers.get("etcd")
            # After the turns: brokers that were just started are several times slower, and would make the limit look too low.
            etcd_alone = member.load_alone if isinstance(member, Etcd) else None
            alone = measure_limits(report, cluster.bootstrap, etcd_alone, seconds / 2, seed)
        parameters = {"seconds": seconds, "rounds": rounds, "brokers": brokers, "seed": seed}
        for size, of_all in results.items():
            add_results(report, of_all, size, parameters, wrong, alone.get(size), shares[size])


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
        return
    except CannotRun as problem:
        missing = problem
    try:
        install_debian(DEBIAN_PACKAGE)
    except CannotRun as problem:
        raise CannotRun(f"{missing}\n{problem}") from None
    postgresql.find_binaries()


if __name__ == "__main__":
    sys.exit(main())
