"""The join: from the two topics to the requests that are to be decided, in their order (R2, R3, R5 to R7)."""

from collections.abc import Mapping

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join import contents, order, ordering_records, positions
from spark_join.constants import FORMAT_VERSION
from spark_join.errors import CouldNotVerify
from spark_join.stages import Stages


class Log(msgspec.Struct, frozen=True):
    """What is read: partition, offset, append_time_ms, key and value of each topic's records."""

    ordering: DataFrame
    payload: DataFrame
    notary_name: str
    payload_partitions: int


class Joined(msgspec.Struct, frozen=True):
    """What the log asks, up to its first hole."""

    requests: DataFrame
    """First occurrences: position, offset, ordinal, log_time_ms, id, inputs, references, from_ms, until_ms"""
    checkpoints: DataFrame
    """offset, incarnation, tree_size, root, counted (see `order.Order`); those behind a hole too"""
    entries: DataFrame
    """Those that count, see `order.Order`"""
    unreadable: DataFrame
    faults: DataFrame
    """See `contents.Contents`."""
    records: DataFrame
    """The ordering topic as `ordering_records.parse` gives it"""
    offset_hole: int | None
    """Of the first entry that counts and has no content; nothing from there on is decided"""


def join(log: Log, keys: Mapping[str, str] | None, stages: Stages) -> Joined:
    """Read the whole log. `keys` as in `contents.read_contents`. Raises `CouldNotVerify` for a log of a newer format."""
    records = stages.keep("ordering records", ordering_records.parse(log.ordering))
    _refuse_newer(records)
    judged = order.judge(records, log.payload_partitions)
    entries = stages.keep("entries that count", contents.with_places(judged.entries, log.payload))
    (hole,) = entries.where(F.col("content_offset").isNull()).agg(F.min("offset").alias("offset")).collect()
    if hole.offset is not None:
        entries = entries.where(F.col("offset") < hole.offset)
    read = contents.split(stages.keep("contents", contents.read_contents(entries, log.payload, log.notary_name, keys)))
    firsts = stages.keep("first occurrences", positions.with_positions(positions.first_occurrences(read.requests)))
    return Joined(firsts, judged.checkpoints, entries, read.unreadable, read.faults, records, hole.offset)


def _refuse_newer(records: DataFrame) -> None:
    (newer,) = (
        records.where(F.col("format_version") > FORMAT_VERSION).agg(F.min(F.struct("offset", "format_version")).alias("first")).collect()
    )
    if newer.first is not None:
        raise CouldNotVerify(
            f"ordering record {newer.first.offset} activates format version {newer.first.format_version}, and this software reads"
            f" {FORMAT_VERSION}: verify with a newer version"
        )
