"""Rehearses full disks: a broker's, and that of a worker's index."""

import asyncio
from pathlib import Path

import pytest

from tests.chaos.test_disks import INDEX_DISK_MIB, fill, small_disk
from tests.rehearsals.drill import Drill
from tests.rights import needs_root

pytestmark = needs_root

BROKER_DISK_MIB = 512


@pytest.mark.rehearsal("a full disk: a worker's index")
async def test_the_disk_of_an_index_is_full(drill: Drill, tmp_path: Path) -> None:
    """A worker whose disk is full stops, and the other one continues; with free space it continues from its index."""
    with small_disk(tmp_path / "small", INDEX_DISK_MIB) as disk:
        await drill.start("w1")
        (w2,) = await drill.start("w2", index=str(disk), index_write_buffer_bytes=1 << 20)
        async with drill.load() as load:
            await load.until(50)
            drill.strikes()
            fill(disk / "ballast")
            await drill.anomaly(lambda: w2.process.poll() is not None, "cannot be written: ", "No space left on device")
            assert await w2.ended() == 2
            for text in ("cannot be written", "No space left on device"):
                assert text in w2.messages
            (disk / "ballast").unlink()
            await drill.follow(0)
            await drill.workers["w2"].ready()
            await drill.over(lambda: drill.ready("w2"), "/readyz")
            await load.until(50)
        await drill.verify()


@pytest.mark.rehearsal("a full disk: a broker's log")
async def test_the_disk_of_a_broker_is_full(drill: Drill, tmp_path: Path) -> None:
    """The ordering leader's disk is full, and it ends; the others go on. With free space it starts, and copies what it lacks."""
    w1, _ = await drill.start("w1", "w2")
    async with drill.load() as load:
        with small_disk(tmp_path / "small", BROKER_DISK_MIB) as disk:
            (disk / "data").mkdir()
            await asyncio.to_thread(drill.wipe, 2)
            drill.data(2).symlink_to(disk / "data")
            try:
                await asyncio.to_thread(drill.brokers.start, 2)
                await drill.in_sync()
                await drill.move_leader(2)
                await load.until(20)
                drill.strikes()
                fill(disk / "ballast")
                await drill.anomaly(
                    lambda: drill.in_sync_with(w1, 2, expected=False), "notary_broker_partitions", "KafkaDiskFills", "KafkaNodeDown"
                )
                await drill.until(lambda: drill.brokers.state.broker(2).condition == "died")
                await load.until(50)
                (disk / "ballast").unlink()
                await drill.follow(1)
                await drill.over(lambda: drill.in_sync_with(w1, 2, expected=True), "in-sync")
                await drill.in_sync()
                await load.until(50)
            finally:
                await asyncio.to_thread(drill.brokers.kill, 2)
                drill.data(2).unlink()
        await asyncio.to_thread(drill.brokers.start, 2)
        await drill.in_sync()
    await drill.verify()
