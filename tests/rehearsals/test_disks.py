"""Rehearses lost disks: a worker's, a broker's."""

import asyncio
import shutil
from functools import partial
from typing import Any

import pytest

from tests.rehearsals.drill import Drill


@pytest.mark.rehearsal("a worker's disk")
async def test_a_worker_loses_its_disk(drill: Drill) -> None:
    """A worker's machine dies with its disk: a new one restores the newest snapshot, and replays the rest."""
    settings: dict[str, Any] = {"snapshots_url": str(drill.notary.directory / "snapshots"), "snapshots_every_s": 3600}
    _, w2 = await drill.start("w1", "w2", **settings)
    async with drill.load() as load:
        await load.until(100)
        await asyncio.to_thread(drill.shell, "notary snapshot create --config notary.toml --name w1 --url snapshots")
        await load.until(50)
        drill.strikes()
        w2.kill()
        shutil.rmtree(drill.notary.directory / "index" / "w2")
        await drill.anomaly(lambda: w2.process.poll() is not None, "NotaryWorkerDown")
        await drill.follow()
        await drill.workers["w2"].ready()
        await drill.over(lambda: drill.ready("w2"), "the index was restored from a snapshot", "/readyz")
        assert "the index was restored from a snapshot" in drill.workers["w2"].messages
        await load.until(50)
    await drill.verify()


@pytest.mark.rehearsal("a broker's disk")
async def test_a_broker_loses_its_disk(drill: Drill) -> None:
    """A broker dies with its disk: with an empty one it copies all partitions from the others."""
    w1, _ = await drill.start("w1", "w2")
    async with drill.load() as load:
        await load.until(100)
        await drill.in_sync()
        drill.strikes()
        await asyncio.to_thread(drill.wipe, 2)
        await drill.anomaly(partial(drill.in_sync_with, w1, 2, expected=False), "notary_broker_partitions", "notary_broker_connected")
        await load.until(50)
        await drill.follow()
        await drill.over(partial(drill.in_sync_with, w1, 2, expected=True), "in-sync")
        await drill.in_sync()
        await load.until(50)
    await drill.verify()
