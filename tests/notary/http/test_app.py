"""The service around a worker whose log holds appends back until the test lets them go: waiting, refusing, ending."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from notary.config import load
from notary.http import App, Server, bind
from notary.http.machine import Times
from notary.index.store import DECISIONS, STATES
from notary.intake import Intake
from notary.service import leaves
from notary.worker import Worker
from ordering.embedded import EmbeddedLog, EmbeddedWriter
from ordering.errors import Condemned
from tests.notary.http.asking import JSON, check_answer, post_head
from tests.notary.party import Bank, fresh_hash, spend, transaction_id
from tests.notary.process import NotaryDirectory
from tests.notary.rows import put_row


class HeldWriter(EmbeddedWriter):
    """Appends to payload partitions wait for the gate; the ordering topic takes what it gets, so there is a hole meanwhile."""

    gate: asyncio.Event

    async def append(self, stream: int, key: bytes | None, value: bytes | None) -> None:
        """Wait, then append."""
        if stream >= 0:
            await self.gate.wait()
        await super().append(stream, key, value)


class HeldLog(EmbeddedLog):
    """A log with such writers."""

    gate: asyncio.Event

    async def open_writer(self) -> HeldWriter:
        """One that waits for this log's gate."""
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
        """A submission."""
        answer = await self.http.post("/v1/submissions", content=body, headers=JSON | headers)
        document = (await self.http.get("/openapi.json")).json()
        check_answer(document, "POST", "/v1/submissions", answer)
        return answer

    async def pending(self) -> None:
        """Return when something waits for the log."""
        while not self.worker.sender.queue.pending_requests:  # noqa: ASYNC110 - asked from outside
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(
    directory: NotaryDirectory, settings: Mapping[str, Any] | None = None, *, head_s_max: float = 10.0
) -> AsyncIterator[Service]:
    """A service that is ready; `settings` by their dotted names."""
    config = load(
        directory.config, {"worker.name": "w", "http.listen": "127.0.0.1:0", "worker.hole_timeout_ms": 600_000, **(settings or {})}, {}
    )
    log = HeldLog.open(config.path(config.log.directory))
    assert isinstance(log, HeldLog)
    log.gate = asyncio.Event()
    worker = await Worker.start(config, log)
    app = App()
    server: Server | Intake
    if config.http.intake_processes:
        server = Intake(config, app, log_level="warning", log_json=False)
    else:
        server = Server(app, bind("127.0.0.1", 0), times=Times(head_s=head_s_max))
    await server.start()
    app.attach(worker)
    running = asyncio.create_task(worker.run())
    try:
        while worker.not_ready() is not None:  # noqa: ASYNC110 - asked from outside
            await asyncio.sleep(0.005)
        app.taking_changed()
        async with httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as http:
            yield Service(app, worker, log.gate, http, running)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        app.detach()
        await server.stop(5)
        worker.close()
        await log.close()


async def test_who_does_not_wait_hears_that_the_outcome_is_unknown(own_directory: NotaryDirectory, bank: Bank) -> None:
    """`wait=0` while the log is slow: 202 with null for what is unknown; once the log has it, the same again is a 200."""
    async with serving(own_directory) as service:
        body = bank.body(spend(), spend())
        early = await service.post(body, prefer="wait=0")
        assert (early.status_code, early.json()) == (202, {"decisions": [None, None]})
        assert int(early.headers["retry-after"]) >= 1
        service.gate.set()
        assert (await service.post(body)).status_code == 200


@pytest.mark.parametrize("prefer", ["wait=0", "WAIT = 0", 'wait="0"', "respond-async, wait=0", "wait=0;x=y", "x=y;wait=0"])
async def test_the_wait_is_read_as_rfc_7240_has_it(own_directory: NotaryDirectory, bank: Bank, prefer: str) -> None:
    """Quotes, case, spaces and other preferences around it do not matter."""
    async with serving(own_directory) as service:
        assert (await service.post(bank.body(spend()), prefer=prefer)).status_code == 202


async def test_a_decision_may_take_longer_than_a_head(own_directory: NotaryDirectory, bank: Bank) -> None:
    """The time for a head is over when it has come: a connection that waits for a slow decision gets it, and is good for another call."""
    async with serving(own_directory, head_s_max=0.2) as service:
        url = service.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        for body in (bank.body(spend()), bank.body(spend())):
            service.gate.clear()
            writer.write(post_head(len(body), "Prefer: wait=60") + body)
            await service.pending()
            # Another connection's end says that the time for a head has passed since.
            silent, closing = await asyncio.open_connection(url.host, url.port)
            assert b" 400 " in await silent.readline()
            closing.close()
            await closing.wait_closed()
            service.gate.set()
            assert b" 200 " in await reader.readline()
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
        writer.close()
        await writer.wait_closed()


async def test_a_202_tells_what_is_decided(own_directory: NotaryDirectory, bank: Bank) -> None:
    """Of a submission with a transaction that is decided already and one that is not, the 202 gives the one."""
    async with serving(own_directory) as service:
        service.gate.set()
        known = spend()
        decision = (await service.post(bank.body(known))).json()["decisions"][0]
        service.gate.clear()
        answer = await service.post(bank.body(spend(), known), prefer="wait=0")
        assert (answer.status_code, answer.json()) == (202, {"decisions": [None, decision]})


async def test_a_retry_of_what_is_decided_needs_no_log(own_directory: NotaryDirectory, bank: Bank) -> None:
    """All of it decided: the same answer at once, while the log takes nothing, and nothing is sent to it."""
    async with serving(own_directory) as service:
        service.gate.set()
        body = bank.body(spend(), spend())
        first = await service.post(body)
        service.gate.clear()
        sent = service.worker.sender.batches_sent
        again = await service.post(body)
        assert (again.status_code, again.json()) == (200, first.json())
        assert service.worker.sender.batches_sent == sent


async def test_a_retry_of_what_waits_is_sent_once(own_directory: NotaryDirectory, bank: Bank) -> None:
    """The same submission on two connections makes one batch, and both hear its decisions."""
    async with serving(own_directory) as service:
        body = bank.body(spend())
        calls = [asyncio.create_task(service.post(body)) for _ in range(2)]
        await service.pending()
        assert (await service.post(body, prefer="wait=0")).status_code == 202
        service.gate.set()
        one, other = [(await call).json() for call in calls]
        assert one == other
        assert service.worker.sender.batches_sent == 1


async def test_a_wait_longer_than_the_limit_is_cut(own_directory: NotaryDirectory, bank: Bank) -> None:
    """Nobody waits longer than the worker's limit."""
    async with serving(own_directory, {"http.wait_ms_max": 50}) as service:
        assert (await service.post(bank.body(spend()), prefer="wait=600")).status_code == 202


async def test_over_the_limit_a_submission_is_refused(own_directory: NotaryDirectory, bank: Bank) -> None:
    """With the queue full the next one gets 503 overloaded; the one that was in gets its answer."""
    async with serving(own_directory, {"limits.pending_requests_max": 2}) as service:
        first = asyncio.create_task(service.post(bank.body(spend(), spend())))
        await service.pending()
        refused = await service.post(bank.body(spend()))
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/overloaded")
        service.gate.set()
        assert (await first).status_code == 200
        assert service.worker.index.position_next == 2


async def test_a_submission_larger_than_the_limit_is_taken_alone(own_directory: NotaryDirectory, bank: Bank) -> None:
    """A queue smaller than one submission still takes one: nobody is refused for ever."""
    async with serving(own_directory, {"limits.pending_requests_max": 2}) as service:
        service.gate.set()
        assert (await service.post(bank.body(*(spend() for _ in range(5))))).status_code == 200


async def test_a_log_that_does_not_acknowledge_makes_a_worker_not_ready(own_directory: NotaryDirectory, bank: Bank) -> None:
    """After the limit new submissions get 503 not-ready, readyz says why, and what only looks is still answered."""
    async with serving(own_directory, {"worker.append_wait_ms_max": 50}) as service:
        first = asyncio.create_task(service.post(bank.body(spend())))
        while (ready := await service.http.get("/readyz")).status_code == 200:
            pass
        assert "not acknowledged" in ready.text
        refused = await service.post(bank.body(spend()))
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/not-ready")
        assert (await service.http.get("/v1/notary")).status_code == 200
        assert (await service.http.get("/livez")).status_code == 200
        service.gate.set()
        assert (await first).status_code == 200


async def test_while_stopping_nothing_is_taken_and_what_is_in_is_answered(own_directory: NotaryDirectory, bank: Bank) -> None:
    """From the signal on a submission gets 503 not-ready with Retry-After, probes hear it, and the earlier one its 200."""
    async with serving(own_directory) as service:
        first = asyncio.create_task(service.post(bank.body(spend())))
        await service.pending()
        service.app.stopping()
        refused = await service.post(bank.body(spend()))
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/not-ready")
        assert (await service.http.get("/readyz")).status_code == 503
        assert (await service.http.get("/livez")).status_code == 200
        service.gate.set()
        assert (await first).status_code == 200
        await service.app.idle()
        assert service.worker.index.position_next == 1


async def test_who_waits_when_the_worker_ends_hears_that_the_outcome_is_unknown(own_directory: NotaryDirectory, bank: Bank) -> None:
    """A worker that must end with something undecided answers 202, nothing known, instead of cutting the connection or a 5xx."""
    async with serving(own_directory) as service:
        asked = asyncio.create_task(service.post(bank.body(spend()), prefer="wait=60"))
        await service.pending()
        service.app.detach()
        await asyncio.wait_for(service.app.idle(), 30)  # half of the wait that was asked for
        answer = await asked
        assert (answer.status_code, json.loads(answer.content)) == (202, {"decisions": [None]})
        assert (await service.http.get("/v1/notary")).json()["type"] == "/problems/not-ready"


# ---- an index that lost something ----


async def stopped_by_its_index(service: Service) -> None:
    """Return when the worker has ended by itself, its index condemned, and by nothing else."""
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(asyncio.shield(service.running), 30)
    # The driver meets it too when it applies something in the same moment.
    assert {type(problem) for problem in leaves(caught.value)} == {Condemned}


@pytest.mark.parametrize("row", [b"", b"garbage", bytes(1000)], ids=["empty", "short", "long"])
@pytest.mark.parametrize("what", ["transactions", "states"])
async def test_a_corrupt_row_that_is_asked_for_stops_the_worker(own_directory: NotaryDirectory, bank: Bank, what: str, row: bytes) -> None:
    """Who asks for a row that is none hears not-ready; the worker stops, and says nothing more from that index."""
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
            assert "index" not in answer.text  # what is wrong, and where, is the operator's affair
        assert (await service.http.get("/readyz")).status_code == 503
        await stopped_by_its_index(service)


async def test_a_corrupt_row_of_a_submission_under_way_leaves_its_outcome_unknown(own_directory: NotaryDirectory, bank: Bank) -> None:
    """What is in the log already gets 202, nothing known: a 503 would say that nothing of it was taken in. The worker stops."""
    async with serving(own_directory) as service:
        request = spend()
        put_row(service.worker.index, DECISIONS, bytes.fromhex(transaction_id(request)), b"garbage")
        waiting = asyncio.create_task(service.post(bank.body(spend()), prefer="wait=60"))
        await service.pending()
        answer = await service.post(bank.body(spend(), request), prefer="wait=0")
        assert (answer.status_code, answer.json()) == (202, {"decisions": [None, None]})
        # Who waits for something else hears it too, at once.
        assert (await waiting).json() == {"decisions": [None]}
        assert (await service.post(bank.body(spend()))).json()["type"] == "/problems/not-ready"
        await stopped_by_its_index(service)
