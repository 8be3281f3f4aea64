"""`Transport`: one attempt at one URL, and attempts until the deadline; the client's only HTTP code, on httpx.

It maps each reply to the next step:

| reply | next step |
|---|---|
| none, on a connection that an earlier call opened | send the same bytes to this URL again, on a new connection |
| none (refused, reset, late), 1xx, 3xx, 408, 425, 429, 5xx, malformed | try the next URL; honour `Retry-After`, and send its `Ticket` |
| 401, 403 | this worker does not know the party or its key, but another may: try each other URL too |
| any other 4xx with a problem document | final: raise `Rejected` |
| 2xx | the caller's `read` decodes it; if it raises `Malformed`, see above; if `Unproven`, try each other URL too |
"""

import asyncio
import errno
import os
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ssl import SSLContext, create_default_context
from typing import Any, Final, Generic, TypeVar

import httpx
import msgspec

from notary.client.errors import Rejected, Unproven
from notary.client.rejections import Rejections
from notary.client.route import RetryPolicy, Route
from notary.receipts.errors import printable
from notary.version import VERSION
from ordering.errors import ConfigurationError, Malformed
from ordering.ids import excerpt

T = TypeVar("T")

REPLY_BYTES_MAX: Final = 64 * 1024 * 1024
"""The longest reply that the client reads. The largest reply of a notary is a tenth of that."""

RETRY_AFTER_S_MAX: Final = 60.0
"""The longest back-off that a worker can ask for: no notary asks for more, and the back-off holds for all later calls of the client."""

UNREADABLE: Final = (ValueError, httpx.InvalidURL)
"""The errors that httpx leaves as they are, when it reads the `Location` of a redirect that it does not follow."""

PORT_MAX: Final = 65535
_TRY_AGAIN: Final = (408, 425, 429)
_NOT_ADMITTED: Final = (429, 503)
_ASK_THE_OTHERS: Final = (401, 403)
_PROBLEM: Final = "application/problem+json"
_TICKET = re.compile(r"[A-Za-z0-9_-]{1,128}").fullmatch
_SECONDS = re.compile(r"[0-9]{1,9}").fullmatch


class Reply(msgspec.Struct, frozen=True):
    """The complete reply of one attempt, of any status."""

    url: str
    status: int
    headers: httpx.Headers
    body: bytes
    sent_before: bool = False
    """True if the same request was sent before on another connection, which ended without a reply."""

    @property
    def retry_after_s(self) -> float:
        """`Retry-After`, in seconds from now, at most `RETRY_AFTER_S_MAX`; 0 when there is none that can be parsed."""
        return min(_retry_after_s(self.headers.get("retry-after", "")), RETRY_AFTER_S_MAX)

    @property
    def is_problem(self) -> bool:
        """True for an RFC 9457 problem document, the form of every error reply of a notary."""
        content_type: str = self.headers.get("content-type", "")
        return content_type.partition(";")[0].strip().lower() == _PROBLEM


class Further(msgspec.Struct, Generic[T], frozen=True):
    """A result of `read` that needs another reply of the same worker: GET `path`, which its own `read` decodes."""

    path: str
    headers: Mapping[str, str]
    read: Callable[[Reply], T | None]


class _Problem(msgspec.Struct):
    type: str = "about:blank"
    title: str = ""
    detail: str = ""


class _Unusable(Exception):
    """An attempt failed; the message is the reason."""

    def __init__(self, reason: str, retry_after_s: float = 0.0, *, may_be_decided: bool = True) -> None:
        """`may_be_decided`: a worker may have admitted the submission nevertheless."""
        self.retry_after_s = retry_after_s
        self.may_be_decided = may_be_decided
        super().__init__(reason)


class Exhausted(Exception):
    """The deadline passed, or would pass before any URL may be tried again. `reasons`: URL -> its last failure."""

    def __init__(self, reasons: dict[str, str]) -> None:
        self.reasons = reasons
        super().__init__("no URL is left before the deadline")


def http_client(tls: SSLContext | None, connect_s_max: float) -> httpx.AsyncClient:
    """Returns an httpx client without read timeouts: the caller limits the time of each exchange.

    Raises `ConfigurationError` for proxy or certificate variables in the environment that httpx cannot use.
    """
    try:
        # By default the authorities of this machine, or of the environment. OpenSSL would ignore a file that cannot be read.
        file, folder = os.environ.get("SSL_CERT_FILE") or None, os.environ.get("SSL_CERT_DIR") or None
        return httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=connect_s_max),  # the attempt has a limit, so single reads need none
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            headers={"User-Agent": f"kafka-notary/{VERSION}", "Accept-Encoding": "identity"},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # cookies ignore ports: one worker's would go to others
            follow_redirects=False,
            verify=create_default_context(cafile=file, capath=folder) if tls is None else tls,
        )
    except (OSError, ValueError, ImportError, httpx.InvalidURL) as problem:
        # All other arguments are constants, so the environment is the cause; a SOCKS proxy needs a package that may be missing.
        raise ConfigurationError(
            f"a proxy or certificates of the environment (HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE, ...) cannot be used: {problem}"
        ) from None


def current_traceparent() -> str:
    """Returns the caller's OpenTelemetry span in W3C Trace Context form; empty without one, or if OpenTelemetry is not imported."""
    opentelemetry = sys.modules.get("opentelemetry.trace")
    if opentelemetry is None:
        return ""
    span = opentelemetry.get_current_span().get_span_context()
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}" if span.is_valid else ""


def wall_clock_s() -> int:
    """Returns the seconds since 1970; a worker accepts a signed look-up for a short time only."""
    return int(datetime.now(UTC).timestamp())


class Transport:
    """The URLs of a notary and the connections to them. Any number of tasks of one event loop may use it."""

    def __init__(self, urls: Sequence[str], retry_policy: RetryPolicy, tls: SSLContext | None) -> None:
        self.urls = [checked_url(url) for url in dict.fromkeys(url.rstrip("/") for url in urls)]
        if not self.urls:
            raise ConfigurationError("no URL of a notary is given; give at least one, such as http://127.0.0.1:8080")
        self._retry_policy = retry_policy
        self._random = random.Random()  # noqa: S311 - it only spreads retries
        self._route = Route(self.urls, retry_policy, self._random.random)
        self._http = http_client(tls, retry_policy.connect_s_max)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def exchange(
        self,
        method: str,
        path: str,
        read: Callable[[Reply], T | Further[T] | None],
        ends: float,
        body: bytes | None = None,
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> T:
        """Try one URL after the other until the loop's time `ends`. Returns the first result of `read` that is not None.

        `read` raises `Malformed` for a reply that breaks the contract, and `Unproven` for an outcome without a valid receipt. It returns
        None for an incomplete answer: then the same bytes are sent again, after the reply's `Retry-After`, to another URL if possible.
        It returns `Further` to ask the same worker for more. `headers` makes the headers of each attempt. Raises `Exhausted`, `Rejected`,
        `Unproven`, and any other error of `read`.
        """
        clock = asyncio.get_running_loop().time
        reasons: dict[str, str] = {}
        rejections = Rejections(self.urls)
        tickets: dict[str, str] = {}  # URL -> the ticket of its rejection: a client that returns it in time goes first
        resume_at = clock()
        unfinished = 0
        may_be_decided = False  # true once a worker may have admitted the submission
        try:
            while True:
                url, not_before = self._route.next(clock(), rejections.by_url)
                begin_at = max(not_before, resume_at)
                if max(begin_at, clock()) >= ends:
                    waits = f"not tried: its Retry-After ends in {begin_at - clock():.0f} s"
                    raise rejections.first or Exhausted(reasons or {url: waits})
                await asyncio.sleep(max(0.0, begin_at - clock()))
                started = clock()
                if started >= ends:
                    raise rejections.first or Exhausted(reasons)
                try:
                    more = dict(headers())
                    if (ticket := tickets.pop(url, "")) and _TICKET(ticket):
                        more["Ticket"] = ticket
                    reply = await self._attempt(method, url, path, body, ends - started, more)
                    tickets[url] = reply.headers.get("ticket", "")
                    may_be_decided |= reply.sent_before
                    _check_usable(reply)
                    result = read(reply)
                    if isinstance(result, Further):
                        reply = await self._attempt("GET", url, result.path, None, max(0.0, ends - clock()), result.headers)
                        _check_usable(reply)
                        result = result.read(reply)
                except (Rejected, Unproven) as problem:
                    if isinstance(problem, Rejected) and problem.status not in _ASK_THE_OTHERS:
                        raise
                    may_be_decided |= isinstance(problem, Unproven)
                    reasons[url] = _said(reply) if isinstance(problem, Rejected) else str(problem)
                    rejections.rejected(url, problem)
                    continue
                except (_Unusable, Malformed) as problem:
                    if isinstance(problem, Malformed):
                        problem = _Unusable(f"an answer that breaks the contract: {problem}")
                    may_be_decided |= problem.may_be_decided
                    # If the deadline cancelled this attempt, keep the reason of an earlier failure of this URL.
                    if clock() < ends or url not in reasons:
                        reasons[url] = str(problem)
                    self._route.failed(url, started, clock(), problem.retry_after_s)
                    rejections.failed(url)
                    continue
                if result is not None:
                    self._route.answered(url)
                    return result
                may_be_decided = True
                rejections.admitted()
                unfinished += 1
                reasons[url] = "not all is decided yet"
                self._route.slow(url, clock() + reply.retry_after_s)
                # Always pause, even if the worker asks for no delay: an undecided submission that is sent again takes log space again.
                resume_at = clock() + self._retry_policy.pause_s(unfinished, self._random.random())
        except Rejected as problem:
            problem.may_be_decided |= may_be_decided
            raise

    async def _exchange(
        self, method: str, url: str, path: str, body: bytes | None, headers: Mapping[str, str], connection: "_Connection"
    ) -> Reply:
        """Send a request. Returns the complete reply; raises `_Unusable` or an httpx error."""
        sent = self._http.stream(method, url + path, content=body, headers=headers, extensions={"trace": connection})
        async with sent as response:
            chunks = bytearray()
            async for chunk in response.aiter_raw():
                chunks += chunk
                if len(chunks) > REPLY_BYTES_MAX:
                    raise _Unusable(f"a reply of more than {REPLY_BYTES_MAX} bytes")
            return Reply(url, response.status_code, response.headers, bytes(chunks))

    async def _attempt(self, method: str, url: str, path: str, body: bytes | None, left_s: float, more: Mapping[str, str]) -> Reply:
        """Make one attempt. Returns the complete reply or raises `_Unusable`. A cancelled or late attempt closes its connection."""
        # If there are other URLs, one that hangs must not use up all the time that is left.
        share_s = left_s if len(self.urls) == 1 else max(left_s / 2, min(left_s, 1.0))
        limit_s = min(share_s, self._retry_policy.attempt_s_max)
        headers = dict(more)
        if body is not None:
            wait_s = max(1, min(self._retry_policy.wait_s_max, int(limit_s * 0.7)))
            headers |= {"Content-Type": "application/json", "Prefer": f"wait={wait_s}"}
        try:
            async with asyncio.timeout(limit_s):
                sent_before = False
                while True:
                    connection = _Connection()
                    try:
                        reply = await self._exchange(method, url, path, body, headers, connection)
                        return msgspec.structs.replace(reply, sent_before=sent_before)
                    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                        # A worker may close an idle connection just when a request is sent on it. So send the request again, on a new
                        # connection: it has the same outcome (R7; RFC 9112, 9.3.1). If a new connection fails, the worker has failed.
                        if connection.is_new or connection.answers:
                            raise
                        sent_before = True
        except TimeoutError:
            raise _Unusable(f"no complete answer within {limit_s:.1f} s") from None
        except httpx.ConnectTimeout:
            raise _Unusable(f"no connection within {self._retry_policy.connect_s_max:g} s", may_be_decided=False) from None
        except UNREADABLE as problem:
            raise _Unusable(f"a reply that httpx cannot read: {explained(url, problem)}") from None
        except httpx.RequestError as problem:
            why = f"{type(problem).__name__}{': ' if str(problem) else ''}{explained(url, problem)}"
            raise _Unusable(why, may_be_decided=not isinstance(problem, httpx.ConnectError)) from None


class _Connection:
    """The connection of one exchange, as httpx reports its events (its extension `trace`)."""

    def __init__(self) -> None:
        self.is_new = False
        """True if the connection was opened for this exchange."""
        self.answers = False
        """True once the head of a reply has come."""
        self._stream: Any = None
        """The connection below TLS, an `httpcore.AsyncNetworkStream`."""

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        event = event.partition(".")[2]  # without its first word: a proxy has another one
        self.is_new = self.is_new or event == "connect_tcp.started"
        self.answers = self.answers or event == "receive_response_headers.complete"
        if event == "connect_tcp.complete":
            self._stream = info["return_value"]
        elif event == "start_tls.failed" and self._stream is not None:
            # httpcore 1.0 leaves the connection open if the handshake was cancelled, as at the end of an attempt.
            await self._stream.aclose()


def explained(url: str, problem: Exception) -> str:
    """Renders the error of an attempt; adds a remedy for an untrusted certificate, and where only one side speaks TLS."""
    text = printable(str(problem))  # it quotes the reply
    if isinstance(problem, httpx.ConnectError) and (cause := _refusal(problem)):
        return f"{text} ({cause}): is a worker running there?"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"{text}: is it the right host, and is its authority in the file of `--tls-ca` (in a program: `tls_context`)?"
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
        return f"{text}: it may speak plain HTTP, as a health port does: then use http://"
    if isinstance(problem, httpx.RemoteProtocolError) and url.startswith("http:"):
        return f"{text} It may speak TLS: then use https://"
    return text


def _refusal(problem: BaseException) -> str:
    """Returns the system's reason if the connection was refused: anyio only reports that all attempts have failed."""
    found: BaseException | None = problem
    while found is not None:
        causes = found.exceptions if isinstance(found, BaseExceptionGroup) else (found,)
        if all(isinstance(cause, ConnectionRefusedError) for cause in causes):
            return os.strerror(errno.ECONNREFUSED)
        found = found.__cause__ or found.__context__
    return ""


def rejected(reply: Reply) -> Rejected:
    """Returns the `Rejected` of a 4xx reply. Raises `Malformed` for a status that a notary never sends."""
    if not 400 <= reply.status < 500:
        raise Malformed(f"status {reply.status}, which no call of the notary returns")
    if not reply.is_problem:
        raise Malformed(f"status {reply.status}, and {_problem(reply).detail}")
    problem = _problem(reply)
    return Rejected(reply.url, reply.status, problem.type, problem.title, problem.detail)


def _said(reply: Reply) -> str:
    problem = _problem(reply)
    return f"status {reply.status}" + (f": {problem.detail or problem.title}" if problem.detail or problem.title else "")


def _problem(reply: Reply) -> _Problem:
    if reply.is_problem:
        try:
            found = msgspec.json.decode(reply.body, type=_Problem)
            return _Problem(*[printable(text) for text in (found.type, found.title, found.detail)])
        except (msgspec.DecodeError, ValueError, RecursionError):
            pass
    return _Problem(detail=f"not an answer of a notary, whose errors are {_PROBLEM}: {excerpt(reply.body)}")


def _check_usable(reply: Reply) -> None:
    """Raise `_Unusable` for a status with which the next URL is tried."""
    if reply.status < 200 or 300 <= reply.status < 400 or reply.status in _TRY_AGAIN or reply.status >= 500:
        # A proxy gives these statuses too, even after a worker has admitted the submission.
        is_refusal = reply.status in _NOT_ADMITTED and reply.is_problem
        raise _Unusable(_said(reply), reply.retry_after_s, may_be_decided=not is_refusal)


def _retry_after_s(value: str) -> float:
    """Parses both forms of RFC 9110, 10.2.3: seconds, or a date of the wall clock. Returns seconds from now; 0 for neither."""
    value = value.strip()
    if _SECONDS(value):
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def checked_url(url: str) -> str:
    """Returns the URL, unchanged. Raises `ConfigurationError` if it cannot be a worker's."""
    try:
        parts = httpx.URL(url)
        parts.raw_host.decode().encode("idna")  # as the resolver does it
    except (httpx.InvalidURL, UnicodeError) as problem:
        raise ConfigurationError(f"{excerpt(url)} is not a URL ({problem}); give one such as http://127.0.0.1:8080") from None
    if parts.userinfo:
        raise ConfigurationError(f"the URL of {excerpt(parts.host)} has a user name: a notary asks for none, and messages show its URL")
    has_space = any(character.isspace() for character in url)
    if parts.scheme not in ("http", "https") or not parts.host or parts.query or parts.fragment or has_space:
        raise ConfigurationError(f"{excerpt(url)} is not a notary's URL; give one such as http://127.0.0.1:8080")
    if parts.port is not None and not 0 < parts.port <= PORT_MAX:
        raise ConfigurationError(f"{excerpt(url)} has the port {parts.port}: give one of 1 to {PORT_MAX}")
    return url
