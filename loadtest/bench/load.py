"""The load, in a process of its own: signed submissions over keep-alive connections, closed loop.

    python -P -m loadtest.bench.load '{"urls": ["http://127.0.0.1:8080"], ...}'     the fields of `Plan`; prints one `LoadResult`

The bodies are generated before the clock starts.
"""

import asyncio
import gc
import os
import re
import signal
import sys
import time
from collections.abc import Sequence

import msgspec
import uvloop

from loadtest.bench.facts import cpu_seconds, machine_cpu_seconds
from loadtest.bench.generate import submissions
from loadtest.bench.report import percentile
from loadtest.bench.wire import ClientConnection, connect, head_of

WARM_UP_SHARE = 0.2
FAILURES_TOLD = 5

_IDS = re.compile(rb'"transaction_id":"([0-9a-f]{64})"').findall
_COMMITTED = b'"outcome":"committed"'
_RECEIPT = b'"receipt":"c2sp.org/tlog-proof@v1'


class Plan(msgspec.Struct, frozen=True):
    """The parameters of one load."""

    urls: Sequence[str]
    """The URLs of the workers; connections are distributed over them."""
    seed: int
    requests: int
    """Requests of one submission."""
    inputs: int
    connections: int
    seconds: float
    submissions_max: int
    """The number of submissions generated ahead; the load ends with them, if not by the clock."""
    pids: dict[str, list[int]]
    """The processes whose CPU seconds to report, by name."""
    receipts: bool = True
    marked: Sequence[int] = ()
    """Processes that get SIGUSR2 when the steady part begins and when it ends (`stages`)."""


class LoadResult(msgspec.Struct):
    """The results of a load in its steady part, and its CPU time."""

    requests: int = 0
    submissions: int = 0
    seconds: float = 0.0
    latency_ms_p50: float = 0.0
    latency_ms_p99: float = 0.0
    latency_ms_max: float = 0.0
    cpu_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    """By the names of the plan's `pids`, with `load` (this process) and `machine` (all processes on it)."""
    errors: int = 0
    failures: list[str] = msgspec.field(default_factory=list)
    ran_out: bool = False
    """True if the bodies ran out before the time: the figures are those of a shorter run."""


class Failures:
    """Errors of a load: their number, and descriptions of the first few."""

    def __init__(self) -> None:
        self.count = 0
        self.told: list[str] = []

    def add(self, text: str) -> None:
        """Count one error."""
        self.count += 1
        if len(self.told) < FAILURES_TOLD:
            self.told.append(text)


def wrong(answer: bytes, ids: bytes, *, receipts: bool) -> str | None:
    """Returns the error in the answer to a submission of new requests with these transaction ids; None if all are committed."""
    requests = len(ids) // 32
    if not answer.startswith(b"HTTP/1.1 200 "):
        return answer[:300].decode(errors="replace")
    if (committed := answer.count(_COMMITTED)) != requests:
        return f"{committed} of {requests} committed"
    if b"".join(_IDS(answer)) != ids.hex().encode():
        return "the answer's transaction ids are not those of the submission, in its order"
    if (found := answer.count(_RECEIPT)) != requests * receipts:
        return f"{found} receipts for {requests} requests"
    return None


class ClosedLoop:
    """A closed loop: each connection sends a submission, waits for the complete answer, checks it, and sends the next."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.at = 0
        self.done: list[tuple[float, float]] = []  # (time of arrival, duration) of each answer
        self.failures = Failures()
        self.ends_at = float("inf")
        self.open = 0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked: dict[ClientConnection, tuple[float, bytes]] = {}  # (time of sending, ids)
        head = head_of(plan.urls[0], receipts=plan.receipts)
        self.made: list[tuple[bytes, bytes]] = []
        for submission in submissions(plan.seed, plan.requests, plan.inputs):
            self.made.append((head % len(submission.body) + submission.body, submission.ids))
            if len(self.made) >= plan.submissions_max:
                break

    def send(self, connection: ClientConnection) -> None:
        """Send the next submission, or close the connection at the end."""
        now = time.perf_counter()
        if self.at >= len(self.made) or now >= self.ends_at:
            connection.close()
            return
        data, ids = self.made[self.at]
        self.at += 1
        self._asked[connection] = (now, ids)
        connection.call(data)

    def answered(self, connection: ClientConnection, answer: bytes) -> None:
        """Read the clock, then check the answer."""
        now = time.perf_counter()
        sent_at, ids = self._asked[connection]
        self.done.append((now, now - sent_at))
        if (why := wrong(answer, ids, receipts=self.plan.receipts)) is not None:
            self.failures.add(why)
        self.send(connection)

    def lost(self, connection: ClientConnection, why: str) -> None:
        """Note a closed connection; it is an error unless `send` closed it."""
        if why:
            self.failures.add(why)
        self.open -= 1
        if not self.open and not self.finished.done():
            self.finished.set_result(None)


async def drive(plan: Plan) -> LoadResult:
    """Generate the bodies, connect, run the load; returns the outcome."""
    run = ClosedLoop(plan)
    # Hundreds of thousands of bodies that live to the end: the garbage collector need not scan them repeatedly.
    gc.collect()
    gc.freeze()
    run.open = plan.connections
    # At once: one after another over a long line they would take so long that the service ends the first, on which nothing came.
    made = await asyncio.gather(*[connect(plan.urls[at % len(plan.urls)], lambda: ClientConnection(run)) for at in range(plan.connections)])
    started = time.perf_counter()
    run.ends_at = started + plan.seconds
    for connection in made:
        run.send(connection)
    sleep = asyncio.ensure_future(asyncio.sleep(plan.seconds * WARM_UP_SHARE))
    await asyncio.wait([sleep, run.finished], return_when=asyncio.FIRST_COMPLETED)
    steady_from, before = time.perf_counter(), _costs(plan)
    # Half a minute after the end every answer has arrived, or never will.
    await asyncio.wait([run.finished], timeout=plan.seconds + 30)
    after = _costs(plan)
    if not run.finished.done():
        run.failures.add(f"{run.open} connections without an answer at the end")
    return _sum_up(run, steady_from, before, after)


def _costs(plan: Plan) -> dict[str, float]:
    for pid in plan.marked:
        os.kill(pid, signal.SIGUSR2)
    return {name: cpu_seconds(pids) for name, pids in plan.pids.items()} | {"load": time.process_time(), "machine": machine_cpu_seconds()}


def _sum_up(run: ClosedLoop, steady_from: float, before: dict[str, float], after: dict[str, float]) -> LoadResult:
    steady = [(at, took) for at, took in run.done if at >= steady_from]
    latencies_ms = [took * 1000 for _, took in steady]
    return LoadResult(
        requests=len(steady) * run.plan.requests,
        submissions=len(steady),
        seconds=max([at for at, _ in steady], default=steady_from) - steady_from,
        latency_ms_p50=percentile(latencies_ms, 50),
        latency_ms_p99=percentile(latencies_ms, 99),
        latency_ms_max=max(latencies_ms, default=0.0),
        cpu_seconds={name: after[name] - before[name] for name in after},
        errors=run.failures.count,
        failures=run.failures.told,
        ran_out=run.at >= len(run.made),
    )


if __name__ == "__main__":
    outcome = uvloop.run(drive(msgspec.json.decode(sys.argv[1], type=Plan)))
    sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
