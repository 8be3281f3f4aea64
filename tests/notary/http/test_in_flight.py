"""Submissions that are sent again: they are in the queue once or not at all, and count nevertheless. Calls and connections are freed."""

import asyncio
import base64
import contextlib
import gc
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from notary.bodies import Payer
from notary.decision import Decision
from notary.http import in_flight
from notary.http.connection import Connection
from notary.http.in_flight import InFlight
from notary.http.server import Server
from notary.http.submission import SUBMISSIONS, AnswerForm
from notary.wire import encode_decision, encode_in_pieces
from ordering.pieces import Pieces
from payload import SUBMISSION_BYTES_MAX, decode_submission
from tests.notary.http.checked_client import Wire, post_head
from tests.notary.http.test_app import serving
from tests.notary.http.test_turns import Counting
from tests.notary.party import NOTARY, Bank, fresh_state, spend, transaction_id
from tests.notary.process import NotaryDirectory
from tests.notary.test_gate import Clock

pytestmark = pytest.mark.seconds

CLIENTS = 60
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of the group of P-256 (FIPS 186-4, D.1.2.3). If (r, s) is a good signature, (r, order - s) is one too."""
OWN = {"ordering", "payload", "joiner", "notary"}


@contextlib.contextmanager
def garbage() -> Generator[Callable[[], Counter[str]], None, None]:
    """Yields a function that returns the types of the project's objects, and of errors, that only the garbage collector frees."""

    def found() -> Counter[str]:
        gc.collect()
        kinds = Counter(
            type(each).__qualname__ for each in gc.garbage if isinstance(each, BaseException) or type(each).__module__.split(".")[0] in OWN
        )
        gc.garbage.clear()
        return kinds

    gc.collect()
    gc.disable()
    gc.freeze()  # all that is there already stays, also after the test: the collector looks at new objects alone
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


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


def reset(wire: Wire) -> None:
    """Close a connection at once, so that the other end finds an error and not the end of the bytes."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.socket.close()


async def test_many_retries_of_a_decided_submission_are_bounded(
    own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding may be faster than answering. Decoded submissions without an answer share `pending_bytes_max` with the bodies."""
    held, together = Held(monkeypatch), threading.Barrier(CLIENTS)
    states = [fresh_state() for _ in range(4)]
    large = bank.body(*[spend(*states) for _ in range(500)])
    bytes_max = 2 << 20
    settings = {"limits.pending_bytes_max": bytes_max, "http.acceptor_processes": 1}

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
        assert not service.worker.gate._bytes_of


@pytest.mark.parametrize("acceptor_processes", [0, 1], ids=["worker", "acceptors"])
async def test_copies_from_one_address_leave_bytes_for_parties(
    own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch, acceptor_processes: int
) -> None:
    """Anyone may send a copy of a decided submission, on any number of new connections. These copies count as bodies of their address."""
    states = [fresh_state() for _ in range(4)]
    large = bank.body(*[spend(*states) for _ in range(1000)])
    bytes_max = 8 * len(large)
    held: list[Pieces[None]] = []
    settings = {"limits.pending_bytes_max": bytes_max, "http.acceptor_processes": acceptor_processes}
    async with serving(own_directory, settings) as service, contextlib.AsyncExitStack() as stack:
        service.gate.set()
        assert (await service.post(large)).status_code == 200
        url, work = str(service.http.base_url), service.app.turns.do
        with monkeypatch.context() as slow:
            slow.setattr(service.app.turns, "do", lambda pieces, **lane: held.append(pieces))
            wires = [stack.enter_context(Wire(url)) for _ in range(12)]
            answers = [asyncio.create_task(asyncio.to_thread(wire.send(post_head(len(large)) + large).problem)) for wire in wires]
            async with asyncio.timeout(30):
                while len(held) + sum([answer.done() for answer in answers]) < len(wires):  # noqa: ASYNC110 - polled from outside
                    await asyncio.sleep(0.005)
            assert service.worker.gate.body_bytes <= SUBMISSION_BYTES_MAX
            assert service.worker.gate.body_bytes == service.worker.gate._bytes_of[Payer("127.0.0.1", False)]
        assert any("from your address" in answer.result()["detail"] for answer in answers if answer.done())
        assert (await service.post(bank.body(spend()))).status_code == 200
        for pieces in held:
            work(pieces, party=bank.name)
        await asyncio.gather(*answers, return_exceptions=True)
        assert service.worker.gate.body_bytes == 0
        assert not service.worker.gate._bytes_of


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


@pytest.mark.parametrize("acceptor_processes", [0, 1], ids=["worker", "acceptors"])
@pytest.mark.parametrize("differs", ["states", "signature"])
async def test_a_pending_submission_in_another_form_is_a_copy(
    own_directory: NotaryDirectory, acceptor_processes: int, differs: str
) -> None:
    """Its ids are the same. So anyone may write its states in another order, or negate its ECDSA signature: the signature stays good.

    A stranger has no good one, and learns no decision.
    """
    party = Bank("O=Bank P", p256=True)
    own_directory.register(party)
    request = spend(*[fresh_state() for _ in range(3)])
    first = party.submission(request)
    copy = dict(first)
    if differs == "states":
        copy["requests"] = [{**request, "inputs": request["inputs"][::-1]}]
    else:
        r, s = decode_dss_signature(base64.b64decode(first["signature"]))
        copy["signature"] = base64.b64encode(encode_dss_signature(r, P256_ORDER - s)).decode()
    bodies = [json.dumps(each).encode() for each in (first, copy)]
    settings = {"http.acceptor_processes": acceptor_processes}
    async with serving(own_directory, settings) as service, contextlib.AsyncExitStack() as stack:
        assert (await service.http.get("/readyz")).status_code == 200  # the acceptor process has learned that submissions are admitted
        wires = [stack.enter_context(Wire(str(service.http.base_url))) for _ in bodies]
        for at, (wire, body) in enumerate(zip(wires, bodies, strict=True)):
            await asyncio.to_thread(wire.send, post_head(len(body)) + body)
            async with asyncio.timeout(30):
                while len(service.app.waiting) <= at:  # noqa: ASYNC110 - polled from outside
                    await asyncio.sleep(0.005)
        assert service.worker.sender.queue.pending_requests == 1
        forged = json.dumps(first | {"signature": base64.b64encode(party.sign(b"another message")).decode()}).encode()
        stranger = stack.enter_context(Wire(str(service.http.base_url)))
        await asyncio.to_thread(stranger.send, post_head(len(forged)) + forged)
        assert (await asyncio.to_thread(stranger.answer))[0] == 403
        service.gate.set()
        assert [(await asyncio.to_thread(wire.answer))[0] for wire in wires] == [200, 200]
        assert service.worker.sender.batches_sent == 1


async def test_a_submission_counts_as_unanswered_after_its_first_client_has_left(
    own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else `AnswerBacklog` would not bound the decided submissions of a party that sends each one twice, and leaves once."""
    body = bank.body(spend())
    async with serving(own_directory) as service, contextlib.AsyncExitStack() as stack:
        wires = [stack.enter_context(Wire(str(service.http.base_url))) for _ in range(3)]
        async with asyncio.timeout(30):
            for at, wire in enumerate(wires):
                await asyncio.to_thread(wire.send, post_head(len(body)) + body)
                while len(service.app.waiting) <= at:  # noqa: ASYNC110 - polled from outside
                    await asyncio.sleep(0.005)
            reset(wires[0])
            while len(service.app.waiting) == len(wires):  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0.005)
        counted: list[int] = []
        for change, method in ((1, "enter"), (-1, "leave")):
            monkeypatch.setattr(service.app.unanswered, method, lambda change=change: counted.append(change))
        service.gate.set()
        assert [(await asyncio.to_thread(wire.answer))[0] for wire in wires[1:]] == [200, 200]
        assert counted == [1, -1]


@pytest.mark.parametrize("acceptor_processes", [0, 1], ids=["worker", "acceptors"])
async def test_a_client_that_leaves_frees_its_calls(own_directory: NotaryDirectory, bank: Bank, acceptor_processes: int) -> None:
    """Heads count in no limit, so those of clients that leave must not stay until the decision. The submission stays, and is decided."""
    request = spend()
    body = bank.body(request)
    async with serving(own_directory, {"http.acceptor_processes": acceptor_processes}) as service, contextlib.AsyncExitStack() as stack:
        assert (await service.http.get("/readyz")).status_code == 200  # the acceptor process has learned that submissions are admitted
        wires = [stack.enter_context(Wire(str(service.http.base_url))) for _ in range(3)]
        for wire in wires:
            await asyncio.to_thread(wire.send, post_head(len(body), "Prefer: wait=60", "X: " + "x" * 20_000) + body)
        async with asyncio.timeout(30):
            while len(service.app.waiting) < len(wires):  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0.005)
        assert [service.app.waiting_lanes.part_of(lane) for lane in ("127.0.0.1", bank.name.encode(), b"O=Other")] == [1.0, 1.0, 0.5]
        in_lane = {lane: count for (lane, _), (count, _) in service.app.waiting_lanes._submissions.items()}
        assert in_lane == {"127.0.0.1": 1, bank.name.encode(): 2}  # a copy, which anyone may send, gives its sender no part of the time
        for wire in wires:
            reset(wire)
        async with asyncio.timeout(30):
            await service.app.idle()
        assert not service.app.waiting
        assert not service.app.waiting_lanes
        assert service.worker.sender.queue.pending_requests == 1
        assert not [waiter for pending in service.worker.sender.queue._pending.values() for waiter in pending.waiters]
        service.gate.set()
        async with asyncio.timeout(30):
            while (await service.http.get(f"/v1/transactions/{transaction_id(request)}")).status_code != 200:
                pass


async def test_a_client_that_closes_its_half_still_gets_its_answer(own_directory: NotaryDirectory, bank: Bank) -> None:
    """It has not left."""
    body = bank.body(spend())
    async with serving(own_directory) as service:
        with Wire(str(service.http.base_url)) as wire:
            await asyncio.to_thread(wire.send, post_head(len(body)) + body)
            wire.socket.shutdown(socket.SHUT_WR)
            await service.pending()
            await asyncio.sleep(0.1)
            service.gate.set()
            assert (await asyncio.to_thread(wire.answer))[0] == 200


@pytest.mark.parametrize("leaves", ["before", "meanwhile"])
async def test_for_a_client_that_has_left_no_receipt_is_made(
    own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    """A copy of a decided submission costs no receipts and no JSON if its client leaves. A new one is decided nevertheless."""
    old, new = [spend() for _ in range(300)], spend()
    async with serving(own_directory) as service:
        service.gate.set()
        assert (await service.post(bank.body(*old))).status_code == 200
        made: list[int] = []
        monkeypatch.setattr(service.worker.issuer, "receipt_json", lambda position: made.append(position) or b'""')
        for body in (bank.body(*old), bank.body(old[0], new)):
            call = Counting(SUBMISSIONS, "POST")
            call.gone = leaves == "before"
            service.app.take_verified(call, decode_submission(body, NOTARY), AnswerForm(True, 60), 0.0)
            call.leave()
            await service.app.idle()
        assert made == []
        async with asyncio.timeout(30):
            while (await service.http.get(f"/v1/transactions/{transaction_id(new)}")).status_code != 200:
                pass


async def test_a_copy_of_a_decided_submission_reserves_no_quota(own_directory: NotaryDirectory, bank: Bank) -> None:
    """Anyone who has seen it may send it all the time. The party's new submissions still get the quota; a rejected new one reserves it."""
    large = bank.body(*[spend() for _ in range(600)])
    async with serving(own_directory, {"limits.party_requests_per_s": 600}) as service:
        service.gate.set()
        quota = service.worker.gate._quota
        assert quota is not None
        quota._clock_s = clock = Clock()
        assert (await service.post(large)).status_code == 200
        clock.now_s += 1
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
        receipt_json, suspensions = service.worker.issuer.receipt_json, list[bool]()
        monkeypatch.setattr(
            service.worker.issuer,
            "receipt_json",
            lambda position: suspensions.append(service.app.turns.is_suspended) or receipt_json(position),
        )
        call = Counting(SUBMISSIONS, "POST")
        service.app.take_verified(call, decode_submission(bank.body(*requests), NOTARY), AnswerForm(True, None), 0.0)
        await call.found
        assert suspensions == [False], "no receipt is made of an index that may be wrong"
        status, body = call.returned()
        assert (status, len(body["decisions"])) in ((200, 3), (202, 3))


@pytest.mark.parametrize("why", ["suspended", "detached"])
async def test_an_answer_that_is_complete_too_late_has_no_decision(
    own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Workers disagree, or this one has lost data, just when all decisions are read: the index may have been wrong already."""

    def last(decision: Decision, receipt: bytes) -> bytes:
        if why == "suspended":
            service.app.turns.is_suspended = True
        else:
            service.app.detach("it has lost data")
        return encode_decision(decision, receipt)

    body = bank.body(spend())
    async with serving(own_directory) as service:
        service.gate.set()
        assert (await service.post(body)).status_code == 200
        monkeypatch.setattr(in_flight, "encode_decision", last)
        call = Counting(SUBMISSIONS, "POST")
        service.app.take_verified(call, decode_submission(body, NOTARY), AnswerForm(True, None), 0.0)
        await call.found
        assert call.returned() == (202, {"decisions": [None]})


@pytest.mark.parametrize("acceptor_processes", [0, 1], ids=["worker", "acceptors"])
async def test_an_answered_call_is_freed_without_the_garbage_collector(
    own_directory: NotaryDirectory, bank: Bank, acceptor_processes: int
) -> None:
    """Cycles of references would keep each submission's bytes until the collector runs, which costs a twentieth of a worker's time."""
    state = fresh_state()
    decided = spend(state)
    kinds: dict[str, Callable[[], bytes]] = {
        "new": lambda: bank.body(spend()),
        "a retry": lambda: bank.body(decided),
        "a double spend": lambda: bank.body(spend(state)),
        "an unknown party": lambda: Bank("O=Another").body(spend()),
        "malformed": lambda: b"{",
        "malformed within": lambda: bank.body(spend()).replace(b'"inputs": ["', b'"inputs": ["x'),
        "a bad signature": lambda: Bank(bank.name).body(spend()),
    }
    paths = ["/checkpoint", f"/v1/transactions/{transaction_id(decided)}", "/tile/entries/000", "/tile/0/000", "/metrics", "/no"]
    settings = {"limits.pending_requests_max": 2, "http.acceptor_processes": acceptor_processes}
    async with serving(own_directory, settings) as service:
        service.gate.set()
        assert (await service.post(bank.body(decided))).status_code == 200
        with Wire(str(service.http.base_url)) as wire, garbage() as found:

            async def ask(kind: str, prefer: str = "") -> int:
                if kind.startswith("/"):
                    sent = f"GET {kind} HTTP/1.1\r\nHost: notary\r\n\r\n".encode()
                else:
                    body = kinds[kind]()
                    sent = post_head(len(body), *([prefer] if prefer else [])) + body
                return (await asyncio.to_thread(wire.send(sent).answer))[0]

            for kind in [*kinds, *paths]:
                assert {await ask(kind) for _ in range(5)} <= {200, 400, 401, 403, 404}
                assert not found(), kind
            service.gate.clear()
            while await ask("new", "Prefer: wait=0") == 202:
                pass
            found()
            assert {await ask("new") for _ in range(5)} == {503}
            assert not found()


async def test_a_closed_connection_is_freed_without_the_garbage_collector(
    own_directory: NotaryDirectory, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it ends. Clients without a key may open and close any number, and the collector scans all objects in use."""
    get, within = b"GET %s HTTP/1.1\r\nHost: notary\r\n\r\n", b"GET /livez HTT"
    closed: list[bool] = []
    forget = Server.closed

    def noted(server: Server, connection: Connection) -> None:
        forget(server, connection)
        closed.append(True)

    def ends(sent: Callable[[], bytes], then: Callable[[Wire], object], url: str) -> None:
        with Wire(url) as wire, contextlib.suppress(ConnectionError):
            then(wire.send(sent()))

    def after_its_answer(wire: Wire) -> None:
        wire.answer()

    def at_a_half_close(wire: Wire) -> None:
        wire.socket.shutdown(socket.SHUT_WR)
        wire.answer()
        assert wire.is_closed()

    def by_the_worker(wire: Wire) -> None:
        while True:  # until the end: malformed bytes that are parsed after the answer to the call before them get one too
            wire.answer()

    def submission(behind: bytes = b"", *lines: str) -> Callable[[], bytes]:
        def made() -> bytes:
            body = bank.body(spend())
            return post_head(len(body), *lines) + body + behind

        return made

    ways: dict[str, tuple[Callable[[], bytes], Callable[[Wire], object]]] = {
        "without a call": (lambda: b"", lambda wire: None),
        "after a call": (lambda: get % b"/livez", after_its_answer),
        "after a call, by a reset": (lambda: get % b"/livez", lambda wire: (wire.answer(), reset(wire))),
        "by a half close": (lambda: get % b"/livez", at_a_half_close),
        "after a submission": (submission(), after_its_answer),
        "after its last call": (submission(b"", "Connection: close"), by_the_worker),
        "within a head": (lambda: within, lambda wire: None),
        "within a body": (lambda: post_head(100) + b"{", reset),
        "within a rejected body": (lambda: post_head(1 << 30) + b"{", reset),
        "in a long poll": (lambda: get % f"/v1/transactions/{transaction_id(spend())}?wait=30".encode(), reset),
        "by bytes that are no call": (lambda: b"no call\r\n\r\n", by_the_worker),
        "by such bytes behind a submission": (submission(b"no call\r\n\r\n"), by_the_worker),
        "by a malformed head behind a submission": (submission(b"GET / HTTP/1.1\r\n\r\n"), by_the_worker),
        "by a late head": (lambda: within, by_the_worker),
    }
    monkeypatch.setattr(Server, "closed", noted)
    async with serving(own_directory, head_s_max=1.0) as service:
        service.gate.set()
        assert (await service.post(bank.body(spend()))).status_code == 200
        with garbage() as found:
            for way, (sent, then) in ways.items():
                closed.clear()
                for _ in range(3):
                    await asyncio.to_thread(ends, sent, then, str(service.http.base_url))
                async with asyncio.timeout(30):
                    while len(closed) < 3:  # noqa: ASYNC110 - polled from outside
                        await asyncio.sleep(0.005)
                    await service.app.idle()
                assert not found(), way
