"""Many requests in one run, which shows whether the last are as fast as the first.

    python -P -m loadtest.bench.figures.long [--requests 10000000] [--inputs 1] [--brokers 1] [--out bench-long.jsonl]

One worker, a closed loop, all answers checked; another process generates the submissions concurrently (`Ahead`). The figures for each tenth
of the requests are the rate, latencies, CPU seconds of worker, brokers and load for a thousand requests, the worker's memory at its end and
at most, and the disk space of index and log. Memory and rate are also recorded over time. Ctrl-C ends the run and reports the figures
measured so far.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from loadtest.bench.figure import COLOURS, Figure, Lines, Row, add_arguments, run_alone, thousands, values
from loadtest.bench.loads import Case, closed_load, name_of, run_load
from loadtest.bench.report import Report
from loadtest.rig.arguments import count, zero_or_more
from loadtest.rig.closed_loop import ClosedLoop, wrong
from loadtest.rig.generate import Ahead
from loadtest.rig.latencies import Latencies
from loadtest.rig.machine import costs, cpu_seconds, disk_bytes, resident_bytes
from loadtest.rig.notaries import RunningNotary, ending, interrupt_once
from loadtest.rig.progress import Bar, progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

TENTHS = 10
CHECK_S = 1.0
SAMPLES_LISTED_MAX = 240
WARM_UP_S = 4.0
MIB = 1 << 20


class Sample(msgspec.Struct, frozen=True):
    """The counters at one moment; seconds from the start, CPU time since the processes began."""

    seconds: float
    requests: int
    worker_bytes: int
    brokers_bytes: int
    cpu_s: dict[str, float]


class Tenth(msgspec.Struct, frozen=True):
    """The state at the end of a tenth of the requests."""

    sample: Sample
    latencies: Latencies
    index_bytes: int
    log_bytes: int


class LongLoad:
    """A closed loop over the submissions of another process. It reads all counters now and then."""

    def __init__(self, running: RunningNotary, ahead: Ahead, requests_of_each: int) -> None:
        self._running = running
        self._ahead = ahead
        self._each = requests_of_each
        self._requests_max = ahead.left * requests_of_each
        self._started_s = 0.0
        self.loop = ClosedLoop(ahead, lambda answer, ids: wrong(answer, ids, receipts=True), stops_at_failure=True)
        self.loop.on_answer = self._answered
        self.requests = 0
        self.rejected = 0
        """The rejections in complete tenths."""
        self.samples: list[Sample] = []
        self.tenths: list[Tenth] = []

    async def run(self, connections: int) -> None:
        """Run until all is answered, an error occurs, or it is cancelled."""
        await self._ahead.filled()
        await self.loop.connect(self._running.urls[:1], connections)
        self._started_s = time.perf_counter()
        self.samples.append(self._sample())
        sampling = asyncio.create_task(self._keep_sampling())
        try:
            await self.loop.run()
        finally:
            sampling.cancel()

    def _answered(self) -> None:
        self.requests += self._each
        if self.requests * TENTHS >= self._requests_max * (len(self.tenths) + 1):
            sizes = [disk_bytes(folder) for folder in (self._running.index, self._running.log)]
            self.tenths.append(Tenth(self._sample(), self.loop.latencies, *sizes))
            self.rejected += self.loop.rejected
            self.loop.begin()

    async def _keep_sampling(self) -> None:
        bar = Bar()
        try:
            while True:
                await asyncio.sleep(CHECK_S)
                before, sample = self.samples[-1], self._sample()
                self.samples.append(sample)
                rate, memory = _rate(before, sample), sample.worker_bytes // MIB
                details = f"{sample.requests:,} of {self._requests_max:,} requests, now {rate:,.0f}/s, worker {memory} MiB"
                bar.show(sample.requests / self._requests_max, f"tenth {min(len(self.tenths) + 1, TENTHS)}", details)
        finally:
            bar.end()

    def _sample(self) -> Sample:
        pids, spent = self._running.pids, costs(self._running.pids)
        return Sample(
            seconds=time.perf_counter() - self._started_s,
            requests=self.requests,
            worker_bytes=resident_bytes(pids["worker"]),
            brokers_bytes=resident_bytes(pids.get("brokers", [])),
            cpu_s=spent | {"load": spent["load"] + cpu_seconds([self._ahead.pid])},
        )


def _worker_mib(load: LongLoad, first: Sample, last: Sample) -> list[float]:
    """Returns the worker's memory, in MiB, at each sample between these two."""
    return [at.worker_bytes / MIB for at in (*load.samples, last) if first.seconds <= at.seconds <= last.seconds]


def figures_of(load: LongLoad) -> dict[str, Any]:
    """Returns the figures of a long load, complete or not."""
    ends = [load.samples[0], *[tenth.sample for tenth in load.tenths]]
    tenths = [
        {
            "requests_per_s": _rate(before, tenth.sample),
            "latency_ms_p50": tenth.latencies.percentile_ms(50),
            "latency_ms_p99": tenth.latencies.percentile_ms(99),
            **{
                f"{name}_cpu_s_per_1000": (cpu_s - before.cpu_s[name]) / (tenth.sample.requests - before.requests) * 1000
                for name, cpu_s in tenth.sample.cpu_s.items()
            },
            "worker_mib": fmean(memory := _worker_mib(load, before, tenth.sample)),
            "worker_mib_max": max(memory),
            "brokers_mib": tenth.sample.brokers_bytes / MIB,
            "index_mib": tenth.index_bytes / MIB,
            "log_mib": tenth.log_bytes / MIB,
        }
        for before, tenth in zip(ends, load.tenths, strict=False)
    ]
    last = max(load.samples[-1], ends[-1], key=lambda sample: sample.seconds)
    samples = load.samples[:: len(load.samples) // SAMPLES_LISTED_MAX + 1]
    figures: dict[str, Any] = {
        "requests": load.requests,
        "seconds": last.seconds,
        "requests_per_s": last.requests / last.seconds if last.seconds else 0.0,
        "tenths": tenths,
        "by_time": [
            {"seconds": after.seconds, "requests_per_s": _rate(before, after), "worker_mib": after.worker_bytes / MIB}
            for before, after in pairwise(samples)
        ],
        "load_cores": (last.cpu_s["load"] - load.samples[0].cpu_s["load"]) / last.seconds if last.seconds else 0.0,
        "load_waited_s": load.loop.starved_s,
        "rejected": load.rejected + load.loop.rejected,
        "errors": load.loop.failures.count,
    }
    if len(tenths) == TENTHS:
        figures["last_to_first_tenth"] = tenths[-1]["requests_per_s"] / tenths[0]["requests_per_s"]
    return figures


def _rate(before: Sample, after: Sample) -> float:
    return (after.requests - before.requests) / max(after.seconds - before.seconds, 1e-9)


async def _drive(running: RunningNotary, chosen: argparse.Namespace) -> tuple[LongLoad, bool]:
    """Returns the load, and True if it was completed."""
    submissions = chosen.requests // chosen.submission_requests
    async with Ahead.of(chosen.seed, chosen.submission_requests, chosen.inputs, submissions) as ahead:
        load = LongLoad(running, ahead, chosen.submission_requests)
        progress("making the first submissions")
        driving = asyncio.create_task(load.run(chosen.connections))
        for number in ending():
            asyncio.get_running_loop().add_signal_handler(number, driving.cancel)
        await asyncio.wait([driving])
        if driving.cancelled():
            return load, False
        driving.result()
        return load, not load.loop.failures.count


def measure(report: Report, running: RunningNotary, chosen: argparse.Namespace) -> None:
    """Measure the figure `long`, on a running notary."""
    case = Case(chosen.submission_requests, chosen.inputs)
    if chosen.warm_up:
        run_load(closed_load(running, case, chosen.warm_up, chosen.seed + 1))
    report.others.begin()
    load, complete = uvloop.run(_drive(running, chosen))
    interrupt_once()  # the loop had replaced these signal handlers
    for failure in load.loop.failures.first:
        progress(f"load: {failure}")
    names = ("requests", "submission_requests", "inputs", "connections", "brokers", "seed", "warm_up")
    parameters = {name: getattr(chosen, name) for name in names} | {"log": running.log_name}
    figures = figures_of(load) if load.samples else {"requests": 0}
    if not complete and not load.loop.failures.count:
        figures["interrupted"] = True
    report.add("long", f"{chosen.requests:,} requests, {name_of(case, running)}", figures, parameters, failed=not complete)


def main(arguments: list[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.bench.figures.long", description="Many requests in one run.")
    parser.add_argument("--requests", type=count, default=10_000_000, metavar="N", help="of them all (default: 10,000,000)")
    parser.add_argument("--connections", type=count, default=24, metavar="N", help="of the load (default: 24)")
    parser.add_argument("--warm-up", type=zero_or_more, default=WARM_UP_S, metavar="S", help=f"seconds before it (default: {WARM_UP_S:g})")
    add_arguments(parser, "bench-long.jsonl")
    chosen = parser.parse_args(arguments)
    if chosen.requests < chosen.submission_requests * TENTHS:
        parser.error(f"--requests: at least {TENTHS} submissions")
    return run_alone(chosen, lambda report, running: measure(report, running, chosen))


# ---- a table and a picture ----


def _rows(lines: Lines) -> Sequence[Row]:
    line = lines[-1]
    head = (
        "tenth",
        "requests/s",
        "p50",
        "p99",
        "worker, CPU s for 1,000",
        "brokers",
        "worker's memory, on average",
        "at most",
        "index",
        "log",
    )
    rows: list[Row] = [head]
    for number, tenth in enumerate(line.figures["tenths"], 1):
        latencies = [f"{tenth[name]:,.0f} ms" for name in ("latency_ms_p50", "latency_ms_p99")]
        costs = [f"{tenth[name]:.3f}" if name in tenth else "" for name in ("worker_cpu_s_per_1000", "brokers_cpu_s_per_1000")]
        sizes = [f"{tenth[name]:,.0f} MiB" for name in ("worker_mib", "worker_mib_max", "index_mib", "log_mib")]
        rows.append((str(number), f"{tenth['requests_per_s']:,.0f}", *latencies, *costs, *sizes))
    ratio, cores = line.figures.get("last_to_first_tenth"), line.figures["load_cores"]
    everything = (
        f"all: {line.case}"
        + ("" if ratio is None else f"; the last tenth to the first: {ratio:.2f}")
        + f"; the load took {cores:.2f} cores"
    )
    rows.append((everything, f"{line.figures['requests_per_s']:,.0f}", *[""] * 8))
    return rows


def _draw(picture: "Picture", lines: Lines) -> None:
    rates, memory = picture.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    for at, line in enumerate(lines):
        moments = line.figures["by_time"]
        seconds = values(moments, "seconds")
        style: dict[str, Any] = {"color": COLOURS[at], "linewidth": 1.2, "linestyle": ("-", "--", ":", "-.")[at % 4]}
        rates.plot(seconds, values(moments, "requests_per_s"), label=line.case, **style)
        memory.plot(seconds, values(moments, "worker_mib"), **style)
    rates.set(ylabel="decided requests a second", ylim=(0, None))
    rates.set_title("Rate and memory over a long run")
    memory.set(xlabel="seconds", ylabel="worker, MiB", ylim=(0, None))
    thousands(rates)
    rates.legend(fontsize=7)


FIGURES = (Figure("long", "is the ten millionth request as fast as the first?", tables={"long": _rows}, draw=_draw),)

if __name__ == "__main__":
    sys.exit(main())
