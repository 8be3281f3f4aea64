"""The application of an acceptor process (`AcceptorApp`), on a link whose other end is the test."""

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
import pytest

from notary.acceptor import __main__ as process
from notary.acceptor.app import AcceptorApp
from notary.acceptor.link import Link
from notary.acceptor.messages import (
    AcceptorSettings,
    AdmissionState,
    AnswerCounts,
    Answered,
    ClientLeft,
    Down,
    End,
    HandshakesFailed,
    LookupCall,
    Serving,
    Submitted,
    Up,
)
from notary.bodies import Lanes, Payer
from notary.http.call import TEXT, Answer, Call
from notary.http.lanes import ClientKey
from notary.http.lifecycle import BUG
from notary.http.listener import bind
from notary.http.machine import ConnectionState
from notary.http.server import Server
from notary.http.settings import HttpSettings
from notary.parties import Parties
from notary.tickets import Tickets
from notary.worker import Environment
from tests.clients.load import until
from tests.notary.acceptor.test_link import linked
from tests.notary.http.checked_client import post_head
from tests.notary.party import NOTARY, Bank, fresh_hash, spend
from tests.notary.process import NotaryDirectory


class LinkedAcceptor:
    """An acceptor process's application behind a server, with the test in the worker's place."""

    def __init__(self, directory: NotaryDirectory, bank: Bank) -> None:
        self._parties = Parties(directory.path / "parties.json")
        self.body = bank.body(*(spend() for _ in range(500)))
        self.link: Link[Down, Up]
        self.worker: socket.socket
        self.server: Server
        self.app: AcceptorApp

    @asynccontextmanager
    async def running(self, reads: Literal["open", "parties"] = "open") -> AsyncIterator[None]:
        """Link it to the test, and serve."""
        settings = AcceptorSettings("w/1", NOTARY, "", HttpSettings(reads=reads), 64 << 20, "warning", log_json=False)
        async with linked(Down, lambda message: self.app.handle_message(message)) as (self.link, self.worker):
            self.app = AcceptorApp(settings, self._parties, self.link)
            self.server = Server(self.app, bind("127.0.0.1", 0))
            self.link.pause, self.link.go_on = self.server.pause, self.server.go_on
            await self.server.start()
            try:
                yield
            finally:
                await self.server.stop(0.1)

    async def sent(self, size: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a submission, or that many bytes of it, on a new connection. Returns the connection."""
        host, _, port = self.server.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(post_head(len(self.body)) + self.body[:size])
        return reader, writer

    async def received(self, enough: Callable[[list[Up]], bool]) -> list[Up]:
        """Returns the messages that the worker got, once they are enough."""
        data = b""
        async with asyncio.timeout(30):
            while not enough(messages := _messages(data)):
                data += await asyncio.get_running_loop().sock_recv(self.worker, 1 << 20)
        return messages

    async def handed_over(self) -> Payer:
        """Wait until the worker has a submission. Returns the client that it counts for."""
        [message] = [each for each in await self.received(lambda messages: _submitted(messages) > 0) if isinstance(each, Submitted)]
        return message.payer

    async def worker_sends(self, message: Down) -> None:
        """Send a message of the worker."""
        await asyncio.get_running_loop().sock_sendall(self.worker, framed(message))

    async def post(self) -> int:
        """Make one call. Returns its status."""
        reader, writer = await self.sent()
        try:
            return int((await reader.readline()).split()[1])
        finally:
            writer.close()


@pytest.fixture
def acceptor(own_directory: NotaryDirectory, bank: Bank) -> LinkedAcceptor:
    """An acceptor process's application that knows the bank."""
    return LinkedAcceptor(own_directory, bank)


def framed(message: Down) -> bytes:
    """Returns the bytes of a message on the link."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(4, "little") + data


async def ended(calls: list[asyncio.Task[int]]) -> None:
    """End calls without an answer."""
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_it_reads_no_bodies_while_its_worker_takes_no_calls(acceptor: LinkedAcceptor, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its worker accepts no calls the acceptor process reads no bodies; when the worker reads again, all of them arrive."""
    for limit in ("DECODING_WAIT_S", "CONNECTION_WAIT_S_MAX"):  # on a slow machine none is rejected either
        monkeypatch.setattr(f"notary.gate.{limit}", 600.0)
    loop = asyncio.get_running_loop()
    async with acceptor.running():
        calls = []
        while not acceptor.server.paused:
            calls.append(loop.create_task(acceptor.post()))
            await asyncio.sleep(0.005)
        calls += [loop.create_task(acceptor.post()) for _ in range(5)]
        await until(lambda: sum(connection.state is ConnectionState.HEAD for connection in acceptor.server.connections) >= 5)
        assert acceptor.server.paused
        await acceptor.received(lambda messages: _submitted(messages) >= len(calls))
        await ended(calls)


async def test_a_burst_does_not_delay_the_messages_of_its_worker(acceptor: LinkedAcceptor) -> None:
    """In a burst the first submissions are handed over; when the worker's queue is full, the others are not even checked."""
    loop = asyncio.get_running_loop()
    async with acceptor.running():
        calls = [loop.create_task(acceptor.post()) for _ in range(100)]
        handed = await loop.sock_recv(acceptor.worker, 4)
        await acceptor.worker_sends(AdmissionState((503, TEXT, b"full")))
        while (submitted := _submitted(_messages(handed))) + sum(call.done() for call in calls) < len(calls):
            with contextlib.suppress(TimeoutError):
                handed += await asyncio.wait_for(loop.sock_recv(acceptor.worker, 1 << 20), 0.05)
        assert {call.result() for call in calls if call.done()} == {503}
        assert submitted > 0
        await ended(calls)


@pytest.mark.parametrize("party", ["", "O=Bank"])
async def test_a_connection_is_a_partys_once_the_worker_says_so(
    acceptor: LinkedAcceptor, party: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A valid signature is not enough, since anyone may send a copy: the worker knows if the submission is new. Then the party pays."""
    charged: list[tuple[bytes, int]] = []
    monkeypatch.setattr(Lanes, "charge", lambda lanes, party, size_bytes: charged.append((party, size_bytes)))
    async with acceptor.running():
        reader, writer = await acceptor.sent()
        assert await acceptor.handed_over() == Payer("127.0.0.1", False)
        (connection,) = acceptor.server.connections
        assert not connection.parties
        await acceptor.worker_sends(Answered(1, (200, TEXT, b""), party))
        assert (await reader.readline()).split()[1] == b"200"
        assert connection.parties == ({party.encode()} if party else set())
        assert not acceptor.app._submitted
        assert [name for name, _ in charged] == ([party.encode()] if party else [])
        assert all(0.9 * len(acceptor.body) < size_bytes <= len(acceptor.body) for _, size_bytes in charged)
        writer.write(post_head(len(acceptor.body)) + acceptor.body)
        assert await acceptor.handed_over() == (Payer(party) if party else Payer("127.0.0.1", False))
        writer.close()


async def test_a_ticket_of_a_process_is_valid_at_its_worker_on_a_machine_that_was_suspended(
    acceptor: LinkedAcceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read one clock. Their times would differ for ever by the time of the suspension, and no ticket be valid."""
    monkeypatch.setattr(time, "clock_gettime", lambda clock: 1e6)
    async with acceptor.running():
        given, worker = acceptor.app._tickets, Tickets(b"k" * 32, Environment().now_s)
        given.key = worker.key
        assert worker.counts(given.give(0))


async def test_the_head_of_a_client_that_leaves_is_freed_with_the_workers_answer(acceptor: LinkedAcceptor) -> None:
    """The worker learns that the client has left. Its answer, which nobody gets, also shows whether the party pays for the submission."""
    async with acceptor.running():
        _, writer = await acceptor.sent()
        await acceptor.handed_over()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        writer.transport.abort()
        await acceptor.received(lambda messages: ClientLeft(1) in messages)
        await acceptor.worker_sends(Answered(1, (202, TEXT, b"")))
        await until(lambda: not acceptor.app._calls)


async def test_the_worker_learns_of_a_client_that_left_before_its_call_was_handed_over(acceptor: LinkedAcceptor) -> None:
    """A submission may wait for its turn while its client leaves. The end of the connection was reported before the call had a number."""
    async with acceptor.running():
        call = Call("GET", "/livez", b"", [], lambda *_: None)
        call.leave()
        acceptor.app.take(call)
        await acceptor.received(lambda messages: ClientLeft(1) in messages)


async def test_incomplete_bodies_are_rejected_when_the_worker_ends(acceptor: LinkedAcceptor) -> None:
    """A client that sends its body slowly does not hold up the end of the process."""
    async with acceptor.running():
        reader, writer = await acceptor.sent(100)
        await until(lambda: bool(acceptor.app.gate._bodies))
        acceptor.app.handle_message(AdmissionState((503, TEXT, b"shutting down"), ends=True))
        assert (await asyncio.wait_for(reader.readline(), 30)).split()[1] == b"503"
        writer.close()


async def test_a_used_ticket_opens_no_full_process(acceptor: LinkedAcceptor) -> None:
    """The worker's answer to a new submission uses its ticket up here too: another body with it is not read."""
    async with acceptor.running():
        tickets = acceptor.app._tickets
        tickets.key = b"k" * 32
        ticket = tickets.give(0, "O=Bank")
        acceptor.app._calls[1] = Call("POST", "/v1/submissions", b"", [(b"ticket", ticket)], lambda *_: None)
        assert tickets.counts(ticket)
        await acceptor.worker_sends(Answered(1, (200, TEXT, b""), "O=Bank"))
        await until(lambda: not acceptor.app._calls)
        assert not tickets.counts(ticket)


async def test_a_rejected_read_is_counted(acceptor: LinkedAcceptor) -> None:
    """A read without a party's signature is not handed over. The worker counts it by its route, each time."""
    answers: list[Answer] = []
    async with acceptor.running(reads="parties"):
        for _ in range(2):
            acceptor.app.take(Call("GET", f"/v1/states/{fresh_hash()}:0", b"", [], lambda call, answer, after_body: answers.append(answer)))
            assert await acceptor.received(bool) == [AnswerCounts("/v1/states/", 401, 1, ())]
    assert [status for status, _, _ in answers] == [401, 401]


async def test_a_bug_costs_one_call(acceptor: LinkedAcceptor, caplog: pytest.LogCaptureFixture) -> None:
    """Its client gets a 500, the log has the reason, and the worker counts the answer."""
    answers: list[Answer] = []
    async with acceptor.running():
        call = Call("POST", "/v1/submissions", b"", [], lambda call, answer, after_body: answers.append(answer))
        acceptor.app.rejected(call, KeyError("a bug"), time.perf_counter())
        [(key, [seconds])] = acceptor.app._answered.items()
        assert await acceptor.received(bool) == [AnswerCounts(*key, 1, (seconds,))]
    assert (answers, key) == ([BUG], ("/v1/submissions", 500))
    [record] = [record for record in caplog.records if record.name == "notary.acceptor"]
    assert (record.levelname, record.getMessage()) == ("ERROR", "a call could not be answered")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


async def test_bodies_are_decoded_at_once_when_the_worker_has_answered(acceptor: LinkedAcceptor) -> None:
    """While its answers are behind the process decodes nothing. The message that they are not ends the wait."""
    async with acceptor.running():
        acceptor.app.handle_message(AdmissionState(None, behind=True))
        _, writer = await acceptor.sent()
        gate = acceptor.app.gate
        await until(lambda: bool(gate._is_paused), 0.001)
        later = gate._next
        assert later is not None
        acceptor.app.handle_message(AdmissionState(None))
        assert later.cancelled()
        await acceptor.handed_over()
        writer.close()


# ---- the process around the application ----


class RunningProcess:
    """The code of an acceptor process, run in this process; the test has the worker's end of its link."""

    def __init__(self, settings: AcceptorSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exit_codes: list[int] = []
        self.server: Server
        self.worker, theirs = socket.socketpair()
        self.worker.setblocking(False)
        self.listening = socket.socket()  # without SO_REUSEADDR, as after a process that could not serve
        self.listening.bind(("127.0.0.1", 0))
        monkeypatch.setattr(os, "_exit", self.exit_codes.append)
        monkeypatch.setattr(process, "Server", self._made)
        self.running = asyncio.create_task(process.run(settings, self.listening, theirs))

    def _made(self, *arguments: Any, **options: Any) -> Server:
        self.server = Server(*arguments, **options)
        return self.server

    async def receive(self) -> bytes:
        """Returns bytes that the worker gets; empty at the end."""
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.worker, 1 << 20), 30)


@pytest.fixture
async def running(own_directory: NotaryDirectory, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningProcess]:
    """A process that serves."""
    file, http = str(own_directory.path / "parties.json"), HttpSettings(connections_max=7)
    running = RunningProcess(AcceptorSettings("w/1", NOTARY, file, http, 64 << 20, "warning", log_json=False), monkeypatch)
    assert _messages(await running.receive()) == [Serving()]
    yield running
    running.worker.close()
    running.running.cancel()
    await asyncio.gather(running.running, return_exceptions=True)
    if not running.server.ends:
        await running.server.stop(0.0)


async def test_a_process_reads_no_calls_while_its_link_is_full(running: RunningProcess) -> None:
    """Its memory does not grow while the worker is slow. Its server has its limits and weights, and reads backlogged clients last."""
    app, server = running.server.application, running.server
    assert isinstance(app, AcceptorApp)
    assert server.settings.connections_max == 7
    assert server.places.weight_of == app.gate.weight_of
    assert running.listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    async with asyncio.timeout(30):
        while not server.paused:
            app._link.send(LookupCall(1, "GET", "/" + "x" * 100_000, b"", "", may_read=False))
            await asyncio.sleep(0)
        while running.server.paused:
            await running.receive()
    app.gate.is_backlogged = lambda network, parties: network == "192.0.2.1"  # type: ignore[method-assign]
    assert [server.lanes.is_backlogged(ClientKey(network)) for network in ("192.0.2.1", "192.0.2.2")] == [True, False]


async def test_a_process_shares_its_time_among_the_parties_whose_submissions_wait(running: RunningProcess, bank: Bank) -> None:
    """From its hand-over to its answer a submission counts for its party, however the worker answers, and strangers have active slices."""
    app, server = running.server.application, running.server
    assert isinstance(app, AcceptorApp)
    assert server.duty is app.duty
    lanes = (bank.name.encode(), b"O=Other")
    for party in (bank.name, ""):
        body = bank.body(spend())
        reader, writer = await asyncio.open_connection(*running.listening.getsockname())
        writer.write(post_head(len(body)) + body)
        [message] = _messages(await running.receive())
        assert isinstance(message, Submitted)
        assert [server.lanes.part_of(lane) for lane in lanes] == [1.0, 0.5]
        assert app.duty._is_busy()
        await asyncio.get_running_loop().sock_sendall(running.worker, framed(Answered(message.number, (200, TEXT, b""), party)))
        assert (await reader.readline()).split()[1] == b"200"
        assert [server.lanes.part_of(lane) for lane in lanes] == [1.0, 1.0]
        assert (app.duty._is_busy(), app._submitted) == (False, {})
        writer.close()


async def test_a_process_reports_its_last_counts_and_ends(running: RunningProcess) -> None:
    """The worker asks it to end, and knows all its answers then."""
    assert isinstance(running.server.application, AcceptorApp)
    running.server.application.handshake_failed()
    await asyncio.get_running_loop().sock_sendall(running.worker, framed(End(0.1)))
    received = b""
    while data := await running.receive():
        received += data
    assert _messages(received) == [HandshakesFailed(1)]
    running.worker.close()
    await until(lambda: bool(running.exit_codes), 0.001)
    assert running.exit_codes == [0]


async def test_a_process_without_its_worker_ends_at_once(running: RunningProcess) -> None:
    """It cannot answer. The exit code shows that nobody asked it to end."""
    running.worker.close()
    await until(lambda: bool(running.exit_codes), 0.001)
    assert running.exit_codes == [1]


def _submitted(messages: list[Up]) -> int:
    return sum(isinstance(message, Submitted) for message in messages)


def _messages(data: bytes) -> list[Up]:
    """Returns the complete messages."""
    messages: list[Up] = []
    while len(data) >= 4 and len(data) >= 4 + (size := int.from_bytes(data[:4], "little")):
        messages.append(msgspec.msgpack.decode(data[4 : 4 + size], type=Up))
        data = data[4 + size :]
    return messages
