"""The state of a log at some ordering offset: everything that deciding the rest of the log needs, and no more.

All ordering records before `offsets_next` are applied, and none from there on. The rules need this from the part before:

| rule | state |
|---|---|
| R2, R5, R6, R9 | carry: all incarnations, the declared number of payload partitions, the log time |
| R3 | orphans: payload records under each key that an entry may still name, one of each value |
| R10 | identity: the log id, all keys ever in force. carry: the number of records in effect, the last 2^16 histories, the last settle |
| R7 | the ids that are decided, their number, and the transaction that consumed each consumed state |
| R9 | the hash of every leaf, since a checkpoint may come late and name any size, and the roots of full chunks (`tree`) |

This software does not read a log of format version 2, so the active versions are not kept. `ids`, `consumed`, `hashes` and `chunks` grow
with the log, only by new rows; each run writes `carry` and `orphans` anew.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.decisions.tree import ROOT_OF_NOTHING
from spark_join.log.log import Place
from spark_join.order.identity import Identity

GROWING: Final = {
    "ids": "id binary",
    "consumed": "state binary, consumed_by binary",
    "hashes": "position bigint, hash binary",
    "chunks": "size bigint, hash binary",
}
STANDING: Final = {
    "orphans": "offset bigint, append_time_ms bigint, key binary, value binary, partition int",
}


class LastRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last record that was read of a partition. A partition that was truncated and has grown again has another record there."""

    offset: int
    sha256: str
    """SHA-256 in hex: see `last_records`"""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a log that is applied; without `identity` it is the start of any log (`start`)."""

    identity: Identity | None = None
    offsets_next: Mapping[Place, int] = {}
    """The offset at which to read on, by partition; empty for the start."""
    last_records: Mapping[Place, LastRecord] = {}
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

    @property
    def since(self) -> dict[Place, int]:
        """The offset from which a run that continues has to read, by partition.

        It includes the last records: `join.rest_of` compares and then drops them.
        """
        return {**self.offsets_next, **{place: last.offset for place, last in self.last_records.items()}}


def start(session: SparkSession) -> State:
    """Returns the state before the first record of any log."""
    empty = {name: _empty(session, schema) for name, schema in (GROWING | STANDING).items()}
    return State(
        ids=empty["ids"],
        consumed=empty["consumed"],
        hashes=empty["hashes"],
        chunks=empty["chunks"],
        orphans=empty["orphans"],
    )


def _empty(session: SparkSession, schema: str) -> DataFrame:
    # Not made from an empty list: Spark would know at planning time that it is empty, and drop what is joined with it.
    columns = [column.split() for column in schema.split(", ")]
    return session.range(0).select(*[F.lit(None).cast(type_).alias(name) for name, type_ in columns])
