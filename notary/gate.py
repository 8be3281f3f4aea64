"""The gate admits or rejects each submission. Every reason to reject one is in this file, in the order of the checks.

A `Body` (`notary.bodies`) passes its pieces to the gate. The bodies of all parties are decoded in turn (`Lanes`).

The cheapest checks come first. R6 leaves all of them to the worker, since the submission is not in the log yet.

| checked at | check | problem |
|---|---|---|
| the head | method, media type | `method-not-allowed`, `unsupported-media-type` |
| | the worker is ready, and its queue has capacity for any party | `not-ready`, `overloaded` |
| | the declared length | `too-large` |
| each piece of the body | its size; the bytes of all bodies and of the queue; its deadline | `too-large`, `overloaded`, `malformed` |
| its first piece | the time for which bodies of its party, or of its client's address, wait to be decoded | `overloaded` |
| | while the queue is not calm: capacity for the party, if `party` is the first member, as our clients write it | `overloaded` |
| the complete body, in the turn of its party | the worker is ready, again | `not-ready` |
| | the party, which is decoded before the rest of the body | `unknown-party` |
| | capacity for one request of the party; quota for one request | `overloaded`, `quota-exceeded` |
| | the format | `malformed` |
| the decoded submission | the signature | `bad-signature` |
| | capacity for all its requests, by party; quota for all its requests | `overloaded`, `quota-exceeded` |

Only the last check affects later submissions: it reserves capacity for a large submission that does not fit. The quota is charged when the
submission is queued (`Gate.count_new`). So nobody can use up another party's quota or capacity with a false name, or with a copy of an
earlier submission. One that may be decided already is looked up before that, in later turns of the loop, and then checked once more
(`Gate.check_verified`).

An acceptor process has a gate too. Its worker reports to it whether submissions are admitted, and which parties have no capacity. Only the
worker knows capacity and quota exactly, so the worker's gate checks both again for each submission (`Gate.admit_verified`).

A rejection for lack of capacity or quota carries a ticket. A retry with it may use the last part of the capacity (`notary.tickets`).
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence, Set
from typing import Final, Protocol, TypeVar

import msgspec

from joiner import AdmittedSubmission
from joiner.rate import WAIT_S_MAX, Pace
from notary.bodies import ANY_CLIENT, Body, Lanes, Payer, Side
from notary.duty_cycle import DutyCycle
from notary.parties import Parties
from notary.party_keys import Verify
from notary.quota import Quota, QuotaExceeded
from notary.tickets import Tickets
from ordering.errors import Malformed, NotaryError, NotReady, Overloaded
from ordering.ids import TransactionId, excerpt
from ordering.pieces import completed
from payload import SUBMISSION_BYTES_MAX, Submission, check_party, decode_in_pieces, signed_message

REJECTION_REASONS: Final = ("capacity", "share", "quota")
"""In this order: no capacity for any party, no capacity for this party, this party's quota is used up."""
DECODING_WAIT_S: Final = 0.5
"""New bodies of a party are rejected while its complete bodies wait longer than this; with a ticket, longer than twice this time."""
CONNECTION_WAIT_S_MAX: Final = 1.0
"""A body that waited longer in its connection is rejected: newer bodies were read first, and its answer would be late."""
BACKLOG_S: Final = 0.2
"""A lane is backlogged if its oldest body has waited longer. Then a new body's wait is estimated from the bytes ahead of it."""
BUSY_CHECK_S: Final = 0.05
"""While the worker is busy, the gate checks this often whether the worker still admits submissions."""
BUSY_WAIT_S_MAX: Final = 5.0
"""While the worker is busy, a body that has waited longer is rejected: if appends stall, nothing else ends its wait."""
REJECTED_MAX: Final = 50
"""The number of such bodies that are rejected in one turn."""
UNAUTHENTICATED_PART: Final = 2
"""Unauthenticated bodies, on connections without an admitted submission, get all bytes divided by this, or one largest body if more."""
UNAUTHENTICATED_ADDRESS_PART: Final = 8
"""The same for the unauthenticated bodies of one address."""
PARTY_TIMES: Final = 8
"""Several bodies of one party get this many times the bytes that stay free, so 8/9 of those that the others leave (`joiner.share`)."""
_ADDRESSES: Final = Payer(is_authenticated=False)
"""All addresses together."""
SHUTTING_DOWN: Final = "this worker is shutting down: send the same to another worker, or here again later"
_BAD_SIGNATURE: Final = (
    "the signature is not this party's signature over these requests: a party signs the notary's name, its own name and the"
    " transaction ids in the order of `requests`"
)
_FEWER: Final = "send fewer requests at a time"


class UnknownParty(NotaryError):
    """The party is not registered with this notary."""


class BadSignature(NotaryError):
    """The signature is not the party's over this submission."""


Rejection = TypeVar("Rejection", Overloaded, QuotaExceeded)


class TooLarge(NotaryError):
    """A body larger than the limit."""


class UnsupportedMediaType(NotaryError):
    """A body of another type than JSON."""


def check_json(content_type: bytes, content_encodings: Iterable[bytes]) -> None:
    """Raise `UnsupportedMediaType` unless the body says that it is JSON in UTF-8."""
    if content_type != b"application/json":
        media_type, _, parameters = content_type.partition(b";")
        charset = parameters.strip().lower().replace(b'"', b"").replace(b" ", b"")
        if media_type.strip().lower() != b"application/json" or charset not in (b"", b"charset=utf-8"):
            raise UnsupportedMediaType(
                "expected Content-Type application/json, without parameters or with charset=utf-8 alone, got"
                f" {excerpt(content_type.decode('latin-1'))}"
            )
    if any(encoding.lower() != b"identity" for encoding in content_encodings):
        raise UnsupportedMediaType("a compressed body is not accepted: send it without Content-Encoding")


class Capacity(Protocol):
    """The queue of admitted submissions: a worker's `SubmissionQueue`; in an acceptor process, its last reported state."""

    @property
    def pending_bytes(self) -> int:
        """The bytes of the submissions in the queue."""
        ...

    @property
    def is_busy(self) -> bool:
        """True while admitted submissions keep the worker busy. Further submissions would only wait after decoding instead of before it."""
        ...

    def __contains__(self, submission: Submission) -> bool:
        """Returns True if a submission of the same party with the same requests is in the queue. Its signature may be another one."""
        ...

    def is_calm(self, requests: int, size_bytes: int) -> bool:
        """Returns True if there is capacity for this much from any party."""
        ...

    def rejection(
        self, requests: int, size_bytes: int, party: str | None = None, *, ticketed: bool = False, reserve: bool = False
    ) -> Overloaded | None:
        """Returns the rejection if there is no capacity for this much of the party, or without a party of any; else None.

        With `reserve`, a rejection affects later ones: the largest rejected submission gets capacity before others.
        """
        ...


class _Party(msgspec.Struct, gc=False):
    """The member of a submission that is decoded before the others."""

    party: str


_decode_party = msgspec.json.Decoder(_Party).decode


class Gate:
    """The gate of one worker, or of one acceptor process. One event loop."""

    def __init__(
        self,
        notary_name: str,
        parties: Parties,
        why_not_ready: Callable[[], NotaryError | None],
        clock_s: Callable[[], float],
        *,
        bytes_max: int,
        body_s_max: float,
        turn_s_max: float,
        capacity: Capacity | None = None,
        quota: Quota | None = None,
        has_decided: Callable[[Sequence[TransactionId]], bool] | None = None,
        tickets: Tickets | None = None,
    ) -> None:
        """`why_not_ready` returns the reason why the worker admits no submission now; None while it admits them. The gate works for
        `turn_s_max` in one turn of the loop, and decodes a large body in pieces of a millisecond or two. An acceptor process has no quota.

        `has_decided` returns True if all these transactions are decided; without it no rejection reserves capacity or quota.
        """
        self._notary_name = notary_name
        self._parties = parties
        self._why_not_ready = why_not_ready
        self._was_ready = False
        self._clock_s = clock_s
        self._capacity = capacity
        self._quota = quota
        self._has_decided = has_decided
        self.tickets = tickets
        self.rejections: Counter[str] = Counter()
        """The number of rejections with a ticket, by reason."""
        self._turn_s_max = turn_s_max
        self._bytes_max = bytes_max
        self._body_s_max = body_s_max
        self.body_bytes = 0
        """The bytes of all bodies that are incomplete or not decoded yet, and of submissions that are looked up (`count_bytes`)."""
        self._bytes_of: dict[Payer, int] = {}
        """The same bytes by client, and the sum over all addresses."""
        self._bodies: set[Body] = set()
        self._lanes = Lanes(self.weight_of)
        self._pace = Pace()
        """The bytes decoded a second while bodies wait."""
        self.duty = DutyCycle(clock_s)
        """Bodies of addresses are decoded in its active slices. The application sets it."""
        self._next: asyncio.Handle | None = None
        """The next turn."""
        self._is_paused = False
        self._decoding: dict[Side, _Decoding] = {}
        """The bodies that are decoded now, at most one of each side. Bodies of parties wait only for theirs, so a large body of an address
        does not delay them."""

    # ---- the head ----

    def reason_to_reject(self, ticket: bytes = b"", *, at_head: bool = False) -> NotaryError | None:
        """Returns the reason to reject submissions of all parties now; None while they are admitted.

        `at_head`: do not check the worker if it was ready at the last check and the queue has capacity. It is checked before decoding.
        """
        overloaded = self._overloaded(1, 1, None, ticket)
        if at_head and overloaded is None and self._was_ready:
            return None
        problem = self._why_not_ready()
        self._was_ready = problem is None
        return problem if problem is not None or overloaded is None else self._with_ticket(overloaded, "capacity", None)

    def peek(self) -> NotaryError | None:
        """Returns the result of `reason_to_reject` without a ticket. Counts no rejection, since no submission was rejected."""
        if (problem := self._why_not_ready()) is not None or self._capacity is None or self._capacity.is_calm(1, 1):
            return problem
        return self._capacity.rejection(1, 1)

    def weight_of(self, party: bytes) -> int:
        """Returns the weight of a registered party, by its name in UTF-8; 0 if no party has that name."""
        try:
            registered = self._parties.get(party.decode())
        except UnicodeDecodeError:
            return 0
        return 0 if registered is None else registered.weight

    @property
    def is_open(self) -> bool:
        """True if the worker was ready at the last check, and the queue has capacity for any party."""
        return self._was_ready and (self._capacity is None or self._capacity.is_calm(1, 1))

    def is_backlogged(self, network: str, parties: Set[bytes]) -> bool:
        """Returns True if a client's body would wait to be decoded for longer than a burst lasts.

        `parties`: the parties of the admitted submissions on its connection. If there are none, its address `network` counts.
        """
        if not self._lanes:
            return False
        now_s = self._clock_s()
        return any(self._wait_s(key, now_s, of_party=bool(parties)) > BACKLOG_S for key in parties or (network.encode(),))

    def _wait_s(self, key: bytes, now_s: float, *, of_party: bool) -> float:
        """Returns the wait in a lane, in seconds: its oldest body's, or the time to decode the bytes ahead at the present pace."""
        age_s = self._lanes.age_s(key, now_s, of_party=of_party)
        return max(age_s, self._lanes.ahead_bytes(key, of_party=of_party) / self._pace.per_s) if self._pace.per_s else age_s

    def begin(self, body: Body, declared: bytes | None) -> None:
        """Register a body before its first piece. Raises `TooLarge`."""
        if declared is not None and int(declared) > SUBMISSION_BYTES_MAX:
            raise TooLarge(f"the body has {int(declared)} bytes, and a submission has at most {SUBMISSION_BYTES_MAX}: {_FEWER}")
        body.payer = Payer.of(body.network, body.parties)
        self._bodies.add(body)

    def stop(self) -> None:
        """Reject all bodies that are not decoded yet, incomplete ones too."""
        self._lanes = Lanes(self.weight_of)
        self._decoding = {}
        for body in list(self._bodies):
            body.reject(NotReady(SHUTTING_DOWN))

    # ---- the body ----

    def count_piece(self, body: Body, data: bytes) -> NotaryError | None:
        """Count a piece of a body, or return the reason to reject the body. Only received bytes count, not declared ones."""
        size = body.size + len(data)
        if size > SUBMISSION_BYTES_MAX:
            return TooLarge(f"the body has more than {SUBMISSION_BYTES_MAX} bytes, the limit of a submission: {_FEWER}")
        rejection = self._bytes_rejection(body.size, size, body.payer)
        if rejection is None and not body.size:  # its first piece
            if body.party and self._capacity is not None and not self._capacity.is_calm(1, 1):
                # Reject it before its end. A body that names two parties is rejected for either of them, and is never admitted.
                rejection = self._rejection(1, 1, body.party.decode(errors="replace"), body.ticket)
            if rejection is None and (self._lanes or body.waited_s > CONNECTION_WAIT_S_MAX):
                rejection = self._wait_rejection(body)
        if rejection is None:
            self.count_bytes(len(data), body.payer)
        return rejection

    def _bytes_rejection(self, counted: int, size: int, payer: Payer) -> Overloaded | None:
        """Returns the rejection if `size` bytes exceed a limit, besides those of other bodies and of the queue; else None.

        `counted`: its bytes that count already, for `payer`.
        """
        others_bytes = self.body_bytes - counted + (0 if self._capacity is None else self._capacity.pending_bytes)
        if others_bytes and others_bytes + size > self._bytes_max:
            # A body larger than the complete capacity is read when nothing else is there, as in the queue.
            text = f"{others_bytes} bytes of submissions wait here already, of {self._bytes_max} at most: send the same again later"
            return self._with_ticket(Overloaded(text), "capacity", None)
        if payer.is_authenticated:
            # Else one party could keep all others out, with bodies that it never completes. One body has all that is left.
            own_bytes = self._bytes_of.get(payer, 0) - counted if payer.name else 0
            left_bytes = self._bytes_max - others_bytes + own_bytes
            if own_bytes and own_bytes + size > left_bytes * PARTY_TIMES // (PARTY_TIMES + 1):
                text = f"submissions of your party have {own_bytes} bytes here already, of {left_bytes} left: send the same again later"
                return self._with_ticket(Overloaded(text), "share", None)
            return None
        for key, part, whose in (
            (payer, UNAUTHENTICATED_ADDRESS_PART, "from your address"),
            (_ADDRESSES, UNAUTHENTICATED_PART, "from all addresses"),
        ):
            others_bytes = self._bytes_of.get(key, 0) - counted
            if others_bytes + size > max(self._bytes_max // part, SUBMISSION_BYTES_MAX):
                text = f"submissions {whose} use all bytes reserved for unauthenticated connections: send the same again later"
                return self._with_ticket(Overloaded(text), "capacity", None)
        return None

    def count_bytes(self, size: int, payer: Payer) -> None:
        """Count bytes of a body, or of an admitted submission that is looked up; negative ones once it is queued or answered."""
        self.body_bytes += size
        for key in (payer,) if payer.is_authenticated else (payer, _ADDRESSES):
            if left := self._bytes_of.get(key, 0) + size:
                self._bytes_of[key] = left
            else:
                self._bytes_of.pop(key, None)

    def _wait_rejection(self, body: Body) -> Overloaded | None:
        """Returns a rejection while bodies of its party, or of its address, wait too long to be decoded; else None.

        Without a bound on this wait, all bodies would be decoded late, and the queue behind the gate would never be full. (RFC 8289: the
        wait, not the length, shows that a queue is too long.)
        """
        key, weight = self._lanes.lane_of(body)
        now_s, of_party = self._clock_s(), weight > 0
        is_burst = self._lanes.age_s(key, now_s, of_party=of_party) <= BACKLOG_S
        if is_burst and body.waited_s <= CONNECTION_WAIT_S_MAX:
            return None
        wait_s = self._wait_s(key, now_s, of_party=of_party)
        if wait_s <= DECODING_WAIT_S and body.waited_s <= CONNECTION_WAIT_S_MAX:
            return None
        name = body.party.decode(errors="replace")
        if body.ticket and wait_s <= 2 * DECODING_WAIT_S and self.tickets is not None and self.tickets.counts(body.ticket, name):
            return None
        after_s = min(WAIT_S_MAX, 1 + math.ceil(wait_s))  # the pace may be low only because the worker was busy
        return self._with_ticket(
            Overloaded(f"submissions wait {wait_s:.1f} s to be read: send the same again later", after_s), "share", name
        )

    def too_late(self) -> Malformed:
        """Returns the rejection of a body that was not complete in time."""
        return Malformed(f"the body was not complete after {self._body_s_max:g} s: send it without pauses")

    def forget(self, body: Body) -> None:
        """Release the bytes of a body that will not be decoded any more."""
        self._bodies.discard(body)
        self.count_bytes(-body.size, body.payer)
        body.drop()

    def enter_lane(self, body: Body) -> None:
        """Put a complete body in its lane. It is decoded from the next turn of the loop on."""
        now_s = self._clock_s()
        if not self._lanes and not self._decoding:
            self._pace.begin(now_s)
        self._lanes.add(body, now_s)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)

    def resume(self) -> None:
        """Go on decoding at once: a batch was taken from the queue, or answered."""
        if self._is_paused:
            assert self._next is not None
            self._next.cancel()
            self._is_paused = False
            self._next = asyncio.get_running_loop().call_soon(self._turn)

    @property
    def is_busy(self) -> bool:
        """True while no further body is decoded. Bodies wait in the lanes, where the parties of all connections take turns."""
        return self._capacity is not None and self._capacity.is_busy and self._was_ready

    def _turn(self) -> None:
        """Decode waiting bodies for one turn of the loop. Between two such turns the loop does all other work, also for the log."""
        self._next = None
        self._is_paused = False
        try:
            self._decode_until(self._clock_s() + self._turn_s_max)
        finally:  # a bug in the answer to one body must not keep the others from being decoded
            if self._lanes or self._decoding:
                self._go_on()

    def _go_on(self) -> None:
        """Schedule the next turn: soon; in the next active slice if only addresses have bodies; in `BUSY_CHECK_S` if the worker is busy.

        A busy worker first rejects the bodies that have waited too long, `REJECTED_MAX` in a turn.
        """
        loop = asyncio.get_running_loop()
        is_busy = self.is_busy
        may_have_older = is_busy and self._reject_older()
        if self._next is not None:  # a rejection in this turn let its client's next body be complete (`enter_lane`)
            self._next.cancel()
            self._next = None
        self._is_paused = is_busy
        if is_busy and not may_have_older:
            self._next = loop.call_later(BUSY_CHECK_S, self._turn)
        elif is_busy or self._whose_turn() is not None:
            self._next = loop.call_soon(self._turn)
        else:
            self.duty.call(self._wake)

    def _wake(self) -> None:
        if self._next is None:
            self._turn()

    def _whose_turn(self) -> Side | None:
        return self._lanes.whose_turn(self._decoding, addresses=self.duty.is_active)

    def _reject_older(self) -> bool:
        """Reject bodies that have waited too long. Returns True if there may be more of them, for the next turn."""
        before_s = self._clock_s() - BUSY_WAIT_S_MAX
        stalled = {side: each.body for side, each in self._decoding.items() if each.since_s < before_s}
        for side in stalled:
            del self._decoding[side]
        older = self._lanes.take_older(before_s, REJECTED_MAX)
        for body in (*stalled.values(), *older):
            why = f"it waited for more than {BUSY_WAIT_S_MAX:g} s, because this worker is busy"
            text = f"{why}: send the same again later, or to another worker"
            body.reject(self._with_ticket(Overloaded(text, math.ceil(BUSY_WAIT_S_MAX)), "capacity", None))
        return len(older) == REJECTED_MAX

    def _decode_until(self, until_s: float) -> None:
        not_ready = self._why_not_ready()  # it cannot change in this turn
        self._was_ready = not_ready is None
        while not self.is_busy and (side := self._whose_turn()) is not None:
            decoding = self._decoding.get(side)
            if decoding is None:
                decoding = self._decoding[side] = _Decoding(self._lanes.take(side))
            if decoding.body in self._bodies:
                self._decode_piece(decoding, not_ready)
            if decoding.body not in self._bodies:  # it was admitted or rejected, or its client has left
                self._decoding.pop(side, None)
            if self._clock_s() > until_s:
                break

    def _decode_piece(self, decoding: "_Decoding", not_ready: NotaryError | None) -> None:
        """Decode one more piece of a body. After the last piece, admit or reject it."""
        body = decoding.body
        submission: AdmittedSubmission | None = None
        found: Exception | None = not_ready
        if not_ready is None:
            try:
                if decoding.pieces is None:
                    decoding.pieces = self._admit(body.data(), body.ticket)
                next(decoding.pieces)
                decoding.since_s = self._clock_s()
                return
            except StopIteration as done:
                submission = done.value
            except Exception as problem:  # a bug fails one call
                found = problem
        if submission is not None:  # rejections are cheap: a flood of malformed bodies must not raise the pace
            self._pace.answered(body.size, self._clock_s())
        self.forget(body)
        try:
            if submission is not None:
                body.admitted(submission)
        except Exception as problem:
            found = problem
        if found is not None:
            body.rejected(found)

    def admit(self, body: bytes, ticket: bytes = b"") -> AdmittedSubmission:
        """Decode and admit a submission. Raises the errors of this file's table."""
        if (problem := self._why_not_ready()) is not None:
            raise problem
        return completed(self._admit(body, ticket))

    def _admit(self, body: bytes, ticket: bytes) -> Generator[None, None, AdmittedSubmission]:
        """The work of `admit` in pieces. The longest pieces decode the party, the JSON, or a part of the states."""
        party, verify = self._party_of(body)
        self._check(1, 1, party, ticket)
        submission = yield from decode_in_pieces(body, self._notary_name)
        if submission.party != party:  # two decoders disagree; a signature must never be checked with another party's key
            raise Malformed("JSON parsers disagree about its party: give `party` once, as plain text", "party")
        message = signed_message(self._notary_name, party, [request.transaction_id for request in submission.requests])
        if not verify(submission.signature, message):
            raise BadSignature(_BAD_SIGNATURE)
        self.check_verified(submission, ticket)
        return AdmittedSubmission.of(submission)

    def admit_verified(self, submission: Submission, ticket: bytes = b"", payer: Payer = ANY_CLIENT) -> AdmittedSubmission:
        """Admit a submission whose party, format and signature an acceptor process has checked; the worker is ready."""
        if self.body_bytes and (full := self._bytes_rejection(0, len(submission.encoded), payer)) is not None:
            raise full  # other submissions are looked up
        self.check_verified(submission, ticket)
        return AdmittedSubmission.of(submission)

    def check_verified(self, submission: Submission, ticket: bytes = b"") -> None:
        """Check capacity and quota for all requests of a submission. It is called again if the submission is looked up before it is queued:
        others may have used them up meanwhile.

        A copy of a pending submission passes, since its party has paid for that one. Raises `Overloaded` or `QuotaExceeded`, with a
        ticket. The rejection of a new submission reserves what it needs.
        """
        requests, size_bytes, party, capacity = len(submission.requests), len(submission.encoded), submission.party, self._capacity
        if (capacity is None or capacity.is_calm(requests, size_bytes)) and (self._quota is None or not self._quota.limits(party)):
            return
        if capacity is None or submission not in capacity:
            self._check(requests, size_bytes, party, ticket, reserve=self._is_new(submission))

    def count_new(self, submission: Submission, ticket: bytes = b"", *, of_party: bool = True) -> None:
        """Count an admitted submission that is new here, neither decided nor pending: charge its party's quota, and its share of the lanes.
        Its ticket is used.

        Anyone may send a copy of an earlier submission, so a copy costs the party nothing. `of_party`: the submission came in its party's
        lane, where the party has paid for it.
        """
        if self._quota is not None:
            self._quota.charge(submission.party, len(submission.requests))
        if ticket and self.tickets is not None:
            self.tickets.use(ticket, submission.party)
        if not of_party:
            self.charge_lane(submission.party, len(submission.encoded))

    def charge_lane(self, party: str, size_bytes: int) -> None:
        """Count the bytes of a party's new submission that came in the lane of its client's address."""
        self._lanes.charge(party.encode(), size_bytes)

    def _rejection(self, requests: int, size_bytes: int, party: str | None, ticket: bytes, *, reserve: bool = False) -> Overloaded | None:
        """Returns the rejection if there is no capacity for this much, with a ticket for the retry; else None."""
        problem = self._overloaded(requests, size_bytes, party, ticket, reserve=reserve)
        return None if problem is None else self._with_ticket(problem, "capacity" if party is None else "share", party)

    def _overloaded(self, requests: int, size_bytes: int, party: str | None, ticket: bytes, *, reserve: bool = False) -> Overloaded | None:
        """Returns the same without a ticket, and counts no rejection."""
        capacity, tickets = self._capacity, self.tickets
        if capacity is None or capacity.is_calm(requests, size_bytes):
            return None
        ticketed = bool(ticket) and tickets is not None and tickets.counts(ticket, party)
        return capacity.rejection(requests, size_bytes, party, ticketed=ticketed, reserve=reserve)

    def _check(self, requests: int, size_bytes: int, party: str, ticket: bytes, *, reserve: bool = False) -> None:
        """Raise `Overloaded` or `QuotaExceeded` if there is no capacity, or no quota, for this much from a party.

        `reserve`: the rejection reserves it.
        """
        if (overloaded := self._rejection(requests, size_bytes, party, ticket, reserve=reserve)) is not None:
            raise overloaded
        if self._quota is not None and (exceeded := self._quota.rejection(party, requests, reserve=reserve)) is not None:
            raise self._with_ticket(exceeded, "quota", party)

    def _is_new(self, submission: Submission) -> bool:
        """Returns True if its first transaction is not decided. Anyone may send a copy of a decided submission, as often as they want."""
        return self._has_decided is not None and not self._has_decided([submission.requests[0].transaction_id])

    def _with_ticket(self, problem: Rejection, reason: str, party: str | None) -> Rejection:
        self.rejections[reason] += 1
        if self.tickets is not None:
            problem.ticket = self.tickets.give(problem.retry_after_s, party or "")
        return problem

    def _party_of(self, body: bytes) -> tuple[str, Verify]:
        """Returns the party and the verifier of its signatures. Raises `UnknownParty` or `Malformed`."""
        try:
            party = _decode_party(body).party
        except (ValueError, RecursionError):  # a `DecodeError` is a ValueError
            completed(decode_in_pieces(body, self._notary_name))  # its error has the reason and the place
            raise Malformed("its party cannot be read", "party") from None
        known = self._parties.get(party)
        if known is None:
            check_party(party)
            name = excerpt(party, 300)
            raise UnknownParty(f"the party {name} is not registered with this notary: its operator adds it with `notary party add`")
        return party, known.verify


class _Decoding:
    """A body that is being decoded."""

    __slots__ = ("body", "pieces", "since_s")

    def __init__(self, body: Body) -> None:
        self.body = body
        self.pieces: Generator[None, None, AdmittedSubmission] | None = None
        """The rest of the work; None before it begins."""
        self.since_s = math.inf
        """When its latest piece was decoded."""
