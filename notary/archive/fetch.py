"""Adds the segments after the end of an archive to it, as one more range; removes segments whose records an archive has.

`docs/spark.md` has the archive's format. The file of the range is written last, and never replaces another. So a crash leaves files that no
range lists, which the next call removes.
"""

from collections.abc import Mapping, Sequence
from hashlib import file_digest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from notary.archive.segment import RECORD, Segment, read
from notary.receipts.errors import NotVerified
from notary.snapshots.make import hashed
from notary.snapshots.store import FILES, MANIFESTS, SnapshotStore
from ordering.durable import create_file, make_directory, sync, sync_directory
from ordering.errors import ConfigurationError
from ordering.local_reader import describe
from ordering.log import ORDERING, Record

ARCHIVE_VERSION: Final = 2


class AddedRange(msgspec.Struct, frozen=True):
    """A range that was made of segments. With 0 records no range was made, since the archive had all of them."""

    range: int
    segments: int
    records: int
    offsets_end: dict[int, int]


def fetch(store: SnapshotStore, segments: Sequence[Segment], archive: Path, ranges: int, ends: Mapping[int, int]) -> AddedRange:
    """Add the records behind `ends` to an archive of `ranges` ranges, all in one new range. Raises `NotVerified`, `ConfigurationError`.

    If a segment is missing, or two have different records at one offset, nothing is added.
    """
    partitions = max([segment.payload_partitions for segment in segments], default=0)
    reached = dict.fromkeys(range(ORDERING, partitions), 0) | dict(ends)
    number = ranges + 1
    used = in_order(segments, reached)
    if not used:
        return AddedRange(0, 0, 0, reached)
    added = _Added(archive, number, reached)
    try:
        make_directory(archive)
        with TemporaryDirectory(dir=archive) as folder:
            for segment in used:
                added.add(segment, _records(store, segment, Path(folder)))
        files = added.end()
        make_directory(archive / "ranges")
        made = {"archive_version": ARCHIVE_VERSION, "payload_partitions": partitions, "files": files}
        # A crash before this line leaves files that no range lists; after it the complete range.
        create_file(archive / "ranges" / f"{number:08}.json", msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
        sync_directory(archive / "ranges")
    except BaseException:
        added.drop()
        raise
    return AddedRange(number, len(used), added.records, added.reached)


def in_order(segments: Sequence[Segment], reached: Mapping[int, int]) -> list[Segment]:
    """Returns the segments with new records, each after those that it continues; segments that continue none come last. Pure.

    A segment has parts only for topic-partitions with new records, and two workers may have sealed at once. So neither names nor sums of
    offsets give the order.
    """
    ends = dict(reached)
    waiting = sorted(segments, key=lambda segment: segment.name)
    ordered: list[Segment] = []
    while waiting:
        fits = (at for at, segment in enumerate(waiting) if all(part.offset_first <= ends.get(part.partition, 0) for part in segment.parts))
        if (at := next(fits, None)) is None:
            return ordered + waiting
        segment = waiting.pop(at)
        if any(part.offset_end > ends.get(part.partition, 0) for part in segment.parts):
            ordered.append(segment)
            ends |= {part.partition: max(part.offset_end, ends.get(part.partition, 0)) for part in segment.parts}
    return ordered


def _records(store: SnapshotStore, segment: Segment, folder: Path) -> dict[int, list[Record]]:
    """Copies the file of a segment from its store, and returns its records. Raises `NotVerified`."""
    file = folder / "segment"
    try:
        with file.open("wb") as out:
            found = hashed(store.chunks(FILES, segment.sha256), lambda _: None, out.write, bytes_max=segment.file_bytes)
    except FileNotFoundError:
        raise NotVerified("malformed-segment", f"{FILES}/{segment.sha256} of {segment.name} is missing") from None
    if found != (segment.file_bytes, segment.sha256):
        raise NotVerified("malformed-segment", f"{FILES}/{segment.sha256} of {segment.name} has {found[0]} bytes with the hash {found[1]}")
    return read(file, segment)


class _Added:
    """The files of the new range: one for each topic-partition, a row group for each segment."""

    def __init__(self, archive: Path, number: int, reached: Mapping[int, int]) -> None:
        self._archive, self._number = archive, number
        self._firsts, self.reached = dict(reached), dict(reached)
        self._writers: dict[int, tuple[Path, Any, Any]] = {}
        self._counts: dict[int, int] = {}
        self._last: dict[int, dict[int, Record]] = {}

    @property
    def records(self) -> int:
        """The number of records added so far."""
        return sum(self._counts.values())

    def add(self, segment: Segment, found: Mapping[int, list[Record]]) -> None:
        """Add the records of a segment that are new."""
        for part in segment.parts:
            end, records = self.reached.get(part.partition, 0), found[part.partition]
            before = self._last.get(part.partition, {})
            if other := [record.offset for record in records if record.offset in before and before[record.offset] != record]:
                raise ConfigurationError(
                    f"two segments, {segment.name} is the later one, differ at offset {other[0]} of {describe(part.partition)}:"
                    " the log lost its end between them. Keep all segments, and move those of one of the two histories to another place"
                )
            if part.offset_end <= end:
                continue
            if part.offset_first > end:
                raise ConfigurationError(
                    f"{describe(part.partition)} is archived up to offset {end}, and the next segment, {segment.name}, begins at"
                    f" {part.offset_first}: the records between them are missing. Take a newer archive, or put the missing segment back"
                )
            new = [record for record in records if record.offset >= end]
            self._write(part.partition, new)
            self._last[part.partition] = {record.offset: record for record in records}
            self.reached[part.partition] = part.offset_end

    def end(self) -> list[dict[str, Any]]:
        """Finish the files, and sync them. Returns their entries in the range's file."""
        lines = []
        for partition, (path, out, writer) in sorted(self._writers.items()):
            writer.close()
            sync(out)
            out.close()
            sync_directory(path.parent)
            with path.open("rb") as opened:
                digest = file_digest(opened, "sha256").hexdigest()
            topic, number = _topic_and_number(partition)
            lines.append(
                {
                    "path": str(path.relative_to(self._archive)),
                    "topic": topic,
                    "partition": number,
                    "offset_first": self._firsts.get(partition, 0),
                    "offset_end": self.reached[partition],
                    "records": self._counts[partition],
                    "sha256": digest,
                }
            )
        return lines

    def drop(self) -> None:
        """Remove the files."""
        for path, out, writer in self._writers.values():
            writer.close()
            out.close()
            path.unlink(missing_ok=True)

    def _write(self, partition: int, records: Sequence[Record]) -> None:
        if partition not in self._writers:
            topic, number = _topic_and_number(partition)
            path = self._archive / topic / f"partition={number}" / f"{self._number:08}-segments.parquet"
            make_directory(path.parent)
            out = path.open("wb")  # a run that was killed may have left one
            self._writers[partition] = (path, out, pq.ParquetWriter(out, RECORD, compression="zstd", use_dictionary=False))
        columns = [[getattr(record, name) for record in records] for name in RECORD.names]
        self._writers[partition][2].write_table(pa.table(columns, schema=RECORD))
        self._counts[partition] = self._counts.get(partition, 0) + len(records)


def _topic_and_number(partition: int) -> tuple[str, int]:
    return ("ordering", 0) if partition == ORDERING else ("payload", partition)


def prune(store: SnapshotStore, segments: Sequence[Segment], ends: Mapping[int, int], keep_after_ms: int) -> list[str]:
    """Remove the segments that end at or before these offsets and were sealed before that time. Returns their names.

    The manifest goes first: a crash after it leaves a file that no manifest names.
    """
    old = [
        segment
        for segment in segments
        if segment.sealed_at_ms < keep_after_ms and all(part.offset_end <= ends.get(part.partition, 0) for part in segment.parts)
    ]
    for segment in old:
        store.remove(MANIFESTS, segment.name)
    kept = {segment.sha256 for segment in segments} - {segment.sha256 for segment in old}
    for digest in {segment.sha256 for segment in old} - kept:
        store.remove(FILES, digest)
    return [segment.name for segment in old]
