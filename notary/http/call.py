"""A call and its answer, as connections, applications and acceptor processes see them."""

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]
Answer: TypeAlias = tuple[int, Headers, bytes]
"""(status, headers without the length, body)."""

JSON: Final[Headers] = [(b"content-type", b"application/json")]
JSON_NOW: Final[Headers] = [*JSON, (b"cache-control", b"no-cache")]
"""For an answer that may change: without this header a cache may keep it for a time of its own choice (RFC 9111, 4.2.2)."""
TEXT: Final[Headers] = [(b"content-type", b"text/plain; charset=utf-8")]
PARTIES_MAX: Final = 64
"""The maximum number of parties remembered for one connection, which may be a proxy's."""


class BodyReader(Protocol):
    """Takes the body of one call. No method is called after `late` or `left`, or after the call is answered."""

    def piece(self, data: bytes) -> None:
        """Some bytes of the body have come."""
        ...

    def complete(self) -> None:
        """The body is complete."""
        ...

    def late(self) -> None:
        """The body was not complete in time: answer the call now."""
        ...

    def left(self) -> None:
        """The client went away before its body was complete: there is nobody to answer."""
        ...


class Call:
    """One call: the fields of its head, and the call-back for its answer."""

    __slots__ = (
        "gone",
        "headers",
        "left",
        "may_read",
        "may_wait",
        "method",
        "network",
        "parties",
        "path",
        "query",
        "raw_path",
        "reader",
        "respond",
        "waited_s",
        "when_gone",
    )

    def __init__(self, method: str, path: str, query: bytes, headers: Headers, respond: "Callable[[Call, Answer, bool], None]") -> None:
        """`respond` gets the call, its answer, and whether the answer may wait until the body has come."""
        self.method = method
        self.path = path
        self.raw_path = path
        """The path as it is in the first line of the call, with its percent-encoding."""
        self.query = query
        self.network = ""
        """The client's address, as far as the client cannot choose it (`notary.http.listener.network_of`)."""
        self.parties: set[bytes] = set()
        """The parties of new submissions that were admitted on its connection, in UTF-8; one set for all calls of the connection."""
        self.waited_s = 0.0
        """The time for which its connection waited to be read, in seconds."""
        self.headers = headers
        """Names in lower case."""
        self.respond = respond
        self.reader: BodyReader | None = None
        """Gets the body. The application sets it if it wants the body."""
        self.may_read = False
        """True if an acceptor process has checked that a party makes this call."""
        self.gone = False
        """True once its client has left: an answer would reach nobody."""
        self.when_gone: Callable[[], None] | None = None
        """Called once the client has left. `left` is also called when the client closes only its half of the connection."""
        self.may_wait = True
        """False if its client had left, or closed its half of the connection, before the application got the call: no long poll begins."""
        self.left: Callable[[], None] | None = None
        """Called when the client leaves, or closes its half of the connection, before the answer."""

    def leave(self) -> None:
        """Its client has left."""
        self.gone = True
        if self.when_gone is not None:
            self.when_gone()

    def add_party(self, party: bytes) -> None:
        """A new submission of this party, in UTF-8, was admitted on its connection, which is the party's from now on.

        A copy of an earlier submission is not enough: anyone who has seen one may send it.
        """
        if len(self.parties) < PARTIES_MAX:
            self.parties.add(party)

    def certificate(self) -> bytes | None:
        """Returns the accepted certificate of the client, in DER; None if it has shown none."""
        return None

    def answer(self, answer: Answer, *, after_body: bool = False) -> None:
        """Answer the call, once. With `after_body` the body is skipped, and the answer leaves once the body has come."""
        self.respond(self, answer, after_body)


class Application(Protocol):
    """Answers calls: at once, or later from any call-back."""

    def take(self, call: Call) -> None:
        """The head of a call has come. Answer it, or set its `reader`, or both later."""
        ...


def header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    """Returns the value of the first header with that lower-case name; None if there is none."""
    for name, value in headers:
        if name == wanted:
            return value
    return None
