"""The bytes of submissions that are sent again: they are in the queue once or not at all, and count nevertheless."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from notary.decision import Decision
from notary.http import in_flight
from notary.http.in_flight import InFlight
from notary.http.submission import SUBMISSIONS, AnswerForm
from notary.wire import encode_in_pieces
from ordering.pieces import Pieces
from payload import decode_submission
from tests.notary.http.checked_client import Wire, post_head
from tests.notary.http.test_app import serving
from tests.notary.http.test_turns import Counting
from tests.notary.party import NOTARY, Bank, fresh_state, spend
from tests.notary.process import NotaryDirectory

pytestmark = pytest.mark.seconds

CLIENTS = 60


class Held:
    """The bytes of submissions and bodies that calls keep in memory; the same bytes object counts once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._encoded: dict[InFlight, bytes] = {}
        self.most = 0
        start, answer, held = InFlight.start, InFlight._answer, self._encoded

        def started(call: InFlight) -> None:
            held[call] = call._submission.encoded
            start(call)
            held[call] = call._submission.encoded
            self.most = max(self.most, self.bytes() + sum([body.size for body in call._worker.gate._bodies]))

        def answered(call: InFlight) -> Generator[int, None, None]:
            try:
                yield from answer(call)
            finally:
                del held[call]

        monkeypatch.setattr(InFlight, "start", started)
        monkeypatch.setattr(InFlight, "_answer", answered)

    def bytes(self) -> int:
        """Returns the bytes of submissions that are not answered."""
        return sum({id(encoded): len(encoded) for encoded in self._encoded.values()}.values())


@pytest.mark.parametrize("acceptor_processes", [0, 1], ids=["worker", "acceptors"])
async def test_many_retries_of_a_decided_submission_are_bounded(
    own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch, acceptor_processes: int
) -> None:
    """Decoding may be faster than answering. Decoded submissions without an answer share `pending_bytes_max` with the bodies."""
    held, together = Held(monkeypatch), threading.Barrier(CLIENTS)
    states = [fresh_state() for _ in range(4)]
    large = bank.body(*[spend(*states) for _ in range(1000)])
    bytes_max = 4 << 20
    settings = {"limits.pending_bytes_max": bytes_max, "http.acceptor_processes": acceptor_processes}

    def client(url: str, small: bytes) -> int:
        """Make a connection the party's, then send the decided submission again until it is answered. Returns its 503s."""
        with Wire(url) as wire:
            assert wire.send(post_head(len(small)) + small).answer()[0] == 200
            together.wait()
            for rejected in range(2000):
                if wire.send(post_head(len(large)) + large).answer()[0] == 200:
                    return rejected
                time.sleep(0.02)
            raise AssertionError("it is never answered")

    async with serving(own_directory, settings) as service:
        service.gate.set()
        assert (await service.post(large)).status_code == 200
        held.most = 0
        loop, url = asyncio.get_running_loop(), str(service.http.base_url)
        with ThreadPoolExecutor(CLIENTS) as pool:
            await asyncio.gather(*[loop.run_in_executor(pool, client, url, bank.body(spend())) for _ in range(CLIENTS)])
        assert held.most <= bytes_max
        assert service.worker.gate.body_bytes == 0
        assert not service.worker.gate._unauthenticated_bytes


async def test_copies_of_a_pending_submission_are_in_memory_once(
    own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the log is slow, many calls may wait with the same bytes."""
    held = Held(monkeypatch)
    large = bank.body(spend(*[fresh_state() for _ in range(5000)]))
    async with serving(own_directory, {"limits.pending_bytes_max": 2 << 20}) as service, contextlib.AsyncExitStack() as stack:
        wires = [stack.enter_context(Wire(str(service.http.base_url))) for _ in range(30)]
        for at, wire in enumerate(wires):
            await asyncio.to_thread(wire.send, post_head(len(large)) + large)
            while len(service.app.waiting) <= at:  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0.005)
        assert held.bytes() <= 2 << 20
        service.gate.set()
        assert [(await asyncio.to_thread(wire.answer))[0] for wire in wires] == [200] * 30


async def test_a_copy_of_a_decided_submission_reserves_no_quota(own_directory: NotaryDirectory, bank: Bank) -> None:
    """Anyone who has seen it may send it all the time. The party's new submissions still get the quota; a rejected new one reserves it."""
    large = bank.body(*[spend() for _ in range(600)])
    async with serving(own_directory, {"limits.party_requests_per_s": 600}) as service:
        service.gate.set()
        assert (await service.post(large)).status_code == 200
        await asyncio.sleep(1.1)
        assert (await service.post(bank.body(*[spend() for _ in range(590)]))).status_code == 200
        assert (await service.post(large)).status_code == 429
        assert (await service.post(bank.body(spend()))).status_code == 200
        assert (await service.post(bank.body(*[spend() for _ in range(600)]))).status_code == 429
        assert (await service.post(bank.body(spend()))).status_code == 429


@pytest.mark.seconds
async def test_a_short_suspension_of_answers_does_not_shorten_the_list_of_decisions(
    own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`decisions` has one member for each request: all decided (200), or null for those that could not be read (202)."""
    why: list[str] = []

    def encode_while_suspended(decision: Decision, receipt: bytes = b"") -> Pieces[bytes]:
        """A root disagreement begins while the first decision is written, and ends with the turn in which it is complete."""
        why.append("workers have different roots")
        encoded: bytes = yield from encode_in_pieces(decision, receipt)
        why.clear()
        return encoded

    states = [fresh_state() for _ in range(9_900)]
    async with serving(own_directory) as service:
        service.gate.set()
        assert (await service.post(bank.body(spend(*states)))).status_code == 200
        requests: list[dict[str, Any]] = [spend(*states), spend(), spend()]
        suspended = service.worker.serving_suspended
        monkeypatch.setattr(service.worker, "serving_suspended", lambda: suspended() or (why[0] if why else None))
        monkeypatch.setattr(in_flight, "encode_in_pieces", encode_while_suspended)
        call = Counting(SUBMISSIONS, "POST")
        service.app.take_verified(call, decode_submission(bank.body(*requests), NOTARY), AnswerForm(True, None), 0.0)
        await call.found
        status, body = call.returned()
        assert (status, len(body["decisions"])) in ((200, 3), (202, 3))
