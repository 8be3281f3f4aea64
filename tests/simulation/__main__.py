"""`python -m tests.simulation`: many seeds on all cores, or one with its trace; ends with 1 at a seed that fails."""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from tests.simulation.plan import plan
from tests.simulation.salvaging import salvage_plan
from tests.simulation.simulate import Outcome, simulate

TRACE_LINES = 60
CHUNK = 4
CHUNKS_A_PROCESS = 250
"""Replace each worker process after this many chunks, so that a million seeds do not run out of memory."""
SHOWN_EVERY_S = 30


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 if every seed held, 1 if one failed, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=_positive, default=200, metavar="N", help="how many (default 200)")
    parser.add_argument("--first", type=int, default=1, metavar="K", help="the first of them (default 1)")
    parser.add_argument("--seed", type=int, metavar="K", help="run this one alone, and show its plan and its trace")
    parser.add_argument("--trace", type=_positive, default=TRACE_LINES, metavar="N", help=f"how many lines of it (default {TRACE_LINES})")
    parser.add_argument("--processes", type=_positive, default=os.cpu_count() or 1, metavar="N", help="how many at once (default: cores)")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first seed that fails")
    parser.add_argument("--salvage", action="store_true", help="in each, the log loses its end once and is salvaged")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    asked = parser.parse_args(arguments)
    if asked.seed is not None:
        return _one(asked.seed, asked.trace, salvage=asked.salvage, as_json=asked.json)
    failed: list[Outcome] = []
    counts: Counter[str] = Counter()
    done, virtual_s, began_s = 0, 0.0, time.monotonic()
    progress = _Progress(asked.seeds)
    for outcome in _outcomes(range(asked.first, asked.first + asked.seeds), asked.processes, salvage=asked.salvage):
        done += 1
        virtual_s += outcome.virtual_s
        counts.update(outcome.counts)
        if outcome.problems:
            failed.append(outcome)
            print(f"\rseed {outcome.seed} failed: {outcome.problems[0]}", file=sys.stderr)
            if not asked.go_on:
                break
        progress.show(done, len(failed))
    if sys.stderr.isatty():
        print(file=sys.stderr)
    seconds = time.monotonic() - began_s
    result = {
        "seeds": done,
        "first": asked.first,
        "failed": [outcome.seed for outcome in failed],
        "seconds": round(seconds, 1),
        "virtual_hours": round(virtual_s / 3600, 1),
        "counts": dict(sorted(counts.items())),
    }
    if asked.json:
        print(json.dumps(result))
    else:
        print(f"{done} seeds, {len(failed)} failed, {seconds:.0f} s, {virtual_s / 3600:.1f} hours of simulated time")
        print(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())))
    if failed:
        _one(failed[0].seed, asked.trace, salvage=asked.salvage, as_json=False)
        return 1
    return 0


def _outcomes(seeds: range, processes: int, *, salvage: bool) -> Iterator[Outcome]:
    one = partial(simulate, salvage=salvage)
    if processes == 1 or len(seeds) < 2 * CHUNK:
        yield from map(one, seeds)
        return
    # Spawned, not forked: nothing that one simulation leaves in memory must affect another.
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=CHUNKS_A_PROCESS) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=CHUNK)


def _one(seed: int, lines_max: int, *, salvage: bool, as_json: bool) -> int:
    """Run one seed with its trace and print the outcome; returns True if it failed."""
    trace: list[str] = []
    outcome = simulate(seed, lambda at_s, who, what: trace.append(f"{at_s:9.3f} s  {who:<8} {what}"), salvage=salvage)
    if as_json:
        print(json.dumps({"seed": seed, "problems": outcome.problems, "digest": outcome.digest, "counts": outcome.counts, "trace": trace}))
        return bool(outcome.problems)
    print(f"\nseed {seed}: {salvage_plan(plan(seed)) if salvage else plan(seed)}\n", file=sys.stderr)
    if len(trace) > lines_max:
        print(f"  ... {len(trace) - lines_max} lines before these (--trace {len(trace)} shows them)", file=sys.stderr)
    for line in trace[-lines_max:]:
        print("  " + line[:240], file=sys.stderr)
    for problem in outcome.problems:
        print(f"seed {seed}: {problem}", file=sys.stderr)
    if outcome.problems:
        command = f"python -m tests.simulation --salvage --seed {seed}" if salvage else f"make simulate SEED={seed}"
        print(f"\nto repeat it: {command}", file=sys.stderr)
    else:
        print(f"seed {seed} holds: {outcome.counts}", file=sys.stderr)
    return bool(outcome.problems)


class _Progress:
    """A progress line, overwritten in place on a terminal and printed every `SHOWN_EVERY_S` elsewhere."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._began_s = self._shown_s = time.monotonic()

    def show(self, done: int, failed: int) -> None:
        """Report that this many seeds are done, if the last report is old enough."""
        now_s = time.monotonic()
        terminal = sys.stderr.isatty()
        if done == self._seeds or now_s - self._shown_s > (0.2 if terminal else SHOWN_EVERY_S):
            self._shown_s = now_s
            text = f"{done} of {self._seeds} seeds, {done / max(1e-9, now_s - self._began_s):.1f} a second, {failed} failed"
            print(f"\r{text} " if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return number


if __name__ == "__main__":
    sys.exit(main())
