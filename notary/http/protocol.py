"""One connection: uvicorn's protocol, with limits on a client's patience and on ours.

uvicorn keeps connections, parses with httptools and applies backpressure; it bounds neither the size nor the time of a request's head, nor
the number of connections with an answer of our form. `PatientProtocol` adds these three, and refuses without reading what is refused.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from notary.http.answers import Answer
from notary.http.problems import problem_of
from ordering.errors import Malformed, NotaryError, Overloaded

HEAD_BYTES_MAX = 32 << 10


class PatientProtocol(HttpToolsProtocol):
    """A connection whose heads are bounded in size and time, and that never mixes up whom an answer is for.

    When a connection ends before its time while an earlier request of it is still being decided (a client may send the next request, or
    garbage, behind it), the answer to that one leaves first: an error in its place would say of a submission in the log that it is not.
    """

    connections_max = 2_000
    head_s_max = 10.0

    refusal: Callable[[bytes, bytes], Answer | None] = staticmethod(lambda method, path: None)
    """What a call of that method and path is answered with, without being read; None when it is read."""

    _timer: asyncio.TimerHandle | None = None
    _refused: Answer | None = None
    _head_bytes = 0
    _in_head = True
    _between = False
    _offered = False
    _refusal: NotaryError | None = None
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse one connection too many; give the others a time for their first head."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._end_with(Overloaded(f"{self.connections_max} connections are open already: come again later", 1))
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head, and watch its time from the first byte on."""
        self._between = False
        if self._in_head:
            self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._end_with(self._refusal or Malformed("this is not a request of HTTP/1.1"))
        if self.transport.is_closing():
            self._disarm()
        elif self._between:
            self._disarm()
            if self.cycle is None or self.cycle.response_complete:
                # The rest of a body whose answer has left: the bytes stopped the clock of an idle connection, and no answer will start it.
                self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        elif self._in_head:
            if self._head_bytes > HEAD_BYTES_MAX:
                self._end_with(_head_too_large())
            elif self._timer is None:
                self._arm()

    def on_message_begin(self) -> None:
        """A head begins, perhaps in the bytes that ended the request before it."""
        self._between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is over."""
        self._disarm()
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_BYTES_MAX:
            # It came in one piece, so it is whole before it could be counted. The parser makes a 400 of an exception.
            self._refusal = _head_too_large()
            raise self._refusal
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise Malformed("there is no way through here")
            self._offered = True
            return
        self._in_head = False
        # Not when an answer is still to come or to be read, or when the client waits to be told to go on.
        if (self.cycle is None or self.cycle.response_complete) and not self.flow.write_paused and not self.expect_100_continue:
            self._refused = self.refusal(self.parser.get_method(), self.url.partition(b"?")[0])
            if self._refused is not None:
                self._arm()
                return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass over the body of what is refused."""
        if self._refused is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The next bytes belong to another head."""
        if self._offered:
            return
        if self._refused is not None:
            self._write(self._refused, keep_alive=self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive())
            self._refused = None
        else:
            super().on_message_complete()
        self._disarm()
        self._in_head = self._between = True
        self._head_bytes = 0

    def on_response_complete(self) -> None:
        """After an answer that did not wait for the whole body, let the client send the rest of it, but not for ever."""
        super().on_response_complete()
        if not self._in_head and not self.transport.is_closing() and self.cycle.response_complete:
            self._arm()

    def shutdown(self) -> None:
        """End when what is under way has its answer; what is being refused has it now."""
        if self._refused is not None:
            self._disarm()
            self._write(self._refused, keep_alive=False)
        else:
            super().shutdown()

    def _parse(self, data: bytes) -> None:
        """Feed the parser; where a client offers another protocol, feed it the same head without the offer.

        Java's client offers HTTP/2 with the first call of each connection. The parser takes all that follows for the other protocol, the
        body too; who passes the offer over, as HTTP allows, still has to read it.
        """
        rest = memoryview(data)
        while rest:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
                lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
                lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
                self.parser = httptools.HttpRequestParser(self)
                self._offered = False
                self.parser.feed_data(b"\r\n".join([*lines, b"\r\n"]))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _arm(self) -> None:
        self._timer = self.loop.call_later(self.head_s_max, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._refused is not None:
            self._write(self._refused, keep_alive=False)
        elif self._in_head:
            self._end_with(Malformed(f"the head of the request was not complete after {self.head_s_max:g} s"))
        else:
            self.transport.close()  # its answer has left

    def _end_with(self, problem: NotaryError) -> None:
        """Answer with a problem and close, after the answer to a request that was whole before the trouble came."""
        self._disarm()
        if self._refused is not None:
            self._write(self._refused, keep_alive=False)
            return
        running = self._running
        if running is not None and not running.response_complete and not (running is self.cycle and running.more_body):
            # Those queued behind it were not looked at, so nothing of them is in the log.
            running.keep_alive = False
            return
        if self.cycle is not None and self.cycle.response_complete and not self._in_head:
            self.transport.close()  # the trouble is in the rest of a body whose answer has left
            return
        self._write(problem_of(problem), keep_alive=False)

    def _write(self, answer: Answer, *, keep_alive: bool) -> None:
        status, headers, body = answer
        lines = [STATUS_LINE[status]]
        lines += [name + b": " + value + b"\r\n" for name, value in headers]
        lines += [b"content-length: %d\r\n" % len(body), b"\r\n" if keep_alive else b"connection: close\r\n\r\n", body]
        self.transport.write(b"".join(lines))
        if not keep_alive:
            self.transport.close()


def _head_too_large() -> Malformed:
    return Malformed(f"the head of the request has more than {HEAD_BYTES_MAX} bytes")
