"""Adds the segments after the end of an archive to it, as one more range; removes segments whose records an archive has.

`docs/spark.md` has the archive's format. The caller holds the lock of the archive's folder. The files of a run have names of their own, and
the range is written after them, atomically, and never replaces another. So if two runs overlap nevertheless, on two machines or beside
`spark_join archive`, the one that writes its range later gives up. A crash leaves files that no range lists. `tidy` removes them once the
archive has their records. A run removes earlier those that were never finished and are an hour old.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import file_digest
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from notary.archive.archived import ARCHIVE_VERSION, ArchivedLog
from notary.archive.compared import THE_ARCHIVE, KnownRecords, Rotations, compare_lasts
from notary.archive.segment import BATCH_RECORDS, RECORD, UNLISTED, FoundSegment, SealedPart, Segment, read
from notary.receipts.errors import NotVerified
from notary.snapshots.make import hashed
from notary.snapshots.store import FILES, MANIFESTS, SnapshotStore, open_regular
from ordering.clock import clock_ms
from ordering.durable import create_file, make_directory, move_into_place, naming, sync
from ordering.errors import ConfigurationError
from ordering.log import ORDERING, Record, describe

LEFT_S: Final = 3_600
"""The age of a file that a killed process left. A younger one may be of a process on another machine, which no lock here reaches."""
UNFINISHED: Final = ".new"
"""The end of the name of a file while it is written: only such files are removed without a look at their records."""
_is_own = re.compile(r"(ordering|payload)/partition=(\d+)/(\d{8})-segments-\w+\.parquet").fullmatch


class AddedRange(msgspec.Struct, frozen=True):
    """A range that was made of segments. With 0 records no range was made, since the archive had all of them."""

    range: int
    segments: int
    records: int


def fetch(
    store: SnapshotStore, segments: Sequence[FoundSegment], folder: Path, archived: ArchivedLog | None, key_last: bytes = b""
) -> AddedRange:
    """Add the records after the end of an archive to it, all in one new range. Raises `NotVerified`, `ConfigurationError`, `OSError`.

    `archived` is None if there is no archive in `folder` yet. `key_last` is the last key of the key history. Nothing is added if a segment
    is missing, or two differ.
    """
    reached = dict(archived.ends) if archived else {}
    number = (archived.ranges if archived else 0) + 1
    used = in_order(segments, reached)
    if archived:
        compare_lasts(segments, archived, _since(archived, used))
    if not used:
        return AddedRange(0, 0, 0)
    _refuse_gaps(used, reached)
    # A forged segment of a former key may have any number. The log had its partitions before the key in force signed a segment.
    counting = [segment for segment in segments if segment.signer == key_last] or used
    reached = dict.fromkeys(range(ORDERING, max([segment.payload_partitions for segment in counting])), 0) | reached
    _refuse_unknown_partitions(used, reached)
    _remove_unfinished(folder, number)
    added = _Added(folder, number, reached, used, archived)
    if archived and any(segment.signer != key_last for segment in used):
        added.read_rotations(archived)  # of the complete archive: it takes long, and only segments of former keys need it
    range_file, content = folder / "ranges" / f"{number:08}.json", b""
    try:
        make_directory(folder)
        with naming(folder):
            for segment in used:
                added.add(segment, _records(store, segment, folder))
            files = added.end()
        make_directory(folder / "ranges")
        made = {"archive_version": ARCHIVE_VERSION, "payload_partitions": len(added.reached) - 1, "files": files}
        content = msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"
        # A crash before this line leaves files that no range lists; after it the complete range.
        create_file(range_file, content)
    except BaseException as problem:
        # The range may be there although writing it failed, and then its files must stay. Another run's range lists other names.
        if not (range_file.exists() and range_file.read_bytes() == content):
            added.drop()
            if isinstance(problem, OSError) and range_file.exists():
                raise ConfigurationError(
                    f"another process has added {range_file} meanwhile: nothing was added. Run the same command again"
                ) from None
        raise
    return AddedRange(number, added.segments, added.records)


def tidy(folder: Path, archived: ArchivedLog) -> None:
    """Remove the files that killed runs of `fetch` left of the archive's ranges. Move those with other records to `UNLISTED`.

    The range that listed such a file may be lost, and so may be its segments. Then the file is the only copy of these records. Files of a
    later number stay: another run may be writing them. Raises `ConfigurationError` for a damaged archive, `OSError`.
    """
    for file in archived.unlisted():
        found = _is_own(str(file.relative_to(folder)))
        if found is None or int(found[3]) > archived.ranges:
            continue
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            if _has_records(archived, ORDERING if found[1] == "ordering" else int(found[2]), file):
                file.unlink()
            else:
                target = folder / UNLISTED / found[0]
                make_directory(target.parent)
                move_into_place(file, target)
    for file in folder.glob(f"ranges/.{'[0-9]' * 8}.json.*.new"):
        if int(file.name[1:9]) <= archived.ranges:
            file.unlink(missing_ok=True)
    _remove_unfinished(folder, archived.ranges)


def _remove_unfinished(folder: Path, number: int) -> None:
    """Remove the files that killed runs began for ranges up to that number, if they are old: another run may be writing them."""
    for left in folder.glob(f"*/partition=*/{'[0-9]' * 8}-segments-*{UNFINISHED}"):
        with contextlib.suppress(FileNotFoundError):
            if int(left.name[:8]) <= number and clock_ms() / 1000 - left.stat().st_mtime >= LEFT_S:
                left.unlink()


def _unfinished(file: Path) -> Path:
    return file.with_name(file.name + UNFINISHED)


def _has_records(archived: ArchivedLog, partition: int, file: Path) -> bool:
    """Returns True if an archive has each record of a file."""
    try:
        with open_regular(file) as opened, pq.ParquetFile(opened) as parquet:
            batches = parquet.iter_batches(BATCH_RECORDS)
            rows = (row for batch in batches for row in zip(*[column.to_pylist() for column in batch.columns], strict=True))
            left = (Record(partition, *row) for row in rows)
            first = next(left, None)
            if first is None:
                return True
            if partition not in archived.ends:
                return False
            known = (record for some in archived.records(partition, first.offset) for record in some)
            return all(record in known for record in chain((first,), left))
    except (OSError, TypeError, ValueError, pa.ArrowException):
        return False


def _since(archived: ArchivedLog, used: Sequence[Segment]) -> dict[int, int]:
    """Returns the offsets after which `fetch` compares archived parts, so that its cost does not grow with the archive.

    These are the beginning of the last range, or an earlier offset if a segment with new records has an archived part before it.
    """
    since = dict(archived.last_range)
    for part in [part for segment in used for part in segment.parts]:
        since[part.partition] = min(part.offset_end - 1, since.get(part.partition, 0))
    return since


def in_order(segments: Sequence[FoundSegment], reached: Mapping[int, int]) -> list[FoundSegment]:
    """Returns the segments with records after `reached`, each after those that it continues; segments that continue none come last. Pure.

    A segment has parts only for topic-partitions with new records, and two workers may have sealed at once. So neither names nor sums of
    offsets give the order. A segment whose records others have too is among them: its records are compared.
    """
    ends = dict(reached)
    waiting = sorted(
        [segment for segment in segments if any(part.offset_end > reached.get(part.partition, 0) for part in segment.parts)],
        key=lambda segment: (segment.sealed_at_ms, segment.name),  # nearly in order, unless clocks differ: most fit at the first try
    )
    ordered: list[FoundSegment] = []
    while waiting:
        fits = (at for at, segment in enumerate(waiting) if all(part.offset_first <= ends.get(part.partition, 0) for part in segment.parts))
        if (at := next(fits, None)) is None:
            return ordered + waiting
        segment = waiting.pop(at)
        ordered.append(segment)
        ends |= {part.partition: max(part.offset_end, ends.get(part.partition, 0)) for part in segment.parts}
    return ordered


def _refuse_gaps(used: Sequence[Segment], reached: Mapping[int, int]) -> None:
    """Raise `ConfigurationError` if a segment begins after the end of the archive and the segments before it."""
    ends = dict(reached)
    for segment in used:
        for part in segment.parts:
            end = ends.get(part.partition, 0)
            if part.offset_first > end:
                raise ConfigurationError(
                    f"{describe(part.partition)} is archived up to offset {end}, and the next segment, {segment.name}, begins at"
                    f" {part.offset_first}: the records between them are missing. Take a newer archive, or put the missing segment back"
                )
            ends[part.partition] = max(part.offset_end, end)


def _refuse_unknown_partitions(used: Sequence[Segment], reached: Mapping[int, int]) -> None:
    """Raise `ConfigurationError` if a segment has records of a topic-partition that is not in `reached`."""
    for segment in used:
        for part in segment.parts:
            if part.partition not in reached:
                raise ConfigurationError(
                    f"the segment {segment.name} has records of {describe(part.partition)}, and the segments that the key in force signed"
                    f" were made of {len(reached) - 1} payload partitions: a former key signed it, and it is forged. Move it to another"
                    " place. If the topic does have that partition, restart the workers, and run this again after their next segment"
                )


def _records(store: SnapshotStore, segment: Segment, folder: Path) -> dict[int, list[Record]]:
    """Copies the file of a segment from its store, and returns its records. Raises `NotVerified`."""
    name = f"{FILES}/{segment.sha256} of {segment.name}"
    with TemporaryFile(dir=folder) as file:  # it has no name: a killed run leaves nothing
        try:
            found = hashed(store.chunks(FILES, segment.sha256), lambda _: None, file.write, bytes_max=segment.file_bytes)
        except FileNotFoundError:
            raise NotVerified("malformed-segment", f"{name} is missing") from None
        if found != (segment.file_bytes, segment.sha256):
            raise NotVerified("malformed-segment", f"{name} has {found[0]} bytes with the hash {found[1]}")
        file.seek(0)
        return read(file, segment)


class _Added:
    """The files of the new range: one for each topic-partition, a row group for each segment."""

    def __init__(
        self, folder: Path, number: int, reached: Mapping[int, int], used: Sequence[Segment], archived: ArchivedLog | None
    ) -> None:
        self._folder, self._name = folder, f"{number:08}-segments-{uuid4().hex[:12]}.parquet"
        self._firsts, self.reached = dict(reached), dict(reached)
        self._writers: dict[int, tuple[Path, Any, Any]] = {}
        self._counts: dict[int, int] = {}
        self.segments = 0
        """Counts the segments with new records."""
        self._rotations = Rotations()
        parts: dict[int, list[SealedPart]] = {}
        for part in [part for segment in used for part in segment.parts]:
            parts.setdefault(part.partition, []).append(part)
        self._known = {partition: KnownRecords([part.offset_first for part in some]) for partition, some in parts.items()}
        for partition, some in parts.items() if archived else ():
            assert archived is not None
            end = reached.get(partition, 0)
            across = [part.offset_first for part in some if part.offset_first < end < part.offset_end]
            for records in archived.records(partition, min(across)) if across else ():
                self._known[partition].add(records, THE_ARCHIVE)

    @property
    def records(self) -> int:
        """The number of records added so far."""
        return sum(self._counts.values())

    @property
    def files(self) -> list[Path]:
        """The files written so far."""
        return [path for path, _, _ in self._writers.values()]

    def read_rotations(self, archived: ArchivedLog) -> None:
        """Read the `key` records of an archive."""
        for some in archived.records(ORDERING, 0):
            for record in some:
                self._rotations.read(record)

    def add(self, segment: FoundSegment, found: Mapping[int, list[Record]]) -> None:
        """Compare the records of a segment with those that are known, and add the new ones."""
        has_new = False
        for part in segment.parts:
            partition, end, records = part.partition, self.reached.get(part.partition, 0), found[part.partition]
            known = self._known[partition]
            if part.offset_end > self._firsts.get(partition, 0):  # else `compare_lasts` has compared it
                known.compare(records, part.offset_first, min(end, part.offset_end), partition, segment.name, "an earlier segment")
            if part.offset_end > end:
                new, has_new = [record for record in records if record.offset >= end], True
                if partition == ORDERING:
                    for record in new:  # the segment itself may have the record that replaced its key
                        self._rotations.read(record)
                    self._check_signer(segment, part.offset_end)
                known.add(new, f"the segment {segment.name}")
                self._write(partition, new)
                self.reached[partition] = part.offset_end
            known.part_is_done()
        self.segments += has_new

    def _check_signer(self, segment: FoundSegment, offset_end: int) -> None:
        replaced = self._rotations.replaced.get(segment.signer)
        if replaced is not None and offset_end > replaced:
            raise ConfigurationError(
                f"the segment {segment.name} has ordering records up to offset {offset_end}, and ordering record {replaced} replaced the"
                f" key that signed it, {segment.signer.hex()}: no worker seals such a segment, so it is forged. Move it to another place"
            )

    def end(self) -> list[dict[str, Any]]:
        """Finish the files, and sync them. Returns their entries in the range's file."""
        lines = []
        for partition, (path, out, writer) in sorted(self._writers.items()):
            writer.close()
            sync(out)
            out.close()
            move_into_place(_unfinished(path), path)
            with path.open("rb") as opened:
                digest = file_digest(opened, "sha256").hexdigest()
            topic, number = _topic_and_number(partition)
            lines.append(
                {
                    "path": str(path.relative_to(self._folder)),
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
            for each in (_unfinished(path), path):
                each.unlink(missing_ok=True)
            for opened in (writer, out):
                with contextlib.suppress(OSError):  # it writes what is left, and the disk may be full
                    opened.close()

    def _write(self, partition: int, records: Sequence[Record]) -> None:
        if partition not in self._writers:
            topic, number = _topic_and_number(partition)
            path = self._folder / topic / f"partition={number}" / self._name
            make_directory(path.parent)
            out = _unfinished(path).open("xb")
            self._writers[partition] = (path, out, pq.ParquetWriter(out, RECORD, compression="zstd", use_dictionary=False))
        columns = [[getattr(record, name) for record in records] for name in RECORD.names]
        self._writers[partition][2].write_table(pa.table(columns, schema=RECORD))
        self._counts[partition] = self._counts.get(partition, 0) + len(records)


def _topic_and_number(partition: int) -> tuple[str, int]:
    return ("ordering", 0) if partition == ORDERING else ("payload", partition)


def prune(
    store: SnapshotStore,
    segments: Sequence[Segment],
    archived: ArchivedLog,
    keep_after_ms: int,
    margin_s: float,
    find_others: Callable[[frozenset[str]], Iterable[Segment]],
) -> list[str]:
    """Remove the segments that an archive has and that were sealed before that time. Returns their names. Raises `ConfigurationError`.

    The last segment of each topic-partition stays: a new process of a worker continues behind it, and compares it with the log. Without it
    that process would seal the complete log again, and a lost end of the log would stay unknown.

    Before that, every file of the archive that has their records is compared with its range, and their last records with the archive.
    The manifests go first, then their files, if they are older than `margin_s`. Other files that no manifest names are removed too, but not
    before they are an hour old: a segment may be in the making. So a crash between the two leaves files that a later call removes.
    `find_others` returns the segments but those with these names: those sealed since `segments` were listed.
    """
    ends = archived.ends
    lasts: dict[int, tuple[int, str]] = {}
    for segment in segments:
        for part in segment.parts:
            lasts[part.partition] = max(lasts.get(part.partition, (0, "")), (part.offset_end, segment.name))
    old = [
        segment
        for segment in segments
        if segment.sealed_at_ms < keep_after_ms and all(part.offset_end <= ends.get(part.partition, 0) for part in segment.parts)
    ]
    since = dict(ends)
    for part in [part for segment in old for part in segment.parts]:
        since[part.partition] = min(part.offset_first, since[part.partition])
    for sentence in archived.damaged(lambda done, total: None, since):
        raise ConfigurationError(f"{sentence}. No segment was removed")
    compare_lasts(old, archived)
    stay = {name for _, name in lasts.values()}
    removed = {segment.name: segment.sha256 for segment in old if segment.name not in stay}
    for name in removed:
        store.remove(MANIFESTS, name)
    others = find_others(frozenset([segment.name for segment in segments]))
    named = {segment.sha256 for segment in (*segments, *others) if segment.name not in removed}
    known = set(removed.values())
    for digest in store.sizes(FILES).keys() - named:
        if store.age_s(FILES, digest) > (margin_s if digest in known else max(margin_s, LEFT_S)):
            store.remove(FILES, digest)
    return list(removed)
