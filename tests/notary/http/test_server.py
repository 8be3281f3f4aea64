"""The server reads its connections in turn, bounds what clients leave unread, and stops in order."""

import asyncio
import contextlib
import socket
import ssl
import struct
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import uvloop

from notary.client import tls_context
from notary.http.app import App
from notary.http.call import Application
from notary.http.connection import Connection
from notary.http.listener import bind
from notary.http.machine import ConnectionState
from notary.http.server import Server
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

TURNS = 8
"""Turns of the event loop: far fewer than one for each call."""


async def is_served(client: socket.socket, call: bytes = GET) -> bool:
    """Make a call. Returns whether it gets a 200."""
    await asyncio.get_running_loop().sock_sendall(client, call)
    return b"200 OK" in await received(client)


async def received(client: socket.socket) -> bytes:
    """Returns the bytes that arrive next; empty at the end."""
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1 << 16), 30)


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
                while server.places.taken or not server._is_empty():  # noqa: ASYNC110 - polled from outside
                    await asyncio.sleep(0.005)
            await turns()
            assert not found()
        await server.stop(1)

    uvloop.run(close_some())


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
