"""Tests the owner's changes to a live log: another key, more payload partitions, a retired worker (R10, R9)."""

import os
from functools import partial

import pytest

from tests.checkers.replay import RecordsByPartition
from tests.clients.load import Load, until
from tests.clients.party import spend, state
from tests.kafka.conftest import Owner
from tests.kafka.second_hand import Hand
from tests.kafka.test_workers import producer
from tests.kafka.workers import Notary, Worker

pytestmark = pytest.mark.kafka

NEW_PARTITIONS = frozenset((4, 5, 6))
ROUNDS_MAX = 60
"""The rounds of load within which the new partitions should be used."""


async def test_key_rotated_under_load(notary: Notary, owner: Owner) -> None:
    """Two workers continue with the new key without a restart, and no record signed with the former key counts any more."""
    workers = await notary.start_all("a", "b")
    urls = [worker.url for worker in workers]
    former = await notary.verifier_key(workers[0])
    async with producer(notary) as made:
        thief = await Hand.of(notary, made, stolen_key=True)
        async with Load(notary.client, notary.party, urls, seed=11) as load:
            await load.until(50)
            await owner("key", "prepare")
            await owner("key", "rotate")
            await load.until(100)
            for sequence in range(1, 4):
                await thief.record(thief.entry(1, 2**40 + sequence, b"nowhere", (os.urandom(32),)))
            await load.until(50)

    async def rotated(worker: Worker) -> bool:
        return await notary.verifier_key(worker) != former

    for worker in workers:
        await until(partial(rotated, worker))
        assert worker.process.poll() is None
        assert await notary.metric(worker, 'notary_log_anomalies_total{kind="unsigned"}') >= 3
        assert await notary.metric(worker, "notary_suspicions_open ") == 0
    await notary.check(*workers, forged=True)


async def test_partitions_added_under_load(notary: Notary, owner: Owner) -> None:
    """Payload partitions are added to a live log: workers use them without a restart, and a new worker reads them all."""
    workers = await notary.start_all("a", "b")
    async with Load(notary.client, notary.party, [worker.url for worker in workers], seed=12) as load:
        await load.until(30)
        await owner("partitions", "7")
        # Workers learn of the new leaders with the next metadata of their clients. Then they use the partition among the new ones that the
        # ordering topic's leader leads.
        by_partition: RecordsByPartition = {}
        for _ in range(ROUNDS_MAX):
            await load.until(20)
            by_partition = (await notary.remains()).by_partition
            if any(by_partition.get(partition) for partition in NEW_PARTITIONS):
                break
    late = await notary.start("c").ready()
    await notary.client.decide([late.url], notary.party.submission(spend(state("late"))))
    await notary.same_height(*workers, late)
    left = await notary.remains()
    assert {batch.partition for batch in left.replayed.batches} & NEW_PARTITIONS
    await notary.check(*workers, late)


async def test_a_retired_worker_stops_and_returns(notary: Notary, owner: Owner) -> None:
    """A retired worker stops and reports why; after a restart it takes part again."""
    a, b = await notary.start_all("a", "b")
    await owner("retire", "a")
    assert await a.ended() == 2
    assert "the owner has retired worker 'a'" in a.messages
    await notary.client.decide([b.url], notary.party.submission(spend(state("x"))))
    again = await notary.start("a").ready()
    await notary.client.decide([again.url], notary.party.submission(spend(state("y"))))
    await notary.check(again, b)
