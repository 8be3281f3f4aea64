"""Tests a worker that dies at each point of sending a batch; its clients go to another, and nothing is contradicted (R4, R5, R7, R8)."""

import asyncio

import pytest

from tests.clients.party import spend, state
from tests.kafka.crashing_worker import POINTS
from tests.kafka.workers import Notary

pytestmark = pytest.mark.kafka

NTH = 3
"""The number of the batch at which it dies; each of the first batches is one submission."""


@pytest.mark.parametrize("point", POINTS)
async def test_a_retry_elsewhere_is_decided_when_a_worker_dies(notary: Notary, point: str) -> None:
    """The retry at another worker is decided, whatever part of a batch the dying worker has sent, and it catches up after its restart."""
    entry = ("-m", "tests.kafka.crashing_worker", point, str(NTH))
    # Only the hole of a dead worker is filled, however slow its brokers are.
    dying, other = notary.start("a", entry=entry), notary.start("b", worker_hole_timeout_ms=1_500 if point == "entry-sent" else 60_000)
    await asyncio.gather(dying.ready(), other.ready())
    before = [notary.party.submission(spend(state(f"before {number}"))) for number in range(NTH - 1)]
    for submission in before:
        await notary.client.decide([dying.url], submission)

    # The first of these goes into the fatal batch, the rest into it or into none; two of them consume the same state.
    fatal = [notary.party.submission(spend(state(f"fatal {number // 2}"), content=str(number))) for number in range(10)]
    asked = [asyncio.create_task(notary.client.ask_until_broken(dying.url, submission)) for submission in fatal]
    assert await dying.ended() == -9
    await asyncio.gather(*asked)

    decided = await asyncio.gather(*(notary.client.decide([other.url], submission) for submission in fatal))
    committed = [decision for (decision,) in decided if decision["outcome"] == "committed"]
    assert len(committed) == len(fatal) / 2
    filled = await notary.metric(other, "notary_batches_filled_total ")
    assert filled >= 1 if point == "entry-sent" else filled == 0

    # After the restart with the same name and index it fences its former incarnation, which ends an orphan.
    back = await notary.start("a").ready()
    await notary.client.decide([back.url], notary.party.submission(spend(state("after"))))
    await notary.same_height(back, other)
    dropped = await notary.metric(other, 'notary_log_anomalies_total{kind="orphan-dropped"}')
    assert dropped == (point == "payload-sent")
    assert await notary.metric(other, "notary_buffered_records ") == 0
    for submission in before + fatal:
        assert await notary.client.decide([back.url], submission) == await notary.client.decide([other.url], submission)
    await notary.check(back, other)


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
