"""Routes, and what each call answers (docs/http.md).

A submission's way: `take` -> `notary.gate` -> `admitted` -> `joiner.Sender` -> `_Waiting` -> `_tell` -> the connection. Nothing in it is a
task: each step calls the next one. What may be long is done in pieces (`_turn`), so that the log and all other calls have their turns.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

import msgspec

from joiner import AdmittedSubmission, Pending
from notary.decision import Decision, DecisionJson, Pieces
from notary.gate import SHUTTING_DOWN
from notary.http.call import JSON, METRICS, TEXT, Answer, Call, header
from notary.http.lookups import LOOK_UPS, NOTARY, TRANSACTIONS, asked_transaction, shows_decisions
from notary.http.openapi import document
from notary.http.problems import MethodNotAllowed, NotFound, problem_of
from notary.http.query import asked_wait_s
from notary.http.readers import Readers
from notary.http.submission import SUBMISSIONS, TICKET, Asked, Handed
from notary.index import ROW_US
from notary.metrics import Metrics
from notary.worker import Worker
from ordering.errors import Fatal, NotaryError, NotReady
from ordering.ids import excerpt
from ordering.stream import describe
from payload import Submission

log = logging.getLogger("notary.http")

_encode = msgspec.json.Encoder().encode

RETRY_AFTER_UNDECIDED_S: Final = 1
TURN_US: Final = 1_500
"""The work for answers in one turn of the loop, as estimated (`notary.decision.Pieces`): others wait meanwhile. A turn may be longer by one
piece."""
SHARE_US: Final = 500
"""After so much of it another answer has its turn."""
CALL_US: Final = 20
"""The writing of an answer."""
COPIED_BYTES_US: Final = 2_000
IDS_A_PIECE: Final = 200
LOOKING_WAITS_SHARE: Final = 4
"""One connection in so many may wait for a decision that it did not ask for: others must still get in."""
BUG: Final[Answer] = (500, TEXT, b"Internal Server Error\n")


class _Decisions(msgspec.Struct):
    decisions: list[DecisionJson | msgspec.Raw | None]


class _Waiting:
    """A submission that was admitted, until it is answered."""

    __slots__ = ("app", "asked", "call", "decisions", "pending", "since_s", "submission", "timer", "tracing", "worker")

    def __init__(self, app: "App", call: Call, worker: Worker, submission: AdmittedSubmission, asked: Asked, since_s: float) -> None:
        self.app = app
        self.call = call
        self.worker = worker
        self.submission = submission
        self.asked = asked
        self.since_s = since_s
        self.decisions: Sequence[Decision] | None = None
        self.pending: Pending[Decision] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.tracing: AbstractContextManager[None] | None = None

    def decided(self, decisions: Sequence[Decision] | None) -> None:
        """The log has decided it; None when the worker has given up."""
        self.decisions = decisions
        self.pending = None
        self.end()

    def end(self) -> None:
        """Wait no longer."""
        if self.timer is not None:
            self.timer.cancel()
        if self.pending is not None:
            self.pending.waiters.remove(self.decided)
            self.pending = None
        self.app.ended(self)

    def trace_ends(self) -> None:
        """It is about to be answered."""
        if self.tracing is not None:
            self.tracing.__exit__(None, None, None)


class App:
    """The service of one worker; `attach` gives it the worker once there is one."""

    def __init__(self, *, service: bool = True, health: bool = True) -> None:
        self._worker: Worker | None = None
        self._metrics: Metrics | None = None  # told even after the worker has ended
        self._readers: Readers | None = None
        self._no_worker = "this worker is starting"
        self._stopping = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiting: set[_Waiting] = set()
        self._looking: set[Callable[[], None]] = set()
        self._work: deque[Pieces[None]] = deque()
        self._silent = False
        """True while nothing may be answered from the index in this turn of the loop."""
        self._service = service
        self._health = health
        self.taking_changed: Callable[[], None] = lambda: None
        """Called when submissions may be taken no more, or again: `closed` says which."""

    def attach(self, worker: Worker) -> None:
        """From now on calls are answered from this worker."""
        self._worker = worker
        self._metrics = worker.metrics
        self._readers = Readers.of(worker.config.http, worker.config.name, worker.parties, worker.clock_ms)

    def starting(self, why: str) -> None:
        """What `/readyz` says while there is no worker."""
        self._no_worker = why

    def stopping(self) -> None:
        """From now on take no submission: those taken in are answered still, bodies that are only half here are not waited for."""
        self._stopping = True
        if self._worker is not None:
            self._worker.gate.stop()
        self.taking_changed()

    def detach(self, why: str = SHUTTING_DOWN) -> None:
        """The worker ends: from now on nothing is read from it, and who waits is told that the outcome is unknown."""
        worker, self._worker = self._worker, None
        self._stopping = True
        self._no_worker = why
        if worker is not None:
            worker.gate.stop()
        for waiting in list(self._waiting):
            waiting.end()
        for end in list(self._looking):
            end()
        self.taking_changed()

    @property
    def worker(self) -> Worker | None:
        """The worker that this application serves; None while there is none."""
        return self._worker

    @property
    def ends(self) -> bool:
        """Whether submissions will never be taken again."""
        return self._stopping

    def closed(self, ticket: bytes = b"") -> NotaryError | None:
        """Returns the reason why no submission of any party is taken now; None while they are taken."""
        if self._stopping or self._worker is None:
            return NotReady(SHUTTING_DOWN if self._stopping and self._worker is not None else self._no_worker)
        return self._worker.gate.closed(ticket)

    async def idle(self) -> None:
        """Return when every call that came has been answered."""
        await self._idle.wait()

    def take(self, call: Call) -> None:
        """The head of a call has come."""
        self._begin()
        route = self._route(call.path)
        try:
            if route == SUBMISSIONS:
                self._read(call)
            else:
                self._look_up(route, call)
        except Exception as problem:
            self._refuse(call, route, problem)

    def take_verified(self, call: Call, submission: Submission, asked: Asked, since_s: float) -> None:
        """A submission that an intake process has read and verified; its head came at `since_s` of `time.perf_counter`."""
        self._begin()
        try:
            if (problem := self.closed(asked.ticket)) is not None:
                raise problem
            assert self._worker is not None
            self._wait(call, self._worker.gate.admit_verified(submission, asked.ticket), asked, since_s)
        except Exception as problem:
            self.refused(call, problem, since_s)
            self.taking_changed()

    def answered_before(self, call: str, status: int, count: int, seconds: Sequence[float]) -> None:
        """Count what an intake process answered by itself; `seconds` of those of which they are told."""
        if self._metrics is not None:
            self._metrics.answered(call, status, count=count - len(seconds))
            for each in seconds:
                self._metrics.answered(call, status, each)

    # ---- answers ----

    def _begin(self) -> None:
        self._under_way += 1
        self._idle.clear()

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    def _answer(self, call: Call, route: str, answer: Answer, since_s: float | None = None, *, after_body: bool = False) -> None:
        """Count it, and send it."""
        if self._worker is not None:
            seconds = None if since_s is None else time.perf_counter() - since_s
            self._worker.metrics.answered(route or "unknown", answer[0], seconds)
        call.answer(answer, after_body=after_body)
        self._end()

    def _refuse(self, call: Call, route: str, problem: Exception, since_s: float | None = None) -> None:
        if isinstance(problem, Fatal):
            problem = self._give_up(problem)
        if isinstance(problem, NotaryError):
            self._answer(call, route, problem_of(problem), since_s)
        else:
            log.error("a call could not be answered", exc_info=problem)
            self._answer(call, route, BUG, since_s)

    def _give_up(self, problem: Fatal) -> NotReady:
        """The index lost something: from now on nothing is told from it, and the worker stops."""
        worker, self._silent = self._worker, True
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

    def _read(self, call: Call) -> None:
        """Have the gate read a submission, or refuse it without: an overloaded worker must spend its time on what it has taken in."""
        since_s = time.perf_counter()
        worker = self._worker
        if worker is None or self._stopping:
            self.refused(call, self.closed() or NotReady(SHUTTING_DOWN), since_s)
            return
        gate = worker.gate
        if call.method == "POST" and not gate.is_open:
            problem = gate.closed(header(call.headers, TICKET) or b"", at_head=True)
            if problem is not None:
                self._answer(call, SUBMISSIONS, problem_of(problem), after_body=True)
                return
        try:
            Handed(call, gate, self)
        except NotaryError as problem:
            self.refused(call, problem, since_s)

    def admitted(self, handed: Handed, submission: AdmittedSubmission) -> None:
        """The gate lets it in."""
        self._wait(handed.call, submission, handed.asked, handed.since_s)

    def refused(self, call: Call, problem: Exception, since_s: float) -> None:
        """It does not."""
        self._refuse(call, SUBMISSIONS, problem, since_s)

    def left(self) -> None:
        """The client of a submission has left before it was complete."""
        self._end()

    def _wait(self, call: Call, submission: AdmittedSubmission, asked: Asked, since_s: float) -> None:
        """Take it in, and wait for it as long as it is asked."""
        worker = self._worker
        assert worker is not None, "its gate has stopped"
        # What is decided stays decided (R7): a retry of it needs neither the log nor a wait. Of what is new the first look says so.
        may_be_retried = worker.index.has_decided([submission.requests[0].transaction_id])
        waiting = _Waiting(self, call, worker, submission, asked, since_s)
        if worker.tracing is not None:
            waiting.tracing = worker.tracing.submission(submission.encoded, len(submission.requests), asked.traceparent, since_s)
            waiting.tracing.__enter__()
        self._waiting.add(waiting)
        if may_be_retried:
            self._do(self._look_whether_retried(waiting))
        else:
            self._queue(waiting)

    def _look_whether_retried(self, waiting: _Waiting) -> Pieces[None]:
        """Answer a submission of which all is decided; queue any other, if there still is room."""
        index, requests = waiting.worker.index, waiting.submission.requests
        try:
            for at in range(0, len(requests), IDS_A_PIECE):
                if waiting not in self._waiting or self._may_not_tell(waiting):
                    break
                piece = requests[at : at + IDS_A_PIECE]
                if not index.has_decided([request.transaction_id for request in piece]):
                    self._check_room(waiting)
                    self._queue(waiting)
                    return
                yield len(piece) * ROW_US
        except Exception as problem:
            self._waiting.discard(waiting)
            waiting.trace_ends()
            self.refused(waiting.call, problem, waiting.since_s)
            self.taking_changed()
            return
        if waiting in self._waiting:
            waiting.end()

    def _check_room(self, waiting: _Waiting) -> None:
        if (problem := self.closed()) is not None:
            raise problem
        waiting.worker.gate.check_room(waiting.submission)

    def _queue(self, waiting: _Waiting) -> None:
        worker = waiting.worker
        pending = worker.sender.submit(waiting.submission)
        settings, asked_ms = worker.config.http, waiting.asked.wait_ms
        wait_ms = min(settings.wait_ms_default if asked_ms is None else asked_ms, settings.wait_ms_max)
        if not wait_ms:
            waiting.end()
            return
        waiting.pending = pending
        pending.waiters.append(waiting.decided)
        waiting.timer = asyncio.get_running_loop().call_later(wait_ms / 1000, waiting.end)

    def ended(self, waiting: _Waiting) -> None:
        """It is to be answered, in a turn of the loop for this and others."""
        self._waiting.discard(waiting)
        self._do(self._tell(waiting))

    def _tell(self, waiting: _Waiting) -> Pieces[None]:
        """Answer what was taken in: 200 when all is decided, else 202. Never a 503, which would say that nothing was taken in."""
        worker, requests, receipts = waiting.worker, waiting.submission.requests, waiting.asked.receipts
        told: list[DecisionJson | msgspec.Raw | None] = []
        try:
            for at, request in enumerate(requests):
                # A worker that has ended says nothing any more, least of all when it ended because its index is wrong.
                if self._may_not_tell(waiting):
                    break
                decision: Decision | None
                if waiting.decisions is None:
                    decision = yield from worker.index.decision_in_pieces(request.transaction_id)
                else:
                    decision = waiting.decisions[at]
                told.append(None if decision is None else (yield from worker.told(decision, receipts=receipts)))
            yield sum([len(one) for one in told if isinstance(one, msgspec.Raw)]) // COPIED_BYTES_US
        except Fatal as problem:
            self._give_up(problem)
        except Exception:
            log.exception("a call could not be answered")
            self._leave(waiting, BUG)
            return
        if self._may_not_tell(waiting):
            told = [None] * len(requests)
        headers = JSON if None not in told else [*JSON, (b"retry-after", b"%d" % RETRY_AFTER_UNDECIDED_S)]
        self._leave(waiting, (200 if None not in told else 202, headers, _encode(_Decisions(told))))

    def _may_not_tell(self, waiting: _Waiting) -> bool:
        return self._silent or self._worker is not waiting.worker

    def _leave(self, waiting: _Waiting, answer: Answer) -> None:
        waiting.trace_ends()
        self._answer(waiting.call, SUBMISSIONS, answer, waiting.since_s)

    # ---- work in pieces ----

    def _do(self, work: Pieces[None]) -> None:
        """Do it from the next turn of the loop on, beside all other work. It must not raise."""
        if not self._work:
            asyncio.get_running_loop().call_soon(self._turn)
        self._work.append(work)

    def _turn(self) -> None:
        self._silent = self._worker is None or self._worker.withheld() is not None
        spent_us = 0
        while self._work and spent_us < TURN_US:
            work, share_us = self._work[0], spent_us + SHARE_US
            try:
                while spent_us < share_us:
                    spent_us += next(work)
                self._work.rotate(-1)
            except StopIteration:
                self._work.popleft()
                spent_us += CALL_US
        if self._work:
            asyncio.get_running_loop().call_soon(self._turn)

    # ---- everything that only looks ----

    def _look_up(self, route: str, call: Call) -> None:
        """Answer a call that only looks, now or when the decision that it waits for is there."""
        if not route:
            raise NotFound(f"there is nothing at {excerpt(call.path)} on this port")
        if call.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("this address is only read", "GET, HEAD")
        if self._readers is not None and not call.may_read and shows_decisions(call.path):
            self._readers.check(call)
        if route == TRANSACTIONS and self._waits(call):
            return
        self._show(route, call)

    def _show(self, route: str, call: Call) -> None:
        """Answer it as of now, or from pieces soon."""
        found = self._seen(route, call)
        if isinstance(found, tuple):
            self._answer(call, route, self._kept(call, found))
        else:
            self._do(self._shown(route, call, found, self._worker))

    def _shown(self, route: str, call: Call, pieces: Pieces[Answer], worker: Worker | None) -> Pieces[None]:
        try:
            while True:
                if call.gone:
                    self._end()
                    return
                if self._worker is None or self._worker is not worker or self._silent:
                    raise NotReady((self._worker and self._worker.withheld()) or self._no_worker)
                try:
                    yield next(pieces)
                except StopIteration as done:
                    self._answer(call, route, self._kept(call, done.value))
                    return
        except Exception as problem:
            self._refuse(call, route, problem)

    def _kept(self, call: Call, answer: Answer) -> Answer:
        """The answer, which no cache keeps for others where it is for parties alone."""
        status, headers, body = answer
        if self._readers is None or not shows_decisions(call.path):
            return answer
        return status, [*[each for each in headers if each[0] != b"cache-control"], (b"cache-control", b"no-store")], body

    def _seen(self, route: str, call: Call) -> Answer | Pieces[Answer]:
        """The answer as of now."""
        if route == "/livez":
            return 200, TEXT, b"ok\n"
        if route == "/readyz":
            return self._readyz(b"verbose" in call.query)
        if route == "/metrics":
            return 200, METRICS, self._metrics.text() if self._metrics is not None else b""
        if route == _OPENAPI:
            return 200, JSON, document()
        if self._worker is None:
            raise NotReady(self._no_worker)
        if route != NOTARY and (why := self._worker.withheld()) is not None:
            raise NotReady(why)
        return LOOK_UPS[route](self._worker, call.path[len(route) :])

    def _waits(self, call: Call) -> bool:
        """`?wait=N`: whether the call waits; it is answered when the transaction is decided here, or after N seconds."""
        transaction_id, wait_s = asked_transaction(call.path[len(TRANSACTIONS) :]), asked_wait_s(call.query)
        worker = self._worker
        if not wait_s or worker is None or worker.withheld() is not None or worker.index.has_decided([transaction_id]):
            return False
        if len(self._looking) >= max(1, worker.config.http.connections_max // LOOKING_WAITS_SHARE):
            return False
        loop = asyncio.get_running_loop()

        def end() -> None:
            if end in self._looking:
                self._looking.remove(end)
                worker.forget(transaction_id, end)
                timer.cancel()
                loop.call_soon(answer)

        def answer() -> None:
            try:
                self._show(TRANSACTIONS, call)
            except Exception as problem:
                self._refuse(call, TRANSACTIONS, problem)

        self._looking.add(end)
        worker.when_decided(transaction_id, end)
        timer = loop.call_later(min(wait_s, worker.config.http.wait_ms_max / 1000), end)
        return True

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
                f"not compared with the index yet: {', '.join(map(describe, sorted(worker.driver.uncompared))) or 'nothing'}",
                f"pending requests: {worker.sender.queue.pending_requests}",
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
