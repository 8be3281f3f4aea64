"""Rehearses the loss of centres: one with its disks, two at once, the controllers' quorum, and all brokers with their disks."""

import asyncio
import shutil
from functools import partial

import pytest

from tests.rehearsals.drill import Drill


@pytest.mark.rehearsal("a centre")
async def test_a_centre_burns(drill: Drill) -> None:
    """The centre of the ordering leader is lost with its broker, worker and disks: the others go on, and it is built anew."""
    w1, w2, _ = await drill.start("w1", "w2", "w3")
    async with drill.load() as load:
        await load.until(50)
        await drill.in_sync()
        await drill.move_leader(1)
        drill.strikes()
        w1.kill()
        await asyncio.to_thread(drill.wipe, 1)
        shutil.rmtree(drill.notary.directory / "index" / "w1")
        gone = partial(drill.in_sync_with, w2, 1, expected=False)
        await drill.anomaly(gone, "NotaryWorkerDown", "KafkaNodeDown", "notary_broker_connected")
        await load.until(50)
        await drill.follow()
        await drill.workers["w1"].ready()
        await drill.over(partial(drill.in_sync_with, w2, 1, expected=True), "notary_broker_partitions", "in-sync")
        await drill.in_sync()
        await load.until(50)
    await drill.verify()


@pytest.mark.rehearsal("two centres at once")
async def test_two_centres_lose_power(drill: Drill) -> None:
    """Two of three centres lose their power: the third worker acknowledges nothing, and all continues when one of them is back."""
    workers = await drill.start("w1", "w2", "w3")
    async with drill.load() as load:
        await load.until(50)
        await drill.in_sync()
        drill.strikes()
        for worker in workers[:2]:
            worker.kill()
        await drill.each_broker(drill.brokers.kill, (1, 2))
        quoted = "the log has not answered for more than", "the log has not acknowledged an append for more than"
        await drill.anomaly(partial(drill.notary.says, workers[2], 503, "the log has not "), *quoted, "KafkaPartitionsUnderMinIsr")
        await drill.follow()
        for name in ("w1", "w2"):
            await drill.workers[name].ready()
        await drill.over(drill.ready, "/readyz")
        await drill.in_sync()
        await load.until(50)
    await drill.verify()


@pytest.mark.rehearsal("the controllers' quorum")
async def test_two_controllers_lose_their_metadata(drill: Drill) -> None:
    """Two of three controllers lose their disks: started empty they could outvote the third, so they start with its metadata."""
    (w1,) = await drill.start("w1")
    async with drill.load() as load:
        await load.until(50)
        await drill.in_sync()
        drill.strikes()
        await drill.each_broker(drill.brokers.kill, (1, 2))
        for broker in (1, 2):
            shutil.rmtree(drill.data(broker) / "__cluster_metadata-0")
        await drill.anomaly(partial(drill.notary.says, w1, 503, "the log has not "), "KafkaNoActiveController", "the log has not ")
        await drill.follow()
        await drill.over(drill.ready, "/readyz")
        await drill.in_sync()
        await load.until(50)
    await drill.verify()


async def ended(drill: Drill, *names: str) -> bool:
    """Returns whether these workers have ended or are not ready."""
    return all([drill.workers[name].process.poll() is not None or not await drill.ready(name) for name in names])


@pytest.mark.rehearsal("all brokers and their disks")
async def test_all_brokers_burn(drill: Drill) -> None:
    """All brokers are lost with their disks: the log is restored from the archive, and the indexes put back what came after it."""
    workers = await drill.start("w1", "w2")
    drill.words["--prefix notary"] = f"--prefix {drill.notary.prefix}"
    async with drill.load() as load:
        await load.until(50)
        await drill.spark("archive --bootstrap broker-1:9092 --prefix notary --archive archive")
        await load.until(50)
    await drill.notary.same_height(*workers)
    drill.strikes()
    await drill.each_broker(drill.wipe, (1, 2, 3))
    await drill.each_broker(drill.brokers.start, (1, 2, 3))
    await asyncio.to_thread(drill.brokers.wait_until_serving)
    await drill.anomaly(partial(ended, drill, "w1", "w2"), "not ready")
    await drill.follow()
    await drill.follow(1)
    await drill.follow(2)
    await drill.workers["w1"].ready()
    await drill.over(drill.ready, "/v1/checkpoint")
    async with drill.load() as load:
        await load.until(20)
    await drill.verify()
