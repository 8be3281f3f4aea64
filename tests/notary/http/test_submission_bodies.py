"""Bodies that are being received: one byte budget for all connections, which a body releases when it ends."""

import asyncio
import contextlib
import json
import queue
import select
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.notary.http.checked_client import JSON, Wire, post_head
from tests.notary.http.test_app import serving
from tests.notary.http.test_overload import by_hand
from tests.notary.party import Bank, spend
from tests.notary.process import NotaryDirectory, NotaryProcess

BYTES_MAX = 1_000_000
MOST = 600_000
"""More than half of the byte budget: two bodies with that many bytes do not fit."""


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory, bank: Bank) -> Iterator[NotaryProcess]:
    """A worker with a small byte budget."""
    directory = NotaryDirectory.create(tmp_path_factory.mktemp("tight") / "notary")
    directory.register(bank)
    settings = {"LIMITS_PENDING_BYTES_MAX": BYTES_MAX, "HTTP_HEAD_MS_MAX": 400}
    with NotaryProcess.start(directory.config, settings=settings) as process:
        yield process
        process.check_quiet()
        assert process.stop() == 0


@pytest.mark.seconds
def test_bodies_are_bounded_in_sum(tight: NotaryProcess) -> None:
    """Many large bodies arrive at once: those that fit the byte budget are read, the others get 503 before they are sent completely."""
    answers: queue.Queue[tuple[Wire, int, dict[str, str], bytes]] = queue.Queue()

    def send(wire: Wire) -> None:
        wire.send(post_head(2 * MOST) + b"x" * MOST)
        answers.put((wire, *wire.answer()))

    with contextlib.ExitStack() as open_ones:
        wires = [open_ones.enter_context(Wire(tight.url)) for _ in range(10)]
        threads = [threading.Thread(target=send, args=(wire,)) for wire in wires]
        for thread in threads:
            thread.start()
        for _ in range(9):
            wire, status, headers, body = answers.get(timeout=30)
            assert (status, json.loads(body)["type"]) == (503, "/problems/overloaded")
            assert int(headers["retry-after"]) >= 1
            wires.remove(wire)
        # The body that fits is still being read.
        (read,) = wires
        read.send(b"x" * MOST)
        assert answers.get(timeout=30)[:2] == (read, 400)
        for thread in threads:
            thread.join()


@pytest.mark.seconds
def test_a_body_larger_than_the_limit_is_read_alone(tight: NotaryProcess, bank: Bank) -> None:
    """A body larger than the byte budget is read when no other is: then the limit is that of one submission."""
    body = bank.body(spend()).ljust(BYTES_MAX + 100_000)
    with Wire(tight.url) as wire:
        wire.send(post_head(len(body)) + body)
        assert wire.answer()[0] == 200


def _left(wire: Wire) -> None:
    wire.send(post_head(2 * MOST) + b"x" * MOST)
    wire.socket.close()


def _malformed(wire: Wire) -> None:
    wire.send(post_head(MOST) + b"x" * MOST)
    assert wire.problem()["type"] == "/problems/malformed"


def _too_large(wire: Wire) -> None:
    wire.send(post_head(None, "Transfer-Encoding: chunked"))
    for _ in range(4):
        wire.send(b"%x\r\n%s\r\n" % (MOST, b"x" * MOST))
    assert wire.problem()["type"] == "/problems/too-large"


@pytest.mark.seconds
@pytest.mark.parametrize("done", [_left, _malformed, _too_large])
def test_what_a_body_took_is_given_back(tight: NotaryProcess, done: Callable[[Wire], None]) -> None:
    """A body releases its part of the byte budget however it ends: the next one of that size is read, again and again."""
    for _ in range(3):
        with Wire(tight.url) as wire:
            done(wire)
    # Nothing reports that the worker has noticed a client's leaving; until then the byte budget is used.
    status = 503
    while status == 503:
        with Wire(tight.url) as wire:
            wire.send(post_head(MOST) + b"x" * MOST)
            status = wire.answer()[0]
    assert status == 400


@pytest.mark.seconds
def test_a_decided_submission_gives_its_bytes_back(tight: NotaryProcess, bank: Bank) -> None:
    """The bytes of a decided submission are released."""
    for _ in range(4):
        body = bank.body(spend()).ljust(MOST)
        with Wire(tight.url) as wire, Wire(tight.url) as other:
            wire.send(post_head(len(body)) + body)
            assert wire.answer()[0] == 200
            other.send(post_head(MOST) + b"x" * MOST)
            assert other.answer()[0] == 400


@pytest.mark.seconds
def test_after_a_rejection_the_rest_of_the_body_may_come_or_not(tight: NotaryProcess) -> None:
    """After an early error the rest of the body is skipped, and the connection serves other calls; without the rest it ends soon."""
    with contextlib.ExitStack() as open_ones:
        wires = [open_ones.enter_context(Wire(tight.url)) for _ in range(3)]
        for wire in wires:
            wire.send(post_head(2 * MOST) + b"x" * MOST)
        # Any of the three may be the one that fits, which gets no answer yet.
        rejected: list[Wire] = []
        while len(rejected) < 2:
            speaking, _, _ = select.select([wire.socket for wire in wires], [], [], 30)
            rejected += [wire for wire in wires if wire.socket in speaking]
            wires = [wire for wire in wires if wire not in rejected]
        first, second = rejected
        assert (first.answer()[0], second.answer()[0]) == (503, 503)
        first.send(b"x" * MOST + b"GET /v1/notary HTTP/1.1\r\nHost: notary\r\n\r\n")
        assert first.answer()[0] == 200
        assert second.is_closed()


def test_a_body_that_was_too_slow_gives_its_capacity_back(
    own_directory: NotaryDirectory, notary_process: Callable[..., NotaryProcess]
) -> None:
    """A stalled body uses the byte budget until its deadline, and no longer."""
    process = notary_process(own_directory.config, settings={"LIMITS_PENDING_BYTES_MAX": BYTES_MAX, "HTTP_BODY_MS_MAX": 300})
    for _ in range(3):
        with Wire(process.url) as wire:
            wire.send(post_head(2 * MOST) + b"x" * MOST)
            assert "not complete" in wire.problem()["detail"]
    assert process.stop() == 0


async def test_a_pending_submission_uses_capacity_too(own_directory: NotaryDirectory, bank: Bank) -> None:
    """Bodies and admitted submissions share one limit, so memory is bounded; the admitted submission gets its answer."""
    async with serving(own_directory, {"limits.pending_bytes_max": 20_000}) as service:
        body = bank.body(*[spend() for _ in range(100)])
        first = asyncio.create_task(service.post(body))
        await service.pending()
        assert 10_000 < service.worker.sender.queue.pending_bytes < 20_000
        half = post_head(30_000) + b"x" * 15_000
        assert await by_hand(service, lambda wire: wire.send(half).problem()["type"]) == "/problems/overloaded"
        service.gate.set()
        assert (await first).status_code == 200
        assert service.worker.sender.queue.pending_bytes == 0
        answer = await service.http.post("/v1/submissions", content=b"x" * 15_000, headers=JSON)
        assert answer.status_code == 400
