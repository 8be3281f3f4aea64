"""The writing side of a connection: the bytes of an answer, and how much of its answers a client leaves unread."""

import asyncio
import functools
from email.utils import formatdate
from http import HTTPStatus
from math import inf
from time import time
from typing import Final

from notary.http.call import Answer

READ_BYTES_MIN: Final = 64 << 10
"""A client that does not read all of its answers in time must have read so much of them."""


class Writer:
    """Writes to one transport, which says (by way of the connection) when its client reads too slowly."""

    __slots__ = ("_transport", "_unread_bytes", "held", "until_s")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._unread_bytes = 0
        self.held = False
        """Whether its client leaves so much unread that no call of it is taken."""
        self.until_s = inf
        """The time by which it must have read, while it is held."""

    def answer(self, answer: Answer, *, keep_alive: bool, without_body: bool = False) -> int:
        """Write one, without its body to a HEAD; return its bytes."""
        status, headers, body = answer
        lines = [_status_line(status), *[b"%s: %s\r\n" % header for header in headers], _date_line()]
        lines.append(
            b"content-length: %d\r\n\r\n" % len(body) if keep_alive else b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        )
        if not without_body:
            lines.append(body)
        data = b"".join(lines)
        self._transport.write(data)
        return len(data)

    def go_ahead(self) -> None:
        """Have a client send the body that it has announced."""
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def hold(self, until_s: float) -> None:
        """The client reads too slowly; it has until then."""
        self.held, self._unread_bytes, self.until_s = True, self._transport.get_write_buffer_size(), until_s

    def release(self) -> None:
        """It has read."""
        self.held = False

    def has_read(self) -> bool:
        """Whether it has read enough, since `hold`, to be given that time again."""
        return self._transport.get_write_buffer_size() <= self._unread_bytes - READ_BYTES_MIN


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
