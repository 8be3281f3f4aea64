"""The closed loop: each connection sends a submission, waits for the complete answer, checks it, and sends the next.

    python -P -m loadtest.rig.closed_loop '[{"urls": ["http://127.0.0.1:8080"], ...}]'     each with the fields of `ClosedLoad`

The loads of that list run at once, for several parties; their `LoadResult`s are printed as a list.

`ClosedLoop` takes submissions from any source: a list, or the buffer of another process (`Ahead`). As a command, it generates the bodies
before the clock starts, and runs in a process of its own.
"""

import asyncio
import gc
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec
import uvloop

from loadtest.rig.connections import REJECTED, ClientConnection, connect, head_of, retry_after_s, status_of
from loadtest.rig.generate import Ahead, submissions
from loadtest.rig.latencies import Failures, Latencies
from loadtest.rig.machine import costs
from loadtest.rig.signing import PARTY, Made

WARM_UP_SHARE = 0.2
WARM_UP_S_MAX = 30.0
"""The steady part of all loads begins when each connection has had an answer, or after this time, since workers prefer known clients."""
ANSWER_S_MAX = 30.0
"""The time after the end of a load by which every answer has arrived, or never will."""
STARVED_S = 0.01
"""The time after which a connection without a submission to send looks again."""

_IDS = re.compile(rb'"transaction_id":"([0-9a-f]{64})"').findall
_COMMITTED = b'"outcome":"committed"'
_RECEIPT = b'"receipt":"c2sp.org/tlog-proof@v1'


class GeneratedSubmissions:
    """Submissions that were generated before, with the interface of `Ahead`."""

    problem = ""

    def __init__(self, made: Iterable[Made]) -> None:
        self._made = deque(made)

    @property
    def left(self) -> int:
        """The number of submissions not taken yet."""
        return len(self._made)

    def take(self) -> Made | None:
        """Returns the next submission, or None when none is left."""
        return self._made.popleft() if self._made else None


Check = Callable[[bytes, bytes], str | None]
"""Checks an answer to the submission with these transaction ids: returns None, or the error."""


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
    """One run over the submissions of a source. `stops_at_failure`: after an error the later answers prove nothing.

    After a rejection, the connection waits for Retry-After and sends the same submission again. This happens on slow machines.
    """

    def __init__(self, source: GeneratedSubmissions | Ahead, check: Check, *, stops_at_failure: bool = False) -> None:
        self._source = source
        self._check = check
        self._stops_at_failure = stops_at_failure
        self._head = b""
        self._open: set[ClientConnection] = set()
        self._asked: dict[ClientConnection, tuple[float, Made]] = {}  # in flight, with the time of sending
        self._over = asyncio.Event()
        self._cold: set[ClientConnection] = set()
        self.warm = asyncio.Event()
        """Set when each connection has had an answer that is no rejection, and at the end."""
        self.ends_s = float("inf")
        """The time after which no submission is sent."""
        self.failures = Failures()
        self.submissions = 0
        """The number of answers since the start, or since `begin`."""
        self.rejected = 0
        """The number of rejections in the same time. Each submission was sent again after its Retry-After, unless the load had ended."""
        self.latencies = Latencies()
        """The latencies of the answers that `submissions` counts, from the first byte sent to the last byte received.

        A rejected submission that is not sent again, since the load has ended, adds its wait so far: its latency is at least that.
        """
        self.answered_last_s = 0.0
        self.starved_s = 0.0
        """The mean time for which a connection had no submission to send, so that the load was the limit."""
        self.on_answer: Callable[[], None] = lambda: None
        """Called after each answer, before the next submission is sent."""

    async def connect(self, urls: Sequence[str], connections: int, *, receipts: bool = True) -> None:
        """Open the connections, distributed over the URLs."""
        self._head = head_of(urls[0], receipts=receipts)
        # Open them concurrently: one after another, over a slow network, would take so long that the service closes the first, idle ones.
        opening = [connect(urls[at % len(urls)], lambda: ClientConnection(self)) for at in range(connections)]
        self._open.update(await asyncio.gather(*opening))
        self._cold = set(self._open)

    async def run(self, seconds_max: float | None = None) -> None:
        """Return when all submissions are answered, after an error if it stops there, or after `seconds_max`. Closes the connections."""
        try:
            for connection in list(self._open):
                self._send(connection)
            async with asyncio.timeout(seconds_max):
                await self._over.wait()
        except TimeoutError:
            self.failures.add(f"{len(self._asked)} connections without an answer at the end")
        finally:
            self._over.set()
            self.warm.set()
            for connection in self._open:
                connection.close()

    def begin(self) -> None:
        """Begin to count anew, after a warm-up."""
        self.submissions, self.rejected, self.latencies = 0, 0, Latencies()

    def answered(self, connection: ClientConnection, answer: bytes) -> None:
        """Read the clock, check the answer, send the next submission."""
        now_s = time.perf_counter()
        sent_s, made = self._asked.pop(connection)
        if status_of(answer) in REJECTED and (after_s := retry_after_s(answer)) is not None:
            self.rejected += 1
            self._asked[connection] = sent_s, made  # its latency includes the wait
            asyncio.get_running_loop().call_later(after_s, self._send, connection, (sent_s, made))
            return
        self._warmed(connection)
        self.answered_last_s = now_s
        self.latencies.add((now_s - sent_s) * 1_000)
        self.submissions += 1
        if (why := self._check(answer, made.ids)) is not None:
            self._fail(why)
        self.on_answer()
        self._send(connection)

    def lost(self, connection: ClientConnection, why: str) -> None:
        """Count a connection that the service closed; it is not opened again."""
        if self._over.is_set():
            return
        self._open.discard(connection)
        self._warmed(connection)
        self._asked.pop(connection, None)
        self._fail(why or "the service closed a connection")
        if not self._open or (not self._asked and self._ended()):
            self._over.set()

    def _warmed(self, connection: ClientConnection) -> None:
        self._cold.discard(connection)
        if not self._cold:
            self.warm.set()

    def _fail(self, why: str) -> None:
        self.failures.add(why)
        if self._stops_at_failure:
            self._over.set()

    def _ended(self) -> bool:
        return self._over.is_set() or not self._source.left or time.perf_counter() >= self.ends_s

    def _send(self, connection: ClientConnection, again: tuple[float, Made] | None = None) -> None:
        """Send the next submission, or a rejected one again. The last connection for which there is none ends the run."""
        if connection not in self._open:
            return  # the connection was lost while it waited
        now_s = time.perf_counter()
        self._asked.pop(connection, None)
        sent_s, made = again or (now_s, None)
        if now_s >= self.ends_s or self._over.is_set():
            if made is not None:
                self.latencies.add((now_s - sent_s) * 1_000)
            made = None
        elif made is None:
            made = self._source.take()
        if made is not None:
            self._asked[connection] = sent_s, made
            connection.call(self._head % len(made.body) + made.body)
            return
        if self._ended():
            if not self._asked:
                self._over.set()
        elif self._source.problem:
            self.failures.add(self._source.problem)
            self._over.set()
        else:
            self.starved_s += STARVED_S / len(self._open)
            asyncio.get_running_loop().call_later(STARVED_S, self._send, connection)


# ---- one load, in a process of its own ----


class ClosedLoad(msgspec.Struct, frozen=True):
    """The parameters of one load."""

    urls: Sequence[str]
    """The URLs of the workers; connections are distributed over them."""
    seed: int
    requests: int
    inputs: int
    connections: int
    seconds: float
    submissions_max: int
    """The number of submissions generated ahead; the load ends with them, if not by the clock."""
    pids: dict[str, list[int]]
    """The processes whose CPU seconds to report, by name."""
    receipts: bool = True
    party: str = PARTY
    marked: Sequence[int] = ()
    """Processes that get SIGUSR2 when the steady part begins and when it ends (`stages`)."""


class LoadResult(msgspec.Struct):
    """The results of a load in its steady part, and its CPU time."""

    requests: int = 0
    submissions: int = 0
    rejected: int = 0
    seconds: float = 0.0
    """The time until the last answer, and at least until the end of the load, unless its submissions ran out."""
    latency_ms_p50: float = 0.0
    latency_ms_p99: float = 0.0
    histogram: str = msgspec.field(default_factory=lambda: Latencies().encode())
    """All latencies, as `Latencies.encode` writes them; results of several loads can be added."""
    cpu_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    """By the names of the load's `pids`, with `load` (this process) and `machine` (all processes on it)."""
    errors: int = 0
    failures: list[str] = msgspec.field(default_factory=list)
    ran_out: bool = False
    """True if no bodies were left before the end: the figures are those of a shorter run."""

    @property
    def requests_per_s(self) -> float:
        """The rate; 0 for a load without an answer."""
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def others_cores(self) -> float:
        """The cores used by all processes that are not among the load's `pids`. If it is high, requests a second mean little."""
        spent = dict(self.cpu_seconds)
        return max(0.0, spent.pop("machine") - sum(spent.values())) / self.seconds if self.seconds else 0.0


async def drive(loads: Sequence[ClosedLoad]) -> list[LoadResult]:
    """Generate the bodies of all loads, then run all at once; returns their results. CPU seconds are those of the process."""
    prepared = [PreparedLoad(load) for load in loads]
    # Hundreds of thousands of bodies that live to the end: the garbage collector need not scan them repeatedly.
    gc.collect()
    gc.freeze()
    return await run_all(prepared)


async def run_all(loads: "Sequence[PreparedLoad]", steady: "asyncio.Future[float] | None" = None) -> list[LoadResult]:
    """Run prepared loads at once; returns their results. The steady part of all begins at once, when all are warm.

    `steady`: a future of another load. These loads wait for it too, and end at the time that is its result, by `time.perf_counter`.
    """
    for load in loads:
        await load.begin()
    warm = asyncio.gather(*[load.is_warm() for load in loads])
    await asyncio.wait([warm], timeout=WARM_UP_S_MAX)
    ends_s = None if steady is None else await steady
    return await asyncio.gather(*[load.measure(ends_s) for load in loads])


class PreparedLoad:
    """One load with its bodies."""

    def __init__(self, load: ClosedLoad) -> None:
        self._load = load
        made = islice(submissions(load.seed, load.requests, load.inputs, party=load.party), load.submissions_max)
        self._source = GeneratedSubmissions(made)
        self._loop = ClosedLoop(self._source, lambda answer, ids: wrong(answer, ids, receipts=load.receipts))
        self._running: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Connect, and start the load."""
        load, loop = self._load, self._loop
        await loop.connect(load.urls, load.connections, receipts=load.receipts)
        self._running = asyncio.create_task(loop.run(load.seconds + WARM_UP_S_MAX + ANSWER_S_MAX))

    async def is_warm(self) -> None:
        """Return when the steady part may begin."""
        assert self._running is not None
        await asyncio.wait([self._running], timeout=self._load.seconds * WARM_UP_SHARE)
        await self._loop.warm.wait()

    async def measure(self, ends_s: float | None = None) -> LoadResult:
        """Run the steady part, until `ends_s` or for its own time; returns its result."""
        load, loop = self._load, self._loop
        assert self._running is not None
        steady_from_s, before = time.perf_counter(), _costs(load)
        loop.ends_s = steady_from_s + load.seconds * (1 - WARM_UP_SHARE) if ends_s is None else ends_s
        loop.begin()
        await self._running
        after = _costs(load)
        percentiles, ran_out = loop.latencies.percentiles(), not self._source.left
        ended_s = loop.answered_last_s if ran_out else max(loop.ends_s, loop.answered_last_s)
        return LoadResult(
            requests=loop.submissions * load.requests,
            submissions=loop.submissions,
            rejected=loop.rejected,
            seconds=ended_s - steady_from_s if loop.submissions else 0.0,
            latency_ms_p50=percentiles.p50,
            latency_ms_p99=percentiles.p99,
            histogram=loop.latencies.encode(),
            cpu_seconds={name: after[name] - before[name] for name in after},
            errors=loop.failures.count,
            failures=loop.failures.first,
            ran_out=ran_out,
        )


def _costs(load: ClosedLoad) -> dict[str, float]:
    for pid in load.marked:
        os.kill(pid, signal.SIGUSR2)
    return costs(load.pids)


if __name__ == "__main__":
    results = uvloop.run(drive(msgspec.json.decode(sys.argv[1], type=list[ClosedLoad])))
    sys.stdout.buffer.write(msgspec.json.encode(results) + b"\n")
