"""Acceptor processes: a process's death, the counted answers, and overload. `tests/notary/http` runs through them too."""

import asyncio
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from loadtest.rig.machine import family
from notary.acceptor import AcceptorPool
from notary.acceptor.link import Link
from notary.acceptor.messages import AcceptorSettings, AdmissionState, Answered
from notary.acceptor.pool import PINGS_MAX, START_PINGS_MAX, _Process
from notary.config import load
from notary.http.app import App
from notary.http.listener import bind
from ordering.errors import ConfigurationError, Fatal, FatalCode
from tests.clients.load import until
from tests.notary.http.checked_client import JSON, CheckedClient, Wire, post_head
from tests.notary.http.test_app import NOT_JSON, serving
from tests.notary.party import Bank, fresh_hash, spend, transaction_id
from tests.notary.process import NotaryDirectory, NotaryProcess, is_running, wait_until

pytestmark = pytest.mark.seconds


Start = Callable[..., NotaryProcess]


def acceptors_of(process: NotaryProcess) -> list[int]:
    """Returns the processes that a worker has started."""
    return family([process.process.pid])[1:]


def answers_of(wires: list[Wire]) -> list[tuple[int, Any]]:
    """Returns (status, body) of each; status 0 where the connection ended without an answer."""
    answers = []
    for wire in wires:
        with wire:
            try:
                status, _, body = wire.answer()
            except ConnectionResetError:
                answers.append((0, None))
            else:
                answers.append((status, json.loads(body)))
    return answers


def listening_on(url: str) -> int:
    """Returns the number of sockets that listen on the port of a URL."""
    port = f":{int(url.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] == "0A" for row in rows)


def pool_of(directory: NotaryDirectory, processes: int, settings: Mapping[str, int] | None = None) -> AcceptorPool:
    """Returns that many acceptor processes, which are not started yet."""
    given = {"worker.name": "w", "http.listen": "127.0.0.1:0", "http.acceptor_processes": processes, **(settings or {})}
    return AcceptorPool(load(directory.config, given, {}), App(), log_level="warning", log_json=False)


# ---- start and death ----


def test_a_process_killed_under_calls_is_started_again(own_directory: NotaryDirectory, bank: Bank, notary_process: Start) -> None:
    """kill -9 ends the calls on its connections and no others. Acknowledged decisions stay, and soon all clients can connect again."""
    process = notary_process(own_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": 2})
    killed, other = acceptors_of(process)
    submissions = [[spend() for _ in range(20)] for _ in range(24)]
    wires = [Wire(process.url) for _ in submissions]
    for wire, requests in zip(wires, submissions, strict=True):
        body = bank.body(*requests)
        wire.send(post_head(len(body)) + body)
    first = answers_of(wires[:1])
    os.kill(killed, signal.SIGKILL)
    answers = first + answers_of(wires[1:])
    assert {status for status, _ in answers} <= {200, 0}
    wait_until(lambda: len(acceptors_of(process)) == 2 and killed not in acceptors_of(process))
    assert other in acceptors_of(process)
    # More connections than chance would give to one process alone.
    for requests, (status, returned) in list(zip(submissions, answers, strict=True)):
        with CheckedClient(process.url) as client:
            found = client.decide(bank, *requests)
        if status == 200:
            for decision in returned["decisions"]:
                del decision["receipt"]
            assert found == returned["decisions"]
    assert f"acceptor process {process.name}/" in process.stderr()
    assert "ended with -9, starting it again" in process.stderr()
    assert process.stop() == 0


def test_when_the_worker_is_killed_all_end_and_the_port_is_free(own_directory: NotaryDirectory, bank: Bank, notary_process: Start) -> None:
    """After a worker is killed its connections end, and the next worker gets the port and has every decision."""
    process = notary_process(own_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": 2})
    processes = acceptors_of(process)
    request = spend()
    with CheckedClient(process.url) as client, Wire(process.url) as idle:
        decisions = client.decide(bank, request)
        process.kill()
        assert idle.is_closed()
    wait_until(lambda: not any(is_running(pid) for pid in processes))
    process = notary_process(own_directory.config, listen=process.url.removeprefix("http://"))
    with CheckedClient(process.url) as client:
        assert client.decide(bank, request) == decisions
    assert process.stop() == 0


async def test_one_that_cannot_serve_stops_the_start(own_directory: NotaryDirectory, capfd: pytest.CaptureFixture[str]) -> None:
    """A process that ends before it serves is an error of the start, which names the process; its own log line has the reason."""
    pool, parties = pool_of(own_directory, 1), own_directory.path / "parties.json"
    parties.unlink()
    with pytest.raises(Fatal) as raised:
        await pool.start()
    assert raised.value.code is FatalCode.ACCEPTOR_ENDED
    await pool.stop(1)
    assert str(parties) in capfd.readouterr().err


async def test_one_that_hangs_stops_the_start(own_directory: NotaryDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parties file on a network disk that does not answer hangs as long as this pipe, which nobody writes."""
    monkeypatch.setattr("notary.acceptor.pool.PING_S", 0.2)
    pool, parties = pool_of(own_directory, 1), own_directory.path / "parties.json"
    parties.unlink()
    os.mkfifo(parties)
    async with asyncio.timeout(60):
        with pytest.raises(Fatal, match="w/1 ended with -9 before it served"):
            await pool.start()
    await pool.stop(1)


def test_a_process_that_cannot_start_again_takes_no_connections(own_directory: NotaryDirectory, bank: Bank, notary_process: Start) -> None:
    """With an unusable parties file, the process that still has the last good one answers all. A mended file brings both back."""
    process = notary_process(own_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": 2})
    file = own_directory.path / "parties.json"
    good = file.read_bytes()
    file.write_bytes(b"{")
    os.kill(acceptors_of(process)[0], signal.SIGKILL)
    wait_until(lambda: "ended with 2, starting it again" in process.stderr())
    wait_until(lambda: listening_on(process.url) == 1)
    for _ in range(20):
        with Wire(process.url) as wire:
            assert wire.send(b"GET /livez HTTP/1.1\r\nHost: n\r\n\r\n").answer()[0] == 200
    file.write_bytes(good)
    wait_until(lambda: listening_on(process.url) == 2)
    with CheckedClient(process.url) as client:
        client.decide(bank, spend())
    assert process.stop() == 0


def test_an_only_process_that_cannot_start_again_refuses_connections(
    own_directory: NotaryDirectory, bank: Bank, notary_process: Start
) -> None:
    """A client learns at once that nobody serves. No other program gets the port, and once the file is mended the worker serves there."""
    process = notary_process(own_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": 1})
    file = own_directory.path / "parties.json"
    good = file.read_bytes()
    file.write_bytes(b"{")
    [killed] = acceptors_of(process)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: listening_on(process.url) == 0)
    with pytest.raises(ConnectionRefusedError):
        Wire(process.url)
    with pytest.raises(ConfigurationError, match="in use"):
        bind("127.0.0.1", int(process.url.rpartition(":")[2]))
    file.write_bytes(good)
    wait_until(lambda: listening_on(process.url) == 1)
    with CheckedClient(process.url) as client:
        client.decide(bank, spend())
        assert process.stop() == 0  # it closes the connection first, so the port stays in TIME_WAIT
    bind("127.0.0.1", int(process.url.rpartition(":")[2])).close()


async def test_a_process_that_cannot_be_made_leaves_its_connections_to_the_others(
    own_directory: NotaryDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may have no memory for another process; once it has, the process is back."""
    monkeypatch.setattr("notary.acceptor.pool.AGAIN_S", 0.1)
    pool = pool_of(own_directory, 2)
    await pool.start()
    started = pool._started
    tries_s: list[float] = []

    async def failed(at: int) -> Any:
        tries_s.append(time.monotonic())
        raise OSError("Cannot allocate memory")

    try:
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(pool, "_started", failed)
            pool._processes[1]._process.kill()
            await until(lambda: listening_on(pool.url) == 1 and len(tries_s) > 4)
            assert tries_s[-1] - tries_s[0] > 0.09 * (len(tries_s) - 1), "it rests in between"
        assert pool._started == started
        await until(lambda: listening_on(pool.url) == 2)
    finally:
        await pool.stop(1)


async def test_a_process_that_hangs_is_replaced(own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process answers no pings. It is killed, so that its connections end; its successor gets those that wait."""
    monkeypatch.setattr("notary.acceptor.pool.PING_S", 0.6)
    states: list[AdmissionState] = []
    send = Link.send

    def noted(link: Link[Any, Any], message: Any) -> None:
        if isinstance(message, AdmissionState):
            states.append(message)
        send(link, message)

    monkeypatch.setattr(Link, "send", noted)
    others = family([os.getpid()])
    async with serving(own_directory, {"http.acceptor_processes": 1}) as service:
        service.gate.set()
        [acceptor] = set(family([os.getpid()])) - set(others)
        assert (await service.post(bank.body(spend()))).status_code == 200
        time.sleep(0.6 * PINGS_MAX + 1)  # noqa: ASYNC251 - a pause of the worker: its own fault
        await asyncio.sleep(0.5)
        assert is_running(acceptor)
        known = len(states)
        os.kill(acceptor, signal.SIGSTOP)
        with pytest.raises(httpx.TransportError):
            await service.post(bank.body(spend()))
        await until(lambda: not is_running(acceptor))  # the kernel closes its connections first
        await until(lambda: len(states) > known)
        assert states[-1].ticket_key, "the successor knows the state of the gate"
        assert (await service.post(bank.body(spend()))).status_code == 200


async def test_each_process_has_its_share_of_the_limits(own_directory: NotaryDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is rounded up, so that no limit becomes 0, which is no limit."""
    limits = {"http.connections_max": 10, "http.connections_per_address_max": 2, "limits.pending_bytes_max": 2**23}
    pool = pool_of(own_directory, 3, limits)
    given: list[AcceptorSettings] = []

    class NoProcess:
        def __init__(self, settings: AcceptorSettings, *_: object) -> None:
            given.append(settings)

        async def connect(self) -> None:
            pass

        def send(self, message: object) -> None:
            pass

    monkeypatch.setattr("notary.acceptor.pool._Process", NoProcess)
    await pool._started(2)
    await pool.stop(1)
    [settings] = given
    assert settings.process == "w/3"
    assert (settings.http.connections_max, settings.http.connections_per_address_max, settings.bytes_max) == (4, 1, 2_796_203)


@pytest.mark.parametrize(("served", "intervals"), [(True, PINGS_MAX), (False, START_PINGS_MAX)])
async def test_a_process_has_more_time_to_start_than_to_answer(monkeypatch: pytest.MonkeyPatch, served: bool, intervals: int) -> None:
    """On a busy machine it may take long to start. If it were killed too soon, its successor would be killed too, for ever."""
    monkeypatch.setattr("notary.acceptor.pool.PING_S", 0.001)
    ended = asyncio.Event()
    process: Any = SimpleNamespace(ended=ended, served=served, name="w/1", _pings=0, send=lambda message: None)
    process._process = SimpleNamespace(kill=ended.set)
    await asyncio.wait_for(_Process.watch(process), 30)
    assert process._pings == intervals + 1


# ---- what is counted ----


def test_every_answer_is_counted_once(own_directory: NotaryDirectory, bank: Bank, notary_process: Start) -> None:
    """Answers that an acceptor process gave by itself are in the worker's metrics, with their latency, like the worker's own."""
    process = notary_process(own_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": 1})
    forged = spend()
    with CheckedClient(process.url) as client:
        for _ in range(3):
            client.decide(bank, spend())
        assert client.post(Bank(bank.name).body(forged)).status_code == 403
        assert client.post(Bank("O=Nobody").body(spend())).status_code == 401
        assert client.post(NOT_JSON).status_code == client.post(NOT_JSON).status_code == 400
        assert client.get(f"/v1/transactions/{transaction_id(forged)}").status_code == 404
        returned = client.metrics()
        answers = {labels: value for (name, labels), value in returned.items() if name == "notary_http_answers_total"}
        submissions = {dict(labels)["status"]: value for labels, value in answers.items() if ("call", "/v1/submissions") in labels}
        assert submissions == {"200": 3, "403": 1, "401": 1, "400": 2}
        assert returned["notary_submission_seconds_count", ()] == 7
        assert answers[("call", "/v1/transactions/"), ("status", "404")] == 1
        assert returned["notary_positions", ()] == 3
    assert process.stop() == 0


# ---- too much ----


async def test_while_a_worker_rejects_its_processes_do_without_reading(own_directory: NotaryDirectory, bank: Bank) -> None:
    """Once a submission was shed, the next ones are not read, and the worker counts them. With capacity again all are admitted."""
    settings = {"limits.pending_requests_max": 2, "http.acceptor_processes": 1}
    async with serving(own_directory, settings) as service:
        first = asyncio.create_task(service.post(bank.body(spend(), spend())))
        await service.pending()
        assert (await service.http.post("/v1/submissions", content=NOT_JSON, headers=JSON)).status_code == 400  # nothing was shed yet
        for body in (bank.body(spend()), NOT_JSON, NOT_JSON):
            rejected = await service.post(body)
            assert (rejected.status_code, rejected.json()["type"]) == (503, "/problems/overloaded")
        counted = b'notary_http_answers_total{call="/v1/submissions",status="503"} 3.0'
        assert counted in (await service.http.get("/metrics")).content
        service.gate.set()
        assert (await first).status_code == 200
        while (answer := await service.post(bank.body(spend()))).status_code == 503:
            pass
        assert answer.status_code == 200
        assert service.worker.index.position_next == 3


@pytest.mark.parametrize("acceptors", [0, 1], ids=["worker", "acceptors"])
async def test_a_flood_of_cheap_calls_leaves_others_their_time(directory: NotaryDirectory, notary_process: Start, acceptors: int) -> None:
    """A party has its part of the loop's time. The process that reads these calls answers them too: without the limit 30 to 100 for each
    submission of the others, with it 4 to 20.
    """
    flooder, *others = banks = [Bank(f"O=Bank {number},L=London,C=GB") for number in range(10)]
    for bank in banks:
        directory.register(bank)
    process = notary_process(directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": acceptors})
    host, _, port = process.url.removeprefix("http://").rpartition(":")
    answered = decided = 0

    async def connected(bank: Bank) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host, int(port))
        await decide(bank.body(spend()), reader, writer)
        return reader, writer

    async def decide(body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(post_head(len(body)) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))

    async def send(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"GET /v1/submissions HTTP/1.1\r\nHost: n\r\n\r\n" * 50)  # 405
            await writer.drain()

    async def count(reader: asyncio.StreamReader) -> None:
        nonlocal answered
        while data := await reader.read(1 << 16):
            answered += data.count(b" 405 ")

    async def submit(bodies: list[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal decided
        for body in bodies:
            await decide(body, reader, writer)
            decided += 1
        writer.close()

    submitting = [(*(await connected(bank)), [bank.body(spend()) for _ in range(40)]) for bank in others * 4]
    async with asyncio.TaskGroup() as group:
        floods = [await connected(flooder) for _ in range(32)]
        tasks = [group.create_task(work) for reader, writer in floods for work in (send(writer), count(reader))]
        await until(lambda: answered > 1_000)
        before = answered
        await asyncio.gather(*[submit(bodies, reader, writer) for reader, writer, bodies in submitting])
        for task in tasks:
            task.cancel()
    for _, writer in floods:
        writer.transport.abort()
    assert answered - before < 25 * decided
    assert process.stop() == 0


async def test_a_worker_says_which_submissions_are_new(own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """An acceptor process hears of the party with the answer to a new submission, and not with that to a copy of it."""
    parties: list[str] = []
    send = Link.send

    def noted(link: Link[Any, Any], message: Any) -> None:
        if isinstance(message, Answered):
            parties.append(message.party)
        send(link, message)

    monkeypatch.setattr(Link, "send", noted)
    async with serving(own_directory, {"http.acceptor_processes": 1}) as service:
        service.gate.set()
        body = bank.body(spend())
        assert [(await service.http.post("/v1/submissions", content=body, headers=JSON)).status_code for _ in range(2)] == [200, 200]
    assert parties == [bank.name, ""]


async def test_a_ticket_of_a_rejected_call_stays_valid(own_directory: NotaryDirectory, bank: Bank) -> None:
    """The worker may reject a call although its process has let it pass, here for the quota. That uses no ticket."""
    settings = {"limits.pending_requests_max": 100, "limits.party_requests_per_s": 15, "http.acceptor_processes": 1}
    async with serving(own_directory, settings) as service:
        assert (await service.post(bank.body(*(spend() for _ in range(60))), prefer="wait=0")).status_code == 202
        body = bank.body(*(spend() for _ in range(10)))
        rejected = await service.post(body)
        assert rejected.status_code == 503
        ticket = rejected.headers["ticket"]
        await asyncio.sleep(int(rejected.headers["retry-after"]))
        exceeded = await service.post(body, prefer="wait=0", ticket=ticket)
        assert exceeded.status_code == 429
        await asyncio.sleep(int(exceeded.headers["retry-after"]))
        assert (await service.post(body, prefer="wait=0", ticket=ticket)).status_code == 202
        service.gate.set()
        await service.worker.sender.queue.drain()


# ---- clients that leave ----


async def test_long_polls_end_with_their_process(own_directory: NotaryDirectory) -> None:
    """The clients of a process that was killed have left. Their long polls make place for others."""
    others = family([os.getpid()])
    async with serving(own_directory, {"http.acceptor_processes": 1}) as service:
        [acceptor] = set(family([os.getpid()])) - set(others)
        poll = asyncio.create_task(service.http.get(f"/v1/transactions/{fresh_hash()}?wait=60"))
        await until(lambda: service.app.long_polls > 0)
        os.kill(acceptor, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await poll
        await until(lambda: service.app.long_polls == 0)


@pytest.mark.parametrize("acceptors", [0, 1])
async def test_a_read_ends_when_its_client_leaves(own_directory: NotaryDirectory, bank: Bank, acceptors: int) -> None:
    """Its connection is free for another client at once. Else a client that connects and leaves would have any number of reads at work."""

    def endless(first: int, count: int) -> Iterator[int]:
        while True:
            yield 1000

    async with serving(own_directory, {"http.acceptor_processes": acceptors}) as service:
        service.gate.set()
        assert (await service.post(bank.body(spend()))).status_code == 200
        service.worker.index.leaves_in_pieces = endless  # type: ignore[method-assign,assignment]
        with Wire(str(service.http.base_url)) as wire:
            wire.send(b"GET /tile/entries/000.p/1 HTTP/1.1\r\nHost: n\r\n\r\n")
            await until(lambda: service.app._under_way > 0)
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        async with asyncio.timeout(10):
            await service.app.idle()


async def test_a_client_that_leaves_before_its_turn_gets_no_long_poll(own_directory: NotaryDirectory) -> None:
    """The call and the end of its connection may reach the worker together."""
    async with serving(own_directory, {"http.acceptor_processes": 1}) as service:
        url = service.http.base_url
        for _ in range(20):
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(long_poll())
            writer.write_eof()
            assert b" 404 " in await asyncio.wait_for(reader.readline(), 30)
            writer.close()
        assert service.app.long_polls == 0


@pytest.mark.parametrize("acceptors", [0, 1])
async def test_a_long_poll_and_one_behind_it_are_answered_at_a_half_close(own_directory: NotaryDirectory, acceptors: int) -> None:
    """The client looks like one that has left: during the first call, and before the second one begins."""
    async with serving(own_directory, {"http.acceptor_processes": acceptors}) as service:
        url = service.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(long_poll() * 2)
        await until(lambda: service.app.long_polls > 0)
        writer.write_eof()
        assert (await asyncio.wait_for(reader.read(), 30)).count(b" 404 ") == 2
        writer.close()


def long_poll() -> bytes:
    """Returns a call that waits for a transaction that nobody submits."""
    return f"GET /v1/transactions/{fresh_hash()}?wait=60 HTTP/1.1\r\nHost: n\r\n\r\n".encode()
