"""The open loop: submissions are sent when they are due, even at far more than the capacity.

    python -P -m loadtest.rig.open_loop '{"urls": ["http://127.0.0.1:8080"], ...}'     the fields of `Offer`; prints one `Offered`

`OpenLoop` is the loop of every open load, Locust's included (`loadtest.openloop`). Its users share one schedule. A free user takes
the next arrival and waits until it is due. When no user is free, the next submissions are sent late. Latency counts from the intended
start, so it includes that wait.

`OfferedLoad` offers more than the capacity. Each user has one connection, which is opened before the start, or on first use. A rejected
submission (503, 429) was not admitted, so its bytes are offered again later, like another client's. So no more submissions are generated
than can be decided. In addition, probes check Retry-After.
"""

import asyncio
import gc
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from urllib.parse import urlsplit

import msgspec
import uvloop

from loadtest.rig.closed_loop import ClosedLoad, LoadResult, PreparedLoad, run_all, wrong
from loadtest.rig.connections import (
    REJECTED,
    Channel,
    Probe,
    ProbeResults,
    head_of,
    results_of,
    retry_after_s,
    status_of,
)
from loadtest.rig.generate import submissions
from loadtest.rig.latencies import Failures, Latencies, Percentiles, percentiles_of
from loadtest.rig.machine import costs, resident_bytes
from loadtest.rig.schedule import Arrival, Stage, arrivals, arrivals_count
from loadtest.rig.signing import PARTY, Made

WARM_UP_SHARE = 0.3
"""The warm-up's share of the time; a queue takes seconds until it is full."""
CHECK_S = 0.5
CONNECTING_MAX = 64
GREETING_S_MAX = 10.0
OPENINGS_MAX = 5
"""The attempts to open each connection before the start."""

Submit = Callable[[int, Arrival, float], Awaitable[None]]
"""Sends one submission, and returns when it is accounted for: (its number, its arrival, its intended start on this clock)."""


class OpenLoop:
    """One run through a schedule, by any number of users."""

    def __init__(self, schedule: Iterable[Arrival]) -> None:
        self._schedule = iter(schedule)
        self.taken = 0
        """The number of arrivals that users have taken."""
        self.is_over = False
        """Set it to end the run: then no user takes another arrival."""
        self.lag = Latencies()
        """From the intended start to the wake-up of the user that waited for it: this process's own delay. A late arrival has none."""

    async def follow(self, started_s: float, submit: Submit) -> None:
        """Take arrivals as one user, until none is left or the run is over. The schedule starts at `started_s`, by `time.perf_counter`."""
        while not self.is_over and (arrival := next(self._schedule, None)) is not None:
            number = self.taken
            self.taken += 1
            due_s = started_s + arrival.due_s
            if (wait_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
                self.lag.add((time.perf_counter() - due_s) * 1000)
            await submit(number, arrival, due_s)


# ---- a load above the capacity, in a process of its own ----


class Offer(msgspec.Struct, frozen=True):
    """The parameters of one load."""

    urls: Sequence[str]
    seed: int
    requests: int
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
    """True if all connections are opened before the start, like those of long-lived clients; else each is opened on first use."""
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
    """The results of one load. Counts are submissions of the steady part without the probes', but for `errors`, `ran_out`, `unsent`."""

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
    """From the intended start to sending: the wait for a free connection, and the load's own delay."""
    retry_after_s: Percentiles = msgspec.field(default_factory=Percentiles)
    probes: ProbeResults = msgspec.field(default_factory=ProbeResults)
    by_time: list[Second] = msgspec.field(default_factory=list)
    cpu_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    errors: int = 0
    failures: list[str] = msgspec.field(default_factory=list)
    ran_out: bool = False
    beside: list[LoadResult] = msgspec.field(default_factory=list)


class OfferedLoad:
    """The state of one such load, on one event loop."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        count = int(offer.decided_per_s_max * offer.seconds / offer.requests) + offer.connections_max + 1
        count = min(count, int(offer.requests_per_s * offer.seconds / offer.requests) + 1_000 * offer.probes + 1)
        self.pool = deque(islice(submissions(offer.seed, offer.requests, offer.inputs, party=offer.party), count))
        self.head = head_of(offer.urls[0], receipts=offer.receipts)
        self.outcome = Offered()
        self.failures = Failures()
        self._stages = [Stage("", offer.requests_per_s, offer.seconds)]
        self._loop = OpenLoop(arrivals(self._stages, offer.requests))
        self._channels = [Channel(offer.urls[number % len(offer.urls)]) for number in range(offer.connections_max)]
        self._opening = asyncio.Semaphore(CONNECTING_MAX)
        self._steady = False
        self.steady = asyncio.get_running_loop().create_future()
        """Done once its measured part begins; the result is the time at which that ends, by `time.perf_counter`."""
        self._counts_from_s = float("inf")
        self._decided_ms = Latencies()
        self._answered_ms = Latencies()
        self._rejected_ms = Latencies()
        self._late_ms = Latencies()
        self._retry_after_s: list[float] = []
        self._decided = self._rejected = self._decided_probes = 0

    async def connect(self) -> None:
        """Open all connections, unless each is opened on first use."""
        if self.offer.connections_open:
            await asyncio.gather(*[self._greet(channel) for channel in self._channels])

    async def run(self) -> Offered:
        """Offer submissions, wait for those admitted; returns the results."""
        offer, outcome = self.offer, self.outcome
        probes = [
            Probe(offer.urls[0], self.head, self.pool, self._probe_answered, obedient=bool(number % 2)) for number in range(offer.probes)
        ]
        # Staggered: probes with the same Retry-After at the same time would return together, in effect as one client.
        probing = [asyncio.create_task(probe.run(offer.seconds * WARM_UP_SHARE * at / len(probes))) for at, probe in enumerate(probes)]
        started_s = time.perf_counter()
        looking = asyncio.create_task(self._keep_looking(started_s))
        users = [asyncio.create_task(self._loop.follow(started_s, partial(self._submit, channel))) for channel in self._channels]
        await asyncio.sleep(offer.seconds * WARM_UP_SHARE)
        self._steady, before, steady_from_s = True, costs(offer.pids), time.perf_counter()
        self._counts_from_s = steady_from_s
        self.steady.set_result(started_s + offer.seconds)
        await asyncio.sleep(started_s + offer.seconds - time.perf_counter())
        self._steady, self._loop.is_over = False, True
        ended_s, after = time.perf_counter(), costs(offer.pids)
        for task in (*probing, looking):
            task.cancel()
        _, waiting = await asyncio.wait(users, timeout=offer.drain_s_max)
        if waiting:
            self.failures.add(f"{len(waiting)} submissions without an answer {offer.drain_s_max:g} s after the end")
        for channel in self._channels:
            channel.close()
        for user in waiting:
            user.cancel()
        outcome.due = len([arrival for arrival in arrivals(self._stages, offer.requests) if started_s + arrival.due_s >= steady_from_s])
        if not outcome.ran_out:
            outcome.unsent = arrivals_count(self._stages, offer.requests) - self._loop.taken
        outcome.seconds = ended_s - steady_from_s
        outcome.cpu_seconds = {name: after[name] - before.get(name, 0.0) for name in after}
        self._sum_up(probes)
        return outcome

    async def _greet(self, channel: Channel) -> None:
        """Open a connection and wait for an answer on it, which shows that the service has accepted it.

        A service with short deadlines closes a connection on which a busy machine sends too late. Then open another, `OPENINGS_MAX` in all.
        """
        greeting = f"GET /v1/notary HTTP/1.1\r\nHost: {urlsplit(channel.url).netloc}\r\n\r\n".encode()
        async with self._opening:
            for _ in range(OPENINGS_MAX):
                try:
                    async with asyncio.timeout(GREETING_S_MAX):
                        await channel.open()
                        await channel.call(greeting)
                except (ConnectionResetError, TimeoutError):
                    continue
                return
        raise OSError(f"the service at {channel.url} closed {OPENINGS_MAX} connections, or did not answer on them, before the start")

    async def _submit(self, channel: Channel, _number: int, _arrival: Arrival, due_s: float) -> None:
        """Send the next submission of the pool, and count the result."""
        if not self.pool:
            self.outcome.ran_out = self._loop.is_over = True
            return
        made = self.pool.popleft()
        try:
            if not channel.is_open:
                async with self._opening:
                    await channel.open()
        except OSError as problem:
            self.failures.add(f"no connection: {problem}")
            self.pool.append(made)
            return
        sent_s = time.perf_counter()
        if self._steady:
            self.outcome.sent += 1
            self._late_ms.add((sent_s - due_s) * 1000)
        try:
            answer = await channel.call(self.head % len(made.body) + made.body)
        except ConnectionResetError:
            # The outcome of the submission is unknown; when it is sent again, it gets its decision.
            self.outcome.dropped += self._steady
            self.pool.append(made)
            return
        self._count(made, answer, due_s, sent_s, channel.answered_s)

    def _count(self, made: Made, answer: bytes, due_s: float, sent_s: float, answered_s: float) -> None:
        status = status_of(answer)
        if status in REJECTED:
            self._rejected += 1
            self.pool.append(made)
            after_s = retry_after_s(answer)
            if after_s is None:
                self.failures.add("a rejection without Retry-After")
            elif self._steady:
                self.outcome.rejected += 1
                self._rejected_ms.add((answered_s - sent_s) * 1000)
                self._retry_after_s.append(after_s)
        elif status == 202:
            self.outcome.undecided += self._steady
        else:
            self._decided += 1
            if (why := wrong(answer, made.ids, receipts=self.offer.receipts)) is not None:
                self.failures.add(why)
                return
            self.outcome.decided += self._steady
            # Count answers that arrive after the end too: otherwise the slowest answers would be missing.
            if due_s >= self._counts_from_s:
                self._decided_ms.add((answered_s - due_s) * 1000)
            if sent_s >= self._counts_from_s:
                self._answered_ms.add((answered_s - sent_s) * 1000)

    def _probe_answered(self, made: Made, answer: bytes) -> None:
        """Count a probe's submission that was not rejected."""
        if status_of(answer) == 202:
            return
        self._decided += 1
        if (why := wrong(answer, made.ids, receipts=self.offer.receipts)) is not None:
            self.failures.add(f"probe: {why}")
        else:
            self._decided_probes += self._steady

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
        outcome.probes = results_of(probes, self._decided_probes)
        outcome.errors, outcome.failures = self.failures.count, self.failures.first


async def drive(offer: Offer) -> Offered:
    """Generate the bodies and offer them; returns the results."""
    load, beside = OfferedLoad(offer), [PreparedLoad(each) for each in offer.beside]
    gc.collect()
    gc.freeze()
    await load.connect()  # before the closed loops begin: meanwhile they would run out of submissions
    others = asyncio.create_task(run_all(beside, load.steady))
    outcome = await load.run()
    outcome.beside = await others
    return outcome


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(drive(msgspec.json.decode(sys.argv[1], type=Offer)))) + b"\n")
