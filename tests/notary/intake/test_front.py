"""The application of an intake process, on a link whose other end is the test."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from notary.admission import Admission
from notary.config import HttpConfig
from notary.http.answers import TEXT
from notary.intake.front import Front
from notary.intake.link import Link
from notary.intake.messages import Down, Gate, Settings, Submitted, Up
from notary.parties import Parties
from tests.notary.intake.test_link import linked
from tests.notary.party import NOTARY, Bank, spend
from tests.notary.process import NotaryDirectory

HEAD = {"method": "POST", "path": "/v1/submissions", "query_string": b"", "headers": [(b"content-type", b"application/json")]}


class Fronted:
    """A front, and the test in the worker's place."""

    def __init__(self, directory: NotaryDirectory, bank: Bank) -> None:
        self._parties = Parties(directory.path / "parties.json")
        self.body = bank.body(*(spend() for _ in range(500)))
        self.read = 0
        self.statuses: list[int] = []
        self.link: Link[Down, Up]
        self.worker: socket.socket
        self._front: Front

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Link it."""
        settings = Settings("w/1", NOTARY, "", HttpConfig(), 10, 64 << 20, "warning", log_json=False)
        async with linked(Down, lambda message: self._front.take(message)) as (self.link, self.worker):
            self._front = Front(settings, Admission(NOTARY, self._parties, 0, asyncio.get_running_loop().time), self.link)
            yield

    async def post(self) -> None:
        """A call, from its head to its answer."""
        await self._front(dict(HEAD), self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        self.read += 1
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def _send(self, message: Any) -> None:
        if "status" in message:
            self.statuses.append(message["status"])


@pytest.fixture
def fronted(own_directory: NotaryDirectory, bank: Bank) -> Fronted:
    """One that knows the bank."""
    return Fronted(own_directory, bank)


async def ended(calls: list[asyncio.Task[None]]) -> None:
    """End calls that nobody answers."""
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_it_reads_no_bodies_while_its_worker_takes_no_calls(fronted: Fronted) -> None:
    """What it may not hand over yet it leaves in the connections."""
    loop = asyncio.get_running_loop()
    async with fronted.running():
        calls = []
        while fronted.link.writable.is_set():
            calls.append(loop.create_task(fronted.post()))
            await asyncio.sleep(0)
        before = fronted.read
        calls.append(loop.create_task(fronted.post()))
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert fronted.read == before
        while fronted.read == before:
            await loop.sock_recv(fronted.worker, 1 << 20)
        await ended(calls)


async def test_a_crowd_does_not_keep_it_from_hearing_its_worker(fronted: Fronted) -> None:
    """Of those who came at once the first are handed over; when the worker has no room for more, the others are not even checked."""
    loop = asyncio.get_running_loop()
    async with fronted.running():
        calls = [loop.create_task(fronted.post()) for _ in range(100)]
        handed = await loop.sock_recv(fronted.worker, 4)
        gate = msgspec.msgpack.encode(Gate((503, TEXT, b"full")))
        await loop.sock_sendall(fronted.worker, len(gate).to_bytes(4, "little") + gate)
        while (submitted := _submitted(handed)) + len(fronted.statuses) < len(calls):
            handed += await loop.sock_recv(fronted.worker, 1 << 20)
        assert set(fronted.statuses) == {503}
        assert submitted > 0
        await ended(calls)


def _submitted(data: bytes) -> int:
    """How many were handed over, of the messages that are whole."""
    count = 0
    while len(data) >= 4 and len(data) >= 4 + (size := int.from_bytes(data[:4], "little")):
        count += isinstance(msgspec.msgpack.decode(data[4 : 4 + size], type=Up), Submitted)
        data = data[4 + size :]
    return count
