"""The submissions that a worker has admitted and not answered: a bounded queue, shared by party, and the batches made from it.

Each party's submissions are served first come, first served. Batches take from the parties by deficit round robin, and the parties share
the queue's capacity (`joiner.share`). So a party that sends far more than its share delays only itself.

A submission counts from `put` until it is answered, in the queue or in a batch that is neither decided nor given up. So the admitted
submissions bound the memory, however often a batch must be sent again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, Generic, TypeAlias, TypeVar

from joiner.rate import Pace, Rate
from joiner.settings import QueueLimits
from joiner.share import TICKETS_PART, Limiters, Share
from ordering.errors import Overloaded
from ordering.ids import TransactionId
from payload import Request, Submission, encode_batch

Decision = TypeVar("Decision")


Waiter: TypeAlias = Callable[[Sequence[Decision] | None], None]
"""Called once with the decisions of a submission, in the order of its requests; None if the worker gives up: the outcome is unknown."""

QUANTUM: Final = 64
"""The cost (`Pending.cost`) of the submissions of a party of weight 1 that enter batches per round."""
SPARED_PART: Final = 4
"""At most 1/`SPARED_PART` of the capacity, and at most one batch, is reserved for parties that have less than an equal share."""
SPARED_BYTES: Final = 4 << 20
BUSY_S: Final = 0.06
"""The worker is busy if it has work for longer than this plus twice the time of an append, at the present pace."""
BUSY_REQUESTS: Final = 256
"""With fewer pending requests than this the pace does not make the worker busy: it may be low only because there was little to do."""
CALM: Final = 0.4
"""Below this share of the capacity every submission is admitted. The other 0.6: a tenth for tickets, and half for large submissions."""


class AdmittedSubmission(Submission, frozen=True, gc=False):
    """A submission that may go into the log. Only the gate makes one, and the queue admits nothing else."""

    @classmethod
    def of(cls, submission: Submission) -> "AdmittedSubmission":
        """Returns the same submission as one that may go into the log; the caller has checked that."""
        return cls(submission.party, submission.signature, submission.requests, submission.encoded)


class Pending(Generic[Decision]):
    """A submission from its admission to its answer."""

    __slots__ = ("attempts", "cost", "encoded", "key", "party", "requests", "waiters")

    def __init__(self, submission: AdmittedSubmission) -> None:
        self.key = _key(submission)
        self.encoded = submission.encoded
        self.requests = submission.requests
        self.party = submission.party
        self.cost = max(len(submission.requests), len(submission.encoded) >> 10)  # in requests, or KiB if that is more
        self.waiters: dict[Waiter[Decision], None] = {}
        """Called in the step that decides it, in this order; they must not raise or call the queue. A copy of the submission adds one."""
        self.attempts = 0


_Key: TypeAlias = tuple[str, tuple[TransactionId, ...]]
"""A submission's party and transaction ids. Anyone may write the states of a request in another order: the ids are the same."""


class Batch(Generic[Decision]):
    """The content of one payload record. The joiner uses it instead of decoding the record again (`OwnBatch`)."""

    __slots__ = ("entry_value", "payload_hash", "requests", "signed_by", "submissions", "value")

    def __init__(self, submissions: list[Pending[Decision]]) -> None:
        self.submissions = submissions
        self.value = encode_batch([pending.encoded for pending in submissions])
        self.payload_hash = sha256(self.value).digest()
        self.entry_value = self.signed_by = b""  # the sender sets them before it appends the entry
        self.requests: tuple[Request, ...] = tuple([request for pending in submissions for request in pending.requests])


class SubmissionQueue(Generic[Decision]):
    """The queue of one worker. One event loop."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._spared_requests = min(limits.batch_requests_max, limits.pending_requests_max // SPARED_PART)
        self._spared_bytes = min(SPARED_BYTES, limits.pending_bytes_max // SPARED_PART)
        self._calm_requests_min = CALM * min(limits.batch_requests_max, limits.pending_requests_max - self._spared_requests)
        """Up to this number of pending requests there is capacity at any rate of decisions."""
        self._again: deque[Pending[Decision]] = deque()  # submissions that were in a batch before go first
        self._shares: dict[str, Share[Pending[Decision]]] = {}
        self._turns: deque[Share[Pending[Decision]]] = deque()  # the shares with submissions that wait
        self._weights = 0  # of all shares
        self._queued = 0
        self._pending: dict[_Key, Pending[Decision]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.weight_of: Callable[[str], int] = lambda party: 1
        """A party's weight, 1 or more. The worker sets it."""
        self.rate = Rate()
        self.pace = Pace()
        self.append_s: Callable[[], float] = lambda: 0.0
        """Returns the shortest time that an append took lately. The sender sets it."""
        self.has_unanswered: Callable[[], bool] = lambda: False
        """True while decided submissions wait for their answers. The application sets it, and calls `capacity_freed` once none waits."""
        self.capacity_freed: Callable[[], None] = lambda: None
        """Called when a batch was taken or answered. The worker sets it."""
        self.queued_requests = self.queued_bytes = 0
        """The requests, and the bytes, of submissions that are not in a batch."""
        self.pending_requests = 0
        self.pending_bytes = 0
        self._limiters = Limiters()

    def __len__(self) -> int:
        """The number of submissions that are in no batch."""
        return self._queued

    def __contains__(self, submission: Submission) -> bool:
        """Returns True if the same requests of its party are pending: `put` would return the pending submission."""
        return _key(submission) in self._pending

    @property
    def is_busy(self) -> bool:
        """True while the pending submissions, or the answers to decided ones, keep the worker busy, or are enough for the next batch.

        More submissions would only wait here and in the log, first come, first served. So they wait at the gate, where parties take turns.
        """
        limits = self._limits
        busy_requests = max(BUSY_REQUESTS, self.pace.per_s * (BUSY_S + 2 * self.append_s()))
        return (
            self.pending_requests >= busy_requests
            or self.queued_requests >= limits.batch_requests_max
            or self.queued_bytes >= limits.batch_bytes_max
            or self.has_unanswered()
        )

    @property
    def parties(self) -> int:
        """The number of parties with pending submissions."""
        return len(self._shares)

    def is_calm(self, requests: int, size_bytes: int) -> bool:
        """Returns True if so many requests and bytes of any party can be admitted."""
        here = self.pending_requests + requests
        return (
            here <= self._calm_requests_min or here <= CALM * self._capacity_requests()
        ) and self.pending_bytes + size_bytes <= CALM * self._limits.pending_bytes_max

    def rejection(
        self, requests: int, size_bytes: int, party: str | None = None, *, ticketed: bool = False, reserve: bool = False
    ) -> Overloaded | None:
        """Returns the reason why this much of `party`, or of any party, cannot be admitted, with an estimate for the retry; None if it can.

        A party may have as many requests pending as the worker decides for it in `pending_s_max`. So the worker answers each admitted
        submission in time, for any number of clients. Up to a party's equal part of the capacity, only lack of memory causes a rejection.
        `reserve`: the rejection reserves capacity. That is for verified new submissions, since anyone may name a party, or send a copy of a
        decided one. Other rejections affect later submissions only if the queue is full.
        """
        # Admit a submission larger than the complete queue if nothing else is pending: otherwise it could never be admitted.
        if self.is_calm(requests, size_bytes) or not self.pending_requests:
            return None
        here, here_bytes, limits = self.pending_requests, self.pending_bytes, self._limits
        if party is not None and self._is_too_much(party, requests, size_bytes, ticketed=ticketed, reserve=reserve):
            share = self._shares.get(party)
            if reserve or (share is not None and share.limiters.one(ticketed=ticketed).full):
                self.rate.rejected()
            own = 0 if share is None else share.pending_requests
            after_s = self.rate.seconds_for(here) if share is None else self._seconds_for(share)
            return Overloaded(f"{own} requests of this party are waiting already, and {here} of all: send the same again later", after_s)
        for_tickets = 0 if ticketed else self._spared_requests // TICKETS_PART
        limit, limit_bytes = limits.pending_requests_max - for_tickets, limits.pending_bytes_max
        if self._limiters.rejects(requests, size_bytes, here, here_bytes, limit, limit_bytes, ticketed=ticketed, reserve=reserve):
            if reserve or self._limiters.one(ticketed=ticketed).full:
                self.rate.rejected()
            return Overloaded(f"{here} requests are waiting already: send the same again later", self.rate.seconds_for(here))
        return None

    def full_parties(self) -> dict[str, int]:
        """Returns the parties whose submissions are rejected now, and the seconds after which each should retry."""
        return {
            party: self._seconds_for(share)
            for party, share in self._shares.items()
            if share.limiters.plain.full and self._is_too_much(party, 1, 1, ticketed=False, reserve=False)
        }

    def put(self, submission: AdmittedSubmission) -> Pending[Decision]:
        """Admit a submission that `rejection` does not reject. The `waiters` of the result get its decisions.

        If the same requests of its party are pending, this returns the pending submission: retries of slow submissions must not make
        them slower.
        """
        pending: Pending[Decision] = Pending(submission)
        if (same := self._pending.get(pending.key)) is not None:
            return same
        requests, size = len(pending.requests), len(pending.encoded)
        if not self.pending_requests:
            self.rate.begin(asyncio.get_running_loop().time())
            self._idle.clear()
        share = self._shares.get(pending.party)
        if share is None:
            share = self._shares[pending.party] = Share(0)
        if (weight := self.weight_of(pending.party)) != share.weight:
            self._weights += weight - share.weight
            share.weight = weight
        if not share.waiting:
            share.deficit = QUANTUM * weight
            self._turns.append(share)
        share.waiting.append(pending)
        share.pending_requests += requests
        share.pending_bytes += size
        self._pending[pending.key] = pending
        self._queued += 1
        self.queued_requests += requests
        self.queued_bytes += size
        self.pending_requests += requests
        self.pending_bytes += size
        return pending

    def take_batch(self) -> Batch[Decision]:
        """Returns the next batch: at least one submission, then as many as fit. Each party in turn gets a part according to its weight."""
        limits, again, turns = self._limits, self._again, self._turns
        submissions: list[Pending[Decision]] = []
        size = requests = 0
        while again or turns:
            share = None if again else turns[0]
            waiting = again if share is None else share.waiting
            pending = waiting[0]
            if share is not None and pending.cost > share.deficit:
                share.deficit += QUANTUM * share.weight
                turns.rotate(-1)
                continue
            size += len(pending.encoded)
            requests += len(pending.requests)
            if submissions and (size > limits.batch_bytes_max or requests > limits.batch_requests_max):
                break
            submissions.append(waiting.popleft())
            self.queued_requests -= len(pending.requests)
            self.queued_bytes -= len(pending.encoded)
            if share is not None:
                share.deficit -= pending.cost
                if not waiting:
                    turns.popleft()
        self._queued -= len(submissions)
        if not self._queued:
            self.rate.ran_dry()
        self.capacity_freed()
        return Batch(submissions)

    def put_back(self, batch: Batch[Decision]) -> None:
        """Put the submissions of a batch that will never count at the front of the queue. Give them up after too many attempts."""
        for pending in reversed(batch.submissions):
            pending.attempts += 1
            if pending.attempts < self._limits.attempts_max:
                self._again.appendleft(pending)
                self._queued += 1
                self.queued_requests += len(pending.requests)
                self.queued_bytes += len(pending.encoded)
                continue
            self._finish(pending, None)

    def answer(self, batch: Batch[Decision], decisions: Sequence[Decision]) -> None:
        """Give each submission of a batch its decisions, which come in the order of the batch's requests."""
        now_s = asyncio.get_running_loop().time()
        self.rate.answered(len(batch.requests), now_s)
        self.pace.answered(len(batch.requests), now_s)
        at = 0
        for pending in batch.submissions:
            count = len(pending.requests)
            self._finish(pending, decisions[at : at + count])
            at += count
        self.capacity_freed()

    async def drain(self) -> None:
        """Return when all admitted submissions have been answered."""
        await self._idle.wait()

    def _finish(self, pending: Pending[Decision], decisions: Sequence[Decision] | None) -> None:
        """Remove a submission, and pass its decisions to its waiters; None if the worker gives it up."""
        requests, size, share = len(pending.requests), len(pending.encoded), self._shares[pending.party]
        del self._pending[pending.key]
        self.pending_requests -= requests
        self.pending_bytes -= size
        share.pending_requests -= requests
        share.pending_bytes -= size
        if not share.pending_requests:
            del self._shares[pending.party]
            self._weights -= share.weight
        if not self.pending_requests:
            self.rate.end(asyncio.get_running_loop().time())
            self._idle.set()
        for waiter in pending.waiters:
            waiter(decisions)
        pending.waiters.clear()  # they have this object: without the garbage collector it would stay

    def _is_too_much(self, party: str, requests: int, size_bytes: int, *, ticketed: bool, reserve: bool) -> bool:
        """Returns True if an addition of this size exceeds the party's part of the capacity."""
        capacity, here, share = self._capacity_requests(), self.pending_requests, self._shares.get(party)
        if share is None:
            weight = self.weight_of(party)
            return here + requests > capacity + self._spared_requests and requests > capacity * weight // (self._weights + weight)
        all_capacity, all_here = (capacity, self._limits.pending_bytes_max - self._spared_bytes), (here, self.pending_bytes)
        return share.rejects(requests, size_bytes, all_capacity, all_here, self._weights, ticketed=ticketed, reserve=reserve)

    def _seconds_for(self, share: Share[Pending[Decision]]) -> int:
        """Returns the seconds until a party's pending requests are decided at its part of the rate, or all pending ones, if sooner."""
        return self.rate.seconds_for(min(self.pending_requests, share.pending_requests * self._weights // share.weight))

    def _capacity_requests(self) -> int:
        """Returns the number of requests that all parties together may have pending."""
        limits = self._limits
        requests_max = limits.pending_requests_max - self._spared_requests
        if not self.rate.per_s:
            return requests_max
        # Admit at least one batch: if the rate was low for another reason, it can then show that it has recovered.
        return min(requests_max, max(limits.batch_requests_max, int(self.rate.per_s * limits.pending_s_max)))


def _key(submission: Submission) -> _Key:
    return submission.party, tuple([request.transaction_id for request in submission.requests])
