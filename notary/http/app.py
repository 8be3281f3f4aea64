"""Routes, and what each call answers (docs/http.md). A plain ASGI application."""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from notary.decision import Decision, DecisionJson, to_json
from notary.http.body import Disconnected, Message, Receive, Send, check_json, read_body
from notary.http.openapi import document
from notary.http.problems import MethodNotAllowed, NotFound, problem_of
from notary.version import VERSION
from notary.worker import Worker
from ordering.errors import Malformed, NotaryError, NotReady, OutcomeUnknown
from ordering.ids import excerpt, parse_hash, parse_state
from ordering.records import FORMAT_VERSION
from payload import INPUTS_AND_REFERENCES_MAX, REQUESTS_MAX, SUBMISSION_BYTES_MAX

log = logging.getLogger("notary.http")

Headers: TypeAlias = list[tuple[bytes, bytes]]
Answer: TypeAlias = tuple[int, Headers, bytes]
Handler: TypeAlias = Callable[[Worker, str], Answer]

JSON: Final[Headers] = [(b"content-type", b"application/json")]
TEXT: Final[Headers] = [(b"content-type", b"text/plain; charset=utf-8")]
METRICS: Final[Headers] = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]

_encode = msgspec.json.Encoder().encode
_WAIT = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})\"?(?=$|[,;\s])", re.IGNORECASE).search

RETRY_AFTER_UNDECIDED_S: Final = 1
SHUTTING_DOWN: Final = "this worker is shutting down: send the same to another, or here again later"


class _Decisions(msgspec.Struct):
    decisions: list[DecisionJson | None]


class App:
    """The service of one worker; `attach` gives it the worker once there is one."""

    def __init__(self, *, service: bool = True, health: bool = True) -> None:
        self._worker: Worker | None = None
        self._starting = "this worker is starting"
        self._stopping = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._reading: set[asyncio.Timeout] = set()
        self._waiting: set[asyncio.Timeout] = set()
        self._service = service
        self._health = health

    def attach(self, worker: Worker) -> None:
        """From now on calls are answered from this worker."""
        self._worker = worker

    def starting(self, why: str) -> None:
        """What `/readyz` says while there is no worker."""
        self._starting = why

    def stopping(self) -> None:
        """From now on take no submission: those taken in are answered still, bodies that are only half here are not waited for."""
        self._stopping = True
        _cut_short(self._reading)

    def detach(self) -> None:
        """The worker ends: from now on nothing is read from it, and who waits is told that the outcome is unknown."""
        self._stopping = True
        self._worker = None
        self._starting = SHUTTING_DOWN
        _cut_short(self._reading)
        _cut_short(self._waiting)

    async def idle(self) -> None:
        """Return when every call that came has been answered."""
        await self._idle.wait()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI."""
        assert scope["type"] == "http", "the server serves neither lifespans nor websockets"
        self._under_way += 1
        self._idle.clear()
        try:
            await self._answer(scope, receive, send)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        route = self._route(scope["path"])
        try:
            if route == _SUBMISSIONS:
                status, headers, body = await self._submit(scope, receive)
            else:
                status, headers, body = self._look_up(route, scope)
        except Disconnected:
            return
        except NotaryError as problem:
            status, headers, body = problem_of(problem)
        if self._worker is not None:
            seconds = time.perf_counter() - started if route == _SUBMISSIONS else None
            self._worker.metrics.answered(route or "unknown", status, seconds)
        await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    def _route(self, path: str) -> str:
        """The route that a path belongs to, empty for none on this port."""
        if self._service:
            if path == _SUBMISSIONS:
                return path
            for route in _LOOK_UPS:
                if path.startswith(route) if route.endswith("/") else path == route:
                    return route
        return path if self._health and path in _HEALTH else ""

    # ---- submissions ----

    async def _submit(self, scope: Message, receive: Receive) -> Answer:
        if scope["method"] != "POST":
            raise MethodNotAllowed("submissions are sent with POST", "POST")
        headers = scope["headers"]
        check_json(headers)
        if self._stopping:
            raise NotReady(SHUTTING_DOWN)
        http = self._worker.config.http if self._worker is not None else None
        seconds_max = http.body_ms_max / 1000 if http else 10.0
        try:
            async with _at_most(seconds_max, self._reading):
                body = await read_body(headers, receive, SUBMISSION_BYTES_MAX)
        except TimeoutError:
            if self._stopping:
                raise NotReady(SHUTTING_DOWN) from None
            raise Malformed(f"the body was not complete after {seconds_max:g} s: send it without pauses") from None
        worker = self._ready_worker()
        # Before the work of checking: an overloaded worker says so cheaply.
        worker.sender.queue.check_room(1, len(body))
        submission = await worker.admission.admit(body)
        # Again: since then this worker may have begun to stop, and what is not taken in yet must not be any more.
        worker = self._ready_worker()
        answer = worker.sender.submit(submission)
        settings = worker.config.http
        asked = _WAIT(b",".join(value for name, value in headers if name == b"prefer"))
        wait_ms = settings.wait_ms_default if asked is None else int(asked[1]) * 1000
        try:
            async with _at_most(min(wait_ms, settings.wait_ms_max) / 1000, self._waiting):
                # Shielded: whether this client waits does not matter to the log.
                decisions: Sequence[Decision] = await asyncio.shield(answer)
        except (TimeoutError, OutcomeUnknown):
            # A worker that has ended says nothing any more, least of all when it ended because its index is wrong.
            index = worker.index if self._worker is not None else None
            known = [index.decision(request.transaction_id) if index else None for request in submission.requests]
            body = _encode(_Decisions([None if one is None else to_json(one) for one in known]))
            return 202, [*JSON, (b"retry-after", b"%d" % RETRY_AFTER_UNDECIDED_S)], body
        return 200, JSON, _encode(_Decisions([to_json(decision) for decision in decisions]))

    def _ready_worker(self) -> Worker:
        if self._stopping:
            raise NotReady(SHUTTING_DOWN)
        if self._worker is None:
            raise NotReady(self._starting)
        if (why := self._worker.not_ready()) is not None:
            raise NotReady(why)
        return self._worker

    # ---- everything that only looks ----

    def _look_up(self, route: str, scope: Message) -> Answer:
        if not route:
            raise NotFound(f"there is nothing at {excerpt(scope['path'])} on this port")
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed("this address is only read", "GET, HEAD")
        if route == "/livez":
            return 200, TEXT, b"ok\n"
        if route == "/readyz":
            return self._readyz(b"verbose" in scope["query_string"])
        if route == "/metrics":
            return 200, METRICS, self._worker.metrics.text() if self._worker is not None else b""
        if route == "/openapi.json":
            return 200, JSON, document()
        if self._worker is None:
            raise NotReady(self._starting)
        return _LOOK_UPS[route](self._worker, scope["path"][len(route) :])

    def _readyz(self, verbose: bool) -> Answer:
        worker = self._worker
        reasons: list[str] = []
        if self._stopping:
            reasons.append(SHUTTING_DOWN)
        elif worker is None:
            reasons.append(self._starting)
        else:
            settings = worker.config.worker
            all_of_them = (worker.driver.not_ready(), worker.sender.not_ready(settings.append_wait_ms_max / 1000))
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
                f"hole at the head: {'none' if hole is None else f'({hole.incarnation}, {hole.sequence})'}",
                f"log clock skew ms: {worker.driver.clock_skew_ms}",
                f"asking the log failed with: {worker.driver.unreachable or 'nothing'}",
            ]
        return (503 if reasons else 200), TEXT, ("\n".join(lines) + "\n").encode()


@contextlib.asynccontextmanager
async def _at_most(seconds: float, running: set[asyncio.Timeout]) -> AsyncIterator[None]:
    """`asyncio.timeout`, to be found in `running` meanwhile by who wants to cut it short."""
    async with asyncio.timeout(seconds) as limit:
        running.add(limit)
        try:
            yield
        finally:
            running.discard(limit)


def _cut_short(running: set[asyncio.Timeout]) -> None:
    for limit in running:
        if not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time())


def _transaction(worker: Worker, rest: str) -> Answer:
    decision = worker.index.decision(parse_hash(rest, "transaction id"))
    if decision is None:
        raise NotFound(f"transaction {rest} is not decided here: this worker has applied {worker.index.position_next} positions")
    return 200, JSON, _encode(to_json(decision))


def _state(worker: Worker, rest: str) -> Answer:
    consumed = worker.index.consumed(parse_state(rest, "state"))
    if consumed is None:
        return 200, JSON, _encode({"state": rest, "consumed_by": None, "position": None})
    return 200, JSON, _encode({"state": rest, "consumed_by": consumed.by_hash.hex(), "position": consumed.position})


def _notary(worker: Worker, rest: str) -> Answer:
    limits = {
        "requests": REQUESTS_MAX,
        "submission_bytes": SUBMISSION_BYTES_MAX,
        "inputs_and_references": INPUTS_AND_REFERENCES_MAX,
        "wait_seconds": worker.config.http.wait_ms_max // 1000,
    }
    told: dict[str, Any] = {
        "name": worker.config.name,
        "origin": worker.config.origin,
        "verifier_key": worker.verifier_key,
        "software_version": VERSION,
        "format_version": FORMAT_VERSION,
        "worker": worker.config.worker.name,
        "limits": limits,
    }
    return 200, JSON, _encode(told)


_SUBMISSIONS: Final = "/v1/submissions"
_LOOK_UPS: Final[dict[str, Handler]] = {
    "/v1/transactions/": _transaction,
    "/v1/states/": _state,
    "/v1/notary": _notary,
    "/openapi.json": lambda worker, rest: (200, JSON, document()),
}
_HEALTH: Final = ("/livez", "/readyz", "/metrics")
