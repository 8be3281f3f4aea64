"""The CPU seconds of a worker for a thousand requests, stage by stage, under a load that keeps it busy.

A sampler runs inside the worker (`sampler`), with a map of code to stages (`stage_map`).
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from deploy.local.process import python_path
from loadtest.bench.figure import COLOURS, Figure, Lines, Part, Row, RunOptions, Step, load_s, series
from loadtest.bench.figures.end_to_end import WARM_UP_S, warm_up
from loadtest.bench.loads import Case, closed_load, failed, name_of, parameters_of, run_load
from loadtest.bench.report import Report, ResultLine
from loadtest.bench.sampler import DIRECTORY, MAP
from loadtest.bench.stage_map import PARALLEL, SERIAL, STAGES, stage_map
from loadtest.rig.notaries import RunningNotary, brokers_of, log_name, workers_on

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

CASES = (Case(100, 1), Case(100, 4), Case(1, 4, 256))
SECONDS_MIN = 6.0
"""The fewest samples for a figure. The sampler takes one every few milliseconds of CPU time."""
WRITTEN_S_MAX = 10.0
WORKERS: Final = (1, 2, 3, 4, 8)


class Account(msgspec.Struct, frozen=True):
    """The CPU time of a process between two signals."""

    spent_s: Mapping[str, float]
    beside_s: Mapping[str, float]
    """The part of it spent by other threads of Python than the main thread; mostly without holding the GIL."""
    process_s: float
    samples: int

    @property
    def main_thread_s(self) -> float:
        """The CPU time of the main thread, without the sampler's. One second a second means that the thread uses a complete core."""
        apart = ("native threads", "sampler")
        return sum([cpu_s for stage, cpu_s in self.spent_s.items() if stage not in apart]) - sum(self.beside_s.values())


class SampledNotary(msgspec.Struct, frozen=True):
    """A notary whose worker runs the sampler."""

    running: RunningNotary
    accounts: Path
    """The directory with a file of each of its processes."""


@contextlib.contextmanager
def sampled(brokers: int) -> Iterator[SampledNotary]:
    """Yields a new notary on new brokers with one worker that runs the sampler, for the length of a block; 0 brokers: the embedded log."""
    with tempfile.TemporaryDirectory(prefix="bench-stages-") as directory, tempfile.TemporaryDirectory(prefix="bench-site-") as site:
        (Path(directory) / MAP).write_bytes(msgspec.json.encode(stage_map()))
        # Python runs this file at its start, also in each process that the worker starts.
        (Path(site) / "sitecustomize.py").write_text("from loadtest.bench.sampler import start\n\nstart()\n")
        added = {DIRECTORY: directory, "PYTHONPATH": python_path(Path(site))}
        with brokers_of(brokers) as cluster, workers_on(cluster, added=added) as running:
            yield SampledNotary(running, Path(directory))


def parts(report: Report, options: RunOptions) -> list[Part]:
    """Returns one part: a notary on one broker, with the sampler."""
    brokers, seconds = 1 if options.brokers is None else options.brokers, max(options.seconds, SECONDS_MIN)
    warm_up_s = min(WARM_UP_S, seconds)

    def step(case: Case, at: int) -> Step:
        text = f"stages: {case.requests} a submission, {case.inputs} inputs"
        return Step(text, load_s(seconds), lambda notary: measure(report, notary, case, seconds, options.seed + 1_000 * at))

    steps = [Step("stages: warming up", 2 * load_s(warm_up_s / 2), lambda notary: warm_up(notary.running, warm_up_s, options.seed))]
    steps += [step(case, at) for at, case in enumerate(CASES, 1)]
    return [Part(f"stages, {log_name(brokers)}", lambda: sampled(brokers), steps)]


def measure(report: Report, notary: SampledNotary, case: Case, seconds: float, seed: int) -> None:
    """Measure the figure for one case."""
    running = notary.running
    pids = sorted([int(file.stem) for file in notary.accounts.glob("*.jsonl")])
    lines_before = {pid: len(_lines_of(notary, pid)) for pid in pids}
    load = msgspec.structs.replace(closed_load(running, case, seconds, seed), marked=pids)
    result = run_load(load)
    figures = figures_of([_between(notary, pid, before + 2) for pid, before in lines_before.items()], result.requests)
    figures["requests_per_s"] = result.requests_per_s
    # The kernel's own count for the same processes, and any that were not marked.
    for name in running.pids:
        figures[f"{name}_cpu_s_per_1000"] = result.cpu_seconds[name] / max(result.requests, 1) * 1000
    parameters = parameters_of(load, running.log_name) | {"processes": len(pids)}
    report.add("stages", name_of(case, running), figures, parameters, failed=failed(result))


def figures_of(accounts: Sequence[Account], requests: int) -> dict[str, Any]:
    """Returns the CPU seconds of a worker's processes for a thousand requests: by stage in the order of a request's path, and their sum."""
    thousands = max(requests, 1) / 1000
    spent = {stage: sum([each.spent_s.get(stage, 0.0) for each in accounts]) / thousands for stage in STAGES}
    beside = {stage: sum([each.beside_s.get(stage, 0.0) for each in accounts]) / thousands for stage in STAGES}
    of_notary = sum([cpu_s for stage, cpu_s in spent.items() if stage != "sampler"])
    return {
        "cpu_s_per_1000": spent,
        "beside_cpu_s_per_1000": {stage: cpu_s for stage, cpu_s in beside.items() if cpu_s},
        "main_thread_cpu_s_per_1000": max([each.main_thread_s for each in accounts]) / thousands,  # of the busiest process
        "all_stages_cpu_s_per_1000": of_notary,
        "process_cpu_s_per_1000": sum([each.process_s for each in accounts]) / thousands - spent["sampler"],
        # A thousand requests take `of_notary` seconds of one core: so many cores for ten thousand in one second.
        "cores_per_10000_per_s": of_notary * 10,
        "looks": sum([each.samples for each in accounts]),
    }


def _between(notary: SampledNotary, pid: int, lines_wanted: int) -> Account:
    """Returns the difference of the last two lines in a process's file, once there are enough: it writes one at its start."""
    ends_s = time.monotonic() + WRITTEN_S_MAX
    while len(lines := _lines_of(notary, pid)) < lines_wanted:
        if time.monotonic() > ends_s:
            raise RuntimeError(f"process {pid} of the worker did not write its CPU times: {len(lines)} of {lines_wanted} lines")
        time.sleep(0.05)
    before, after = [msgspec.json.decode(line, type=Account) for line in lines[-2:]]
    spent, beside = [
        {stage: cpu_s - first.get(stage, 0.0) for stage, cpu_s in last.items()}
        for first, last in ((before.spent_s, after.spent_s), (before.beside_s, after.beside_s))
    ]
    return Account(spent, beside, after.process_s - before.process_s, after.samples - before.samples)


def _lines_of(notary: SampledNotary, pid: int) -> list[str]:
    return (notary.accounts / f"{pid}.jsonl").read_text().splitlines()


# ---- tables and a picture ----


def _stage_rows(lines: Lines) -> Sequence[Row]:
    rows: list[Row] = [("CPU ms for 1,000 requests", "description", *[line.case for line in lines])]
    for stage, description in STAGES.items():
        spent = [_milliseconds(line.figures["cpu_s_per_1000"].get(stage, 0.0)) for line in lines]
        if any(each != "0" for each in spent):
            rows.append((stage, description, *spent))
    for name, description in (
        ("all_stages_cpu_s_per_1000", "**the sum**, without the sampler"),
        ("main_thread_cpu_s_per_1000", "the main thread's part of it; the rest is of other threads"),
        ("process_cpu_s_per_1000", "the process, by its own clock, without the sampler"),
        ("worker_cpu_s_per_1000", "the same by the kernel, with the sampler"),
    ):
        rows.append(("", description, *[_milliseconds(line.figures[name]) for line in lines]))
    rows.append(("", "samples", *[f"{line.figures['looks']:,}" for line in lines]))
    return rows


def _core_rows(lines: Lines) -> Sequence[Row]:
    head = (
        "case", "cores of a worker for 10,000/s", f"of these parallel ({', '.join(PARALLEL)})", f"in order ({', '.join(SERIAL)})",
        "the rest", "brokers", "one worker is full at", "all in order is full at",
    )  # fmt: skip
    rows: list[Row] = [head]
    for line in lines:
        everything, spent = line.figures["all_stages_cpu_s_per_1000"] * 10, line.figures["cpu_s_per_1000"]
        parallel, serial = [sum([spent[stage] for stage in stages]) * 10 for stages in (PARALLEL, SERIAL)]
        brokers = line.figures.get("brokers_cpu_s_per_1000")
        rows.append(
            (
                line.case,
                *[f"{cores:.2f}" for cores in (everything, parallel, serial, everything - parallel - serial)],
                "" if brokers is None else f"{brokers * 10:.2f}",
                f"{1_000 / line.figures['main_thread_cpu_s_per_1000']:,.0f}/s",
                f"{10_000 / serial:,.0f}/s" if serial else "",
            )
        )
    return rows


def _worker_rows(lines: Lines) -> Sequence[Row]:
    """Returns an estimate for workers on machines of their own, with one core for each interpreter: computed, not measured."""
    alone = [line for line in lines if line.parameters["processes"] == 1]
    rows: list[Row] = [("workers", *[f"{line.case}: full at" for line in alone], "cores of all workers then")]
    for workers in WORKERS:
        full = [workers_full_at(line, workers) for line in alone]
        rows.append((str(workers), *[f"{rate:,.0f}/s" for rate, _ in full], ", ".join([f"{cores:.1f}" for _, cores in full])))
    return rows


def workers_full_at(line: ResultLine, workers: int) -> tuple[float, float]:
    """Returns (requests a second, cores of all workers) at the rate where each worker's main thread is fully busy.

    The work for a worker's own requests is shared among the workers; each does the ordered work and reads all of the log. Each also decodes
    the requests that the others admitted, which a single worker does not.
    """
    beside = line.figures["beside_cpu_s_per_1000"]
    spent = {stage: cpu_s for stage, cpu_s in line.figures["cpu_s_per_1000"].items() if stage != "sampler"}
    main = {stage: cpu_s - beside.get(stage, 0.0) for stage, cpu_s in spent.items() if stage != "native threads"}
    everyone = (*SERIAL, "kafka client", "native threads")

    def of_one(costs: Mapping[str, float]) -> float:
        own = sum([cpu_s for stage, cpu_s in costs.items() if stage not in everyone])
        return own / workers + sum([costs.get(stage, 0.0) for stage in everyone]) + costs["decode"] * (workers - 1) / workers

    requests_per_s = 1_000 / of_one(main)
    return requests_per_s, workers * of_one(spent) * requests_per_s / 1_000


def _milliseconds(cpu_s: float) -> str:
    return f"{cpu_s * 1000:.3g}"


def _draw(picture: "Picture", lines: Lines) -> None:
    # Stages that are 0 in all cases have no bar.
    stages = [stage for stage in lines[0].figures["cpu_s_per_1000"] if any(line.figures["cpu_s_per_1000"][stage] > 0 for line in lines)]
    # A submission of one request costs as much as one of many: separate diagrams, each with its own scale.
    groups = series(lines, lambda line: str(line.parameters.get("requests")))
    for axes, group in zip(picture.subplots(1, len(groups), sharey=True, squeeze=False)[0], groups.values(), strict=True):
        height = 0.8 / len(group)
        for at, line in enumerate(group):
            heights = [stage + at * height for stage in range(len(stages))]
            spent = [line.figures["cpu_s_per_1000"][stage] * 1000 for stage in stages]
            hatch = ("", "///", "...", "xxx")[at % 4]
            axes.barh(heights, spent, height, color=COLOURS[at], edgecolor="white", hatch=hatch, label=line.case)
        axes.set_yticks([stage + 0.4 - height / 2 for stage in range(len(stages))], stages)
        axes.set(xlabel="CPU milliseconds for a thousand requests")
        axes.legend(fontsize=7, loc="lower right")
    axes.invert_yaxis()
    picture.suptitle("CPU time of a worker, by stage", fontsize=11)


FIGURES = (
    Figure(
        "stages",
        "which stages use a worker's CPU time under load?",
        parts,
        {"stages": _stage_rows, "cores": _core_rows, "workers": _worker_rows},
        _draw,
    ),
)
