"""The server accepts connections in bursts, without free descriptors, and on a port that is still held."""

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
"""Turns of the event loop: far fewer than one for each connection."""


@asynccontextmanager
async def waiting_crowd() -> AsyncIterator[Server]:
    """Yields a server with a burst of connections in its backlog: the kernel has connected them, and none is accepted yet."""
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
    """No further file or socket can be opened: the limit of descriptors is below the lowest free number."""
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
    """A burst of connections is accepted together, not one a turn of the loop: under load turns are long, and probes wait too."""
    async with waiting_crowd() as server:
        assert _taken_in(server) == 0
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert _taken_in(server) == CROWD


async def test_without_descriptors_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    """Without free descriptors the server logs the error once, not at every turn of the loop, and accepts the connections later."""
    with caplog.at_level(logging.ERROR, "notary.http"):
        async with waiting_crowd() as server:
            with no_descriptors_left():
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            assert _taken_in(server) < CROWD
            assert [record.getMessage() for record in caplog.records] == ["no connection can be taken: [Errno 24] Too many open files"]
            while _taken_in(server) < CROWD:  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0.01)


def test_a_port_that_is_about_to_be_free_is_waited_for() -> None:
    """A killed worker that starts again at once waits for its port, which acceptor processes still hold until they end."""
    holder = bind("127.0.0.1", 0)
    port = holder.getsockname()[1]
    letting_go = threading.Timer(0.1, holder.close)
    letting_go.start()
    with bind("127.0.0.1", port) as listening:
        assert listening.getsockname()[1] == port
    letting_go.join()
