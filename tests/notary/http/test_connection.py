"""The connection's state machine: every event in every state, on real sockets; and the bounds of its memory."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from notary.http import lanes, writing
from notary.http import server as server_module
from notary.http.call import TEXT, Application, Call
from notary.http.connection import DROPPED_BYTES_MAX, SLICE_BYTES, TURN_BYTES_MAX, Connection
from notary.http.listener import bind
from notary.http.machine import ConnectionState, Event
from notary.http.parsing import HEAD_BYTES_MAX, Head
from notary.http.server import Server
from notary.http.settings import HttpSettings
from notary.http.writing import READ_BYTES_MIN, ResponseWriter, encoded
from ordering.errors import Overloaded
from tests.clients.load import until

LARGE = b"x" * (16 << 20)
"""More than the kernel buffers for a client that does not read."""


class Scripted:
    """An application that follows the path; it reads every body that it neither answers nor rejects."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.heard: list[str] = []

    def take(self, call: Call) -> None:
        """Answer now, reject, or leave the call to the test."""
        self.calls.append(call)
        if call.path == "/now":
            call.answer((200, TEXT, b"now"))
        elif call.path == "/large":
            call.answer((200, TEXT, LARGE))
        elif call.path == "/reject":
            call.answer((503, TEXT, b"rejected"), after_body=True)
        else:
            call.reader = self

    def piece(self, data: bytes) -> None:
        """Receive a piece of a body."""
        self.heard.append(f"piece {data!r}")

    def complete(self) -> None:
        """Receive the end of a body."""
        self.heard.append("complete")

    def late(self) -> None:
        """Answer, as a reader must when the body is late."""
        self.heard.append("late")
        self.calls[-1].answer((400, TEXT, b"late"))

    def left(self) -> None:
        """Record that the client has left."""
        self.heard.append("left")


class Talk:
    """A client with its connection."""

    def __init__(self, server: Server, client: socket.socket, app: Scripted) -> None:
        self.server = server
        self.client = client
        self.app = app
        (self.connection,) = server.connections

    async def send(self, data: bytes) -> None:
        """Send, and wait until the bytes have arrived."""
        await asyncio.get_running_loop().sock_sendall(self.client, data)
        await turns()

    async def read(self) -> bytes:
        """Returns the bytes that have arrived; empty at the end."""
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.client, 1 << 16), 30)

    async def rest(self) -> bytes:
        """Returns all bytes until the connection ends."""
        received = bytearray()  # it may be many MiB: bytes would be copied with each piece
        with contextlib.suppress(ConnectionResetError):
            while data := await self.read():
                received += data
        return bytes(received)

    async def until(self, *states: ConnectionState) -> None:
        """Wait until the connection is in one of these states."""
        await until(lambda: self.connection.state in states, 0.001)

    async def decide(self, *lines: str, behind: bytes = b"") -> Call:
        """Send a complete call that the application decides later, with these headers and bytes behind it. Returns the call."""
        await self.send(head("/read", *lines) + CHUNKS_END + behind)
        await self.until(ConnectionState.DECIDING)
        return self.app.calls[0]

    async def send_more(self) -> None:
        """Send three more calls, each for a read of its own."""
        for _ in range(3):
            await self.send(GET)
            await turns(20)


@pytest.fixture(autouse=True)
def _no_turn_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine would end the turns and slices of time at random bytes. Tests of their ends set a length that has always passed."""
    for name in ("UNAUTHENTICATED_TURN_S", "AUTHENTICATED_TURN_S", "SLICE_S"):
        monkeypatch.setattr(lanes, name, 60.0)


async def turns(count: int = 8) -> None:
    """Run some turns of the event loop, with the time that the kernel needs for a byte on loopback."""
    for _ in range(count):
        await asyncio.sleep(0.001)


@asynccontextmanager
async def served(app: Application, **options: object) -> AsyncIterator[Server]:
    """Yields a server on a free port."""
    server = Server(app, bind("127.0.0.1", 0), **options)  # type: ignore[arg-type]
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0.05)


@asynccontextmanager
async def talking(**options: object) -> AsyncIterator[Talk]:
    """Yields one connection to a separate server."""
    app = Scripted()
    async with served(app, **options) as server:
        with await connected(server) as client:
            await until(lambda: bool(server.connections), 0.001)
            yield Talk(server, client, app)


async def connected(server: Server, source: str = "127.0.0.1") -> socket.socket:
    """Returns a client socket, connected from that address."""
    client = socket.socket()
    client.setblocking(False)
    client.bind((source, 0))
    await asyncio.get_running_loop().sock_connect(client, address_of(server))
    return client


def address_of(server: Server) -> tuple[str, int]:
    """Returns the host and the port at which a server listens."""
    return "127.0.0.1", int(server.url.rpartition(":")[2])


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    """Returns the head of a call with a chunked body."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: n", *lines, "Transfer-Encoding: chunked", "", ""]).encode()


GET = b"GET /now HTTP/1.1\r\nHost: n\r\n\r\n"
GET_LARGE = GET.replace(b"/now", b"/large")
LAST, LAST_LARGE = [call.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") for call in (GET, GET_LARGE)]
CHUNK, CHUNKS_END, NO_CHUNK = b"1\r\nx\r\n", b"0\r\n\r\n", b"zz\r\n"

INTO: dict[ConnectionState, bytes] = {
    ConnectionState.HEAD: b"",
    ConnectionState.IDLE: GET,
    ConnectionState.BODY: head("/read") + CHUNK,
    ConnectionState.REJECTED: head("/reject") + CHUNK,
    ConnectionState.ANSWERED: head("/now") + CHUNK,
    ConnectionState.DECIDING: head("/read") + CHUNK + CHUNKS_END,
    ConnectionState.CLOSING: LAST_LARGE,
    ConnectionState.CLOSED: b"",
}
"""The bytes that bring a new connection into each state."""


async def lost(talk: Talk) -> None:
    """Reset the connection from the client's side."""
    if talk.client.fileno() >= 0:
        talk.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        talk.client.close()


async def eof(talk: Talk) -> None:
    """Close the client's sending side."""
    with contextlib.suppress(OSError):
        talk.client.shutdown(socket.SHUT_WR)


async def late(talk: Talk) -> None:
    """Run the server's timer after every deadline has passed."""
    talk.connection.check(1e18)


async def stop(talk: Talk) -> None:
    """Stop the server."""
    talk.connection.stop()


def sends(data: bytes) -> Callable[[Talk], Awaitable[None]]:
    """Returns an event: the client sends this, as far as it is accepted."""

    async def send(talk: Talk) -> None:
        with contextlib.suppress(OSError):
            await talk.send(data)

    return send


def answers(*, after_body: bool) -> Callable[[Talk], Awaitable[None]]:
    """Returns an event: the application answers its last call, even if it has answered already."""

    async def answer(talk: Talk) -> None:
        if talk.app.calls:
            talk.app.calls[-1].answer((200, TEXT, b"done"), after_body=after_body)

    return answer


EVENTS: dict[Event, Callable[[Talk], Awaitable[None]]] = {
    Event.BYTES: sends(b"P"),
    Event.CALL: sends(head("/read")),
    Event.ANSWER: answers(after_body=False),
    Event.REJECT: answers(after_body=True),
    Event.END: sends(CHUNKS_END),
    Event.LATE: late,
    Event.BREAK: sends(NO_CHUNK),
    Event.EOF: eof,
    Event.STOP: stop,
    Event.LOST: lost,
}

H, I, B, R, A, D, C, X = (  # noqa: E741 - a table
    ConnectionState.HEAD,
    ConnectionState.IDLE,
    ConnectionState.BODY,
    ConnectionState.REJECTED,
    ConnectionState.ANSWERED,
    ConnectionState.DECIDING,
    ConnectionState.CLOSING,
    ConnectionState.CLOSED,
)
E = Event
# A closing state with nothing left to send is closed a moment later. C stands for both, unless the client does not read.
EXPECTED: dict[ConnectionState, dict[Event, ConnectionState]] = {
    H: {E.BYTES: H, E.CALL: B, E.ANSWER: H, E.REJECT: H, E.END: C, E.LATE: C, E.BREAK: C, E.EOF: C, E.STOP: C, E.LOST: X},
    I: {E.BYTES: H, E.CALL: B, E.ANSWER: I, E.REJECT: I, E.END: C, E.LATE: C, E.BREAK: C, E.EOF: C, E.STOP: C, E.LOST: X},
    B: {E.BYTES: C, E.CALL: C, E.ANSWER: A, E.REJECT: R, E.END: D, E.LATE: A, E.BREAK: C, E.EOF: C, E.STOP: B, E.LOST: X},
    R: {E.BYTES: C, E.CALL: C, E.ANSWER: R, E.REJECT: R, E.END: I, E.LATE: C, E.BREAK: C, E.EOF: C, E.STOP: C, E.LOST: X},
    A: {E.BYTES: C, E.CALL: C, E.ANSWER: A, E.REJECT: A, E.END: I, E.LATE: C, E.BREAK: C, E.EOF: C, E.STOP: C, E.LOST: X},
    D: {E.BYTES: D, E.CALL: D, E.ANSWER: I, E.REJECT: I, E.END: D, E.LATE: D, E.BREAK: D, E.EOF: D, E.STOP: D, E.LOST: X},
    C: {E.BYTES: C, E.CALL: C, E.ANSWER: C, E.REJECT: C, E.END: C, E.LATE: X, E.BREAK: C, E.EOF: C, E.STOP: C, E.LOST: X},
    X: dict.fromkeys(E, X),
}
"""The state after each event, as docs/http.md lists it. Bytes in the middle of chunks are not a valid chunk."""

CASES = [(state, event) for state in ConnectionState for event in Event]


@pytest.mark.parametrize(("state", "event"), CASES, ids=[f"{state.name}-{event.name}" for state, event in CASES])
async def test_every_event_in_every_state(state: ConnectionState, event: Event) -> None:
    """The connection goes to the listed state, reports its client's end once, and is forgotten when it is closed."""
    async with talking() as talk:
        await talk.send(INTO[state])
        if state is ConnectionState.CLOSED:
            await lost(talk)
        await talk.until(state)
        await EVENTS[event](talk)
        expected = EXPECTED[state][event]
        await talk.until(*((expected, X) if expected is C and state is not C else (expected,)))
        await turns()
        assert talk.connection.state in ((expected, X) if expected is C and state is not C else (expected,))
        if state is ConnectionState.BODY:
            assert talk.app.heard.count("left") == (expected in (C, X))
        assert (talk.connection in talk.server.connections) is (talk.connection.state is not X)


# ---- order, and the end ----


async def test_behind_a_call_that_is_decided_nothing_is_read() -> None:
    """Calls behind an undecided one wait in the socket, then come one by one; the client may close its sending side behind them."""
    async with talking() as talk:
        await talk.send(head("/read") + CHUNKS_END + GET * 3 + head("/later") + CHUNK)
        assert len(talk.app.calls) == 1
        await talk.send(CHUNK * 10_000 + CHUNKS_END + GET * 5_000)
        assert len(talk.app.calls) == 1
        talk.app.calls[0].answer((200, TEXT, b"first"))
        await until(lambda: len(talk.app.calls) >= 5, 0.001)
        talk.client.shutdown(socket.SHUT_WR)
        await until(lambda: "complete" in talk.app.heard[1:], 0.001)
        assert talk.app.heard.count("piece b'x'") == 10_001
        talk.app.calls[-1].answer((200, TEXT, b"later"))
        answered = await talk.rest()
        assert answered.count(b"HTTP/1.1 200") == 1 + 3 + 1 + 5_000
        assert answered.index(b"first") < answered.index(b"now") < answered.index(b"later") < answered.rindex(b"now")


async def test_small_pieces_behind_a_call_are_not_gathered() -> None:
    """Small pieces that arrive while a call is decided stay in the socket too, and are answered after it."""
    async with talking() as talk:
        call = await talk.decide()
        for _ in range(5):
            await talk.send(GET * 100)
        assert len(talk.connection._behind) <= SLICE_BYTES // len(GET)
        call.answer((200, TEXT, b"first"))
        await until(lambda: len(talk.app.calls) == 501, 0.001)


@pytest.mark.parametrize("before", [None, b"", GET], ids=["in the backlog", "new", "idle"])
async def test_a_call_on_its_way_when_the_server_stops_is_answered(before: bytes | None) -> None:
    """A server that stops answers a call that it has not read yet, as the last one of its connection, also of one in its backlog."""
    server = Server(Scripted(), bind("127.0.0.1", 0))
    await server.start()
    loop = asyncio.get_running_loop()
    with socket.create_connection(address_of(server)) as client:
        client.setblocking(False)
        if before:
            await loop.sock_sendall(client, before)
            assert b"connection: close" not in await loop.sock_recv(client, 1 << 16)
        while before is not None and not server.connections:
            await turns(1)
        stopping = asyncio.create_task(server.stop(30))
        await turns(20 if before is None else 1)
        await loop.sock_sendall(client, GET)
        answered = b""
        while data := await loop.sock_recv(client, 1 << 16):
            answered += data
        assert answered.startswith(b"HTTP/1.1 200")
        assert (answered.count(b"HTTP/1.1"), b"connection: close" in answered) == (1, True)
        await stopping


async def test_a_client_that_never_stops_calling_does_not_keep_a_stopping_server() -> None:
    """A client that pipelines calls without end is answered until the last calls are over; then its connection ends like any other."""
    server = Server(Scripted(), bind("127.0.0.1", 0))
    await server.start()
    loop = asyncio.get_running_loop()
    with await connected(server) as client:

        async def call_for_ever() -> None:
            with contextlib.suppress(OSError):
                while True:
                    await loop.sock_sendall(client, GET * 50)

        async def read_for_ever() -> None:
            with contextlib.suppress(OSError):
                while await loop.sock_recv(client, 1 << 16):
                    pass

        calling, reading = asyncio.create_task(call_for_ever()), asyncio.create_task(read_for_ever())
        while not server.connections:
            await turns(1)
        (connection,) = server.connections
        await server.stop(30)
        assert not server.connections
        assert connection.state is ConnectionState.CLOSED
        await reading
        calling.cancel()
        await asyncio.wait([calling])


@pytest.mark.parametrize("trouble", [NO_CHUNK, b"\0\0\0"])
async def test_trouble_behind_a_call_leaves_its_answer(trouble: bytes) -> None:
    """Garbage behind an undecided call ends the connection after the call's answer, and never replaces that answer."""
    async with talking() as talk:
        (await talk.decide(behind=trouble)).answer((200, TEXT, b"first"))
        answered = await talk.rest()
        assert answered.startswith(b"HTTP/1.1 200")
        assert (answered.count(b"HTTP/1.1"), b"connection: close" in answered) == (1, True)


@pytest.mark.parametrize("behind", [b"\0\0\0", b"GET / HTTP/1.1\r\n\r\n"])
async def test_trouble_behind_an_error_is_an_error_of_its_own(behind: bytes) -> None:
    """A long poll ends with an error, and the bytes behind it are parsed while Python handles that error."""
    async with talking() as talk:
        call = await talk.decide()
        await talk.send(behind)
        try:
            raise Overloaded("an error of the call before")
        except Overloaded:
            call.answer((503, TEXT, b"first"))
        answered = await talk.rest()
        assert (answered.count(b"HTTP/1.1 503"), answered.count(b"HTTP/1.1 400")) == (1, 1)


@pytest.mark.parametrize(
    ("slice_s", "line", "behind"),
    [(-1.0, "X: " + "x" * SLICE_BYTES, b""), (60.0, "Connection: close", GET), (60.0, "X: y", b"")],
    ids=["waited for its slice", "sent more behind its last call", "at once"],
)
async def test_a_client_that_leaves_during_a_decision_is_noticed(
    monkeypatch: pytest.MonkeyPatch, slice_s: float, line: str, behind: bytes
) -> None:
    """Otherwise clients that connect and reset would use up all long polls. No end of their bytes comes before."""
    monkeypatch.setattr(lanes, "SLICE_S", slice_s)
    async with talking() as talk:
        call = await talk.decide(line)
        call.left = lambda: talk.app.heard.append("poll left")
        await talk.send(behind)
        await lost(talk)
        await talk.until(ConnectionState.CLOSED)
        assert call.gone
        assert talk.app.heard == ["complete", "poll left"]


@pytest.mark.parametrize("slice_s", [-1.0, 60.0], ids=["waited", "at once"])
@pytest.mark.parametrize(
    ("last", "behind"), [("X: y", b""), ("Connection: close", b""), ("X: y", b"\0\0\0")], ids=["more", "last", "broken"]
)
async def test_a_flood_behind_a_call_stays_in_the_socket(monkeypatch: pytest.MonkeyPatch, slice_s: float, last: str, behind: bytes) -> None:
    """Reading resumes during the decision, to see whether the client leaves. It ends with the next bytes, also if none of them counts."""
    monkeypatch.setattr(lanes, "SLICE_S", slice_s)
    async with talking() as talk:
        call = await talk.decide(last, "X: " + "x" * SLICE_BYTES, behind=behind)
        flood = asyncio.create_task(asyncio.get_running_loop().sock_sendall(talk.client, b"\0" * len(LARGE) * 2))
        await turns(200)
        assert len(talk.connection._unparsed) <= 1 << 20
        assert bool(talk.connection._unparsed) is (not behind and last == "X: y"), "bytes behind the last call are dropped"
        assert not flood.done()
        flood.cancel()
        call.answer((200, TEXT, b"first"))
        await talk.until(ConnectionState.CLOSING, ConnectionState.CLOSED)


@pytest.mark.parametrize(
    ("last", "behind", "stops"),
    [("Connection: close", b"", ""), ("X: y", b"\0\0\0", ""), ("X: y", b"", "before"), ("X: y", b"", "after")],
    ids=["last", "broken", "stopped", "came before a stop"],
)
async def test_calls_behind_the_last_one_do_not_cut_its_answer(last: str, behind: bytes, stops: str) -> None:
    """A socket that is closed with unread bytes resets its connection, and drops the rest of the answer. Few bytes are read for that."""
    async with talking() as talk:
        call = await talk.decide(last, behind=behind)
        if stops == "before":
            talk.connection.stop()
        await talk.send_more()
        if stops == "after":  # the first of them is kept, and reading is paused since then
            talk.connection.stop()
            await turns(20)
        call.answer((200, TEXT, LARGE))
        assert len(await talk.rest()) > len(LARGE)


@pytest.mark.parametrize("early", [True, False])
async def test_calls_behind_a_last_answer_do_not_cut_it(early: bool) -> None:
    """They come with the last call, which is answered at once, or while its answer leaves."""
    async with talking() as talk:
        await talk.send(head("/large", "Connection: close") + CHUNKS_END + (head("/now", "X: " + "x" * SLICE_BYTES) * 60 if early else b""))
        await talk.send_more()
        assert len(await talk.rest()) > len(LARGE)
        assert len(talk.app.calls) == 1
        assert talk.connection.state is ConnectionState.CLOSING
        talk.client.close()
        await talk.until(ConnectionState.CLOSED)


@pytest.mark.parametrize(("path", "drips"), [("/now", False), ("/now", True), ("/large", False)])
async def test_a_client_that_does_not_close_its_half_is_not_waited_for(path: str, drips: bool) -> None:
    """Nothing is left to read for it but the end. Bytes that it sends meanwhile earn it no time, nor does a large last answer."""
    async with talking(settings=HttpSettings(goodbye_ms=20)) as talk:
        await talk.send(head(path, "Connection: close") + CHUNKS_END)
        assert await talk.rest()
        await turns()
        assert talk.connection.state is ConnectionState.CLOSING
        now_s = asyncio.get_running_loop().time()
        if drips:
            await talk.send_more()
        talk.connection.check(now_s)
        if drips:
            await talk.send(GET)
        talk.connection.check(now_s + 0.03)
        await turns()
        assert talk.connection.state >= ConnectionState.CLOSED


async def test_the_last_answer_to_a_client_that_has_closed_its_socket_is_dropped() -> None:
    """The kernel resets the connection as soon as the answer arrives, before this half is closed."""
    async with talking() as talk:
        call = await talk.decide("Connection: close")
        talk.client.close()
        call.answer((200, TEXT, b"done"))
        await talk.until(ConnectionState.CLOSED)


async def test_a_body_that_still_comes_when_the_server_stops_does_not_cut_its_answer() -> None:
    """The application has answered before the body was complete. Nothing of the answer waits in the transport any more."""
    async with talking() as talk:
        await talk.send(head("/large") + CHUNK)
        assert talk.connection.state is ConnectionState.ANSWERED
        read = 0
        while talk.connection.unread_bytes:
            read += len(await talk.read())
        talk.connection.stop()
        for _ in range(8):
            await talk.send(CHUNK)
        assert read + len(await talk.rest()) > len(LARGE)


async def test_a_half_close_does_not_cut_an_answer_that_leaves() -> None:
    """The transport closes itself, and does not have all of the answer yet."""
    async with talking() as talk:
        await talk.send(GET_LARGE)
        talk.client.shutdown(socket.SHUT_WR)
        await talk.until(ConnectionState.CLOSING)
        assert len(await talk.rest()) > len(LARGE)


async def test_calls_that_wait_at_a_stop_do_not_cut_the_answer_before_them() -> None:
    """That answer has left the transport, and its client still reads it. One call is kept, and the others are in the socket."""
    async with talking() as talk:
        await talk.send(GET_LARGE)
        read = 0
        while talk.connection.unread_bytes:
            read += len(await talk.read())
        talk.server.pause()
        await talk.send_more()
        assert talk.connection.state is ConnectionState.IDLE
        talk.connection.stop()
        assert read + len(await talk.rest()) > len(LARGE)


@pytest.mark.parametrize("at_once", [False, True])
async def test_calls_behind_a_replaced_long_poll_do_not_cut_its_answer(at_once: bool) -> None:
    """An acceptor process gets the answer from its worker, so it leaves some turns after the connection has given its place."""
    async with talking() as talk:
        call = await talk.decide()
        call.left = lambda: call.answer((200, TEXT, LARGE)) if at_once else None
        await talk.send_more()
        assert talk.connection.give_way(Overloaded("too many", 1))
        await turns(20)
        if not at_once:
            call.answer((200, TEXT, LARGE))
        assert len(await talk.rest()) > len(LARGE)


async def test_a_long_poll_whose_body_still_comes_ends_with_its_place() -> None:
    """Its answer could leave, but then the connection would wait for the rest of the body, and nobody counts it any more."""
    async with talking() as talk:
        await talk.send(head("/read") + CHUNK)
        poll = talk.app.calls[0]
        poll.left = lambda: poll.answer((200, TEXT, b"polled"))
        assert talk.connection.give_way(Overloaded("too many", 1))
        await turns()
        assert talk.connection.state is ConnectionState.CLOSED
        assert (await talk.read()).startswith(b"HTTP/1.1 503")


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("sent", [GET_LARGE, GET_LARGE + b"GET", LAST_LARGE], ids=["idle", "in a head", "last"])
async def test_a_replaced_connection_ends_soon_and_its_answer_is_not_cut(sent: bytes, reads: bool) -> None:
    """A client that reads it at once gets all of it. The server counts the connection no longer.

    Clients that read nothing would keep any number of descriptors.
    """
    async with talking() as talk:
        talk.connection._transport.set_write_buffer_limits(high=2 * len(LARGE))  # its client does not read too slowly yet
        await talk.send(sent)
        assert talk.connection.unread_bytes
        if not reads:
            talk.server.pause()
            talk.connection._in_lane = True  # no turn is needed to end it
        assert talk.connection.give_way(Overloaded("too many", 1))
        if reads:
            assert len(await talk.rest()) > len(LARGE)
            return
        talk.connection.check(asyncio.get_running_loop().time() + talk.server.settings.goodbye_s + 0.1)
        await turns()
        assert talk.connection.state is ConnectionState.CLOSED


async def test_a_flood_before_a_stop_is_read_no_further_after_it() -> None:
    """After the last answer the connection is read, for the few bytes of an honest client. A flood pauses it again."""
    async with talking() as talk:
        call = await talk.decide()
        flood = asyncio.create_task(asyncio.get_running_loop().sock_sendall(talk.client, b"\0" * len(LARGE) * 2))
        await turns(20)
        talk.connection.stop()
        await turns(20)
        assert talk.connection._dropped_bytes == 0
        call.answer((200, TEXT, b"first"))
        await turns(200)
        assert talk.connection.state is ConnectionState.CLOSING
        assert DROPPED_BYTES_MAX < talk.connection._dropped_bytes <= DROPPED_BYTES_MAX + (1 << 20)
        assert talk.connection._reading_paused
        assert not flood.done()
        flood.cancel()
        await talk.until(ConnectionState.CLOSED)


async def test_calls_behind_a_last_one_that_had_waited_do_not_cut_its_answer() -> None:
    """While the call before it is decided, reading is paused. It resumes with the last call, since no later byte counts."""
    async with talking() as talk:
        call = await talk.decide(behind=head("/last", "Connection: close") + CHUNKS_END)
        await talk.send_more()
        call.answer((200, TEXT, b"first"))
        await turns(20)
        assert [call.path for call in talk.app.calls] == ["/read", "/last"]
        talk.app.calls[1].answer((200, TEXT, LARGE))
        assert len(await talk.rest()) > len(LARGE)


async def test_a_bug_of_the_application_costs_one_call(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected exception is a 500 and a log line, also for a call that has waited for its slice, with a piece of its body."""
    monkeypatch.setattr(lanes, "SLICE_S", -1.0)
    pieces = 0
    piece = Connection.piece

    def counted(connection: Connection, call: Head, data: bytes) -> None:
        nonlocal pieces
        pieces += 1
        assert pieces < 100, "without end"
        piece(connection, call, data)

    monkeypatch.setattr(Connection, "piece", counted)
    async with talking() as talk:
        talk.connection._take = lambda call: 1 // 0  # type: ignore[assignment]
        await talk.send(head("/body") + CHUNK + CHUNKS_END)
        assert (await talk.read()).startswith(b"HTTP/1.1 500")
        assert pieces == 2
        assert "ZeroDivisionError" in caplog.text


# ---- bounds of its memory ----


@pytest.mark.parametrize("path", ["/read", "/reject", "/now"])
@pytest.mark.parametrize("line", [b"A: b\r\n", b"x"], ids=["many", "long"])
async def test_trailers_are_bounded(path: str, line: bytes) -> None:
    """Trailers behind a body have the limit of a head, for every result of the body: the connection ends, and nothing is kept."""
    async with talking() as talk:
        await talk.send(head(path) + CHUNK + b"0\r\nX: ")
        sent = 0
        while talk.connection.state < ConnectionState.CLOSING:
            with contextlib.suppress(OSError):
                await talk.send(line * (4096 // len(line)))
            sent += 4096
            assert sent < 4 * HEAD_BYTES_MAX
        assert "complete" not in talk.app.heard


@pytest.mark.parametrize("before", [0, 10_000], ids=["few chunks", "many small chunks"])
@pytest.mark.parametrize("path", ["/read", "/reject", "/now"])
async def test_chunk_extensions_are_bounded(path: str, before: int) -> None:
    """Extensions between the bytes of a body have the limit of a head. Earlier chunks that need less leave nothing for them."""
    async with talking() as talk:
        await talk.send(head(path))
        await talk.send(CHUNK * before)
        sent = 0
        while talk.connection.state < ConnectionState.CLOSING:
            with contextlib.suppress(OSError):
                await talk.send(b"1;" + b"e" * 3_000 + b"\r\nx\r\n")
            sent += 3_000
            assert sent < 2 * HEAD_BYTES_MAX


@pytest.mark.parametrize("line", [b"1\r\n", b"00000001\r\n", b"1;a=bcdefghi\r\n"], ids=["short", "padded", "extended"])
@pytest.mark.parametrize("size", [SLICE_BYTES, 7])
async def test_small_chunks_are_not_bounded(line: bytes, size: int) -> None:
    """A client may send each byte in a chunk of its own, and cut the chunks into any pieces."""
    async with talking() as talk:
        await talk.send(head("/read"))
        data = (line + b"x\r\n") * 5_000 + CHUNKS_END
        for at in range(0, len(data), size):
            talk.connection._parse(data[at : at + size])
        assert talk.app.heard == ["piece b'x'"] * 5_000 + ["complete"]


async def test_small_trailers_are_dropped() -> None:
    """Trailers become part of neither this call's head nor the next one's."""
    async with talking() as talk:
        await talk.send(head("/read") + CHUNK + b"0\r\nX: y\r\n\r\n")
        assert talk.app.heard == ["piece b'x'", "complete"]
        assert b"x" not in dict(talk.app.calls[0].headers)


async def test_trailers_of_each_call_are_counted_anew() -> None:
    """A connection may have any number of them."""
    async with talking() as talk:
        await talk.send((head("/now") + b"0\r\n" + b"X: y\r\n" * 100 + b"\r\n") * 3)
        assert (await talk.read()).count(b"HTTP/1.1 200") == 3


async def test_who_never_reads_is_closed() -> None:
    """A client that sends calls and never reads holds one answer, for a bounded time, and then its connection is closed."""
    async with talking(settings=HttpSettings(head_ms_max=200)) as talk:
        await talk.send(GET_LARGE * 100)
        assert len(talk.app.calls) == 1
        await talk.until(ConnectionState.CLOSED)
        assert len(talk.app.calls) == 1
        assert not talk.server.connections


async def test_a_turn_of_the_loop_has_few_answers() -> None:
    """Calls one behind the other are answered over many turns, also where the transport does not say that its client does not read."""
    async with talking() as talk:
        talk.connection._take = lambda call: call.answer((200, TEXT, LARGE[: 16 << 10]))
        written: list[bytes] = []
        talk.connection.pause_writing = lambda: None  # type: ignore[method-assign]
        talk.connection._writer._transport = SimpleNamespace(write=written.append)  # type: ignore[assignment]
        talk.connection.data_received(GET * 200)
        assert sum(map(len, written)) <= TURN_BYTES_MAX + (17 << 10)
        await until(lambda: len(written) >= 200, 0.001)


@pytest.mark.parametrize("more", [False, True])
async def test_who_reads_slowly_has_more_time(*, more: bool) -> None:
    """At the deadline, a client that has read a good part of its answers gets the same time again; another one is closed.

    An answer that is written meanwhile does not change what the client has read.
    """
    async with talking() as talk:
        talk.connection._transport.set_write_buffer_limits(high=2 * len(LARGE))  # the next call begins
        await talk.send(GET_LARGE + head("/read") + CHUNKS_END)
        await talk.until(ConnectionState.DECIDING)
        talk.connection._transport.set_write_buffer_limits()
        unread = talk.connection.unread_bytes
        while talk.connection.unread_bytes > unread - READ_BYTES_MIN:  # the kernel may have had half of the answer already
            await talk.read()
        if more:
            talk.app.calls[1].answer((200, TEXT, LARGE))
        await late(talk)
        assert not talk.connection._transport.is_closing()
        await late(talk)
        await talk.until(ConnectionState.CLOSED)


def test_a_few_bytes_earn_no_more_time() -> None:
    """Otherwise a client that reads a byte at each deadline would keep its answers in memory for ever."""
    unread = 1 << 20
    transport: Any = SimpleNamespace(get_write_buffer_size=lambda: unread)
    writer = ResponseWriter(transport)
    writer.wait_for_client(0.0)
    unread -= READ_BYTES_MIN - 1
    assert not writer.has_progress()
    unread -= 1
    assert writer.has_progress()


def test_an_answer_has_the_present_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is made once a second. Caches compute the age of an answer from it (RFC 9111, 4.2.3)."""
    for now_s, date in ((0.9, b"00:00:00"), (1.0, b"00:00:01"), (1.9, b"00:00:01"), (2.0, b"00:00:02")):
        monkeypatch.setattr(writing, "time", lambda now_s=now_s: now_s)
        assert b"\r\ndate: Thu, 01 Jan 1970 %s GMT\r\n" % date in encoded((200, TEXT, b""), keep_alive=True)


async def test_a_connection_that_waits_for_its_turn_is_not_late() -> None:
    """Bytes that have come and are not read yet cost their client no deadline; once they are read, the deadline holds again."""
    async with talking() as talk:
        await talk.send(GET[:-2])
        talk.connection._in_lane = True
        talk.connection.check(float("inf"))
        assert talk.connection.state is ConnectionState.HEAD
        talk.connection.read()
        talk.connection.check(float("inf"))
        assert talk.connection.state >= ConnectionState.CLOSING


async def test_a_client_that_waits_for_its_turn_at_every_byte_is_late_all_the_same() -> None:
    """The time in which it waits for its turn is added to its deadline, and no more than that: slow heads come to an end."""
    async with talking() as talk:
        await talk.send(GET[:-2])
        talk.connection._deadline_s = talk.connection._loop.time() - 1.0
        talk.connection._in_lane = True
        talk.connection.read(2.0)
        assert talk.connection.state is ConnectionState.HEAD
        talk.connection._in_lane = True
        talk.connection._deadline_s -= 2.0
        talk.connection.read(0.1)
        assert talk.connection.state >= ConnectionState.CLOSING


async def test_a_call_that_breaks_behind_its_slice_of_time_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slice ends with the head, so the call waits for the next one, and its body breaks before that."""
    monkeypatch.setattr(lanes, "SLICE_S", -1.0)
    async with talking() as talk:
        await talk.send(head("/body") + CHUNK + NO_CHUNK)
        assert (await talk.read()).startswith(b"HTTP/1.1 400 ")
        assert await talk.read() == b""
        assert not talk.app.calls


async def test_connections_of_one_address_are_bounded() -> None:
    """Connections of one address are limited, those of others are not; when one ends, another is accepted."""
    app = Scripted()
    async with served(app, settings=HttpSettings(connections_per_address_max=2)) as server:
        loop = asyncio.get_running_loop()
        with await connected(server) as first, await connected(server) as second, await connected(server) as third:
            assert b"overloaded" in await loop.sock_recv(third, 1 << 16)
            with await connected(server, "127.0.0.2") as other:
                for client in (first, second, other):
                    await loop.sock_sendall(client, GET)
                    assert (await loop.sock_recv(client, 1 << 16)).startswith(b"HTTP/1.1 200")
        while server.connections:
            await turns(1)
        assert not server.places._addresses
        with await connected(server) as again:
            await loop.sock_sendall(again, GET)
            assert (await loop.sock_recv(again, 1 << 16)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("behind", [GET, GET.replace(b"/now", b"/slow") + head("/body")], ids=["now", "decided later"])
async def test_complete_calls_before_malformed_bytes_are_answered(monkeypatch: pytest.MonkeyPatch, behind: bytes) -> None:
    """Their answers leave in order, and then the error (RFC 9112, 9.3.2 and 2.2), also if the slice of time ends before them."""
    monkeypatch.setattr(lanes, "SLICE_S", -1.0)
    async with talking() as talk:
        await talk.send(GET + behind + NO_CHUNK + b"\r\n\r\n")
        if talk.app.calls[-1].path == "/slow":
            talk.app.calls[-1].answer((200, TEXT, b"decided"))
        answers = await talk.rest()
        assert [answers.count(status) for status in (b"HTTP/1.1 200", b"HTTP/1.1 400")] == [2, 1]
        assert answers.rindex(b"HTTP/1.1 400") > answers.rindex(b"HTTP/1.1 200")


@pytest.mark.parametrize(("slice_s", "size"), [(60.0, 40 << 10), (-1.0, 1)], ids=["large", "small"])
async def test_calls_that_wait_for_their_turn_are_answered_after_a_half_close(
    monkeypatch: pytest.MonkeyPatch, slice_s: float, size: int
) -> None:
    """A client sends many calls in one packet, and closes its half. A turn of the loop has few of their answers."""
    monkeypatch.setattr(lanes, "SLICE_S", slice_s)
    async with talking() as talk:
        talk.connection._take = lambda call: call.answer((200, TEXT, b"x" * size))
        await asyncio.get_running_loop().sock_sendall(talk.client, GET * 100)
        talk.client.shutdown(socket.SHUT_WR)
        assert (await talk.rest()).count(b"HTTP/1.1 200") == 100


async def test_a_client_that_closes_within_a_body_behind_a_call_has_left() -> None:
    """The rest of that body cannot come any more: its bytes are released when the first call has its answer."""
    async with talking() as talk:
        call = await talk.decide(behind=head("/later") + CHUNK)
        talk.client.shutdown(socket.SHUT_WR)
        await turns()
        call.answer((200, TEXT, b"first"))
        await turns()
        assert talk.app.heard == ["complete", "piece b'x'", "left"]
        assert talk.connection.state >= ConnectionState.CLOSING


@pytest.mark.parametrize("path", ["/read", "/now"], ids=["body", "skipped-body"])
async def test_the_waits_of_one_body_are_not_those_of_the_next_call(path: str) -> None:
    """The gate rejects a submission that has waited too long to be read."""
    async with talking() as talk:
        await talk.send(head(path) + CHUNK)
        talk.connection._in_lane = True
        talk.connection.read(2.0)
        await talk.send(CHUNKS_END)
        if path == "/read":
            talk.app.calls[0].answer((200, TEXT, b"first"))
        await talk.send(head("/read"))
        while len(talk.app.calls) < 2:
            await turns(1)
        assert talk.app.calls[1].waited_s == 0.0


@pytest.mark.parametrize("before", [b"", GET, b"\r\n"], ids=["nothing", "a call", "a blank line"])
async def test_a_connection_without_a_head_ends_without_an_answer(before: bytes) -> None:
    """An answer could be taken for the answer to the call that is on its way."""
    async with talking() as talk:
        await talk.send(before)
        if before == GET:
            await talk.read()
        await late(talk)
        assert await talk.read() == b""


async def test_a_rejection_is_the_last_answer_of_a_server_that_stops() -> None:
    """As any other answer: the client must not use the connection again."""
    async with talking() as talk:
        await talk.send(head("/reject") + CHUNK)
        talk.server.ends = True
        await talk.send(CHUNKS_END)
        assert b"connection: close" in await talk.read()
        assert talk.connection.state >= ConnectionState.CLOSING


async def test_a_client_is_not_late_while_the_server_does_not_read() -> None:
    """An acceptor process whose worker reads too slowly reads nothing; a part may still be in the kernel when it goes on."""
    async with talking() as talk:
        loop = asyncio.get_running_loop()
        await talk.send(head("/body") + CHUNK)
        talk.server.pause()
        await talk.send(CHUNK)
        await talk.send(CHUNKS_END)
        talk.connection.check(loop.time() + 3600)
        talk.server._paused_since_s -= 3600
        talk.server.go_on()
        talk.connection.check(loop.time() + 3600)
        assert "late" not in talk.app.heard
        await turns()
        assert talk.app.heard[-1] == "complete"


async def test_a_call_that_waits_for_its_turn_learns_that_its_connection_is_replaced() -> None:
    """The connection was idle before. A connection that ends without a word might have lost an answer."""
    async with talking() as talk:
        await talk.send(GET)
        assert (await talk.read()).startswith(b"HTTP/1.1 200")
        talk.server.pause()
        await talk.send(GET)
        assert talk.connection.state is ConnectionState.IDLE
        assert talk.connection.give_way(Overloaded("too many", 1))
        assert b"retry-after: 1" in await talk.read()


async def test_a_connection_that_gives_its_place_drops_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that wait for their turn would otherwise be served on a connection that nobody counts."""
    monkeypatch.setattr(lanes.ClientLanes, "wait", lambda self, client, do, size=0, begun=False: None)
    monkeypatch.setattr(lanes, "SLICE_S", -1.0)
    async with talking() as talk:
        await talk.send(GET + GET)
        assert talk.connection._behind
        assert talk.connection.give_way(Overloaded("too many", 1))
        assert (await talk.read()).startswith(b"HTTP/1.1 503")
        assert await talk.read() == b""
        assert not talk.app.calls


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (b"GET /now HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /now HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 "),
        (b"POST /now HTTP/1.0\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n", b"HTTP/1.1 200 "),
    ],
    ids=["no host in 1.1", "no host in 1.0", "1.0 expects nothing"],
)
async def test_the_version_decides_about_host_and_expect(call: bytes, answer: bytes) -> None:
    """HTTP/1.1 needs a Host (RFC 9112, 3.2); an Expect of HTTP/1.0 is ignored (RFC 9110, 10.1.1), and its connection ends."""
    async with talking() as talk:
        await talk.send(call)
        await eof(talk)
        answered = await talk.rest()
        assert answered.startswith(answer)
        assert b"connection: close" in answered


@pytest.mark.parametrize("version", [b"0.9", b"2.0"])
async def test_other_versions_of_http_are_rejected(version: bytes) -> None:
    """A call that names another version than 1.0 or 1.1 gets a 400 with that version, and the connection ends."""
    async with talking() as talk:
        await talk.send(b"GET /now HTTP/" + version + b"\r\nHost: x\r\n\r\n")
        answer = await talk.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"HTTP/" + version + b" is not supported: send HTTP/1.1" in answer
        assert await talk.read() == b""
        assert not talk.app.calls


async def test_an_offer_of_another_protocol_does_not_hide_what_is_wrong() -> None:
    """The head is parsed again without the offer, and its error is as plain as without one."""
    async with talking() as talk:
        await talk.send(b"GET /now HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert b"the request has 2 Host headers" in await talk.read()


async def test_all_unread_answers_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of the address with the most unread bytes end, and those of parties last."""
    monkeypatch.setattr(server_module, "UNREAD_BYTES_MAX", 3 * len(LARGE) // 2)
    app, loop = Scripted(), asyncio.get_running_loop()
    async with served(app) as server:
        with await connected(server) as party, await connected(server) as stranger, await connected(server) as reader:
            for client in (party, stranger):
                await loop.sock_sendall(client, GET_LARGE)
                await turns()
                app.calls[-1].parties.update({b"O=Known"} if client is party else ())
            await loop.sock_sendall(reader, GET)
            assert b"200 OK" in await loop.sock_recv(reader, 1 << 16)
            assert sum(connection.unread_bytes for connection in server.connections) > server_module.UNREAD_BYTES_MAX
            server._check()
            await turns()
            assert {frozenset(connection.parties) for connection in server.connections} == {frozenset({b"O=Known"}), frozenset()}
            assert len(server.connections) == 2


def _with_a_wide_tail(talk: Talk) -> None:
    """The transport reports early that the client has read enough. The default is 16 KiB, which loopback may skip in one step."""
    talk.connection._transport.set_write_buffer_limits(high=9 << 20, low=8 << 20)


async def _tail_is_sent(talk: Talk, seconds: float) -> None:
    assert talk.connection.state is ConnectionState.CLOSING
    assert talk.connection._writer.waits_for_client
    now_s = asyncio.get_running_loop().time()
    # The client reads steadily, far faster than READ_BYTES_MIN in each head_s, and reaches the tail after `seconds`.
    talk.connection._deadline_s -= seconds
    read = 0
    while talk.connection._must_wait():  # until the transport reports that the client has read enough
        read += len(await talk.read())
        await asyncio.sleep(0)
    assert talk.connection.unread_bytes, "the tail waits in the transport"
    talk.connection.check(now_s + 0.1)
    read += len(await talk.rest())
    assert read > len(LARGE), f"{len(LARGE) - read} bytes of the answer are cut"


async def test_the_answer_of_a_replaced_long_poll_is_not_cut_at_its_tail() -> None:
    """It gives its place, and its large answer leaves. The client reads it within 2 s, which `head_s` allowed before."""
    async with talking(settings=HttpSettings(keep_alive_ms=100_000)) as talk:
        _with_a_wide_tail(talk)

        def take(call: Call) -> None:
            call.left = lambda: call.answer((200, TEXT, LARGE))

        talk.connection._take = take
        await talk.send(GET)
        assert talk.connection.give_way(Overloaded("too many", 1))
        await _tail_is_sent(talk, 2.0)


@pytest.mark.parametrize(("sent", "stops", "seconds"), [(LAST_LARGE, False, 11.0), (GET_LARGE, True, 2.0)], ids=["last", "stopped"])
async def test_a_last_answer_is_not_cut_at_its_tail(sent: bytes, stops: bool, seconds: float) -> None:
    """A client that reads steadily gets a large last answer, also if that takes more than `head_s`, or if the server stops meanwhile."""
    async with talking() as talk:
        _with_a_wide_tail(talk)
        await talk.send(sent)
        if stops:
            assert talk.connection.state is ConnectionState.IDLE
            talk.connection.stop()
        await _tail_is_sent(talk, seconds)
