"""`python -m tests.mutants`: break one line after the other, and see that the simulator or the small scopes notice; 1 if one lives.

Each mutant is a copy of the source tree in a folder of its own; the checkers and the simulator in it are the same.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tests.mutants.mutants import MUTANTS, SEEDS_MAX, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("ordering", "payload", "joiner", "notary", "deploy", "tests")


class Caught(msgspec.Struct, frozen=True):
    """What noticed a mutant, after how many seeds (0: the small scopes did), and how."""

    name: str
    rule: str
    by: str
    seeds: int
    how: str
    seconds: float


def run(mutant: Mutant, seeds: int = SEEDS_MAX) -> Caught:
    """Run the simulator on it, then, if that held, the small scopes."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        for name in COPIED:
            shutil.copytree(ROOT / name, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
        file = Path(folder) / mutant.file
        file.write_text(mutant.apply(file.read_text()))
        simulated = _python(folder, "tests.simulation", "--seeds", str(seeds), "--processes", "1", "--json")
        if simulated.returncode == 1:
            result = json.loads(simulated.stdout.splitlines()[0])
            how = [line for line in simulated.stderr.splitlines() if line.startswith(f"seed {result['failed'][0]} failed: ")]
            return Caught(mutant.name, mutant.rule, "simulator", result["seeds"], _short(how), time.monotonic() - began_s)
        if simulated.returncode != 0:
            raise RuntimeError(f"{mutant.name}: the simulator could not run: {simulated.stderr[-2000:]}")
        scopes = _python(folder, "tests.scopes", "--scope", "all", "--json")
        if scopes.returncode not in (0, 1) or not scopes.stdout:
            raise RuntimeError(f"{mutant.name}: the small scopes could not run: {scopes.stderr[-2000:]}")
        found = [scope for scope in map(json.loads, scopes.stdout.splitlines()) if scope["violation"]]
        by, how = (f"small scopes: {found[0]['scope']}", found[0]["violation"][:120]) if found else ("", "")
        return Caught(mutant.name, mutant.rule, by, 0, how, time.monotonic() - began_s)


def _python(folder: str, module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    # PYTHONPATH: else the installed packages would be run, not these.
    environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _short(lines: list[str]) -> str:
    return lines[0].partition(": ")[2][:120] if lines else ""


def main(arguments: list[str] | None = None) -> int:
    """0: all were noticed; 1: one was not; 2: usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="only mutants whose names have this in them (may be repeated)")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, metavar="N", help=f"at most so many (default {SEEDS_MAX})")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="how many at once (default: cores)")
    parser.add_argument("--json", action="store_true", help="a JSON object a line instead of the table")
    asked = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if not asked.only or any(part in mutant.name for part in asked.only)]
    if not chosen:
        parser.error(f"no mutant has {asked.only} in its name")
    lived = 0
    if not asked.json:
        print("| mutant | breaks | noticed by | seeds | as |\n|---|---|---|---|---|")
    with ThreadPoolExecutor(asked.processes) as pool:
        for caught in pool.map(lambda mutant: run(mutant, asked.seeds), chosen):
            lived += not caught.by
            if asked.json:
                print(json.dumps(msgspec.to_builtins(caught)), flush=True)
            else:
                print(f"| {caught.name} | {caught.rule} | {caught.by or '**nobody**'} | {caught.seeds or ''} | {caught.how} |", flush=True)
    print(f"{len(chosen)} mutants, {lived} lived", file=sys.stderr)
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
