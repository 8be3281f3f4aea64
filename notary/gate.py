"""The gate: whether a submission may come in. Every reason for which one is refused is in this file.

What is asked first costs us least: R6 leaves all of it to the worker, since nothing is in the log yet.

| asked of | what | refused as |
|---|---|---|
| the head | method, media type | `method-not-allowed`, `unsupported-media-type` |
| | whether anything is taken in now: the worker is ready, and its queue has room | `not-ready`, `overloaded` |
| | the length that it declares | `too-large` |
| each piece of the body | its size; the memory of all bodies and all that waits; its time | `too-large`, `overloaded`, `malformed` |
| the body | whether anything is taken in now, again; that there is room for so many bytes | `not-ready`, `overloaded` |
| | the party, which is looked for in the body before anything else is decoded | `unknown-party` |
| | its quota, as far as it can be without decoding | `quota-exceeded` |
| | the format | `malformed` |
| the submission | room for its requests; the quota for all of them | `overloaded`, `quota-exceeded` |
| | the signature; only then is the quota charged: nobody can use up another party's | `bad-signature` |

An intake process has a gate too. Its worker's gate has told it whether anything is taken in, and asks itself for what only it knows:
room and quota (`Gate.admit_verified`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec

from joiner import AdmittedSubmission, SubmissionQueue
from notary.parties import Parties, Verify
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
        super().__init__(what)


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


class Body:
    """The body of one submission: its connection calls `piece` for each piece, then one of `whole`, `late` and `left`.

    Subclasses hear what came of it: once, unless the client left.
    """

    __slots__ = ("_gate", "_pieces", "_size")

    def __init__(self, gate: "Gate") -> None:
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

    def data(self) -> bytes:
        """What has come of it."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def drop(self) -> None:
        """Its bytes do not count any more."""
        self._pieces = []
        self._gate.body_bytes -= self._size
        self._size = 0


_FEWER: Final = "send fewer requests at a time"


class _Party(msgspec.Struct, gc=False):
    """The one member of a submission that is looked at before the others."""

    party: str


_decode_party = msgspec.json.Decoder(_Party).decode


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
        queue: SubmissionQueue[Any] | None = None,
        quota: "Quota | None" = None,
    ) -> None:
        """`closed` returns why nothing is taken in, whatever it is. What came at once is looked at for `turn_s_max`, the rest a turn later;
        a large body is decoded in pieces of a millisecond or two.

        An intake process has no queue and no quota.
        """
        self._notary_name = notary_name
        self._parties = parties
        self._closed = closed
        self._was_closed = True
        self._clock_s = clock_s
        self._queue = queue
        self._quota = quota
        self._turn_s_max = turn_s_max
        self.bytes_max = bytes_max
        self.body_s_max = body_s_max
        self.body_bytes = 0
        """Of all bodies that are not complete, or not looked at."""
        self._bodies: set[Body] = set()
        self._asked: deque[Body] = deque()
        self._reading: Generator[None, None, AdmittedSubmission] | None = None
        """The first of those that are asked, as far as it is decoded."""

    # ---- the head ----

    def closed(self) -> NotaryError | None:
        """Why no submission is taken in now, whatever it is."""
        problem = self._closed()
        self._was_closed = problem is not None
        return problem or (None if self._queue is None else self._queue.refusal(1, 1))

    def closed_to_head(self) -> NotaryError | None:
        """The same for a head. While the gate is open only the queue is asked: the worker is, before the body is decoded."""
        refused = self._queue is not None and self._queue.refusal(1, 1) is not None
        return self.closed() if refused or self._was_closed else None

    def begin(self, body: Body, declared: bytes | None) -> None:
        """A body is about to come. Raises `TooLarge`."""
        if declared is not None and int(declared) > SUBMISSION_BYTES_MAX:
            raise TooLarge(f"the body has {int(declared)} bytes and at most {SUBMISSION_BYTES_MAX} are taken: {_FEWER}")
        self._bodies.add(body)

    def stop(self) -> None:
        """Refuse all that is not in yet: bodies that are only half here are not waited for."""
        self._asked.clear()
        self._reading = None
        for body in list(self._bodies):
            body.refuse(NotReady(SHUTTING_DOWN))

    def waiting_bytes(self) -> int:
        """The bytes of the submissions that are in."""
        return 0 if self._queue is None else self._queue.pending_bytes

    # ---- the body ----

    def ask(self, body: Body) -> None:
        """Look at a body that is complete."""
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._look)
        self._asked.append(body)

    def forget(self, body: Body) -> None:
        """It is not read any more."""
        self._bodies.discard(body)

    def _look(self) -> None:
        """Look at what has come, a piece at a time. The log, and in an intake process the worker, have their turns in between."""
        until_s = self._clock_s() + self._turn_s_max
        closed = self._closed()  # once for all: nothing else runs meanwhile
        self._was_closed = closed is not None
        while self._asked:
            body = self._asked[0]
            if body in self._bodies:
                self._look_at(body, closed)
            if body not in self._bodies:  # it was let in or refused, now or before, or its client left
                self._asked.popleft()
                self._reading = None
            if self._clock_s() > until_s:
                break
        if self._asked:
            asyncio.get_running_loop().call_soon(self._look)

    def _look_at(self, body: Body, closed: NotaryError | None) -> None:
        """Decode one piece more of it; after the last one it is let in."""
        submission: AdmittedSubmission | None = None
        found: Exception | None = closed
        if closed is None:
            try:
                if self._reading is None:
                    self._reading = self._admit(body.data())
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

    def admit(self, body: bytes) -> AdmittedSubmission:
        """The submission that `body` is, if it may come in."""
        if (problem := self._closed()) is not None:
            raise problem
        pieces = self._admit(body)
        while True:
            try:
                next(pieces)
            except StopIteration as done:
                admitted: AdmittedSubmission = done.value
                return admitted

    def _admit(self, body: bytes) -> Generator[None, None, AdmittedSubmission]:
        """The same in pieces. What a body of any size may cost at once is its party, one decoding of its JSON, or one piece of that."""
        if self._queue is not None:
            self._queue.check_room(1, len(body))
        party, verify = self._party_of(body)
        submission = yield from decode_in_pieces(body, self._notary_name)
        if submission.party != party:  # two decoders that do not agree; a signature must never be checked with another party's key
            raise Malformed("it names its party in a way that is not read alike everywhere", "party")
        return self._let_in(submission, verify)

    def admit_verified(self, submission: Submission) -> AdmittedSubmission:
        """The same for one of which an intake process has looked at party, format and signature."""
        if (problem := self._closed()) is not None:
            raise problem
        return self._let_in(submission, _verified)

    def _let_in(self, submission: Submission, verify: Verify) -> AdmittedSubmission:
        queue, quota, requests = self._queue, self._quota, len(submission.requests)
        if queue is not None:
            if submission in queue:
                return AdmittedSubmission.of(submission)  # these bytes wait already, so their signature is a good one, and charged
            queue.check_room(requests, len(submission.encoded))
        if quota is not None:
            quota.check(submission.party, requests)
        if not verify(submission.signature, self._message(submission)):
            raise BadSignature(_BAD_SIGNATURE)
        if quota is not None:
            quota.charge(submission.party, requests)
        return AdmittedSubmission.of(submission)

    def _party_of(self, body: bytes) -> tuple[str, Verify]:
        """The party, and the check of its signatures. Raises `UnknownParty`, `QuotaExceeded` where no request is left, or `Malformed`."""
        try:
            party = _decode_party(body).party
        except (ValueError, RecursionError):  # a `DecodeError` is a ValueError
            decode_submission(body, self._notary_name)  # it says what is wrong, and where
            raise Malformed("its party cannot be read", "party") from None
        verify = self._parties.get(party)
        if verify is None:
            check_party(party)
            raise UnknownParty(
                f"the party {excerpt(party, 300)} is not registered with this notary: its operator adds it with `notary party add`"
            )
        if self._quota is not None:
            self._quota.check(party, 1)
        return party, verify

    def _message(self, submission: Submission) -> bytes:
        return signed_message(self._notary_name, submission.party, [request.transaction_id for request in submission.requests])


def _verified(signature: bytes, message: bytes) -> bool:
    """The check of a signature that an intake process has checked."""
    return True


class Quota:
    """A token bucket for each party, one second deep; a submission larger than the bucket passes when it is full."""

    def __init__(self, per_s: int, clock_s: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock_s = clock_s
        self._buckets: dict[str, tuple[float, float]] = {}  # party -> (tokens, as of); registered parties only

    def check(self, party: str, requests: int) -> None:
        """Raise `QuotaExceeded` unless the party may send so many now."""
        tokens, needed = self._tokens(party, self._clock_s()), min(requests, self._per_s)
        if tokens < needed:
            wait_s = max(1, round((needed - tokens) / self._per_s + 0.5))
            raise QuotaExceeded(f"more than {self._per_s} requests a second of {excerpt(party, 300)}: send the same again later", wait_s)

    def charge(self, party: str, requests: int) -> None:
        """Count what `check` has let pass in the same turn of the loop."""
        now = self._clock_s()
        self._buckets[party] = (self._tokens(party, now) - requests, now)

    def _tokens(self, party: str, now: float) -> float:
        tokens, as_of = self._buckets.get(party, (float(self._per_s), now))
        return min(float(self._per_s), tokens + (now - as_of) * self._per_s)
