"""An overloaded worker sheds load without reading bodies; calls keep their guarantees, and connections stay usable."""

import asyncio
import json
import select
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import pytest

from notary import parties
from notary.gate import Gate
from notary.http import lanes
from tests.clients.load import until
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


CHUNKED = post_head(None, "Transfer-Encoding: chunked")
SHED: dict[str, tuple[list[bytes], list[int], bool]] = {
    # It is checked for neither type nor body.
    "unread": (
        [b"POST /v1/submissions?receipts=false HTTP/1.1\r\nHost: n\r\nContent-Length: 5\r\n\r\n[not ", GET] * 2,
        [503, 200] * 2,
        False,
    ),
    "in-pieces": ([post_head(1_000_000), b"x" * 500_000, b"x" * 500_000, GET], [503, 200], False),
    "in-chunks": ([CHUNKED + b"5\r\nxxxxx\r\n", b"5\r\nxxxxx\r\n0\r\n\r\n", GET], [503, 200], False),
    "pipelined": ([(post_head(2) + b"xx") * 20 + GET + post_head(2) + b"xx" + GET], [503] * 20 + [200, 503, 200], False),
    "stops": ([post_head(10) + b"xx"], [503], True),
    "breaks-off": ([CHUNKED + b"zz\r\n"], [503], True),
    "expects": ([post_head(1_000, "Expect: 100-continue")], [503], False),
    "last": ([post_head(2, "Connection: close") + b"xx"], [503], True),
    "http-1.0": ([post_head(2, version="1.0") + b"xx"], [503], True),
}
"""The pieces that are sent, the statuses of the answers, and whether the connection ends then."""


async def test_submissions_are_shed_without_being_read(own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes after the body, so that every client reads it, or instead of a 100. It ends no connection that may go on.

    A body that stops gets it at a deadline, and one that breaks off into garbage gets it too.
    """
    monkeypatch.setattr(lanes, "SLICE_S", 60.0)  # garbage that comes before the turn of its call gets a 400

    def talk(wire: Wire, what: str) -> None:
        pieces, statuses, ends = SHED[what]
        for piece in pieces:
            wire.send(piece)
        for status in statuses:
            answered, headers, body = wire.answer()
            assert (answered, b"/problems/overloaded" in body) == (status, status == 503), what
        assert (headers.get("connection") == "close") is ends, what
        if ends:
            assert wire.is_closed(), what

    async with overloaded(own_directory, bank, head_s_max=1.0) as service:
        for what in SHED:
            await by_hand(service, partial(talk, what=what))
        shed = sum(statuses.count(503) for _, statuses, _ in SHED.values())
        assert b'notary_http_answers_total{call="/v1/submissions",status="503"} %d.0' % shed in service.worker.metrics.text()


async def test_clients_of_a_backlogged_lane_are_not_read(
    own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a body of an address waits at the gate, further calls of that address wait in their connections. Others are answered."""
    monkeypatch.setattr("notary.gate.BACKLOG_S", 0.0)
    monkeypatch.setattr(lanes, "BACKLOGGED_PART", 0.0)
    monkeypatch.setattr(lanes, "LATE_S", 600.0)
    async with serving(own_directory) as service:
        service.gate.set()
        url, body = str(service.http.base_url), bank.body(spend())
        with Wire(url) as first, Wire(url) as second, Wire(url, "127.0.0.2") as other:
            with monkeypatch.context() as meanwhile:
                meanwhile.setattr(Gate, "is_busy", True)
                first.send(post_head(len(body)) + body)
                await until(lambda: bool(service.worker.gate._lanes), 0.001)
                second.send(GET)
                for _ in range(10):
                    assert (await asyncio.to_thread(other.send(GET).answer))[0] == 200
                assert not select.select([second.socket], [], [], 0)[0]
            assert [(await asyncio.to_thread(wire.answer))[0] for wire in (first, second)] == [200, 200]


async def test_a_shed_submission_waits_behind_an_undecided_one(own_directory: NotaryDirectory, bank: Bank) -> None:
    """Its answer leaves after the one before it, on the same connection."""
    first = bank.body(spend())

    def talk(wire: Wire) -> list[int]:
        wire.send(post_head(len(first), "Prefer: wait=1") + first + post_head(2) + b"xx")
        return [wire.answer()[0] for _ in range(2)]

    async with serving(own_directory, {"limits.pending_requests_max": 1}) as service:
        assert await by_hand(service, talk) == [202, 503]
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


async def test_a_ticket_is_used_by_a_new_submission_alone(own_directory: NotaryDirectory, bank: Bank) -> None:
    """A copy of a decided one, which anyone may send, uses no capacity, and no ticket.

    A submission with an old request at its front is queued some turns after its admission. Its ticket still opens the last part then.
    """
    old = spend()
    async with serving(own_directory, {"limits.pending_requests_max": 100}) as service:
        service.gate.set()
        assert (await service.post(bank.body(old))).status_code == 200
        service.gate.clear()
        assert (await service.post(bank.body(*(spend() for _ in range(60))), prefer="wait=0")).status_code == 202
        body = bank.body(old, *(spend() for _ in range(9)))
        rejected = await service.post(body)
        assert rejected.status_code == 503
        ticket = rejected.headers["ticket"]
        await asyncio.sleep(int(rejected.headers["retry-after"]))
        assert (await service.post(bank.body(old), ticket=ticket)).status_code == 200
        assert (await service.post(body, prefer="wait=0", ticket=ticket)).status_code == 202
        assert b"notary_tickets_used_total 1.0" in service.worker.metrics.text()
        service.gate.set()
        await service.worker.sender.queue.drain()
