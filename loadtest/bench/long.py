"""Many requests in one run, which shows whether the last are as fast as the first.

    python -P -m loadtest.bench.long [--requests 10000000] [--inputs 1] [--brokers 1] [--out bench-long.jsonl]

One worker, a closed loop, all answers checked; another process generates the submissions concurrently (`ahead`). The figures of each tenth
of the requests: the rate, latencies, CPU seconds for a thousand requests of worker, brokers and load, the worker's memory, and the disk
space of index and log; also memory and rate by time. Ctrl-C ends it and reports the figures measured so far.
"""

import argparse
import asyncio
import signal
import sys
import time
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec
import uvloop

from loadtest.bench import alone, ready
from loadtest.bench.ahead import Ahead
from loadtest.bench.end_to_end import Case, name_of, plan_of, run_load
from loadtest.bench.facts import cpu_seconds, disk_bytes, machine_cpu_seconds, resident_bytes
from loadtest.bench.load import Failures, wrong
from loadtest.bench.report import Bar, Report, percentile, progress
from loadtest.bench.wire import ClientConnection, connect, head_of
from loadtest.rig import Place, interrupt_once

TENTHS = 10
LOOK_S = 1.0
TIMES_TOLD_MAX = 240
WARM_UP_S = 4.0
MIB = 1 << 20


class Look(msgspec.Struct, frozen=True):
    """The counters at one moment; seconds from the start, CPU time since the processes began."""

    seconds: float
    requests: int
    worker_bytes: int
    brokers_bytes: int
    cpu_s: dict[str, float]


class Tenth(msgspec.Struct, frozen=True):
    """The state at the end of a tenth of the requests."""

    look: Look
    latencies_ms: list[float]
    index_bytes: int
    log_bytes: int


class LongLoad:
    """A closed loop that sends the submissions of another process."""

    def __init__(self, place: Place, ahead: Ahead, requests_of_each: int, connections: int) -> None:
        self._place = place
        self._ahead = ahead
        self._each = requests_of_each
        self._connections = connections
        self._requests_max = ahead.left * requests_of_each
        self._head = head_of(place.urls[0])
        self._asked: dict[ClientConnection, tuple[float, bytes]] = {}  # (time of sending, ids)
        self._free: list[ClientConnection] = []
        self._open = 0
        self._starved = asyncio.Event()
        self._over = asyncio.Event()
        self._started_s = 0.0
        self._latencies_ms: list[float] = []
        self.failures = Failures()
        self.requests = 0
        self.looks: list[Look] = []
        self.tenths: list[Tenth] = []
        self.waited_s = 0.0
        """The time for which connections were free without a submission to send: then the load was the limit."""

    async def run(self) -> None:
        """Run until all is answered, an error occurs, or it is cancelled."""
        await self._ahead.filled()
        made = [await connect(self._place.urls[0], lambda: ClientConnection(self)) for _ in range(self._connections)]
        self._open = len(made)
        self._started_s = time.perf_counter()
        self.looks.append(self._look())
        looking, feeding = asyncio.create_task(self._keep_looking()), asyncio.create_task(self._feed())
        try:
            for connection in made:
                self._send(connection)
            await self._over.wait()
        finally:
            self._over.set()
            looking.cancel()
            feeding.cancel()
            for connection in made:
                connection.close()

    def answered(self, connection: ClientConnection, answer: bytes) -> None:
        """Read the clock, check the answer, send the next submission."""
        sent_s, ids = self._asked[connection]
        self._latencies_ms.append((time.perf_counter() - sent_s) * 1000)
        if (why := wrong(answer, ids, receipts=True)) is not None:
            self.failures.add(why)
            self._over.set()  # later answers prove nothing
        self.requests += self._each
        if self.requests * TENTHS >= self._requests_max * (len(self.tenths) + 1):
            self._end_tenth()
        self._send(connection)

    def lost(self, connection: ClientConnection, why: str) -> None:
        """Note a closed connection: none may close before the end."""
        if not self._over.is_set():
            self.failures.add(why or "the service closed a connection")
            self._over.set()

    def _send(self, connection: ClientConnection) -> None:
        made = self._ahead.take()
        if made is not None:
            self._asked[connection] = (time.perf_counter(), made.ids)
            connection.call(self._head % len(made.body) + made.body)
            return
        self._free.append(connection)
        self._starved.set()
        if not self._ahead.left and len(self._free) == self._open:
            self._over.set()

    async def _feed(self) -> None:
        """Resume connections that had nothing to send once there is a submission."""
        while self._ahead.left:
            await self._starved.wait()
            self._starved.clear()
            since_s = time.perf_counter()
            await self._ahead.more()
            self.waited_s += time.perf_counter() - since_s
            if self._ahead.problem:
                self.failures.add(self._ahead.problem)
                self._over.set()
            free, self._free = self._free, []
            for connection in free:
                self._send(connection)

    async def _keep_looking(self) -> None:
        bar = Bar()
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                before, look = self.looks[-1], self._look()
                self.looks.append(look)
                rate, memory = _rate(before, look), look.worker_bytes // MIB
                details = f"{look.requests:,} of {self._requests_max:,} requests, now {rate:,.0f}/s, worker {memory} MiB"
                bar.show(look.requests / self._requests_max, f"tenth {min(len(self.tenths) + 1, TENTHS)}", details)
        finally:
            bar.end()

    def _look(self) -> Look:
        place = self._place
        return Look(
            seconds=time.perf_counter() - self._started_s,
            requests=self.requests,
            worker_bytes=resident_bytes(place.pids["worker"]),
            brokers_bytes=resident_bytes(place.pids.get("brokers", [])),
            cpu_s={name: cpu_seconds(pids) for name, pids in place.pids.items()}
            | {"load": time.process_time() + cpu_seconds([self._ahead.pid]), "machine": machine_cpu_seconds()},
        )

    def _end_tenth(self) -> None:
        place = self._place
        self.tenths.append(Tenth(self._look(), self._latencies_ms, disk_bytes(place.index), disk_bytes(place.log)))
        self._latencies_ms = []


def figures_of(load: LongLoad) -> dict[str, Any]:
    """Returns the figures of a long load, complete or not."""
    ends = [load.looks[0], *[tenth.look for tenth in load.tenths]]
    tenths = [
        {
            "requests_per_s": _rate(before, tenth.look),
            "latency_ms_p50": percentile(tenth.latencies_ms, 50),
            "latency_ms_p99": percentile(tenth.latencies_ms, 99),
            **{
                f"{name}_cpu_s_per_1000": (cpu_s - before.cpu_s[name]) / (tenth.look.requests - before.requests) * 1000
                for name, cpu_s in tenth.look.cpu_s.items()
            },
            "worker_mib": tenth.look.worker_bytes / MIB,
            "brokers_mib": tenth.look.brokers_bytes / MIB,
            "index_mib": tenth.index_bytes / MIB,
            "log_mib": tenth.log_bytes / MIB,
        }
        for before, tenth in zip(ends, load.tenths, strict=False)
    ]
    last = max(load.looks[-1], ends[-1], key=lambda look: look.seconds)
    told = load.looks[:: len(load.looks) // TIMES_TOLD_MAX + 1]
    figures: dict[str, Any] = {
        "requests": load.requests,
        "seconds": last.seconds,
        "requests_per_s": load.requests / last.seconds if last.seconds else 0.0,
        "tenths": tenths,
        "by_time": [
            {"seconds": after.seconds, "requests_per_s": _rate(before, after), "worker_mib": after.worker_bytes / MIB}
            for before, after in pairwise(told)
        ],
        "load_cores": (last.cpu_s["load"] - load.looks[0].cpu_s["load"]) / last.seconds if last.seconds else 0.0,
        "load_waited_s": load.waited_s,
        "errors": load.failures.count,
    }
    if len(tenths) == TENTHS:
        figures["last_to_first_tenth"] = tenths[-1]["requests_per_s"] / tenths[0]["requests_per_s"]
        rates = [tenth["requests_per_s"] for tenth in tenths]
        figures["slowest_to_median_tenth"] = min(rates) / median(rates)
    return figures


def _rate(before: Look, after: Look) -> float:
    return (after.requests - before.requests) / max(after.seconds - before.seconds, 1e-9)


async def _drive(place: Place, chosen: argparse.Namespace, load_seed: int) -> tuple[LongLoad, bool]:
    """Returns the load, and True if it was completed."""
    async with Ahead.of(load_seed, chosen.submission_requests, chosen.inputs, chosen.requests // chosen.submission_requests) as ahead:
        load = LongLoad(place, ahead, chosen.submission_requests, chosen.connections)
        progress("making the first submissions")
        running = asyncio.create_task(load.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, running.cancel)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        await asyncio.wait([running])
        if running.cancelled():
            return load, False
        running.result()
        return load, not load.failures.count


def measure(report: Report, place: Place, chosen: argparse.Namespace) -> None:
    """Measure the figure `long`, on a running notary."""
    case = Case(chosen.submission_requests, chosen.inputs)
    if chosen.warm_up:
        run_load(plan_of(place, case, chosen.warm_up, chosen.seed + 1))
    load, whole = uvloop.run(_drive(place, chosen, chosen.seed))
    interrupt_once()  # the loop had replaced these signal handlers
    for failure in load.failures.told:
        progress(f"load: {failure}")
    names = ("requests", "submission_requests", "inputs", "connections", "brokers", "seed", "warm_up")
    parameters = {name: getattr(chosen, name) for name in names} | {"log": place.log_name}
    figures = figures_of(load) if load.looks else {"requests": 0}
    if not whole and not load.failures.count:
        figures["interrupted"] = True
    report.add("long", f"{chosen.requests:,} requests, {name_of(case, place)}", figures, parameters, failed=not whole)
    if chosen.ready and whole:
        ready.measure(report, place, chosen.requests)


def main(arguments: list[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.bench.long", description="Many requests in one go.")
    parser.add_argument("--requests", type=int, default=10_000_000, metavar="N", help="of them all (default: 10,000,000)")
    parser.add_argument("--connections", type=int, default=24, metavar="N", help="of the load (default: 24)")
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S, metavar="S", help=f"seconds before it (default: {WARM_UP_S:g})")
    parser.add_argument(
        "--ready", action="store_true", help="then: how soon a worker without an index is ready, by a snapshot and by a replay"
    )
    alone.add_arguments(parser, "bench-long.jsonl")
    chosen = parser.parse_args(arguments)
    if chosen.requests < chosen.submission_requests * TENTHS:
        parser.error(f"--requests: at least {TENTHS} submissions")
    return alone.run(chosen, lambda report, place: measure(report, place, chosen))


if __name__ == "__main__":
    sys.exit(main())
