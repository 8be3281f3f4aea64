"""Connections are accepted in bursts, made address by address, without free descriptors, and on a port that is still held."""

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from notary.duty_cycle import DutyCycle
from notary.http import lanes, listener
from notary.http.app import App
from notary.http.listener import bind
from notary.http.server import Server
from notary.http.settings import HttpSettings
from tests.clients.load import until
from tests.notary.http.test_connection import Scripted, address_of, connected, served, turns
from tests.notary.http.test_server import received, secured
from tests.notary.test_gate import Clock
from tests.open_files import lowest_free, open_files_max

BURST = 100
TURNS = 8
"""Turns of the event loop: far fewer than one for each connection."""


@asynccontextmanager
async def waiting_burst() -> AsyncIterator[Server]:
    """Yields a server with a burst of connections in its backlog: the kernel has connected them, and none is accepted yet."""
    async with served(App()) as server:
        burst = [socket.create_connection(address_of(server)) for _ in range(BURST)]
        try:
            yield server
        finally:
            for one in burst:
                one.close()


async def test_a_burst_is_accepted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many connections as a turn of the loop has time for are made in it, not one: under load turns are long, and probes wait too."""
    monkeypatch.setattr(lanes, "UNAUTHENTICATED_TURN_S", 1.0)
    monkeypatch.setattr(listener, "ACCEPT_TURN_S", 1.0)
    async with waiting_burst() as server:
        assert not server.connections
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert len(server.connections) == BURST


async def test_connections_are_accepted_in_active_slices() -> None:
    """During a pause the backlog waits. Other work that fills each active slice does not keep it waiting."""
    pausing = True
    duty = DutyCycle(lambda: 0.0 if pausing else time.perf_counter(), lambda: True)
    server = Server(App(), bind("127.0.0.1", 0), duty=duty)
    duty._pause_until_s = 1e-9
    await server.start()

    def work() -> None:
        time.sleep(0.003)
        duty.call(work)

    with socket.create_connection(address_of(server)):
        await asyncio.sleep(0.05)
        assert not server.connections
        pausing = False
        duty.call(work)
        async with asyncio.timeout(5):
            await until(lambda: bool(server.connections), 0.001)
    await server.stop(1)


async def test_without_descriptors_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    """Without free descriptors the server logs the error once, not at every turn of the loop, and accepts the connections later."""
    with caplog.at_level(logging.WARNING, "notary.http"):
        async with waiting_burst() as server:
            with open_files_max(lowest_free()):
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            assert len(server.connections) < BURST
            assert [record.getMessage() for record in caplog.records] == ["connections cannot be accepted: [Errno 24] Too many open files"]
            await until(lambda: len(server.connections) == BURST)


@pytest.mark.usefixtures("no_time")
async def test_connections_are_made_address_by_address() -> None:
    """A connection from another address does not wait until a burst of one address has been made."""
    async with waiting_burst() as busy:
        with await connected(busy, "127.0.0.2"):
            await until(lambda: "127.0.0.2" in [each.network for each in busy.connections], 0)
            assert len(busy.connections) < TURNS
            await until(lambda: len(busy.connections) > BURST, 0)


async def test_handshakes_count_in_the_slice_that_begins_them(tmp_path: Path) -> None:
    """They take their time in later turns. Else a client without a key could take more than its part of the time with them."""
    server, context = await secured(tmp_path)
    clock = Clock()
    assert server._listener is not None
    server._listener.duty = server.lanes._duty = DutyCycle(clock, lambda: True)
    address = address_of(server)
    first = await asyncio.to_thread(lambda: context.wrap_socket(socket.create_connection(address), server_hostname="localhost"))
    with first, socket.create_connection(address):
        await turns()
        assert server.places.taken == 1
        clock.now_s += 2.01 * listener.HANDSHAKE_S
        async with asyncio.timeout(30):
            while server.places.taken < 2:  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0.001)
    await server.stop(1)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_connection_that_loses_its_place_while_it_is_made_is_forgotten(run: Callable[[Coroutine[None, None, None]], None]) -> None:
    """uvloop makes it even if its task is cancelled. It must not stay, be counted twice, or stop the check of the deadlines."""

    async def lose_place() -> None:
        async with served(Scripted(), settings=HttpSettings(connections_max=3, head_ms_max=300)) as server:
            clients = [await connected(server, "127.0.0.2") for _ in range(2)]
            await turns()
            assert server._listener is not None
            clients.append(await connected(server, "127.0.0.2"))
            await until(lambda: any(accepted._connection is not None for accepted in server._listener._accepted), 0)  # type: ignore[union-attr]
            assert server.places._make_place(0)
            await turns()
            assert server.places.taken == len(server.connections) + len(server._listener._accepted) == 2
            for client in clients:
                client.close()
            while server.connections:
                await turns(1)
            assert server.places.taken == 0
            assert not server.places._addresses
            with await connected(server) as slow:
                await asyncio.get_running_loop().sock_sendall(slow, b"GET /now HTT")
                assert b" 400 " in await received(slow)

    run(lose_place())


def test_a_handshake_that_ends_just_after_its_place_was_given_makes_no_connection(tmp_path: Path) -> None:
    """The client's last bytes of the handshake are in the kernel already."""

    async def hello(context: ssl.SSLContext, server: Server) -> tuple[socket.socket, bytes]:
        """Returns a client, and the bytes that end its handshake."""
        loop, client = asyncio.get_running_loop(), await connected(server, "127.0.0.2")
        incoming, made = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, made, server_hostname="localhost")
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                if made.pending:
                    await loop.sock_sendall(client, made.read())
                incoming.write(await received(client))
            else:
                return client, made.read()

    async def lose_place() -> None:
        server, context = await secured(tmp_path, HttpSettings(connections_max=3))
        first, end = await hello(context, server)
        second, _ = await hello(context, server)
        with first, second:
            assert server.places.taken == 2
            first.send(end)
            assert server.places._make_place(0)
            await turns()
            assert server.places.taken == 1
            assert not server.connections
        while server.places.taken:
            await turns(1)
        await server.stop(0.1)
        assert not server.places._addresses

    uvloop.run(lose_place())


def test_a_port_that_is_about_to_be_free_is_waited_for() -> None:
    """A killed worker that starts again at once waits for its port, which acceptor processes still hold until they end."""
    holder = bind("127.0.0.1", 0)
    port = holder.getsockname()[1]
    letting_go = threading.Timer(0.1, holder.close)
    letting_go.start()
    with bind("127.0.0.1", port) as listening:
        assert listening.getsockname()[1] == port
    letting_go.join()
