"""Tests a worker that dies at each point of sending a batch; its clients go to another, and nothing is contradicted (R4, R5, R7, R8)."""

import asyncio
from itertools import zip_longest

import pytest

from tests.clients.party import spend, state
from tests.kafka.crashing_worker import POINTS
from tests.kafka.workers import Notary
from tests.notary.process import LONG_DEADLINES

pytestmark = pytest.mark.kafka

NTH = 3
"""The number of the batch at which it dies; each of the first batches is one submission."""


def entry(point: str) -> tuple[str, ...]:
    """Returns the program of a worker that dies at that point of its batch `NTH`."""
    return ("-m", "tests.kafka.crashing_worker", point, str(NTH))


@pytest.mark.parametrize(
    "points", [["entry-sent"], [point for point in POINTS if point != "entry-sent"]], ids=["a hole is left", "no hole is left"]
)
async def test_a_retry_elsewhere_is_decided_when_a_worker_dies(notary: Notary, points: list[str]) -> None:
    """The retry at another worker is decided, whatever part of a batch the dying worker has sent, and it catches up after its restart.

    A worker that was restarted dies at the next point.
    """
    # Only the hole of a dead worker is filled, however slow its brokers are.
    hole_timeout_ms = 1_500 if points == ["entry-sent"] else 60_000
    worker, other = notary.start("a", entry=entry(points[0])), notary.start("b", worker_hole_timeout_ms=hole_timeout_ms)
    await asyncio.gather(worker.ready(), other.ready())
    batches, filled, dropped = 0, 0.0, 0.0
    for point, following in zip_longest(points, points[1:]):
        print(f"--- {point}")
        before = [notary.party.submission(spend(state(f"{point}: before {number}"))) for number in range(NTH - 1 - batches)]
        for submission in before:
            await notary.client.decide([worker.url], submission)

        # The first of these goes into the fatal batch, the rest into it or into none; two of them consume the same state.
        fatal = [notary.party.submission(spend(state(f"{point}: {number // 2}"), content=str(number))) for number in range(10)]
        asked = [asyncio.create_task(notary.client.ask_until_broken(worker.url, submission)) for submission in fatal]
        assert await worker.ended() == -9
        await asyncio.gather(*asked)

        decided = await asyncio.gather(*(notary.client.decide([other.url], submission) for submission in fatal))
        committed = [decision for (decision,) in decided if decision["outcome"] == "committed"]
        assert len(committed) == len(fatal) / 2
        filled_before, filled = filled, await notary.metric(other, "notary_batches_filled_total ")
        assert filled > filled_before if point == "entry-sent" else filled == filled_before

        # After the restart with the same name and index it fences its former incarnation, which ends an orphan.
        worker = await notary.start("a", entry=entry(following) if following else LONG_DEADLINES).ready()
        await notary.client.decide([worker.url], notary.party.submission(spend(state(f"{point}: after"))))
        batches = 1
        await notary.same_height(worker, other)
        dropped_before, dropped = dropped, await notary.metric(other, 'notary_log_anomalies_total{kind="orphan-dropped"}')
        assert dropped - dropped_before == (point == "payload-sent")
        assert await notary.metric(other, "notary_buffered_records ") == 0
        for submission in before + fatal:
            assert await notary.client.decide([worker.url], submission) == await notary.client.decide([other.url], submission)
    await notary.check(worker, other)


@pytest.mark.parametrize("point", [point if point == "entry-sent" else pytest.param(point, marks=pytest.mark.nightly) for point in POINTS])
async def test_only_worker_dies(notary: Notary, point: str) -> None:
    """Without another worker, the one that died continues by itself after its restart, whatever it had sent."""
    dying = await notary.start("a", entry=("-m", "tests.kafka.crashing_worker", point, "1")).ready()
    submission = notary.party.submission(spend(state("fatal")))
    await notary.client.ask_until_broken(dying.url, submission)
    assert await dying.ended() == -9
    back = await notary.start("a").ready()
    (decision,) = await notary.client.decide([back.url], submission)
    assert decision["outcome"] == "committed"
    await notary.check(back)
