"""Reading a request's body, within size; within which time, its caller says."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

from notary.http.problems import TooLarge, UnsupportedMediaType
from ordering.errors import NotaryError
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


async def read_body(headers: Headers, receive: Receive, bytes_max: int) -> bytes:
    """The whole body. Raises `TooLarge`, or `Disconnected`."""
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
        chunks.append(message["body"])
        size += len(message["body"])
        more = message["more_body"]
        if size > bytes_max:
            raise TooLarge(f"the body has more than {bytes_max} bytes, which is the most that is taken: send fewer requests at a time")
    return b"".join(chunks) if len(chunks) > 1 else chunks[0]
