"""How connections are taken in."""

import asyncio
import logging
import os
import resource
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from notary.http import App, Server, bind

CROWD = 100
TURNS = 8
"""Of the loop: far fewer than one for each connection."""


@asynccontextmanager
async def waiting_crowd() -> AsyncIterator[Server]:
    """A server before which a crowd waits: all of them are connected, as the kernel sees it, and none was taken in."""
    server = Server(App(), bind("127.0.0.1", 0))
    await server.start()
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    crowd = [socket.create_connection((host, int(port))) for _ in range(CROWD)]
    try:
        yield server
    finally:
        for one in crowd:
            one.close()
        await server.stop(1)


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """No file and no socket more can be opened: the lowest number that is free is too high."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _taken_in(server: Server) -> int:
    return len(server.connections)


async def test_a_crowd_is_taken_in_together() -> None:
    """Who comes at once does not wait for a turn of the loop each: under load turns are long, and a probe stands in the same line."""
    async with waiting_crowd() as server:
        assert _taken_in(server) == 0
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert _taken_in(server) == CROWD


async def test_without_descriptors_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    """When no connection can be taken the log says so, without end nor haste, and later they are."""
    with caplog.at_level(logging.ERROR, "notary.http"):
        async with waiting_crowd() as server:
            with no_descriptors_left():
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            assert _taken_in(server) < CROWD
            assert [record.getMessage() for record in caplog.records] == ["no connection can be taken: [Errno 24] Too many open files"]
            while _taken_in(server) < CROWD:  # noqa: ASYNC110 - asked from outside
                await asyncio.sleep(0.01)


def test_a_port_that_is_about_to_be_free_is_waited_for() -> None:
    """A worker that is killed and started again at once finds its port taken by intake processes that are about to end."""
    holder = bind("127.0.0.1", 0)
    port = holder.getsockname()[1]
    letting_go = threading.Timer(0.1, holder.close)
    letting_go.start()
    with bind("127.0.0.1", port) as listening:
        assert listening.getsockname()[1] == port
    letting_go.join()
