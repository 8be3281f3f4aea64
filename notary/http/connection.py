"""One HTTP/1.1 connection, between its socket and the application.

`machine` has its states, `parsing` turns its bytes into calls, and `writing` turns its answers into bytes. This module combines the three:
it defines the effect of each event.

- The application has one call at a time, so answers leave in order. While a call is being decided, or the client does not read an answer,
  the connection keeps the bytes that have come, at most one read of the socket, and reads no more.
- Each state but `DECIDING` has a deadline, and so has an unread answer. The server checks all connections several times within the shortest
  deadline.
- While a call is being decided, malformed bytes may come after it, or the client may close its half. Then the answer still leaves first. An
  error in its place would wrongly report that the submission is not in the log.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, Protocol, cast

from notary.http.call import TEXT, Answer, Application, Call
from notary.http.lanes import ClientKey, ClientLanes
from notary.http.machine import TRANSITIONS, ConnectionState, Event
from notary.http.parsing import Head, Parser
from notary.http.problems import problem_of
from notary.http.settings import HttpSettings
from notary.http.writing import PIECE_BYTES, ResponseWriter
from ordering.errors import Malformed, NotaryError

logger = logging.getLogger("notary.http")

SLICE_BYTES: Final = 4 << 10
"""The parser gets this many bytes at a time. So at most this many bytes of calls are parsed after a call that is being decided."""
BODY_BYTES_MAX: Final = 64 << 10
"""Within a body of known length the parser gets up to this many bytes at a time: no other call begins in them."""
TURN_BYTES_MAX: Final = 64 << 10
"""After this many bytes of answers in one turn of the loop, a connection starts no other call in that turn. One read of the socket holds
thousands of calls, and a transport with TLS reports only after the turn that its client does not read."""

DROPPED_BYTES_MAX: Final = 256 << 10
"""A connection reads and drops this many bytes behind its last call: to close a socket in which bytes wait would cut the answer (RFC 9112,
9.6). A client that sends more is read no further, so that a flood takes no time."""


class Host(Protocol):
    """The server that a connection belongs to."""

    @property
    def application(self) -> Application:
        """The application, which answers the calls."""
        ...

    @property
    def settings(self) -> HttpSettings:
        """The time limits."""
        ...

    @property
    def seconds(self) -> Sequence[float]:
        """The time limit of each state, in the order of `ConnectionState`."""
        ...

    @property
    def lanes(self) -> ClientLanes:
        """The lanes in which connections wait to be read."""
        ...

    @property
    def paused(self) -> bool:
        """True while no calls may be read. `Connection.go_on` is called when they may be read again."""
        ...

    @property
    def ends(self) -> bool:
        """True once the server stops: each answer is the last one of its connection."""
        ...

    def opened(self, connection: "Connection") -> None:
        """Register a connection that was made."""
        ...

    def closed(self, connection: "Connection") -> None:
        """Forget a connection that is closed."""
        ...


class Connection(asyncio.Protocol):
    """One connection. The event loop reports its bytes, and the application answers its calls."""

    def __init__(self, host: Host, network: str, has_place: Callable[[], bool] = lambda: True) -> None:
        """`network`: the client's address (`Call.network`). `has_place` returns False if it has lost its place while it was made."""
        self._host = host
        self.network = network
        self.parties: set[bytes] = set()
        """The parties of new submissions that were admitted on this connection (`Call.parties`). With any, its client is authenticated."""
        self.client = ClientKey(network, self.parties)
        """Its client, whose lane it waits in."""
        self._lanes = host.lanes
        self._loop = asyncio.get_running_loop()
        self._state = ConnectionState.HEAD
        self._deadline_s = inf
        self._transport: asyncio.Transport  # `connection_made` sets the three
        self._writer: ResponseWriter
        self._parser: Parser
        self._take = host.application.take
        # The call that the application has, and the calls and bytes that came after it.
        self._current: Head | None = None
        self._rejection: Answer | None = None
        self._behind: deque[Head] = deque()
        self._unparsed = b""
        self._reading_paused = False
        self._in_lane = False  # True while it waits in its lane to be read
        self._waited_s = 0.0  # the time for which the next call has waited for turns
        self._working = False  # True in `_feed` and `_process_kept`: an answer meanwhile does not start them again
        self._turn_bytes = 0  # bytes of answers in this turn of the loop that were given while `_working`
        self._last = False  # True if the current call is the last one
        self._ends_soon = False  # True if its client gets only `goodbye_s` to close it, with TLS too
        self._eof = False
        self._dropped_bytes = 0  # bytes that came behind the last call
        self._broken: NotaryError | None = None  # malformed bytes came after complete calls, whose answers leave first
        self._has_place = has_place
        self.is_connected = False
        """True once the transport is connected: with TLS, after the handshake."""

    @property
    def state(self) -> ConnectionState:
        """The connection's state."""
        return self._state

    # ---- called by asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first head."""
        self._transport = cast(asyncio.Transport, transport)
        self.is_connected = True
        self._transport.set_write_buffer_limits(PIECE_BYTES)
        self._writer = ResponseWriter(self._transport)
        self._parser = Parser(self)
        self._deadline_s = self._loop.time() + self._host.settings.head_s
        if self._has_place():
            self._host.opened(self)
        else:
            self._state = ConnectionState.CLOSED
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is closed. No cycle of references stays, so this object is freed without the garbage collector."""
        self._go(Event.LOST)
        self._parser.close()
        self._host.closed(self)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, or keep them until it is the connection's turn."""
        if self._state >= ConnectionState.CLOSING or self._broken or (self._last and self._state is ConnectionState.DECIDING):
            self._dropped_bytes += len(data)
            if self._dropped_bytes > DROPPED_BYTES_MAX:
                self._keep(b"")
            return
        if self._unparsed or self._in_lane or self._must_wait():
            self._keep(self._unparsed + data)
        elif self._lanes.may_go(self.client, begun=self._state is ConnectionState.BODY):
            self._feed(data)
        else:
            self._keep(data)
            self._read_later()

    def eof_received(self) -> bool:
        """The client has closed its half. Calls that came before are answered before the connection ends.

        A long poll ends at once: a client that left looks the same, and would keep the long poll for its complete wait.
        """
        self._eof = True
        if self._current is not None and self._current.left is not None:
            self._current.left()
        has_calls = self._in_lane or self._state is ConnectionState.DECIDING or bool(self._behind or self._unparsed)
        if has_calls and self._transport.get_extra_info("sslcontext") is None:
            return True
        self._go(Event.EOF)
        self._writer.pass_on(at_once=True)  # the transport closes when it has sent what it has
        return False

    def pause_writing(self) -> None:
        """The client reads its answers too slowly: start no other call, and set a deadline for the client."""
        self._writer.wait_for_client(self._loop.time() + self._host.settings.head_s)

    def resume_writing(self) -> None:
        """The client has read its answers."""
        self._writer.client_has_read()
        if self._state >= ConnectionState.CLOSING:  # its deadline may have passed meanwhile, and the end of its last answer is on its way
            self._deadline_s = self._loop.time() + self._host.seconds[self._state]
        self.go_on()

    # ---- called by the server ----

    @property
    def unread_bytes(self) -> int:
        """The bytes of answers that its client does not read."""
        return self._writer.unread_bytes

    def postpone(self, seconds: float) -> None:
        """Move the deadline by the time for which the server was paused."""
        self._deadline_s += seconds

    def check(self, now_s: float) -> None:
        """End the call or the connection if its deadline has passed."""
        if self._writer.waits_for_client:
            if now_s > self._writer.deadline_s:
                if self._writer.has_progress():
                    self.pause_writing()
                else:
                    self.abort()
            return
        if self._state is ConnectionState.CLOSING and not self.unread_bytes and (self._ends_soon or self._transport.can_write_eof()):
            self._deadline_s = min(self._deadline_s, now_s + self._host.settings.goodbye_s)
        # Before that, the server may be late, and not the client.
        if now_s > self._deadline_s and (self._state is ConnectionState.CLOSING or not (self._in_lane or self._host.paused)):
            self._late()

    def stop(self) -> None:
        """Take no other call. End the connection when the current call has its answer."""
        self._ends_soon = self._last = True
        if self._state is ConnectionState.REJECTED:
            self._write_rejection(keep_alive=False)
        self._go(Event.STOP)

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def give_way(self, problem: NotaryError) -> bool:
        """End, so that a client with fewer connections gets the place.

        Returns False while a submission is being decided: `stop` ends the connection with its answer. A long poll is answered first, as at
        the end of its wait. Other answers have `goodbye_s` to leave: the server counts the connection no longer.
        """
        left = None if self._current is None else self._current.left
        is_closing = self._state >= ConnectionState.CLOSING
        if self._state is ConnectionState.DECIDING and left is None:
            return False
        self._ends_soon = True  # with TLS its descriptor stays open until the client answers
        if self._writer.waits_for_client or (is_closing and self._transport.can_write_eof() and not self.unread_bytes):
            self.abort()
        elif left is not None and self._state is ConnectionState.DECIDING:  # else its answer would wait for the rest of its body
            self._last = True
            left()
        elif self._state is ConnectionState.IDLE and not (self._behind or self._unparsed):
            self._go(Event.LATE)
        elif not is_closing:
            self._behind.clear()
            self._break(problem)
            if self._transport.can_write_eof():  # do not wait for its client: a flood would keep many connections open
                self._transport.close()
        if self._state is ConnectionState.CLOSING:
            self._deadline_s = min(self._deadline_s, self._loop.time() + self._host.settings.goodbye_s)
        return True

    def go_on(self) -> None:
        """Process the calls and bytes that were kept: now, or when it is the connection's turn."""
        if self._working or self._in_lane or self._state >= ConnectionState.CLOSING or self._must_wait():
            return
        has_nothing = not (self._unparsed or self._behind)  # then only the reading of the socket resumes, which costs little
        if has_nothing or self._lanes.may_go(self.client, begun=self._state is ConnectionState.BODY):
            self.read()
        else:
            self._read_later()

    def read(self, waited_s: float = 0.0) -> None:
        """Process the calls and bytes that were kept, for a slice of time. The deadline moves by `waited_s`, for which they waited."""
        self._in_lane = False
        if self._state <= ConnectionState.HEAD:  # else the rest of a body has waited, not the next call
            self._waited_s += waited_s
        self._deadline_s += waited_s
        self._process_kept()
        if waited_s:  # the server's own check skips a connection in a lane, and this one may be in a lane at each check
            self.check(self._loop.time())

    def _process_kept(self) -> None:
        """Start the calls that were kept, then parse the bytes behind them, then read the socket again; only as far as that may be done."""
        if self._working or self._state >= ConnectionState.CLOSING or self._must_wait():
            return
        self._working = True
        while self._behind and self._state <= ConnectionState.HEAD and not self._must_wait():
            call = self._behind.popleft()
            self._start(call)
            pieces, call.pieces = call.pieces, []  # `piece` adds to those of a call that has ended
            for piece in pieces:
                self.piece(call, piece)
            if call.complete:
                self.ended(call)
            if self._lanes.slice_is_over():
                break
        self._working = False
        if self._must_wait():
            if not (self._behind or self._unparsed):  # then the client would leave unnoticed
                self._resume_reading()
        elif self._behind:
            self._read_later()
        elif self._broken is not None and self._state <= ConnectionState.HEAD:
            self._break(self._broken)
        else:
            unparsed, self._unparsed = self._unparsed, b""
            if unparsed:
                self._feed(unparsed)
            elif self._parser.in_head and self._state is ConnectionState.IDLE:
                self._go(Event.BYTES)
            if not (self._in_lane or self._unparsed or self._state >= ConnectionState.CLOSING):
                if self._eof:
                    self._go(Event.EOF)
                else:
                    self._resume_reading()

    def _read_later(self) -> None:
        if not self._in_lane:
            self._in_lane = True
            self._lanes.wait(self.client, self.read, size=len(self._unparsed), begun=self._state is ConnectionState.BODY)

    def _must_wait(self) -> bool:
        return (
            self._state is ConnectionState.DECIDING
            or self._writer.waits_for_client
            or self._turn_bytes > TURN_BYTES_MAX
            or self._host.paused
        )

    def _next_turn(self) -> None:
        self._turn_bytes = 0
        self.go_on()

    # ---- the machine ----

    def _go(self, event: Event) -> None:
        """Change the state. Nothing else changes it."""
        before = self._state
        state = self._state = TRANSITIONS[before][event]
        if state is before:
            if event is Event.BREAK or event is Event.STOP:
                self._last = True
        elif state is ConnectionState.DECIDING:
            self._deadline_s = inf
        else:
            self._deadline_s = self._loop.time() + self._host.seconds[state]
            if state is ConnectionState.IDLE:
                self._current = None
                if self._last:
                    self._go(Event.STOP)
            elif state >= ConnectionState.CLOSING:
                if logger.isEnabledFor(logging.DEBUG) and before < ConnectionState.CLOSING:
                    logger.debug("a connection ends event=%s state=%s network=%s", event.name.lower(), before.name.lower(), self.network)
                self._end(before)

    def _end(self, before: ConnectionState) -> None:
        """Read no more calls, and close the transport; while an answer may be on its way, only this half: the client closes the other.

        A transport with TLS itself drops the bytes that come before the client's close_notify.
        """
        call, self._current = self._current, None
        self._behind.clear()
        self._unparsed = b""
        if call is not None:
            reader, call.reader = call.reader, None
            if before in (ConnectionState.BODY, ConnectionState.DECIDING):
                call.leave()
                if before is ConnectionState.BODY and reader is not None:
                    reader.left()
                if call.left is not None:
                    call.left()
        if self._state is ConnectionState.CLOSED:
            self._writer.drop()
            return
        has_answer = self._writer.has_last_answer or self.unread_bytes or self._reading_paused or before is ConnectionState.ANSWERED
        if has_answer and self._transport.can_write_eof() and not self._eof:
            self._writer.when_passed_on(self._write_eof)
            self._resume_reading()
        else:
            self._writer.when_passed_on(self._transport.close)

    def _write_eof(self) -> None:
        with contextlib.suppress(OSError):  # from asyncio, if the answer has met a closed socket: the next read reports that
            self._transport.write_eof()

    def _start(self, call: Head) -> None:
        self._current = call
        call.waited_s, self._waited_s = self._waited_s, 0.0
        call.may_wait = not self._eof
        if not call.keep_alive:
            self._last = True
        self._go(Event.CALL)
        self._guarded(self._take, call)
        if self._state is ConnectionState.BODY and call.expects_continue and not call.complete and not call.pieces:
            self._writer.send_continue()

    def respond(self, call: Call, answer: Answer, after_body: bool) -> None:
        """Send the application's answer to the current call. An answer for a client that has left is dropped."""
        current = self._current
        if call is not current or current is None or self._state not in (ConnectionState.BODY, ConnectionState.DECIDING):
            return
        if after_body and self._state is ConnectionState.BODY and not current.expects_continue:
            self._rejection = answer
            self._go(Event.REJECT)
            return
        last = self._is_last()
        if self.parties:
            self._lanes.remember(self.network)
        size = self._writer.answer(answer, keep_alive=not last, without_body=call.method == "HEAD")
        if self._working:  # other calls may be answered in the same turn
            if not self._turn_bytes:
                self._loop.call_soon(self._next_turn)
            self._turn_bytes += size
        self._last = last
        self._go(Event.ANSWER)
        if self._behind or self._unparsed or self._reading_paused or self._parser.in_head or self._eof or self._broken:
            self.go_on()

    def _is_last(self) -> bool:
        """Returns True if the current call is the last one, now that its answer leaves."""
        return self._last or (((self._eof and not self._working) or self._host.ends) and not self._behind and not self._unparsed)

    def _late(self) -> None:
        state = self._state
        if state is ConnectionState.HEAD:
            if self._parser.in_head:  # without a byte of a head, the client would take an answer for that to its next call
                self._writer.answer(
                    problem_of(Malformed(f"the head of the request was not complete after {self._host.settings.head_s:g} s")),
                    keep_alive=False,
                )
        elif state is ConnectionState.REJECTED:
            self._write_rejection(keep_alive=False)
        elif state is ConnectionState.BODY:
            call = self._current
            if call is not None and call.reader is not None:
                self._guarded(call.reader.late)
                return
            self._break(Malformed(f"the body was not complete after {self._host.settings.body_s:g} s: send it without pauses"))
            return
        elif state is ConnectionState.CLOSING:
            self.abort()
        self._go(Event.LATE)

    def _break(self, problem: NotaryError) -> None:
        """End the connection with this problem, after the answers to complete calls that came before it (RFC 9112, 9.3.2).

        If such a call is being decided, its answer is the last one of the connection.
        """
        state, behind = self._state, self._behind
        if state <= ConnectionState.HEAD and behind and behind[0].complete:
            if not behind[-1].complete:
                behind.pop()
            self._broken, self._unparsed = problem, b""
            return
        is_first = not behind or (len(behind) == 1 and not behind[0].complete)  # the slice of time may have ended within the broken call
        if state is ConnectionState.REJECTED:
            self._write_rejection(keep_alive=False)
        elif state <= ConnectionState.BODY and is_first:
            self._writer.answer(problem_of(problem), keep_alive=False)
        self._go(Event.BREAK)

    def _guarded(self, do: Callable[..., None], *arguments: Any) -> None:
        """Call the application. A bug in it costs one call, not the server."""
        try:
            do(*arguments)
        except Exception:
            logger.exception("a call could not be answered")
            if self._state in (ConnectionState.BODY, ConnectionState.DECIDING):
                self._writer.answer((500, TEXT, b"Internal Server Error\n"), keep_alive=False)
                self._last = True
                self._go(Event.BREAK if self._state is ConnectionState.BODY else Event.ANSWER)

    # ---- called by the parser ----

    def called(self, call: Head) -> None:
        """A head is complete: pass the call to the application, or keep it until that is possible."""
        if self._state <= ConnectionState.HEAD and not self._behind and not self._must_wait() and not self._lanes.slice_is_over():
            self._start(call)
        elif self._state < ConnectionState.CLOSING:
            self._behind.append(call)

    def piece(self, call: Head, data: bytes) -> None:
        """A piece of that call's body has come."""
        if call is not self._current:
            call.pieces.append(data)
        elif self._state is ConnectionState.BODY and call.reader is not None:
            self._guarded(call.reader.piece, data)

    def ended(self, call: Head) -> None:
        """The body of that call is complete."""
        if call is not self._current:
            call.complete = True
            return
        reader, call.reader = call.reader, None  # the reader has the call: this frees both without the garbage collector
        if self._state is ConnectionState.BODY:
            self._go(Event.END)
            if reader is not None:
                self._guarded(reader.complete)
            return
        if self._state is ConnectionState.REJECTED:
            self._last = self._is_last()
            self._write_rejection(keep_alive=not self._last)
        if self._state is not ConnectionState.CLOSING:
            self._go(Event.END)

    def certificate(self) -> bytes | None:
        """Returns the client certificate in DER. A handshake with a certificate that is not accepted fails, so this one was accepted."""
        tls = self._transport.get_extra_info("ssl_object")
        shown: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
        return shown

    # ---- bytes ----

    def _keep(self, data: bytes) -> None:
        self._unparsed = data
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._eof:
            self._reading_paused = False
            self._transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        """Pass bytes to the parser, as long as calls may be taken."""
        if self._state is ConnectionState.IDLE:
            self._go(Event.BYTES)
        self._working = True
        try:
            if len(data) <= SLICE_BYTES:
                self._parse(data)
                return
            at = 0
            while at < len(data):
                if self._last and self._state >= ConnectionState.DECIDING:
                    return
                if self._behind or self._must_wait() or (at and self._lanes.slice_is_over()):
                    self._keep(data[at:])
                    return
                size = max(SLICE_BYTES, min(self._parser.body_left, BODY_BYTES_MAX))
                self._parse(memoryview(data)[at : at + size])
                at += size
        finally:
            self._working = False
            if (self._behind or self._unparsed) and self._state <= ConnectionState.ANSWERED and not self._must_wait():
                self._read_later()

    def _parse(self, data: bytes | memoryview) -> None:
        try:
            self._parser.feed(data)
        except Malformed as problem:
            problem.__traceback__ = problem.__context__ = None  # its frames have the error and this object
            if self._state < ConnectionState.CLOSING:
                self._break(problem)
            return
        if self._parser.in_head and self._state is ConnectionState.IDLE:
            self._go(Event.BYTES)

    def _write_rejection(self, *, keep_alive: bool) -> None:
        assert self._rejection is not None
        rejection, self._rejection = self._rejection, None
        self._writer.answer(rejection, keep_alive=keep_alive)
