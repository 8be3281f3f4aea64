"""The writing side of a connection: encodes answers, and notices a client that does not read them."""

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from math import inf
from time import time
from typing import Final

from notary.http.call import Answer

READ_BYTES_MIN: Final = 64 << 10
"""The least number of bytes of its answers that a slow client must read within the deadline."""

PIECE_BYTES: Final = 64 << 10
"""The transport gets this many bytes at a time, until it has enough. Only then does it count them: with TLS it passes on all that it has,
and does not see how much of that waits below."""


class ResponseWriter:
    """Writes to one transport.

    The connection reports a client that reads too slowly with `wait_for_client`, and its recovery with `client_has_read`.
    """

    __slots__ = ("_kept", "_transport", "_unread_bytes", "_when_passed_on", "deadline_s", "has_last_answer", "waits_for_client")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._kept: deque[bytes] = deque()  # what the transport does not have yet
        self._when_passed_on: Callable[[], None] | None = None
        self._unread_bytes = 0  # at `wait_for_client`, and of answers since then
        self.has_last_answer = False
        """True once the last answer of the connection was written."""
        self.waits_for_client = False
        """True while the client has too many unread bytes of answers: none of its further calls is started."""
        self.deadline_s = inf
        """The deadline for the client to read, while `waits_for_client`; seconds of the loop's clock."""

    def answer(self, answer: Answer, *, keep_alive: bool, without_body: bool = False) -> int:
        """Writes an answer, without its body for a HEAD. Returns the number of bytes."""
        data = encoded(answer, keep_alive=keep_alive, without_body=without_body)
        self.has_last_answer = not keep_alive
        self._unread_bytes += len(data)
        # Pieces of their own, not views: each is freed once the transport has it.
        self._kept.extend([data] if len(data) <= PIECE_BYTES else [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)])
        self.pass_on()
        return len(data)

    def when_passed_on(self, do: Callable[[], None]) -> None:
        """Call `do` when the transport has all answers, and its client does not read too slowly."""
        self._when_passed_on = do
        self.pass_on()

    def pass_on(self, *, at_once: bool = False) -> None:
        """Give the transport what it does not have yet, until it has enough; with `at_once` all of it."""
        while self._kept and (at_once or not self.waits_for_client):
            self._transport.write(self._kept.popleft())
        if self._when_passed_on is not None and (at_once or not self.waits_for_client):
            do, self._when_passed_on = self._when_passed_on, None
            do()

    def drop(self) -> None:
        """The transport is closed: free what it does not have."""
        self._kept.clear()
        self._when_passed_on = None

    @property
    def unread_bytes(self) -> int:
        """The bytes of answers that its client does not read."""
        return sum(map(len, self._kept)) + self._transport.get_write_buffer_size()

    def send_continue(self) -> None:
        """Ask the client for the body that it has announced (100 Continue)."""
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def wait_for_client(self, deadline_s: float) -> None:
        """The client reads too slowly: it must have read enough at `deadline_s`."""
        self.waits_for_client, self._unread_bytes, self.deadline_s = True, self.unread_bytes, deadline_s

    def client_has_read(self) -> None:
        """The client has read its answers."""
        self.waits_for_client = False
        self.pass_on()

    def has_progress(self) -> bool:
        """Returns True if the client has read `READ_BYTES_MIN` since `wait_for_client`, which earns it another deadline."""
        return self.unread_bytes <= self._unread_bytes - READ_BYTES_MIN


def encoded(answer: Answer, *, keep_alive: bool, without_body: bool = False) -> bytes:
    """Returns the bytes of an answer, without its body for a HEAD."""
    status, headers, body = answer
    lines = [_status_line(status), *[b"%s: %s\r\n" % header for header in headers], _date_line()]
    lines.append(
        b"content-length: %d\r\n\r\n" % len(body) if keep_alive else b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    )
    if not without_body:
        lines.append(body)
    return b"".join(lines)


@functools.cache
def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())


class _Date:
    second = -1
    line = b""


def _date_line() -> bytes:
    second = int(time())
    if second != _Date.second:
        _Date.second, _Date.line = second, b"date: %s\r\n" % formatdate(second, usegmt=True).encode()
    return _Date.line
