"""The gate: admission of submissions to the log."""

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from joiner import AdmittedSubmission, QueueLimits, SubmissionQueue
from notary import parties
from notary.bodies import ANY_CLIENT, TURN_BYTES, Body, Side
from notary.duty_cycle import DutyCycle
from notary.gate import (
    BACKLOG_S,
    BUSY_CHECK_S,
    BUSY_WAIT_S_MAX,
    CONNECTION_WAIT_S_MAX,
    DECODING_WAIT_S,
    REJECTED_MAX,
    BadSignature,
    Gate,
    UnknownParty,
)
from notary.parties import Parties
from notary.quota import Quota, QuotaExceeded, QuotaSettings
from notary.tickets import Tickets
from ordering.errors import Malformed, NotReady, Overloaded
from ordering.ids import TransactionId
from payload import decode_submission
from tests.notary.party import NOTARY, Bank, fresh_state, spend

KNOWN = Bank("O=Known")
OTHER = Bank("O=Other", p256=True)
THIRD = Bank("O=Third")


class Clock:
    """A clock that the test sets, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """A stopped clock."""
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A parties file with three parties."""
    parties.write(tmp_path / "p.json", {bank.name: bank.public_pem.decode() for bank in (KNOWN, OTHER, THIRD)})
    return tmp_path / "p.json"


class RecordingBody(Body):
    """A body that records its result."""

    def __init__(self, gate: Gate, ticket: bytes = b"") -> None:
        super().__init__(gate, ticket)
        self.results: list[AdmittedSubmission | Exception] = []
        self.done = asyncio.get_running_loop().create_future()
        gate.begin(self, None)

    def admitted(self, submission: AdmittedSubmission) -> None:
        """Record that the submission was admitted."""
        self.results.append(submission)
        self.done.set_result(None)

    def rejected(self, problem: Exception) -> None:
        """Record that the submission was rejected."""
        self.results.append(problem)
        self.done.set_result(None)


def sent(gate: Gate, content: bytes, ticket: bytes = b"") -> RecordingBody:
    """Returns a body of which this content has come."""
    body = RecordingBody(gate, ticket)
    body.piece(content)
    return body


def complete(gate: Gate, content: bytes) -> RecordingBody:
    """Returns a body that has come completely."""
    body = sent(gate, content)
    body.complete()
    return body


def overloaded(body: RecordingBody) -> Overloaded:
    """Returns the rejection of a body, its only result, which is for the load."""
    (problem,) = body.results
    assert isinstance(problem, Overloaded)
    return problem


def nothing_decided(transaction_ids: Sequence[TransactionId]) -> bool:
    """Returns False: every submission is new."""
    return False


def gate_of(
    file: Path, clock: Clock, why_not_ready: Callable[[], NotReady | None] = lambda: None, bytes_max: int = 1 << 20, **parts: Any
) -> Gate:
    """Returns a gate with these parts. It is ready unless `why_not_ready` has a reason; without a capacity, no queue is behind it."""
    parts = {"has_decided": nothing_decided} | parts
    return Gate(NOTARY, Parties(file), why_not_ready, clock, bytes_max=bytes_max, body_s_max=20.0, turn_s_max=0.005, **parts)


def ten_a_second(clock: Clock) -> Quota:
    """Returns a quota of 10 requests a second for each party."""
    return Quota(QuotaSettings(party_requests_per_s=10), clock)


@pytest.fixture
def gate(file: Path, clock: Clock) -> Gate:
    """A gate without a quota."""
    return gate_of(file, clock)


@pytest.fixture
def limited(file: Path, clock: Clock) -> Gate:
    """A gate with a quota of 10 requests a second."""
    return gate_of(file, clock, quota=ten_a_second(clock))


@pytest.mark.parametrize("bank", [KNOWN, OTHER], ids=["ed25519", "p256"])
async def test_an_admitted_submission_has_the_bytes_that_workers_decode(gate: Gate, bank: Bank) -> None:
    """An admitted submission has the ids and bytes that every worker will decode."""
    body = bank.body(spend(), spend())
    assert msgspec.structs.asdict(gate.admit(body)) == msgspec.structs.asdict(decode_submission(body, NOTARY))


async def test_the_order_of_the_checks(gate: Gate) -> None:
    """JSON is checked first, then the party, the format and the signature; the error is the first that applies."""
    with pytest.raises(Malformed, match="not JSON"):
        gate.admit(Bank("O=Nobody").body(spend())[:-1])
    # For an unknown party nothing else is decoded: that would cost fifty times as much.
    with pytest.raises(UnknownParty, match="O=Nobody"):
        gate.admit(Bank("O=Nobody").body())
    for nobody in (b"{}", b'{"party": 7}', b'{"party": null, "requests": []}', b"[]"):
        with pytest.raises(Malformed):
            gate.admit(nobody)
    with pytest.raises(Malformed):
        gate.admit(KNOWN.body(signature=""))
    with pytest.raises(BadSignature):
        gate.admit(KNOWN.body(spend(), signature=""))


async def test_decoders_that_disagree_about_the_party_admit_nothing(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The party is decoded first, by itself. Its key must never verify a submission that names another party."""
    forged = Bank(KNOWN.name)
    forged.key = OTHER.key
    monkeypatch.setattr("notary.gate._decode_party", lambda body: SimpleNamespace(party=OTHER.name))
    with pytest.raises(Malformed, match="disagree about its party"):
        gate.admit(forged.body(spend()))


async def test_many_at_once_each_get_their_own_verdict(gate: Gate) -> None:
    """Many concurrent submissions, good and bad, in pieces and complete, each get their own result."""
    contents = [(KNOWN if at % 3 else OTHER).body(spend(), **({"signature": "AAAA"} if at % 7 == 0 else {})) for at in range(200)]
    bodies = [RecordingBody(gate) for _ in contents]
    for at, (body, content) in enumerate(zip(bodies, contents, strict=True)):
        for piece in (content[:at], content[at:]) if at % 2 else (content,):
            body.piece(piece)
        body.complete()
    await asyncio.gather(*(body.done for body in bodies))
    for at, (body, content) in enumerate(zip(bodies, contents, strict=True)):
        (returned,) = body.results
        if at % 7 == 0:
            assert isinstance(returned, BadSignature)
        else:
            assert isinstance(returned, AdmittedSubmission)
            assert msgspec.structs.asdict(returned) == msgspec.structs.asdict(decode_submission(content, NOTARY))
    assert gate.body_bytes == 0


async def test_a_client_that_leaves_does_not_disturb_the_others(gate: Gate) -> None:
    """After a client leaves, its submission, complete or not, gets no result and uses no memory."""
    bodies = [(complete if at % 4 else sent)(gate, KNOWN.body(spend())) for at in range(20)]
    for body in bodies[::2]:
        body.left()
    await asyncio.gather(*(body.done for at, body in enumerate(bodies) if at % 4 in (1, 3)))
    assert not any(body.results for body in bodies[::2])
    assert gate.body_bytes == 0


async def test_a_stopping_worker_rejects_what_is_not_admitted_yet(gate: Gate) -> None:
    """A stopping worker rejects incomplete and unchecked submissions: no code would answer them after admission."""
    bodies = sent(gate, b"{"), complete(gate, KNOWN.body(spend()))
    gate.stop()
    await asyncio.sleep(0)
    assert [[type(result) for result in body.results] for body in bodies] == [[NotReady]] * 2


async def test_a_bug_in_one_answer_does_not_stop_the_gate(gate: Gate) -> None:
    """A body whose rejection cannot be recorded costs no other body its turn, whether it came before or comes after."""
    loop = asyncio.get_running_loop()
    problems: list[BaseException] = []
    loop.set_exception_handler(lambda loop, context: problems.append(context["exception"]))
    broken, beside = [complete(gate, KNOWN.body(spend())) for _ in range(2)]
    broken.done.set_result(None)  # so that its own result is a bug
    await beside.done
    await complete(gate, KNOWN.body(spend())).done
    assert [type(problem) for problem in problems] == [asyncio.InvalidStateError]
    assert gate.body_bytes == 0


def test_only_the_gate_admits() -> None:
    """Only the gate creates an `AdmittedSubmission`, so that all reasons for a rejection are in one file."""
    root = Path(parties.__file__).parents[1]  # of the packages under test: the checkout, or where they are installed
    made = re.compile(r"AdmittedSubmission(\.of)?\(")
    files = [file for capacity in ("joiner", "notary", "payload") for file in (root / capacity).rglob("*.py")]
    makers = {str(file.relative_to(root)) for file in files if made.search(file.read_text().replace("class AdmittedSubmission(", ""))}
    assert makers == {"notary/gate.py"}


async def test_a_bad_signature_uses_up_nobodys_quota(limited: Gate) -> None:
    """A submission with a bad signature uses no quota, so a stranger cannot lock a party out."""
    for _ in range(30):
        with pytest.raises(BadSignature):
            limited.admit(KNOWN.body(spend(), signature="AAAA"))
    limited.admit(KNOWN.body(*(spend() for _ in range(10))))


async def test_a_party_taken_out_is_unknown(gate: Gate, file: Path) -> None:
    """A removed party is rejected once the file has been read again."""
    gate.admit(KNOWN.body(spend()))
    left = json.loads(file.read_text())
    del left[KNOWN.name]
    parties.write(file, left)
    gate._parties.reload()
    with pytest.raises(UnknownParty):
        gate.admit(KNOWN.body(spend()))


@pytest.fixture
def queue() -> SubmissionQueue[None]:
    """A queue with capacity for a hundred requests, of which 25 are kept for parties with little."""
    return SubmissionQueue(QueueLimits(pending_requests_max=100, batch_requests_max=50))


@pytest.fixture
def shared(file: Path, clock: Clock, queue: SubmissionQueue[None]) -> Gate:
    """A gate in front of that queue, which issues tickets."""
    return before(queue, file, clock, [])


def before(queue: SubmissionQueue[Any], file: Path, clock: Clock, problem: list[NotReady]) -> Gate:
    """Returns a gate in front of a queue, which issues tickets. It is closed while `problem` has a member."""
    return gate_of(file, clock, lambda: problem[0] if problem else None, capacity=queue, tickets=Tickets(b"k" * 32, clock))


def fill(gate: Gate, queue: SubmissionQueue[Any], ticket: bytes = b"") -> Overloaded:
    """Admit submissions of the known party until one is rejected; returns that rejection."""
    while True:
        try:
            queue.put(gate.admit(KNOWN.body(spend()), ticket))
        except Overloaded as rejected:
            return rejected


def fill_completely(gate: Gate, queue: SubmissionQueue[Any]) -> None:
    """Admit submissions of three parties until none of them has capacity."""
    fill(gate, queue)
    while gate.peek() is None:
        bank = OTHER if queue.rejection(1, 9, OTHER.name) is None else THIRD
        queue.put(gate.admit(bank.body(spend())))


async def test_a_full_party_is_rejected_and_another_one_is_not(shared: Gate, queue: SubmissionQueue[None]) -> None:
    """A party is rejected for its own capacity by the body, never at the head, where the party is not known."""
    rejected = fill(shared, queue)
    assert "of this party" in str(rejected)
    assert shared.reason_to_reject(at_head=True) is None
    queue.put(shared.admit(OTHER.body(*(spend() for _ in range(20)))))
    with pytest.raises(Overloaded):
        shared.admit(KNOWN.body(spend(), signature="AAAA"))
    assert shared.rejections == {"share": 2}


async def test_a_full_party_is_rejected_by_the_first_piece(shared: Gate, queue: SubmissionQueue[None]) -> None:
    """The gate rejects a full party's body at the first piece. It reads other bodies, and those with the party elsewhere, to the end."""
    assert not sent(shared, KNOWN.body(spend())[:60]).results, "it has capacity"
    fill(shared, queue)
    known, other = sent(shared, KNOWN.body(spend())[:60]), sent(shared, OTHER.body(spend())[:60])
    behind = sent(shared, b'{"requests": [], "party": "' + KNOWN.name.encode() + b'"}')
    assert overloaded(known).ticket
    assert (other.results, behind.results) == ([], [])
    while queue.is_busy:
        queue.take_batch()
    behind.complete()
    await behind.done
    overloaded(behind)


async def test_a_party_whose_bodies_wait_too_long_to_be_decoded_is_rejected(shared: Gate, clock: Clock) -> None:
    """The queue is empty, but the gate decodes too slowly for one party: its next bodies are rejected at the first piece, and no others."""
    waiting = [sent(shared, KNOWN.body(spend())) for _ in range(12)]
    for body in waiting:
        shared._lanes.add(body, clock.now_s)
    clock.now_s += 1.5 * DECODING_WAIT_S
    problem = overloaded(sent(shared, KNOWN.body(spend())))
    assert sent(shared, OTHER.body(spend())).results == []
    for _ in range(12):
        shared._lanes.take(Side.PARTIES)
    clock.now_s += problem.retry_after_s
    shared._lanes.add(waiting[0], clock.now_s - 1.5 * DECODING_WAIT_S)
    assert sent(shared, KNOWN.body(spend()), problem.ticket).results == [], "a retry with a ticket is preferred"
    overloaded(sent(shared, KNOWN.body(spend())))
    clock.now_s += DECODING_WAIT_S
    overloaded(sent(shared, KNOWN.body(spend()), problem.ticket))  # it would wait for more than twice as long


async def test_a_wait_is_estimated_by_the_bytes_ahead_once_a_lane_is_backlogged(shared: Gate, clock: Clock) -> None:
    """The bytes ahead of a body, at the pace of decoding, show its wait sooner than the age of the oldest one. A burst is let in."""
    for _ in range(12):
        body = sent(shared, KNOWN.body(spend()))
        shared._lanes.add(body, clock.now_s)
    shared._pace.per_s = 12 * body.size
    assert sent(shared, KNOWN.body(spend())).results == []
    clock.now_s += 1.5 * BACKLOG_S
    assert overloaded(sent(shared, KNOWN.body(spend()))).retry_after_s == 2
    assert sent(shared, OTHER.body(spend())).results == []


async def test_one_that_waited_unread_for_too_long_is_rejected(shared: Gate, clock: Clock) -> None:
    """Newer ones were read first, so it would be answered late, even where nothing else waits by now. A retry with its ticket is let in."""

    def waited(for_s: float, ticket: bytes = b"") -> RecordingBody:
        body = RecordingBody(shared, ticket)
        body.waited_s = for_s
        body.piece(KNOWN.body(spend()))
        return body

    for waited_s in (0.0, CONNECTION_WAIT_S_MAX):
        assert waited(waited_s).results == []
    problem = overloaded(waited(1.01 * CONNECTION_WAIT_S_MAX))
    clock.now_s += problem.retry_after_s
    assert waited(1.01 * CONNECTION_WAIT_S_MAX, problem.ticket).results == []


async def test_a_lane_is_backlogged_for_the_clients_whose_bodies_wait_in_it(shared: Gate, clock: Clock) -> None:
    """A client with several parties is backlogged if one of them is; one without any, if its address is."""
    of_party, of_address = RecordingBody(shared), RecordingBody(shared)
    of_address.network = "192.0.2.1"
    for body in (of_party, of_address):
        body.piece(KNOWN.body(spend()))
    known = of_party.party
    clients = [("192.0.2.1", ()), ("192.0.2.2", ()), ("", {known}), ("", {b"O=Other", known}), ("192.0.2.1", {b"O=Other"})]
    shared._lanes.add(of_party, clock.now_s)
    assert not any(shared.is_backlogged(network, frozenset(parties)) for network, parties in clients), "a burst is none"
    clock.now_s += 1.5 * BACKLOG_S
    assert [shared.is_backlogged(network, frozenset(parties)) for network, parties in clients] == [False, False, True, True, False]
    shared._lanes.add(of_address, clock.now_s - 1.5 * BACKLOG_S)
    assert [shared.is_backlogged(network, frozenset(parties)) for network, parties in clients] == [True, False, True, True, False]


async def test_malformed_bodies_do_not_make_the_gate_look_fast(shared: Gate, clock: Clock) -> None:
    """The pace, by which waits are estimated, counts admitted submissions alone: else an attacker could hide a backlog."""
    for content, counts in ((b'{"party": "O=Known", "requests": 7}', False), (KNOWN.body(spend()), True)):
        for _ in range(3):
            body = complete(shared, content)
            clock.now_s += 1.0
            await body.done
        assert bool(shared._pace._answered or shared._pace.per_s) is counts


async def test_bodies_wait_in_their_lanes_while_the_next_batch_is_full(shared: Gate, queue: SubmissionQueue[None]) -> None:
    """Nothing is decoded while the next batch is full: the lanes take turns by party, so the backlog of one delays no other."""
    queue.capacity_freed = shared.resume
    queue.put(shared.admit(KNOWN.body(*(spend() for _ in range(50)))))
    assert queue.is_busy
    known = [complete(shared, KNOWN.body(spend())) for _ in range(20)]
    other = complete(shared, OTHER.body(spend()))
    await asyncio.sleep(2 * BUSY_CHECK_S)
    assert [body.results for body in (*known, other)] == [[]] * 21
    later = shared._next
    assert later is not None
    queue.take_batch()
    assert later.cancelled(), "it would add a turn of the gate to each turn of the loop"
    await other.done
    await known[-1].done
    assert isinstance(other.results[0], AdmittedSubmission)


async def test_bodies_of_strangers_are_decoded_in_active_slices(gate: Gate, clock: Clock) -> None:
    """Each takes 2 ms, and one turn has 5. During the pause after it, bodies of parties are decoded, also such as come only then."""

    class Slow(RecordingBody):
        def admitted(self, submission: AdmittedSubmission) -> None:
            super().admitted(submission)
            clock.now_s += 0.002

    def complete(parties: set[bytes]) -> Slow:
        body = Slow(gate)
        body.network, body.parties = "192.0.2.1", parties
        body.piece(KNOWN.body(spend()))
        body.complete()
        return body

    gate.duty = DutyCycle(clock, lambda: True)
    strangers = [complete(set()) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len([body for body in strangers if body.results]) == 3
    for _ in range(2):
        of_party = complete({KNOWN.name.encode()})
        await asyncio.sleep(0)
        assert of_party.results
    assert len([body for body in strangers if body.results]) == 3
    clock.now_s += 0.01
    await strangers[-1].done


async def test_no_body_waits_for_ever_while_the_log_stalls(shared: Gate, queue: SubmissionQueue[None], clock: Clock) -> None:
    """The next batch is full and nothing takes it: what has waited for seconds is rejected, surely not admitted, and its bytes are free."""
    queue.put(shared.admit(KNOWN.body(*(spend() for _ in range(50)))))
    older, newer = sent(shared, KNOWN.body(spend())), sent(shared, KNOWN.body(spend()))
    for body in (older, newer):
        body.complete()
        clock.now_s += BUSY_WAIT_S_MAX / 2 + 0.1
    await asyncio.wait_for(older.done, 5)
    assert overloaded(older).ticket
    assert (newer.results, queue.pending_requests) == ([], 50)
    assert shared.body_bytes == newer.size


async def test_bodies_that_waited_too_long_are_rejected_in_pieces(shared: Gate, queue: SubmissionQueue[None], clock: Clock) -> None:
    """Thousands of bodies may wait while the log stalls, and the loop does other work between their rejections."""
    queue.put(shared.admit(KNOWN.body(*(spend() for _ in range(50)))))
    content = KNOWN.body(spend())
    bodies = [complete(shared, content) for _ in range(3 * REJECTED_MAX)]
    clock.now_s += BUSY_WAIT_S_MAX + 0.1
    counts = [0]
    async with asyncio.timeout(5):
        while counts[-1] < len(bodies):
            await asyncio.sleep(0)
            counts.append(len([body for body in bodies if body.results]))
    assert [count for count in counts if count] == [REJECTED_MAX, 2 * REJECTED_MAX, 3 * REJECTED_MAX]
    assert shared.body_bytes == 0


async def test_nor_does_one_that_is_half_decoded(shared: Gate, queue: SubmissionQueue[None], clock: Clock) -> None:
    """The worker became busy between two of its pieces."""
    shared._turn_s_max = -1.0  # a piece in each turn
    body = complete(shared, KNOWN.body(*(spend() for _ in range(100))))
    await asyncio.sleep(0)
    assert shared._decoding
    queue.put(shared.admit(OTHER.body(*(spend() for _ in range(50)))))
    clock.now_s += BUSY_WAIT_S_MAX + 0.1
    await asyncio.wait_for(body.done, 5)
    assert overloaded(body).ticket
    assert (shared.body_bytes, queue.pending_requests) == (0, 50)


async def test_bodies_that_wait_are_rejected_when_the_gate_closes(file: Path, clock: Clock, queue: SubmissionQueue[None]) -> None:
    """No batch is taken any more, so nothing wakes the gate: it looks by itself whether it has closed."""
    problem: list[NotReady] = []
    gate = before(queue, file, clock, problem)
    queue.put(gate.admit(KNOWN.body(*(spend() for _ in range(50)))))
    body = complete(gate, KNOWN.body(spend()))
    await asyncio.sleep(2 * BUSY_CHECK_S)
    assert not body.results
    problem.append(NotReady("the log is away"))
    await body.done
    assert body.results == problem


async def test_a_full_queue_rejects_at_the_head(shared: Gate, queue: SubmissionQueue[None], clock: Clock) -> None:
    """A queue without capacity for anybody rejects at the head, with a ticket for any party."""
    fill_completely(shared, queue)
    problem = shared.reason_to_reject(at_head=True)
    assert isinstance(problem, Overloaded)
    counted = dict(shared.rejections)
    looked = shared.peek()
    assert isinstance(looked, Overloaded)
    assert (str(looked), looked.ticket, dict(shared.rejections)) == (str(problem), b"", counted), "a look rejects nobody"
    clock.now_s += problem.retry_after_s
    assert shared.reason_to_reject(problem.ticket, at_head=True) is None
    assert shared.reason_to_reject(b"A" * 59, at_head=True) is not None


async def test_a_client_that_returns_after_retry_after_is_preferred(shared: Gate, queue: SubmissionQueue[None], clock: Clock) -> None:
    """A ticket opens the last part of the capacity in its time, once, and for its party; at any other time it is ignored."""
    rejections = [fill(shared, queue) for _ in range(2)]
    first, second = [rejected.ticket for rejected in rejections]
    assert shared.tickets is not None
    body = KNOWN.body(spend())
    with pytest.raises(Overloaded):
        shared.admit(body, first)
    clock.now_s += rejections[0].retry_after_s
    assert [shared.tickets.counts(first, bank.name) for bank in (KNOWN, OTHER)] == [True, False]
    with pytest.raises(Overloaded):
        shared.admit(body)
    with pytest.raises(BadSignature):
        shared.admit(KNOWN.body(spend(), signature="AAAA"), first)
    admitted = shared.admit(body, first)
    queue.put(admitted)
    shared.count_new(admitted, first)
    assert shared.tickets.used == 1
    with pytest.raises(Overloaded):
        shared.admit(KNOWN.body(spend()), first)
    queue.put(shared.admit(KNOWN.body(spend()), second))


async def test_a_quota_is_rejected_with_a_ticket_and_never_passed_by_one(file: Path, clock: Clock) -> None:
    """A ticket opens capacity, and does not raise the quota."""
    tickets = Tickets(b"k" * 32, clock)
    gate = gate_of(file, clock, quota=ten_a_second(clock), tickets=tickets)
    gate.count_new(gate.admit(KNOWN.body(*(spend() for _ in range(10)))))
    with pytest.raises(QuotaExceeded) as rejected:
        gate.admit(KNOWN.body(*(spend() for _ in range(10))))
    clock.now_s += rejected.value.retry_after_s
    assert tickets.counts(rejected.value.ticket, KNOWN.name)
    gate.count_new(gate.admit(KNOWN.body(*(spend() for _ in range(10)))))
    with pytest.raises(QuotaExceeded):
        gate.admit(KNOWN.body(*(spend() for _ in range(10))), rejected.value.ticket)
    assert gate.rejections == {"quota": 2}


async def test_who_sends_much_at_once_is_not_looked_at_before_the_others(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate looks at bodies party by party, so one body of another party does not wait behind hundreds."""
    returned: list[RecordingBody] = []
    monkeypatch.setattr(RecordingBody, "admitted", lambda self, submission: (returned.append(self), self.done.set_result(None)))
    many = [complete(gate, KNOWN.body(spend(), spend())) for _ in range(300)]
    one = complete(gate, OTHER.body(spend()))
    await asyncio.gather(*(body.done for body in [*many, one]))
    before = returned.index(one)
    assert (before - 1) * len(KNOWN.body(spend(), spend())) <= TURN_BYTES
    assert before < 150
    assert [body for body in returned if body is not one] == many


async def test_a_rejected_body_whose_client_sends_the_next_one_causes_one_turn(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may pipeline bodies that are rejected. Each rejection lets the next one be complete, and must not add a turn of the gate."""
    turns_in_iteration = [0]
    turn = gate._turn

    def counted() -> None:
        turns_in_iteration[-1] += 1
        turn()

    monkeypatch.setattr(gate, "_turn", counted)

    class Pipelined(RecordingBody):
        more = 20

        def rejected(self, problem: Exception) -> None:
            super().rejected(problem)
            if self.more:
                after = ask(gate, b"[not ")
                after.more = self.more - 1

    def ask(gate: Gate, data: bytes) -> Pipelined:
        body = Pipelined(gate)
        body.piece(data)
        body.complete()
        return body

    for _ in range(5):
        ask(gate, b"[not ")
    while gate._lanes:
        turns_in_iteration.append(0)
        await asyncio.sleep(0)
    assert max(turns_in_iteration) == 1
    assert not gate._bodies


def nearly_full(file: Path, clock: Clock) -> tuple[Gate, SubmissionQueue[object]]:
    """Returns a gate and its queue: capacity for 3,000 requests, of which one party may have 8/9 and has 2,000."""
    queue: SubmissionQueue[object] = SubmissionQueue(QueueLimits())
    queue.rate.per_s = 1000.0  # as measured
    gate = gate_of(file, clock, bytes_max=64 << 20, capacity=queue)
    while queue.pending_requests < 2000:
        queue.put(gate.admit(KNOWN.body(*[spend() for _ in range(500)])))
    return gate, queue


async def test_a_false_name_takes_no_capacity_from_its_party(file: Path, clock: Clock) -> None:
    """A large submission without capacity keeps capacity free for itself, but only if its party has signed it."""
    gate, queue = nearly_full(file, clock)
    large = [spend() for _ in range(1000)]
    with pytest.raises(BadSignature):
        gate.admit(Bank(KNOWN.name).body(*large))
    gate.admit(KNOWN.body(spend()))
    assert not queue.rate._rejected
    with pytest.raises(Overloaded):
        gate.admit(KNOWN.body(*large))
    with pytest.raises(Overloaded):
        gate.admit(KNOWN.body(spend()))


async def test_submissions_that_were_looked_up_together_use_one_quota(limited: Gate) -> None:
    """All of them are admitted in one turn, and queued after a look-up: by then another may have used up the quota."""
    admitted = [limited.admit(KNOWN.body(*[spend() for _ in range(6)])) for _ in range(2)]
    limited.check_verified(admitted[0])
    limited.count_new(admitted[0])
    with pytest.raises(QuotaExceeded):
        limited.check_verified(admitted[1])


async def test_a_copy_of_a_pending_submission_needs_no_quota(file: Path, clock: Clock, queue: SubmissionQueue[None]) -> None:
    """Its party has paid for it already. The copy is answered with the decisions of the first, also after a look-up."""
    gate = gate_of(file, clock, capacity=queue, quota=ten_a_second(clock))
    body = KNOWN.body(*[spend() for _ in range(6)])
    first = gate.admit(body)
    queue.put(first)
    gate.count_new(first)
    with pytest.raises(QuotaExceeded):
        gate.admit(KNOWN.body(*[spend() for _ in range(6)]))
    assert gate.admit(body) in queue
    gate.check_verified(first)


async def test_a_gate_opens_when_its_worker_is_ready_again(file: Path, clock: Clock) -> None:
    """While the worker cannot decide, a head is rejected, and the body is not read. The worker's state is checked at each head then."""
    problem = [NotReady("the log is away")]
    gate = gate_of(file, clock, lambda: problem[0] if problem else None)
    assert not gate.is_open
    assert gate.reason_to_reject(at_head=True) is problem[0]
    assert not gate.is_open
    problem.clear()
    assert gate.reason_to_reject(at_head=True) is None
    assert gate.is_open


async def test_submissions_that_are_looked_up_bound_those_of_acceptor_processes(gate: Gate) -> None:
    """They are in the memory of the worker too, and a submission that a process has verified is in no other limit before the queue's."""
    verified = decode_submission(KNOWN.body(spend()), NOTARY)
    gate.admit_verified(verified)
    gate.count_bytes(gate._bytes_max, ANY_CLIENT)
    with pytest.raises(Overloaded):
        gate.admit_verified(verified)


async def test_a_large_retry_reserves_capacity(file: Path, clock: Clock) -> None:
    """Its signature was verified some turns ago, before the look-up whether it is decided."""
    gate, _ = nearly_full(file, clock)
    retry = decode_submission(KNOWN.body(*[spend() for _ in range(1000)]), NOTARY)
    gate._has_decided = lambda transaction_ids: True
    with pytest.raises(Overloaded):
        gate.check_verified(retry)
    gate.admit(KNOWN.body(spend()))  # anyone may send a copy of a decided one, so it reserves nothing
    gate._has_decided = nothing_decided
    with pytest.raises(Overloaded):
        gate.check_verified(retry)
    with pytest.raises(Overloaded):
        gate.admit(KNOWN.body(spend()))


async def test_a_rejection_for_another_reason_is_not_counted(file: Path, clock: Clock, queue: SubmissionQueue[None]) -> None:
    """While a worker with a full queue is not ready, it gives no tickets, and counts no rejections with a ticket."""
    problem: list[NotReady] = []
    gate = before(queue, file, clock, problem)
    fill_completely(gate, queue)
    gate.rejections.clear()
    problem.append(NotReady("the log is away"))
    for at_head in (False, True):
        assert gate.reason_to_reject(at_head=at_head) is problem[0]
    assert not gate.rejections


async def test_a_submission_with_many_bytes_reserves_capacity(file: Path, clock: Clock) -> None:
    """After its rejection, smaller ones of its party are rejected until it fits, also if it has few requests and many bytes."""
    queue: SubmissionQueue[object] = SubmissionQueue(QueueLimits(pending_bytes_max=1 << 20, batch_requests_max=40))
    gate = gate_of(file, clock, bytes_max=4 << 20, capacity=queue)
    small = [KNOWN.body(*[spend() for _ in range(40)]) for _ in range(600)]
    large = KNOWN.body(spend(*[fresh_state() for _ in range(2500)]))
    with contextlib.suppress(Overloaded):
        while True:
            queue.put(gate.admit(small.pop()))
    while small:  # batches are decided, the large one comes again, and so do small ones
        queue.answer(queue.take_batch(), [object()] * 40)
        with contextlib.suppress(Overloaded):
            gate.admit(large)
            return
        for _ in range(2):
            with contextlib.suppress(Overloaded):
                queue.put(gate.admit(small.pop()))
    pytest.fail("the large one was never admitted")


async def test_the_stated_wait_is_bounded(shared: Gate, clock: Clock) -> None:
    """The pace of decoding may have been low for another reason, such as a slow log. The wait that clients get stays below a minute."""
    shared._pace.begin(clock.now_s)
    clock.now_s += 60
    shared._pace.answered(len(KNOWN.body(spend())), clock.now_s)  # one small body was decoded in a minute, since the log was slow
    for _ in range(5):
        shared._lanes.add(sent(shared, KNOWN.body(*[spend() for _ in range(100)])), clock.now_s)
    clock.now_s += 1.1 * BACKLOG_S
    assert overloaded(sent(shared, KNOWN.body(spend()))).retry_after_s <= 60


async def test_a_body_without_bytes_left_gets_a_ticket(file: Path, clock: Clock) -> None:
    """Each `overloaded` for a submission has a ticket (docs/http.md, Tickets)."""
    gate = gate_of(file, clock, bytes_max=1 << 10, tickets=Tickets(b"k" * 32, clock))
    sent(gate, b" " * 1000)
    assert overloaded(sent(gate, b" " * 1000)).ticket
    assert gate.rejections == {"capacity": 1}


def narrow(file: Path, clock: Clock) -> tuple[Gate, SubmissionQueue[object]]:
    """Returns a gate that issues tickets, and its queue: capacity for 99 requests, of which a party may have 90 without tickets."""
    queue: SubmissionQueue[object] = SubmissionQueue(QueueLimits(pending_requests_max=100, batch_requests_max=1))
    tickets = Tickets(b"k" * 32, clock)
    return gate_of(file, clock, bytes_max=4 << 20, capacity=queue, tickets=tickets), queue


async def test_a_large_submission_with_a_ticket_reserves_capacity(file: Path, clock: Clock) -> None:
    """Rejected although it has a ticket, it keeps capacity free, from submissions without tickets too."""
    gate, queue = narrow(file, clock)
    large = KNOWN.body(*[spend() for _ in range(30)])
    rejected = fill(gate, queue)
    for _ in range(5):
        clock.now_s += rejected.retry_after_s
        try:
            gate.admit(large, rejected.ticket)
        except Overloaded as again:
            rejected = again
        else:
            return
        for _ in range(50):  # until it comes again: other clients of its party send as much as is decided
            queue.answer(queue.take_batch(), [object()])
            with contextlib.suppress(Overloaded):
                queue.put(gate.admit(KNOWN.body(spend())))
    pytest.fail("it was never admitted")


async def test_tickets_are_no_worse_than_none(file: Path, clock: Clock) -> None:
    """A large submission with a ticket is rejected. A small one with a ticket is admitted at the latest when one without is."""
    gate, queue = narrow(file, clock)
    first, second = fill(gate, queue), fill(gate, queue)
    clock.now_s += first.retry_after_s
    with pytest.raises(Overloaded):
        gate.admit(KNOWN.body(*[spend() for _ in range(30)]), first.ticket)
    while queue.rejection(1, 100, KNOWN.name) is not None:
        queue.answer(queue.take_batch(), [object()])
    gate.admit(KNOWN.body(spend()), second.ticket)
