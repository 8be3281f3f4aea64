"""A connection that can be misused, and a count of its results."""

import asyncio
import functools
import re
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

ADDRESS_MAX: Final = 200
"""Connections that the worker accepts from one address. All kinds together have fewer than it accepts at all: others get some."""
ANSWERS: Final = frozenset((100, 200, 202, 400, 401, 403, 404, 405, 413, 415, 429, 503))
"""The statuses that a worker may answer with to any call; 503 is `overloaded` or `not-ready`."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE).search


class Target(msgspec.Struct, frozen=True):
    """The worker, and the bodies for its hostile clients."""

    url: str
    folder: str
    """The folder of the bodies that `site` has prepared, a file each."""
    bundle: str
    """The path of the entries whose decisions have many conflicts."""
    conflicts: list[str]
    """Transactions with the maximum number of conflicts."""


class Tally(msgspec.Struct):
    """The counted results of one kind."""

    connections: int = 0
    ended: int = 0
    """Connections that the worker ended."""
    refused: int = 0
    """Connections that could not be made."""
    calls: int = 0
    answers: dict[str, int] = {}
    wrong: list[str] = []
    """Answers that no client should get."""

    def answered(self, status: int, head: bytes) -> None:
        """Count an answer."""
        self.answers[str(status)] = self.answers.get(str(status), 0) + 1
        if status not in ANSWERS and len(self.wrong) < 5:
            self.wrong.append(head[:300].decode("latin-1"))


class Ended(Exception):
    """The worker has ended the connection."""


class Wire:
    """One connection."""

    def __init__(self, target: Target, tally: Tally, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.target = target
        self.tally = tally
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send, and wait until the kernel has it. Raises `Ended`."""
        if self._reader.at_eof() or self._writer.is_closing():
            raise Ended
        self._writer.write(data)
        await asyncio.sleep(0)  # `drain` gives others no turn, nor hears of the end, while its buffer is not full
        await self._writer.drain()

    async def call(self, data: bytes) -> bytes:
        """Send a call and return the body of its answer. Raises `Ended`."""
        await self.send(data)
        return await self.answer()

    async def answer(self) -> bytes:
        """Returns the body of the next answer. Raises `Ended`."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            status, length = int(head[9:12]), _LENGTH(head)
            self.tally.answered(status, head)
            return await self._reader.readexactly(int(length[1])) if length else b""
        except asyncio.IncompleteReadError:
            raise Ended from None

    async def until_ended(self) -> None:
        """Read all answers until the worker ends the connection. Raises `Ended`, always."""
        while True:
            await self.answer()

    def read_nothing(self) -> None:
        """Stop reading, for good; the kernel keeps as few answers as it can."""
        plain: socket.socket = self._writer.get_extra_info("socket")
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def half_close(self) -> None:
        """Send no more, on a connection without TLS."""
        if self._writer.can_write_eof():
            self._writer.write_eof()

    def reset(self) -> None:
        """End with a RST. Raises `Ended`."""
        plain: socket.socket | None = self._writer.get_extra_info("socket")
        if plain is None:
            raise Ended
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Run = Callable[[Wire], Awaitable[None]]


class Kind(msgspec.Struct, frozen=True):
    """One kind of hostility: what one connection does, and how many there are at once."""

    name: str
    run: Run
    clients: int
    addresses: int
    """The number of addresses over which the clients are spread."""
    ended: bool
    """True if the worker must end each of its connections."""
    needs: str
    """`tls`; `nobody` for one that is measured alone, as a comparison; else nothing."""
    plain: bool
    """True if it speaks no TLS even to a worker that does."""


KINDS: Final[dict[str, Kind]] = {}


def kind(clients: int, *, addresses: int = 1, ended: bool = False, needs: str = "", plain: bool = False) -> Callable[[Run], Run]:
    """Register a kind under the name of its function."""

    def register(run: Run) -> Run:
        name = run.__name__.replace("_", "-")
        KINDS[name] = Kind(name, run, clients, addresses, ended, needs, plain)
        return run

    return register


@asynccontextmanager
async def connected(target: Target, tally: Tally, source: str, *, plain: bool) -> AsyncIterator[Wire]:
    """Open a connection from that address."""
    address = urlsplit(target.url)
    trust = ssl.create_default_context() if address.scheme == "https" and not plain else None
    reader, writer = await asyncio.open_connection(address.hostname, address.port, local_addr=(source, 0), ssl=trust, limit=1 << 22)
    tally.connections += 1
    try:
        yield Wire(target, tally, reader, writer)
    finally:
        writer.transport.abort()


@functools.cache
def body_of(file: Path) -> bytes:
    """Returns a prepared body."""
    return file.read_bytes()


def total(tallies: list[Tally]) -> Tally:
    """Returns the sum of all."""
    answers: Counter[str] = Counter()
    for tally in tallies:
        answers.update(tally.answers)
    fields = {name: sum([getattr(tally, name) for tally in tallies]) for name in ("connections", "ended", "refused", "calls")}
    return Tally(**fields, answers=dict(answers), wrong=[wrong for tally in tallies for wrong in tally.wrong])
