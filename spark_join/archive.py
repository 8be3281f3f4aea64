"""Both topics as Parquet files, in ranges that were archived one after the other.

    <archive>/ranges/00000001.json                          what the first range holds
    <archive>/ordering/partition=0/00000001-<run>.parquet   its records
    <archive>/payload/partition=<n>/00000001-<run>.parquet

| column | type |
|---|---|
| offset | i64, rising |
| append_time_ms | i64 |
| key | binary or null |
| value | binary or null |

Only files that a range lists are read, so what a crash left behind is harmless. In each partition the first range begins at offset 0, and
each one where the last ended; an archive that has less than its ranges say is not read at all.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.errors import CouldNotVerify
from spark_join.join import Log

ARCHIVE_VERSION: Final = 1
Place = tuple[str, int]
"""`ordering` or `payload`, and a partition."""
COLUMNS: Final = "offset bigint, append_time_ms bigint, key binary, value binary, partition int"
_BLOCK_BYTES = 1 << 20


class ArchivedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file: a partition's records from `offset_first` up to `offset_end`, exclusive."""

    path: str
    """From the archive's folder on."""
    topic: Literal["ordering", "payload"]
    partition: int
    offset_first: int
    offset_end: int
    records: int
    sha256: str


class _Version(msgspec.Struct, frozen=True):
    archive_version: int


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was archived at once."""

    archive_version: int
    notary: str
    payload_partitions: int
    files: list[ArchivedFile]


def read_archive(session: SparkSession, archive: Path) -> Log:
    """The archived log, after all files have been held against the ranges. Raises `CouldNotVerify`."""
    ranges = read_ranges(archive)
    files = [file for each in ranges for file in each.files]
    ends_of(files, ranges[0].payload_partitions)
    _refuse_other_bytes(session, archive, files)
    topics = {topic: _read(session, archive, [file for file in files if file.topic == topic]) for topic in ("ordering", "payload")}
    _refuse_other_counts(topics, files)
    return Log(topics["ordering"], topics["payload"], ranges[0].notary, ranges[0].payload_partitions)


def read_ranges(archive: Path, *, new: bool = False) -> list[Range]:
    """All ranges in their order. Raises `CouldNotVerify`, for an archive without any too, unless it may be `new`."""
    ranges: list[Range] = []
    for number, file in enumerate(sorted((archive / "ranges").glob("*.json")), 1):
        if file.name != f"{number:08}.json":
            raise CouldNotVerify(f"{archive}: range {number} is missing, and {file.name} is there")
        try:
            content = file.read_bytes()
            version = msgspec.json.decode(content, type=_Version).archive_version
            if version != ARCHIVE_VERSION:
                raise CouldNotVerify(f"{file} has archive version {version}, and this software reads {ARCHIVE_VERSION}: use a newer one")
            found = msgspec.json.decode(content, type=Range)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as problem:
            raise CouldNotVerify(f"{file} cannot be read: {problem}") from None
        if ranges and (found.notary, found.payload_partitions) != (ranges[0].notary, ranges[0].payload_partitions):
            raise CouldNotVerify(f"{file} is of another notary than the first range, or counts its partitions otherwise")
        ranges.append(found)
    if not ranges and not new:
        raise CouldNotVerify(f"{archive} is no archive: there is no ranges/00000001.json")
    return ranges


def ends_of(files: list[ArchivedFile], payload_partitions: int) -> dict[Place, int]:
    """Where the next range begins in each partition. Raises `CouldNotVerify` unless each file begins where the one before it ended."""
    ends: dict[Place, int] = {("ordering", 0): 0, **{("payload", partition): 0 for partition in range(payload_partitions)}}
    for file in files:
        place = file.topic, file.partition
        if place not in ends:
            raise CouldNotVerify(f"{file.path} is of a partition that the archive does not have")
        if file.offset_first != ends[place] or file.offset_end < file.offset_first:
            raise CouldNotVerify(
                f"{file.path} begins at offset {file.offset_first} of {file.topic} partition {file.partition},"
                f" and what was archived before it ends at {ends[place]}: a range is missing or there twice"
            )
        ends[place] = file.offset_end
    return ends


def _refuse_other_bytes(session: SparkSession, archive: Path, files: list[ArchivedFile]) -> None:
    """Hash all files, where the executors read them."""

    def hashed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = []
            for path in batch.column("path").to_pylist():
                digest = sha256()
                try:
                    with open(archive / path, "rb") as file:
                        while block := file.read(_BLOCK_BYTES):
                            digest.update(block)
                    found.append(digest.hexdigest())
                except OSError as problem:
                    found.append(f"nothing that can be read ({problem.strerror})")
            yield pa.RecordBatch.from_arrays([batch.column("path"), pa.array(found)], names=["path", "found"])

    listed = session.createDataFrame([(file.path, file.sha256) for file in files], "path string, sha256 string")
    spread = listed.select("path").repartition(min(len(files), 2 * session.sparkContext.defaultParallelism))
    other = spread.mapInArrow(hashed, "path string, found string").join(listed, "path").where(F.col("found") != F.col("sha256"))
    if first := other.orderBy("path").head():
        raise CouldNotVerify(f"{archive / first.path}: its range says SHA-256 {first.sha256}, and there is {first.found}")


def _read(session: SparkSession, archive: Path, files: list[ArchivedFile]) -> DataFrame:
    topic = archive / files[0].topic
    paths = [str(archive / file.path) for file in files]
    return session.read.schema(COLUMNS).option("basePath", str(topic)).parquet(*paths)


def _refuse_other_counts(topics: dict[str, DataFrame], files: list[ArchivedFile]) -> None:
    for topic, records in topics.items():
        counted = records.groupBy("partition").agg(
            F.count("*").alias("records"), F.min("offset").alias("first"), F.max("offset").alias("last")
        )
        found = {row.partition: row for row in counted.collect()}
        for partition in sorted({file.partition for file in files if file.topic == topic}):
            told = [file for file in files if (file.topic, file.partition) == (topic, partition)]
            wanted, row = sum(file.records for file in told), found.get(partition)
            if wanted != (row.records if row else 0) or (
                row and not told[0].offset_first <= row["first"] <= row["last"] < told[-1].offset_end
            ):
                raise CouldNotVerify(f"the files of {topic} partition {partition} hold {row}, and their ranges say {wanted} records")
