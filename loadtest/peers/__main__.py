"""The command line: `python -P -m loadtest.peers [--only notary,postgresql,…] [--seconds N] [--requests-per-submission N] [--json FILE]`.

Exit codes: 0 measured; 1 a peer gave a wrong answer, or none; 2 the measurement was impossible.
"""

import argparse
import logging
import signal
import sys
from contextlib import ExitStack
from typing import Final

from loadtest.bench.alone import exit_code
from loadtest.bench.report import Report, lines_to, progress
from loadtest.peers import limits
from loadtest.peers.contest import contest
from loadtest.peers.etcd import Etcd
from loadtest.peers.turns import ON_BROKERS, PEERS, Peer, add_results, start, take_turns
from loadtest.rig import brokers_of

LIMITS: Final = "limits"
NAMES: Final = (*ON_BROKERS, *PEERS, LIMITS)
SEED_STEP: Final = 1_000


def main(arguments: list[str] | None = None) -> int:
    """Compare the peers; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.peers", description="Others at the notary's work, in the same run.")
    parser.add_argument("--only", default=",".join(NAMES), metavar="NAME,…", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load, of which a fifth warms up (default: 10)")
    parser.add_argument("--rounds", type=int, default=2, help="how often each has its turn (default: 2)")
    parser.add_argument("--requests-per-submission", default="1,100", metavar="N,…", help="(default: 1,100)")
    parser.add_argument("--json", default="bench-peers.jsonl", metavar="FILE", help="where the JSON lines go (default: bench-peers.jsonl)")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3, help="of the notary and of single-topic (default: 3)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is made (default: 1)")
    chosen = parser.parse_args(arguments)
    names = chosen.only.split(",")
    if unknown := set(names) - set(NAMES):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(NAMES)}")
    try:
        sizes = [int(size) for size in chosen.requests_per_submission.split(",")]
    except ValueError:
        parser.error("--requests-per-submission: numbers with commas between them")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    # A SIGTERM unwinds like Ctrl-C, so that all started processes are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def measured() -> Report:
        with lines_to(chosen.json) as lines:
            report = Report(lines, sys.stdout)
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
        outcomes = {
            size: take_turns(peers, size, seconds, rounds, seed + SEED_STEP * (at + 1), wrong) for at, size in enumerate(sizes) if peers
        }
        alone: dict[int, float] = {}
        if LIMITS in names:
            assert cluster is not None
            member = peers.get("etcd")
            # After the turns: brokers that were just started are several times slower, and would make the limit look too low.
            alone = limits.measure(report, cluster.bootstrap, member if isinstance(member, Etcd) else None, seconds / 2, seed)
        parameters = {"seconds": seconds, "rounds": rounds, "brokers": brokers, "seed": seed}
        for size, of_all in outcomes.items():
            add_results(report, of_all, size, parameters, wrong, alone.get(size))


if __name__ == "__main__":
    sys.exit(main())
