"""The figure `stages`: CPU seconds of a worker for a thousand requests, stage by stage, under a load that keeps it busy."""

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from deploy.local import Cluster
from loadtest.bench.end_to_end import Case, failed, name_of, parameters_of, plan_of, run_load
from loadtest.bench.report import Report
from loadtest.bench.stages.places import INTAKE, SERIAL, STAGES
from loadtest.bench.stages.sampler import DIRECTORY
from loadtest.rig import Place, python_path, workers_on

CASES = (Case(100, 1), Case(100, 4), Case(1, 4))
TOLD_S_MAX = 10.0
_INSIDE = Path(__file__).parent / "inside"


class Account(msgspec.Struct, frozen=True):
    """The CPU time of a process between two signals."""

    spent_s: Mapping[str, float]
    """By stage."""
    beside_s: Mapping[str, float]
    """The part of it spent by other threads of Python than the main thread; mostly without holding the GIL."""
    process_s: float
    looks: int

    @property
    def main_thread_s(self) -> float:
        """The CPU time of the main thread, without the sampler's: one core is full when it is a second in a second."""
        apart = ("native threads", "sampler")
        return sum([cpu_s for stage, cpu_s in self.spent_s.items() if stage not in apart]) - sum(self.beside_s.values())


class Watched(msgspec.Struct, frozen=True):
    """A notary whose worker runs the sampler."""

    place: Place
    accounts: Path
    """The directory with a file of each of its processes."""


@contextlib.contextmanager
def watched(cluster: Cluster | None) -> Iterator[Watched]:
    """Yields a new notary with one worker that runs the sampler, for the length of a block."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-stages-") as directory,
        workers_on(cluster, added={DIRECTORY: directory, "PYTHONPATH": python_path(_INSIDE)}) as place,
    ):
        yield Watched(place, Path(directory))


def measure(report: Report, watched: Watched, case: Case, seconds: float, seed: int) -> None:
    """Measure the figure for one case."""
    place = watched.place
    pids = sorted([int(file.stem) for file in watched.accounts.glob("*.jsonl")])
    told = {pid: len(_lines_of(watched, pid)) for pid in pids}
    plan = msgspec.structs.replace(plan_of(place, case, seconds, seed), marked=pids)
    outcome = run_load(plan)
    figures = figures_of([_between(watched, pid, before + 2) for pid, before in told.items()], outcome.requests)
    figures["requests_per_s"] = outcome.requests / outcome.seconds if outcome.seconds else 0.0
    # The kernel's own count for the same processes, and any that were not marked.
    for who in place.pids:
        figures[f"{who}_cpu_s_per_1000"] = outcome.cpu_seconds[who] / max(outcome.requests, 1) * 1000
    parameters = parameters_of(plan, place.log_name) | {"processes": len(pids)}
    report.add("stages", name_of(case, place), figures, parameters, failed=failed(outcome))


def figures_of(accounts: Sequence[Account], requests: int) -> dict[str, Any]:
    """Returns a worker's CPU seconds for a thousand requests: by stage in the order of a request's path, and their sums."""
    account = total(accounts)
    thousands = max(requests, 1) / 1000
    spent = {stage: account.spent_s.get(stage, 0.0) / thousands for stage in STAGES}
    of_notary = sum([cpu_s for stage, cpu_s in spent.items() if stage != "sampler"])
    intake, serial = [sum([spent[stage] for stage in stages]) for stages in (INTAKE, SERIAL)]
    return {
        "cpu_s_per_1000": spent,
        "beside_cpu_s_per_1000": {stage: cpu_s / thousands for stage, cpu_s in account.beside_s.items()},
        "main_thread_cpu_s_per_1000": max([each.main_thread_s for each in accounts]) / thousands,  # of the busiest process
        "all_stages_cpu_s_per_1000": of_notary,
        "process_cpu_s_per_1000": account.process_s / thousands - spent["sampler"],
        "intake_cpu_s_per_1000": intake,
        "serial_cpu_s_per_1000": serial,
        # A thousand requests take `of_notary` seconds of one core: so many cores for ten thousand in one second.
        "cores_per_10000_per_s": of_notary * 10,
        "looks": account.looks,
    }


def total(accounts: Sequence[Account]) -> Account:
    """Returns the sum over all processes of a worker."""
    return Account(
        _sum([each.spent_s for each in accounts]),
        _sum([each.beside_s for each in accounts]),
        sum([each.process_s for each in accounts]),
        sum([each.looks for each in accounts]),
    )


def _sum(by_stage: Sequence[Mapping[str, float]]) -> dict[str, float]:
    added: dict[str, float] = {}
    for each in by_stage:
        for stage, cpu_s in each.items():
            added[stage] = added.get(stage, 0.0) + cpu_s
    return added


def _between(watched: Watched, pid: int, lines_wanted: int) -> Account:
    """Returns the difference of the last two lines in a process's file, once there are enough: it writes one at its start."""
    ends_s = time.monotonic() + TOLD_S_MAX
    while len(lines := _lines_of(watched, pid)) < lines_wanted:
        if time.monotonic() > ends_s:
            raise RuntimeError(f"process {pid} of the worker has not told what it spent: {len(lines)} of {lines_wanted} lines")
        time.sleep(0.05)
    before, after = [msgspec.json.decode(line, type=Account) for line in lines[-2:]]
    spent, beside = [
        {stage: cpu_s - first.get(stage, 0.0) for stage, cpu_s in last.items()}
        for first, last in ((before.spent_s, after.spent_s), (before.beside_s, after.beside_s))
    ]
    return Account(spent, beside, after.process_s - before.process_s, after.looks - before.looks)


def _lines_of(watched: Watched, pid: int) -> list[str]:
    return (watched.accounts / f"{pid}.jsonl").read_text().splitlines()
