"""A log in memory, its segments in a folder, and an archive that is made of them."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.archive.archived import ArchivedLog
from notary.archive.fetch import AddedRange, fetch, prune, tidy
from notary.archive.segment import FoundSegment, find
from notary.archive.settings import SealCommand
from notary.archive.stream import SegmentStream
from notary.receipts.note import VerifierKey
from notary.snapshots.store import MANIFESTS, Folder
from ordering.log import ORDERING, Record
from ordering.memory import MemoryLog
from tests.kafka.reading_back import records_of

ORIGIN, NAME = "notary.example/test", "a notary"
IDENTITY = f"test {bytes(32).hex()}"


class Streamed:
    """A log in memory with two payload partitions, and the segments of it in a folder."""

    def __init__(self, folder: Path, *, key: Ed25519PrivateKey | None = None) -> None:
        self.folder, self.clock_ms = folder, 1_000
        self.log = MemoryLog(2, lambda: 7)
        self.use(key or Ed25519PrivateKey.generate())
        self.store = Folder(folder / "segments")

    def use(self, key: Ed25519PrivateKey) -> None:
        """Sign the next segments with this key."""
        self.key, self.public_key = key, key.public_key().public_bytes_raw()

    def process(self, worker: str = "w1", trusted: Sequence[VerifierKey] = ()) -> SegmentStream:
        """Returns a new process's stream."""
        keyring: Any = SimpleNamespace(private_key=lambda key: self.key if key == self.public_key else None)
        names = NAME, ORIGIN, worker
        return SegmentStream(self.log, IDENTITY, *names, keyring, lambda: list(trusted) or self.trusted, self.store, self.now_ms)

    @property
    def trusted(self) -> list[VerifierKey]:
        """The key history."""
        return [VerifierKey(ORIGIN, self.public_key)]

    def now_ms(self) -> int:
        """Returns a time that rises."""
        self.clock_ms += 1
        return self.clock_ms

    def command(self, head: int, *, look: bool = False) -> SealCommand:
        """Returns a command to seal the ordering records below `head`."""
        return SealCommand(head, self.public_key.hex(), look)

    async def append(self, *values: tuple[int, bytes]) -> None:
        """Append records: a topic-partition and a value each."""
        writer = await self.log.open_writer()
        for partition, value in values:
            await writer.append(partition, b"key", value)
        await writer.close()

    def found(self) -> list[FoundSegment]:
        """Returns the segments in the store."""
        return list(find(self.store, self.trusted, NAME))

    @property
    def archive(self) -> ArchivedLog | None:
        """The archive; None before the first range."""
        return ArchivedLog(self.folder / "archive") if any((self.folder / "archive" / "ranges").glob("*.json")) else None

    def fetch(self, segments: Sequence[FoundSegment] | None = None) -> AddedRange:
        """Put segments into the archive, and tidy it, as `notary archive fetch` does."""
        found = self.found() if segments is None else segments
        made = fetch(self.store, found, self.folder / "archive", self.archive, self.trusted[-1].public_key)
        tidy(self.folder / "archive", ArchivedLog(self.folder / "archive"))
        return made

    def prune(self, keep_after_ms: int = 10**9, margin_s: float = -1.0, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
        """Remove the segments that the archive has, and unnamed files. `meanwhile` runs after the manifests were removed."""

        def find_others(known: frozenset[str]) -> list[FoundSegment]:
            meanwhile()
            return list(find(self.store, self.trusted, NAME, known))

        assert self.archive is not None
        return prune(self.store, self.found(), self.archive, keep_after_ms, margin_s, find_others)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the manifests in the store from a worker, as if they appeared just after its look."""
        manifests, hidden = self.folder / "segments" / MANIFESTS, self.folder / "hidden"
        manifests.rename(hidden)
        yield
        for note in hidden.iterdir():
            shutil.move(note, manifests)
        hidden.rmdir()

    def replace(self, partition: int, offset: int, *values: bytes) -> None:
        """Replace the records of a topic-partition from an offset on: the log lost its end, and has grown again."""
        self.log._records[partition][offset:] = [Record(partition, offset + at, 7, b"key", value) for at, value in enumerate(values)]

    async def archived(self) -> dict[int, list[bytes | None]]:
        """Returns the values of the archive, by topic-partition."""
        log = ArchivedLog(self.folder / "archive")
        assert log.unlisted() == []
        records = await records_of(log)
        assert all(record.append_time_ms == 7 and record.key == b"key" for some in records.values() for record in some)
        return {partition: [record.value for record in some] for partition, some in records.items()}


FIRST = ((0, b"p0"), (ORDERING, b"o0"), (1, b"q0"), (ORDERING, b"o1"))
