"""An open-loop load in a process of its own: submissions are sent when they are due, even at far more than the capacity.

    python -P -m loadtest.bench.offered '{"urls": ["http://127.0.0.1:8080"], ...}'     the fields of `Offer`; prints one `Offered`

A due submission takes a free connection. Without one it waits, and the wait is part of its latency, which counts from the intended start.
Connections are opened before the start, or on demand. A rejected submission (503, 429) was not admitted, so its bytes are offered again
later, like another client's. So no more submissions are generated than can be decided.

In addition, `probes` check Retry-After (`Probe`). After a rejection the impatient half retries all the time, and so measures when capacity
was free; the obedient half returns after Retry-After.
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

from loadtest.bench.facts import cpu_seconds, machine_cpu_seconds, resident_bytes
from loadtest.bench.generate import submissions
from loadtest.bench.load import Failures, wrong
from loadtest.bench.offer import Offer, Offered, Second, times_of
from loadtest.bench.wire import REFUSED, ClientConnection, connect, head_of, retry_after_s, status_of
from loadtest.signing import Made

AGAIN_S = 0.1


class Probe:
    """A client that retries after a rejection, and measures the time until it is admitted."""

    def __init__(self, url: str, head: bytes, pool: deque[Made], *, obedient: bool) -> None:
        """It takes its submissions from `pool`. An obedient one waits for Retry-After, an impatient one retries every `AGAIN_S`."""
        self._url = url
        self._head = head
        self._pool = pool
        self.obedient = obedient
        self.waits: list[tuple[float, float]] = []
        """(seconds of the first Retry-After, seconds until admission), for submissions rejected at first."""
        self.returns: list[bool] = []
        """For each retry: True if it was admitted."""
        self.waiting = False
        """True while its submission is rejected and not admitted since."""
        self._answer: asyncio.Future[bytes] | None = None

    async def run(self, begins_after_s: float = 0.0) -> None:
        """Send submissions until cancelled."""
        await asyncio.sleep(begins_after_s)
        connection: ClientConnection | None = None
        while self._pool:
            made = self._pool.popleft()
            since_s, told_first_s = time.perf_counter(), None
            while True:
                if connection is None:
                    connection = await connect(self._url, lambda: ClientConnection(self))
                self._answer = asyncio.get_running_loop().create_future()
                sent_s = time.perf_counter()
                connection.call(self._head % len(made.body) + made.body)
                answer = await self._answer
                if not answer:
                    connection = None
                    continue
                told_s = retry_after_s(answer)
                refused = status_of(answer) in REFUSED and told_s is not None
                if self.waiting:
                    self.returns.append(not refused)
                self.waiting = refused
                if told_s is None or not refused:
                    break
                told_first_s = told_s if told_first_s is None else told_first_s
                await asyncio.sleep(told_s if self.obedient else AGAIN_S)
            if told_first_s is not None:
                # Until the sending of the attempt that was admitted: the time for its decision is not included.
                self.waits.append((told_first_s, sent_s - since_s))

    def answered(self, connection: ClientConnection, answer: bytes) -> None:
        """Pass the answer to `run`."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def lost(self, connection: ClientConnection, why: str) -> None:
        """Make `run` connect again."""
        self.answered(connection, b"")


WARM_UP_SHARE = 0.3
"""The warm-up's share of the time; a queue takes seconds until it is full."""
TICK_S = 0.001
LOOK_S = 0.5
CONNECTING_MAX = 64


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
        self.pool = deque(islice(submissions(offer.seed, offer.requests, offer.inputs), count))
        self.head = head_of(offer.urls[0], receipts=offer.receipts)
        self._greeting = f"GET /v1/notary HTTP/1.1\r\nHost: {urlsplit(offer.urls[0]).netloc}\r\n\r\n".encode()
        self.outcome = Offered()
        self.failures = Failures()
        self._free: deque[ClientConnection] = deque()
        self._asked: dict[ClientConnection, SentSubmission] = {}
        self._greeted: dict[ClientConnection, asyncio.Future[None]] = {}
        self._waiting: deque[float] = deque()  # the intended starts of submissions without a connection
        self._open = self._opening = 0
        self._openings: set[asyncio.Task[None]] = set()
        self._steady = False
        self._counts_from_s = float("inf")
        self._drained = asyncio.Event()
        self._decided_ms: list[float] = []
        self._answered_ms: list[float] = []
        self._refused_ms: list[float] = []
        self._late_ms: list[float] = []
        self.told_s: list[float] = []
        self._decided = self._refused = 0
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
        interval_s, due, count = offer.requests / offer.requests_per_s, 0, int(offer.seconds * offer.requests_per_s / offer.requests)
        steady_from_s = started_s + offer.seconds * WARM_UP_SHARE
        before: dict[str, float] = {}
        while due < count:
            now_s = time.perf_counter()
            if not self._steady and now_s >= steady_from_s:
                self._steady, before, steady_from_s = True, self._costs(), now_s
                self._counts_from_s = now_s
            while due < count and (due_s := started_s + due * interval_s) <= now_s:
                due += 1
                outcome.due += self._steady
                self._offer(due_s)
            await asyncio.sleep(TICK_S)
        ended_s, after = time.perf_counter(), self._costs()
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
            urls = [self._url(number) for number in range(at, min(at + CONNECTING_MAX, self.offer.connections_max))]
            made = await asyncio.gather(*[connect(url, lambda: ClientConnection(self)) for url in urls])
            self._greeted = {connection: asyncio.get_running_loop().create_future() for connection in made}
            for connection in made:
                connection.call(self._greeting)
            await asyncio.gather(*self._greeted.values())
            self._open += len(made)
            self._free += made
        self._greeted = {}

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
                self._late_ms.append((now_s - due_s) * 1000)
            connection.call(self.head % len(made.body) + made.body)

    def answered(self, connection: ClientConnection, answer: bytes) -> None:
        """Read the clock, then handle the answer."""
        now_s = time.perf_counter()
        if (greeted := self._greeted.get(connection)) is not None:
            greeted.set_result(None)
            return
        asked = self._asked.pop(connection, None)
        if asked is None:
            return  # a rejection of the connection itself, before anything was sent: it closes next
        self._answered_last_s = now_s
        status = status_of(answer)
        if status in REFUSED:
            self._refused += 1
            self.pool.append(asked.made)
            told_s = retry_after_s(answer)
            if told_s is None:
                self.failures.add("a refusal without Retry-After")
            elif self._steady:
                self.outcome.refused += 1
                self._refused_ms.append((now_s - asked.sent_s) * 1000)
                self.told_s.append(told_s)
        elif status == 202:
            self.outcome.undecided += self._steady
        else:
            self._decided += 1
            if (why := wrong(answer, asked.made.ids, receipts=self.offer.receipts)) is not None:
                self.failures.add(why)
            else:
                self.outcome.decided += self._steady
                # Also those that arrive after the end: without the slowest answers, only the fast ones would count.
                if asked.due_s >= self._counts_from_s:
                    self._decided_ms.append((now_s - asked.due_s) * 1000)
                if asked.sent_s >= self._counts_from_s:
                    self._answered_ms.append((now_s - asked.sent_s) * 1000)
        self._free.append(connection)
        self._send_waiting()
        if not self._asked:
            self._drained.set()

    def lost(self, connection: ClientConnection, why: str) -> None:
        """Note a closed connection; another one may be opened instead."""
        if (greeted := self._greeted.get(connection)) is not None:
            greeted.set_exception(OSError("the service closed a connection before the start"))
            return
        self._open -= 1
        if connection in self._free:
            self._free.remove(connection)
        asked = self._asked.pop(connection, None)
        if asked is not None:
            # Its outcome is unknown; sent again, it gets its decision.
            self.outcome.dropped += self._steady
            self.pool.append(asked.made)
        if not self._asked:
            self._drained.set()

    # ---- figures ----

    def _costs(self) -> dict[str, float]:
        costs = {name: cpu_seconds(pids) for name, pids in self.offer.pids.items()}
        return costs | {"load": time.process_time(), "machine": machine_cpu_seconds()}

    async def _keep_looking(self, started_s: float) -> None:
        workers = self.offer.pids.get("worker", [])
        decided = refused = 0
        while True:
            await asyncio.sleep(LOOK_S)
            seconds, mib = time.perf_counter() - started_s, resident_bytes(workers) / (1 << 20)
            self.outcome.by_time.append(Second(seconds, self._decided - decided, self._refused - refused, mib))
            decided, refused = self._decided, self._refused

    def _sum_up(self, probes: Sequence[Probe]) -> None:
        outcome = self.outcome
        outcome.decided_ms, outcome.answered_ms = times_of(self._decided_ms), times_of(self._answered_ms)
        outcome.refused_ms, outcome.late_ms, outcome.told_s = times_of(self._refused_ms), times_of(self._late_ms), times_of(self.told_s)
        impatient, obedient = [[probe for probe in probes if probe.obedient == which] for which in (False, True)]
        waits = [wait for probe in impatient for wait in probe.waits]
        outcome.probe_told_s = times_of([told_s for told_s, _ in waits])
        outcome.probe_waited_s = times_of([waited_s for _, waited_s in waits])
        outcome.probe_waited_to_told = times_of([waited_s / told_s for told_s, waited_s in waits if told_s])
        outcome.probe_waiting = len([probe for probe in impatient if probe.waiting])
        returns = [taken for probe in obedient for taken in probe.returns]
        outcome.obedient_returns, outcome.obedient_taken = len(returns), sum(returns)
        outcome.errors, outcome.failures = self.failures.count, self.failures.told


async def drive(offer: Offer) -> Offered:
    """Generate the bodies and offer them; returns the results."""
    load = OpenLoop(offer)
    gc.collect()
    gc.freeze()
    return await load.run()


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(drive(msgspec.json.decode(sys.argv[1], type=Offer)))) + b"\n")
