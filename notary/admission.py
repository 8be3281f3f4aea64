"""Admission: whether this worker lets a submission into the log (R6: its own affair, before the log).

Signatures are verified in a thread, many in one go: the library lets the interpreter go while it computes, and handing work over costs
as much as half a verification, so what gathers while one chunk is verified makes the next.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from notary.parties import Parties, Verify
from ordering.errors import NotaryError
from ordering.ids import excerpt
from payload import Submission, decode_submission, signed_message

CHUNK_MAX = 64
_BAD_SIGNATURE = (
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


class Admission:
    """Decodes and checks submissions for one notary."""

    def __init__(self, notary_name: str, parties: Parties, quota_per_s: int, clock_s: Callable[[], float]) -> None:
        self._notary_name = notary_name
        self._parties = parties
        self._quota = _Quota(quota_per_s, clock_s) if quota_per_s else None
        self._verifications: list[tuple[Verify, bytes, bytes, asyncio.Future[bool]]] = []
        self._verifying: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="verify")

    async def admit(self, body: bytes) -> Submission:
        """Both of the following: the submission that `body` is, if it may be taken in."""
        submission = self.decode(body)
        await self.check(submission)
        return submission

    def decode(self, body: bytes) -> Submission:
        """The submission that `body` is, of a party that is registered. Raises `Malformed` or `UnknownParty`."""
        submission = decode_submission(body, self._notary_name)
        self._verify_of(submission)
        return submission

    async def check(self, submission: Submission) -> None:
        """Raise `BadSignature` or `QuotaExceeded` unless it may be taken in. Raises `UnknownParty` like `decode`."""
        if not await self._verify(self._verify_of(submission), submission.signature, self._message(submission)):
            raise BadSignature(_BAD_SIGNATURE)
        # After the signature: nobody can use up another party's quota.
        self.charge(submission)

    def verify(self, submission: Submission) -> None:
        """Raise `BadSignature` unless the signature is a good one; in this thread, for a process that does little else."""
        if not self._verify_of(submission)(submission.signature, self._message(submission)):
            raise BadSignature(_BAD_SIGNATURE)

    def charge(self, submission: Submission) -> None:
        """Raise `QuotaExceeded` unless the party, whose signature is a good one, may send so much more."""
        if self._quota is not None:
            self._quota.take(submission.party, len(submission.requests))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _verify_of(self, submission: Submission) -> Verify:
        verify = self._parties.get(submission.party)
        if verify is None:
            raise UnknownParty(
                f"the party {excerpt(submission.party, 300)} is not registered with this notary:"
                " its operator adds it with `notary party add`"
            )
        return verify

    def _message(self, submission: Submission) -> bytes:
        return signed_message(self._notary_name, submission.party, [request.transaction_id for request in submission.requests])

    async def _verify(self, verify: Verify, signature: bytes, message: bytes) -> bool:
        verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._verifications.append((verify, signature, message, verdict))
        if self._verifying is None:
            self._verifying = asyncio.create_task(self._verify_gathered())
        return await verdict

    async def _verify_gathered(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._verifications:
                chunk, self._verifications = self._verifications[:CHUNK_MAX], self._verifications[CHUNK_MAX:]
                verdicts = await loop.run_in_executor(self._thread, _verify_chunk, [each[:3] for each in chunk])
                for (_, _, _, verdict), good in zip(chunk, verdicts, strict=True):
                    if not verdict.done():
                        verdict.set_result(good)
        finally:
            self._verifying = None


def _verify_chunk(chunk: Sequence[tuple[Verify, bytes, bytes]]) -> list[bool]:
    return [verify(signature, message) for verify, signature, message in chunk]


class _Quota:
    """A token bucket for each party, one second deep; a submission larger than the bucket passes when it is full."""

    def __init__(self, per_s: int, clock_s: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock_s = clock_s
        self._buckets: dict[str, tuple[float, float]] = {}  # party -> (tokens, as of); registered parties only

    def take(self, party: str, requests: int) -> None:
        now = self._clock_s()
        tokens, as_of = self._buckets.get(party, (float(self._per_s), now))
        tokens = min(float(self._per_s), tokens + (now - as_of) * self._per_s)
        needed = min(requests, self._per_s)
        if tokens < needed:
            self._buckets[party] = (tokens, now)
            wait_s = max(1, round((needed - tokens) / self._per_s + 0.5))
            raise QuotaExceeded(f"more than {self._per_s} requests a second of {excerpt(party, 300)}: send the same again later", wait_s)
        self._buckets[party] = (tokens - requests, now)
