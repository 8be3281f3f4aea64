"""The service around a worker whose log holds appends back until the test lets them go: waiting, refusing, ending."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from notary.config import load
from notary.http import App, Server
from notary.worker import Worker
from ordering.embedded import EmbeddedLog, EmbeddedWriter
from tests.notary.http.asking import JSON, check_answer
from tests.notary.party import Bank, spend
from tests.notary.process import NotaryDirectory


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

    def __init__(self, app: App, worker: Worker, gate: asyncio.Event, http: httpx.AsyncClient) -> None:
        self.app = app
        self.worker = worker
        self.gate = gate
        self.http = http

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
async def serving(directory: NotaryDirectory, settings: Mapping[str, Any] | None = None) -> AsyncIterator[Service]:
    """A service that is ready; `settings` by their dotted names."""
    config = load(directory.config, {"worker.name": "w", "worker.hole_timeout_ms": 600_000, **(settings or {})}, {})
    log = HeldLog.open(config.path(config.log.directory))
    assert isinstance(log, HeldLog)
    log.gate = asyncio.Event()
    worker = await Worker.start(config, log)
    app = App()
    server = Server(app, "127.0.0.1", 0)
    await server.start()
    app.attach(worker)
    running = asyncio.create_task(worker.run())
    try:
        while worker.not_ready() is not None:  # noqa: ASYNC110 - asked from outside
            await asyncio.sleep(0.005)
        async with httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as http:
            yield Service(app, worker, log.gate, http)
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


async def test_a_202_tells_what_is_decided(own_directory: NotaryDirectory, bank: Bank) -> None:
    """Of a submission with a transaction that is decided already and one that is not, the 202 gives the one."""
    async with serving(own_directory) as service:
        service.gate.set()
        known = spend()
        decision = (await service.post(bank.body(known))).json()["decisions"][0]
        service.gate.clear()
        answer = await service.post(bank.body(spend(), known), prefer="wait=0")
        assert (answer.status_code, answer.json()) == (202, {"decisions": [None, decision]})


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


async def test_what_is_being_checked_when_the_end_begins_is_not_taken(
    own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submission whose signature is still being verified is refused: taken in then, nobody would be there to answer it."""
    async with serving(own_directory) as service:
        service.gate.set()
        verifying, go_on = threading.Event(), threading.Event()

        def slow(signature: bytes, message: bytes) -> bool:
            verifying.set()
            return go_on.wait(30)

        monkeypatch.setattr(service.worker.parties, "get", lambda party: slow)
        asked = asyncio.create_task(service.post(bank.body(spend())))
        await asyncio.to_thread(verifying.wait, 30)
        service.app.stopping()
        go_on.set()
        assert (await asked).json()["type"] == "/problems/not-ready"
        assert service.worker.sender.batches_sent == 0


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
