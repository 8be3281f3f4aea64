"""An overloaded worker sheds load without reading bodies; calls keep their guarantees, and connections stay usable."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from notary import parties
from notary.http import lines
from tests.notary.http.checked_client import Wire, post_head
from tests.notary.http.test_app import Service, serving
from tests.notary.party import Bank, spend
from tests.notary.process import NotaryDirectory

Result = TypeVar("Result")
GET = b"GET /v1/notary HTTP/1.1\r\nHost: notary\r\n\r\n"


@asynccontextmanager
async def overloaded(directory: NotaryDirectory, bank: Bank, *, head_s_max: float = 10.0) -> AsyncIterator[Service]:
    """Yields a service whose queue is full until the log's gate is opened; at the end exactly the queued submissions are decided."""
    async with serving(directory, {"limits.pending_requests_max": 2}, head_s_max=head_s_max) as service:
        first = asyncio.create_task(service.post(bank.body(spend(), spend())))
        await service.pending()
        yield service
        service.gate.set()
        assert (await first).status_code == 200
        assert service.worker.index.position_next == 2


async def by_hand(service: Service, talk: Callable[[Wire], Result]) -> Result:
    """Run the client's part on a raw connection, in a thread."""

    def connected() -> Result:
        with Wire(str(service.http.base_url)) as wire:
            return talk(wire)

    return await asyncio.to_thread(connected)


async def test_rejected_without_being_read(own_directory: NotaryDirectory, bank: Bank) -> None:
    """A shed submission is checked for neither type nor body, and the connection serves the next call and the one after it."""

    def talk(wire: Wire) -> list[int]:
        statuses = []
        for _ in range(2):
            wire.send(b"POST /v1/submissions?receipts=false HTTP/1.1\r\nHost: n\r\nContent-Length: 5\r\n\r\n[not ")
            returned = wire.problem()
            assert returned["type"] == "/problems/overloaded"
            statuses.append(returned["status"])
            statuses.append(wire.send(GET).answer()[0])
        return statuses

    async with overloaded(own_directory, bank) as service:
        assert await by_hand(service, talk) == [503, 200, 503, 200]
        assert service.worker.metrics.text().count(b'notary_http_answers_total{call="/v1/submissions",status="503"} 2.0') == 1


async def test_a_body_in_pieces_is_passed_over(own_directory: NotaryDirectory, bank: Bank) -> None:
    """The answer comes after the body, so that every client reads it, for chunks as for a declared length."""

    def talk(wire: Wire) -> int:
        wire.send(post_head(1_000_000)).send(b"x" * 500_000).send(b"x" * 500_000)
        assert wire.problem()["status"] == 503
        wire.send(post_head(None, "Transfer-Encoding: chunked") + b"5\r\nxxxxx\r\n").send(b"5\r\nxxxxx\r\n0\r\n\r\n")
        assert wire.problem()["status"] == 503
        return wire.send(GET).answer()[0]

    async with overloaded(own_directory, bank) as service:
        assert await by_hand(service, talk) == 200


async def test_a_body_that_does_not_come(own_directory: NotaryDirectory, bank: Bank) -> None:
    """A client that stops in the middle of its body gets the same answer, at a deadline, and the connection ends."""

    def talk(wire: Wire) -> tuple[int, bool]:
        wire.send(post_head(10) + b"xx")
        return wire.problem()["status"], wire.is_closed()

    async with overloaded(own_directory, bank, head_s_max=1.0) as service:
        assert await by_hand(service, talk) == (503, True)


async def test_a_body_that_breaks_off_into_nonsense(own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A malformed chunk ends the connection, with the 503 as its answer. If it comes before the call's turn, the answer is 400."""
    monkeypatch.setattr(lines, "SLICE_S", 60.0)

    def talk(wire: Wire) -> tuple[int, bool]:
        wire.send(post_head(None, "Transfer-Encoding: chunked") + b"zz\r\n")
        return wire.problem()["status"], wire.is_closed()

    async with overloaded(own_directory, bank) as service:
        assert await by_hand(service, talk) == (503, True)


async def test_submissions_are_answered_in_their_order(own_directory: NotaryDirectory, bank: Bank) -> None:
    """With `Expect: 100-continue` the 503 comes instead of 100."""

    def talk(wire: Wire) -> int:
        return wire.send(post_head(1_000, "Expect: 100-continue")).answer()[0]

    async with overloaded(own_directory, bank) as service:
        assert await by_hand(service, talk) == 503


async def test_a_full_queue_of_a_worker_without_a_log_says_so(own_directory: NotaryDirectory, bank: Bank) -> None:
    """If the queue is full because the log acknowledges nothing, clients get not-ready, which sends them to another worker."""
    settings = {"limits.pending_requests_max": 1, "worker.append_wait_ms_max": 50}
    async with serving(own_directory, settings) as service:
        first = asyncio.create_task(service.post(bank.body(spend())))
        await service.pending()
        while (await service.http.get("/readyz")).status_code == 200:
            pass
        rejected = await service.post(bank.body(spend()))
        assert (rejected.status_code, rejected.json()["type"]) == (503, "/problems/not-ready")
        service.gate.set()
        assert (await first).status_code == 200


async def test_connections_that_are_to_end(own_directory: NotaryDirectory, bank: Bank) -> None:
    """With `Connection: close`, and with HTTP/1.0, the connection ends after the answer."""

    def talk(wire: Wire, head: bytes) -> bool:
        wire.send(head + b"xx")
        assert wire.problem()["status"] == 503
        return wire.is_closed()

    async with overloaded(own_directory, bank) as service:
        assert await by_hand(service, lambda wire: talk(wire, post_head(2, "Connection: close")))
        assert await by_hand(service, lambda wire: talk(wire, post_head(2, version="1.0")))


async def test_answers_keep_their_order(own_directory: NotaryDirectory, bank: Bank) -> None:
    """A 503 behind a call without an answer waits for its turn; many calls in one piece are answered one by one."""
    first = bank.body(spend())

    def talk(wire: Wire) -> list[int]:
        wire.send((post_head(2) + b"xx") * 20 + GET + post_head(2) + b"xx" + GET)
        return [wire.answer()[0] for _ in range(23)]

    def behind(wire: Wire) -> list[int]:
        wire.send(post_head(len(first), "Prefer: wait=1") + first + post_head(2) + b"xx")
        return [wire.answer()[0] for _ in range(2)]

    async with overloaded(own_directory, bank) as service:
        assert await by_hand(service, talk) == [503] * 20 + [200, 503, 200]
    async with serving(own_directory, {"limits.pending_requests_max": 1}) as service:
        assert await by_hand(service, behind) == [202, 503]
        service.gate.set()


async def test_the_same_again_is_rejected_like_any_other(own_directory: NotaryDirectory, bank: Bank) -> None:
    """A retry of a queued submission may be shed: the first is decided, and the retry after that is answered."""
    async with serving(own_directory, {"limits.pending_requests_max": 2}) as service:
        body = bank.body(spend(), spend())
        first = asyncio.create_task(service.post(body))
        await service.pending()
        assert (await service.post(body)).status_code == 503
        service.gate.set()
        assert (await first).status_code == 200
        assert (await service.post(body)).status_code == 200


@pytest.mark.seconds
@pytest.mark.parametrize("acceptor_processes", [0, 1], ids=["worker", "acceptors"])
async def test_a_full_party_leaves_capacity_to_others_and_comes_back_with_its_ticket(
    own_directory: NotaryDirectory, bank: Bank, acceptor_processes: int
) -> None:
    """A party rejected for its share gets Retry-After and a ticket; another party is admitted; later the ticket is preferred."""
    other = Bank("O=Other")
    parties.add(own_directory.path / "parties.json", other.name, other.public_pem, "the test's party")
    settings = {"limits.pending_requests_max": 100, "http.acceptor_processes": acceptor_processes}
    async with serving(own_directory, settings) as service:
        assert (await service.post(bank.body(*(spend() for _ in range(60))), prefer="wait=0")).status_code == 202
        body = bank.body(*(spend() for _ in range(10)))
        rejected = await service.post(body)
        assert (rejected.status_code, rejected.json()["type"]) == (503, "/problems/overloaded")
        assert "of this party" in rejected.json()["detail"]
        ticket = rejected.headers["ticket"]
        assert (await service.post(body, prefer="wait=0", ticket=ticket)).status_code == 503, "it is early"
        await asyncio.sleep(int(rejected.headers["retry-after"]))
        assert (await service.post(body, prefer="wait=0", ticket="nonsense")).status_code == 503
        assert (await service.post(body, prefer="wait=0", ticket=ticket)).status_code == 202
        assert (await service.post(other.body(*(spend() for _ in range(20))), prefer="wait=0")).status_code == 202
        late = await service.post(bank.body(spend()), ticket=ticket)
        assert late.status_code == 503, "it is used"
        text = service.worker.metrics.text()
        assert b"notary_tickets_used_total 1.0" in text
        assert b"notary_pending_parties 2.0" in text
        assert b"notary_full_parties 1.0" in text
        service.gate.set()
        await service.worker.sender.queue.drain()
        assert service.worker.index.position_next == 90


async def test_a_weight_is_read_while_the_worker_runs(own_directory: NotaryDirectory, bank: Bank) -> None:
    """The parties file is read again when it changes: the weight counts from the party's next submission."""
    async with serving(own_directory) as service:
        queue, file = service.worker.sender.queue, own_directory.path / "parties.json"
        first = json.loads(file.read_text())[bank.name]
        file.write_text(json.dumps({bank.name: {"public_key": first, "weight": 7}}))
        service.worker.parties.reload()
        await service.post(bank.body(spend()), prefer="wait=0")
        assert queue._weights == 7
        service.gate.set()
        await queue.drain()


async def test_a_ticket_is_valid_for_a_submission_that_is_looked_up_first(own_directory: NotaryDirectory, bank: Bank) -> None:
    """A submission with an old request at its front is queued some turns after its admission. Its ticket still opens the last part then."""
    old = spend()
    async with serving(own_directory, {"limits.pending_requests_max": 100}) as service:
        service.gate.set()
        assert (await service.post(bank.body(old))).status_code == 200
        service.gate.clear()
        assert (await service.post(bank.body(*(spend() for _ in range(60))), prefer="wait=0")).status_code == 202
        body = bank.body(old, *(spend() for _ in range(9)))
        rejected = await service.post(body)
        assert rejected.status_code == 503
        await asyncio.sleep(int(rejected.headers["retry-after"]))
        assert (await service.post(body, prefer="wait=0", ticket=rejected.headers["ticket"])).status_code == 202
        assert b"notary_tickets_used_total 1.0" in service.worker.metrics.text()
        service.gate.set()
        await service.worker.sender.queue.drain()


async def test_a_copy_of_a_decided_submission_uses_no_ticket(own_directory: NotaryDirectory, bank: Bank) -> None:
    """It uses no capacity, and anyone may send it. Its ticket stays valid."""
    decided = bank.body(spend())
    async with serving(own_directory, {"limits.pending_requests_max": 100}) as service:
        service.gate.set()
        assert (await service.post(decided)).status_code == 200
        service.gate.clear()
        assert (await service.post(bank.body(*(spend() for _ in range(60))), prefer="wait=0")).status_code == 202
        body = bank.body(*(spend() for _ in range(10)))
        rejected = await service.post(body)
        ticket = rejected.headers["ticket"]
        await asyncio.sleep(int(rejected.headers["retry-after"]))
        assert (await service.post(decided, ticket=ticket)).status_code == 200
        assert (await service.post(body, prefer="wait=0", ticket=ticket)).status_code == 202
        service.gate.set()
        await service.worker.sender.queue.drain()
