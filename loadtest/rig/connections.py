"""A minimal HTTP client: one connection, one call at a time, and only the HTTP that this service uses: a head with Content-Length, a body.

CPU time of the load is not available to the worker on the same machine.
"""

import asyncio
import re
import ssl
from collections.abc import Callable
from typing import Protocol, cast
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE).search
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *(\d+)", re.IGNORECASE).search

REFUSED = (503, 429)
"""Status codes of rejections: nothing was admitted, and Retry-After gives the time to retry."""


class Caller(Protocol):
    """The owner of a connection, which gets its answers."""

    def answered(self, connection: "ClientConnection", answer: bytes) -> None:
        """Handle a complete answer, head and body. The connection is free again."""
        ...

    def lost(self, connection: "ClientConnection", why: str) -> None:
        """Handle the end of the connection; `why` is empty unless a call was unanswered."""
        ...


class ClientConnection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._buffer = b""
        self._length = -1
        self._transport: asyncio.Transport
        self.waiting = False
        """True while a call has no answer yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for `call`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has the same interface

    def call(self, data: bytes) -> None:
        """Send a complete call."""
        self.waiting = True
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Collect one complete answer and pass it to the caller."""
        buffer = self._buffer + data if self._buffer else data
        if self._length < 0:
            head_end = buffer.find(b"\r\n\r\n")
            found = _LENGTH(buffer, 0, head_end) if head_end >= 0 else None
            if found is None:
                self._buffer = buffer
                return
            self._length = head_end + 4 + int(found[1])
        if len(buffer) < self._length:
            self._buffer = buffer
            return
        self._buffer, self._length, self.waiting = b"", -1, False
        self._caller.answered(self, buffer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection to the caller."""
        why = f"connection lost with a submission unanswered: {exc or 'closed by the service'}" if self.waiting else ""
        self.waiting = False
        self._caller.lost(self, why)


async def connect(url: str, make: Callable[[], ClientConnection]) -> ClientConnection:
    """Returns a connection to the service at that URL; for https, OpenSSL's own settings (SSL_CERT_FILE) define the trusted authorities."""
    address = urlsplit(url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    trust = ssl.create_default_context() if address.scheme == "https" else None
    _, connection = await asyncio.get_running_loop().create_connection(make, host, port, ssl=trust)
    return connection


def head_of(url: str, *, receipts: bool = True) -> bytes:
    """Returns the head of a submission's call, with `%d` in place of its length."""
    query = "" if receipts else "?receipts=false"
    host = urlsplit(url).netloc
    return f"POST /v1/submissions{query} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n".encode()


def body_of(answer: bytes) -> bytes:
    """Returns the body of an answer."""
    return answer[answer.index(b"\r\n\r\n") + 4 :]


def status_of(answer: bytes) -> int:
    """Returns the status of an answer."""
    return int(answer[9:12])


def retry_after_s(answer: bytes) -> int | None:
    """Returns the seconds in Retry-After, None if there is none."""
    found = _RETRY_AFTER(answer, 0, answer.find(b"\r\n\r\n"))
    return None if found is None else int(found[1])
