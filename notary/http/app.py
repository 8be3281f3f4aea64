"""Routes, and what each call answers (docs/http.md). A plain ASGI application."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from notary.decision import Decision, DecisionJson, to_json
from notary.http.body import Disconnected, Message, Receive, Send, check_json, header, read_body
from notary.http.openapi import document
from notary.http.problems import MethodNotAllowed, NotFound, problem_of
from notary.version import VERSION
from notary.worker import Worker
from ordering.errors import NotaryError, NotReady, OutcomeUnknown
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


class _Decisions(msgspec.Struct):
    decisions: list[DecisionJson | None]


class App:
    """The service of one worker; `attach` gives it the worker once there is one."""

    def __init__(self, *, service: bool = True, health: bool = True) -> None:
        self._worker: Worker | None = None
        self._starting = "this worker is starting"
        self._stopping = False
        self._service = service
        self._health = health

    def attach(self, worker: Worker) -> None:
        """From now on calls are answered from this worker."""
        self._worker = worker

    def starting(self, why: str) -> None:
        """What `/readyz` says while there is no worker."""
        self._starting = why

    def stopping(self) -> None:
        """From now on take no submission: those taken in are answered still."""
        self._stopping = True

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI."""
        assert scope["type"] == "http", "the server serves neither lifespans nor websockets"
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
        await send(
            {"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"%d" % len(body))]}
        )
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
        http = self._worker.config.http if self._worker is not None else None
        body = await read_body(headers, receive, SUBMISSION_BYTES_MAX, http.body_ms_max / 1000 if http else 10.0)
        worker = self._ready_worker()
        # Before the work of checking: an overloaded worker says so cheaply.
        worker.sender.check_room(1, len(body))
        submission = await worker.admission.admit(body)
        answer = worker.sender.submit(submission)
        settings = worker.config.http
        asked = _WAIT(header(headers, b"prefer") or b"")
        wait_ms = settings.wait_ms_default if asked is None else int(asked[1]) * 1000
        try:
            async with asyncio.timeout(min(wait_ms, settings.wait_ms_max) / 1000):
                # Shielded: whether this client waits does not matter to the log.
                decisions: Sequence[Decision] = await asyncio.shield(answer)
        except (TimeoutError, OutcomeUnknown):
            known = [worker.index.decision(request.transaction_id) for request in submission.requests]
            body = _encode(_Decisions([None if one is None else to_json(one) for one in known]))
            return 202, [*JSON, (b"retry-after", b"%d" % RETRY_AFTER_UNDECIDED_S)], body
        return 200, JSON, _encode(_Decisions([to_json(decision) for decision in decisions]))

    def _ready_worker(self) -> Worker:
        if self._stopping:
            raise NotReady("this worker is shutting down: send the same to another, or here again later")
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
            reasons.append("this worker is shutting down")
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
                f"pending requests: {worker.sender.pending_requests}",
                f"hole at the head: {'none' if hole is None else f'({hole.incarnation}, {hole.sequence})'}",
                f"log clock skew ms: {worker.driver.clock_skew_ms}",
            ]
        return (503 if reasons else 200), TEXT, ("\n".join(lines) + "\n").encode()


def _transaction(worker: Worker, rest: str) -> Answer:
    decision = worker.index.decision(parse_hash(rest, "transaction id"))
    if decision is None:
        raise NotFound(
            f"transaction {rest} is not decided here: this worker has applied {worker.index.position_next} positions"
        )
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
