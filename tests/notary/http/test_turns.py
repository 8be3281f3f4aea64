"""Long calls are done in pieces: these tests count the turns of the loop between them, never time."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import pytest

from joiner import AdmittedSubmission
from notary import decision as decisions
from notary import parties, wire
from notary.duty_cycle import DutyCycle
from notary.gate import BUSY_CHECK_S, Gate
from notary.http import in_flight, lifecycle, turns
from notary.http.call import Answer, Call
from notary.http.in_flight import InFlight
from notary.http.lifecycle import NOBODY, Deadlines
from notary.http.reads import LOOK_UP_US
from notary.http.submission import SUBMISSIONS, AnswerForm
from notary.parties import Parties
from notary.tree import TILE_WIDTH
from ordering.clock import uptime_s
from ordering.pieces import Pieces
from payload import decode_submission
from payload import request as payload_request
from payload import submission as payload_submission
from tests.clients.load import until
from tests.notary.http.test_app import ACCEPTORS, Service, serving
from tests.notary.party import NOTARY, Bank, fresh_hash, spend, transaction_id
from tests.notary.process import NotaryDirectory
from tests.notary.test_gate import RecordingBody

COUNT = 600
TURN_US, SHARE_US = 600, 300


@pytest.fixture
async def service(own_directory: NotaryDirectory, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """A worker in this loop; a turn has time for a hundred look-ups."""
    for turn in ("TURN_US", "READ_TURN_US"):
        monkeypatch.setattr(turns, turn, TURN_US)
    monkeypatch.setattr(turns, "SHARE_US", SHARE_US)
    monkeypatch.setattr(in_flight, "IDS_A_PIECE", 50)
    async with serving(own_directory) as service:
        service.gate.set()
        yield service


class Counting(Call):
    """A call without a connection."""

    __slots__ = ("found",)

    def __init__(self, path: str, method: str = "GET") -> None:
        self.found: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        super().__init__(method, path, b"", [], lambda call, answer, after_body: self.found.set_result(answer))

    async def turns(self) -> int:
        """Returns the number of turns of the loop until it is answered."""
        count = 0
        while not self.found.done():
            await asyncio.sleep(0)
            count += 1
        return count

    def returned(self) -> tuple[int, Any]:
        """Returns status and body of the answer."""
        status, _, body = self.found.result()
        return status, json.loads(body)


def look_up(service: Service, path: str) -> Counting:
    call = Counting(path)
    service.app.take(call)
    return call


def long_poll(service: Service, wait_s: int = 60) -> Counting:
    call = Counting(f"/v1/transactions/{fresh_hash()}")
    call.query = b"wait=%d" % wait_s
    service.app.take(call)
    return call


def submit(service: Service, body: bytes, ticket: bytes = b"") -> Counting:
    """Submit as if the gate had just admitted it."""
    call = Counting(SUBMISSIONS, "POST")
    service.app.take_verified(call, decode_submission(body, NOTARY), AnswerForm(False, None, ticket=ticket), 0.0)
    return call


async def test_an_old_submission_is_answered_in_pieces(service: Service, bank: Bank) -> None:
    """Each turn does a bounded part of the look-ups and receipts; a small call that comes later is answered before."""
    body = bank.body(*[spend() for _ in range(COUNT)])
    first = (await service.post(body)).json()["decisions"]
    retry = Counting(SUBMISSIONS, "POST")
    service.app.take_verified(retry, decode_submission(body, NOTARY), AnswerForm(True, None), 0.0)
    small = look_up(service, f"/v1/transactions/{first[0]['transaction_id']}")
    assert await small.turns() < 5
    assert not retry.found.done()
    # Two look-ups and a receipt each, in turns of 900 us at most.
    assert await retry.turns() > COUNT * 17 // (TURN_US + SHARE_US) - 5
    assert retry.returned() == (200, {"decisions": first})


async def test_the_leaves_of_a_tile_are_read_in_pieces(service: Service, bank: Bank) -> None:
    """The leaves of a tile, which anybody may read, are read in pieces: 256 rows may be 176 MB."""
    await service.post(bank.body(*[spend() for _ in range(TILE_WIDTH)]))
    call = look_up(service, "/tile/entries/000")
    assert await call.turns() >= TILE_WIDTH * 12 // (TURN_US + SHARE_US)
    assert len(call.found.result()[2]) == TILE_WIDTH * (2 + 104)


async def test_many_conflicts_are_read_and_written_in_pieces(service: Service, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conflicts are read and written in pieces; the answer is the same as that to the submission, and as in one piece."""
    states = [f"{fresh_hash()}:{at}" for at in range(2_000)]
    await service.post(bank.body(spend(*states)))
    loser = spend(*states)
    [complete] = (await service.post(bank.body(loser))).json()["decisions"]
    assert len(complete["conflicts"]) == len(states)
    for module in (decisions, wire):
        monkeypatch.setattr(module, "CONFLICTS_A_PIECE", 100)
    call = look_up(service, f"/v1/transactions/{transaction_id(loser)}")
    assert await call.turns() >= 2 * len(states) // (TURN_US + SHARE_US)
    del complete["receipt"]
    assert call.returned() == (200, complete)


async def test_rejections_of_many_conflicts_are_answered_in_pieces(service: Service, bank: Bank) -> None:
    """A submission of rejections whose conflicts just fit into a piece each, sent again, holds the loop no longer than others."""
    states = [f"{fresh_hash()}:{at}" for at in range(decisions.CONFLICTS_A_PIECE)]
    await service.post(bank.body(spend(*states)))
    body = bank.body(*[spend(*states) for _ in range(40)])
    first = (await service.post(body)).json()["decisions"]
    assert {len(each["conflicts"]) for each in first} == {len(states)}
    retry = Counting(SUBMISSIONS, "POST")
    service.app.take_verified(retry, decode_submission(body, NOTARY), AnswerForm(True, None), 0.0)
    assert await retry.turns() >= 40 * len(states) // (TURN_US + SHARE_US)
    assert retry.returned() == (200, {"decisions": first})


async def test_a_burst_with_old_requests_first_is_charged_one_by_one(
    own_directory: NotaryDirectory, bank: Bank, charged: list[int]
) -> None:
    """All are admitted in one turn of the loop, before any is charged, and are looked up later: the quota is enough for one."""
    old = spend()
    async with serving(own_directory, {"limits.party_requests_per_s": 4}) as service:
        service.gate.set()
        assert (await service.post(bank.body(old))).status_code == 200
        before = service.worker.index.position_next
        calls = [submit(service, bank.body(old, spend(), spend())) for _ in range(4)]
        for call in calls:
            await call.turns()
        statuses = [call.returned()[0] for call in calls]
        assert statuses.count(429) == 4 - statuses.count(200) >= 2, statuses
        assert charged == [1] + [3] * statuses.count(200)
        assert service.worker.index.position_next == before + 2 * statuses.count(200)


async def test_nobody_waits_for_a_client_that_left_before_its_submission_is_queued(service: Service, bank: Bank) -> None:
    """Its call ends at once. The submission goes into the log nevertheless."""
    service.gate.clear()
    call = Counting(SUBMISSIONS, "POST")
    call.leave()
    service.app.take_verified(call, decode_submission(bank.body(spend()), NOTARY), AnswerForm(False, 60), 0.0)
    async with asyncio.timeout(10):
        await service.app.idle()
    assert call.found.result() == NOBODY
    assert service.worker.sender.queue.pending_requests == 1


async def test_answers_are_made_address_by_address_and_party_by_party(service: Service) -> None:
    """Work for another address, and for another party, does not wait until much work for one has been done."""
    done: list[str] = []

    def work(name: str, pieces: int) -> Generator[int, None, None]:
        for _ in range(pieces):
            yield SHARE_US
        done.append(name)

    for number in range(50):
        service.app.turns.do(work("many", 20 + number), network="127.0.0.2")
        service.app.turns.do(work("party", 5 + number), party="O=Many")
    service.app.turns.do(work("reader", 2), network="127.0.0.3")
    service.app.turns.do(work("few", 2), party="O=Few")
    count = 0
    while not {"reader", "few"} <= set(done):
        await asyncio.sleep(0)
        count += 1
    assert count < 10
    assert len(done) == 2
    await until(lambda: len(done) == 102, 0)


@pytest.mark.parametrize(("addresses", "begun_max"), [(1, 1), (200, turns.READS_BEGUN_MAX)])
async def test_few_reads_are_begun_at_one_time(service: Service, addresses: int, begun_max: int) -> None:
    """A read that has begun may use megabytes. A thousand connections, or addresses, do not have that much of them at one time."""
    begun, most = set[int](), 0

    def work(number: int) -> Pieces[None]:
        nonlocal most
        begun.add(number)
        most = max(most, len(begun))
        for _ in range(5):
            yield SHARE_US
        begun.remove(number)
        done.append(number)

    done: list[int] = []
    for number in range(200):
        service.app.turns.do(work(number), network=f"10.0.0.{number % addresses}")
    await until(lambda: len(done) == 200, 0)
    assert most == begun_max


@pytest.mark.parametrize(("count", "pieces", "counts"), [(20, 1, False), (200, 20, True)], ids=["small", "counts"])
async def test_an_answer_does_not_wait_behind_repeated_ones(service: Service, count: int, pieces: int, counts: bool) -> None:
    """Anyone may send copies of a party's large submissions on any number of connections. Its small answers are made before those.

    So are those that count: the gate of all parties waits for them.
    """
    done: list[str] = []

    def work(name: str, pieces: int) -> Pieces[None]:
        for _ in range(pieces):
            yield SHARE_US
        done.append(name)

    for _ in range(count):
        service.app.turns.do(work("repeated", 20), party="O=Many")
    service.app.turns.do(work("first", pieces), party="O=Many", counts=counts)
    await until(lambda: bool(done), 0)
    assert done == ["first"]
    await until(lambda: len(done) == count + 1, 0)


async def test_what_is_decided_but_for_the_last_one_goes_to_the_log(service: Service, bank: Bank) -> None:
    """A later turn finds that one transaction is new; by then there may be no capacity, and the party gets a ticket."""
    requests, changes = [spend() for _ in range(COUNT)], list[None]()
    await service.post(bank.body(*requests))
    service.gate.clear()
    service.app.admission_changed = lambda: changes.append(None)
    submit(service, bank.body(spend()))
    rejected = submit(service, bank.body(*requests[1:], spend(), spend()))
    assert len(service.app.waiting) == 2
    queue = service.worker.sender.queue
    # A party alone may have nine tenths of the capacity that is not kept for others: exactly COUNT requests.
    queue._limits = type(queue._limits)(pending_requests_max=queue._spared_requests + COUNT * 10 // 9)
    queue._calm_requests_min = 0
    await rejected.turns()
    status, headers, body = rejected.found.result()
    assert (status, json.loads(body)["type"]) == (503, "/problems/overloaded")
    assert b"ticket" in dict(headers), "it may come again before others, like all that are rejected for capacity"
    assert changes, "acceptor processes learn that there is no capacity"
    assert len(service.app.waiting) == 1
    fits = submit(service, bank.body(*requests[2:], spend()))
    await until(lambda: queue.pending_requests >= COUNT, 0)
    assert service.worker.gate.body_bytes == 0, "its bytes count in the queue from now on"
    tickets = service.worker.tickets
    tickets._clock_s = lambda: uptime_s() + int(dict(headers)[b"retry-after"])
    submit(service, bank.body(requests[0], spend()), dict(headers)[b"ticket"])
    for _ in range(10):
        await asyncio.sleep(0)
    assert (queue.pending_requests, tickets.used) == (COUNT + 2, 1), "the ticket opens the last part of the capacity, once"
    service.gate.set()
    await fits.found
    status, returned = fits.returned()
    assert status == 200
    assert [one["position"] for one in returned["decisions"][:-1]] == list(range(2, COUNT))


async def test_what_is_looked_up_while_the_worker_stops_is_not_queued(service: Service, bank: Bank) -> None:
    """From the signal on nothing new goes into the log. The client gets a 503, which sends it to another worker."""
    old = spend()
    await service.post(bank.body(old))
    call = submit(service, bank.body(old, spend()))
    service.app.stopping()
    await call.turns()
    status, body = call.returned()
    assert (status, body["type"]) == (503, "/problems/not-ready")
    assert service.worker.index.position_next == 1
    assert not service.worker.sender.queue.pending_requests


async def test_a_bug_in_a_look_up_costs_one_call(service: Service, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that were looked up count no more, and the service is not busy for ever."""
    old = spend()
    await service.post(bank.body(old))
    call = submit(service, bank.body(old, spend()))
    with monkeypatch.context() as patched:
        patched.setattr(service.worker.index, "has_decided", lambda transaction_ids: 1 // 0)
        await call.turns()
    assert call.found.result()[0] == 500
    assert service.worker.gate.body_bytes == 0
    assert not service.app.waiting_lanes


async def test_a_wait_ends_once(service: Service, bank: Bank) -> None:
    """A client may leave just when its wait has ended. Its call is answered once, and nothing is left of the wait."""
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    service.gate.clear()
    call = submit(service, bank.body(spend()))
    (waiting,) = service.app.waiting
    assert isinstance(waiting, InFlight)
    waiting.end()
    call.leave()
    for _ in range(10):
        await asyncio.sleep(0)
    assert call.found.result() == NOBODY
    assert problems == [], "a second answer"
    assert service.app._under_way == 0
    assert service.app.unanswered._size == 0
    assert not service.app.deadlines._ticks


async def test_waits_that_end_together_end_in_several_turns(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone may begin long polls at such times that all of them end within one tick."""
    monkeypatch.setattr(lifecycle, "TICK_S", 1.0)
    waiting, most = service.app.waiting, 0
    for _ in range(400):
        long_poll(service, 1)
    before = len(waiting)
    assert before == 400
    while waiting:
        await asyncio.sleep(0)
        before, most = len(waiting), max(most, before - len(waiting))
    assert most == lifecycle.ENDS_A_TURN


async def test_a_bug_at_the_end_of_a_wait_costs_one_call() -> None:
    """The other waits of its tick end, and nothing is left of them."""
    deadlines, ended, problems = Deadlines(), list[int](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))

    class Wait:
        def __init__(self, number: int) -> None:
            self.number = number

        def end(self) -> None:
            ended.append(1 // self.number)

    for number in (0, 1, 1):
        deadlines.end_after(0.01, Wait(number))
    await until(lambda: not deadlines._ticks, 0)
    assert (ended, len(problems)) == ([1, 1], 1)


async def test_a_worker_that_ends_between_two_pieces_returns_nothing_more(service: Service, bank: Bank) -> None:
    """Submissions get a 202 without a decision, look-ups a 503; nothing is read from a worker that has ended."""
    old, problems = spend(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    body = bank.body(old, *[spend() for _ in range(COUNT - 1)])
    await service.post(body)
    looks, retry, submitted = look_up(service, "/tile/entries/000"), submit(service, body), submit(service, body)
    for _ in range(3):
        await asyncio.sleep(0)
    partly_new = submit(service, bank.body(old, spend()))
    service.app.detach("it ends")
    await asyncio.gather(*[call.turns() for call in (looks, retry, submitted, partly_new)])
    assert looks.returned()[0] == 503
    assert retry.returned() == submitted.returned() == (202, {"decisions": [None] * COUNT})
    assert partly_new.returned() == (202, {"decisions": [None] * 2})
    await service.app.idle()
    for _ in range(10):
        await asyncio.sleep(0)
    assert problems == [], "a second answer"


async def test_while_workers_disagree_nothing_is_read_from_the_index(service: Service, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index may be wrong. A read that has begun is not finished either, and nobody waits. The notary's own facts are not from there."""
    requests = [spend() for _ in range(TILE_WIDTH)]
    await service.post(bank.body(*requests))
    entries = look_up(service, "/tile/entries/000")
    await asyncio.sleep(0)
    assert not entries.found.done()
    monkeypatch.setattr(service.worker, "serving_suspended", lambda: "workers have different roots")
    calls = [entries, long_poll(service), look_up(service, f"/v1/transactions/{transaction_id(requests[0])}")]
    for call in calls:
        await call.turns()
        status, body = call.returned()
        assert (status, body["detail"]) == (503, "workers have different roots")
    facts = look_up(service, "/v1/notary")
    await facts.turns()
    assert facts.returned()[0] == 200


async def test_long_polls_that_end_together_are_answered_over_many_turns(service: Service) -> None:
    """Hundreds may wait for one transaction, or for the end of the worker. A client that has left gets nothing."""
    calls = [long_poll(service) for _ in range(100)]
    assert service.app.long_polls == len(calls)
    calls[0].gone = True
    service.app.detach("it ends")
    assert sum([await call.turns() for call in calls]) >= len(calls) * LOOK_UP_US // (TURN_US + SHARE_US)
    assert [call.found.result()[0] for call in calls[1:]] == [503] * (len(calls) - 1)
    assert calls[0].found.result() == NOBODY


async def test_what_nobody_waits_for_any_more_is_not_made(service: Service, bank: Bank) -> None:
    """A client that leaves before its answer costs no more than the pieces until then."""
    await service.post(bank.body(*[spend() for _ in range(TILE_WIDTH)]))
    call = look_up(service, "/tile/entries/000")
    await asyncio.sleep(0)
    call.gone = True
    await service.app.idle()
    assert call.found.result() == NOBODY


async def test_a_bug_in_one_answer_does_not_stop_the_others(service: Service, bank: Bank, caplog: pytest.LogCaptureFixture) -> None:
    """The event loop logs work that raises; calls beside it and after it are answered."""

    def broken() -> Generator[int, None, None]:
        yield 1
        raise KeyError("a bug")

    await service.post(bank.body(*[spend() for _ in range(TILE_WIDTH)]))
    beside = look_up(service, "/tile/entries/000")
    service.app.turns.do(broken())
    await beside.turns()
    later = look_up(service, "/tile/entries/000")
    await later.turns()
    assert beside.found.result()[0] == later.found.result()[0] == 200
    assert "KeyError: 'a bug'" in caplog.text


async def test_an_answer_after_the_end_is_counted(service: Service, bank: Bank) -> None:
    """A call that is answered after the worker was detached is in the metrics as any other."""
    call = look_up(service, "/v1/notary")
    await call.turns()
    service.app.detach("it ends")
    late = look_up(service, "/v1/notary")
    await late.turns()
    assert late.returned()[0] == 503
    assert service.app.metrics is not None
    assert b'notary_http_answers_total{call="/v1/notary",status="503"} 1.0' in service.app.metrics.text()


@pytest.fixture
def slow_gate(tmp_path: Path, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate that decodes a small piece in each turn."""
    for module in (payload_request, payload_submission):
        monkeypatch.setattr(module, "STATES_A_PIECE", 10)
    ticks = itertools.count()
    parties.write(tmp_path / "parties.json", {bank.name: bank.public_pem.decode()})
    return Gate(
        NOTARY, Parties(tmp_path / "parties.json"), lambda: None, lambda: next(ticks), bytes_max=1 << 20, body_s_max=20.0, turn_s_max=0.5
    )


async def test_a_large_body_is_decoded_in_pieces(slow_gate: Gate, bank: Bank) -> None:
    """A turn of the gate ends after the piece in which its time ends; a large request is cut, and so are many small ones."""
    for requests in ([spend(*[f"{fresh_hash()}:0" for _ in range(200)])], [spend() for _ in range(200)]):
        body, left = RecordingBody(slow_gate), RecordingBody(slow_gate)
        for each in (body, left):
            each.piece(bank.body(*requests))
            each.complete()
        turns = 0
        while not body.results:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 20
        (admitted,) = body.results
        assert isinstance(admitted, AdmittedSubmission)
        assert [request.transaction_id.hex() for request in admitted.requests] == [transaction_id(each) for each in requests]
        await asyncio.sleep(0)
        left.left()  # in the middle of its decoding
        after = RecordingBody(slow_gate)
        after.piece(bank.body(spend()))
        after.complete()
        await after.done
        assert isinstance(after.results[0], AdmittedSubmission)
        assert AdmittedSubmission not in map(type, left.results)
        assert slow_gate.body_bytes == 0


async def test_a_body_of_a_party_does_not_wait_for_a_large_one_of_an_address(slow_gate: Gate, bank: Bank) -> None:
    """While a large body of a client without an admitted submission is decoded in pieces, those of parties are decoded in between."""

    def handed(network: str, parties_before: set[bytes], *states: str) -> RecordingBody:
        body = RecordingBody(slow_gate)
        body.network, body.parties = network, parties_before
        body.piece(bank.body(spend(*states)))
        body.complete()
        return body

    large = handed("127.0.0.2", set(), *[f"{fresh_hash()}:0" for _ in range(400)])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(3):
        small = handed("127.0.0.1", {bank.name.encode()}, f"{fresh_hash()}:0")
        turns = 0
        while not small.results:
            await asyncio.sleep(0)
            turns += 1
        assert turns < 8
        assert not large.results
    await large.done
    assert isinstance(large.results[0], AdmittedSubmission)


async def test_reads_are_answered_in_active_slices_and_submissions_in_each() -> None:
    """Large pieces of reads are followed by rests, in which answers to submissions go on."""
    now_s = 0.0
    made: list[str] = []

    def work(whose: str, seconds: float) -> Pieces[None]:
        nonlocal now_s
        while True:
            now_s += seconds
            made.append(whose)
            yield turns.SHARE_US

    duty = DutyCycle(lambda: now_s, lambda: True)
    answers = turns.Turns(lambda: True, duty)
    answers.do(work("read", 0.01), network="somebody")
    answers.do(work("submission", 0.001), party="somebody")
    await until(lambda: made.count("read") >= 5, 0)
    for first, last in itertools.pairwise([at for at, whose in enumerate(made) if whose == "read"]):
        assert last - first - 1 >= 10


def test_a_queue_that_was_never_empty_is_standing() -> None:
    """Decided submissions without answers are behind once there was always one for `BEHIND_S`, until all have their answers."""
    now_s, caught_up = 0.0, 0

    def catch_up() -> None:
        nonlocal caught_up
        caught_up += 1

    backlog = turns.AnswerBacklog(lambda: now_s)
    backlog.caught_up = catch_up
    for _ in range(3):  # a burst that is answered in time, and again
        backlog.enter()
        now_s += 0.9 * turns.BEHIND_S
        assert not backlog.is_standing()
        backlog.leave()
    assert caught_up == 0
    backlog.enter()
    for _ in range(3):
        backlog.enter()
        now_s += turns.BEHIND_S
        backlog.leave()
    assert backlog.is_standing()
    assert caught_up == 0
    backlog.leave()
    assert not backlog.is_standing()
    assert caught_up == 1


@ACCEPTORS
async def test_no_body_is_decoded_while_answers_are_behind(own_directory: NotaryDirectory, bank: Bank, acceptors: int) -> None:
    """Under overload a decided submission does not wait for its answer behind others that were admitted meanwhile."""
    async with serving(own_directory, {"http.acceptor_processes": acceptors}) as service:
        service.gate.set()
        unanswered = service.app.unanswered
        unanswered.enter()
        unanswered._never_empty_since_s -= 2 * turns.BEHIND_S
        if acceptors:  # before this answer its process learns of the standing queue
            assert (await service.post(bank.body(spend()))).status_code == 200
        call = asyncio.create_task(service.post(bank.body(spend())))
        await until(lambda: bool(acceptors or service.worker.gate._lanes), 0)
        await asyncio.sleep(4 * BUSY_CHECK_S)
        assert not call.done()
        assert service.worker.index.position_next == acceptors
        unanswered.leave()
        assert (await call).status_code == 200
        assert not unanswered.is_standing()
        assert unanswered._size == 0


async def test_one_submission_on_many_connections_delays_no_other_party(
    service: Service, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of calls may wait for the same decisions: they use no capacity. Their answers must not close the gate for long."""
    unanswered, sizes, lanes = service.app.unanswered, [], list[bool]()
    enter, do = unanswered.enter, service.app.turns.do

    def counted() -> None:
        enter()
        sizes.append(unanswered._size)

    def noted(work: Pieces[None], *, party: str, counts: bool) -> None:
        lanes.append(counts)
        do(work, party=party, counts=counts)

    monkeypatch.setattr(unanswered, "enter", counted)
    monkeypatch.setattr(service.app.turns, "do", noted)
    service.gate.clear()
    body = bank.body(*(spend() for _ in range(10)))
    calls = [submit(service, body) for _ in range(50)]
    await service.pending()
    service.gate.set()
    for call in calls:
        await call.found
        assert call.returned()[0] == 200
    assert sizes == [1]
    assert lanes.count(True) == 1
    assert unanswered._size == 0


async def test_a_bug_in_an_answer_does_not_close_the_gate(service: Service, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that cannot be written costs its own call, not all later submissions."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    with monkeypatch.context() as patched:
        patched.setattr(service.app, "answer", lambda *_: 1 // 0)
        submit(service, bank.body(spend()))
        await until(lambda: service.worker.index.position_next > 0 and not service.app.turns._parties, 0)
    assert service.app.unanswered._size == 0
    assert (await service.post(bank.body(spend()))).status_code == 200


async def test_reads_of_an_acceptor_process_take_turns(service: Service) -> None:
    """All calls that a process has read arrive at once: they are answered over many turns, as calls on the worker's own connections."""
    calls = [Counting("/metrics") for _ in range(20)]
    for call in calls:
        service.app.take_read(call)
    assert await calls[-1].turns() >= 20 * 400 // (TURN_US + 400)
    assert [call.found.result()[0] for call in calls] == [200] * 20
