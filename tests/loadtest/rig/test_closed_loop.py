"""Tests the load against a minimal service: it measures right answers, and counts wrong ones as errors."""

import json
import time
from collections.abc import Callable

import pytest

from loadtest.rig.closed_loop import WARM_UP_SHARE, ClosedLoad, LoadResult, drive
from loadtest.rig.latencies import Latencies
from tests.loadtest.service import answer_of, decisions_of, serving


async def _outcome_of(
    answer: Callable[[bytes], bytes], *, receipts: bool = True, seconds: float = 60.0, submissions_max: int = 10
) -> LoadResult:
    async with serving(lambda _, body: answer(body)) as url:
        (outcome,) = await drive([ClosedLoad([url], 1, 3, 2, 2, seconds, submissions_max, {}, receipts)])
        return outcome


async def test_right_answers_are_counted() -> None:
    """All ten submissions are sent and answered without an error, and the load reports that they ran out."""
    outcome = await _outcome_of(lambda body: answer_of(200, decisions_of(body)))
    assert (outcome.errors, outcome.failures) == (0, [])
    assert outcome.ran_out
    assert outcome.cpu_seconds.keys() == {"load", "machine"}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda answer: answer.replace(b'"committed"', b'"rejected"', 1),
        lambda answer: answer.replace(b'_id":"', b'_id":"00', 1),
        lambda answer: json.dumps({"decisions": json.loads(answer)["decisions"][::-1]}, separators=(",", ":")).encode(),
        lambda answer: b"{}",
        lambda answer: answer.replace(b"tlog-proof@v1", b"tlog-proof@v2", 1),
    ],
    ids=["rejected", "another id", "another order", "nothing", "no receipt"],
)
async def test_wrong_answers_are_errors(spoil: Callable[[bytes], bytes]) -> None:
    """An answer with a rejection, a wrong id, a wrong order, or a missing decision or receipt is an error, each of them."""
    assert (await _outcome_of(lambda body: answer_of(200, spoil(decisions_of(body))))).errors == 10


async def test_receipts_that_nobody_asked_for_are_errors() -> None:
    """A receipt that was not requested is an error."""
    assert (await _outcome_of(lambda body: answer_of(200, decisions_of(body)), receipts=False)).errors == 10


async def test_another_status_is_an_error() -> None:
    """Another status is an error, as is a rejection without Retry-After; the service's message is reported."""
    outcome = await _outcome_of(lambda body: answer_of(503, b"overloaded"))
    assert outcome.errors == 10
    assert "overloaded" in outcome.failures[0]


async def test_a_rejected_submission_is_sent_again() -> None:
    """A submission that is rejected with a Retry-After is sent again to the byte, and decided: there is no error."""
    rejected: list[bytes] = []

    def answer(body: bytes) -> bytes:
        if body not in rejected:
            rejected.append(body)
            return answer_of(503, retry_after_s=0)
        return answer_of(200, decisions_of(body))

    outcome = await _outcome_of(answer)
    assert (outcome.errors, outcome.failures) == (0, [])
    assert outcome.ran_out
    assert len(rejected) == 10


@pytest.mark.seconds
async def test_rejections_at_the_end_lower_the_rate() -> None:
    """A service that decides for a part of the time and then rejects everything has the rate of the complete time, and its wait."""
    ends_s = 0.0

    def answer(body: bytes) -> bytes:
        nonlocal ends_s
        ends_s = ends_s or time.monotonic() + 2
        if time.monotonic() < ends_s:
            time.sleep(0.002)  # so that the submissions do not run out
            return answer_of(200, decisions_of(body))
        return answer_of(503, retry_after_s=1)

    outcome = await _outcome_of(answer, seconds=4.0, submissions_max=2_000)
    assert outcome.submissions > 0
    assert not outcome.ran_out
    assert outcome.seconds > 3.99 * (1 - WARM_UP_SHARE)
    latencies = Latencies.decode(outcome.histogram)
    assert latencies.percentile_ms(100) >= 1_000
    assert latencies.count == outcome.submissions + 2, "two connections waited at the end"
