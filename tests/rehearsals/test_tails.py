"""Rehearses a log whose brokers lost the end of both topics, or of one, as a power failure leaves it: an index puts it back."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import Cluster
from tests.rehearsals.drill import Drill


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One broker, whose disk is restored to an earlier copy: acknowledged records that never reached it are gone."""
    with Cluster.create(tmp_path / "cluster", brokers=1) as made:
        yield made


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param("", marks=pytest.mark.rehearsal("the tail of both topics")),
        pytest.param(".payload-", marks=pytest.mark.rehearsal("the tail of one topic")),
    ],
)
async def test_power_takes_the_tail(drill: Drill, cluster: Cluster, tmp_path: Path, lost: str) -> None:
    """Power fails, and the brokers lack answered records: no worker starts until their decisions are salvaged from an index."""
    data, copy = cluster.directory / "broker-1" / "data", tmp_path / "copy"
    (w1,) = await drill.start("w1")
    async with drill.load() as load:
        await load.until(50)
        await asyncio.to_thread(cluster.down, keep_data=True)
        shutil.copytree(data, copy)
        await asyncio.to_thread(cluster.up)
        await load.until(50)
    await drill.notary.same_height(w1)
    drill.strikes()
    w1.kill()
    await asyncio.to_thread(cluster.down, keep_data=True)
    names = [path.name for path in copy.iterdir() if path.name.startswith(f"{drill.notary.prefix}{lost}")] if lost else [""]
    for name in names:
        shutil.rmtree(data / name)
        shutil.copytree(copy / name, data / name)
    await asyncio.to_thread(cluster.up)
    w1 = drill.begin("w1")
    await drill.anomaly(lambda: w1.process.poll() is not None, "the index is ahead of its log")
    assert await w1.ended() == 2
    assert "the index is ahead of its log" in w1.messages
    await drill.follow(0)
    printed = await drill.follow(1)
    await drill.follow(2)
    await drill.workers["w1"].ready()
    await drill.over(lambda: drill.ready("w1"), "took effect", "/v1/checkpoint")
    assert "took effect" in printed
    async with drill.load() as load:
        await load.until(30)
    await drill.verify()
