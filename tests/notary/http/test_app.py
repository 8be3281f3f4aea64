"""The service around a worker whose log blocks appends until the test releases them: waiting, shedding load, stopping."""

import asyncio
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from notary.bodies import Lanes
from notary.cli.serve import _service
from notary.config import load
from notary.http.app import App
from notary.http.call import Answer, Call
from notary.index.store import DECISIONS, STATES
from notary.service import reasons
from notary.worker import Worker
from ordering.embedded import EmbeddedLog, EmbeddedWriter
from ordering.errors import Quarantined
from tests.clients.load import until
from tests.notary.http.checked_client import JSON, check_answer, post_head
from tests.notary.party import Bank, fresh_hash, spend, transaction_id
from tests.notary.process import NotaryDirectory
from tests.notary.rows import put_row

ACCEPTORS = pytest.mark.parametrize("acceptors", [0, pytest.param(1, marks=pytest.mark.seconds)])
NOT_JSON = b"[not "
"""A body that is only rejected for itself if it is read."""


class HeldWriter(EmbeddedWriter):
    """Appends to payload partitions wait for the gate; appends to the ordering topic do not, so there is a hole meanwhile."""

    gate: asyncio.Event

    async def append(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Wait for the gate, then append."""
        if partition >= 0:
            await self.gate.wait()
        await super().append(partition, key, value)


class HeldLog(EmbeddedLog):
    """A log with such writers."""

    gate: asyncio.Event

    async def open_writer(self) -> HeldWriter:
        """Returns a writer that waits for this log's gate."""
        self.check_open()
        writer = HeldWriter(self)
        writer.gate = self.gate
        return writer


class Service:
    """An App on a Server around a worker, in this process."""

    def __init__(self, app: App, worker: Worker, gate: asyncio.Event, http: httpx.AsyncClient, running: "asyncio.Task[None]") -> None:
        self.app = app
        self.worker = worker
        self.gate = gate
        self.http = http
        self.running = running

    async def post(self, body: bytes, **headers: str) -> httpx.Response:
        """Submit a body."""
        answer = await self.http.post("/v1/submissions", content=body, headers=JSON | headers)
        document = (await self.http.get("/openapi.json")).json()
        check_answer(document, "POST", "/v1/submissions", answer)
        return answer

    async def pending(self) -> None:
        """Wait until a submission waits for the log. It fails if none does, as after an answer 503."""
        async with asyncio.timeout(60):
            await until(lambda: self.worker.sender.queue.pending_requests > 0, 0.005)


PATIENT = {
    "worker.hole_timeout_ms": 600_000,
    "worker.unreachable_ms": 600_000,
    "worker.append_wait_ms_max": 600_000,
    "http.wait_ms_default": 60_000,
}


@asynccontextmanager
async def serving(
    directory: NotaryDirectory, settings: Mapping[str, Any] | None = None, *, head_s_max: float = 10.0
) -> AsyncIterator[Service]:
    """Yields a ready service; `settings` by their dotted names. A pause of the machine does not make it suspect its log."""
    given = {"worker.name": "w", "http.listen": "127.0.0.1:0", "http.head_ms_max": int(1000 * head_s_max), **PATIENT, **(settings or {})}
    config = load(directory.config, given, {})
    config = replace(config, driver=replace(config.driver, interrupted_after_ms=600_000, stall_ms=600_000))
    log = HeldLog.open(config.path(config.log.directory))
    assert isinstance(log, HeldLog)
    log.gate = asyncio.Event()
    worker = await Worker.start(config, log)
    app = App()
    server = _service(config, app, None)
    await server.start()
    app.attach(worker)
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: worker.not_ready() is None, 0.005)
        app.admission_changed()
        async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as http:
            yield Service(app, worker, log.gate, http, running)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        app.detach()
        await server.stop(5)
        worker.close()
        await log.close()


async def test_a_party_is_charged_for_its_new_submissions_on_new_connections(
    own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first submission of a connection came in the lane of its address. A copy costs the party nothing: anyone may send it."""
    charged: list[bytes] = []
    monkeypatch.setattr(Lanes, "charge", lambda lanes, party, size: charged.append(party))
    first, second = bank.body(spend()), bank.body(spend())
    async with serving(own_directory) as service, httpx.AsyncClient(base_url=service.http.base_url, timeout=60) as stranger:
        waiting = asyncio.create_task(service.post(first))
        await service.pending()
        copied = asyncio.create_task(stranger.post("/v1/submissions", content=first, headers=JSON))
        await asyncio.sleep(0.1)  # it comes while the other is pending, most likely; else it is decided: neither is charged
        service.gate.set()
        assert [(await each).status_code for each in (waiting, copied)] == [200, 200]
        async with httpx.AsyncClient(base_url=service.http.base_url, timeout=60) as another:
            assert (await another.post("/v1/submissions", content=first, headers=JSON)).status_code == 200
        assert (await service.post(second)).status_code == 200, "on a connection of the party"
        assert charged == [bank.name.encode()]
        assert (await stranger.post("/v1/submissions", content=bank.body(spend()), headers=JSON)).status_code == 200
        assert charged == [bank.name.encode()] * 2, "copies have not made the connection the party's"


@pytest.mark.parametrize("acceptors", [0, pytest.param(2, marks=pytest.mark.seconds)])
async def test_a_copy_is_not_sent_and_uses_no_quota(own_directory: NotaryDirectory, bank: Bank, charged: list[int], acceptors: int) -> None:
    """The same submission on several connections makes one batch, and all get its decisions, also later. Only the first is charged."""
    body = bank.body(*[spend() for _ in range(200)])
    settings = {"http.acceptor_processes": acceptors, "limits.party_requests_per_s": 250}
    async with serving(own_directory, settings) as service, httpx.AsyncClient(base_url=service.http.base_url, timeout=60) as another:
        calls = [asyncio.create_task(http.post("/v1/submissions", content=body, headers=JSON)) for http in (service.http, another)]
        await until(lambda: len(service.app.waiting) == 2)
        assert (await service.post(body, prefer="wait=0")).status_code == 202
        service.gate.set()
        first, second = [await call for call in calls]
        service.gate.clear()
        while (third := await service.post(body)).status_code == 429:  # once it is decided, it is looked up only within the quota
            pass
        assert first.json() == second.json() == third.json()
        assert (third.status_code, service.worker.sender.batches_sent, charged) == (200, 1, [200])


async def test_a_decision_may_take_longer_than_a_head(own_directory: NotaryDirectory, bank: Bank) -> None:
    """A decision may take longer than the deadline for a head: the connection gets its answer, and serves another call."""
    async with serving(own_directory, head_s_max=0.2) as service:
        url = service.http.base_url
        bodies = [bank.body(spend()), bank.body(spend())]
        service.gate.clear()
        # The first call is there before its connection is accepted. A pause of this process cannot make it late.
        early = socket.create_connection((url.host, url.port))
        early.sendall(post_head(len(bodies[0]), "Prefer: wait=60") + bodies[0])
        reader, writer = await asyncio.open_connection(sock=early)
        for number, body in enumerate(bodies):
            if number:
                service.gate.clear()
                writer.write(post_head(len(body), "Prefer: wait=60") + body)
            await service.pending()
            # The end of another connection shows that the deadline for a head has passed.
            silent, closing = await asyncio.open_connection(url.host, url.port)
            assert await silent.read() == b""
            closing.close()
            await closing.wait_closed()
            service.gate.set()
            assert b" 200 " in await reader.readline()
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
        writer.close()
        await writer.wait_closed()


async def test_a_202_has_the_decisions_made(own_directory: NotaryDirectory, bank: Bank) -> None:
    """With `wait=0` and a slow log the answer has the decisions made, and null for the others. Later the same submission gets a 200."""
    async with serving(own_directory) as service:
        service.gate.set()
        known = spend()
        decision = (await service.post(bank.body(known))).json()["decisions"][0]
        service.gate.clear()
        body = bank.body(spend(), known)
        answer = await service.post(body, prefer="wait=0")
        assert (answer.status_code, answer.json()) == (202, {"decisions": [None, decision]})
        assert int(answer.headers["retry-after"]) >= 1
        service.gate.set()
        assert (await service.post(body)).status_code == 200


async def test_a_wait_longer_than_the_limit_is_cut(own_directory: NotaryDirectory, bank: Bank) -> None:
    """A wait longer than the worker's limit is cut to that limit, that of a long poll too."""
    async with serving(own_directory, {"http.wait_ms_max": 50}) as service:
        assert (await service.post(bank.body(spend()), prefer="wait=600")).status_code == 202
        assert (await service.http.get(f"/v1/transactions/{fresh_hash()}?wait=600")).status_code == 404


@ACCEPTORS
@pytest.mark.parametrize("full", [False, True])
async def test_a_log_that_does_not_acknowledge_makes_a_worker_not_ready(
    own_directory: NotaryDirectory, bank: Bank, acceptors: int, full: bool
) -> None:
    """After the limit without an acknowledgement, submissions get 503 not-ready with readyz's reason; lookups are still answered.

    So they do with a full queue: it sends clients to another worker. An acceptor process reads no body then. With the log back all is as
    before.
    """
    settings = {"worker.append_wait_ms_max": 50, "http.acceptor_processes": acceptors, "limits.pending_requests_max": 1 if full else 100}
    async with serving(own_directory, settings) as service:
        first = asyncio.create_task(service.post(bank.body(spend())))
        while (ready := await service.http.get("/readyz")).status_code == 200:
            pass
        assert "not acknowledged" in ready.text
        for body in (bank.body(spend()), *[NOT_JSON] * acceptors):
            rejected = await service.post(body)
            assert (rejected.status_code, rejected.json()["type"]) == (503, "/problems/not-ready")
        assert (await service.http.get("/v1/notary")).status_code == 200
        assert (await service.http.get("/livez")).status_code == 200
        service.gate.set()
        assert (await first).status_code == 200
        while (answer := await service.post(bank.body(spend()))).status_code == 503:
            pass
        assert answer.status_code == 200


@ACCEPTORS
async def test_clients_that_leave_use_up_no_long_polls(own_directory: NotaryDirectory, acceptors: int) -> None:
    """Clients that ask for a decision, however they write `?wait=`, and close, or reset, their connections keep no other from waiting."""
    async with serving(own_directory, {"http.connections_max": 12, "http.acceptor_processes": acceptors}) as service:
        app, url = service.app, service.http.base_url
        for resets, name in ((False, "wait"), (True, "wait"), (False, "w%61it"), (True, "w%61it")):
            writers = []
            for waiting in (1, 2, 3):  # as many as may wait at a time
                writers.append((await asyncio.open_connection(url.host, url.port))[1])
                writers[-1].write(f"GET /v1/transactions/{fresh_hash()}?{name}=60 HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                await until(lambda waiting=waiting: app.long_polls == waiting)  # type: ignore[misc]
            for writer in writers:
                if resets:
                    linger_s = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_s)
                writer.transport.abort()
            await until(lambda: app.long_polls == 0)
            assert not app.deadlines._ticks
        await app.idle()
        assert not app.waiting
        assert not app.awaited._waiting


async def test_an_address_leaves_long_polls_to_others(own_directory: NotaryDirectory) -> None:
    """While as many wait as may, the address with the most ends its oldest one for another address, unless it has only one more."""
    async with serving(own_directory, {"http.connections_max": 16}) as service:
        app, answered = service.app, list[tuple[str, int]]()

        def poll(network: str, number: int) -> None:
            def respond(call: Call, answer: Answer, after_body: bool) -> None:
                answered.append((network, number))

            call = Call("GET", f"/v1/transactions/{fresh_hash()}", b"wait=60", [], respond)
            call.network = network
            app.take(call)

        for network in ("192.0.2.1", "192.0.2.2"):
            for number in range(5):
                poll(network, number)
        await until(lambda: len(answered) >= 6)
        ended = {("192.0.2.1", 4), ("192.0.2.1", 0), ("192.0.2.1", 1), *[("192.0.2.2", number) for number in (2, 3, 4)]}
        assert set(answered) == ended
        assert app.long_polls == 4
        assert {network: len(polls) for network, polls in app.long_polls_of.items()} == {"192.0.2.1": 2, "192.0.2.2": 2}
        for number in range(2):
            poll("192.0.2.3", number)
        await until(lambda: len(answered) >= 8)
        assert set(answered) == ended | {("192.0.2.1", 2), ("192.0.2.3", 1)}
        app.detach()
        assert not app.long_polls_of


async def test_a_service_is_busy_while_submissions_wait(own_directory: NotaryDirectory, bank: Bank) -> None:
    """The loop rests from strangers then, however many of them wait in long polls, and however these end."""
    async with serving(own_directory) as service:
        app, url = service.app, service.http.base_url
        _, leaves_early = await asyncio.open_connection(url.host, url.port)
        leaves_early.write(f"GET /v1/transactions/{fresh_hash()}?wait=60 HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        await until(lambda: app.long_polls == 1)
        assert not app.waiting_lanes
        request = spend()
        first = asyncio.create_task(service.post(bank.body(request)))
        await service.pending()
        decided = asyncio.create_task(service.http.get(f"/v1/transactions/{transaction_id(request)}?wait=60"))
        late = asyncio.create_task(service.http.get(f"/v1/transactions/{fresh_hash()}?wait=1"))
        await until(lambda: app.long_polls == 3)
        assert app.waiting_lanes
        leaves_early.transport.abort()
        assert (await late).status_code == 404
        await until(lambda: app.long_polls == 1)
        assert app.waiting_lanes
        service.gate.set()
        assert ((await first).status_code, (await decided).status_code) == (200, 200)
        assert (app.long_polls, bool(app.waiting_lanes), len(app.waiting)) == (0, False, 0)


async def test_while_stopping_nothing_is_taken_and_what_is_in_is_answered(own_directory: NotaryDirectory, bank: Bank) -> None:
    """From the signal on a submission gets 503 not-ready with Retry-After, as do probes, and the earlier one gets its 200."""
    async with serving(own_directory) as service:
        first = asyncio.create_task(service.post(bank.body(spend())))
        await service.pending()
        service.app.stopping()
        rejected = await service.post(bank.body(spend()))
        assert (rejected.status_code, rejected.json()["type"]) == (503, "/problems/not-ready")
        assert (await service.http.get("/readyz")).status_code == 503
        assert (await service.http.get("/livez")).status_code == 200
        service.gate.set()
        assert (await first).status_code == 200
        await service.app.idle()
        assert service.worker.index.position_next == 1


@ACCEPTORS
async def test_who_waits_when_the_worker_ends_hears_that_the_outcome_is_unknown(
    own_directory: NotaryDirectory, bank: Bank, acceptors: int
) -> None:
    """A worker that must end with an undecided submission answers 202 with nulls, and neither a 5xx nor a closed connection."""
    async with serving(own_directory, {"http.acceptor_processes": acceptors}) as service:
        asked = asyncio.create_task(service.post(bank.body(spend()), prefer="wait=60"))
        await service.pending()
        service.app.detach()
        await asyncio.wait_for(service.app.idle(), 30)  # half of the requested wait
        answer = await asked
        assert (answer.status_code, json.loads(answer.content)) == (202, {"decisions": [None]})
        assert (await service.http.get("/v1/notary")).json()["type"] == "/problems/not-ready"
        rejected = await service.http.post("/v1/submissions", content=NOT_JSON, headers=JSON)
        assert (rejected.status_code, rejected.json()["type"]) == (503, "/problems/not-ready")


# ---- an index that lost something ----


async def stopped_by_its_index(service: Service) -> None:
    """Wait until the worker has stopped because its index is quarantined, and for no other reason."""
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(asyncio.shield(service.running), 30)
    # The driver may find it too, if it applies a step at the same moment.
    assert {type(problem) for problem in reasons(caught.value)} == {Quarantined}


@pytest.mark.parametrize("row", [b"", b"garbage", bytes(1000)], ids=["empty", "short", "long"])
@pytest.mark.parametrize("what", ["transactions", "states"])
async def test_a_corrupt_row_that_is_asked_for_stops_the_worker(own_directory: NotaryDirectory, bank: Bank, what: str, row: bytes) -> None:
    """A lookup that reads a malformed row gets not-ready; the worker stops, and serves nothing more from that index."""
    async with serving(own_directory) as service:
        service.gate.set()
        known = spend()
        assert (await service.post(bank.body(known))).status_code == 200
        id_, index = fresh_hash(), service.worker.index
        if what == "transactions":
            put_row(index, DECISIONS, bytes.fromhex(id_), row)
        else:
            put_row(index, STATES, bytes.fromhex(id_) + bytes(4), row)
        paths = [
            f"/v1/transactions/{id_}" if what == "transactions" else f"/v1/states/{id_}:0",
            f"/v1/transactions/{transaction_id(known)}",
        ]
        for path in paths:
            answer = await service.http.get(path)
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/not-ready")
            assert int(answer.headers["retry-after"]) >= 1
            assert "index" not in answer.text  # the details of the damage are for the operator only
        assert (await service.http.get("/readyz")).status_code == 503
        await stopped_by_its_index(service)


async def test_a_corrupt_row_of_a_submission_under_way_leaves_its_outcome_unknown(own_directory: NotaryDirectory, bank: Bank) -> None:
    """A submission that is in the log already gets 202 with nulls, since a 503 would mean that nothing was applied. The worker stops."""
    async with serving(own_directory) as service:
        request = spend()
        put_row(service.worker.index, DECISIONS, bytes.fromhex(transaction_id(request)), b"garbage")
        waiting = asyncio.create_task(service.post(bank.body(spend()), prefer="wait=60"))
        await service.pending()
        answer = await service.post(bank.body(spend(), request), prefer="wait=0")
        assert (answer.status_code, answer.json()) == (202, {"decisions": [None, None]})
        # Other waiting calls get the same answer at once.
        assert (await waiting).json() == {"decisions": [None]}
        assert (await service.post(bank.body(spend()))).json()["type"] == "/problems/not-ready"
        await stopped_by_its_index(service)


async def test_the_gate_rests_with_the_service(own_directory: NotaryDirectory) -> None:
    """A port for probes has no submissions that wait, so its application does not decide when bodies of strangers are decoded."""
    async with serving(own_directory) as service:
        worker = service.app.worker
        assert worker is not None
        App(service=False).attach(worker)
        assert worker.gate.duty is service.app.duty


async def test_each_decision_point_has_a_debug_line(own_directory: NotaryDirectory, bank: Bank, caplog: pytest.LogCaptureFixture) -> None:
    """A rejected submission, returned decisions, an answered call and the end of a connection have a line at debug, and none at info."""
    async with serving(own_directory) as service:
        service.gate.set()
        for level in (logging.INFO, logging.DEBUG):
            with caplog.at_level(level, "notary.http"):
                await service.post(bank.body(spend()))
                await service.post(bank.body(spend()).replace(b"Bank A", b"Bank X"))
                await service.http.get("/v1/checkpoint", headers={"connection": "close"})
            if level == logging.INFO:
                assert caplog.messages == []
    for line in (
        f"decisions are returned party={bank.name!r} requests=1 undecided=0",
        f"a submission is rejected reason=UnknownParty party={bank.name.replace('Bank A', 'Bank X')!r} network=127.0.0.1: ",
        "a call is answered method='GET' path='/v1/checkpoint' status=200 network=127.0.0.1",
        "a connection ends event=",
    ):
        assert [each for each in caplog.messages if each.startswith(line)], line
