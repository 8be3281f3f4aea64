"""The server accepts connections in bursts, address by address, without free descriptors, and on a port that is still held."""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import uvloop

from notary.client import tls_context
from notary.duty_cycle import DutyCycle
from notary.http import lines
from notary.http import server as server_module
from notary.http.app import App
from notary.http.machine import ConnectionState
from notary.http.server import Server, bind
from notary.http.settings import HttpSettings
from notary.tls import Certificates, TlsFiles
from tests.notary.certificates import Authority
from tests.notary.http.test_connection import GET, LARGE, Scripted, connected, head, served, turns

BURST = 100
TURNS = 8
"""Turns of the event loop: far fewer than one for each connection."""


@asynccontextmanager
async def waiting_burst() -> AsyncIterator[Server]:
    """Yields a server with a burst of connections in its backlog: the kernel has connected them, and none is accepted yet."""
    server = Server(App(), bind("127.0.0.1", 0))
    await server.start()
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    burst = [socket.create_connection((host, int(port))) for _ in range(BURST)]
    try:
        yield server
    finally:
        for one in burst:
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


def _admitted(server: Server) -> int:
    return len(server.connections)


async def test_a_burst_is_accepted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many connections as a turn of the loop has time for are made in it, not one: under load turns are long, and probes wait too."""
    monkeypatch.setattr(lines, "UNAUTHENTICATED_TURN_S", 1.0)
    monkeypatch.setattr(server_module, "ACCEPT_TURN_S", 1.0)
    async with waiting_burst() as server:
        assert _admitted(server) == 0
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert _admitted(server) == BURST


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

    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))):
        await asyncio.sleep(0.05)
        assert _admitted(server) == 0
        pausing = False
        duty.call(work)
        async with asyncio.timeout(5):
            while _admitted(server) < 1:  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0.001)
    await server.stop(1)


async def test_without_descriptors_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    """Without free descriptors the server logs the error once, not at every turn of the loop, and accepts the connections later."""
    with caplog.at_level(logging.WARNING, "notary.http"):
        async with waiting_burst() as server:
            with no_descriptors_left():
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            assert _admitted(server) < BURST
            assert [record.getMessage() for record in caplog.records] == ["connections cannot be accepted: [Errno 24] Too many open files"]
            while _admitted(server) < BURST:  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0.01)


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the loop has time for one thing that a client without an admitted submission asks for, and one call is a slice of it."""
    for name in ("UNAUTHENTICATED_TURN_S", "AUTHENTICATED_TURN_S", "SLICE_S"):
        monkeypatch.setattr(lines, name, 0.0)
    monkeypatch.setattr(server_module, "ACCEPT_TURN_S", 1.0)


@pytest.mark.usefixtures("no_time")
async def test_connections_are_made_address_by_address() -> None:
    """A connection from another address does not wait until a burst of one address has been made."""
    async with waiting_burst() as busy, connected_to(busy, "127.0.0.2"):
        while "127.0.0.2" not in [each.network for each in busy.connections]:  # noqa: ASYNC110 - it counts turns
            await asyncio.sleep(0)
        assert len(busy.connections) < TURNS
        while len(busy.connections) <= BURST:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)


@pytest.mark.usefixtures("no_time")
async def test_pipelined_calls_are_taken_address_by_address() -> None:
    """A call from another address does not wait until hundreds of one connection have been answered; nor does one of another connection."""
    app = Scripted()
    async with served(app) as busy, connected_to(busy, "127.0.0.1") as first, connected_to(busy, "127.0.0.2") as other:
        loop = asyncio.get_running_loop()
        await turns()
        await loop.sock_sendall(first, GET.replace(b"/now", b"/many") * 400)
        await loop.sock_sendall(other, GET)
        answered = 0
        while not app.calls or app.calls[-1].path != "/now":
            for call in app.calls[answered:]:
                call.answer((200, [], b"one"))
            answered = len(app.calls)
            await asyncio.sleep(0)
        assert len(app.calls) < TURNS


@pytest.mark.usefixtures("no_time")
async def test_a_connection_is_read_again_after_calls_that_waited_for_their_turn() -> None:
    """Bytes were kept and reading was paused; when the last of their calls has its answer, later bytes are read."""
    app = Scripted()
    async with served(app) as busy, connected_to(busy, "127.0.0.1") as client:
        loop, answers = asyncio.get_running_loop(), b""
        await turns()
        await loop.sock_sendall(client, GET.replace(b"/now", b"/later") * 200)
        while answers.count(b"200 OK") < 200:
            while app.calls:
                app.calls.pop().answer((200, [], b"later"))
            with contextlib.suppress(BlockingIOError):
                answers += client.recv(1 << 16)
            await asyncio.sleep(0)
        await loop.sock_sendall(client, GET)
        assert b"200 OK" in await asyncio.wait_for(loop.sock_recv(client, 1 << 16), 30)


@pytest.mark.usefixtures("no_time")
async def test_calls_that_wait_for_their_turn_are_answered_after_a_half_close() -> None:
    """Calls that the kernel had when their client closed its half are answered, each in another turn."""
    async with served(Scripted()) as busy, connected_to(busy, "127.0.0.1") as client:
        loop, answers = asyncio.get_running_loop(), b""
        await turns()
        await loop.sock_sendall(client, GET * 200)
        client.shutdown(socket.SHUT_WR)
        while data := await loop.sock_recv(client, 1 << 16):
            answers += data
        assert answers.count(b"200 OK") == 200


async def test_an_address_with_few_connections_takes_the_place_of_one_with_many() -> None:
    """While all connections are in use, the oldest one of the address with the most ends for one of an address with fewer."""
    loop = asyncio.get_running_loop()
    async with served(Scripted(), settings=HttpSettings(connections_max=4)) as full, AsyncExitStack() as stack:
        many = [await stack.enter_async_context(connected_to(full, "127.0.0.1")) for _ in range(4)]
        await turns()
        few = [await stack.enter_async_context(connected_to(full, "127.0.0.2")) for _ in range(3)]
        for client, answer in zip(few, (b"200 OK", b"200 OK", b"503 Service"), strict=True):
            await loop.sock_sendall(client, GET)
            assert answer in await loop.sock_recv(client, 1 << 16)
        for client in many[:2]:
            assert b"most of them from your address" in await loop.sock_recv(client, 1 << 16)
        for client in many[2:]:
            await loop.sock_sendall(client, GET)
            assert b"200 OK" in await loop.sock_recv(client, 1 << 16)


async def test_authenticated_clients_and_calls_that_are_decided_give_no_place() -> None:
    """The connection of an admitted submission stays, and so does one whose call is being decided; an idle one ends without a word."""
    loop, app = asyncio.get_running_loop(), Scripted()
    async with served(app, settings=HttpSettings(connections_max=3)) as full, AsyncExitStack() as stack:
        authenticated, decided, idle = [await stack.enter_async_context(connected_to(full, "127.0.0.1")) for _ in range(3)]
        for client, call in ((authenticated, head("/now") + b"0\r\n\r\n"), (decided, head("/read") + b"0\r\n\r\n"), (idle, GET)):
            await loop.sock_sendall(client, call)
            await turns()
            if client is not decided:
                assert b"200 OK" in await loop.sock_recv(client, 1 << 16)
        app.calls[0].parties.add(b"O=Proven")
        other = await stack.enter_async_context(connected_to(full, "127.0.0.2"))
        assert await loop.sock_recv(idle, 1 << 16) == b""
        await loop.sock_sendall(other, GET)
        assert b"200 OK" in await loop.sock_recv(other, 1 << 16)
        app.calls[1].answer((200, [], b"decided"))
        assert b"decided" in await loop.sock_recv(decided, 1 << 16)
        await loop.sock_sendall(authenticated, GET)
        assert b"200 OK" in await loop.sock_recv(authenticated, 1 << 16)


async def test_clients_that_do_not_close_their_half_give_place() -> None:
    """If they kept their places, calls with `Connection: close` could keep new clients out."""
    loop, last_call = asyncio.get_running_loop(), GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with served(Scripted(), settings=HttpSettings(connections_max=2)) as full, AsyncExitStack() as stack:
        for _ in range(2):
            client = await stack.enter_async_context(connected_to(full, "127.0.0.1"))
            await loop.sock_sendall(client, last_call)
            assert b"200 OK" in await loop.sock_recv(client, 1 << 16)
        other = await stack.enter_async_context(connected_to(full, "127.0.0.2"))
        await loop.sock_sendall(other, GET)
        assert b"200 OK" in await loop.sock_recv(other, 1 << 16)
        await turns()
        assert len(full.connections) == 2


def silent_after_its_answer(server: Server, context: ssl.SSLContext, path: bytes = b"/now") -> ssl.SSLSocket:
    """Returns a client that has its last answer, or the beginning of it, and does not answer the end of TLS."""
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    client = context.wrap_socket(socket.create_connection(address), server_hostname="localhost")
    client.sendall(GET.replace(b"/now", path).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert client.recv(1 << 16)
    return client


async def test_unread_answers_count_with_tls_too(tmp_path: Path) -> None:
    """So they have a bound, and a client that reads steadily gets all of its last answer, also if that takes more than `head_s`."""
    server, context = secured(tmp_path, HttpSettings())
    server.application = Scripted()
    await server.start()
    with await asyncio.to_thread(silent_after_its_answer, server, context, b"/large") as client:
        await turns()
        [connection] = server.connections
        assert connection.unread_bytes > len(LARGE) // 2
        connection.postpone(-server.settings.head_s - 1)
        connection.check(asyncio.get_running_loop().time())

        def rest() -> int:
            with contextlib.suppress(OSError):
                return sum(map(len, iter(lambda: client.recv(1 << 16), b"")))
            return 0

        assert await asyncio.to_thread(rest) > len(LARGE) - (1 << 16)
    await server.stop(1)


async def test_unread_answers_are_freed_when_their_client_is_gone() -> None:
    """Else a client without a key could fill the memory: it asks for large answers, reads none, and resets the connection."""
    async with served(Scripted()) as server:
        async with connected_to(server, "127.0.0.1") as client:
            await asyncio.get_running_loop().sock_sendall(client, GET.replace(b"/now", b"/large"))
            await turns()
            [connection] = server.connections
            assert connection.unread_bytes > len(LARGE) // 2
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        async with asyncio.timeout(30):
            while server.connections:  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0.005)
        assert connection.unread_bytes == 0


async def test_clients_that_do_not_answer_the_end_of_tls_give_place(tmp_path: Path) -> None:
    """Their connections are no longer counted, and end `goodbye_s` later. The server's timer continues."""
    server, context = secured(tmp_path, HttpSettings(connections_max=2))
    await server.start()
    silent = [await asyncio.to_thread(silent_after_its_answer, server, context) for _ in range(2)]
    with silent[0], silent[1]:
        await turns()
        assert [connection.state for connection in server.connections] == [ConnectionState.CLOSING] * 2
        assert server._make_place(0)
        for connection in server.connections:
            connection.postpone(-server.settings.goodbye_s - 0.1)
        server._check()
        await turns()
        assert len(server.connections) == 1
    await server.stop(1)


async def test_a_server_that_stops_does_not_wait_for_the_end_of_tls(tmp_path: Path) -> None:
    """A client that has its last answer, and does not close the connection, would keep the server until the end of its time to stop."""
    server, context = secured(tmp_path, HttpSettings())
    await server.start()
    with await asyncio.to_thread(silent_after_its_answer, server, context):
        await turns()
        [connection] = server.connections
        assert connection.state is ConnectionState.CLOSING
        connection.stop()
        now_s = asyncio.get_running_loop().time()
        connection.check(now_s)
        connection.check(now_s + server.settings.goodbye_s + 0.1)
        await turns()
        assert not server.connections
    await server.stop(1)


async def test_clients_that_keep_their_places_shield_no_others() -> None:
    """The address with the most connections may be that of a proxy, whose clients are authenticated. Then another address gives a place."""
    loop, app = asyncio.get_running_loop(), Scripted()
    async with served(app, settings=HttpSettings(connections_max=6)) as full, AsyncExitStack() as stack:
        for _ in range(3):
            client = await stack.enter_async_context(connected_to(full, "127.0.0.1"))
            await loop.sock_sendall(client, GET)
            assert b"200 OK" in await loop.sock_recv(client, 1 << 16)
            app.calls[-1].parties.add(b"O=Proven")
        for _ in range(3):
            await stack.enter_async_context(connected_to(full, "127.0.0.2"))
        await turns()
        client = await stack.enter_async_context(connected_to(full, "127.0.0.3"))
        await loop.sock_sendall(client, GET)
        assert b"200 OK" in await loop.sock_recv(client, 1 << 16)
        assert len(full.connections) == 6


@pytest.mark.parametrize("waits", ["in its line", "for its handshake"])
async def test_clients_that_do_not_shake_hands_give_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str) -> None:
    """Silent connections that are not made yet hold no places against another address, which also counts them no longer."""
    if waits == "in its line":
        may_go, wait = lines.ClientLines.may_go, lines.ClientLines.wait

        def never_may_go(self: lines.ClientLines, client: lines.ClientKey, *, begun: bool = False) -> bool:
            return client.network != "127.0.0.2" and may_go(self, client, begun=begun)

        def wait_for_ever(
            self: lines.ClientLines, client: lines.ClientKey, do: Callable[[float], None], *, size: int = 0, begun: bool = False
        ) -> None:
            if client.network != "127.0.0.2":
                wait(self, client, do, size=size, begun=begun)

        monkeypatch.setattr(lines.ClientLines, "may_go", never_may_go)
        monkeypatch.setattr(lines.ClientLines, "wait", wait_for_ever)
    server, context = secured(tmp_path, HttpSettings(connections_max=4))
    await server.start()
    port = int(server.url.rpartition(":")[2])
    async with AsyncExitStack() as stack:
        for _ in range(4):
            silent = stack.enter_context(socket.socket())
            silent.bind(("127.0.0.2", 0))
            silent.connect(("127.0.0.1", port))
        while server._count < 4:  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        writer.write(b"GET /livez HTTP/1.1\r\nHost: n\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert server._count == 4
        assert server._addresses["127.0.0.2"].count == len(server._addresses["127.0.0.2"].accepted) == 3
        writer.close()
    await server.stop(1)
    assert not server._addresses
    assert server._count == 0


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_connection_that_loses_its_place_while_it_is_made_is_forgotten(run: Callable[[Coroutine[None, None, None]], None]) -> None:
    """uvloop makes it even if its task is cancelled. It must not stay, be counted twice, or stop the check of the deadlines."""

    async def lose_place() -> None:
        async with served(Scripted(), settings=HttpSettings(connections_max=3, head_ms_max=300)) as server:
            clients = [await connected(server, "127.0.0.2") for _ in range(2)]
            await turns()
            assert server._listener is not None
            clients.append(await connected(server, "127.0.0.2"))
            while not any(accepted._connection is not None for accepted in server._listener._accepted):  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0)
            assert server._make_place(0)
            await turns()
            assert server._count == len(server.connections) + len(server._listener._accepted) == 2
            for client in clients:
                client.close()
            while server.connections:
                await turns(1)
            assert server._count == 0
            assert not server._addresses
            with await connected(server) as slow:
                await asyncio.get_running_loop().sock_sendall(slow, b"GET /now HTT")
                assert b" 400 " in await asyncio.wait_for(asyncio.get_running_loop().sock_recv(slow, 1000), 30)

    run(lose_place())


def test_a_handshake_that_ends_just_after_its_place_was_given_makes_no_connection(tmp_path: Path) -> None:
    """The client's last bytes of the handshake are in the kernel already."""

    async def hello(context: ssl.SSLContext, port: int) -> tuple[socket.socket, bytes]:
        """Returns a client, and the bytes that end its handshake."""
        loop, client = asyncio.get_running_loop(), socket.socket()
        client.setblocking(False)
        client.bind(("127.0.0.2", 0))
        await loop.sock_connect(client, ("127.0.0.1", port))
        received, made = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(received, made, server_hostname="localhost")
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                if made.pending:
                    await loop.sock_sendall(client, made.read())
                received.write(await loop.sock_recv(client, 1 << 16))
            else:
                return client, made.read()

    async def lose_place() -> None:
        server, context = secured(tmp_path, HttpSettings(connections_max=3))
        await server.start()
        port = int(server.url.rpartition(":")[2])
        first, end = await hello(context, port)
        second, _ = await hello(context, port)
        with first, second:
            assert server._count == 2
            first.send(end)
            assert server._make_place(0)
            await turns()
            assert server._count == 1
            assert not server.connections
        while server._count:
            await turns(1)
        await server.stop(0.1)
        assert not server._addresses

    uvloop.run(lose_place())


async def test_a_pause_that_follows_at_once_postpones_all_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first connection that is read again may fill the link again; the others have waited as long."""
    async with served(Scripted()) as server:
        with await connected(server), await connected(server):
            await turns()
            before_s = {connection: connection._deadline_s for connection in server.connections}
            server.pause()
            server._paused_since_s -= 1000
            for connection in server.connections:
                monkeypatch.setattr(connection, "go_on", server.pause)
            server.go_on()
            assert len(before_s) == 2
            assert all(connection._deadline_s >= deadline_s + 1000 for connection, deadline_s in before_s.items())


async def test_a_newcomer_of_the_largest_address_shields_nobody() -> None:
    """It is rejected itself, and the next newcomer of the same turn still gets a place."""
    async with served(Scripted(), settings=HttpSettings(connections_max=4)) as full, AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(connected_to(full, "127.0.0.2"))
        await turns()
        assert full.admit("127.0.0.2") is not None
        assert full.admit("127.0.0.9") is None
        full.release("127.0.0.9")


async def test_each_address_with_more_connections_gives_places_in_one_turn() -> None:
    """The order of the addresses is kept for a turn, in which several connections may be accepted."""
    async with served(Scripted(), settings=HttpSettings(connections_max=8)) as full, AsyncExitStack() as stack:
        for source in ("127.0.0.2", "127.0.0.3"):
            for _ in range(4):
                await stack.enter_async_context(connected_to(full, source))
        await turns()
        assert [full.admit(f"10.0.0.{number}") for number in range(6)] == [None] * 6
        assert full._count == 8
        for number in range(6):
            full.release(f"10.0.0.{number}")


async def test_a_surplus_connection_costs_no_look_at_every_address() -> None:
    """Each address has one connection, so none gives a place. Later connections of the same turn are rejected at once."""
    looks = 0

    class Watched(server_module._Address):
        @property
        def count(self) -> int:
            nonlocal looks
            looks += 1
            return 1

        @count.setter
        def count(self, count: int) -> None:
            pass

    async with served(Scripted(), settings=HttpSettings(connections_max=500)) as full:
        full._addresses, full._count = {f"10.0.{number}": Watched() for number in range(500)}, 500
        assert full.admit("10.1.1.1") is not None
        looks = 0
        assert full.admit("10.1.1.2") is not None
        assert looks <= 2


async def test_an_address_that_grows_gives_places_in_the_same_turn() -> None:
    """It has taken a place in this turn, and has the most connections now."""
    async with served(Scripted(), settings=HttpSettings(connections_max=4)) as full, AsyncExitStack() as stack:
        for source in ("127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.3"):
            await stack.enter_async_context(connected_to(full, source))
        await turns()
        assert full.admit("127.0.0.3") is None
        assert full.admit("10.0.0.1") is None
        assert full.admit("10.0.0.2") is None
        assert full.admit("10.0.0.3") is not None
        assert {network: counted.count for network, counted in full._addresses.items()} == {
            "127.0.0.2": 1,
            "127.0.0.3": 1,
            "10.0.0.1": 1,
            "10.0.0.2": 1,
        }
        await turns()
        assert full._largest is None, "it grows with each connection"
        for network in ("127.0.0.3", "10.0.0.1", "10.0.0.2"):
            full.release(network)


async def test_a_replaced_connection_is_closed_soon(tmp_path: Path) -> None:
    """The server counts it no longer, and its client does not answer the end of TLS."""
    server, context = secured(tmp_path, HttpSettings(connections_max=2))
    await server.start()
    port = int(server.url.rpartition(":")[2])

    def silent() -> ssl.SSLSocket:
        return context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost")

    with await asyncio.to_thread(silent), await asyncio.to_thread(silent):
        while len(server.connections) < 2:  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0)
        assert server._make_place(0)
        [replaced] = [each for each in server.connections if each.state >= ConnectionState.CLOSING]
        replaced.check(asyncio.get_running_loop().time() + server.settings.goodbye_s + 0.1)
        await turns()
        assert len(server.connections) == 1
    await server.stop(1)


async def test_a_bug_in_one_connection_leaves_the_others_their_deadlines(caplog: pytest.LogCaptureFixture) -> None:
    """The connection with the bug ends."""
    async with served(Scripted(), settings=HttpSettings(head_ms_max=300)) as server:
        with await connected(server, "127.0.0.2") as broken, await connected(server) as slow:
            loop = asyncio.get_running_loop()
            await turns()
            [connection] = [each for each in server.connections if each.network == "127.0.0.2"]
            connection.check = lambda now_s: 1 // 0  # type: ignore[assignment, method-assign]
            await loop.sock_sendall(slow, b"GET /now HTT")
            assert b" 400 " in await asyncio.wait_for(loop.sock_recv(slow, 1000), 30)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(loop.sock_recv(broken, 1), 30) == b""
    assert "a connection could not be checked" in caplog.text


@asynccontextmanager
async def connected_to(server: Server, source: str) -> AsyncIterator[socket.socket]:
    """Yields a client socket, connected from that address."""
    with await connected(server, source) as client:
        yield client


def test_a_port_that_is_about_to_be_free_is_waited_for() -> None:
    """A killed worker that starts again at once waits for its port, which acceptor processes still hold until they end."""
    holder = bind("127.0.0.1", 0)
    port = holder.getsockname()[1]
    letting_go = threading.Timer(0.1, holder.close)
    letting_go.start()
    with bind("127.0.0.1", port) as listening:
        assert listening.getsockname()[1] == port
    letting_go.join()


def secured(folder: Path, settings: HttpSettings) -> tuple[Server, ssl.SSLContext]:
    """Returns a server with TLS, and the context of its clients."""
    authority = Authority()
    authority.server().put(folder, "server")
    files = TlsFiles(str(folder / "server.pem"), str(folder / "server-key.pem"), "", client_cert_required=False)
    context = tls_context(authority.put(folder / "ca.pem"))
    return Server(App(), bind("127.0.0.1", 0), certificates=Certificates(files), settings=settings), context


@pytest.mark.parametrize("greeted", [False, True])
async def test_a_connection_that_is_being_made_when_the_server_stops_is_answered(tmp_path: Path, *, greeted: bool) -> None:
    """A server that stops accepts the connections in its backlog, finishes TLS handshakes, and answers a call on each of them."""
    server, context = secured(tmp_path, HttpSettings())
    await server.start()
    loop, port = asyncio.get_running_loop(), int(server.url.rpartition(":")[2])
    client = socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    if greeted:
        while server._listener is not None and not any(accepted._task for accepted in server._listener._accepted):  # noqa: ASYNC110 - polled from outside
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


async def test_a_connection_in_the_backlog_of_a_server_that_stops_has_time_for_its_call() -> None:
    """It is the only one, and its call comes a moment after it was made."""
    server = Server(Scripted(), bind("127.0.0.1", 0))
    await server.start()
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
        client.setblocking(False)
        stopping = asyncio.create_task(server.stop(30))
        await turns(20)
        await loop.sock_sendall(client, GET)
        assert b"connection: close" in await loop.sock_recv(client, 1 << 16)
    await stopping
