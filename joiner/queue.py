"""What a worker has taken in and not answered: a bounded queue, first come first served, and the batches made from it.

A submission stays counted from `put` until it is answered, wherever it is meanwhile: in the queue, or in a batch that the log has not
spoken on. So memory is bounded by what was admitted, however often a batch has to be sent again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Generic, TypeAlias, TypeVar

import msgspec

from joiner.rate import Rate
from ordering.errors import Overloaded
from payload import Request, Submission, encode_batch

Decision = TypeVar("Decision")


Waiter: TypeAlias = Callable[[Sequence[Decision] | None], None]
"""Called once with the decisions of a submission, in the order of its requests; None: whether it will be decided is unknown."""

OPENS_AT = 0.9
"""A queue that was full takes submissions again at this share of its bounds."""


class AdmittedSubmission(Submission, frozen=True, gc=False):
    """A submission that may go into the log. Only the gate makes one, and the queue takes nothing else."""

    @classmethod
    def of(cls, submission: Submission) -> "AdmittedSubmission":
        """The same submission, once it is known that it may."""
        return cls(submission.party, submission.signature, submission.requests, submission.encoded)


class QueueLimits(msgspec.Struct, frozen=True):
    """How much is taken in, how much travels together, how often it is tried."""

    pending_requests_max: int = 40_000
    pending_bytes_max: int = 64 << 20
    pending_s_max: float = 3.0  # at the rate of the last seconds; a batch's worth is taken all the same
    batch_bytes_max: int = 512 << 10
    batch_requests_max: int = 2_000
    attempts_max: int = 20


class Pending(Generic[Decision]):
    """A submission from its admission to its answer."""

    __slots__ = ("attempts", "encoded", "requests", "waiters")

    def __init__(self, submission: AdmittedSubmission) -> None:
        self.encoded = submission.encoded
        self.requests = submission.requests
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
        self._queue: deque[Pending[Decision]] = deque()
        self._pending: dict[bytes, Pending[Decision]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.rate = Rate()
        self.queued_bytes = 0
        """Bytes of the submissions that are in no batch."""
        self.pending_requests = 0
        self.pending_bytes = 0
        self._full = False
        self._wanted = 0  # requests of the largest that was refused since it is full

    def __len__(self) -> int:
        """Submissions that are in no batch."""
        return len(self._queue)

    def __contains__(self, submission: Submission) -> bool:
        """Whether these very bytes wait already: `put` would have them wait together."""
        return submission.encoded in self._pending

    def refusal(self, requests: int, size_bytes: int) -> Overloaded | None:
        """Why there is no room for this much, with an estimate of when to come again; None when there is.

        What is here may be as much as is decided in `pending_s_max`, so that whoever is let in is answered in time, however many ask. Once
        one was refused all are, until a tenth has been decided, and there is room for the largest that was refused, up to half of all room:
        near the bound every submission would be decoded before its size tells that there is no room, and only small ones would get in.
        """
        requests_max, bytes_max = self._requests_max(), self._limits.pending_bytes_max
        here, here_bytes = self.pending_requests, self.pending_bytes
        room = requests_max - min(self._wanted, requests_max // 2)
        if self._full and here <= min(OPENS_AT * requests_max, room) and here_bytes <= OPENS_AT * bytes_max:
            self._full, self._wanted = False, 0
        # One that is larger than the whole queue is taken when nothing else waits: else it never could be.
        if not here or (not self._full and here + requests <= requests_max and here_bytes + size_bytes <= bytes_max):
            return None
        self._full, self._wanted = True, max(self._wanted, requests)
        self.rate.refused()
        return Overloaded(f"{here} requests are waiting already: send the same again later", self.rate.seconds_for(here))

    def check_room(self, requests: int, size_bytes: int) -> None:
        """Raise the `refusal`, if there is one."""
        if (refusal := self.refusal(requests, size_bytes)) is not None:
            raise refusal

    def put(self, submission: AdmittedSubmission) -> Pending[Decision]:
        """Take a submission in, for which there is room: `waiters` of what comes back hear its decisions.

        The same bytes again, while the first wait, wait with them: else clients that retry what takes long would make it take longer.
        """
        if (same := self._pending.get(submission.encoded)) is not None:
            return same
        pending: Pending[Decision] = Pending(submission)
        if not self.pending_requests:
            self.rate.begin(asyncio.get_running_loop().time())
        self._queue.append(pending)
        self._pending[pending.encoded] = pending
        self.queued_bytes += len(pending.encoded)
        self.pending_requests += len(pending.requests)
        self.pending_bytes += len(pending.encoded)
        self._idle.clear()
        return pending

    def take_batch(self) -> Batch[Decision]:
        """The next batch: at least one submission, then as many as fit."""
        limits = self._limits
        submissions: list[Pending[Decision]] = []
        size = requests = 0
        while self._queue:
            pending = self._queue[0]
            size += len(pending.encoded)
            requests += len(pending.requests)
            if submissions and (size > limits.batch_bytes_max or requests > limits.batch_requests_max):
                break
            submissions.append(self._queue.popleft())
            self.queued_bytes -= len(pending.encoded)
        if not self._queue:
            self.rate.ran_dry()
        return Batch(submissions)

    def put_back(self, batch: Batch[Decision]) -> None:
        """A batch that will never count: its submissions go to the front, or are given up after too many attempts."""
        for pending in reversed(batch.submissions):
            pending.attempts += 1
            if pending.attempts < self._limits.attempts_max:
                self._queue.appendleft(pending)
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
        del self._pending[pending.encoded]
        self.pending_requests -= len(pending.requests)
        self.pending_bytes -= len(pending.encoded)
        if not self.pending_requests:
            self.rate.end(asyncio.get_running_loop().time())
            self._idle.set()
        for waiter in pending.waiters:
            waiter(decisions)

    def _requests_max(self) -> int:
        limits = self._limits
        if not self.rate.per_s:
            return limits.pending_requests_max
        # A batch's worth at least: a rate that was low for another reason must have the chance to show that it is not any more.
        return min(limits.pending_requests_max, max(limits.batch_requests_max, int(self.rate.per_s * limits.pending_s_max)))
