"""The load, in a process of its own: signed submissions over keep-alive connections, closed loop.

    python -m loadtest.bench.load '{"url": "http://127.0.0.1:8080", ...}'     the fields of `Plan`; prints one `Outcome`

The bodies are made before the clock starts. The client is a bare `asyncio.Protocol` that understands what this service
answers (a head with Content-Length, then a body), since whatever it costs is missing from the worker beside it.
"""

import asyncio
import gc
import re
import sys
import time
from typing import cast
from urllib.parse import urlsplit

import msgspec
import uvloop

from loadtest.bench.facts import cpu_seconds, machine_cpu_seconds
from loadtest.bench.generate import submissions
from loadtest.bench.report import percentile

WARM_UP_SHARE = 0.2
FAILURES_TOLD = 5

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE).search
_IDS = re.compile(rb'"transaction_id":"([0-9a-f]{64})"').findall
_COMMITTED = b'"outcome":"committed"'
_RECEIPT = b'"receipt":"c2sp.org/tlog-proof@v1'


class Plan(msgspec.Struct, frozen=True):
    """One load."""

    url: str
    seed: int
    requests: int
    """Requests of one submission."""
    inputs: int
    connections: int
    seconds: float
    submissions_max: int
    """How many are made ahead; the load ends with them, if not by the clock."""
    pids: dict[str, list[int]]
    """Whose CPU seconds to tell, by name."""
    receipts: bool = True


class Outcome(msgspec.Struct):
    """What a load saw in its steady part, and what it cost."""

    requests: int = 0
    submissions: int = 0
    seconds: float = 0.0
    latency_ms_p50: float = 0.0
    latency_ms_p99: float = 0.0
    latency_ms_max: float = 0.0
    cpu_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    """By the names of the plan's `pids`, with `load` (this process) and `machine` (everything on it)."""
    errors: int = 0
    failures: list[str] = msgspec.field(default_factory=list)
    ran_out: bool = False
    """Whether the bodies ended before the time: the figures stand for a shorter run."""


class Run:
    """What all connections share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.at = 0
        self.done: list[tuple[float, float]] = []  # (when, how long) of each answer
        self.failures: list[str] = []
        self.errors = 0
        self.ends_at = float("inf")
        self.open = 0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        host = urlsplit(plan.url).netloc
        query = "" if plan.receipts else "?receipts=false"
        head = (
            f"POST /v1/submissions{query} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n".encode()
        )
        self.made: list[tuple[bytes, bytes]] = []
        for submission in submissions(plan.seed, plan.requests, plan.inputs):
            self.made.append((head % len(submission.body) + submission.body, submission.ids))
            if len(self.made) >= plan.submissions_max:
                break

    def fail(self, text: str) -> None:
        """Count what should not have been."""
        self.errors += 1
        if len(self.failures) < FAILURES_TOLD:
            self.failures.append(text)

    def leave(self) -> None:
        """A connection is through."""
        self.open -= 1
        if not self.open and not self.finished.done():
            self.finished.set_result(None)


class Connection(asyncio.Protocol):
    """One client: sends, waits for the whole answer, checks it, sends the next."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._buffer = b""
        self._length = -1
        self._sent_at = 0.0
        self._ids = b""
        self._waiting = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected; `send` starts it."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self._run.open += 1

    def send(self) -> None:
        """The next submission, or the end."""
        run = self._run
        now = time.perf_counter()
        if run.at >= len(run.made) or now >= run.ends_at:
            self._transport.close()
            return
        self._waiting = True
        data, self._ids = run.made[run.at]
        run.at += 1
        self._sent_at = now
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Gather one whole answer; check it only after the clock was read."""
        buffer = self._buffer + data if self._buffer else data
        if self._length < 0:
            head_end = buffer.find(b"\r\n\r\n")
            found = _LENGTH(buffer, 0, head_end) if head_end >= 0 else None
            if found is None:
                self._buffer = buffer
                return
            self._length = head_end + 4 + int(found[1])
        if len(buffer) < self._length:
            self._buffer = buffer
            return
        self._buffer, self._length, self._waiting = b"", -1, False
        now = time.perf_counter()
        self._run.done.append((now, now - self._sent_at))
        self._check(buffer)
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of this one; an error unless it was `send` that ended it."""
        if self._waiting:
            self._run.fail(f"connection lost with a submission unanswered: {exc or 'closed by the service'}")
        self._run.leave()

    def _check(self, answer: bytes) -> None:
        requests = self._run.plan.requests
        if not answer.startswith(b"HTTP/1.1 200 "):
            self._run.fail(answer[:300].decode(errors="replace"))
        elif answer.count(_COMMITTED) != requests:
            self._run.fail(f"{answer.count(_COMMITTED)} of {requests} committed")
        elif b"".join(_IDS(answer)) != self._ids.hex().encode():
            self._run.fail("the answer's transaction ids are not those of the submission, in its order")
        elif answer.count(_RECEIPT) != requests * self._run.plan.receipts:
            self._run.fail(f"{answer.count(_RECEIPT)} receipts for {requests} requests")


async def drive(plan: Plan) -> Outcome:
    """Make the bodies, connect, load, sum up."""
    run = Run(plan)
    # Hundreds of thousands of bodies that live to the end: nothing for the collector to look at again and again.
    gc.collect()
    gc.freeze()
    loop = asyncio.get_running_loop()
    address = urlsplit(plan.url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    made = [await loop.create_connection(lambda: Connection(run), host, port) for _ in range(plan.connections)]
    started = time.perf_counter()
    run.ends_at = started + plan.seconds
    for _, connection in made:
        connection.send()
    sleep = asyncio.ensure_future(asyncio.sleep(plan.seconds * WARM_UP_SHARE))
    await asyncio.wait([sleep, run.finished], return_when=asyncio.FIRST_COMPLETED)
    steady_from, before = time.perf_counter(), _costs(plan)
    # Half a minute past the end every answer has come, or never will.
    await asyncio.wait([run.finished], timeout=plan.seconds + 30)
    after = _costs(plan)
    if not run.finished.done():
        run.fail(f"{run.open} connections without an answer at the end")
    return _sum_up(run, steady_from, before, after)


def _costs(plan: Plan) -> dict[str, float]:
    return {name: cpu_seconds(pids) for name, pids in plan.pids.items()} | {"load": time.process_time(), "machine": machine_cpu_seconds()}


def _sum_up(run: Run, steady_from: float, before: dict[str, float], after: dict[str, float]) -> Outcome:
    steady = [(at, took) for at, took in run.done if at >= steady_from]
    latencies_ms = [took * 1000 for _, took in steady]
    return Outcome(
        requests=len(steady) * run.plan.requests,
        submissions=len(steady),
        seconds=max([at for at, _ in steady], default=steady_from) - steady_from,
        latency_ms_p50=percentile(latencies_ms, 50),
        latency_ms_p99=percentile(latencies_ms, 99),
        latency_ms_max=max(latencies_ms, default=0.0),
        cpu_seconds={name: after[name] - before[name] for name in after},
        errors=run.errors,
        failures=run.failures,
        ran_out=run.at >= len(run.made),
    )


if __name__ == "__main__":
    outcome = uvloop.run(drive(msgspec.json.decode(sys.argv[1], type=Plan)))
    sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
