"""The submissions that a worker has admitted and not answered: a bounded queue, shared by party, and the batches made from it.

Within one party the first come are the first served. Among parties batches are filled by deficit round robin, and room is shared
(`joiner.share`), so a party that sends far more than its share makes itself wait and nobody else.

A submission stays counted from `put` until it is answered, wherever it is meanwhile: in the queue, or in a batch that the log has not
spoken on. So memory is bounded by what was admitted, however often a batch has to be sent again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, Generic, TypeAlias, TypeVar

from joiner.rate import Rate
from joiner.settings import QueueLimits
from joiner.share import TICKETS_PART, Door, Share
from ordering.errors import Overloaded
from payload import Request, Submission, encode_batch

Decision = TypeVar("Decision")


Waiter: TypeAlias = Callable[[Sequence[Decision] | None], None]
"""Called once with the decisions of a submission, in the order of its requests; None: whether it will be decided is unknown."""

QUANTUM: Final = 64
"""Requests that a party of weight 1 gets into the batches a round; a KiB counts as one."""
SPARED_PART: Final = 4
"""At most a quarter of all room is kept for parties that have less than an equal share of it; a batch's worth is enough."""
SPARED_BYTES: Final = 4 << 20
CALM: Final = 0.4
"""Below this share of the room no party's door is closed, whoever has what: a tenth is for tickets, half for what is large."""


class AdmittedSubmission(Submission, frozen=True, gc=False):
    """A submission that may go into the log. Only the gate makes one, and the queue takes nothing else."""

    @classmethod
    def of(cls, submission: Submission) -> "AdmittedSubmission":
        """The same submission, once it is known that it may."""
        return cls(submission.party, submission.signature, submission.requests, submission.encoded)


class Pending(Generic[Decision]):
    """A submission from its admission to its answer."""

    __slots__ = ("attempts", "cost", "encoded", "party", "requests", "waiters")

    def __init__(self, submission: AdmittedSubmission) -> None:
        self.encoded = submission.encoded
        self.requests = submission.requests
        self.party = submission.party
        self.cost = max(len(submission.requests), len(submission.encoded) >> 10)
        self.waiters: list[Waiter[Decision]] = []
        """Called in the step that decides it; they must not raise, nor come back to the queue."""
        self.attempts = 0


class Batch(Generic[Decision]):
    """What one payload record carries; it also serves the joiner as the content it need not decode again (`OwnBatch`)."""

    __slots__ = ("entry_value", "payload_hash", "requests", "signed_by", "submissions", "value")

    def __init__(self, submissions: list[Pending[Decision]]) -> None:
        self.submissions = submissions
        self.value = encode_batch([pending.encoded for pending in submissions])
        self.payload_hash = sha256(self.value).digest()
        self.entry_value = self.signed_by = b""  # of the ordering record, once it is sent
        self.requests: tuple[Request, ...] = tuple([request for pending in submissions for request in pending.requests])


class SubmissionQueue(Generic[Decision]):
    """The queue of one worker. One event loop."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._spared_requests = min(limits.batch_requests_max, limits.pending_requests_max // SPARED_PART)
        self._spared_bytes = min(SPARED_BYTES, limits.pending_bytes_max // SPARED_PART)
        self._again: deque[Pending[Decision]] = deque()  # what was in a batch before goes first
        self._shares: dict[str, Share[Pending[Decision]]] = {}
        self._turns: deque[Share[Pending[Decision]]] = deque()  # those with something that waits
        self._weights = 0  # of all shares
        self._queued = 0
        self._pending: dict[bytes, Pending[Decision]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.weight_of: Callable[[str], int] = lambda party: 1
        """A party's weight, 1 or more. The worker sets it."""
        self.rate = Rate()
        self.queued_bytes = 0
        """Bytes of the submissions that are in no batch."""
        self.pending_requests = 0
        self.pending_bytes = 0
        self._plain, self._ticketed = Door(), Door()

    def __len__(self) -> int:
        """Submissions that are in no batch."""
        return self._queued

    def __contains__(self, submission: Submission) -> bool:
        """Returns True if these very bytes wait already: `put` would have them wait together."""
        return submission.encoded in self._pending

    @property
    def parties(self) -> int:
        """Parties that wait for something."""
        return len(self._shares)

    def is_calm(self, requests: int, size_bytes: int) -> bool:
        """Returns True if there is room for so much of any party."""
        return (
            self.pending_requests + requests <= CALM * self._room_requests()
            and self.pending_bytes + size_bytes <= CALM * self._limits.pending_bytes_max
        )

    def refusal(self, requests: int, size_bytes: int, party: str | None = None, *, ticketed: bool = False) -> Overloaded | None:
        """Returns the reason why there is no room for this much, with an estimate for the retry; None when there is. No party: for anybody.

        What a party has here may be as much as is decided of it in `pending_s_max`, so that whoever is let in is answered in time, however
        many ask. What others have does not make it wait, so up to an equal part of the room it is refused only where memory ends.
        """
        # One that is larger than the whole queue is taken when nothing else waits: else it never could be.
        if self.is_calm(requests, size_bytes) or not self.pending_requests:
            return None
        here, here_bytes, limits = self.pending_requests, self.pending_bytes, self._limits
        if party is not None and self._is_too_much(party, requests, size_bytes, ticketed=ticketed):
            self.rate.refused()
            share = self._shares.get(party)
            own = 0 if share is None else share.pending_requests
            after_s = self.rate.seconds_for(here) if share is None else self._seconds_for(share)
            return Overloaded(f"{own} requests of this party are waiting already, and {here} of all: send the same again later", after_s)
        door, kept = (self._ticketed, 0) if ticketed else (self._plain, self._spared_requests // TICKETS_PART)
        if door.refuses(requests, size_bytes, here, here_bytes, limits.pending_requests_max - kept, limits.pending_bytes_max):
            self.rate.refused()
            return Overloaded(f"{here} requests are waiting already: send the same again later", self.rate.seconds_for(here))
        return None

    def full_parties(self) -> dict[str, int]:
        """The parties that have no room now, and in how many seconds each should come again."""
        return {
            party: self._seconds_for(share)
            for party, share in self._shares.items()
            if share.plain.full and self._is_too_much(party, 1, 1, ticketed=False)
        }

    def check_room(self, requests: int, size_bytes: int, party: str | None = None) -> None:
        """Raise the `refusal`, if there is one."""
        if (refusal := self.refusal(requests, size_bytes, party)) is not None:
            raise refusal

    def put(self, submission: AdmittedSubmission) -> Pending[Decision]:
        """Take a submission in, for which there is room: `waiters` of what comes back hear its decisions.

        The same bytes again, while the first wait, wait with them: else clients that retry what takes long would make it take longer.
        """
        if (same := self._pending.get(submission.encoded)) is not None:
            return same
        pending: Pending[Decision] = Pending(submission)
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
        self._pending[pending.encoded] = pending
        self._queued += 1
        self.queued_bytes += size
        self.pending_requests += requests
        self.pending_bytes += size
        return pending

    def take_batch(self) -> Batch[Decision]:
        """The next batch: at least one submission, then as many as fit, of each party in its turn as much as its weight says."""
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
            self.queued_bytes -= len(pending.encoded)
            if share is not None:
                share.deficit -= pending.cost
                if not waiting:
                    turns.popleft()
        self._queued -= len(submissions)
        if not self._queued:
            self.rate.ran_dry()
        return Batch(submissions)

    def put_back(self, batch: Batch[Decision]) -> None:
        """A batch that will never count: its submissions go to the front, or are given up after too many attempts."""
        for pending in reversed(batch.submissions):
            pending.attempts += 1
            if pending.attempts < self._limits.attempts_max:
                self._again.appendleft(pending)
                self._queued += 1
                self.queued_bytes += len(pending.encoded)
                continue
            self._let_go(pending, None)

    def answer(self, batch: Batch[Decision], decisions: Sequence[Decision]) -> None:
        """Give each submission of a batch its decisions, which come in the order of the batch's requests."""
        self.rate.answered(len(batch.requests), asyncio.get_running_loop().time())
        at = 0
        for pending in batch.submissions:
            count = len(pending.requests)
            self._let_go(pending, decisions[at : at + count])
            at += count

    async def drain(self) -> None:
        """Return when everything taken in has been answered."""
        await self._idle.wait()

    def _let_go(self, pending: Pending[Decision], decisions: Sequence[Decision] | None) -> None:
        requests, size, share = len(pending.requests), len(pending.encoded), self._shares[pending.party]
        del self._pending[pending.encoded]
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

    def _is_too_much(self, party: str, requests: int, size_bytes: int, *, ticketed: bool) -> bool:
        """Returns True if the party has no room for so much more."""
        room, here, share = self._room_requests(), self.pending_requests, self._shares.get(party)
        if share is None:
            weight = self.weight_of(party)
            return here + requests > room + self._spared_requests and requests > room * weight // (self._weights + weight)
        all_room, all_here = (room, self._limits.pending_bytes_max - self._spared_bytes), (here, self.pending_bytes)
        return share.refuses(requests, size_bytes, all_room, all_here, self._weights, ticketed=ticketed)

    def _seconds_for(self, share: Share[Pending[Decision]]) -> int:
        """Until what a party has here is decided: at its part of the rate, unless all is decided sooner."""
        return self.rate.seconds_for(min(self.pending_requests, share.pending_requests * self._weights // share.weight))

    def _room_requests(self) -> int:
        """The requests that parties may have here, whoever they are."""
        limits = self._limits
        requests_max = limits.pending_requests_max - self._spared_requests
        if not self.rate.per_s:
            return requests_max
        # A batch's worth at least: a rate that was low for another reason must have the chance to show that it is not any more.
        return min(requests_max, max(limits.batch_requests_max, int(self.rate.per_s * limits.pending_s_max)))
