"""The part of a log up to some ordering record: all that deciding the rest of it takes, and no more.

Everything up to `offsets_next` of the ordering topic is applied, nothing from there on. What the rules need of that part:

| rule | what is carried over |
|---|---|
| R2, R5, R6, R9 | carry: all incarnations, how many payload partitions are declared, the log time |
| R3 | orphans: payload records of each key that an entry may still name, one of each value |
| R10 | identity: the log id, all keys that were in force. carry: how many records took effect, the last 2^16 histories, the last settle |
| R7 | the ids that are decided, how many, and who consumed which state |
| R9 | the hash of every leaf, since a checkpoint may come late and name any size, and the roots of full chunks (`tree`) |

A log of format version 2 is not read, so the active versions need no place here. `ids`, `consumed`, `hashes` and `chunks` grow with the log
and only by rows; `carry` and `orphans` are written anew.
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
    """The last record of a partition that was read; a partition that was cut and has grown again has another one there."""

    offset: int
    sha256: str
    """See `last_records`"""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a log that is applied. Without one it is the start of any log (`start`)."""

    identity: Identity | None = None
    offsets_next: Mapping[Place, int] = {}
    """Where to read on, in each partition; nothing for the start."""
    last_records: Mapping[Place, LastRecord] = {}
    """Of each partition that has one: of the ordering topic the last that was applied"""
    carry: bytes = b""
    """See `effects.Carry`; nothing for the start"""
    decided: int = 0
    root: bytes = ROOT_OF_NOTHING
    signatures_checked: bool = True
    """Of all submissions"""
    ids: DataFrame
    """id of each decision, whatever its outcome"""
    consumed: DataFrame
    """state, and consumed_by: the SHA-256 of the id"""
    hashes: DataFrame
    """position and hash of each leaf"""
    chunks: DataFrame
    """size and hash: the root of each full chunk by itself, and where it ends"""
    orphans: DataFrame
    """Payload records"""

    @property
    def since(self) -> dict[Place, int]:
        """From which offset on a log has to be read to be decided further; `join.rest_of` looks at the last records, and drops them."""
        return {**self.offsets_next, **{place: last.offset for place, last in self.last_records.items()}}


def start(session: SparkSession) -> State:
    """Before the first record."""
    empty = {name: _empty(session, schema) for name, schema in (GROWING | STANDING).items()}
    return State(
        ids=empty["ids"],
        consumed=empty["consumed"],
        hashes=empty["hashes"],
        chunks=empty["chunks"],
        orphans=empty["orphans"],
    )


def _empty(session: SparkSession, schema: str) -> DataFrame:
    # Not from an empty list: of this one Spark knows beforehand that it is empty, and leaves out what is joined with it.
    columns = [column.split() for column in schema.split(", ")]
    return session.range(0).select(*[F.lit(None).cast(type_).alias(name) for name, type_ in columns])
