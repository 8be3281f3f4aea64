"""Hostile clients, many at once, against one worker that serves a well-behaved load meanwhile: `python -m tests.hostile --seconds 60`.

First the load runs alone, then beside a process that computes as much as it can (`busy`), then with each kind of hostility, then with all
of them together; a table says what was left of its rate.
`tests/notary/http` shows the treatment of each hostile client; this measures the effect on the others (docs/testing.md, Hostile clients).

| file | subject |
|---|---|
| `wire` | a connection that can be misused, and a count of its results |
| `hostile_http` | the kinds that break or stretch HTTP; they need no key and no body that decodes |
| `contents` | the kinds whose calls are in order, and cost the worker much |
| `process` | the hostile clients, in a process of their own |
| `site` | the worker, its prepared log, the well-behaved load, and the measurements |

Hostile clients come from 127.0.1.2 and further, the well-behaved from 127.0.0.1: the limit of connections is for each address.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

import msgspec

from deploy.local import Cluster
from tests.hostile import process
from tests.hostile.site import Seen, Site, made
from tests.hostile.wire import KINDS, total

SHARE_MIN = 0.9
RATE = 200.0
EACH_S = 10.0
COLUMNS = ("kind", "rate kept", "p99 ms", "MiB", "connections", "errors", "dropped", "rejected", "attackers: connections, ended; answers")


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack; exit code 1 if the well-behaved load did not keep its rate, or saw an error."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description="Hostile clients against one worker.")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="with all kinds together (default: 60)")
    parser.add_argument("--each", type=float, default=EACH_S, metavar="S", help=f"alone, and with each kind; 0: not (default: {EACH_S:g})")
    parser.add_argument("--only", action="append", choices=sorted(KINDS), metavar="KIND", help=f"one of {', '.join(sorted(KINDS))}")
    parser.add_argument("--rate", type=float, default=RATE, metavar="N", help=f"well-behaved requests a second (default: {RATE:g})")
    parser.add_argument("--share", type=float, default=SHARE_MIN, help=f"of its rate that the load must keep (default: {SHARE_MIN})")
    parser.add_argument("--kafka", action="store_true", help="three brokers, not the embedded log")
    parser.add_argument("--tls", action="store_true", help="the worker speaks TLS")
    parser.add_argument("--json", action="store_true", help="a JSON line for each phase on stdout, not a table")
    chosen = parser.parse_args(arguments)
    kinds = [name for name in chosen.only or KINDS if KINDS[name].needs in ("", "tls" if chosen.tls else "")]
    compared_s = chosen.each or min(chosen.seconds, EACH_S)
    phases: list[tuple[list[str], float]] = [([], compared_s), (["busy"], compared_s)]
    phases += [([name], chosen.each) for name in kinds if chosen.each]
    phases += [(kinds, chosen.seconds), ([], compared_s)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
        kafka = stack.enter_context(Cluster.create(folder / "kafka", brokers=3)).bootstrap if chosen.kafka else ""
        with redirect_stdout(sys.stderr):  # stdout is for the results
            site = stack.enter_context(made(folder, kafka=kafka, tls=chosen.tls))
        seen = [_phase(site, of, chosen.rate, seconds, f"{at} of {len(phases)}") for at, (of, seconds) in enumerate(phases, 1)]
    if chosen.json:
        for each in seen:
            sys.stdout.buffer.write(msgspec.json.encode(each) + b"\n")
    else:
        print_table(seen)
    bad = [problem for each in seen for problem in problems_of(each, chosen.share)]
    for problem in bad:
        print(problem, file=sys.stderr)
    return bool(bad)


def _phase(site: Site, kinds: Sequence[str], rate: float, seconds: float, at: str) -> Seen:
    print(f"hostile: {at}: {name_of(kinds)}, {seconds:g} s", file=sys.stderr, flush=True)
    return site.phase(kinds, rate, seconds)


def name_of(kinds: Sequence[str]) -> str:
    """Returns the name of a phase in the table."""
    return {0: "nobody", 1: "".join(kinds)}.get(len(kinds), f"all {len(kinds)} together")


def problems_of(seen: Seen, share_min: float) -> list[str]:
    """Returns the problems of a phase, in words."""
    found = [] if seen.share >= share_min else [f"{seen.share:.2f} of the rate was kept, and {share_min} must be"]
    if seen.errors or seen.dropped:
        found.append(f"the well-behaved saw {seen.errors} errors and {seen.dropped} connections that ended: {seen.failures}")
    if seen.connections_after:
        found.append(f"{seen.connections_after} connections were left")
    found += [f"{name} was answered {wrong}" for name, tally in seen.attack.items() for wrong in tally.wrong]
    return [f"{name_of(seen.kinds)}: {problem}" for problem in found]


def print_table(seen: Sequence[Seen]) -> None:
    """Print a table for people; rates are shares of the requests that were due."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for each in seen:
        tally = total(list(each.attack.values()))
        answers = json.dumps(dict(sorted(tally.answers.items()))).replace('"', "")
        figures = [f"{each.share:.3f}", f"{each.p99_ms:.0f}", f"{each.worker_mib_max:.0f}", each.connections_max]
        came = f"{tally.connections}, {tally.ended}; {answers}" if each.kinds else ""
        rows.append((name_of(each.kinds), *map(str, [*figures, each.errors, each.dropped, each.rejected]), came))
    widths = [max([len(row[at]) for row in rows]) for at in range(len(COLUMNS))]
    for row in rows:
        print("  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=True)]).rstrip())


assert process.ALL, "all kinds are registered"

if __name__ == "__main__":
    sys.exit(main())
