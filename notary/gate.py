"""The gate: whether a submission may come in. Every reason for which one is refused is in this file.

What is asked first costs us least: R6 leaves all of it to the worker, since nothing is in the log yet.

| asked of | what | refused as |
|---|---|---|
| the head | method, media type | `method-not-allowed`, `unsupported-media-type` |
| | whether anything is taken in now: the worker is ready, and its queue has room for anybody | `not-ready`, `overloaded` |
| | the length that it declares | `too-large` |
| each piece of the body | its size; the memory of all bodies and all that waits; its time | `too-large`, `overloaded`, `malformed` |
| its first piece | while the queue is not calm: room for the party, if it stands there first, as our clients write it | `overloaded` |
| the body, party by party | whether anything is taken in now, again | `not-ready` |
| | the party, which is looked for in the body before anything else is decoded | `unknown-party` |
| | room for it and for so many bytes; its quota, as far as it can be without decoding | `overloaded`, `quota-exceeded` |
| | the format | `malformed` |
| the submission | room for its requests, by party; the quota for all of them | `overloaded`, `quota-exceeded` |
| | the signature; only then is the quota charged: nobody can use up another party's | `bad-signature` |

An intake process has a gate too. Its worker has told it whether anything is taken in, and which parties have no room. Room and quota
for each submission only the worker knows, and its gate asks for them (`Gate.admit_verified`).

Whoever is refused for room or quota gets a ticket, with which the last part of the room is open when it comes again (`notary.tickets`).
"""

import asyncio
import re
from collections import Counter, deque
from collections.abc import Callable, Generator
from typing import Final, Protocol, TypeVar

import msgspec

from joiner import AdmittedSubmission
from notary.parties import Parties, Verify
from notary.tickets import Tickets
from ordering.errors import Malformed, NotaryError, NotReady, Overloaded
from ordering.ids import excerpt
from payload import SUBMISSION_BYTES_MAX, Submission, check_party, decode_in_pieces, decode_submission, signed_message

SHUTTING_DOWN: Final = "this worker is shutting down: send the same to another, or here again later"
_BAD_SIGNATURE: Final = (
    "the signature is not this party's over these requests: it signs the notary's name, its own name and the"
    " transaction ids in the order of `requests`"
)


class UnknownParty(NotaryError):
    """The party is not registered with this notary."""


class BadSignature(NotaryError):
    """The signature is not the party's over this submission."""


class QuotaExceeded(NotaryError):
    """The party sent more than its quota; nothing of this submission was taken."""

    def __init__(self, what: str, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        self.ticket = b""
        super().__init__(what)


Refusal = TypeVar("Refusal", Overloaded, QuotaExceeded)


class TooLarge(NotaryError):
    """A body larger than the limit."""


class UnsupportedMediaType(NotaryError):
    """A body of another type than JSON."""


def check_json(content_type: bytes, content_encoding: bytes | None) -> None:
    """Raise `UnsupportedMediaType` unless the body says that it is JSON in UTF-8."""
    if content_type != b"application/json":
        media_type, _, parameters = content_type.partition(b";")
        charset = parameters.strip().lower().replace(b'"', b"").replace(b" ", b"")
        if media_type.strip().lower() != b"application/json" or charset not in (b"", b"charset=utf-8"):
            raise UnsupportedMediaType(f"expected Content-Type application/json, got {excerpt(content_type.decode('latin-1'))}")
    if content_encoding not in (None, b"identity"):
        raise UnsupportedMediaType("a compressed body is not taken: send it without Content-Encoding")


class Room(Protocol):
    """The place where submissions wait: a worker's `SubmissionQueue`; in an intake process, the last known state of that."""

    @property
    def pending_bytes(self) -> int:
        """The bytes of the submissions that are in."""
        ...

    def __contains__(self, submission: Submission) -> bool:
        """Returns True if these very bytes wait already."""
        ...

    def is_calm(self, requests: int, size_bytes: int) -> bool:
        """Returns True if there is room for so much of any party."""
        ...

    def refusal(self, requests: int, size_bytes: int, party: str | None = None, *, ticketed: bool = False) -> Overloaded | None:
        """Returns the reason why there is no room for so much of this party, or of any; None when there is."""
        ...


class Body:
    """The body of one submission: its connection calls `piece` for each piece, then one of `whole`, `late` and `left`.

    Subclasses hear what came of it: once, unless the client left.
    """

    __slots__ = ("_gate", "_pieces", "_size", "ticket")

    def __init__(self, gate: "Gate", ticket: bytes = b"") -> None:
        """`ticket`: as its head has it, unchecked."""
        self.ticket = ticket
        self._gate = gate
        self._pieces: list[bytes] = []
        self._size = 0

    def admitted(self, submission: AdmittedSubmission) -> None:
        """It may come in. It is to be queued, or handed over, in this turn of the loop: its room is not kept."""
        raise NotImplementedError

    def refused(self, problem: Exception) -> None:
        """It may not; a problem that is no `NotaryError` is a bug."""
        raise NotImplementedError

    def piece(self, data: bytes) -> None:
        """Take a piece. Bytes count when they have come, so nobody can fill the memory with promises."""
        gate, size = self._gate, self._size + len(data)
        others_bytes = gate.body_bytes - self._size + gate.waiting_bytes()
        if size > SUBMISSION_BYTES_MAX:
            self.refuse(TooLarge(f"the body has more than {SUBMISSION_BYTES_MAX} bytes, which is the most that is taken: {_FEWER}"))
        elif others_bytes and others_bytes + size > gate.bytes_max:
            # As in the queue: one that is larger than the whole room is read when nothing else is there.
            self.refuse(Overloaded(f"{others_bytes} bytes of submissions are here already: send the same again later"))
        elif not self._size and (problem := gate.refused_by_piece(data, self.ticket)) is not None:
            self.refuse(problem)
        else:
            self._size = size
            gate.body_bytes += len(data)
            self._pieces.append(data)

    def whole(self) -> None:
        """It is complete: the gate looks at it with all that came in this turn of the loop."""
        self._gate.ask(self)

    def late(self) -> None:
        """It was not complete in time."""
        self.refuse(Malformed(f"the body was not complete after {self._gate.body_s_max:g} s: send it without pauses"))

    def left(self) -> None:
        """The client went away."""
        self._gate.forget(self)
        self.drop()

    def refuse(self, problem: NotaryError) -> None:
        """It is not read on."""
        self._gate.forget(self)
        self.drop()
        self.refused(problem)

    @property
    def size(self) -> int:
        """Bytes that have come of it."""
        return self._size

    def party(self) -> bytes:
        """The party that stands first in it, as our clients write it; empty where another member does."""
        found = _party_first(self._pieces[0]) if self._pieces else None
        return b"" if found is None else found[1]

    def data(self) -> bytes:
        """Returns the bytes that have come of it."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def drop(self) -> None:
        """Its bytes do not count any more."""
        self._pieces = []
        self._gate.body_bytes -= self._size
        self._size = 0


TURN_BYTES: Final = 32 << 10
"""The bytes of one party's bodies that are looked at before it is the next party's turn."""
REFUSAL_REASONS: Final = ("room", "share", "quota")
"""No room for anybody, no room for the party, or its quota is used up."""
_FEWER: Final = "send fewer requests at a time"


class _Party(msgspec.Struct, gc=False):
    """The one member of a submission that is looked at before the others."""

    party: str


_decode_party = msgspec.json.Decoder(_Party).decode
_party_first = re.compile(rb'\s*\{\s*"party"\s*:\s*"([^"\\]+)"').match


class _Lane:
    """The bodies of one party that are complete and not looked at."""

    __slots__ = ("bodies", "left_bytes", "party")

    def __init__(self, party: bytes) -> None:
        self.party = party
        self.bodies: deque[Body] = deque()
        self.left_bytes = TURN_BYTES


class Gate:
    """The gate of one worker, or of one intake process. One event loop."""

    def __init__(
        self,
        notary_name: str,
        parties: Parties,
        closed: Callable[[], NotaryError | None],
        clock_s: Callable[[], float],
        *,
        bytes_max: int,
        body_s_max: float,
        turn_s_max: float,
        room: Room | None = None,
        quota: "Quota | None" = None,
        tickets: Tickets | None = None,
    ) -> None:
        """`closed` returns why nothing is taken in, whatever it is. What came at once is looked at for `turn_s_max`, the rest a turn later;
        a large body is decoded in pieces of a millisecond or two.

        An intake process has no quota.
        """
        self._notary_name = notary_name
        self._parties = parties
        self._closed = closed
        self._was_closed = True
        self._clock_s = clock_s
        self._room = room
        self._quota = quota
        self.tickets = tickets
        self.refusals: Counter[str] = Counter()
        """Those with a ticket, by reason."""
        self._turn_s_max = turn_s_max
        self.bytes_max = bytes_max
        self.body_s_max = body_s_max
        self.body_bytes = 0
        """Of all bodies that are not complete, or not looked at."""
        self._bodies: set[Body] = set()
        self._asked: dict[bytes, _Lane] = {}  # by the party that stands first in the body, empty for none
        self._turns: deque[_Lane] = deque()
        self._current: Body | None = None
        """The body that is decoded now; the others of all lanes wait for its end."""
        self._reading: Generator[None, None, AdmittedSubmission] | None = None
        """Its decoding, once begun."""

    # ---- the head ----

    def closed(self, ticket: bytes = b"", *, at_head: bool = False) -> NotaryError | None:
        """Returns the reason why no submission of any party is admitted now; None when they are.

        For a head, while the gate is open only the queue is asked: the worker is, before the body is decoded.
        """
        refusal = self._refusal(1, 1, None, ticket)
        if at_head and refusal is None and not self._was_closed:
            return None
        problem = self._closed()
        self._was_closed = problem is not None
        return problem or refusal

    @property
    def is_open(self) -> bool:
        """True while a head need not be checked with `closed`."""
        return not self._was_closed and (self._room is None or self._room.is_calm(1, 1))

    def begin(self, body: Body, declared: bytes | None) -> None:
        """A body is about to come. Raises `TooLarge`."""
        if declared is not None and int(declared) > SUBMISSION_BYTES_MAX:
            raise TooLarge(f"the body has {int(declared)} bytes and at most {SUBMISSION_BYTES_MAX} are taken: {_FEWER}")
        self._bodies.add(body)

    def stop(self) -> None:
        """Refuse all that is not in yet: bodies that are only half here are not waited for."""
        self._asked.clear()
        self._turns.clear()
        self._current = self._reading = None
        for body in list(self._bodies):
            body.refuse(NotReady(SHUTTING_DOWN))

    def waiting_bytes(self) -> int:
        """The bytes of the submissions that are in."""
        return 0 if self._room is None else self._room.pending_bytes

    # ---- the body ----

    def refused_by_piece(self, first: bytes, ticket: bytes) -> NotaryError | None:
        """Returns the reason to refuse a body that begins so, if it is known yet: an overloaded worker need not read all of it."""
        if self._room is None or self._room.is_calm(1, 1) or (found := _party_first(first)) is None:
            return None
        # Nothing is let in by it: who names two parties is refused as the one or as the other.
        return self._refusal(1, 1, found[1].decode(errors="replace"), ticket)

    def ask(self, body: Body) -> None:
        """Look at a body that is complete."""
        if not self._asked and self._current is None:
            asyncio.get_running_loop().call_soon(self._look)
        party = body.party()
        lane = self._asked.get(party)
        if lane is None:
            lane = self._asked[party] = _Lane(party)
            self._turns.append(lane)
        lane.bodies.append(body)

    def _next(self) -> Body:
        """The next body to look at: of each party in turn so many bytes (surplus round robin), since looking takes most of the time."""
        turns = self._turns
        while (lane := turns[0]).left_bytes <= 0:
            lane.left_bytes += TURN_BYTES
            turns.rotate(-1)
        body = lane.bodies.popleft()
        lane.left_bytes -= body.size
        if not lane.bodies:
            turns.popleft()
            del self._asked[lane.party]
        return body

    def forget(self, body: Body) -> None:
        """It is not read any more."""
        self._bodies.discard(body)

    def _look(self) -> None:
        """Look at what has come, a piece at a time. The log, and in an intake process the worker, have their turns in between."""
        until_s = self._clock_s() + self._turn_s_max
        closed = self._closed()  # once for all: nothing else runs meanwhile
        self._was_closed = closed is not None
        while self._asked or self._current is not None:
            body = self._current = self._current or self._next()
            if body in self._bodies:
                self._look_at(body, closed)
            if body not in self._bodies:  # it was let in or refused, now or before, or its client left
                self._current = self._reading = None
            if self._clock_s() > until_s:
                break
        if self._asked or self._current is not None:
            asyncio.get_running_loop().call_soon(self._look)

    def _look_at(self, body: Body, closed: NotaryError | None) -> None:
        """Decode one piece more of it; after the last one it is let in."""
        submission: AdmittedSubmission | None = None
        found: Exception | None = closed
        if closed is None:
            try:
                if self._reading is None:
                    self._reading = self._admit(body.data(), body.ticket)
                next(self._reading)
                return
            except StopIteration as done:
                submission = done.value
            except Exception as problem:  # a bug costs one call
                found = problem
        self._bodies.remove(body)
        body.drop()
        try:
            if submission is not None:
                body.admitted(submission)
        except Exception as problem:
            found = problem
        if found is not None:
            body.refused(found)

    def admit(self, body: bytes, ticket: bytes = b"") -> AdmittedSubmission:
        """The submission that `body` is, if it may come in."""
        if (problem := self._closed()) is not None:
            raise problem
        pieces = self._admit(body, ticket)
        while True:
            try:
                next(pieces)
            except StopIteration as done:
                admitted: AdmittedSubmission = done.value
                return admitted

    def _admit(self, body: bytes, ticket: bytes) -> Generator[None, None, AdmittedSubmission]:
        """The work of `admit` in pieces. The longest is the search for the party, the decoding of the JSON, or one piece of states."""
        party, verify = self._party_of(body)
        self._check(1, len(body), party, ticket)
        submission = yield from decode_in_pieces(body, self._notary_name)
        if submission.party != party:  # two decoders that do not agree; a signature must never be checked with another party's key
            raise Malformed("it names its party in a way that is not read alike everywhere", "party")
        return self._let_in(submission, verify, ticket)

    def admit_verified(self, submission: Submission, ticket: bytes = b"") -> AdmittedSubmission:
        """The same for one of which an intake process has looked at party, format and signature."""
        if (problem := self._closed()) is not None:
            raise problem
        return self._let_in(submission, _verified, ticket)

    def check_room(self, submission: Submission) -> None:
        """Raise `Overloaded`, with a ticket, where one that was let in some turns of the loop ago has no room any more."""
        if self._room is not None and submission not in self._room:
            refusal = self._refusal(len(submission.requests), len(submission.encoded), submission.party, b"")
            if refusal is not None:
                raise refusal

    def _let_in(self, submission: Submission, verify: Verify, ticket: bytes) -> AdmittedSubmission:
        quota, requests = self._quota, len(submission.requests)
        if self._room is not None and submission in self._room:
            return AdmittedSubmission.of(submission)  # these bytes wait already, so their signature is a good one, and charged
        self._check(requests, len(submission.encoded), submission.party, ticket)
        if not verify(submission.signature, self._message(submission)):
            raise BadSignature(_BAD_SIGNATURE)
        if quota is not None:
            quota.charge(submission.party, requests)
        if ticket and self.tickets is not None:
            self.tickets.use(ticket, submission.party)
        return AdmittedSubmission.of(submission)

    def _refusal(self, requests: int, size_bytes: int, party: str | None, ticket: bytes) -> Overloaded | None:
        """Returns the reason why there is no room for so much, with a ticket for the retry; None when there is."""
        room, tickets = self._room, self.tickets
        if room is None or room.is_calm(requests, size_bytes):
            return None
        ticketed = bool(ticket) and tickets is not None and tickets.counts(ticket, party)
        problem = room.refusal(requests, size_bytes, party, ticketed=ticketed)
        return None if problem is None else self._with_ticket(problem, "room" if party is None else "share", party)

    def _check(self, requests: int, size_bytes: int, party: str, ticket: bytes) -> None:
        """Raise `Overloaded` or `QuotaExceeded` where there is no room, or no quota, for so much of a party."""
        if (overloaded := self._refusal(requests, size_bytes, party, ticket)) is not None:
            raise overloaded
        if self._quota is not None and (exceeded := self._quota.refusal(party, requests)) is not None:
            raise self._with_ticket(exceeded, "quota", party)

    def _with_ticket(self, problem: Refusal, reason: str, party: str | None) -> Refusal:
        self.refusals[reason] += 1
        if self.tickets is not None:
            problem.ticket = self.tickets.give(problem.retry_after_s, party or "")
        return problem

    def _party_of(self, body: bytes) -> tuple[str, Verify]:
        """The party, and the check of its signatures. Raises `UnknownParty`, or `Malformed`."""
        try:
            party = _decode_party(body).party
        except (ValueError, RecursionError):  # a `DecodeError` is a ValueError
            decode_submission(body, self._notary_name)  # it says what is wrong, and where
            raise Malformed("its party cannot be read", "party") from None
        known = self._parties.get(party)
        if known is None:
            check_party(party)
            raise UnknownParty(
                f"the party {excerpt(party, 300)} is not registered with this notary: its operator adds it with `notary party add`"
            )
        return party, known.verify

    def _message(self, submission: Submission) -> bytes:
        return signed_message(self._notary_name, submission.party, [request.transaction_id for request in submission.requests])


def _verified(signature: bytes, message: bytes) -> bool:
    """The check of a signature that an intake process has checked."""
    return True


class Quota:
    """A token bucket for each party, one second deep; a submission larger than the bucket passes when it is full."""

    def __init__(self, per_s: int, clock_s: Callable[[], float], per_s_of: Callable[[str], int | None] = lambda party: None) -> None:
        """`per_s_of` returns a party's own quota, None for one that has `per_s` like all others; 0 requests a second: no quota."""
        self._per_s = per_s
        self._per_s_of = per_s_of
        self._clock_s = clock_s
        self._buckets: dict[str, tuple[float, float]] = {}  # party -> (tokens, as of); registered parties only

    def refusal(self, party: str, requests: int) -> QuotaExceeded | None:
        """Returns the reason why the party may not send so many now; None when it may."""
        if not (per_s := self._of(party)):
            return None
        tokens, needed = self._tokens(party, per_s, self._clock_s()), min(requests, per_s)
        if tokens < needed:
            wait_s = max(1, round((needed - tokens) / per_s + 0.5))
            return QuotaExceeded(f"more than {per_s} requests a second of {excerpt(party, 300)}: send the same again later", wait_s)
        return None

    def charge(self, party: str, requests: int) -> None:
        """Count what `refusal` has let pass in the same turn of the loop."""
        if per_s := self._of(party):
            now = self._clock_s()
            self._buckets[party] = (self._tokens(party, per_s, now) - requests, now)

    def _of(self, party: str) -> int:
        own = self._per_s_of(party)
        return self._per_s if own is None else own

    def _tokens(self, party: str, per_s: int, now: float) -> float:
        tokens, as_of = self._buckets.get(party, (float(per_s), now))
        return min(float(per_s), tokens + (now - as_of) * per_s)
