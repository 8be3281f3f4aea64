"""The reading side of a connection: httptools parses its bytes into calls.

The bytes of a head are limited, and so are all other bytes outside a body: trailers, chunk extensions, blank lines. A body may have many
small chunks, so a few bytes of each chunk do not count.

Two differences from RFC 9112: trailers are read and dropped, and an offer of another protocol is ignored.
"""

from typing import Final, Protocol
from urllib.parse import unquote

import httptools

from notary.http.call import Answer, Call, Headers, header
from ordering.errors import Malformed

HEAD_BYTES_MAX: Final = 32 << 10
CHUNK_BYTES: Final = 16
"""The bytes of each chunk, besides its data, that do not count: its size and the ends of its lines."""
HEADERS_MAX: Final = 128
"""The maximum number of headers of a call, and of trailers: each costs a call-back in Python, and the shortest has only 4 bytes."""


class Head(Call):
    """A call whose head has been parsed. It stores the part of its body that comes before the application takes the call."""

    __slots__ = ("_receiver", "complete", "expects_continue", "keep_alive", "pieces")

    def __init__(
        self, receiver: "Receiver", method: str, path: str, query: bytes, headers: Headers, *, is_1_1: bool, keep_alive: bool
    ) -> None:
        """`path` is the path as it was sent, with its percent-encoding. `is_1_1`: the client speaks HTTP/1.1."""
        super().__init__(method, unquote(path) if "%" in path else path, query, headers, receiver.respond)
        self.raw_path = path
        self._receiver = receiver
        self.network, self.parties = receiver.network, receiver.parties
        self.keep_alive = keep_alive
        self.expects_continue = is_1_1 and (header(headers, b"expect") or b"").lower() == b"100-continue"
        self.pieces: list[bytes] = []
        self.complete = False

    def certificate(self) -> bytes | None:
        """Returns the certificate of its connection."""
        return self._receiver.certificate()


class Receiver(Protocol):
    """Gets the calls in their order, while `Parser.feed` runs."""

    @property
    def network(self) -> str:
        """The address of the client (`Call.network`)."""
        ...

    @property
    def parties(self) -> set[bytes]:
        """The parties of submissions that were admitted on the connection (`Call.parties`)."""
        ...

    def called(self, call: Head) -> None:
        """A head is complete."""
        ...

    def piece(self, call: Head, data: bytes) -> None:
        """A piece of that call's body has come."""
        ...

    def ended(self, call: Head) -> None:
        """The body of that call is complete. Without a body, this follows `called` directly."""
        ...

    def respond(self, call: Call, answer: Answer, after_body: bool) -> None:
        """The application answers a call (`Call.respond`)."""
        ...

    def certificate(self) -> bytes | None:
        """Returns the client certificate of the connection in DER; None for none."""
        ...


class Parser:
    """Parses the bytes of one connection. httptools calls its `on_` methods."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._parser = httptools.HttpRequestParser(self)
        self.in_head = False
        """True while the latest bytes are a part of a head."""
        self.body_left = 0
        """The missing bytes of a body whose head declares its length. No call can begin in them."""
        self._url = b""
        self._headers: Headers = []
        self._arriving: Head | None = None
        """The call whose body is being parsed."""
        self._offered = False
        """True while the head offers another protocol."""
        self._no_body_bytes = 0
        """The bytes outside of bodies since the last end of a head or a call."""
        self._fed_no_body_bytes = 0
        """The part of them that the present `feed` adds."""
        self._advanced = False
        """True if a head or a call ended in the present `feed`."""
        self._trailers = 0
        self._problem: Malformed | None = None
        """The error of an `on_` method."""

    def feed(self, data: bytes | memoryview) -> None:
        """Parse `data`. Raises `Malformed`, after which nothing may be fed.

        Java's client offers HTTP/2 with the first call of each connection. HTTP allows a server to ignore the offer. But httptools takes
        all bytes behind such a head, even the body, for the other protocol. So a new parser gets the head again, without the offer.
        """
        self._advanced, self._fed_no_body_bytes = False, len(data)
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
            # Not the error's context: that may be an error of another call, if this runs while that error is answered.
            raise self._problem or Malformed("this is not a request of HTTP/1.1") from None
        if self._advanced:
            self._no_body_bytes = 0
            return
        self._no_body_bytes = max(0, self._no_body_bytes + self._fed_no_body_bytes)  # short heads of chunks give no credit for later bytes
        if self._no_body_bytes > HEAD_BYTES_MAX:
            raise _head_too_large()

    def close(self) -> None:
        """Release the receiver, and httptools' parser, which has this object. Nothing may be fed after that."""
        self._arriving = None
        del self._receiver, self._parser

    # ---- called by httptools ----

    def on_message_begin(self) -> None:
        """A head begins, perhaps in the bytes that ended the previous call."""
        self._url, self._headers, self.in_head, self._trailers = b"", [], True, 0

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target has come."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has come. A trailer, behind a body, is dropped."""
        if self.in_head:
            # httptools removes white space only before the value (RFC 9110, 5.5).
            self._headers.append((name.lower(), value.rstrip(b" \t")))
        else:
            self._trailers += 1
        if len(self._headers) > HEADERS_MAX or self._trailers > HEADERS_MAX:
            self._problem = Malformed(f"the request has more than {HEADERS_MAX} headers")
            raise self._problem

    def on_headers_complete(self) -> None:
        """The head is complete: pass the call to the receiver."""
        try:
            self._take_head()
        except Malformed as problem:
            self._problem = problem
            raise

    def _take_head(self) -> None:
        parser = self._parser
        if self._no_body_bytes and len(self._url) + sum([len(name) + len(value) + 4 for name, value in self._headers]) > HEAD_BYTES_MAX:
            raise _head_too_large()
        if parser.should_upgrade():
            if parser.get_method() == b"CONNECT":
                raise Malformed("CONNECT is not supported: this is not a proxy")
            self._offered = True
            return
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):  # httptools also takes 0.9 and 2.0
            raise Malformed(f"HTTP/{version} is not supported: send HTTP/1.1")
        path, query = _split(self._url)
        method = parser.get_method().decode()
        is_1_1 = version == "1.1"
        hosts = [name for name, _ in self._headers].count(b"host")
        if hosts > 1 or (is_1_1 and not hosts):  # a proxy in front may take the other one (RFC 9112, 3.2)
            raise Malformed(f"the request has {hosts or 'no'} Host header{'s' if hosts else ''}")
        keep_alive = parser.should_keep_alive() and is_1_1
        call = self._arriving = Head(self._receiver, method, path, query, self._headers, is_1_1=is_1_1, keep_alive=keep_alive)
        self.in_head, self._advanced = False, True
        self.body_left = int(header(self._headers, b"content-length") or 0)  # httptools has checked that it is a number
        self._receiver.called(call)

    def on_chunk_header(self) -> None:
        """The first line of a chunk has come."""
        self._fed_no_body_bytes -= CHUNK_BYTES

    def on_body(self, data: bytes) -> None:
        """A piece of a body has come."""
        self._fed_no_body_bytes -= len(data)
        self.body_left -= len(data)
        if self._arriving is not None:
            self._receiver.piece(self._arriving, data)

    def on_message_complete(self) -> None:
        """A call is complete: the next bytes belong to another one."""
        if self._offered:
            return
        self._advanced = True
        call, self._arriving = self._arriving, None
        if call is not None:
            self._receiver.ended(call)


def _head_too_large() -> Malformed:
    return Malformed(f"the head of the request has more than {HEAD_BYTES_MAX} bytes")


def _split(url: bytes) -> tuple[str, bytes]:
    """Returns path and query of a request's target as they were sent, with their percent-encoding."""
    if url[:1] == b"/" and b"#" not in url:
        raw, _, query = url.partition(b"?")
    else:
        parsed = httptools.parse_url(url)
        raw, query = parsed.path, parsed.query or b""
        if not raw:
            raise Malformed("the address has no path")
    return raw.decode("ascii"), query
