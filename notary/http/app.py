"""Routes, and what each call answers (docs/http.md). A plain ASGI application."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from notary.decision import Decision, DecisionJson
from notary.http.answers import JSON, METRICS, TEXT, Answer, Headers
from notary.http.body import Disconnected, Message, Receive, Room, Send, send_answer
from notary.http.lookups import LOOK_UPS, NOTARY, TRANSACTIONS, asked_transaction
from notary.http.openapi import document
from notary.http.patience import Patience
from notary.http.problems import MethodNotAllowed, NotFound, problem_of
from notary.http.query import asked_wait_s
from notary.http.submission import SHUTTING_DOWN, SUBMISSIONS, Asked, asked_of, body_of, is_submission
from notary.metrics import Metrics
from notary.worker import Worker
from ordering.errors import Fatal, NotaryError, NotReady, OutcomeUnknown, Overloaded
from ordering.ids import TransactionId, excerpt
from payload import Submission

log = logging.getLogger("notary.http")

_encode = msgspec.json.Encoder().encode

RETRY_AFTER_UNDECIDED_S: Final = 1
TOLD_AT_ONCE: Final = 200
LOOKING_WAITS_SHARE: Final = 4
"""One connection in so many may wait for a decision that it did not ask for: others must still get in."""


class _Decisions(msgspec.Struct):
    decisions: list[DecisionJson | None]


class App:
    """The service of one worker; `attach` gives it the worker once there is one."""

    def __init__(self, *, service: bool = True, health: bool = True) -> None:
        self._worker: Worker | None = None
        self._metrics: Metrics | None = None  # told even after the worker has ended
        self._no_worker = "this worker is starting"
        self._stopping = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._room = Room()
        self._looking_waits = 0
        self._reading = Patience()
        self._waiting = Patience()
        self._service = service
        self._health = health
        self.taking_changed: Callable[[], None] = lambda: None
        """Called when submissions may be taken no more, or again: `closed` says which."""

    def attach(self, worker: Worker) -> None:
        """From now on calls are answered from this worker."""
        self._worker = worker
        self._metrics = worker.metrics

    def starting(self, why: str) -> None:
        """What `/readyz` says while there is no worker."""
        self._no_worker = why

    def stopping(self) -> None:
        """From now on take no submission: those taken in are answered still, bodies that are only half here are not waited for."""
        self._stopping = True
        self._reading.cut_short()
        self.taking_changed()

    def detach(self, why: str = SHUTTING_DOWN) -> None:
        """The worker ends: from now on nothing is read from it, and who waits is told that the outcome is unknown."""
        self._stopping = True
        self._worker = None
        self._no_worker = why
        self._reading.cut_short()
        self._waiting.cut_short()
        self.taking_changed()

    @property
    def ends(self) -> bool:
        """Whether submissions will never be taken again."""
        return self._stopping

    def closed(self) -> Answer | None:
        """What every submission is answered with now, whatever it is; None while they are taken."""
        try:
            self._ready_worker().sender.queue.check_room(1, 1)
        except (NotReady, Overloaded) as problem:
            return problem_of(problem)
        return None

    def refusal(self, method: bytes, path: bytes) -> Answer | None:
        """What to answer to this call without reading it, or None: an overloaded worker must spend its time on what it has taken in."""
        worker = self._worker
        if worker is None or self._stopping or not is_submission(method, path):
            return None
        refusal = worker.sender.queue.refusal(1, 1)
        if refusal is None:
            return None
        worker.metrics.answered(SUBMISSIONS, 503)
        # A queue that is full because the log is away does not empty: another worker may do better.
        return problem_of(refusal if (why := worker.not_ready()) is None else NotReady(why))

    async def idle(self) -> None:
        """Return when every call that came has been answered."""
        await self._idle.wait()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI."""
        assert scope["type"] == "http", "the server serves neither lifespans nor websockets"
        with self._under_way_until_answered():
            started_s = time.perf_counter()
            route = self._route(scope["path"])
            answering = self._submit(scope, receive, started_s) if route == SUBMISSIONS else self._look_up(route, scope)
            try:
                answer = await self._answer(route, answering, started_s)
            except Disconnected:
                return
            await send_answer(send, answer)

    async def decide(self, body: bytes, asked: Asked, since_s: float) -> Answer:
        """The answer to a submission that an intake process has read and verified; its head came at `since_s` of `time.perf_counter`."""
        with self._under_way_until_answered():
            answer = await self._answer(SUBMISSIONS, self._take(body, asked, since_s), since_s)
        if answer[0] == 503:
            self.taking_changed()
        return answer

    async def look_up(self, method: str, path: str, query: bytes) -> Answer:
        """The answer to any other call that came to an intake process."""
        scope = {"method": method, "path": path, "query_string": query}
        route = self._route(path)
        with self._under_way_until_answered():
            return await self._answer(route, self._look_up(route, scope), time.perf_counter())

    def answered_before(self, call: str, status: int, count: int, seconds: Sequence[float]) -> None:
        """Count what an intake process answered by itself; `seconds` of those of which they are told."""
        if self._metrics is not None:
            self._metrics.answered(call, status, count=count - len(seconds))
            for each in seconds:
                self._metrics.answered(call, status, each)

    @contextmanager
    def _under_way_until_answered(self) -> Iterator[None]:
        self._under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _answer(self, route: str, answering: Coroutine[None, None, Answer], started_s: float) -> Answer:
        """What comes of `answering`, counted. Raises `Disconnected`."""
        try:
            answer = await answering
        except Fatal as problem:
            answer = problem_of(self._give_up(problem))
        except Disconnected:
            raise
        except NotaryError as problem:
            answer = problem_of(problem)
        if self._worker is not None:
            seconds = time.perf_counter() - started_s if route == SUBMISSIONS else None
            self._worker.metrics.answered(route or "unknown", answer[0], seconds)
        return answer

    def _give_up(self, problem: Fatal) -> NotReady:
        """The index lost something: from now on nothing is told from it, and the worker stops."""
        worker = self._worker
        self.detach()
        if worker is not None:
            worker.fail(problem)
        return NotReady(self._no_worker)

    def _route(self, path: str) -> str:
        """The route that a path belongs to, empty for none on this port."""
        if self._service:
            if path in (SUBMISSIONS, _OPENAPI):
                return path
            for route in LOOK_UPS:
                if path.startswith(route) if route.endswith("/") else path == route:
                    return route
        return path if self._health and path in _HEALTH else ""

    # ---- submissions ----

    async def _submit(self, scope: Message, receive: Receive, since_s: float) -> Answer:
        asked = asked_of(scope)
        submission = await self._read(scope["headers"], receive)
        # Again: since then this worker may have begun to stop, and what is not taken in yet must not be any more.
        return await self._decide(self._ready_worker(), submission, asked, since_s)

    async def _take(self, body: bytes, asked: Asked, since_s: float) -> Answer:
        """The same for one whose signature an intake process has verified."""
        worker = self._ready_worker()
        queue = worker.sender.queue
        queue.check_room(1, len(body))
        submission = worker.admission.decode(body)
        if submission not in queue:
            queue.check_room(len(submission.requests), len(submission.encoded))
            worker.admission.charge(submission)
        return await self._decide(worker, submission, asked, since_s)

    async def _decide(self, worker: Worker, submission: Submission, asked: Asked, since_s: float) -> Answer:
        """The answer to what is admitted; its call began at `since_s`."""
        if worker.tracing is None:
            return await self._decide_untraced(worker, submission, asked)
        with worker.tracing.submission(submission.encoded, len(submission.requests), asked.traceparent, since_s):
            return await self._decide_untraced(worker, submission, asked)

    async def _decide_untraced(self, worker: Worker, submission: Submission, asked: Asked) -> Answer:
        """Take in what there is room for, and wait for it as long as it is asked."""
        # What is decided stays decided (R7): a retry of it needs neither the log nor a wait. Of what is new the first look tells.
        decisions: Sequence[Decision] | None = worker.index.decisions([request.transaction_id for request in submission.requests])
        if decisions is not None:
            return await self._tell(worker, submission, decisions, receipts=asked.receipts)
        answer = worker.sender.submit(submission, held=True)
        settings = worker.config.http
        wait_ms = settings.wait_ms_default if asked.wait_ms is None else asked.wait_ms
        try:
            if await self._waiting.wait(answer, min(wait_ms, settings.wait_ms_max) / 1000):
                decisions = answer.result()
        except OutcomeUnknown:
            pass
        return await self._tell(worker, submission, decisions, receipts=asked.receipts)

    async def _tell(self, worker: Worker, submission: Submission, decisions: Sequence[Decision] | None, *, receipts: bool) -> Answer:
        """The answer to what was taken in: 200 when all is decided, else 202. Never a 503, which would say that nothing was taken in."""
        nothing: list[DecisionJson | None] = [None] * len(submission.requests)
        told: list[DecisionJson | None] = []
        try:
            # In slices: receipts from all over a large tree take a while, and others wait too.
            for at in range(0, len(submission.requests), TOLD_AT_ONCE):
                if at:
                    await asyncio.sleep(0)
                # A worker that has ended says nothing any more, least of all when it ended because its index is wrong.
                if self._worker is None or worker.withheld() is not None:
                    return self._undecided(nothing)
                end = at + TOLD_AT_ONCE
                known: Sequence[Decision | None] = (
                    [worker.index.decision(request.transaction_id) for request in submission.requests[at:end]]
                    if decisions is None
                    else decisions[at:end]
                )
                told += [None if one is None else worker.told(one, receipts=receipts) for one in known]
        except Fatal as problem:
            self._give_up(problem)
            return self._undecided(nothing)
        return self._undecided(told) if decisions is None else (200, JSON, _encode(_Decisions(told)))

    def _undecided(self, decisions: list[DecisionJson | None]) -> Answer:
        return 202, [*JSON, (b"retry-after", b"%d" % RETRY_AFTER_UNDECIDED_S)], _encode(_Decisions(decisions))

    async def _read(self, headers: Headers, receive: Receive) -> Submission:
        """A submission that is admitted. Its body is forgotten here: what waits for its decision is kept once, in the queue."""
        worker = self._ready_worker()  # else there is no need to read on
        queue, config = worker.sender.queue, worker.config
        queue.check_room(1, 1)
        with self._room.share(config.limits.pending_bytes_max, lambda: queue.pending_bytes) as take:
            body = await body_of(headers, receive, take, self._reading, config.http.body_ms_max / 1000)
            self._ready_worker()
            # What takes work comes last: an overloaded worker says so before it has decoded, and again before it verifies.
            queue.check_room(1, len(body))
            submission = worker.admission.decode(body)
            if submission in queue:
                return submission  # these bytes wait already, so their signature is a good one
            with queue.hold(submission):
                await worker.admission.check(submission)
            return submission

    def _ready_worker(self) -> Worker:
        if self._worker is None:
            raise NotReady(self._no_worker)
        if self._stopping:
            raise NotReady(SHUTTING_DOWN)
        if (why := self._worker.not_ready()) is not None:
            raise NotReady(why)
        return self._worker

    # ---- everything that only looks ----

    async def _look_up(self, route: str, scope: Message) -> Answer:
        if not route:
            raise NotFound(f"there is nothing at {excerpt(scope['path'])} on this port")
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed("this address is only read", "GET, HEAD")
        if route == "/livez":
            return 200, TEXT, b"ok\n"
        if route == "/readyz":
            return self._readyz(b"verbose" in scope["query_string"])
        if route == "/metrics":
            return 200, METRICS, self._metrics.text() if self._metrics is not None else b""
        if route == _OPENAPI:
            return 200, JSON, document()
        rest = scope["path"][len(route) :]
        if route == TRANSACTIONS:
            await self._wait_for(asked_transaction(rest), scope["query_string"])
        if self._worker is None:
            raise NotReady(self._no_worker)
        if route != NOTARY and (why := self._worker.withheld()) is not None:
            raise NotReady(why)
        return LOOK_UPS[route](self._worker, rest)

    async def _wait_for(self, transaction_id: TransactionId, query: bytes) -> None:
        """`?wait=N`: return when the transaction is decided here, or after N seconds."""
        wait_s = asked_wait_s(query)
        worker = self._worker
        if not wait_s or worker is None or worker.withheld() is not None or worker.index.decision(transaction_id) is not None:
            return
        if self._looking_waits >= max(1, worker.config.http.connections_max // LOOKING_WAITS_SHARE):
            return
        self._looking_waits += 1
        try:
            async with self._waiting.at_most(min(wait_s, worker.config.http.wait_ms_max / 1000)):
                await worker.decided(transaction_id)
        except TimeoutError:
            pass
        finally:
            self._looking_waits -= 1

    def _readyz(self, verbose: bool) -> Answer:
        worker = self._worker
        reasons: list[str] = []
        if worker is None:
            reasons.append(self._no_worker)
        elif self._stopping:
            reasons.append(SHUTTING_DOWN)
        else:
            settings = worker.config.worker
            all_of_them = (worker.withheld(), worker.driver.not_ready(), worker.sender.not_ready(settings.append_wait_ms_max / 1000))
            reasons += [why for why in all_of_them if why is not None]
        lines = [f"not ready: {why}" for why in reasons] or ["ok"]
        if verbose and worker is not None:
            hole = worker.driver.joiner.hole
            lines += [
                f"worker: {worker.config.worker.name}",
                f"incarnation: {worker.sender.incarnation or 'none'}",
                f"positions: {worker.index.position_next}",
                f"log records not read yet: {worker.driver.lag_records}",
                f"pending requests: {worker.sender.queue.pending_requests}",
                f"requests being verified: {worker.sender.queue.held_requests}",
                f"hole at the head: {'none' if hole is None else f'({hole.incarnation}, {hole.sequence})'}",
                f"log clock skew ms: {worker.driver.clock_skew_ms}",
                f"settings by which records may be lost: {' '.join(worker.topic_watch.problems) or 'none'}",
                f"asking the log failed with: {worker.driver.unreachable or 'nothing'}",
                f"seconds since the last poll: {worker.driver.poll_age_s:.1f}",
                f"seconds that a stream stands still: {worker.driver.stream_still_s:.1f}",
                f"seconds that the head stands still: {worker.driver.head_still_s:.1f}",
            ]
        return (503 if reasons else 200), TEXT, ("\n".join(lines) + "\n").encode()


_OPENAPI: Final = "/openapi.json"
_HEALTH: Final = ("/livez", "/readyz", "/metrics")
