"""Taking what a log has grown by into its archive, as further ranges (`archive` says what an archive is, `slices` what goes into which).

Executors write a file for each partition, and read it back; the driver then holds it against the range, since a folder that they do not
share is whole to each of them. Its name is of this run alone, so that nobody writes over it. The range is the last thing that is written
of it, and it is there whole or not at all, before the next one begins: a crash leaves the ranges that are done, from which the next run
goes on, and files that no range lists, which it removes. Of two runs at once the one that is later with its range gives up: a range is
never written over either.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from spark_join.engine.durable import sync_folder
from spark_join.errors import CouldNotVerify
from spark_join.log.archive import ARCHIVE_VERSION, ArchivedFile, Range, ends_of, read_ranges
from spark_join.log.archived_files import Written, what_is_wrong, write_files, write_nothing
from spark_join.log.client import Admin, Bounds, Kafka
from spark_join.log.copies import RECORD, Digest, Digester, digests
from spark_join.log.kafka import log_bounds, read_records
from spark_join.log.log import ORDERING, Place
from spark_join.log.slices import offsets_in, slices
from spark_join.order.rotations import refuse_no_genesis

RANGE_RECORDS_MAX: Final = 200_000
"""Some gigabytes, with payloads of 64 KB; a busy notary takes minutes to write them."""
PAYLOAD_LEAD_MS: Final = 60_000
"""How much later a payload than its entry may be appended, or by clocks that do not agree, and still be in the same range."""
_DIGITS: Final = "[0-9]" * 8
"""A range's number, as the names of all its files begin."""


class Archived(msgspec.Struct, frozen=True):
    """A range that was added."""

    range: int
    """Its number"""
    records: int
    gaps: dict[str, int]
    """Offsets without a record, by partition: what a transaction leaves, and the notary makes none"""
    offsets_left: int
    """How many are behind it, up to where the log ended when the run began"""


def archive(
    session: SparkSession,
    kafka: Kafka,
    folder: Path,
    told: Callable[[str], None],
    range_records_max: int = RANGE_RECORDS_MAX,
) -> Iterator[Archived]:
    """Archive what is new in both topics, up to where they end when the first range is asked for. A range is archived when it is asked for;
    there is none where nothing is new. `told` hears which stage begins. Raises `CouldNotVerify`.
    """
    told("offsets")
    ranges = read_ranges(folder, new=True)
    with Admin(session, kafka) as admin:
        bounds = log_bounds(admin, kafka)
        _refuse_fewer_partitions(folder, ranges, kafka, len(bounds) - 1)
        files = [file for each in ranges for file in each.files]
        starts = ends_of(files, len(bounds) - 1)
        told("what is archived already")
        _refuse_other_log(session, kafka, folder, files, starts, bounds)
        _remove(folder, f"{_DIGITS}-*", {folder / file.path for file in files}, len(ranges))
        wanted = {place: Bounds(starts[place], bound.offset_end) for place, bound in bounds.items()}
        left = offsets_in(wanted)
        if left and not ranges:
            told("genesis record")
            _refuse_no_genesis(session, kafka, bounds[ORDERING])
        parts = slices(wanted, range_records_max, lambda offset: _payload_ends(session, kafka, admin, offset, wanted[ORDERING].offset_end))
        for number, part in enumerate(parts, len(ranges) + 1):
            left -= offsets_in(part)
            listed = _write_range(session, kafka, folder, number, Range(ARCHIVE_VERSION, len(bounds) - 1, []), part, told)
            gaps = {f"{file.topic} {file.partition}": file.offset_end - file.offset_first - file.records for file in listed}
            yield Archived(number, sum(file.records for file in listed), {place: count for place, count in gaps.items() if count}, left)


def _payload_ends(session: SparkSession, kafka: Kafka, admin: Admin, offset: int, offset_end: int) -> dict[Place, int]:
    """Where the payload partitions were some time after the ordering topic was at `offset`; only those that have gone on since."""
    if offset == offset_end:
        return {}
    first = read_records(session, kafka, {ORDERING: Bounds(offset, offset_end)}).select("append_time_ms").head()
    found = {} if first is None else admin.offsets_at(kafka.payload, first.append_time_ms + PAYLOAD_LEAD_MS)
    return {("payload", partition): offset for partition, offset in found.items()}


def _refuse_fewer_partitions(folder: Path, ranges: list[Range], kafka: Kafka, payload_partitions: int) -> None:
    if ranges and ranges[-1].payload_partitions > payload_partitions:
        raise CouldNotVerify(
            f"{folder} is of a log with {ranges[-1].payload_partitions} payload partitions, and {kafka.payload} has {payload_partitions}:"
            " it is another log"
        )


def _refuse_no_genesis(session: SparkSession, kafka: Kafka, bounds: Bounds) -> None:
    """Raise `CouldNotVerify` where the ordering topic does not begin with a genesis record."""
    there = {ORDERING: Bounds(0, 1)} if bounds.offset_first < bounds.offset_end else {}
    first = read_records(session, kafka, there).select("value").head() if there else None
    refuse_no_genesis(None if first is None or first.value is None else bytes(first.value))


def _refuse_other_log(
    session: SparkSession,
    kafka: Kafka,
    folder: Path,
    files: list[ArchivedFile],
    starts: Mapping[Place, int],
    bounds: Mapping[Place, Bounds],
) -> None:
    """Hold the last record that is archived of each partition against the log."""
    lasts: dict[Place, ArchivedFile] = {file.place: file for file in files if file.records}
    tails = {place: _last_record(folder / file.path) for place, file in lasts.items()}
    for place, bound in bounds.items():
        where = f"{kafka.prefix}.{place[0]} partition {place[1]}"
        if bound.offset_end < starts[place]:
            raise CouldNotVerify(
                f"{where} ends at offset {bound.offset_end}, and it is archived up to {starts[place]}: it lost its end, or is another log."
                " The archive has what is missing: restore it"
            )
        kept_from = tails[place].offset_last if place in tails else 0
        if kept_from is not None and bound.offset_first > kept_from:
            raise CouldNotVerify(
                f"{where} begins at offset {bound.offset_first}, and offset {kept_from} would tell whether it goes on where the archive"
                " ends: what is deleted cannot be archived, nor be known to be the same log"
            )
    there = {place: Bounds(tail.offset_last, tail.offset_last + 1) for place, tail in tails.items() if tail.offset_last is not None}
    found = digests(read_records(session, kafka, there)) if there else {}
    for place, tail in tails.items():
        if found.get(place) != tail:
            raise CouldNotVerify(
                f"offset {tail.offset_last} of {kafka.prefix}.{place[0]} partition {place[1]} is not the record that is archived: it is"
                " another log, or it was cut and has grown again. Name another folder with --archive, and find out which of the two it is"
            )


def _last_record(file: Path) -> Digest:
    digester = Digester()
    try:
        with pq.ParquetFile(file) as parquet:
            table = parquet.read_row_group(parquet.num_row_groups - 1, columns=list(RECORD))
    except (OSError, ValueError) as problem:
        raise CouldNotVerify(f"{file} cannot be read: {problem}") from None
    digester.add(table.slice(table.num_rows - 1))
    return digester.digest()


def _write_range(
    session: SparkSession,
    kafka: Kafka,
    folder: Path,
    number: int,
    empty: Range,
    wanted: Mapping[Place, Bounds],
    told: Callable[[str], None],
) -> list[ArchivedFile]:
    """Write one more range, which is `empty` so far, of the records that are `wanted`; its files."""
    ranges = folder / "ranges"
    ranges.mkdir(parents=True, exist_ok=True)
    # Nobody else's file has this name, on whichever machine: all that this run writes is called after it.
    descriptor, name = tempfile.mkstemp(prefix=f"{number:08}-", suffix=".tmp", dir=ranges)
    temporary, range_ = Path(name), ranges / f"{number:08}.json"
    try:
        os.fchmod(descriptor, 0o644)  # a temporary file is for its maker alone, and the range for whoever verifies
        with open(descriptor, "wb") as file:
            told(f"records of range {number}")
            written = write_files(read_records(session, kafka, wanted), folder, temporary.stem)
            # Offsets may hold no record at all. Who reads them is told of those that are not there any more.
            written |= {place: write_nothing(folder, temporary.stem, place) for place in wanted if place not in written}
            listed = [_listed(kafka, place, bound, written[place]) for place, bound in wanted.items()]
            told(f"range {number}")
            _refuse_unseen(folder, listed)
            made = msgspec.json.encode(msgspec.structs.replace(empty, files=listed))
            file.write(msgspec.json.format(made, indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        # A crash before this leaves files that nobody reads; after it, the range.
        os.link(temporary, range_)
        sync_folder(ranges)
    except BaseException as problem:
        if not _is_taken_by(range_, temporary):
            _remove(folder, f"{temporary.stem}*", set(), number)
            if range_.exists():
                raise CouldNotVerify(f"somebody else has archived {range_} meanwhile, and that stands: start again") from problem
        raise
    _remove(folder, f"{number:08}-*", {folder / file.path for file in listed}, number)
    return listed


def _refuse_unseen(folder: Path, listed: list[ArchivedFile]) -> None:
    """Hold the files against what the range is going to say, here, where the executors that wrote them need not be."""
    for file in listed:
        if problem := what_is_wrong(folder, file.path, file.sha256, file.records, file.offset_first, file.offset_end):
            raise CouldNotVerify(
                f"{problem}, where the driver looks. Who wrote it has read it back: all executors and the driver must reach the archive, by"
                " the same name"
            )


def _listed(kafka: Kafka, place: Place, bound: Bounds, written: Written) -> ArchivedFile:
    """The file of a partition, if it holds what was asked for."""
    where = f"{kafka.prefix}.{place[0]} partition {place[1]}"
    found = written.digest
    if found.offset_first is not None and found.offset_last is not None:
        inside = bound.offset_first <= found.offset_first <= found.offset_last < bound.offset_end
        if not inside or found.records > found.offset_last - found.offset_first + 1:
            raise CouldNotVerify(f"{where} was asked for offsets {bound.offset_first} up to {bound.offset_end}, and gave {found}")
    return ArchivedFile(written.path, place[0], place[1], bound.offset_first, bound.offset_end, found.records, written.sha256)  # type: ignore[arg-type]


def _is_taken_by(range_: Path, temporary: Path) -> bool:
    """Whether the range is this run's. The other run may have removed ours already, as what a crash left."""
    return range_.exists() and temporary.exists() and range_.samefile(temporary)


def _remove(folder: Path, names: str, keep: Set[Path], last: int) -> None:
    """Remove what runs have left behind, by the names of their files, of ranges up to the `last` one; later ones may be being written."""
    for file in [*folder.glob(f"*/partition=*/{names}"), *folder.glob(f"ranges/{names}.tmp")]:
        if file not in keep and int(file.name[:8]) <= last:
            file.unlink(missing_ok=True)
