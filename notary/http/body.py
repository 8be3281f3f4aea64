"""Reading a request's body, within size, and all bodies together within memory; within which time, the caller says."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from notary.http.answers import Answer
from notary.http.problems import TooLarge, UnsupportedMediaType
from ordering.errors import NotaryError, Overloaded
from ordering.ids import excerpt

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


class Disconnected(NotaryError):
    """The client left before its body was complete: there is nobody to answer."""


def header(headers: Headers, wanted: bytes) -> bytes | None:
    """The first header of that lower-case name."""
    for name, value in headers:
        if name == wanted:
            return value
    return None


def check_json(headers: Headers) -> None:
    """Raise `UnsupportedMediaType` unless the body says that it is JSON in UTF-8."""
    given = header(headers, b"content-type") or b""
    media_type, _, parameters = given.partition(b";")
    charset = parameters.strip().lower().replace(b'"', b"").replace(b" ", b"")
    if media_type.strip().lower() != b"application/json" or charset not in (b"", b"charset=utf-8"):
        raise UnsupportedMediaType(f"expected Content-Type application/json, got {excerpt(given.decode('latin-1'))}")
    if header(headers, b"content-encoding") not in (None, b"identity"):
        raise UnsupportedMediaType("a compressed body is not taken: send it without Content-Encoding")


class Room:
    """The memory that bodies have together, from their first byte until their submission is taken in or refused.

    Bytes count when they have come: what a head promises costs nothing, so nobody can fill the room with promises.
    """

    def __init__(self) -> None:
        self._taken_bytes = 0

    @contextmanager
    def share(self, bytes_max: int, waiting_bytes: Callable[[], int]) -> Iterator[Callable[[int], None]]:
        """What takes room for so many more bytes of one body, or raises `Overloaded`; all of them are given back at the end.

        `waiting_bytes` are the submissions that were taken in: they and all bodies may have `bytes_max`.
        """
        own_bytes = 0

        def take(size: int) -> None:
            nonlocal own_bytes
            others_bytes = self._taken_bytes - own_bytes + waiting_bytes()
            # As in the queue: one that is larger than the whole room is read when nothing else is there.
            if others_bytes and others_bytes + own_bytes + size > bytes_max:
                raise Overloaded(f"{others_bytes} bytes of submissions are here already: send the same again later")
            own_bytes += size
            self._taken_bytes += size

        try:
            yield take
        finally:
            self._taken_bytes -= own_bytes


async def read_body(headers: Headers, receive: Receive, bytes_max: int, take: Callable[[int], None]) -> bytes:
    """The whole body; `take` is told of every piece. Raises `TooLarge`, `Disconnected`, and what `take` does."""
    declared = header(headers, b"content-length")
    if declared is not None and int(declared) > bytes_max:
        raise TooLarge(f"the body has {int(declared)} bytes and at most {bytes_max} are taken: send fewer requests at a time")
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected("the client left before its body was complete")
        take(len(message["body"]))
        chunks.append(message["body"])
        size += len(message["body"])
        more = message["more_body"]
        if size > bytes_max:
            raise TooLarge(f"the body has more than {bytes_max} bytes, which is the most that is taken: send fewer requests at a time")
    return b"".join(chunks) if len(chunks) > 1 else chunks[0]


async def send_answer(send: Send, answer: Answer) -> None:
    """The whole answer, with its length."""
    status, headers, body = answer
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
