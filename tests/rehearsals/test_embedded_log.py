"""Rehearses the full disk of an embedded log."""

import asyncio
from pathlib import Path

import pytest

from tests.chaos.test_disks import INDEX_DISK_MIB, fill, small_disk
from tests.rehearsals.drill import Drill
from tests.rights import needs_root

pytestmark = needs_root


@pytest.fixture
def log_of_its_own() -> bool:
    return True


@pytest.mark.rehearsal("a full disk: an embedded log")
async def test_the_disk_of_an_embedded_log_is_full(drill: Drill, tmp_path: Path) -> None:
    """The only worker stops when its log's disk is full, and acknowledges nothing that is not on it; with free space it continues."""
    with small_disk(tmp_path / "small", INDEX_DISK_MIB) as disk:
        folder = drill.notary.directory / "log"
        folder.rename(tmp_path / "moved")
        await asyncio.to_thread(drill.shell, f"cp -r {tmp_path / 'moved'} {disk}/log && ln -s {disk}/log {folder}")
        (w1,) = await drill.start("w1")
        async with drill.load() as load:
            await load.until(50)
            drill.strikes()
            fill(disk / "ballast")
            await drill.anomaly(
                lambda: w1.process.poll() is not None, "the embedded log cannot be used any more: ", "No space left on device"
            )
            assert await w1.ended() == 2
            assert "No space left on device" in w1.messages
            (disk / "ballast").unlink()
            await drill.follow(2)
            await drill.workers["w1"].ready()
            await drill.over(lambda: drill.ready("w1"), "/readyz")
            await load.until(20)
        await drill.verify()
