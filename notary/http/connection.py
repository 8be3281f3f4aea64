"""One connection of HTTP/1.1, with nothing between it and the application.

`machine` has its states, `parsing` makes calls of its bytes, `writing` makes bytes of its answers. Here the three meet: what an event does.

- One call at a time is with the application, so answers leave in order. Behind a call that is being decided, or an answer that the client
  does not read, the connection keeps what has come, at most what one read of the socket gives, and reads no more.
- Each state has a deadline, and so has an answer that is not read. The server looks at all of them a few times in the least of these times.
- Where the bytes turn to nonsense, or end, while a call is being decided, its answer leaves first: an error in its place would say of a
  submission in the log that it is not.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, Protocol, cast

from notary.http.call import TEXT, Answer, Application, Call
from notary.http.lines import ClientKey, ClientLines
from notary.http.machine import TRANSITIONS, ConnectionState, Event
from notary.http.parsing import Head, Parser
from notary.http.problems import problem_of
from notary.http.settings import HttpSettings
from notary.http.writing import ResponseWriter
from ordering.errors import Malformed, NotaryError

logger = logging.getLogger("notary.http")

SLICE_BYTES: Final = 4 << 10
"""The parser gets so much at a time, so what it finds behind a call that is being decided is no more."""
BODY_BYTES_MAX: Final = 64 << 10
"""It gets so much at a time within a body of a known length, behind which nothing is found."""
TURN_BYTES_MAX: Final = 64 << 10
"""After so many bytes of answers in one turn of the loop no other call of a connection is taken in it: one read of the socket holds
thousands of calls, and a transport with TLS says only after the turn that its client does not read."""


class Host(Protocol):
    """The server that a connection belongs to."""

    @property
    def application(self) -> Application:
        """Answers the calls."""
        ...

    @property
    def settings(self) -> HttpSettings:
        """The time limits."""
        ...

    @property
    def seconds(self) -> Sequence[float]:
        """The time of each state."""
        ...

    @property
    def lines(self) -> ClientLines:
        """Where connections wait to be read."""
        ...

    @property
    def paused(self) -> bool:
        """Whether no calls are to be read now; `Connection.go_on` is called when they are again."""
        ...

    @property
    def ends(self) -> bool:
        """True once the server stops: each answer is the last one of its connection."""
        ...

    def opened(self, connection: "Connection") -> None:
        """A connection is there."""
        ...

    def closed(self, connection: "Connection") -> None:
        """A connection is gone."""
        ...


class Connection(asyncio.Protocol):
    """One connection. Its event loop calls it, and the application answers its calls."""

    def __init__(self, host: Host, network: str) -> None:
        """`network`: the client's address (`Call.network`)."""
        self._host = host
        self.network = network
        self.parties: set[bytes] = set()
        """The parties of submissions that were admitted here (`Call.parties`). Its client is a proven one once there are some."""
        self._client = ClientKey(network, self.parties)
        self._lines = host.lines
        self._loop = asyncio.get_running_loop()
        self._state = ConnectionState.HEAD
        self._deadline_s = inf
        self._transport: asyncio.Transport  # both from `connection_made` on
        self._writer: ResponseWriter
        self._parser = Parser(self)
        self._take = host.application.take
        # The call that the application has, and what came behind it.
        self._current: Head | None = None
        self._refusal: Answer | None = None
        self._behind: deque[Head] = deque()
        self._unread = b""
        self._reading_paused = False
        self._in_line = False  # it waits for its turn to be read
        self._unread_s = 0.0  # so long the next call has waited for turns
        self._working = False  # in the parser, or going on: what is answered meanwhile does not start either again
        self._turn_bytes = 0  # of answers, since a turn of the loop began in which a call was answered while others were taken
        self._last = False  # the call that is being decided is the last one
        self._eof = False

    @property
    def state(self) -> ConnectionState:
        """Where it is."""
        return self._state

    # ---- asyncio's ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a head."""
        self._transport = cast(asyncio.Transport, transport)
        self._writer = ResponseWriter(self._transport)
        self._deadline_s = self._loop.time() + self._host.settings.head_s
        self._host.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._go(Event.LOST)
        self._host.closed(self)

    def data_received(self, data: bytes) -> None:
        """Parse it, or keep it until it is its turn."""
        if self._state >= ConnectionState.CLOSING or (self._last and self._state is ConnectionState.DECIDING):
            return
        if self._unread or self._in_line or self._is_held():
            self._keep(self._unread + data)
        elif self._lines.may_go(self._client, begun=self._state is ConnectionState.BODY):
            self._feed(data)
        else:
            self._keep(data)
            self._read_later()

    def eof_received(self) -> bool:
        """A client may close its half behind its calls: they are answered before the connection ends.

        A long poll ends at once. A client that left looks the same, and would keep it for its whole wait.
        """
        self._eof = True
        if self._current is not None and self._current.left is not None:
            self._current.left()
        if (self._in_line or self._state is ConnectionState.DECIDING) and self._transport.get_extra_info("sslcontext") is None:
            return True
        self._go(Event.EOF)
        return False

    def pause_writing(self) -> None:
        """The client reads its answers too slowly: start no other call, and give it a time."""
        self._writer.hold(self._loop.time() + self._host.settings.head_s)

    def resume_writing(self) -> None:
        """It has read."""
        self._writer.release()
        self.go_on()

    # ---- the server's ----

    def check(self, now_s: float) -> None:
        """End what has taken too long."""
        if self._writer.held:
            if now_s > self._writer.until_s:
                if self._writer.has_read():
                    self.pause_writing()
                else:
                    self.abort()
        elif now_s > self._deadline_s and not self._in_line:  # what waits for its turn here is not late
            self._late()

    def stop(self) -> None:
        """Take no other call; end when the one that is under way has its answer."""
        idle = self._state <= ConnectionState.HEAD
        self._last = True
        if self._state is ConnectionState.REFUSED:
            self._write_refusal(keep_alive=False)
        self._go(Event.STOP)
        if idle:  # it has nothing to read but TLS's goodbye, and may not read that
            self._deadline_s = self._loop.time() + self._host.settings.goodbye_s

    def abort(self) -> None:
        """End now."""
        self._transport.abort()

    def give_way(self, problem: NotaryError) -> bool:
        """End for a client that has fewer connections. Returns False for a proven client, or if a call is being decided.

        A long poll is answered first, as when its time has passed.
        """
        left = None if self._current is None else self._current.left
        if self.parties or self._state >= ConnectionState.CLOSING or (self._state is ConnectionState.DECIDING and left is None):
            return False
        if self._writer.held:
            self.abort()
        elif left is not None:
            self._last = True
            left()
        elif self._state is ConnectionState.IDLE:
            self._go(Event.LATE)
        else:
            self._break(problem)
        return True

    def go_on(self) -> None:
        """Take up what was kept, now or when it is its turn."""
        if self._working or self._in_line or self._state >= ConnectionState.CLOSING or self._is_held():
            return
        has_nothing = not (self._unread or self._behind)  # then the socket is read again, which is no work
        if has_nothing or self._lines.may_go(self._client, begun=self._state is ConnectionState.BODY):
            self.read()
        else:
            self._read_later()

    def read(self, unread_s: float = 0.0) -> None:
        """Take up what was kept, as far as it goes in a slice of time. It waited for `unread_s`, which costs it no deadline."""
        self._in_line = False
        self._unread_s += unread_s
        self._deadline_s += unread_s
        self._take_up()
        if unread_s:  # one that waits again and again is never seen outside the line by the server
            self.check(self._loop.time())

    def _take_up(self) -> None:
        if self._working or self._state >= ConnectionState.CLOSING or self._is_held():
            return
        self._working = True
        while self._behind and self._state <= ConnectionState.HEAD and not self._is_held():
            call = self._behind.popleft()
            self._start(call)
            for piece in call.pieces:
                self.piece(call, piece)
            call.pieces.clear()
            if call.whole:
                self.ended(call)
            if self._lines.slice_is_over():
                break
        self._working = False
        if self._state is ConnectionState.DECIDING or self._is_held():
            return
        if self._behind:
            self._read_later()
            return
        unread, self._unread = self._unread, b""
        if unread:
            self._feed(unread)
        elif self._parser.in_head and self._state is ConnectionState.IDLE:
            self._go(Event.BYTES)
        if self._in_line or self._unread or self._state >= ConnectionState.CLOSING:
            return
        if self._eof and self._state <= ConnectionState.HEAD:
            self._go(Event.EOF)
        elif self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()

    def _read_later(self) -> None:
        if not self._in_line:
            self._in_line = True
            self._lines.wait(self._client, self.read, size=len(self._unread), begun=self._state is ConnectionState.BODY)

    def _is_held(self) -> bool:
        return self._state is ConnectionState.DECIDING or self._writer.held or self._turn_bytes > TURN_BYTES_MAX or self._host.paused

    def _next_turn(self) -> None:
        self._turn_bytes = 0
        self.go_on()

    # ---- the machine ----

    def _go(self, event: Event) -> None:
        """The one place where the state changes."""
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
                self._end(before)

    def _end(self, before: ConnectionState) -> None:
        """No call is read any more."""
        call, self._current = self._current, None
        self._behind.clear()
        self._unread = b""
        if call is not None and before in (ConnectionState.BODY, ConnectionState.DECIDING):
            call.gone = True
            if before is ConnectionState.BODY and call.reader is not None:
                call.reader.left()
            if call.left is not None:
                call.left()
        self._transport.close()

    def _start(self, call: Head) -> None:
        self._current = call
        call.unread_s, self._unread_s = self._unread_s, 0.0
        if not call.keep_alive:
            self._last = True
        self._go(Event.CALL)
        self._guarded(self._take, call)
        if self._state is ConnectionState.BODY and call.expects and not call.whole and not call.pieces:
            self._writer.go_ahead()

    def respond(self, call: Call, answer: Answer, after_body: bool) -> None:
        """The application answers the current call; nothing for one whose client has left."""
        current = self._current
        if call is not current or current is None or self._state not in (ConnectionState.BODY, ConnectionState.DECIDING):
            return
        if after_body and self._state is ConnectionState.BODY and not current.expects:
            self._refusal = answer
            self._go(Event.REFUSE)
            return
        last = self._last or (((self._eof and not self._working) or self._host.ends) and not self._behind and not self._unread)
        if self.parties:
            self._lines.remember(self.network)
        size = self._writer.answer(answer, keep_alive=not last, without_body=call.method == "HEAD")
        if self._working:  # others may come in the same turn
            if not self._turn_bytes:
                self._loop.call_soon(self._next_turn)
            self._turn_bytes += size
        self._last = last
        self._go(Event.ANSWER)
        if self._behind or self._unread or self._reading_paused or self._parser.in_head or self._eof:
            self.go_on()

    def _late(self) -> None:
        state = self._state
        if state is ConnectionState.HEAD:
            self._writer.answer(
                problem_of(Malformed(f"the head of the request was not complete after {self._host.settings.head_s:g} s")), keep_alive=False
            )
        elif state is ConnectionState.REFUSED:
            self._write_refusal(keep_alive=False)
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
        """End the connection with this problem, unless an answer to an earlier call is still to be sent."""
        state, behind = self._state, self._behind
        is_first = not behind or (len(behind) == 1 and not behind[0].whole)  # the slice of time may have ended within the broken call
        if state is ConnectionState.REFUSED:
            self._write_refusal(keep_alive=False)
        elif state <= ConnectionState.BODY and is_first:
            self._writer.answer(problem_of(problem), keep_alive=False)
        self._go(Event.BREAK)

    def _guarded(self, do: Callable[..., None], *arguments: Any) -> None:
        """A bug of the application costs one call, not the server."""
        try:
            do(*arguments)
        except Exception:
            logger.exception("a call could not be answered")
            if self._state in (ConnectionState.BODY, ConnectionState.DECIDING):
                self._writer.answer((500, TEXT, b"Internal Server Error\n"), keep_alive=False)
                self._last = True
                self._go(Event.BREAK if self._state is ConnectionState.BODY else Event.ANSWER)

    # ---- the parser's ----

    def called(self, call: Head) -> None:
        """A head is complete: hand the call to the application, if it is its turn."""
        if self._state <= ConnectionState.HEAD and not self._behind and not self._is_held() and not self._lines.slice_is_over():
            self._start(call)
        elif self._state < ConnectionState.CLOSING:
            self._behind.append(call)

    def piece(self, call: Head, data: bytes) -> None:
        """A piece of a body."""
        if call is not self._current:
            call.pieces.append(data)
        elif self._state is ConnectionState.BODY and call.reader is not None:
            self._guarded(call.reader.piece, data)

    def ended(self, call: Head) -> None:
        """A body is complete."""
        if call is not self._current:
            call.whole = True
            return
        if self._state is ConnectionState.BODY:
            self._go(Event.END)
            if call.reader is not None:
                self._guarded(call.reader.whole)
            return
        if self._state is ConnectionState.REFUSED:
            self._write_refusal(keep_alive=not self._last)
        if self._state is not ConnectionState.CLOSING:
            self._go(Event.END)

    def certificate(self) -> bytes | None:
        """Returns the client certificate in DER. A handshake with a certificate that is not accepted fails, so this one was accepted."""
        tls = self._transport.get_extra_info("ssl_object")
        shown: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
        return shown

    # ---- bytes ----

    def _keep(self, data: bytes) -> None:
        self._unread = data
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _feed(self, data: bytes) -> None:
        """Give the parser what has come, as long as calls are taken."""
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
                if self._behind or self._is_held() or (at and self._lines.slice_is_over()):
                    self._keep(data[at:])
                    return
                size = max(SLICE_BYTES, min(self._parser.body_left, BODY_BYTES_MAX))
                self._parse(memoryview(data)[at : at + size])
                at += size
        finally:
            self._working = False
            if (self._behind or self._unread) and self._state <= ConnectionState.ANSWERED and not self._is_held():
                self._read_later()

    def _parse(self, data: bytes | memoryview) -> None:
        try:
            self._parser.feed(data)
        except Malformed as problem:
            if self._state < ConnectionState.CLOSING:
                self._break(problem)
            return
        if self._parser.in_head and self._state is ConnectionState.IDLE:
            self._go(Event.BYTES)

    def _write_refusal(self, *, keep_alive: bool) -> None:
        assert self._refusal is not None
        refusal, self._refusal = self._refusal, None
        self._writer.answer(refusal, keep_alive=keep_alive)
