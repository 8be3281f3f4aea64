"""The archive: both topics as Parquet files, in ranges that were archived one after the other.

    <archive>/ranges/00000001.json                          the files of the first range
    <archive>/ordering/partition=0/00000001-<run>.parquet   its records
    <archive>/payload/partition=<n>/00000001-<run>.parquet

| column | type |
|---|---|
| offset | i64, rising |
| append_time_ms | i64 |
| key | binary or null |
| value | binary or null |

Only files that a range lists are read. So files that a crash left behind are harmless, and the next run of `archive` removes them. An
unlisted file with a higher number than the last range may belong to a range that is lost. If it has records that the ranges lack, `archive`
moves it to the folder `aside`. In each partition the first range begins at offset 0, and each later one where the one before it ended. An
archive that has less than its ranges list is not read at all.

A reader that starts at some offsets does not open the files that end before them, and drops the earlier records of the others.
"""

import re
from collections.abc import Mapping
from functools import partial, reduce
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.engine.columns import frame_of, results_of
from spark_join.engine.files import read_files
from spark_join.errors import CouldNotVerify
from spark_join.log import ORDERING, LogFrames, TopicPartition, records_since
from spark_join.log.files import ArchivedFile, fault_of_file, open_regular

ARCHIVE_VERSION: Final = 2
COLUMNS: Final = "offset bigint, append_time_ms bigint, key binary, value binary, partition int"
_TOPICS = ("ordering", "payload")
_IS_RANGE: Final = re.compile(r"[0-9]{8}\.json").fullmatch
ASIDE: Final = "aside"
"""The folder for files that no range lists, and that have records which the ranges do not have."""
PARTITIONS_MAX: Final = 100_000
"""Partitions of a topic; more than any cluster has."""


class _Version(msgspec.Struct, frozen=True):
    archive_version: int


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The records that were archived together, as files."""

    archive_version: int
    payload_partitions: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]
    """Partitions of the payload topic at that time; it may get more of them"""
    files: list[ArchivedFile]
    """One file for each partition that had grown"""


def read_archive(session: SparkSession, archive: Path, since: Mapping[TopicPartition, int] | None = None) -> LogFrames:
    """Returns the archived log, after its files have been compared with the ranges. Raises `CouldNotVerify`.

    In a partition that `since` names, records before that offset are left out, and files that end before it are not compared.
    """
    since = since or {}
    ranges = read_ranges(archive)
    listed = [file for each in ranges for file in each.files]
    ends = ends_of(listed, ranges[-1].payload_partitions)
    files = [file for file in listed if file.offset_end > since.get(file.topic_partition, -1)]
    _refuse_other_files(session, archive, files)
    topics = {topic: _read(session, archive, topic, [file for file in files if file.topic == topic]) for topic in _TOPICS}

    def at(topic_partitions: Mapping[TopicPartition, int]) -> DataFrame:
        # Folder names have the partition and footers the offsets, so Spark reads only the files that have the records.
        wanted = {topic: ["false"] for topic in _TOPICS}
        for (topic, partition), offset in topic_partitions.items():
            wanted[topic].append(f"(partition = {partition} AND offset = {offset})")
        found = [topics[topic].where(" OR ".join(wanted[topic])).withColumn("topic", F.lit(topic)) for topic in _TOPICS]
        return reduce(DataFrame.unionByName, found)

    ordering, payload = (records_since(topics[topic], topic, since) for topic in _TOPICS)
    return LogFrames(ordering, payload, ends, at)


def read_ranges(archive: Path, *, new: bool = False) -> list[Range]:
    """Returns all ranges in their order. Raises `CouldNotVerify`; also for an archive without ranges, unless it may be `new`."""
    ranges: list[Range] = []
    found_files = sorted((archive / "ranges").glob("*.json"))
    for stranger in [file for file in found_files if not _IS_RANGE(file.name)]:
        raise CouldNotVerify(f"{stranger} is no range, which is called like 00000001.json: take it out of the archive")
    for number, file in enumerate(found_files, 1):
        if file.name != f"{number:08}.json":
            raise CouldNotVerify(f"{archive}: range {number} is missing, and {file.name} is there")
        try:
            with open_regular(file) as opened:
                content = opened.read()
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


class ArchivedRanges(msgspec.Struct, frozen=True):
    """The first ranges of an archive: their number, and the SHA-256 over the SHA-256 of each of their files `ranges/*.json`."""

    ranges: int
    sha256: str


def first_ranges(archive: Path, ranges: int | None = None) -> ArchivedRanges:
    """Returns the first `ranges` ranges, or all. They list the hash of each Parquet file. Raises `CouldNotVerify`."""
    count = len(read_ranges(archive)) if ranges is None else ranges
    try:
        contents = [(archive / "ranges" / f"{number:08}.json").read_bytes() for number in range(1, count + 1)]
    except OSError as problem:
        raise CouldNotVerify(f"{archive} has no {count} ranges: {problem}") from None
    return ArchivedRanges(count, sha256(b"".join([sha256(content).digest() for content in contents])).hexdigest())


def ends_of(files: list[ArchivedFile], payload_partitions: int) -> dict[TopicPartition, int]:
    """Returns the offset at which the next range begins in each partition.

    Raises `CouldNotVerify` unless each file begins where the one before it ended, lies in its partition's folder, and is listed once.
    """
    paths: set[str] = set()
    ends: dict[TopicPartition, int] = {ORDERING: 0, **{("payload", partition): 0 for partition in range(payload_partitions)}}
    for file in files:
        topic_partition = file.topic_partition
        if topic_partition not in ends:
            raise CouldNotVerify(f"{file.path} is of a partition that the archive does not have")
        if file.offset_first != ends[topic_partition] or file.offset_end < file.offset_first:
            raise CouldNotVerify(
                f"{file.path} begins at offset {file.offset_first} of {file.topic} partition {file.partition},"
                f" and what was archived before it ends at {ends[topic_partition]}: a range is missing or there twice"
            )
        if file.path in paths or not file.path.startswith(f"{file.topic}/partition={file.partition}/"):
            raise CouldNotVerify(
                f"{file.path} is listed as of {file.topic} partition {file.partition}, and lies elsewhere or is listed twice"
            )
        if file.records > file.offset_end - file.offset_first >= 0:
            raise CouldNotVerify(
                f"{file.path} is listed with {file.records} records from offset {file.offset_first} up to {file.offset_end}: too many"
            )
        paths.add(file.path)
        ends[topic_partition] = file.offset_end
    return ends


def unlisted(archive: Path) -> str | None:
    """Returns a sentence about the Parquet files of an archive that no range lists; None if there are none."""
    listed = {file.path for each in read_ranges(archive) for file in each.files}
    folders = [f"{above}{topic}" for above in ("", f"{ASIDE}/") for topic in _TOPICS]
    there = {str(file.relative_to(archive)) for each in folders for file in archive.glob(f"{each}/partition=*/*.parquet")}
    if not (names := sorted(there - listed)):
        return None
    return (
        f"no range lists {len(names)} of the files in {archive}, {names[0]} first: an interrupted run left them there, or the last ranges"
        " are gone"
    )


def _read(session: SparkSession, archive: Path, topic: str, files: list[ArchivedFile]) -> DataFrame:
    if not files:
        return frame_of(session, [], COLUMNS)
    return read_files(session, COLUMNS, [archive / file.path for file in files], archive / topic)


def _refuse_other_files(session: SparkSession, archive: Path, files: list[ArchivedFile]) -> None:
    """Compare all these files with their ranges, each once, on the executors. Raises `CouldNotVerify` for the first that differs."""
    in_order = sorted(files, key=lambda file: file.path)
    for problem in results_of(session, partial(fault_of_file, archive), in_order, tasks_a_core=2):
        if problem is not None:
            raise CouldNotVerify(problem)
