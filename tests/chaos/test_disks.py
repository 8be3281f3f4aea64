"""Tests disks that are lost, damaged, full or restored from an older copy: a broker's, or a worker's."""

import asyncio
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.chaos.deployment import Deployment
from tests.chaos.flags import ChaosFlags
from tests.checkers import indexes
from tests.clients.load import until
from tests.kafka.reading_back import read_rows
from tests.rights import needs_root

INDEX_DISK_MIB, BROKER_DISK_MIB = 48, 512
BLOCK_BYTES = 4096
SMALL_BUFFERS = {"index_write_buffer_bytes": 1 << 16}
"""Settings with which rows soon reach RocksDB's table files, instead of staying in its write-ahead log."""


@pytest.mark.nightly
async def test_broker_loses_its_disk(deployment: Deployment, chaos: ChaosFlags) -> None:
    """A broker restarts with an empty disk, copies everything, and leads the ordering topic; then another one is killed: nothing is lost.

    In a long run each of the three loses its disk in turn: then no disk from the start is left.
    """
    await deployment.start("a", "b")
    order = random.Random(chaos.seed).sample((1, 2, 3), 3)
    async with deployment.load() as load:
        for broker, another in list(zip(order, (*order[1:], order[0]), strict=True))[: chaos.times]:
            await load.until(50)
            await deployment.in_sync()
            deployment.note(f"broker {broker} loses its disk")
            await asyncio.to_thread(deployment.wipe, broker)
            assert not deployment.data(broker).exists()
            await deployment.missed(broker)
            await load.until(50)
            await asyncio.to_thread(deployment.brokers.start, broker)
            await deployment.in_sync()
            await deployment.move_leader(broker)
            deployment.note(f"broker {another} dies")
            await asyncio.to_thread(deployment.brokers.kill, another)
            await deployment.missed(another)
            await load.until(50)
            assert await deployment.ordering_leader() == broker
            await asyncio.to_thread(deployment.brokers.start, another)
            await deployment.in_sync()
        await deployment.well([load])
    await deployment.check()


@needs_root
@pytest.mark.nightly
async def test_a_full_disk_stops_the_broker_alone(deployment: Deployment, tmp_path: Path) -> None:
    """The ordering leader's disk is full, and it ends; the others go on. With free space again it starts, and copies what it lacks."""
    await deployment.start("a", "b")
    broker = await deployment.ordering_leader()
    async with deployment.load() as load:
        with small_disk(tmp_path / "small", BROKER_DISK_MIB) as disk:
            (disk / "data").mkdir()
            await asyncio.to_thread(deployment.wipe, broker)
            deployment.data(broker).symlink_to(disk / "data")
            try:
                await asyncio.to_thread(deployment.brokers.start, broker)
                await deployment.in_sync()
                await deployment.move_leader(broker)
                deployment.note(f"the disk of broker {broker} is full")
                fill(disk / "ballast")
                await until(lambda: deployment.brokers.state.broker(broker).condition == "died")
                await deployment.missed(broker)
                await load.until(50)
                (disk / "ballast").unlink()
                deployment.note("there is space again")
                await asyncio.to_thread(deployment.brokers.start, broker)
                await deployment.in_sync()
                await deployment.well([load])
            finally:
                await asyncio.to_thread(deployment.brokers.kill, broker)
                deployment.data(broker).unlink()
        await asyncio.to_thread(deployment.brokers.start, broker)
        await deployment.in_sync()
    await deployment.check()


@pytest.mark.nightly
async def test_a_worker_stops_on_a_damaged_index(deployment: Deployment, chaos: ChaosFlags) -> None:
    """A worker whose index has flipped bits stops with an error and answers nothing from them; without that index it builds a new one."""
    _, b = await deployment.start("a", "b", **SMALL_BUFFERS)
    async with deployment.load() as load:
        await load.until(400)
        await b.stop()
        tables = sorted((deployment.notary.directory / "index" / "b").glob("*.sst"))
        damage(tables, random.Random(chaos.seed))
        deployment.note(f"bits were flipped in {len(tables)} files of the index of b")
        assert tables
        b = deployment.begin("b")
        await load.until(50)
        assert await b.ended() == 2
        deployment.note(b.messages.strip().splitlines()[-1])
        assert "the index" in b.messages
        assert any(text in b.messages for text in ("does not open", "cannot be read", "is corrupt", "quarantined"))
        assert "unexpected error" not in b.messages
        shutil.move(deployment.notary.directory / "index" / "b", deployment.notary.directory / "b.damaged")
        deployment.begin("b")
        await deployment.well([load])
    await deployment.check()


@needs_root
async def test_a_full_disk_stops_the_worker(deployment: Deployment, tmp_path: Path) -> None:
    """A worker whose disk is full stops with an error and cannot start; with free space again it continues from its index."""
    with small_disk(tmp_path / "small", INDEX_DISK_MIB) as disk:
        await deployment.start("a")
        (b,) = await deployment.start("b", index=str(disk), index_write_buffer_bytes=1 << 20)
        async with deployment.load() as load:
            await load.until(100)
            deployment.note("the disk of b is full")
            fill(disk / "ballast")
            assert await b.ended() == 2
            deployment.note(b.messages.strip().splitlines()[-1])
            assert "cannot be written" in b.messages
            assert "Traceback" not in b.messages
            assert "No space left on device" in b.messages
            assert "unexpected error" not in b.messages
            await load.until(50)
            b = deployment.begin("b")
            assert await b.ended() == 2
            deployment.note(b.messages.strip().splitlines()[-1])
            assert "No space left on device" in b.messages
            assert "Free or replace its disk" in b.messages
            assert "unexpected error" not in b.messages
            (disk / "ballast").unlink()
            deployment.note("there is space again")
            deployment.begin("b")
            await deployment.well([load])
        await deployment.check()


@pytest.mark.nightly
async def test_an_older_index_reads_what_it_lacks(deployment: Deployment) -> None:
    """A worker that gets an older copy of its index, made after a crash, reads the missing records and agrees with the others."""
    _, b = await deployment.start("a", "b", **SMALL_BUFFERS)
    index, copy = deployment.notary.directory / "index" / "b", deployment.notary.directory / "b.copy"
    async with deployment.load() as load:
        await load.until(150)
        b.kill()
        shutil.copytree(index, copy)
        b = deployment.begin("b")
        await deployment.well([load])
        await load.until(200)
        b.kill()
        behind = [indexes.height(read_rows(directory)) for directory in (copy, index)]
        deployment.note(f"b is back at {behind[0]} decisions, and had {behind[1]}")
        assert 0 < behind[0] < behind[1]
        shutil.rmtree(index)
        shutil.move(copy, index)
        deployment.begin("b")
        await deployment.well([load])
    await deployment.check()


def damage(tables: Sequence[Path], draw: random.Random) -> None:
    """Flip a bit in every block of these tables of a stopped index, as a failing disk might."""
    for table in tables:
        content = bytearray(table.read_bytes())
        for block in range(0, len(content), BLOCK_BYTES):
            at = draw.randrange(block, min(block + BLOCK_BYTES, len(content)))
            content[at] ^= 1 << draw.randrange(8)
        table.write_bytes(content)


@contextmanager
def small_disk(directory: Path, size_mib: int) -> Iterator[Path]:
    """A file system in memory; the path leads into the mount namespace of a process, and disappears with it and all its users."""
    directory.mkdir()
    mount = f'mount -t tmpfs -o size={size_mib}m tmpfs "$1" && echo mounted && exec cat'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh", str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "mounted\n"
        yield Path(f"/proc/{holder.pid}/root{directory}")
        holder.stdin.close()


def fill(file: Path) -> None:
    """Use up all the free space."""
    with suppress(OSError), file.open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(BLOCK_BYTES))
