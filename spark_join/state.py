"""The state of a log at some ordering offset: everything that deciding the rest of the log needs, and no more.

All ordering records before `offsets_next` are applied, and none from there on. The rules need this from the part before:

| rule | state |
|---|---|
| R2, R5, R6, R9 | carry: all incarnations, the declared number of payload partitions, the log time |
| R11 | carry: the active format versions, the last `key` record, whether records of workers count; nothing of an open salvage |
| R3 | orphans: payload records under each key that an entry may still name, one of each value |
| R10 | identity: the log id, all keys ever in force. carry: the number of records in effect, the last 2^16 histories, the last settle |
| R7 | the ids that are decided, their number, and the transaction that consumed each consumed state |
| R9 | the hash of every leaf, since a checkpoint may come late and name any size, and the roots of full chunks (`tree`) |

Positions that a salvage restored without their decision have a null among the ids. `ids`, `consumed`, `hashes` and `chunks` grow
with the log, only by new rows; each run writes `carry` and `orphans` anew.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.constants import ROOT_OF_NOTHING
from spark_join.engine.columns import frame_of, part, u64
from spark_join.engine.files import PREFIX_BYTES
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.identity import Identity
from spark_join.log import LogFrames, TopicPartition, describe, records_since

GROWING: Final = {
    "ids": "id binary",
    "consumed": "state binary, consumed_by binary",
    "hashes": "position bigint, hash binary",
    "chunks": "size bigint, hash binary",
}
STANDING: Final = {
    "orphans": "offset bigint, append_time_ms bigint, key binary, value binary, partition int",
}


Find = Callable[[str, str, Stages], DataFrame]
"""(table, the stage with the wanted prefixes, stages) -> the rows that begin with one of the prefixes."""


class LastRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last record that was read of a partition. If the partition was truncated and has grown again, it has another record there."""

    offset: int
    sha256: str
    """SHA-256 in hex: see `last_records`"""


class AppliedState(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a log that is applied; without `identity` it is the start of any log (`start`)."""

    identity: Identity | None = None
    offsets_next: Mapping[TopicPartition, int] = {}
    """The offset at which to read on, by partition; empty for the start."""
    last_records: Mapping[TopicPartition, LastRecord] = {}
    """The last record of each partition that has one; of the ordering topic, the last that was applied"""
    carry: bytes = b""
    """`effects.Carry`, encoded; empty for the start"""
    decided: int = 0
    root: bytes = ROOT_OF_NOTHING
    signatures_checked: bool = True
    """True if the signatures of all submissions were checked"""
    ids: DataFrame
    """Column: id, of each decision, whatever its outcome"""
    consumed: DataFrame
    """Columns: state, and consumed_by, the SHA-256 of the id"""
    hashes: DataFrame
    """Columns: position and hash of each leaf"""
    chunks: DataFrame
    """Columns: size, the end of a full chunk, and hash, the root of that chunk alone"""
    orphans: DataFrame
    """Payload records that an entry may still name"""
    find: Find | None = None
    """Finds rows of `ids` and `consumed` in the files of a state that was kept; None for one in memory"""

    def among(self, table: str, keys: DataFrame, stages: Stages, what: str) -> DataFrame:
        """Returns the rows of `ids` or `consumed` whose key is in `keys` (one binary column), and perhaps others.

        `what` names the stages.
        """
        frame: DataFrame = getattr(self, table)
        if self.find is None:
            return frame
        asked = f"{what} asked for"
        stages.keep(asked, keys.select(part(F.col(keys.columns[0]), 0, PREFIX_BYTES).alias("prefix")))
        return self.find(table, asked, stages).select(*frame.columns)

    @property
    def since(self) -> dict[TopicPartition, int]:
        """The offset from which a run that continues has to read, by partition.

        It includes the last records: `rest_of` compares and then drops them.
        """
        return {**self.offsets_next, **{topic_partition: last.offset for topic_partition, last in self.last_records.items()}}


def start(session: SparkSession) -> AppliedState:
    """Returns the state before the first record of any log."""
    return AppliedState(**{name: frame_of(session, [], schema) for name, schema in (GROWING | STANDING).items()})  # type: ignore[arg-type]


def last_records(log: LogFrames, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, LastRecord]:
    """Returns the `LastRecord` of the records of `log` at these `offsets`, one a partition; missing records are left out.

    The SHA-256 is over

        i64 offset ‖ i64 append time ‖ i64 length of the key ‖ key ‖ i64 length of the value ‖ value

    with length -1 for a missing key or value. All numbers are big-endian.
    """
    if not offsets:
        return {}
    octets = F.concat(u64(F.col("offset")), u64(F.col("append_time_ms")), *_length_and_value("key"), *_length_and_value("value"))
    rows = log.at(offsets).select("topic", "partition", "offset", F.sha2(octets, 256).alias("sha256")).collect()
    return {(row.topic, row.partition): LastRecord(row.offset, row.sha256) for row in rows}


def _length_and_value(name: str) -> tuple[Column, Column]:
    length = F.coalesce(F.length(name), F.lit(-1)).cast("bigint")
    return u64(length), F.coalesce(name, F.lit(b""))


def rest_of(log: LogFrames, state: AppliedState) -> LogFrames:
    """Returns the part of `log` that comes after `state`; `log` was read from `state.since` on.

    Raises `CouldNotVerify` if it is another log than the state's, or has lost records of it.
    """
    if not state.offsets_next:
        return log
    for topic_partition, offset in sorted(state.offsets_next.items()):
        if (end := log.log_end_offsets.get(topic_partition, 0)) < offset:
            raise CouldNotVerify(
                f"{describe(topic_partition)} ends at offset {end}, and the earlier run had read it up to {offset}:"
                " a part of the log is gone, or this is another log"
            )
    found = last_records(log, {topic_partition: last.offset for topic_partition, last in state.last_records.items()})
    for topic_partition, last in sorted(state.last_records.items()):
        if found.get(topic_partition) != last:
            raise CouldNotVerify(
                f"offset {last.offset} of {describe(topic_partition)}, the last record of it that the earlier run had read, is not what"
                " it was: this is another log, or it was truncated and has grown again; verify it from its start, without --checkpoint-from"
            )
    ordering, payload = (
        records_since(of, topic, state.offsets_next) for topic, of in (("ordering", log.ordering), ("payload", log.payload))
    )
    return msgspec.structs.replace(log, ordering=ordering, payload=payload)
