"""An archive of both topics (docs/spark.md, The archive), read as a `Log`.

pyarrow reads its Parquet files, without Spark: no smaller library reads Parquet with zstd.

The ranges are checked first. The SHA-256 and the columns of a file are checked before its first record. The number of its records, and the
order and range of their offsets, are checked while it is read. One row group of each partition is in memory at a time.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from notary.archive.segment import BATCH_RECORDS, RECORD, UNLISTED, other_columns
from notary.snapshots.store import open_regular
from ordering.durable import TOO_MANY_FILES
from ordering.errors import ConfigurationError
from ordering.local_reader import POLL_BYTES_MAX, POLL_RECORDS_MAX, check_partitions, size
from ordering.log import ORDERING, Leader, LogOffsets, Record, Writer

ARCHIVE_VERSION: Final = 2
_REMEDY: Final = "Take the file from another copy of the archive"
_MORE_FILES: Final = "Raise the limit of open files (`ulimit -n`, `LimitNOFILE=`): a reader has one of each partition open"
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(pattern=r"^[a-z]+/partition=[0-9]+/\w[\w.-]*\.parquet$")]
    topic: Literal["ordering", "payload"]
    partition: _Number
    offset_first: _Number
    offset_end: _Number
    records: _Number
    sha256: str

    @property
    def number(self) -> int:
        return ORDERING if self.topic == "ordering" else self.partition


class _Version(msgspec.Struct, frozen=True):
    archive_version: int


class _Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    archive_version: int
    payload_partitions: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    files: list[_File]


class ArchivedLog:
    """A read-only `Log`. Raises `ConfigurationError`, also while it is read, for an archive that is incomplete or damaged."""

    def __init__(self, folder: Path) -> None:
        """Read and check the ranges, but no Parquet file yet."""
        ranges, self._digests = _ranges(folder)
        self._folder = folder
        self.ranges = len(ranges)
        """The number of ranges."""
        self._partitions = ranges[-1].payload_partitions
        self._files: dict[int, list[_File]] = {partition: [] for partition in range(ORDERING, self._partitions)}
        for file in [file for each in ranges for file in each.files]:
            before = self._files.get(file.number)
            if before is None or (file.topic == "ordering" and file.partition):
                raise ConfigurationError(
                    f"{folder / file.path} is of {file.topic} partition {file.partition}, which the archive does not have"
                )
            if not file.path.startswith(f"{file.topic}/partition={file.partition}/"):
                raise ConfigurationError(
                    f"{folder / file.path} is listed as of {file.topic} partition {file.partition}, and lies elsewhere"
                )
            end = before[-1].offset_end if before else 0
            if file.offset_first != end or file.offset_end < end:
                raise ConfigurationError(
                    f"{folder / file.path} has offsets {file.offset_first} up to {file.offset_end} of {file.topic} partition"
                    f" {file.partition}, and the files before it end at {end}: a range is missing or present twice"
                )
            before.append(file)
        self.last_range = self.ends | {file.number: file.offset_first for file in reversed(ranges[-1].files)}
        """The offset at which the last range begins, by topic-partition."""

    def unlisted(self) -> list[Path]:
        """Returns the Parquet files that no range lists: an interrupted run left them, or the last ranges are missing."""
        listed = {self._folder / file.path for files in self._files.values() for file in files}
        return sorted({file for above in ("", f"{UNLISTED}/") for file in self._folder.glob(f"{above}*/partition=*/*.parquet")} - listed)

    def digest(self, ranges: int) -> str:
        """Returns the SHA-256 over the SHA-256 of each of the first files `ranges/*.json`; empty if there are fewer.

        They list the hash of each Parquet file. Spark's report has the same.
        """
        return sha256(b"".join(self._digests[:ranges])).hexdigest() if 0 < ranges <= len(self._digests) else ""

    def damaged(self, progress: Callable[[int, int], None], since: Mapping[int, int] | None = None) -> Iterator[str]:
        """Reads every file. Yields a sentence for each that is missing, or has other bytes than its range says.

        `progress` receives the number of files read, and of all files. `since`: leave out the files that end at or before these offsets.
        """
        after = since or {}
        files = [file for of_partition in self._files.values() for file in of_partition if file.offset_end > after.get(file.number, -1)]
        for number, file in enumerate(files, 1):
            try:
                with open_regular(self._folder / file.path) as opened:
                    found = file_digest(opened, "sha256").hexdigest()
            except OSError as problem:
                found = f"cannot be read ({problem.strerror})"
            if found != file.sha256:
                yield f"{self._folder / file.path} is damaged: its range has SHA-256 {file.sha256}, and the file {found}. {_REMEDY}"
            progress(number, len(files))

    @property
    def ends(self) -> dict[int, int]:
        """The end of the last range, by topic-partition."""
        return {partition: files[-1].offset_end if files else 0 for partition, files in self._files.items()}

    @property
    def payload_partitions(self) -> int:
        """The number of payload partitions when the last range was archived."""
        return self._partitions

    async def has_partitions(self, count: int) -> None:
        """Raise `NotReady` when the archive has fewer payload partitions."""
        check_partitions(f"the archive {self._folder}", self._partitions, count)

    @property
    def identity(self) -> str:
        """The archive's folder, as `archive:<folder>`."""
        return f"archive:{self._folder}"

    async def open_writer(self) -> Writer:
        """Raise `ConfigurationError`: an archive cannot be appended to."""
        raise ConfigurationError(f"{self._folder} is an archive: no record can be appended to it")

    async def open_reader(self, offsets_next: Mapping[int, int]) -> "ArchivedReader":
        """Returns a reader from these offsets on, and from 0 for other topic-partitions."""
        records = {partition: self.records(partition, offsets_next.get(partition, 0)) for partition in self.ends}
        return ArchivedReader(records, self.ends, offsets_next)

    async def offsets(self) -> Mapping[int, LogOffsets]:
        """Returns log start offset and log end offset of each topic-partition: 0, and the end of the last range."""
        return {partition: LogOffsets(0, end) for partition, end in self.ends.items()}

    def leaders(self) -> Mapping[int, Leader]:
        """Returns no leaders, since an archive has no brokers."""
        return {}

    async def close(self) -> None:
        """Do nothing: only readers hold files open."""

    def records(self, partition: int, offset_first: int) -> Iterator[list[Record]]:
        """Yields the records of a topic-partition from an offset on. Raises `ConfigurationError` for a damaged file."""
        for file in self._files[partition]:
            if file.offset_end > offset_first:
                for records in self._read(file):
                    if wanted := [record for record in records if record.offset >= offset_first]:  # a poll without records waits
                        yield wanted

    def _read(self, file: _File) -> Iterator[list[Record]]:
        """Yields the records of a file, `BATCH_RECORDS` at a time. Raises `ConfigurationError` when it does not match its range."""
        path = self._folder / file.path
        source = f"{path} ({file.topic} partition {file.partition}, offsets {file.offset_first} up to {file.offset_end})"
        last, count = file.offset_first - 1, 0
        try:
            # One open file for both: another file may take the name between hashing and reading.
            with open_regular(path) as opened, contextlib.ExitStack() as held:
                found = file_digest(opened, "sha256").hexdigest()
                if found != file.sha256:
                    raise ConfigurationError(f"{source} is damaged: its range has SHA-256 {file.sha256}, and the file {found}. {_REMEDY}")
                opened.seek(0)
                parquet = held.enter_context(pq.ParquetFile(opened))
                if other := other_columns(parquet.schema_arrow, RECORD):
                    raise ConfigurationError(f"{source} has other columns than an archive's: {other}")
                for batch in parquet.iter_batches(BATCH_RECORDS):
                    rows = list(zip(*[column.to_pylist() for column in batch.columns], strict=True))
                    for offset, append_time_ms, *_ in rows:
                        if append_time_ms is None:
                            raise ValueError("an append time is missing")
                        if not last < offset < file.offset_end:
                            raise ConfigurationError(f"{source} is damaged: offset {offset} comes after {last}. {_REMEDY}")
                        last, count = offset, count + 1
                    yield [Record(file.number, *row) for row in rows]
        except OSError as problem:
            remedy = _MORE_FILES if problem.errno in TOO_MANY_FILES else _REMEDY
            raise ConfigurationError(f"{source} cannot be read: {problem.strerror or problem}. {remedy}") from None
        except (ValueError, TypeError, pa.ArrowException) as problem:
            raise ConfigurationError(f"{source} is damaged after offset {last}: {problem}. {_REMEDY}") from None
        if count != file.records:
            raise ConfigurationError(f"{source} is damaged: it has {count} records, and its range counts {file.records}. {_REMEDY}")


class ArchivedReader:
    """A `Reader` over the files of an archive."""

    def __init__(self, records: Mapping[int, Iterator[list[Record]]], ends: Mapping[int, int], offsets_next: Mapping[int, int]) -> None:
        """Use `ArchivedLog.open_reader`."""
        self._records = dict(records)
        self._ends = ends
        self._offsets_next = {partition: offsets_next.get(partition, 0) for partition in records}
        self._turns = list(records)
        self._paused: frozenset[int] = frozenset()

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Returns the next records; none, after `timeout_ms`, when all topic-partitions are paused or at their ends."""
        # Yield to the event loop before reading, not after: hashing a large file may take longer than a caller's timeout for one record.
        await asyncio.sleep(0)
        taken: list[Record] = []
        taken_bytes, has_ended = 0, False
        for partition in [each for each in self._turns if each not in self._paused and each in self._records]:
            if taken_bytes >= POLL_BYTES_MAX or len(taken) >= POLL_RECORDS_MAX:
                break
            records = next(self._records[partition], None)
            if records is None:
                # Offsets at the end may have no record: a Kafka transaction leaves such offsets.
                self._offsets_next[partition] = self._ends[partition]
                del self._records[partition]
                has_ended = True
                continue
            self._turns.remove(partition)
            self._turns.append(partition)
            if records:
                self._offsets_next[partition] = records[-1].offset + 1
            taken += records
            taken_bytes += sum([size(record) for record in records])
        if not taken and not has_ended:
            await asyncio.sleep(timeout_ms / 1000)
        return taken

    def offset_next(self, partition: int) -> int:
        """Returns the offset after the last record returned; the end of the archive when there are no more records."""
        return self._offsets_next[partition]

    @property
    def interruptions(self) -> int:
        """Always 0: an archive does not change while it is read."""
        return 0

    def pause(self, partitions: Collection[int]) -> None:
        """Pause exactly these topic-partitions from now on, and resume all others."""
        self._paused = frozenset(partitions)

    async def close(self) -> None:
        """Close the open files."""
        self._records.clear()


def _ranges(folder: Path) -> tuple[list[_Range], list[bytes]]:
    """Returns all ranges in order, and the SHA-256 of each file. Raises `ConfigurationError`, also for a folder without any range."""
    ranges: list[_Range] = []
    digests: list[bytes] = []
    for number, file in enumerate(sorted((folder / "ranges").glob("*.json")), 1):
        if file.name != f"{number:08}.json":
            raise ConfigurationError(f"range {number:08}.json is missing in {folder / 'ranges'}, although {file.name} is there")
        try:
            with open_regular(file) as opened:
                content = opened.read()
            version = msgspec.json.decode(content, type=_Version).archive_version
            if version != ARCHIVE_VERSION:
                raise ConfigurationError(f"{file} has archive version {version}, and this software reads {ARCHIVE_VERSION}")
            ranges.append(msgspec.json.decode(content, type=_Range))
            digests.append(sha256(content).digest())
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise ConfigurationError(f"{file} cannot be read: {problem}") from None
        if ranges[-1].payload_partitions < ranges[max(0, number - 2)].payload_partitions:
            raise ConfigurationError(f"{file} has fewer payload partitions than the range before it: it is of another log")
    if not ranges:
        raise ConfigurationError(f"{folder} is no archive: there is no ranges/00000001.json")
    return ranges, digests
