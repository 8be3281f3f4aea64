"""The open loop: submissions are sent when they are due, even at far more than the capacity.

    python -P -m loadtest.rig.open_loop '{"urls": ["http://127.0.0.1:8080"], ...}'     the fields of `Offer`; prints one `Offered`

A due submission takes a free connection. Without one it waits, and the wait is part of its latency, which counts from the intended start.
Connections are opened before the start, or on demand. A rejected submission (503, 429) was not admitted, so its bytes are offered again
later, like another client's. So no more submissions are generated than can be decided. In addition, probes check Retry-After.
"""

import asyncio
import contextlib
import gc
import sys
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from urllib.parse import urlsplit

import msgspec
import uvloop

from loadtest.rig.closed_loop import ClosedLoad, LoadResult, PreparedLoad, run_all, wrong
from loadtest.rig.connections import (
    REJECTED,
    ClientConnection,
    Probe,
    ProbeResults,
    connect,
    head_of,
    results_of,
    retry_after_s,
    status_of,
)
from loadtest.rig.generate import submissions
from loadtest.rig.latencies import Failures, Latencies, Percentiles, percentiles_of
from loadtest.rig.machine import costs, resident_bytes
from loadtest.rig.schedule import Stage, slots
from loadtest.rig.signing import PARTY, Made

WARM_UP_SHARE = 0.3
"""The warm-up's share of the time; a queue takes seconds until it is full."""
TICK_S = 0.001
CHECK_S = 0.5
CONNECTING_MAX = 64
OPENINGS_MAX = 5
"""The attempts to open each connection before the start."""


class Offer(msgspec.Struct, frozen=True):
    """The parameters of one load."""

    urls: Sequence[str]
    seed: int
    requests: int
    """Requests of one submission."""
    inputs: int
    requests_per_s: float
    seconds: float
    decided_per_s_max: float
    """The requests generated ahead for each second; rejected ones are offered again."""
    connections_max: int
    pids: dict[str, list[int]]
    """The processes whose CPU seconds and memory to report, by name."""
    probes: int = 0
    receipts: bool = True
    connections_open: bool = True
    """True if all connections are opened before the start, like those of long-lived clients; else each is opened when needed."""
    party: str = PARTY
    beside: Sequence[ClosedLoad] = ()
    """Closed loops that run in the same process meanwhile, as of other parties."""
    drain_s_max: float = 60.0
    """The time after the end in which answers are still awaited."""


class Second(msgspec.Struct):
    """The results of one interval of the run (`CHECK_S`); counts are submissions."""

    seconds: float
    decided: int
    rejected: int
    worker_mib: float


class Offered(msgspec.Struct):
    """The results of one load. Counts are submissions of the steady part, except `errors`, `ran_out` and `unsent`."""

    seconds: float = 0.0
    due: int = 0
    sent: int = 0
    decided: int = 0
    undecided: int = 0
    """Admitted, and answered 202."""
    rejected: int = 0
    dropped: int = 0
    """Sent, and the connection ended without an answer."""
    unsent: int = 0
    """Due before the end, and never sent: no connection was free."""
    decided_ms: Percentiles = msgspec.field(default_factory=Percentiles)
    """From the intended start to the complete answer, for those due in the steady part and decided at any time."""
    answered_ms: Percentiles = msgspec.field(default_factory=Percentiles)
    """From sending to the answer, for those sent in the steady part."""
    rejected_ms: Percentiles = msgspec.field(default_factory=Percentiles)
    """From sending to the rejection."""
    late_ms: Percentiles = msgspec.field(default_factory=Percentiles)
    """From the intended start to sending."""
    retry_after_s: Percentiles = msgspec.field(default_factory=Percentiles)
    """The Retry-After values in all rejections."""
    probes: ProbeResults = msgspec.field(default_factory=ProbeResults)
    drained_s: float = 0.0
    """From the last intended start to the last answer."""
    by_time: list[Second] = msgspec.field(default_factory=list)
    cpu_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    errors: int = 0
    failures: list[str] = msgspec.field(default_factory=list)
    ran_out: bool = False
    beside: list[LoadResult] = msgspec.field(default_factory=list)
    """The results of the closed loops."""


class SentSubmission(msgspec.Struct, frozen=True, gc=False):
    """A submission in flight."""

    made: Made
    due_s: float
    sent_s: float


class OpenLoop:
    """The state of one run, on one event loop."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        count = int(offer.decided_per_s_max * offer.seconds / offer.requests) + offer.connections_max + 1
        count = min(count, int(offer.requests_per_s * offer.seconds / offer.requests) + 1_000 * offer.probes + 1)
        self.pool = deque(islice(submissions(offer.seed, offer.requests, offer.inputs, party=offer.party), count))
        self.head = head_of(offer.urls[0], receipts=offer.receipts)
        self._greeting = f"GET /v1/notary HTTP/1.1\r\nHost: {urlsplit(offer.urls[0]).netloc}\r\n\r\n".encode()
        self.outcome = Offered()
        self.failures = Failures()
        self._free: deque[ClientConnection] = deque()
        self._asked: dict[ClientConnection, SentSubmission] = {}
        self._greeted: dict[ClientConnection, asyncio.Future[bool]] = {}
        self._waiting: deque[float] = deque()  # the intended starts of submissions without a connection
        self._open = self._opening = 0
        self._openings: set[asyncio.Task[None]] = set()
        self._steady = False
        self._counts_from_s = float("inf")
        self._drained = asyncio.Event()
        self._decided_ms = Latencies()
        self._answered_ms = Latencies()
        self._rejected_ms = Latencies()
        self._late_ms = Latencies()
        self._retry_after_s: list[float] = []
        self._decided = self._rejected = 0
        self._answered_last_s = 0.0

    async def run(self) -> Offered:
        """Offer submissions, wait for those admitted; returns the results."""
        offer, outcome = self.offer, self.outcome
        if offer.connections_open:
            await self._open_all()
        probes = [Probe(offer.urls[0], self.head, self.pool, obedient=bool(number % 2)) for number in range(offer.probes)]
        # Staggered: probes with the same Retry-After at the same time would return together, in effect as one client.
        probing = [asyncio.create_task(probe.run(offer.seconds * WARM_UP_SHARE * at / len(probes))) for at, probe in enumerate(probes)]
        started_s = time.perf_counter()
        looking = asyncio.create_task(self._keep_looking(started_s))
        schedule = slots([Stage("", offer.requests_per_s, offer.seconds)], offer.requests)
        slot = next(schedule, None)
        steady_from_s = started_s + offer.seconds * WARM_UP_SHARE
        before: dict[str, float] = {}
        while slot is not None:
            now_s = time.perf_counter()
            if not self._steady and now_s >= steady_from_s:
                self._steady, before, steady_from_s = True, costs(offer.pids), now_s
                self._counts_from_s = now_s
            while slot is not None and (due_s := started_s + slot.due_s) <= now_s:
                outcome.due += self._steady
                self._offer(due_s)
                slot = next(schedule, None)
            await asyncio.sleep(TICK_S)
        ended_s, after = time.perf_counter(), costs(offer.pids)
        self._steady = False
        outcome.unsent = len(self._waiting)
        self._waiting.clear()
        for task in (*probing, looking):
            task.cancel()
        if self._asked:
            self._drained.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(offer.drain_s_max):
                    await self._drained.wait()
        if self._asked:
            self.failures.add(f"{len(self._asked)} submissions without an answer {offer.drain_s_max:g} s after the end")
        outcome.drained_s = max(0.0, self._answered_last_s - ended_s)
        outcome.seconds = ended_s - steady_from_s
        outcome.cpu_seconds = {name: after[name] - before.get(name, 0.0) for name in after}
        self._sum_up(probes)
        return outcome

    # ---- connections ----

    def _offer(self, due_s: float) -> None:
        """Send a due submission on a free connection, or let it wait for one."""
        self._waiting.append(due_s)
        self._send_waiting()
        if self._waiting and self._open + self._opening < self.offer.connections_max and self._opening < CONNECTING_MAX:
            self._opening += 1
            opening = asyncio.create_task(self._connect())
            self._openings.add(opening)
            opening.add_done_callback(self._openings.discard)

    async def _open_all(self) -> None:
        """Open all connections. An answer on each shows that the service has accepted it."""
        for at in range(0, self.offer.connections_max, CONNECTING_MAX):
            numbers = range(at, min(at + CONNECTING_MAX, self.offer.connections_max))
            await asyncio.gather(*[self._open_one(self._url(number)) for number in numbers])

    async def _open_one(self, url: str) -> None:
        """Open a connection and wait for an answer on it.

        A service with short deadlines closes a connection on which a busy machine sends too late. Then open another, `OPENINGS_MAX` in all.
        """
        for _ in range(OPENINGS_MAX):
            connection = await connect(url, lambda: ClientConnection(self))
            if connection.is_closing():
                continue
            greeted = self._greeted[connection] = asyncio.get_running_loop().create_future()
            connection.call(self._greeting)
            if await greeted:
                return
        raise OSError(f"the service at {url} closed {OPENINGS_MAX} connections before the start")

    def _url(self, number: int) -> str:
        return self.offer.urls[number % len(self.offer.urls)]

    async def _connect(self) -> None:
        try:
            connection = await connect(self._url(self._open), lambda: ClientConnection(self))
        except OSError as problem:
            self.failures.add(f"no connection: {problem}")
            return
        finally:
            self._opening -= 1
        self._open += 1
        self._free.append(connection)
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting and self._free:
            if not self.pool:
                self.outcome.ran_out = True
                self._waiting.clear()
                return
            connection, made, due_s = self._free.pop(), self.pool.popleft(), self._waiting.popleft()
            now_s = time.perf_counter()
            self._asked[connection] = SentSubmission(made, due_s, now_s)
            if self._steady:
                self.outcome.sent += 1
                self._late_ms.add((now_s - due_s) * 1000)
            connection.call(self.head % len(made.body) + made.body)

    def answered(self, connection: ClientConnection, answer: bytes) -> None:
        """Read the clock, then handle the answer."""
        now_s = time.perf_counter()
        if (greeted := self._greeted.pop(connection, None)) is not None:
            self._open += 1
            self._free.append(connection)
            greeted.set_result(True)
            return
        asked = self._asked.pop(connection, None)
        if asked is None:
            return  # a rejection of the connection itself, before anything was sent: it closes next
        self._answered_last_s = now_s
        status = status_of(answer)
        if status in REJECTED:
            self._rejected += 1
            self.pool.append(asked.made)
            after_s = retry_after_s(answer)
            if after_s is None:
                self.failures.add("a rejection without Retry-After")
            elif self._steady:
                self.outcome.rejected += 1
                self._rejected_ms.add((now_s - asked.sent_s) * 1000)
                self._retry_after_s.append(after_s)
        elif status == 202:
            self.outcome.undecided += self._steady
        else:
            self._decided += 1
            if (why := wrong(answer, asked.made.ids, receipts=self.offer.receipts)) is not None:
                self.failures.add(why)
            else:
                self.outcome.decided += self._steady
                # Count answers that arrive after the end too: otherwise the slowest answers would be missing.
                if asked.due_s >= self._counts_from_s:
                    self._decided_ms.add((now_s - asked.due_s) * 1000)
                if asked.sent_s >= self._counts_from_s:
                    self._answered_ms.add((now_s - asked.sent_s) * 1000)
        self._free.append(connection)
        self._send_waiting()
        if not self._asked:
            self._drained.set()

    def lost(self, connection: ClientConnection, why: str) -> None:
        """Handle a closed connection; another one may be opened instead."""
        if (greeted := self._greeted.pop(connection, None)) is not None:
            greeted.set_result(False)
            return
        self._open -= 1
        if connection in self._free:
            self._free.remove(connection)
        asked = self._asked.pop(connection, None)
        if asked is not None:
            # The outcome of the submission is unknown; when it is sent again, it gets its decision.
            self.outcome.dropped += self._steady
            self.pool.append(asked.made)
        if not self._asked:
            self._drained.set()

    # ---- figures ----

    async def _keep_looking(self, started_s: float) -> None:
        workers = self.offer.pids.get("worker", [])
        decided = rejected = 0
        while True:
            await asyncio.sleep(CHECK_S)
            seconds, mib = time.perf_counter() - started_s, resident_bytes(workers) / (1 << 20)
            self.outcome.by_time.append(Second(seconds, self._decided - decided, self._rejected - rejected, mib))
            decided, rejected = self._decided, self._rejected

    def _sum_up(self, probes: Sequence[Probe]) -> None:
        outcome = self.outcome
        outcome.decided_ms, outcome.answered_ms = self._decided_ms.percentiles(), self._answered_ms.percentiles()
        outcome.rejected_ms, outcome.late_ms = self._rejected_ms.percentiles(), self._late_ms.percentiles()
        outcome.retry_after_s = percentiles_of(self._retry_after_s)
        outcome.probes = results_of(probes)
        outcome.errors, outcome.failures = self.failures.count, self.failures.first


async def drive(offer: Offer) -> Offered:
    """Generate the bodies and offer them; returns the results."""
    load, beside = OpenLoop(offer), [PreparedLoad(each) for each in offer.beside]
    gc.collect()
    gc.freeze()
    others = asyncio.create_task(run_all(beside))
    outcome = await load.run()
    outcome.beside = await others
    return outcome


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(drive(msgspec.json.decode(sys.argv[1], type=Offer)))) + b"\n")
