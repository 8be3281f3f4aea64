"""One connection of HTTP/1.1: an explicit machine, fed by httptools, with nothing between it and the application.

                  bytes          call             end            answer
    opened -> HEAD <---- IDLE    HEAD ----> BODY ----> DECIDING ----> IDLE
                                             | answer          end
                                             +-------> ANSWERED ----> IDLE      the answer left before the body had come
                                             | refuse          end
                                             +-------> REFUSED -----> IDLE      the answer waits until the body has come

- One call at a time is with the application, so answers leave in order. Behind a call that is being decided, or an answer that the client
  does not read, the connection keeps what has come, at most what one read of the socket gives, and reads no more.
- Each state has a deadline, and so has an answer that is not read. The server looks at all of them a few times in the least of these times.
- Where the bytes turn to nonsense, or end, while a call is being decided, its answer leaves first: an error in its place would say of a
  submission in the log that it is not.
- A head is bounded in bytes, and so is everything else that is no body: trailers, chunk extensions, blank lines.

Where it differs from RFC 9112: trailers are read and dropped, and an offer of another protocol is passed over.
"""

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from email.utils import formatdate
from enum import IntEnum
from http import HTTPStatus
from math import inf
from time import time
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote

import httptools
import msgspec

from notary.config import HttpConfig
from notary.http.call import TEXT, Answer, Application, Call, Headers, header
from notary.http.problems import problem_of
from ordering.errors import Malformed, NotaryError

log = logging.getLogger("notary.http")

HEAD_BYTES_MAX: Final = 32 << 10
SLICE_BYTES: Final = 4 << 10
"""The parser gets so much at a time, so what it finds behind a call that is being decided is no more."""
WRITTEN_BYTES_MIN: Final = 64 << 10
"""A client that does not read all of its answers in time must have read so much of them."""


class State(IntEnum):
    """The place of the connection in the call that it is at."""

    IDLE = 0
    """Between calls."""
    HEAD = 1
    """A head is awaited, or a part of it is there."""
    BODY = 2
    """The application has the head, and the body is coming."""
    REFUSED = 3
    """The application has refused it; the answer leaves when the body has come."""
    ANSWERED = 4
    """The answer has left; the rest of the body is coming."""
    DECIDING = 5
    """The body has come, and the application decides."""
    CLOSING = 6
    """The last answer is on its way out."""
    CLOSED = 7
    """The connection is no more."""


class Event(IntEnum):
    """What can happen to it."""

    BYTES = 0
    """Bytes that are not of the call before."""
    CALL = 1
    """A head is complete and is handed to the application."""
    ANSWER = 2
    """The application answers."""
    REFUSE = 3
    """The application answers without looking at the body."""
    END = 4
    """The body is complete."""
    LATE = 5
    """The state's deadline has passed."""
    BREAK = 6
    """What came is no HTTP/1.1, or too much of it."""
    EOF = 7
    """The client sends no more."""
    STOP = 8
    """The server stops, or the connection has answered its last call."""
    LOST = 9
    """The transport is gone."""


_S, _E = State, Event
_ENDS: Final = {_E.STOP: _S.CLOSING, _E.BREAK: _S.CLOSING, _E.EOF: _S.CLOSING, _E.LATE: _S.CLOSING, _E.LOST: _S.CLOSED}
_STAYS: Final = {_E.BYTES, _E.ANSWER, _E.REFUSE, _E.END, _E.BREAK, _E.EOF, _E.STOP}

TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    _S.IDLE: {_E.BYTES: _S.HEAD, _E.CALL: _S.BODY} | _ENDS,
    _S.HEAD: {_E.BYTES: _S.HEAD, _E.CALL: _S.BODY} | _ENDS,
    # The application answers what is late. What the server has begun to read when it stops is answered.
    _S.BODY: {_E.ANSWER: _S.ANSWERED, _E.REFUSE: _S.REFUSED, _E.END: _S.DECIDING} | _ENDS | {_E.LATE: _S.BODY, _E.STOP: _S.BODY},
    _S.REFUSED: {_E.END: _S.IDLE} | _ENDS,
    _S.ANSWERED: {_E.END: _S.IDLE} | _ENDS,
    # The application has its own deadline, and its answer leaves whatever comes behind it.
    _S.DECIDING: {_E.ANSWER: _S.IDLE, _E.LOST: _S.CLOSED} | dict.fromkeys((_E.BYTES, _E.BREAK, _E.EOF, _E.STOP), _S.DECIDING),
    _S.CLOSING: {_E.LATE: _S.CLOSED, _E.LOST: _S.CLOSED} | dict.fromkeys(_STAYS, _S.CLOSING),
    _S.CLOSED: {_E.LATE: _S.CLOSED, _E.LOST: _S.CLOSED} | dict.fromkeys(_STAYS, _S.CLOSED),
}
"""State and event to state. What is not here cannot happen."""


class Times(msgspec.Struct, frozen=True):
    """The time that each step of a call may take, in seconds."""

    head_s: float = 10.0
    """A head; the rest of a body that is passed over; the reading of an answer."""
    body_s: float = 20.0
    keep_alive_s: float = 75.0
    goodbye_s: float = 1.0
    """The end of a connection when the server stops."""

    def of(self, state: State) -> float:
        """The time of a state."""
        return {State.IDLE: self.keep_alive_s, State.BODY: self.body_s, State.DECIDING: inf, State.CLOSED: inf}.get(state, self.head_s)


def times_of(config: HttpConfig) -> Times:
    """The times that are configured."""
    return Times(config.head_ms_max / 1000, config.body_ms_max / 1000, config.keep_alive_ms / 1000)


class Host(Protocol):
    """The server that a connection belongs to."""

    @property
    def application(self) -> Application:
        """Answers the calls."""
        ...

    @property
    def times(self) -> Times:
        """The deadlines."""
        ...

    @property
    def seconds(self) -> Sequence[float]:
        """The time of each state."""
        ...

    @property
    def paused(self) -> bool:
        """Whether no calls are to be read now; `Connection.go_on` is called when they are again."""
        ...

    def opened(self, connection: "Connection") -> NotaryError | None:
        """Count a connection; return what it is answered with when there are too many."""
        ...

    def closed(self, connection: "Connection") -> None:
        """A connection is gone."""
        ...


class _Head(Call):
    """A call of this connection; what has come of its body before it was its turn is kept with it."""

    __slots__ = ("_transport", "expects", "keep_alive", "pieces", "whole")

    def __init__(
        self,
        method: str,
        path: str,
        query: bytes,
        headers: Headers,
        respond: Callable[[Call, Answer, bool], None],
        transport: asyncio.Transport | None,
        *,
        keep_alive: bool,
    ) -> None:
        super().__init__(method, unquote(path) if "%" in path else path, query, headers, respond)
        self.raw_path = path
        self._transport = transport
        self.keep_alive = keep_alive
        self.expects = (header(headers, b"expect") or b"").lower() == b"100-continue"
        self.pieces: list[bytes] = []
        self.whole = False

    def certificate(self) -> bytes | None:
        """That of the connection. The handshake ends with an error where one is shown that is not accepted."""
        tls = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        shown: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
        return shown


class Connection(asyncio.Protocol):
    """One connection. Its event loop calls it, and the application answers its calls."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._state = State.HEAD
        self._deadline_s = inf
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._take = host.application.take
        self.address = ""
        """The client's."""
        # The head that the parser is at, and the call whose body it is at.
        self._url = b""
        self._headers: Headers = []
        self._in_head = False
        self._arriving: _Head | None = None
        self._offered = False
        self._trouble: NotaryError | None = None
        self._no_body_bytes = 0  # since the last byte of a body, or the end of a head or a call
        self._moved = False
        # The call that the application has, and what came behind it.
        self._current: _Head | None = None
        self._refusal: Answer | None = None
        self._behind: deque[_Head] = deque()
        self._unread = b""
        self._reading_paused = False
        self._working = False  # in the parser, or going on: what is answered meanwhile does not start either again
        self._last = False  # the call that is being decided is the last one
        self._eof = False
        self._unwritten_bytes = -1  # when it was last looked at; -1 while the client reads
        self._unwritten_until_s = inf

    @property
    def state(self) -> State:
        """Where it is."""
        return self._state

    # ---- asyncio's ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a head, or say that there are too many connections."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else ""
        self._deadline_s = self._loop.time() + self._host.times.head_s
        if (refusal := self._host.opened(self)) is not None:
            self._write(problem_of(refusal), keep_alive=False)
            self._go(Event.BREAK)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._go(Event.LOST)
        self._host.closed(self)

    def data_received(self, data: bytes) -> None:
        """Parse it, or keep it until it is its turn."""
        if self._state >= State.CLOSING or (self._last and self._state is State.DECIDING):
            return
        if self._unread or self._is_held():
            self._keep(self._unread + data)
        else:
            self._feed(data)

    def eof_received(self) -> bool:
        """A client may close its half behind its calls: they are answered before the connection ends."""
        self._eof = True
        if self._state is State.DECIDING and self._transport is not None and self._transport.get_extra_info("sslcontext") is None:
            self._go(Event.EOF)
            return True
        self._go(Event.EOF)
        return False

    def pause_writing(self) -> None:
        """The client reads its answers too slowly: start no other call, and give it a time."""
        assert self._transport is not None
        self._unwritten_bytes = self._transport.get_write_buffer_size()
        self._unwritten_until_s = self._loop.time() + self._host.times.head_s

    def resume_writing(self) -> None:
        """It has read."""
        self._unwritten_bytes = -1
        self.go_on()

    # ---- the server's ----

    def look(self, now_s: float) -> None:
        """End what has taken too long."""
        if self._unwritten_bytes >= 0:
            if now_s > self._unwritten_until_s:
                assert self._transport is not None
                left_bytes = self._transport.get_write_buffer_size()
                if left_bytes > self._unwritten_bytes - WRITTEN_BYTES_MIN:
                    self.abort()
                else:
                    self.pause_writing()
        elif now_s > self._deadline_s:
            self._late()

    def stop(self) -> None:
        """Take no other call; end when the one that is under way has its answer."""
        idle = self._state <= State.HEAD
        self._last = True
        if self._state is State.REFUSED:
            self._write_refusal(keep_alive=False)
        self._go(Event.STOP)
        if idle:  # it has nothing to read but TLS's goodbye, and may not read that
            self._deadline_s = self._loop.time() + self._host.times.goodbye_s

    def abort(self) -> None:
        """End now."""
        if self._transport is not None:
            self._transport.abort()

    def go_on(self) -> None:
        """Take up what was kept, as far as it goes."""
        if self._working or self._state > State.HEAD or self._is_held():
            return
        self._working = True
        while self._behind and self._state <= State.HEAD and not self._is_held():
            call = self._behind.popleft()
            self._start(call)
            for piece in call.pieces:
                self._piece(call, piece)
            call.pieces.clear()
            if call.whole:
                self._ended()
        self._working = False
        if self._behind or self._state is State.DECIDING or self._is_held():
            return
        unread, self._unread = self._unread, b""
        if unread:
            self._feed(unread)
        elif self._in_head and self._state is State.IDLE:
            self._go(Event.BYTES)
        if self._unread or self._state >= State.CLOSING:
            return
        if self._eof and self._state <= State.HEAD:
            self._go(Event.EOF)
        elif self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    def _is_held(self) -> bool:
        return self._state is State.DECIDING or self._unwritten_bytes >= 0 or self._host.paused

    # ---- the machine ----

    def _go(self, event: Event) -> None:
        """The one place where the state changes."""
        before = self._state
        state = self._state = TRANSITIONS[before][event]
        if state is before:
            if event is Event.BREAK or event is Event.STOP:
                self._last = True
        elif state is State.DECIDING:
            self._deadline_s = inf
        else:
            self._deadline_s = self._loop.time() + self._host.seconds[state]
            if state is State.IDLE:
                self._current = None
                if self._last:
                    self._go(Event.STOP)
            elif state >= State.CLOSING:
                self._end(before)

    def _end(self, before: State) -> None:
        """No call is read any more."""
        call, self._current = self._current, None
        self._behind.clear()
        self._unread = b""
        if call is not None and before in (State.BODY, State.DECIDING):
            call.gone = True
            if before is State.BODY and call.reader is not None:
                call.reader.left()
        if self._transport is not None:
            self._transport.close()

    def _start(self, call: _Head) -> None:
        self._current = call
        if not call.keep_alive:
            self._last = True
        self._go(Event.CALL)
        self._guarded(self._take, call)
        if self._state is State.BODY and call.expects and not call.whole and not call.pieces and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _piece(self, call: _Head, data: bytes) -> None:
        if self._state is State.BODY and call.reader is not None:
            self._guarded(call.reader.piece, data)

    def _ended(self) -> None:
        """The body of the current call is complete."""
        call = self._current
        if self._state is State.BODY:
            self._go(Event.END)
            if call is not None and call.reader is not None:
                self._guarded(call.reader.whole)
            return
        if self._state is State.REFUSED:
            self._write_refusal(keep_alive=not self._last)
        if self._state is not State.CLOSING:
            self._go(Event.END)

    def _answer(self, call: Call, answer: Answer, after_body: bool) -> None:
        """The application answers the current call; nothing for one whose client has left."""
        current = self._current
        if call is not current or current is None or self._state not in (State.BODY, State.DECIDING):
            return
        if after_body and self._state is State.BODY and not current.expects:
            self._refusal = answer
            self._go(Event.REFUSE)
            return
        last = self._last or (self._eof and not self._behind and not self._unread)
        self._write(answer, keep_alive=not last, without_body=call.method == "HEAD")
        self._last = last
        self._go(Event.ANSWER)
        if self._behind or self._unread or self._in_head or self._eof:
            self.go_on()

    def _late(self) -> None:
        state = self._state
        if state is State.HEAD:
            self._write(
                problem_of(Malformed(f"the head of the request was not complete after {self._host.times.head_s:g} s")), keep_alive=False
            )
        elif state is State.REFUSED:
            self._write_refusal(keep_alive=False)
        elif state is State.BODY:
            call = self._current
            if call is not None and call.reader is not None:
                self._guarded(call.reader.late)
                return
            self._break(Malformed(f"the body was not complete after {self._host.times.body_s:g} s: send it without pauses"))
            return
        elif state is State.CLOSING:
            self.abort()
        self._go(Event.LATE)

    def _break(self, problem: NotaryError) -> None:
        """What came ends the connection: with this problem, unless there is an answer to somebody's call to send instead."""
        state = self._state
        if state is State.REFUSED:
            self._write_refusal(keep_alive=False)
        elif state <= State.BODY and not self._behind:
            self._write(problem_of(problem), keep_alive=False)
        self._go(Event.BREAK)

    def _guarded(self, do: Callable[..., None], *arguments: Any) -> None:
        """A bug of the application costs one call, not the server."""
        try:
            do(*arguments)
        except Exception:
            log.exception("a call could not be answered")
            if self._state in (State.BODY, State.DECIDING):
                self._write((500, TEXT, b"Internal Server Error\n"), keep_alive=False)
                self._last = True
                self._go(Event.BREAK if self._state is State.BODY else Event.ANSWER)

    # ---- in ----

    def _keep(self, data: bytes) -> None:
        assert self._transport is not None
        self._unread = data
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _feed(self, data: bytes) -> None:
        """Give the parser what has come, as long as calls are taken."""
        if self._state is State.IDLE:
            self._go(Event.BYTES)
        self._working = True
        try:
            if len(data) <= SLICE_BYTES:
                self._parse(data)
                return
            for at in range(0, len(data), SLICE_BYTES):
                if self._last and self._state >= State.DECIDING:
                    return
                if self._behind or self._is_held():
                    self._keep(data[at:])
                    return
                self._parse(memoryview(data)[at : at + SLICE_BYTES])
        finally:
            self._working = False

    def _parse(self, data: bytes | memoryview) -> None:
        """Feed the parser; where a client offers another protocol, feed it the same head without the offer.

        Java's client offers HTTP/2 with the first call of each connection. The parser takes all that follows for the other protocol, the
        body too; who passes the offer over, as HTTP allows, still has to read it.
        """
        self._moved = False
        rest = data
        try:
            while rest:
                try:
                    self._parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as offer:
                    rest = memoryview(rest)[offer.args[0] :]
                    lines = [b"%s %s HTTP/%s" % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())]
                    lines += [b"%s: %s" % header for header in self._headers if header[0] != b"upgrade"]
                    self._parser = httptools.HttpRequestParser(self)
                    self._offered = False
                    self._parser.feed_data(b"\r\n".join([*lines, b"\r\n"]))
        except httptools.HttpParserError:
            if self._state < State.CLOSING:
                self._break(self._trouble or Malformed("this is not a request of HTTP/1.1"))
            return
        if self._moved:
            self._no_body_bytes = 0
            return
        self._no_body_bytes += len(data)
        if self._no_body_bytes > HEAD_BYTES_MAX and self._state < State.CLOSING:
            self._break(_head_too_large())

    # ---- the parser's ----

    def on_message_begin(self) -> None:
        """A head begins, perhaps in the bytes that ended the call before it."""
        self._url, self._headers, self._in_head = b"", [], True
        if self._state is State.IDLE:
            self._go(Event.BYTES)

    def on_url(self, url: bytes) -> None:
        """A piece of the address."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what comes behind a body is dropped."""
        if self._in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Hand the call to the application, if it is its turn."""
        parser = self._parser
        if self._no_body_bytes and len(self._url) + sum([len(name) + len(value) + 4 for name, value in self._headers]) > HEAD_BYTES_MAX:
            self._trouble = _head_too_large()
            raise self._trouble  # the parser makes an error of its own of it
        if parser.should_upgrade():
            if parser.get_method() == b"CONNECT":
                raise Malformed("there is no way through here")
            self._offered = True
            return
        path, query = _split(self._url)
        method = parser.get_method().decode()
        keep_alive = parser.should_keep_alive() and parser.get_http_version() != "1.0"
        call = self._arriving = _Head(method, path, query, self._headers, self._answer, self._transport, keep_alive=keep_alive)
        self._in_head, self._moved = False, True
        if self._state <= State.HEAD and not self._behind and self._unwritten_bytes < 0:
            self._start(call)
        elif self._state < State.CLOSING:
            self._behind.append(call)

    def on_body(self, data: bytes) -> None:
        """A piece of a body."""
        self._moved = True
        call = self._arriving
        if call is not None and call is self._current:
            self._piece(call, data)
        elif call is not None:
            call.pieces.append(data)

    def on_message_complete(self) -> None:
        """The next bytes belong to another call."""
        if self._offered:
            return
        self._moved = True
        call, self._arriving = self._arriving, None
        if call is not None and call is self._current:
            self._ended()
        elif call is not None:
            call.whole = True

    # ---- out ----

    def _write_refusal(self, *, keep_alive: bool) -> None:
        assert self._refusal is not None
        refusal, self._refusal = self._refusal, None
        self._write(refusal, keep_alive=keep_alive)

    def _write(self, answer: Answer, *, keep_alive: bool, without_body: bool = False) -> None:
        status, headers, body = answer
        lines = [_status_line(status), *[b"%s: %s\r\n" % header for header in headers], _date_line()]
        lines.append(
            b"content-length: %d\r\n\r\n" % len(body) if keep_alive else b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        )
        if not without_body:
            lines.append(body)
        if self._transport is not None:
            self._transport.write(b"".join(lines))


def _head_too_large() -> Malformed:
    return Malformed(f"the head of the request has more than {HEAD_BYTES_MAX} bytes")


def _split(url: bytes) -> tuple[str, bytes]:
    """Path and query of a request's target, as they are sent."""
    if url[:1] == b"/" and b"#" not in url:
        raw, _, query = url.partition(b"?")
    else:
        parsed = httptools.parse_url(url)
        raw, query = parsed.path, parsed.query or b""
        if not raw:
            raise Malformed("the address has no path")
    return raw.decode("ascii"), query


@functools.cache
def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())


class _Date:
    second = 0
    line = b""


def _date_line() -> bytes:
    second = int(time())
    if second != _Date.second:
        _Date.second, _Date.line = second, b"date: %s\r\n" % formatdate(second, usegmt=True).encode()
    return _Date.line
