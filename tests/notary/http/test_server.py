"""The server accepts connections in bursts, without free descriptors, and on a port that is still held."""

import asyncio
import logging
import os
import resource
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from notary.client import tls_context
from notary.config import TlsFiles
from notary.http import App, Server, bind
from notary.tls import Certificates
from tests.notary.certificates import Authority

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


@pytest.mark.parametrize("greeted", [False, True])
async def test_a_connection_that_is_being_made_when_the_server_stops_is_answered(tmp_path: Path, *, greeted: bool) -> None:
    """A server that stops accepts the connections in its backlog, finishes TLS handshakes, and answers a call on each of them."""
    authority = Authority()
    pair = authority.server()
    pair.put(tmp_path, "server")
    context = tls_context(authority.put(tmp_path / "ca.pem"))
    files = TlsFiles(str(tmp_path / "server.pem"), str(tmp_path / "server-key.pem"), "", client_cert_required=False)
    server = Server(App(), bind("127.0.0.1", 0), certificates=Certificates(files))
    await server.start()
    loop, port = asyncio.get_running_loop(), int(server.url.rpartition(":")[2])
    client = socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    if greeted:
        while server._acceptor is not None and not server._acceptor.connecting:  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0)
    stopping = asyncio.create_task(server.stop(30))
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    reader = asyncio.StreamReader()
    transport, _ = await loop.create_connection(
        lambda: asyncio.StreamReaderProtocol(reader), sock=client, ssl=context, server_hostname="localhost"
    )
    transport.write(b"GET /livez HTTP/1.1\r\nHost: notary\r\n\r\n")
    answer = await reader.read()
    transport.close()
    await stopping
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer
