"""What a worker has taken in and not answered: a bounded queue, first come first served, and the batches made from it.

A submission stays counted from `put` until it is answered, wherever it is meanwhile: in the queue, or in a batch that the log has not
spoken on. So memory is bounded by what was admitted, however often a batch has to be sent again.
"""

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from ordering.errors import OutcomeUnknown, Overloaded
from payload import Request, Submission, encode_batch

Decision = TypeVar("Decision")

RATE_IDLE_S = 5


class QueueLimits(msgspec.Struct, frozen=True):
    """How much is taken in, how much travels together, how often it is tried."""

    pending_requests_max: int = 40_000
    pending_bytes_max: int = 64 << 20
    batch_bytes_max: int = 512 << 10
    batch_requests_max: int = 2_000
    attempts_max: int = 20


class Pending(Generic[Decision]):
    """A submission from its admission to its answer."""

    __slots__ = ("answer", "attempts", "encoded", "requests")

    def __init__(self, submission: Submission, answer: asyncio.Future[Sequence[Decision]]) -> None:
        self.encoded = submission.encoded
        self.requests = submission.requests
        self.answer = answer
        self.attempts = 0


class Batch(Generic[Decision]):
    """What one payload record carries; it also serves the joiner as the content it need not decode again (`OwnBatch`)."""

    __slots__ = ("requests", "submissions", "value")

    def __init__(self, submissions: list[Pending[Decision]]) -> None:
        self.submissions = submissions
        self.value = encode_batch([pending.encoded for pending in submissions])
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

    def __len__(self) -> int:
        """Submissions that are in no batch."""
        return len(self._queue)

    def check_room(self, requests: int, size_bytes: int) -> None:
        """Raise `Overloaded`, with an estimate of when to come again, when there is no room for this much."""
        limits = self._limits
        # One that is larger than the whole queue is taken when nothing else waits: else it never could be.
        if self.pending_requests and (
            self.pending_requests + requests > limits.pending_requests_max or self.pending_bytes + size_bytes > limits.pending_bytes_max
        ):
            wait_s = self.rate.seconds_for(self.pending_requests)
            raise Overloaded(f"{self.pending_requests} requests are waiting already: send the same again later", wait_s)

    def put(self, submission: Submission) -> asyncio.Future[Sequence[Decision]]:
        """Take a submission in; what its decisions will come by. Raises `Overloaded`.

        The same bytes again, while the first wait, wait with them: else clients that retry what takes long would make it take longer.
        """
        if (same := self._pending.get(submission.encoded)) is not None:
            return same.answer
        self.check_room(len(submission.requests), len(submission.encoded))
        answer: asyncio.Future[Sequence[Decision]] = asyncio.get_running_loop().create_future()
        pending = Pending(submission, answer)
        self._queue.append(pending)
        self._pending[pending.encoded] = pending
        self.queued_bytes += len(pending.encoded)
        self.pending_requests += len(pending.requests)
        self.pending_bytes += len(pending.encoded)
        self._idle.clear()
        return answer

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
        return Batch(submissions)

    def put_back(self, batch: Batch[Decision]) -> None:
        """A batch that will never count: its submissions go to the front, or are given up after too many attempts."""
        for pending in reversed(batch.submissions):
            pending.attempts += 1
            if pending.attempts < self._limits.attempts_max:
                self._queue.appendleft(pending)
                self.queued_bytes += len(pending.encoded)
                continue
            if not pending.answer.done():
                pending.answer.set_exception(OutcomeUnknown(f"not decided after {pending.attempts} batches"))
                pending.answer.exception()  # seen: a client that left does not make a warning
            self._let_go(pending)

    def answer(self, batch: Batch[Decision], decisions: Sequence[Decision]) -> None:
        """Give each submission of a batch its decisions, which come in the order of the batch's requests."""
        at = 0
        for pending in batch.submissions:
            count = len(pending.requests)
            if not pending.answer.done():
                pending.answer.set_result(decisions[at : at + count])
            at += count
            self._let_go(pending)

    async def drain(self) -> None:
        """Return when everything taken in has been answered."""
        await self._idle.wait()

    def _let_go(self, pending: Pending[Decision]) -> None:
        del self._pending[pending.encoded]
        self.pending_requests -= len(pending.requests)
        self.pending_bytes -= len(pending.encoded)
        if not self.pending_requests:
            self._idle.set()


class Rate:
    """Requests decided a second, over the last second or more: what an honest Retry-After needs."""

    def __init__(self) -> None:
        self._count = 0
        self._since_s = self._last_s = 0.0
        self._per_s = 0.0

    def add(self, requests: int, now_s: float) -> None:
        """So many were decided now."""
        if not self._count or now_s - self._last_s > RATE_IDLE_S:
            # Idle time is no measure of how fast requests are decided.
            self._since_s, self._count = now_s, 0
        self._last_s = now_s
        self._count += requests
        if now_s - self._since_s >= 1:
            self._per_s = self._count / (now_s - self._since_s)
            self._since_s, self._count = now_s, 0

    def seconds_for(self, requests: int) -> int:
        """Whole seconds until that many are decided, 1 to 60; 2 where nothing is known."""
        return min(60, max(1, math.ceil(requests / self._per_s))) if self._per_s else 2
