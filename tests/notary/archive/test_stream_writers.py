"""One worker seals, and another takes its place: two segment streams on one log, with one store."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from notary.archive.segment import find
from notary.archive.settings import SealCommand, Sealed
from notary.archive.stream import FOLDER, SegmentStream
from notary.keyring import Keyring
from notary.keys import KeyAndHistory, verifier_keys
from notary.snapshots.store import store_of
from ordering.embedded import EmbeddedLog
from ordering.genesis import read_genesis
from ordering.log import ORDERING
from tests.notary.cli.written import append, embedded_log, register, signing_key
from tests.notary.process import NotaryDirectory

ORIGIN = "notary.example/test"
LEAVE_MS = 2_000


class ArchiveFixture:
    """A log, a store for its segments, and a clock that the test moves."""

    def __init__(self, directory: NotaryDirectory, log: EmbeddedLog, notary: str, log_id: bytes) -> None:
        self.log, self._notary, self._identity = log, notary, f"{log.identity} {log_id.hex()}"
        self._files = KeyAndHistory(directory.path / "notary-key.pem", directory.path / "notary-keys.json", ORIGIN)
        self.store = store_of("segments", directory.path)
        self._key = signing_key(self._files.key)
        self._records = 0
        self.now_ms = 1_000_000

    def process(self, worker: str) -> SegmentStream:
        """Returns the stream of a worker."""
        keyring = Keyring(self._files, time.monotonic)
        names = self._identity, self._notary, ORIGIN, worker
        trusted = verifier_keys(self._files).every
        return SegmentStream(self.log, *names, keyring, lambda: trusted, self.store, lambda: self.now_ms)

    async def command(self, stream: SegmentStream, leave_ms: int = 0) -> Sealed:
        """Have it seal all ordering records; `leave_ms` other than 0: it is another worker's turn."""
        head = (await self.log.offsets())[ORDERING].log_end
        return await stream.seal(SealCommand(head, self._key.public_key.hex(), leave_ms))

    async def write(self) -> None:
        """Append a record."""
        self._records += 1
        await append(self.log, [register("w9", self._records)], self._key)

    def workers(self) -> list[str]:
        """Returns which workers sealed, in order."""
        return [segment.worker for segment in find(self.store, verifier_keys(self._files).every, self._notary)]


@pytest.fixture
async def fixture(directory: NotaryDirectory) -> AsyncIterator[ArchiveFixture]:
    async with embedded_log(directory.path) as log:
        genesis, log_id = await read_genesis(log)
        yield ArchiveFixture(directory, log, genesis.notary_name, log_id)


async def test_a_later_worker_leaves_it_to_one_that_seals(fixture: ArchiveFixture) -> None:
    """A worker whose turn is later seals nothing while another does; when no new segment comes, it takes the other's place."""
    first, second = fixture.process("w1"), fixture.process("w2")
    assert (await fixture.command(first)).segments == 1
    for _ in range(3):
        await fixture.write()
        assert (await fixture.command(first)).segments == 1
        await fixture.write()
        fixture.now_ms += LEAVE_MS - 1
        assert await fixture.command(second, LEAVE_MS) == Sealed(skipped_turn=True)
    fixture.now_ms += 1
    assert await fixture.command(second, LEAVE_MS) == Sealed(segments=1, records=1)
    assert fixture.workers() == ["w1"] * 4 + ["w2"]
    await first.close()
    await second.close()


async def test_a_clock_that_is_ahead_holds_nobody_up(fixture: ArchiveFixture) -> None:
    """The last segment of a dead worker whose clock was ahead counts once; one that is old does not count at all."""
    ahead, second, third = fixture.process("w1"), fixture.process("w2"), fixture.process("w3")
    fixture.now_ms += 1_000 * LEAVE_MS
    await fixture.command(ahead)
    fixture.now_ms -= 1_000 * LEAVE_MS
    await fixture.write()
    assert (await fixture.command(second, LEAVE_MS)).skipped_turn
    assert (await fixture.command(second, LEAVE_MS)).segments == 1
    await fixture.write()
    fixture.now_ms += 2_000 * LEAVE_MS
    assert (await fixture.command(third, LEAVE_MS)).segments == 1
    for stream in (ahead, second, third):
        await stream.close()


async def test_the_folder_of_a_killed_process_is_removed(fixture: ArchiveFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker kills its process at its end, and after a deadline. A segment half made may have 32 MiB, and a pod's /tmp 256 MiB in all."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    left = tmp_path / "temporary" / f"{FOLDER}killed"
    left.mkdir(parents=True)
    (left / "records").write_bytes(b"x")
    os.utime(left, (0, 0))
    process = fixture.process("w1")
    assert (await fixture.command(process)).segments == 1
    await process.close()
    assert list((tmp_path / "temporary").iterdir()) == []
