"""Segments of a log in memory become the ranges of an archive; those that do not fit are refused."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.archive.fetch import fetch, in_order, prune
from notary.archive.segment import Segment, find
from notary.archive.settings import Order
from notary.archive.stream import SegmentStream
from notary.cli.archived import ArchivedLog
from notary.receipts.errors import NotVerified
from notary.receipts.note import VerifierKey
from notary.snapshots.store import MANIFESTS, Folder
from ordering.errors import ConfigurationError
from ordering.log import ORDERING, Record
from ordering.memory import MemoryLog

ORIGIN, NAME = "notary.example/test", "a notary"
IDENTITY = f"test {bytes(32).hex()}"


class Streamed:
    """A log in memory with two payload partitions, and the segments of it in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock_ms = folder, 1_000
        self.log = MemoryLog(2, lambda: 7)
        self.key = Ed25519PrivateKey.generate()
        self.public_key = self.key.public_key().public_bytes_raw()
        self.store = Folder(folder / "segments")

    def stream(self, worker: str = "w1") -> SegmentStream:
        """Returns a new process's stream."""
        keyring: Any = SimpleNamespace(private_key=lambda key: self.key if key == self.public_key else None)
        names = NAME, ORIGIN, worker
        return SegmentStream(self.log, IDENTITY, *names, keyring, lambda: self.trusted, self.store, self.now_ms)

    @property
    def trusted(self) -> list[VerifierKey]:
        """The key history."""
        return [VerifierKey(ORIGIN, self.public_key)]

    def now_ms(self) -> int:
        """Returns a time that rises."""
        self.clock_ms += 1
        return self.clock_ms

    def order(self, head: int, *, look: bool = False) -> Order:
        """Returns an order to seal the ordering records below `head`."""
        return Order(head, self.public_key.hex(), look)

    async def append(self, *values: tuple[int, bytes]) -> None:
        """Append records: a topic-partition and a value each."""
        writer = await self.log.open_writer()
        for partition, value in values:
            await writer.append(partition, b"key", value)
        await writer.close()

    def found(self) -> list[Segment]:
        """Returns the segments in the store."""
        return list(find(self.store, self.trusted, NAME))

    def fetch(self, segments: Sequence[Segment] | None = None, ranges: int = 0, ends: dict[int, int] | None = None) -> Any:
        """Put segments into the archive."""
        return fetch(self.store, self.found() if segments is None else segments, self.folder / "archive", ranges, ends or {})

    async def archived(self) -> dict[int, list[bytes | None]]:
        """Returns the values of the archive, by topic-partition."""
        log = ArchivedLog(self.folder / "archive")
        assert log.unlisted() == []
        return await _values(log)


async def _values(log: Any) -> dict[int, list[bytes | None]]:
    ends = {partition: bound.offset_end for partition, bound in (await log.bounds()).items()}
    reader = await log.open_reader({})
    records: list[Record] = []
    while any(reader.offset_next(partition) < end for partition, end in ends.items()):
        records += await reader.poll(10)
    await reader.close()
    assert all(record.append_time_ms == 7 and record.key == b"key" for record in records)
    return {partition: [record.value for record in records if record.partition == partition] for partition in ends}


FIRST = ((0, b"p0"), (ORDERING, b"o0"), (1, b"q0"), (ORDERING, b"o1"))


async def test_two_ranges_hold_each_record_once(tmp_path: Path) -> None:
    """Records behind the order's head come with a later segment; a process that starts again goes on where the segments end."""
    made = Streamed(tmp_path)
    await made.append(*FIRST)
    stream = made.stream()
    assert (await stream.seal(made.order(1))).records == 3
    assert (await stream.seal(made.order(1))).segments == 0
    assert made.fetch().records == 3
    assert await made.archived() == {ORDERING: [b"o0"], 0: [b"p0"], 1: [b"q0"]}
    await stream.close()
    await made.append((0, b"p1"), (ORDERING, b"o2"))
    assert (await made.stream().seal(made.order(3))).records == 3
    again = made.fetch(ranges=1, ends={ORDERING: 1, 0: 1, 1: 1})
    assert (again.range, again.segments, again.records) == (2, 1, 3)
    assert await made.archived() == {ORDERING: [b"o0", b"o1", b"o2"], 0: [b"p0", b"p1"], 1: [b"q0"]}
    assert made.fetch(ranges=2, ends=again.offsets_end).range == 0
    assert len(prune(made.store, made.found(), again.offsets_end, 1_002)) == 1
    assert len(prune(made.store, made.found(), again.offsets_end, 9_999)) == 1
    assert made.found() == []


async def test_segments_of_two_workers_may_overlap(tmp_path: Path) -> None:
    """Two workers that seal the same records cost disk space; the archive has each record once."""
    made = Streamed(tmp_path)
    await made.append(*FIRST)
    first, second = made.stream("w1"), made.stream("w2")
    assert (await first.seal(made.order(1))).records == 3
    await made.append((0, b"p1"))
    (made.folder / "segments" / MANIFESTS).rename(made.folder / "hidden")  # the second worker does not see the first one's yet
    assert (await second.seal(made.order(2))).records == 5
    for note in (made.folder / "hidden").iterdir():
        shutil.move(note, made.folder / "segments" / MANIFESTS)
    assert (await first.seal(made.order(2, look=True))).segments == 0
    assert (made.fetch().records, len(made.found())) == (5, 2)
    assert await made.archived() == {ORDERING: [b"o0", b"o1"], 0: [b"p0", b"p1"], 1: [b"q0"]}


async def test_segments_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A gap, a changed file, a changed or foreign manifest add nothing to the archive."""
    made = Streamed(tmp_path)
    await made.append(*FIRST)
    stream = made.stream()
    await stream.seal(made.order(1))
    await made.append((0, b"p1"))
    await stream.seal(made.order(2))
    with pytest.raises(ConfigurationError, match=r"archived up to offset 0, and the next segment, .* begins at 1"):
        made.fetch(made.found()[1:])
    assert not [*(tmp_path / "archive").rglob("*.parquet")]
    (file,) = [path for path in (tmp_path / "segments" / "files").iterdir() if path.name == made.found()[0].sha256]
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x")
    with pytest.raises(NotVerified, match="with the hash"):
        made.fetch()
    file.unlink()
    with pytest.raises(NotVerified, match="is missing"):
        made.fetch()
    file.write_bytes(content)
    note = sorted((tmp_path / "segments" / MANIFESTS).iterdir())[0]
    text = note.read_text()
    note.write_text(text.replace('"records":3', '"records":2'))
    with pytest.raises(NotVerified, match=f"the manifest {note.name}: "):
        made.found()
    note.write_text(text)
    with pytest.raises(NotVerified):
        list(find(made.store, [VerifierKey(ORIGIN, Ed25519PrivateKey.generate().public_key().public_bytes_raw())], NAME))
    with pytest.raises(NotVerified):
        list(find(made.store, made.trusted, "another notary"))
    assert made.fetch().records == 5


async def test_a_log_that_lost_sealed_records_is_not_sealed(tmp_path: Path) -> None:
    """A log that was cut and has grown again is not mixed with the segments of the one before; nor is another log."""
    made = Streamed(tmp_path)
    await made.append(*FIRST)
    await made.stream().seal(made.order(2))
    made.log._records[0][:] = [Record(0, 0, 7, b"key", b"another")]
    await made.append((ORDERING, b"o2"))
    with pytest.raises(ConfigurationError, match="does not hold a record that a segment has: record 0 of payload partition 0"):
        await made.stream().seal(made.order(3))
    other = made.stream()
    other._identity = f"other {bytes(32).hex()}"
    with pytest.raises(ConfigurationError, match="name another store"):
        await other.seal(made.order(3))
    assert len(made.found()) == 1


async def test_different_records_of_one_offset_are_refused(tmp_path: Path) -> None:
    """Segments of two histories are never made one archive."""
    made = Streamed(tmp_path)
    await made.append(*FIRST)
    await made.stream("w1").seal(made.order(1))
    (made.folder / "segments" / MANIFESTS).rename(made.folder / "hidden")
    made.log._records[0][:] = [Record(0, 0, 7, b"key", b"another"), Record(0, 1, 7, b"key", b"p1")]
    await made.stream("w2").seal(made.order(2))
    for note in (made.folder / "hidden").iterdir():
        shutil.move(note, made.folder / "segments" / MANIFESTS)
    with pytest.raises(ConfigurationError, match="differ at offset 0 of payload partition 0"):
        made.fetch()
    assert not [*(tmp_path / "archive").rglob("*.parquet")]


async def test_a_backlog_is_sealed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long log takes several segments, contents before entries, so that an interrupted one is still a log as it once was."""
    monkeypatch.setattr("notary.archive.stream.SEGMENT_BYTES", 1)
    monkeypatch.setattr("ordering.local_reader.POLL_RECORDS_MAX", 2)
    made = Streamed(tmp_path)
    await made.append(*[(partition, b"%d" % number) for number in range(20) for partition in (ORDERING, 0, 1)])
    sealed = await made.stream().seal(made.order(19))
    assert sealed.records == 59
    assert sealed.segments > 2
    reached = dict.fromkeys((ORDERING, 0, 1), 0)
    for segment in sorted(made.found(), key=lambda each: each.sealed_at_ms):
        for part in segment.parts:
            assert part.partition != ORDERING or reached[0] == reached[1] == 20
            reached[part.partition] = part.offset_end
    assert made.fetch().records == 59


def test_a_segment_comes_behind_those_that_it_goes_on_from() -> None:
    """Its parts are those of the topic-partitions with new records: the sums of their offsets say nothing about the order."""

    def segment(name: str, **parts: tuple[int, int]) -> Any:
        partitions = {"order": ORDERING, "first": 0, "second": 1}
        found = [SimpleNamespace(partition=partitions[of], offset_first=first, offset_end=end) for of, (first, end) in parts.items()]
        return SimpleNamespace(name=name, parts=found)

    large = segment("b", order=(0, 5), first=(0, 40))
    behind = segment("a", order=(5, 6))
    again = segment("c", order=(2, 5))
    torn = segment("d", second=(7, 9))
    assert in_order([behind, again, large], {}) == [large, behind]
    assert in_order([torn, behind, large], {}) == [large, behind, torn], "the gap is reported behind all that fits"
    assert in_order([behind, large], {ORDERING: 6, 0: 40}) == []
