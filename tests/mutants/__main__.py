"""`python -m tests.mutants`: break one line after the other, and see that the simulator notices within the seeds that the mutant states.

It ends with 1 if one survives. Mutants that only the small scopes notice, and those that never end, survive too and are reported. Each
mutant is a copy of the source tree in a folder of its own; the checkers and the simulator in it are the same.
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

from tests.mutants.mutants import MODEL, MUTANTS, SIMULATOR, Mutant

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 1_500
"""The time after which a run counts as hanging. A hang does not count as noticed: a check must fail."""
ARGUMENTS = {SIMULATOR: ("--processes", "1"), MODEL: ("--real",)}
COPIED = ("ordering", "payload", "joiner", "notary", "deploy", "tests")


class Caught(msgspec.Struct, frozen=True):
    """The result for one mutant: the number of seeds until the simulator noticed it (0 if it did not), of how many, and the details."""

    name: str
    rule: str
    seeds: int
    seeds_max: int
    how: str
    seconds: float


def run(mutant: Mutant, seeds_max: int | None = None) -> Caught:
    """Run the simulator on a mutant for its stated number of seeds; if all hold, run the small scopes on it."""
    began_s = time.monotonic()
    seeds_max = seeds_max or mutant.seeds

    def caught(seeds: int, how: str) -> Caught:
        return Caught(mutant.name, mutant.rule, seeds, seeds_max, how, round(time.monotonic() - began_s, 1))

    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        for name in COPIED:
            shutil.copytree(ROOT / name, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name, source in mutant.apply(lambda name: (Path(folder) / name).read_text()).items():
            (Path(folder) / name).write_text(source)
        try:
            simulated = _python(folder, mutant.module, "--seeds", str(seeds_max), *ARGUMENTS[mutant.module], "--json")
            if simulated.returncode == 1:
                result = json.loads(simulated.stdout.splitlines()[0])
                how = [line for line in simulated.stderr.splitlines() if line.startswith(f"seed {result['failed'][0]} failed: ")]
                return caught(result["seeds"], _short(how))
            if simulated.returncode != 0:
                raise RuntimeError(f"{mutant.name}: the simulator could not run: {simulated.stderr[-2000:]}")
            if mutant.module != SIMULATOR:
                return caught(0, "")
            scopes = _python(folder, "tests.scopes", "--scope", "all", "--json")
        except subprocess.TimeoutExpired as hung:
            return caught(0, f"it hangs: {hung.cmd[2]} had not ended after {SECONDS_MAX} s")
    if scopes.returncode not in (0, 1) or not scopes.stdout:
        raise RuntimeError(f"{mutant.name}: the small scopes could not run: {scopes.stderr[-2000:]}")
    found = [scope for scope in map(json.loads, scopes.stdout.splitlines()) if scope["violation"]]
    return caught(0, f"only the small scope {found[0]['scope']}: {found[0]['violation'][:120]}" if found else "")


def _python(folder: str, module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    # PYTHONPATH: otherwise the installed packages would run, not these.
    environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )


def _short(lines: list[str]) -> str:
    return lines[0].partition(": ")[2][:120] if lines else ""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 if each was noticed within its seeds, 1 if one was not, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="only mutants whose names have this in them (may be repeated)")
    parser.add_argument("--seeds", type=int, metavar="N", help="at most so many, instead of those that each mutant states")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="how many at once (default: cores)")
    parser.add_argument("--json", action="store_true", help="a JSON object a line instead of the table")
    asked = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if not asked.only or any(part in mutant.name for part in asked.only)]
    if not chosen:
        parser.error(f"no mutant has {asked.only} in its name")
    lived = 0
    if not asked.json:
        print("| mutant | breaks | seeds | at most | noticed as |\n|---|---|---|---|---|")
    with ThreadPoolExecutor(asked.processes) as pool:
        for caught in pool.map(lambda mutant: run(mutant, asked.seeds), chosen):
            lived += not caught.seeds
            if asked.json:
                print(json.dumps(msgspec.to_builtins(caught)), flush=True)
            else:
                seeds = caught.seeds or "**not noticed**"
                print(f"| {caught.name} | {caught.rule} | {seeds} | {caught.seeds_max} | {caught.how} |", flush=True)
    print(f"{len(chosen)} mutants, {lived} lived", file=sys.stderr)
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
