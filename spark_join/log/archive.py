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

Only files that a range lists are read, so what a crash left behind is harmless, and goes when `archive` runs again. What is there of a
later range than the last may be of one that is lost. In each partition the first range begins at offset 0, and each one where the last
ended; an archive that has less than its ranges say is not read at all.

Of a log that is read from some offsets on, the files that end before them are left alone, and of the others those records.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.errors import CouldNotVerify
from spark_join.log.archived_files import what_is_wrong
from spark_join.log.log import Log, Place, records_since

ARCHIVE_VERSION: Final = 2
COLUMNS: Final = "offset bigint, append_time_ms bigint, key binary, value binary, partition int"
_TOPICS = ("ordering", "payload")
_IS_RANGE: Final = re.compile(r"[0-9]{8}\.json").fullmatch
_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
PARTITIONS_MAX: Final = 100_000
"""Of a topic; more than any cluster has."""


class ArchivedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file: a partition's records from `offset_first` up to `offset_end`, exclusive."""

    path: Annotated[str, msgspec.Meta(pattern=r"^[a-z]+/partition=[0-9]+/\w[\w.-]*\.parquet$")]
    """From the archive's folder on."""
    topic: Literal["ordering", "payload"]
    partition: _Offset
    offset_first: _Offset
    offset_end: _Offset
    records: _Offset
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]

    @property
    def place(self) -> Place:
        """The partition that it is of."""
        return self.topic, self.partition


class _Version(msgspec.Struct, frozen=True):
    archive_version: int


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was archived at once."""

    archive_version: int
    payload_partitions: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]
    """Of the topic, which may get more of them"""
    files: list[ArchivedFile]
    """One of each partition that has grown"""


def read_archive(session: SparkSession, archive: Path, since: Mapping[Place, int] | None = None) -> Log:
    """The archived log, after all files that are read have been compared with the ranges. Raises `CouldNotVerify`.

    Of a partition that `since` names, what is before that offset is left out.
    """
    since = since or {}
    ranges = read_ranges(archive)
    listed = [file for each in ranges for file in each.files]
    ends = ends_of(listed, ranges[-1].payload_partitions)
    files = [file for file in listed if file.offset_end > since.get(file.place, -1)]
    _refuse_other_files(session, archive, files)
    topics = {topic: _read(session, archive, topic, [file for file in files if file.topic == topic]) for topic in _TOPICS}
    ordering, payload = (records_since(topics[topic], topic, since) for topic in _TOPICS)
    return Log(ordering, payload, ranges[-1].payload_partitions, ends, partial(_at, topics))


def _at(topics: Mapping[str, DataFrame], places: Mapping[Place, int]) -> DataFrame:
    """See `Log`. Folders are of partitions and files know their offsets, so Spark opens those that have them."""
    of_topic = {topic: [(partition, offset) for (of, partition), offset in places.items() if of == topic] for topic in topics}
    wanted = {topic: " OR ".join([f"(partition = {each} AND offset = {at})" for each, at in of]) for topic, of in of_topic.items()}
    ordering, payload = (records.where(wanted[topic] or "false").withColumn("topic", F.lit(topic)) for topic, records in topics.items())
    return ordering.unionByName(payload)


def read_ranges(archive: Path, *, new: bool = False) -> list[Range]:
    """All ranges in their order. Raises `CouldNotVerify`, for an archive without any too, unless it may be `new`."""
    ranges: list[Range] = []
    found_files = sorted((archive / "ranges").glob("*.json"))
    for stranger in [file for file in found_files if not _IS_RANGE(file.name)]:
        raise CouldNotVerify(f"{stranger} is no range, which is called like 00000001.json: take it out of the archive")
    for number, file in enumerate(found_files, 1):
        if file.name != f"{number:08}.json":
            raise CouldNotVerify(f"{archive}: range {number} is missing, and {file.name} is there")
        try:
            content = file.read_bytes()
            version = msgspec.json.decode(content, type=_Version).archive_version
            if version != ARCHIVE_VERSION:
                raise CouldNotVerify(f"{file} has archive version {version}, and this software reads {ARCHIVE_VERSION}: use a newer one")
            found = msgspec.json.decode(content, type=Range)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise CouldNotVerify(f"{file} cannot be read: {problem}") from None
        if ranges and found.payload_partitions < ranges[-1].payload_partitions:
            raise CouldNotVerify(
                f"{file} has fewer payload partitions than the range before it, and a topic only gets more: it is another log"
            )
        ranges.append(found)
    if not ranges and not new:
        raise CouldNotVerify(f"{archive} is no archive: there is no ranges/00000001.json")
    return ranges


def ends_of(files: list[ArchivedFile], payload_partitions: int) -> dict[Place, int]:
    """Where the next range begins in each partition.

    Raises `CouldNotVerify` unless each file begins where the one before it ended, lies where its partition does, and is one of a kind.
    """
    paths: set[str] = set()
    ends: dict[Place, int] = {("ordering", 0): 0, **{("payload", partition): 0 for partition in range(payload_partitions)}}
    for file in files:
        place = file.place
        if place not in ends:
            raise CouldNotVerify(f"{file.path} is of a partition that the archive does not have")
        if file.offset_first != ends[place] or file.offset_end < file.offset_first:
            raise CouldNotVerify(
                f"{file.path} begins at offset {file.offset_first} of {file.topic} partition {file.partition},"
                f" and what was archived before it ends at {ends[place]}: a range is missing or there twice"
            )
        if file.path in paths or not file.path.startswith(f"{file.topic}/partition={file.partition}/"):
            raise CouldNotVerify(
                f"{file.path} is listed as of {file.topic} partition {file.partition}, and lies elsewhere or is listed twice"
            )
        if file.records > file.offset_end - file.offset_first >= 0:
            raise CouldNotVerify(
                f"{file.path} is said to hold {file.records} records from offset {file.offset_first} up to {file.offset_end}: too many"
            )
        paths.add(file.path)
        ends[place] = file.offset_end
    return ends


def unlisted(archive: Path) -> str | None:
    """Which Parquet files of an archive no range lists, as a sentence; None where there are none."""
    listed = {file.path for each in read_ranges(archive) for file in each.files}
    there = {str(file.relative_to(archive)) for topic in _TOPICS for file in archive.glob(f"{topic}/partition=*/*.parquet")}
    if not (names := sorted(there - listed)):
        return None
    return (
        f"no range lists {len(names)} of the files in {archive}, {names[0]} first: an interrupted run left them there, or the last ranges"
        " are gone"
    )


def _read(session: SparkSession, archive: Path, topic: str, files: list[ArchivedFile]) -> DataFrame:
    if not files:
        return session.createDataFrame([], COLUMNS)
    paths = [str(archive / file.path) for file in files]
    return session.read.schema(COLUMNS).option("basePath", str(archive / topic)).parquet(*paths)


def _refuse_other_files(session: SparkSession, archive: Path, files: list[ArchivedFile]) -> None:
    """Hold all these files against what their ranges say, where the executors read them, each once."""

    def held(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            problems = [what_is_wrong(archive, **row) for row in batch.to_pylist()]
            yield pa.RecordBatch.from_arrays([batch.column("path"), pa.array(problems, pa.string())], names=["path", "problem"])

    said = [(file.path, file.sha256, file.records, file.offset_first, file.offset_end) for file in files]
    listed = session.createDataFrame(said, "path string, sha256 string, records bigint, offset_first bigint, offset_end bigint")
    spread = listed.repartition(max(1, min(len(files), 2 * session.sparkContext.defaultParallelism)))
    wrong = spread.mapInArrow(held, "path string, problem string").where(F.col("problem").isNotNull())
    if first := wrong.orderBy("path").head():
        raise CouldNotVerify(first.problem)
