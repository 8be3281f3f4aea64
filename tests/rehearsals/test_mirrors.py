"""Rehearses the loss of a cluster that has a mirror: the brokers with their disks, under load."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from deploy.local import Cluster
from tests.clients.load import Load
from tests.kafka.mirrors import Mirror
from tests.rehearsals.drill import Drill


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Cluster]:
    """The cluster with the mirror."""
    with Cluster.create(tmp_path / "target", brokers=1) as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, target: Cluster) -> Iterator[Cluster]:
    """A cluster that is destroyed. The target outlives it, and the drill."""
    with Cluster.create(tmp_path / "cluster", brokers=1) as made:
        yield made


@pytest.mark.rehearsal("failover to a mirror")
async def test_a_cluster_is_lost(drill: Drill, cluster: Cluster, target: Cluster, tmp_path: Path) -> None:
    """The brokers are destroyed while `notary mirror` copies: the mirror becomes the log, and an index puts back what was not copied."""
    notary = drill.notary
    mirror = Mirror(notary.directory / "notary.toml", target.bootstrap)
    drill.words["mirror-1:9092"] = target.bootstrap
    drill.units["mirror-1"] = lambda verb: mirror.start() if verb == "start" else mirror.stop()
    await drill.follow(0)
    try:
        w1, w2 = await drill.start("w1", "w2")
        w3 = drill.begin("w3", log_bootstrap=target.bootstrap)
        assert await w3.ended() == 2
        assert drill.page.quotes("it is a mirror, and no worker may use it")
        assert "it is a mirror, and no worker may use it" in w3.messages
        async with Load(notary.client, notary.party, [w1.url, w2.url, w3.url], seed=1, clients=12) as load:
            await load.until(50)
            await drill.until(partial(_has_records, target, notary.prefix, 50))
            drill.strikes()
            await asyncio.to_thread(cluster.down)
            drill.brokers = target
            unanswered = "the log has not answered for more than"
            await drill.anomaly(partial(notary.says, w1, 503, unanswered), unanswered)
            await drill.follow(1)
            printed = await drill.follow(2)
            drill.note("; ".join([line for line in printed.splitlines() if line.startswith(("the mirror has", "put back", "took effect"))]))
            await drill.follow(3)
            notary.bootstrap = target.bootstrap
            await drill.workers["w3"].ready()
            await drill.over(partial(drill.ready, "w3"), "took effect", "/v1/checkpoint")
            assert "took effect" in printed
            assert "Each answer that an old worker gives from now on contradicts this side" in printed
            await load.until(50)
    finally:
        mirror.kill()
    await drill.verify()
    assert drill.measured is not None
    assert drill.measured.lost == 0


async def _has_records(target: Cluster, prefix: str, least: int) -> bool:
    partition = TopicPartition(f"{prefix}.ordering", 0)
    async with AIOKafkaConsumer(bootstrap_servers=target.bootstrap) as consumer:
        return int((await consumer.end_offsets([partition]))[partition]) >= least
