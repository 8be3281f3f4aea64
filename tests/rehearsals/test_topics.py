"""Rehearses settings and records of the topics that an administrator changes or deletes."""

import asyncio
from functools import partial

import pytest

from tests.clients.load import Load
from tests.rehearsals.drill import Drill


@pytest.mark.rehearsal("a retention setting")
async def test_an_administrator_sets_a_retention(drill: Drill) -> None:
    """A retention of the payload topic is noticed within a minute, long before Kafka deletes a segment; it is taken back."""
    w1, _ = await drill.start("w1", "w2")
    problem = "Topic notary.payload has retention.ms=604800000, wanted -1: "
    async with drill.load() as load:
        await load.until(50)
        kafka = "kafka-configs.sh --bootstrap-server broker-1:9092 --alter --entity-type topics --entity-name notary.payload"
        drill.strikes()
        await asyncio.to_thread(drill.shell, f"{kafka} --add-config retention.ms=604800000")
        noticed = drill.translate(f"acknowledged records may be lost: {problem}")
        await drill.anomaly(lambda: noticed in w1.messages, problem, "notary_topic_problems", "NotaryTopicProblems")
        assert await drill.metric(w1, "notary_topic_problems ") == 1
        refused = drill.begin("w3")
        assert await refused.ended() == 2
        assert noticed.partition(": ")[2] in refused.messages
        await drill.follow()
        await drill.over(partial(_no_problems, drill), "notary_topic_problems", "the topics' settings are valid again")
        assert "the topics' settings are valid again" in w1.messages
        await drill.follow(1)
        await drill.workers["w3"].ready()
        await load.until(50)
    await drill.verify()


async def _no_problems(drill: Drill) -> bool:
    return all([await drill.metric(drill.workers[name], "notary_topic_problems ") == 0 for name in ("w1", "w2")])


@pytest.mark.rehearsal("a topic deleted")
async def test_an_administrator_deletes_a_topic(drill: Drill) -> None:
    """The ordering topic is deleted under load: the log is restored from the archive, and an index puts back what came after it."""
    workers = await drill.start("w1", "w2")
    drill.words |= {"--prefix notary": f"--prefix {drill.notary.prefix}", "restored": f"{drill.notary.prefix}-restored"}
    async with drill.load() as load:
        await load.until(50)
        await drill.spark("archive --bootstrap broker-1:9092 --prefix notary --archive archive")
        await load.until(50)
    await drill.notary.same_height(*workers)
    drill.strikes()
    await asyncio.to_thread(drill.shell, "kafka-topics.sh --bootstrap-server broker-1:9092 --delete --topic notary.ordering")
    await drill.anomaly(partial(_stopped, drill), "not ready", "KafkaPartitionsOffline")
    drill.note(workers[0].messages.strip().splitlines()[-1])
    for block in range(4):
        await drill.follow(block)
    drill.notary.prefix = drill.words["restored"]
    await drill.workers["w1"].ready()
    await drill.over(partial(drill.ready, "w1"), "/v1/checkpoint")
    async with Load(drill.notary.client, drill.notary.party, [drill.workers["w1"].url], seed=2) as load:
        await load.until(20)
    await drill.verify()


async def _stopped(drill: Drill) -> bool:
    return all([worker.process.poll() is not None or not await drill.ready(name) for name, worker in drill.workers.items()])
