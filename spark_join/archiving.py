"""Adds the new records of a log to its archive, as further ranges (`archive` defines an archive).

Executors write a file for each partition, and read it back. The driver then compares it with the range, since an executor cannot detect
that it writes to another folder than the driver's. Each run has its own file names, so no run overwrites another's file. A range is written
atomically, after its files and before the next range begins. So a crash leaves complete ranges, from which the next run continues, and
unlisted files, which it removes. It keeps those with records that the archive lacks: their range may be lost. If two runs overlap, the one
that writes its range later gives up: a range is never overwritten.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_join.engine.files import sync_file, sync_folder
from spark_join.errors import CouldNotVerify
from spark_join.log import ORDERING, TopicPartition, describe
from spark_join.log.archive import ARCHIVE_VERSION, ASIDE, Range, ends_of, read_ranges
from spark_join.log.client import Kafka
from spark_join.log.files import RECORD, UNFINISHED, ArchivedFile, Digest, digest_of, fault_of_file, has_copies, write_file
from spark_join.log.kafka import Admin, OffsetRange, read_log_offsets
from spark_join.log.reading import digests, records_at, results_by_partition
from spark_join.order.ordering_records import refuse_no_genesis

PAYLOAD_LEAD_MS: Final = 60_000
"""The most by which a payload's append time may be after its entry's, clock differences included, for both to be in the same range."""
_DIGITS: Final = "[0-9]" * 8
"""A pattern for the number of a range, with which the names of all its files begin."""


class Archived(msgspec.Struct, frozen=True):
    """A range that was added."""

    range: int
    records: int
    gaps: dict[str, int]
    """Offsets without a record, by partition. Kafka transactions leave such offsets, and the notary makes none"""
    offsets_left: int
    """Offsets after this range, up to the log end when the run began"""


def archive(
    session: SparkSession,
    kafka: Kafka,
    folder: Path,
    on_stage: Callable[[str], None],
    range_records_max: int,
) -> Iterator[Archived]:
    """Archives the new records of both topics, up to the log end at the time of the first `next`; each `next` archives one range.

    Yields nothing if there is nothing new. Calls `on_stage` with the name of each stage. Raises `CouldNotVerify`.
    """
    on_stage("offsets")
    ranges = read_ranges(folder, new=True)
    admin = Admin(kafka)
    log_offsets = read_log_offsets(admin, kafka)
    payload_partitions = len(log_offsets) - 1
    if ranges and ranges[-1].payload_partitions > payload_partitions:
        raise CouldNotVerify(
            f"{folder} is of a log with {ranges[-1].payload_partitions} payload partitions, and {kafka.payload} has {payload_partitions}:"
            " it is another log. Name another folder with --archive"
        )
    files = [file for each in ranges for file in each.files]
    starts = ends_of(files, payload_partitions)
    on_stage("what is archived already")
    _refuse_other_log(session, kafka, folder, files, starts, log_offsets)
    _tidy(folder, f"{_DIGITS}-*", files, len(ranges))
    wanted = {each: OffsetRange(starts[each], offset_range.offset_end) for each, offset_range in log_offsets.items()}
    left = offsets_in(wanted)
    if left and not ranges:
        on_stage("genesis record")
        ordering = log_offsets[ORDERING]
        is_empty = ordering.offset_first == ordering.offset_end
        refuse_no_genesis(None if is_empty else records_at(session, kafka, {ORDERING: 0}))
    parts = slices(wanted, range_records_max, lambda offset: _payload_ends(session, kafka, admin, offset, wanted))
    for number, part in enumerate(parts, len(ranges) + 1):
        left -= offsets_in(part)
        listed = _write_range(session, kafka, folder, number, payload_partitions, part, on_stage)
        files += listed
        _tidy(folder, f"{number:08}-*", files, number)
        missing = {f"{file.topic} {file.partition}": file.offset_end - file.offset_first - file.records for file in listed}
        gaps = {each: count for each, count in missing.items() if count}
        yield Archived(number, sum(file.records for file in listed), gaps, left)


def _payload_ends(
    session: SparkSession, kafka: Kafka, admin: Admin, offset: int, wanted: Mapping[TopicPartition, OffsetRange]
) -> dict[TopicPartition, int]:
    """Returns the end of the payload partitions `PAYLOAD_LEAD_MS` after the record at `offset` of the ordering topic.

    Partitions that have no later record are left out, and those added since `wanted`. So are those for which brokers return an earlier
    record: they look for a time among the offsets that records claim.
    """
    if offset == wanted[ORDERING].offset_end:
        return {}
    first = records_at(session, kafka, {ORDERING: offset}).select("append_time_ms").head()
    if first is None:
        return {}
    until_ms = first.append_time_ms + PAYLOAD_LEAD_MS
    ends = {
        ("payload", partition): end
        for partition, end in admin.offsets_at(kafka.payload, until_ms).items()
        if (range_ := wanted.get(("payload", partition))) is not None and end < range_.offset_end
    }
    if not ends:
        return {}
    late = records_at(session, kafka, ends).where(F.col("append_time_ms") >= until_ms).select("topic", "partition").collect()
    return {(row.topic, row.partition): ends[row.topic, row.partition] for row in late}


def _refuse_other_log(
    session: SparkSession,
    kafka: Kafka,
    folder: Path,
    files: list[ArchivedFile],
    starts: Mapping[TopicPartition, int],
    log_offsets: Mapping[TopicPartition, OffsetRange],
) -> None:
    """Compare the last archived record of each partition with the log. Raises `CouldNotVerify` if they differ, or if the log lost it."""
    lasts: dict[TopicPartition, ArchivedFile] = {file.topic_partition: file for file in files if file.records}
    tails = {topic_partition: _last_record(folder, file) for topic_partition, file in lasts.items()}
    for topic_partition, offset_range in log_offsets.items():
        where = describe(topic_partition, kafka.prefix)
        if offset_range.offset_end < starts[topic_partition]:
            raise CouldNotVerify(
                f"{where} ends at offset {offset_range.offset_end}, and it is archived up to {starts[topic_partition]}: it lost its end, or"
                " is another log. The archive has what is missing: restore it"
            )
        kept_from = tails[topic_partition].offset_last if topic_partition in tails else 0
        if kept_from is not None and offset_range.offset_first > kept_from:
            raise CouldNotVerify(
                f"{where} begins at offset {offset_range.offset_first}, and offset {kept_from} would show whether it continues the archive:"
                " that record was deleted, so nothing is archived"
            )
    offsets = {each: tail.offset_last for each, tail in tails.items() if tail.offset_last is not None}
    found = digests(session, kafka, {each: OffsetRange(offset, offset + 1) for each, offset in offsets.items()})
    for topic_partition, tail in tails.items():
        if found.get(topic_partition) != tail:
            raise CouldNotVerify(
                f"offset {tail.offset_last} of {describe(topic_partition, kafka.prefix)} is not the record that is archived: it is"
                " another log, or it was cut and has grown again. Name another folder with --archive, and find out which of the two it is"
            )


def _last_record(folder: Path, file: ArchivedFile) -> Digest:
    """Returns the digest of the last record of a file that has records. Raises `CouldNotVerify` if the file is not its range's."""
    if problem := fault_of_file(folder, file):
        raise CouldNotVerify(f"{problem}. Nothing is archived until the file is what it was: take it from a copy of the archive")
    try:
        with pq.ParquetFile(folder / file.path) as parquet:
            table = parquet.read_row_group(parquet.num_row_groups - 1, columns=list(RECORD))
    except (OSError, ValueError) as problem_:
        raise CouldNotVerify(f"{folder / file.path} cannot be read: {problem_}") from None
    return digest_of([table.slice(table.num_rows - 1)])


def _write_range(
    session: SparkSession,
    kafka: Kafka,
    folder: Path,
    number: int,
    payload_partitions: int,
    wanted: Mapping[TopicPartition, OffsetRange],
    on_stage: Callable[[str], None],
) -> list[ArchivedFile]:
    """Write one more range with the records that are `wanted`; return its files."""
    ranges = folder / "ranges"
    ranges.mkdir(parents=True, exist_ok=True)
    # This file name is unique, on any machine: the names of all files that this run writes begin with it.
    descriptor, name = tempfile.mkstemp(prefix=f"{number:08}-", suffix=".tmp", dir=ranges)
    temporary, range_ = Path(name), ranges / f"{number:08}.json"
    try:
        os.fchmod(descriptor, 0o644)  # mkstemp lets only the owner read, but any user may verify
        with open(descriptor, "wb") as file:
            on_stage(f"records of range {number}")
            listed = _write_files(session, kafka, wanted, folder, temporary.stem)
            on_stage(f"range {number}")
            _refuse_unseen(folder, listed)
            made = msgspec.json.encode(Range(ARCHIVE_VERSION, payload_partitions, listed))
            file.write(msgspec.json.format(made, indent=1) + b"\n")
            sync_file(file)
        # A crash before this leaves files that no range lists; after it, the complete range.
        os.link(temporary, range_)
        sync_folder(ranges)
    except BaseException as problem:
        if not _is_taken_by(range_, temporary):
            _remove(folder, f"{temporary.stem}*", number)
            if range_.exists():
                raise CouldNotVerify(f"somebody else has archived {range_} meanwhile, and nothing is replaced: start again") from problem
        raise
    return listed


def _write_files(
    session: SparkSession, kafka: Kafka, wanted: Mapping[TopicPartition, OffsetRange], folder: Path, run: str
) -> list[ArchivedFile]:
    """Write a file with the records of each partition between `wanted` offsets, in the task that reads them.

    A file has none if its offsets have none; if records were deleted, reading fails. A task keeps one batch of records in memory. The names
    of the files begin with `run`. Raises `CouldNotVerify` for a file that cannot be written, or that reads back otherwise.
    """

    def write(topic_partition: TopicPartition, batches: Iterator[pa.RecordBatch]) -> ArchivedFile | str:
        context = TaskContext.get()
        try:
            # A second attempt of a task writes another file.
            name = f"{run}-{context.taskAttemptId() if context else 0}"
            return write_file(folder, name, topic_partition, wanted[topic_partition], batches)
        except OSError as problem:
            return str(problem)

    listed: list[ArchivedFile] = []
    for topic_partition, result in results_by_partition(session, kafka, wanted, write).items():
        if isinstance(result, str):
            raise CouldNotVerify(f"{describe(topic_partition)} cannot be archived: {result}")
        listed.append(result)
    return listed


def _refuse_unseen(folder: Path, listed: list[ArchivedFile]) -> None:
    """Compare the files with the coming range on the driver, which may be another machine than the executors that wrote them."""
    for file in listed:
        if problem := fault_of_file(folder, file):
            raise CouldNotVerify(
                f"{problem}, as the driver sees it. The executor that wrote it has read it back: all executors and the driver must reach"
                " the archive, by the same name"
            )


def _is_taken_by(range_: Path, temporary: Path) -> bool:
    """Returns True if the range is this run's. Another run may have removed our temporary file already, as a leftover of a crash."""
    return range_.exists() and temporary.exists() and range_.samefile(temporary)


def _remove(folder: Path, names: str, last: int, keep: Set[Path] = frozenset()) -> None:
    """Remove leftover files that match `names`, of ranges up to the `last` one: another run may be writing later ones."""
    for file in [*folder.glob(f"*/partition=*/{names}"), *folder.glob(f"ranges/{names}.tmp")]:
        if file not in keep and int(file.name[:8]) <= last:
            file.unlink(missing_ok=True)


def _tidy(folder: Path, names: str, listed: Sequence[ArchivedFile], last: int) -> None:
    """Remove leftover files as `_remove` does, but keep those that are `listed`, and move those with other records to `aside/`.

    The range that listed such a file may be lost, and the log may have lost its records too. Then the file is their only copy.
    """
    keep = {folder / file.path for file in listed}
    for file in sorted(folder.glob(f"*/partition=*/{names}")):
        of = str(file.parent.relative_to(folder))
        copies = [(folder / each.path, each.offset_first, each.offset_end) for each in listed if each.path.startswith(f"{of}/")]
        is_complete = file.suffix != UNFINISHED
        if is_complete and file not in keep and int(file.name[:8]) <= last and not has_copies(file, copies):
            (folder / ASIDE / of).mkdir(parents=True, exist_ok=True)
            file.rename(folder / ASIDE / of / file.name)
    _remove(folder, names, last, keep)


def slices(
    wanted: Mapping[TopicPartition, OffsetRange], records_max: int, payload_ends: Callable[[int], Mapping[TopicPartition, int]]
) -> Iterator[dict[TopicPartition, OffsetRange]]:
    """Yields the offsets of each part, in the order in which the parts are to be archived, without partitions that are empty in it.

    `payload_ends` returns the ends of the payload partitions for an ordering offset, at the time of that record or a little later. So after
    any part the archive is the log at some time, with the content of each entry, or with a hole at its end. In the other order, entries
    without content would look like lost payloads, and workers that replay them would fill them.

    A part has at most `records_max` offsets, or up to one more in each partition. A division by time makes parts of unequal size, so parts
    are planned half as large. If one is too large nevertheless, its payloads come before its entries, in separate parts.
    """
    offsets = {topic_partition: offset_range.offset_first for topic_partition, offset_range in wanted.items()}
    count = 1 if offsets_in(wanted) <= records_max else -(-2 * offsets_in(wanted) // records_max)
    for number in range(count):
        entries = _part(wanted[ORDERING], number, count)
        ends = {} if number == count - 1 else payload_ends(entries.offset_end)
        payload = {
            each: OffsetRange(offsets[each], max(offsets[each], min(offset_range.offset_end, ends.get(each, offset_range.offset_end))))
            for each, offset_range in wanted.items()
            if each != ORDERING
        }
        offsets |= {each: offset_range.offset_end for each, offset_range in payload.items()}
        together = {ORDERING: entries, **payload}
        if offsets_in(together) <= records_max:
            parts = [together]
        else:
            pieces = -(-offsets_in(payload) // records_max)
            parts = [{each: _part(offset_range, piece, pieces) for each, offset_range in payload.items()} for piece in range(pieces)]
            parts.append({ORDERING: entries})
        for part in parts:
            if offsets_in(part):
                yield {each: offset_range for each, offset_range in part.items() if offset_range.offset_first < offset_range.offset_end}


def offsets_in(log_offsets: Mapping[TopicPartition, OffsetRange]) -> int:
    """Returns the number of offsets in all partitions together."""
    return sum([offset_range.offset_end - offset_range.offset_first for offset_range in log_offsets.values()])


def _part(offset_range: OffsetRange, number: int, count: int) -> OffsetRange:
    """Returns part `number` (from 0) of `count` parts of about the same size."""
    length = offset_range.offset_end - offset_range.offset_first
    return OffsetRange(offset_range.offset_first + length * number // count, offset_range.offset_first + length * (number + 1) // count)
