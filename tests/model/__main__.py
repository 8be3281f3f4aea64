"""`python -m tests.model`: random histories, one seed each; `--faults` breaks one rule after the other instead."""

import argparse
import json
import sys
import time
from collections import Counter

from tests.model.faults import FAULTS, RARE
from tests.model.random_history import RandomHistory
from tests.model.real import check_real
from tests.model.traffic import Broken


def one(seed: int, broken: frozenset[str] = frozenset()) -> tuple[str, Counter[str]]:
    """Returns why the history of that seed is wrong, or "", and what occurred in it."""
    model = RandomHistory(seed, broken)
    try:
        model.run_all()
    except (Broken, AssertionError) as problem:
        return str(problem) or repr(problem), model.tally
    return "", model.tally


def noticed(fault: str, seeds: int) -> tuple[int, str]:
    """Returns the first seed that notices a fault, and how; 0 if none does."""
    first = RARE.get(fault, 1)
    for seed in range(first, first + seeds):
        if why := one(seed, frozenset([fault]))[0]:
            return seed, why
    return 0, "not noticed"


def _real(seeds: range, *, as_json: bool) -> int:
    """Give the histories of these seeds to the real readers, up to the first that differs."""
    failed, tried = [], 0
    for tried, seed in enumerate(seeds, 1):  # noqa: B007 - it is reported below
        try:
            check_real(seed)
        except Exception as problem:  # also an assertion of the code under test
            print(f"seed {seed} failed: {problem or problem!r}", file=sys.stderr)
            failed.append(seed)
            break
    print(json.dumps({"seeds": tried, "failed": failed}) if as_json else f"{tried} histories in real records, {len(failed)} failed")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--real", action="store_true", help="give the histories to the real joiner and index")
    parser.add_argument("--json", action="store_true", help="a JSON object with the seeds that were tried and those that failed")
    parser.add_argument("--faults", action="store_true", help="the first seed that notices each broken rule")
    arguments = parser.parse_args()
    if arguments.faults:
        missed = 0
        for fault, (why, seeds) in FAULTS.items():
            seed, how = noticed(fault, seeds)
            missed += not seed
            print(f"{seed or 'NOT':>5} {fault}: {why}; {how}", flush=True)
        return 1 if missed else 0
    if arguments.real:
        return _real(range(arguments.first, arguments.first + arguments.seeds), as_json=arguments.json)
    began = time.monotonic()
    occurred: Counter[str] = Counter()
    for number, seed in enumerate(range(arguments.first, arguments.first + arguments.seeds), 1):
        why, tally = one(seed)
        occurred.update(tally)
        if why:
            print(f"\rseed {seed}: {why}\n  python -m tests.model --seeds 1 --first {seed}")
            return 1
        if number % 50 == 0:
            print(f"\r{number} of {arguments.seeds} histories, {time.monotonic() - began:.0f} s", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for kind, count in sorted(occurred.items()):
        print(f"{count:9,} {kind}")
    print(f"{arguments.seeds:,} histories without a failure, {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
