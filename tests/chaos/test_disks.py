"""Tests a full disk of a worker. Lost and damaged disks, and a full one of a broker, are rehearsed (`tests/rehearsals`)."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.chaos.deployment import Deployment
from tests.rights import needs_root

INDEX_DISK_MIB = 48
BLOCK_BYTES = 4096


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
