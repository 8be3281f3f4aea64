"""The figure `stages`: CPU seconds of a worker for a thousand requests, stage by stage, under a load that keeps it busy."""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from deploy.local import Cluster
from loadtest.bench.end_to_end import failed, log_name, parameters_of, run_load
from loadtest.bench.load import Plan
from loadtest.bench.place import workers_on
from loadtest.bench.report import Report
from loadtest.bench.service import python_path
from loadtest.bench.stages.places import INTAKE, SERIAL, STAGES
from loadtest.bench.stages.sampler import DIRECTORY

CASES = ((100, 1, 24), (100, 4, 24), (1, 4, 64))
"""(requests of a submission, inputs, connections)."""
WARM_UP_S = 3.0
REQUESTS_AHEAD_PER_S = {1: 4_500}
REQUESTS_AHEAD_PER_S_ELSE = 30_000
"""Made for each second, by the requests of a submission."""
TOLD_S_MAX = 10.0
_INSIDE = Path(__file__).parent / "inside"


class Account(msgspec.Struct, frozen=True):
    """What a process spent between two signals."""

    spent_s: Mapping[str, float]
    process_s: float
    looks: int


def measure(
    report: Report,
    cluster: Cluster | None,
    brokers: int,
    seconds: float,
    seed: int,
    cases: Sequence[tuple[int, int, int]] = CASES,
    warm_up_s: float = WARM_UP_S,
) -> None:
    """The figure on one log: Kafka with so many brokers, or (0) the embedded one."""
    with tempfile.TemporaryDirectory(prefix="bench-stages-") as directory:
        accounts = Path(directory)
        with workers_on(cluster, added={DIRECTORY: directory, "PYTHONPATH": python_path(_INSIDE)}) as place:
            run_load(Plan(place.urls, seed, 100, 4, 24, warm_up_s, int(warm_up_s * REQUESTS_AHEAD_PER_S_ELSE / 100), {}))
            for at, (requests, inputs, connections) in enumerate(cases, 1):
                plan = Plan(
                    urls=place.urls,
                    seed=seed + at,
                    requests=requests,
                    inputs=inputs,
                    connections=connections,
                    seconds=seconds,
                    submissions_max=int(seconds * REQUESTS_AHEAD_PER_S.get(requests, REQUESTS_AHEAD_PER_S_ELSE) / requests),
                    pids=dict(place.pids),
                    marked=sorted([int(file.stem) for file in accounts.glob("*.jsonl")]),
                )
                outcome = run_load(plan)
                account = total([_between(accounts / f"{pid}.jsonl", 2 * at + 1) for pid in plan.marked])
                figures = figures_of(account, outcome.requests)
                figures["requests_per_s"] = outcome.requests / outcome.seconds if outcome.seconds else 0.0
                # The kernel's own account of the same processes, and of any that was not marked.
                for who in place.pids:
                    figures[f"{who}_cpu_s_per_1000"] = outcome.cpu_seconds[who] / max(outcome.requests, 1) * 1000
                case = f"{requests} a submission, {inputs} inputs, {log_name(brokers)}"
                parameters = parameters_of(plan, log_name(brokers)) | {"processes": len(plan.marked)}
                report.add("stages", case, figures, parameters, failed=failed(outcome))


def figures_of(account: Account, requests: int) -> dict[str, Any]:
    """CPU seconds for a thousand requests by stage, in the order of their way; their sums; and how they add up."""
    thousands = max(requests, 1) / 1000
    spent = {stage: account.spent_s.get(stage, 0.0) / thousands for stage in STAGES}
    of_notary = sum([cpu_s for stage, cpu_s in spent.items() if stage != "sampler"])
    intake, serial = [sum([spent[stage] for stage in stages]) for stages in (INTAKE, SERIAL)]
    return {
        "cpu_s_per_1000": spent,
        "all_stages_cpu_s_per_1000": of_notary,
        "process_cpu_s_per_1000": account.process_s / thousands - spent["sampler"],
        "intake_cpu_s_per_1000": intake,
        "serial_cpu_s_per_1000": serial,
        # A thousand requests in `of_notary` seconds of one core: so many cores for ten thousand in one second.
        "cores_per_10000_per_s": of_notary * 10,
        "looks": account.looks,
    }


def total(accounts: list[Account]) -> Account:
    """All processes of a worker together."""
    spent: dict[str, float] = {}
    for account in accounts:
        for stage, cpu_s in account.spent_s.items():
            spent[stage] = spent.get(stage, 0.0) + cpu_s
    return Account(spent, sum([account.process_s for account in accounts]), sum([account.looks for account in accounts]))


def _between(file: Path, lines_wanted: int) -> Account:
    """The difference of a file's last two lines, once there are so many: a process tells as soon as it runs."""
    ends_s = time.monotonic() + TOLD_S_MAX
    while len(lines := file.read_text().splitlines()) < lines_wanted:
        if time.monotonic() > ends_s:
            raise RuntimeError(f"a process of the worker has not told what it spent: {len(lines)} of {lines_wanted} lines in {file.name}")
        time.sleep(0.05)
    before, after = [msgspec.convert(json.loads(line), Account) for line in lines[-2:]]
    spent = {stage: cpu_s - before.spent_s.get(stage, 0.0) for stage, cpu_s in after.spent_s.items()}
    return Account(spent, after.process_s - before.process_s, after.looks - before.looks)
