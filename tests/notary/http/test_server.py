"""The server accepts connections in bursts, address by address, without free descriptors, and on a port that is still held."""

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from notary.client import tls_context
from notary.duty_cycle import DutyCycle
from notary.http import lanes
from notary.http import server as server_module
from notary.http.app import App
from notary.http.call import Application
from notary.http.connection import Connection
from notary.http.machine import ConnectionState
from notary.http.server import Server, bind
from notary.http.settings import HttpSettings
from notary.tls import Certificates, TlsFiles
from ordering.errors import Overloaded
from tests.clients.load import until
from tests.notary.certificates import Authority
from tests.notary.http.test_connection import (
    CHUNKS_END,
    GET,
    GET_LARGE,
    LARGE,
    LAST,
    LAST_LARGE,
    Scripted,
    address_of,
    connected,
    head,
    served,
    turns,
)
from tests.notary.http.test_in_flight import garbage
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


async def is_served(client: socket.socket, call: bytes = GET) -> bool:
    """Make a call. Returns whether it gets a 200."""
    await asyncio.get_running_loop().sock_sendall(client, call)
    return b"200 OK" in await received(client)


async def received(client: socket.socket) -> bytes:
    """Returns the bytes that arrive next; empty at the end."""
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1 << 16), 30)


async def test_a_burst_is_accepted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many connections as a turn of the loop has time for are made in it, not one: under load turns are long, and probes wait too."""
    monkeypatch.setattr(lanes, "UNAUTHENTICATED_TURN_S", 1.0)
    monkeypatch.setattr(server_module, "ACCEPT_TURN_S", 1.0)
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


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the loop has time for one thing that a client without an admitted submission asks for, and one call is a slice of it."""
    for name in ("UNAUTHENTICATED_TURN_S", "AUTHENTICATED_TURN_S", "SLICE_S"):
        monkeypatch.setattr(lanes, name, 0.0)
    monkeypatch.setattr(server_module, "ACCEPT_TURN_S", 1.0)


@pytest.mark.usefixtures("no_time")
async def test_connections_are_made_address_by_address() -> None:
    """A connection from another address does not wait until a burst of one address has been made."""
    async with waiting_burst() as busy:
        with await connected(busy, "127.0.0.2"):
            await until(lambda: "127.0.0.2" in [each.network for each in busy.connections], 0)
            assert len(busy.connections) < TURNS
            await until(lambda: len(busy.connections) > BURST, 0)


@pytest.mark.usefixtures("no_time")
async def test_pipelined_calls_are_taken_address_by_address() -> None:
    """A call from another address does not wait until hundreds of one connection have been answered; nor does one of another connection."""
    app = Scripted()
    async with served(app) as busy, AsyncExitStack() as stack:
        first, other = [stack.enter_context(await connected(busy, source)) for source in ("127.0.0.1", "127.0.0.2")]
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
    async with served(app) as busy:
        with await connected(busy) as client:
            answers = b""
            await turns()
            await asyncio.get_running_loop().sock_sendall(client, GET.replace(b"/now", b"/later") * 200)
            while answers.count(b"200 OK") < 200:
                while app.calls:
                    app.calls.pop().answer((200, [], b"later"))
                with contextlib.suppress(BlockingIOError):
                    answers += client.recv(1 << 16)
                await asyncio.sleep(0)
            assert await is_served(client)


@asynccontextmanager
async def full_server(
    connections_max: int, app: Scripted | None = None
) -> AsyncIterator[tuple[Server, Callable[[str], Awaitable[socket.socket]]]]:
    """Yields a server with this limit, and a function that connects to it from an address until the end of the block."""
    async with served(app or Scripted(), settings=HttpSettings(connections_max=connections_max)) as full, AsyncExitStack() as stack:

        async def connect(source: str) -> socket.socket:
            return stack.enter_context(await connected(full, source))

        yield full, connect


async def test_an_address_with_few_connections_takes_the_place_of_one_with_many() -> None:
    """While all connections are in use, the oldest one of the address with the most ends for one of an address with fewer."""
    async with full_server(4) as (full, connect):
        many = [await connect("127.0.0.1") for _ in range(4)]
        await turns()
        few = [await connect("127.0.0.2") for _ in range(3)]
        assert [await is_served(client) for client in few] == [True, True, False]
        for client in many[:2]:
            assert b"most of them from your address" in await received(client)
        assert [await is_served(client) for client in many[2:]] == [True, True]
        assert len(full.connections) == 4


async def test_authenticated_clients_and_calls_that_are_decided_give_no_place() -> None:
    """The connection of an admitted submission stays, and so does one whose call is being decided; an idle one ends without a word."""
    app = Scripted()
    async with full_server(3, app) as (_, connect):
        authenticated, decided, idle = [await connect("127.0.0.1") for _ in range(3)]
        assert await is_served(authenticated)
        await asyncio.get_running_loop().sock_sendall(decided, head("/read") + CHUNKS_END)
        await turns()
        assert await is_served(idle)
        app.calls[0].parties.add(b"O=Proven")
        other = await connect("127.0.0.2")
        assert await received(idle) == b""
        assert await is_served(other)
        app.calls[1].answer((200, [], b"decided"))
        assert b"decided" in await received(decided)
        assert await is_served(authenticated)


async def test_clients_that_do_not_close_their_half_give_place() -> None:
    """If they kept their places, calls with `Connection: close` could keep new clients out."""
    async with full_server(2) as (full, connect):
        for _ in range(2):
            assert await is_served(await connect("127.0.0.1"), LAST)
        assert await is_served(await connect("127.0.0.2"))
        await turns()
        assert len(full.connections) == 2


async def silent(server: Server, context: ssl.SSLContext, call: bytes = LAST) -> ssl.SSLSocket:
    """Returns a client that has the answer to this call, or the beginning of it, and does not answer the end of TLS."""

    def connect() -> ssl.SSLSocket:
        client = context.wrap_socket(socket.create_connection(address_of(server)), server_hostname="localhost")
        if call:
            client.sendall(call)
            assert client.recv(1 << 16)
        return client

    return await asyncio.to_thread(connect)


async def test_unread_answers_count_with_tls_too(tmp_path: Path) -> None:
    """So they have a bound, and a client that reads steadily gets all of its last answer, also if that takes more than `head_s`."""
    server, context = await secured(tmp_path, app=Scripted())
    with await silent(server, context, LAST_LARGE) as client:
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
        with await connected(server) as client:
            await asyncio.get_running_loop().sock_sendall(client, GET_LARGE)
            await turns()
            [connection] = server.connections
            assert connection.unread_bytes > len(LARGE) // 2
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        await until(lambda: not server.connections)
        assert connection.unread_bytes == 0


@pytest.mark.parametrize("call", [LAST, b""], ids=["closing", "no call"])
async def test_clients_that_do_not_answer_the_end_of_tls_give_place(tmp_path: Path, call: bytes) -> None:
    """Their connections are no longer counted, and end `goodbye_s` later. The server's timer continues."""
    server, context = await secured(tmp_path, HttpSettings(connections_max=2))
    with await silent(server, context, call), await silent(server, context, call):
        await until(lambda: len(server.connections) == 2)
        await turns()
        assert [connection.state is ConnectionState.CLOSING for connection in server.connections] == [bool(call)] * 2
        assert server._make_place(0)
        for connection in server.connections:
            connection.postpone(-server.settings.goodbye_s - 0.1)
        server._check()
        await turns()
        assert len(server.connections) == 1
    await server.stop(1)


async def is_closed_after_goodbye(server: Server, connection: Connection) -> None:
    """A closing connection, the only one of the server, is closed once its client has had `goodbye_s`."""
    now_s = asyncio.get_running_loop().time()
    connection.check(now_s)
    connection.check(now_s + server.settings.goodbye_s + 0.1)
    await turns()
    assert not server.connections


async def test_a_replaced_long_poll_does_not_wait_for_the_end_of_tls(tmp_path: Path) -> None:
    """Its client reads the answer, which an acceptor process gets some turns later, and does not close the connection. Nobody counts it."""
    app = Scripted()
    server, context = await secured(tmp_path, app=app)
    with await silent(server, context, b"") as client:
        await asyncio.to_thread(client.sendall, head("/read") + CHUNKS_END)
        await until(lambda: "complete" in app.heard)
        [connection], [poll] = server.connections, app.calls
        poll.left = lambda: None
        assert connection.give_way(Overloaded("too many", 1))
        poll.answer((200, [], b"polled"))
        assert connection.state is ConnectionState.CLOSING
        await is_closed_after_goodbye(server, connection)
    await server.stop(1)


async def test_a_server_that_stops_does_not_wait_for_the_end_of_tls(tmp_path: Path) -> None:
    """A client that has its last answer, and does not close the connection, would keep the server until the end of its time to stop."""
    server, context = await secured(tmp_path)
    with await silent(server, context):
        await turns()
        [connection] = server.connections
        assert connection.state is ConnectionState.CLOSING
        connection.stop()
        await is_closed_after_goodbye(server, connection)
    await server.stop(1)


async def test_handshakes_count_in_the_slice_that_begins_them(tmp_path: Path) -> None:
    """They take their time in later turns. Else a client without a key could take more than its part of the time with them."""
    server, context = await secured(tmp_path)
    clock = Clock()
    server.duty = server.lanes._duty = DutyCycle(clock, lambda: True)
    address = address_of(server)
    first = await asyncio.to_thread(lambda: context.wrap_socket(socket.create_connection(address), server_hostname="localhost"))
    with first, socket.create_connection(address):
        await turns()
        assert server._count == 1
        clock.now_s += 2.01 * server_module.HANDSHAKE_S
        async with asyncio.timeout(30):
            while server._count < 2:  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0.001)
    await server.stop(1)


@pytest.mark.parametrize("way", ["no handshake", "no TLS", "a call", "a reset"])
def test_a_closed_connection_with_tls_is_freed_without_the_garbage_collector(tmp_path: Path, way: str) -> None:
    """Its handshake may have failed. (asyncio's own TLS keeps the error of a failed one in a cycle; a worker uses uvloop.)"""

    def client(address: tuple[str, int], context: ssl.SSLContext) -> None:
        with contextlib.ExitStack() as stack:
            connected = stack.enter_context(socket.create_connection(address))
            if way == "no TLS":
                connected.sendall(GET)
                with contextlib.suppress(ConnectionError):
                    while connected.recv(1 << 16):
                        pass
            elif way != "no handshake":
                secure = stack.enter_context(context.wrap_socket(connected, server_hostname="localhost"))
                secure.sendall(GET)
                secure.recv(1 << 16)
                if way == "a reset":
                    secure.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def close_some() -> None:
        server, context = await secured(tmp_path)
        with garbage() as found:
            for _ in range(3):
                await asyncio.to_thread(client, address_of(server), context)
            async with asyncio.timeout(30):
                while server._count or not server._is_empty():  # noqa: ASYNC110 - polled from outside
                    await asyncio.sleep(0.005)
            await turns()
            assert not found()
        await server.stop(1)

    uvloop.run(close_some())


async def test_clients_that_keep_their_places_shield_no_others() -> None:
    """The address with the most connections may be that of a proxy, whose clients are authenticated. Then another address gives a place."""
    app = Scripted()
    async with full_server(6, app) as (full, connect):
        for _ in range(3):
            assert await is_served(await connect("127.0.0.1"))
            app.calls[-1].parties.add(b"O=Proven")
        for _ in range(3):
            await connect("127.0.0.2")
        await turns()
        assert await is_served(await connect("127.0.0.3"))
        assert len(full.connections) == 6


async def full_of_parties(connect: Callable[[str], Awaitable[socket.socket]], app: Scripted, parties: str) -> list[socket.socket]:
    """Connect once for each letter, the name of a party. Each has two addresses, and each connection has an admitted submission."""
    clients = []
    for number, party in enumerate(parties):
        clients.append(await connect(f"127.0.{ord(party)}.{1 + number % 2}"))
        assert await is_served(clients[-1])
        app.calls[-1].parties.add(party.encode())
    return clients


async def test_a_party_keeps_seven_eighths_of_the_places() -> None:
    """A party with two addresses has all places. New clients get an eighth of them, and no more from any number of addresses."""
    app = Scripted()
    async with full_server(16, app) as (full, connect):
        of_party = await full_of_parties(connect, app, "P" * 16)
        assert not await is_served(await connect("127.0.80.1")), "its address has more than an eighth"
        new = [await connect(f"127.0.0.{number}") for number in range(2, 6)]
        assert [await is_served(client) for client in new] == [True, True, False, False]
        ended = of_party[0], of_party[2]  # the oldest of an address
        assert [await received(client) for client in ended] == [b"", b""]
        assert all([await is_served(client) for client in of_party if client not in ended])
        assert len(full.connections) == 16


async def test_the_party_with_the_most_by_weight_gives_places() -> None:
    """Its connections between two calls end first. A party with no more than its share keeps all of its own."""
    app = Scripted()
    async with full_server(16, app) as (full, connect):
        full.weight_of = lambda party: 3 if party == b"P" else 1
        clients = await full_of_parties(connect, app, "PPPPPPPPPPPQQQQQ")
        first, idle = clients[11], clients[13]
        await asyncio.get_running_loop().sock_sendall(first, head("/read"))
        await turns()
        assert await is_served(await connect("127.0.0.2"))
        assert await received(idle) == b""
        app.calls[-1].parties.add(b"R")
        assert await is_served(await connect("127.0.0.3"))
        assert [await is_served(client) for client in clients[:11]].count(True) == 11
        assert app.heard == []


async def test_a_body_that_loses_its_place_gets_the_reason() -> None:
    """All connections of the party have a call whose body still comes. It may be sent again later."""
    app = Scripted()
    async with full_server(8, app) as (_, connect):
        of_party = await full_of_parties(connect, app, "P" * 8)
        for client in of_party:
            await asyncio.get_running_loop().sock_sendall(client, head("/read"))
        await turns()
        assert await is_served(await connect("127.0.0.2"))
        answer = await received(of_party[0])
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer
        assert b"your party has more than its share" in answer


async def test_a_decision_under_way_is_the_last_answer_of_a_connection_that_gives_its_place() -> None:
    """Else a party whose every connection has a call under way would keep all others out. Only an eighth may end so at a time."""
    app = Scripted()
    async with full_server(8, app) as (full, connect):
        of_party = await full_of_parties(connect, app, "P" * 8)
        for number, client in enumerate(of_party):
            await asyncio.get_running_loop().sock_sendall(client, head(f"/read/{number}") + CHUNKS_END + GET)
        await turns()
        decided = {call.path: call for call in app.calls}
        assert await is_served(await connect("127.0.0.2"))
        app.calls[-1].parties.add(b"Q")
        await asyncio.sleep(2 * server_module.PARTIES_S)
        assert not await is_served(await connect("127.0.0.3"))
        decided["/read/0"].answer((200, [], b"decided"))
        answer = await received(of_party[0])
        assert b"connection: close" in answer
        assert answer.endswith(b"decided"), "the call behind it is dropped"
        assert await received(of_party[0]) == b""
        of_party[0].close()
        await until(lambda: len(full.connections) == 8)
        assert await is_served(await connect("127.0.0.3"))
        decided["/read/1"].answer((200, [], b"decided"))
        assert b"connection: close" not in await received(of_party[1])


async def test_a_connection_that_has_closed_gives_no_second_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the list of the party's connections until it closes."""
    monkeypatch.setattr(server_module, "PARTIES_S", 60.0)
    app = Scripted()
    async with full_server(24, app) as (full, connect):
        of_party = await full_of_parties(connect, app, "P" * 24)
        assert await is_served(await connect("127.0.0.2"))
        of_party[2].close()
        await until(lambda: full._count == 23)
        assert [await is_served(await connect(f"127.0.0.{number}")) for number in (3, 4)] == [True, True]
        assert full._count == 24
        await until(lambda: len(full.connections) == 24)


async def test_strangers_that_come_and_go_cost_one_look_at_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers have their eighth; one leaves, another comes, and one more is rejected, again and again. A look takes a millisecond."""
    monkeypatch.setattr(server_module, "PARTIES_S", 60.0)
    looks: list[Server] = []
    look = Server._connections_of_parties
    app = Scripted()
    async with full_server(24, app) as (full, connect):
        of_party = await full_of_parties(connect, app, "P" * 24)
        strangers = [await connect(f"127.0.0.{number}") for number in range(2, 5)]
        assert all([await is_served(client) for client in strangers])
        for given in of_party[0], of_party[2], of_party[4]:
            assert await received(given) == b""
            given.close()
        await until(lambda: len(full.connections) == 24)
        monkeypatch.setattr(Server, "_connections_of_parties", lambda server: looks.append(server) or look(server))
        for number in range(5, 10):
            assert not await is_served(await connect("127.0.1.1"))
            strangers.pop().close()
            await until(lambda: full._count == 23)
            strangers.append(await connect(f"127.0.0.{number}"))
            assert await is_served(strangers[-1])
        assert looks == [full]


@pytest.mark.parametrize("waits", ["in its lane", "for its handshake"])
async def test_clients_that_do_not_shake_hands_give_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str) -> None:
    """Silent connections that are not made yet hold no places against another address, which also counts them no longer."""
    if waits == "in its lane":
        may_go, wait = lanes.ClientLanes.may_go, lanes.ClientLanes.wait

        def never_may_go(self: lanes.ClientLanes, client: lanes.ClientKey, *, begun: bool = False) -> bool:
            return client.network != "127.0.0.2" and may_go(self, client, begun=begun)

        def wait_for_ever(
            self: lanes.ClientLanes, client: lanes.ClientKey, do: Callable[[float], None], *, size: int = 0, begun: bool = False
        ) -> None:
            if client.network != "127.0.0.2":
                wait(self, client, do, size=size, begun=begun)

        monkeypatch.setattr(lanes.ClientLanes, "may_go", never_may_go)
        monkeypatch.setattr(lanes.ClientLanes, "wait", wait_for_ever)
    server, context = await secured(tmp_path, HttpSettings(connections_max=4))
    async with AsyncExitStack() as stack:
        for _ in range(4):
            stack.enter_context(await connected(server, "127.0.0.2"))
        await until(lambda: server._count >= 4, 0)
        reader, writer = await asyncio.open_connection(*address_of(server), ssl=context, server_hostname="localhost")
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
            await until(lambda: any(accepted._connection is not None for accepted in server._listener._accepted), 0)  # type: ignore[union-attr]
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
    async with full_server(4) as (full, connect):
        for _ in range(4):
            await connect("127.0.0.2")
        await turns()
        assert full.admit("127.0.0.2") is not None
        assert full.admit("127.0.0.9") is None
        full.release("127.0.0.9")


async def test_each_address_with_more_connections_gives_places_in_one_turn() -> None:
    """The order of the addresses is kept for a turn, in which several connections may be accepted."""
    async with full_server(8) as (full, connect):
        for source in ["127.0.0.2", "127.0.0.3"] * 4:
            await connect(source)
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

    async with full_server(500) as (full, _):
        full._addresses, full._count = {f"10.0.{number}": Watched() for number in range(500)}, 500
        assert full.admit("10.1.1.1") is not None
        looks = 0
        assert full.admit("10.1.1.2") is not None
        assert looks <= 2


async def test_an_address_that_grows_gives_places_in_the_same_turn() -> None:
    """It has taken a place in this turn, and has the most connections now."""
    async with full_server(4) as (full, connect):
        for source in ("127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.3"):
            await connect(source)
        await turns()
        newcomers = ["127.0.0.3", "10.0.0.1", "10.0.0.2"]
        assert [full.admit(network) for network in newcomers] == [None] * 3
        assert full.admit("10.0.0.3") is not None
        assert {network: counted.count for network, counted in full._addresses.items()} == dict.fromkeys(["127.0.0.2", *newcomers], 1)
        await turns()
        assert full._largest is None, "it grows with each connection"
        for network in newcomers:
            full.release(network)


async def test_a_bug_in_one_connection_leaves_the_others_their_deadlines(caplog: pytest.LogCaptureFixture) -> None:
    """The connection with the bug ends."""
    async with served(Scripted(), settings=HttpSettings(head_ms_max=300)) as server:
        with await connected(server, "127.0.0.2") as broken, await connected(server) as slow:
            await turns()
            [connection] = [each for each in server.connections if each.network == "127.0.0.2"]
            connection.check = lambda now_s: 1 // 0  # type: ignore[assignment, method-assign]
            await asyncio.get_running_loop().sock_sendall(slow, b"GET /now HTT")
            assert b" 400 " in await received(slow)
            with contextlib.suppress(ConnectionResetError):
                assert await received(broken) == b""
    assert "a connection could not be checked" in caplog.text


def test_a_port_that_is_about_to_be_free_is_waited_for() -> None:
    """A killed worker that starts again at once waits for its port, which acceptor processes still hold until they end."""
    holder = bind("127.0.0.1", 0)
    port = holder.getsockname()[1]
    letting_go = threading.Timer(0.1, holder.close)
    letting_go.start()
    with bind("127.0.0.1", port) as listening:
        assert listening.getsockname()[1] == port
    letting_go.join()


async def secured(folder: Path, settings: HttpSettings | None = None, app: Application | None = None) -> tuple[Server, ssl.SSLContext]:
    """Returns a server with TLS that serves, and the context of its clients."""
    authority = Authority()
    authority.server().put(folder, "server")
    files = TlsFiles(str(folder / "server.pem"), str(folder / "server-key.pem"), "", client_cert_required=False)
    context = tls_context(authority.put(folder / "ca.pem"))
    server = Server(app or App(), bind("127.0.0.1", 0), certificates=Certificates(files), settings=settings)
    await server.start()
    return server, context


@pytest.mark.parametrize("greeted", [False, True])
async def test_a_connection_that_is_being_made_when_the_server_stops_is_answered(tmp_path: Path, *, greeted: bool) -> None:
    """A server that stops accepts the connections in its backlog, finishes TLS handshakes, and answers a call on each of them."""
    server, context = await secured(tmp_path)
    client = socket.create_connection(address_of(server))
    client.setblocking(False)
    if greeted:
        await until(lambda: any(accepted._task for accepted in server._listener._accepted), 0)  # type: ignore[union-attr]
    stopping = asyncio.create_task(server.stop(30))
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address_of(server))
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().create_connection(
        lambda: asyncio.StreamReaderProtocol(reader), sock=client, ssl=context, server_hostname="localhost"
    )
    transport.write(b"GET /livez HTTP/1.1\r\nHost: notary\r\n\r\n")
    answer = await reader.read()
    transport.close()
    await stopping
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer
