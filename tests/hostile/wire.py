"""A connection that can be misused, and what came of it."""

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

READ_BYTES: Final = 1 << 16
ADDRESS_MAX: Final = 200
"""Connections that the worker takes from one address; all kinds together have fewer than it takes at all, or nobody else could come in."""
ANSWERS: Final = frozenset((100, 200, 202, 400, 401, 403, 404, 405, 413, 415, 429, 503))
"""What a worker may answer, whatever comes; 503 is `overloaded` or `not-ready`."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE).search


class Target(msgspec.Struct, frozen=True):
    """The worker, and what its hostile clients have to send."""

    url: str
    folder: str
    """Bodies that `site` has prepared, a file each."""
    bundle: str
    """The path of the entries whose decisions have many conflicts."""
    conflicts: list[str]
    """The transactions with as many conflicts as there may be."""


class Tally(msgspec.Struct):
    """What came of one kind."""

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
        await asyncio.sleep(0)  # `drain` gives others no turn, nor hears of the end, while there is room
        await self._writer.drain()

    async def call(self, data: bytes) -> bytes:
        """Send a call and return the body of its answer. Raises `Ended`."""
        await self.send(data)
        return await self.answer()

    async def answer(self) -> bytes:
        """The body of the next answer. Raises `Ended`."""
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
        """From now on."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def half_close(self) -> None:
        """Send no more; plain connections alone."""
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
    """Over so many the clients are spread."""
    ended: bool
    """Whether the worker has to end each of its connections."""
    needs: str
    """`tls`, or nothing."""
    plain: bool
    """Whether it speaks no TLS, whatever the worker speaks."""


KINDS: Final[dict[str, Kind]] = {}


def kind(clients: int, *, addresses: int = 1, ended: bool = False, needs: str = "", plain: bool = False) -> Callable[[Run], Run]:
    """Register a kind under the name of its function."""

    def register(run: Run) -> Run:
        name = run.__name__.replace("_", "-")  # type: ignore[attr-defined]
        KINDS[name] = Kind(name, run, clients, addresses, ended, needs, plain)
        return run

    return register


@asynccontextmanager
async def connected(target: Target, tally: Tally, source: str, *, plain: bool) -> AsyncIterator[Wire]:
    """A connection from that address."""
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
    """A prepared body."""
    return file.read_bytes()


def total(tallies: list[Tally]) -> Tally:
    """All together."""
    answers: Counter[str] = Counter()
    for tally in tallies:
        answers.update(tally.answers)
    fields = {name: sum([getattr(tally, name) for tally in tallies]) for name in ("connections", "ended", "refused", "calls")}
    return Tally(**fields, answers=dict(answers), wrong=[wrong for tally in tallies for wrong in tally.wrong])
