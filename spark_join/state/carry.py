"""Computes the state after a log's records, from the state before them and their decisions."""

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join.constants import COMMITTED, KEY_BYTES
from spark_join.engine.octets import part, sha256, u64
from spark_join.engine.stages import Stages
from spark_join.join import Joined
from spark_join.log.log import ORDERING, Log, Place
from spark_join.order.effects import carry_of
from spark_join.order.identity import Identity
from spark_join.state.last_records import last_records
from spark_join.state.state import State


class Decided(msgspec.Struct, frozen=True):
    """The decisions on the requests of `Joined`, and the tree over them."""

    count: int
    """Number of all decisions, those of the earlier part included"""
    root: bytes
    """The root over all of them"""
    decisions: DataFrame
    """See `decide.decide`"""
    hashes: DataFrame
    """See `tree.hashed`"""
    chunks: DataFrame
    """See `tree.full_chunks`"""


def state_after(state: State, log: Log, joined: Joined, decided: Decided, stages: Stages, *, signatures: bool) -> State:
    """Returns the state at the end of `log`, or at its first hole. Its growing tables have only the rows that are new since `state`."""
    offset_next = log.offsets_end[ORDERING] if joined.offset_hole is None else joined.offset_hole
    committed = decided.decisions.where(F.col("outcome") == COMMITTED).select("position")
    consumers = joined.requests.join(committed, "position", "left_semi").sort("position")
    return State(
        identity=_up_to(joined.identity, offset_next),
        offsets_next={**log.offsets_end, ORDERING: offset_next},
        last_records={**state.last_records, **last_records(log, _last_offsets(joined, offset_next))},
        carry=joined.carry,
        decided=decided.count,
        root=decided.root,
        signatures_checked=state.signatures_checked and signatures,
        ids=decided.decisions.sort("position").select("id"),
        # Sorted, the inputs of a transaction are neighbours, so zstd stores their common 32 bytes about once.
        consumed=consumers.select(F.explode("inputs").alias("state"), sha256(F.col("id")).alias("consumed_by")),
        hashes=decided.hashes.sort("position"),
        chunks=decided.chunks,
        orphans=_orphans(joined, stages),
    )


def _up_to(identity: Identity, offset_next: int) -> Identity:
    """Returns `identity` without the keys that `key` records behind the hole put in force: the next run reads those again."""
    known = tuple([each for each in identity.notary_keys if each[0] <= offset_next])
    return msgspec.structs.replace(identity, notary_keys=known)


def _last_offsets(joined: Joined, offset_next: int) -> dict[Place, int]:
    """Returns the offset of the last record of each partition; partitions without new records are left out."""
    applied = joined.records.where(F.col("offset") < offset_next).select(
        F.lit("ordering").alias("topic"), F.lit(0).alias("partition"), "offset"
    )
    read = joined.places.where(~F.col("is_orphan")).select(F.lit("payload").alias("topic"), "partition", "offset")
    rows = applied.union(read).groupBy("topic", "partition").agg(F.max("offset").alias("offset")).collect()
    return {(row.topic, row.partition): row.offset for row in rows}


def _orphans(joined: Joined, stages: Stages) -> DataFrame:
    """Returns the payload records under each key that an entry may still name, the first record of each value.

    Such a key belongs to an incarnation that has not begun, or to one that has not ended and has not reached the sequence.
    """
    keyed = joined.places.where(F.length("key") == KEY_BYTES).select(
        "partition",
        "offset",
        "key",
        "value_hash",
        part(F.col("key"), 0, 8).alias("incarnation"),
        part(F.col("key"), 8, 8).alias("sequence"),
    )
    begun = [(number, each.over, each.reached) for number, each in enumerate(carry_of(joined.carry).incarnations, 1)]
    schema = "number bigint, over boolean, reached binary"
    incarnations = joined.places.sparkSession.createDataFrame(begun, schema).withColumn("incarnation", u64(F.col("number")))
    waits = F.col("over").isNull() | (~F.col("over") & (F.col("sequence") > F.col("reached")))
    waiting = keyed.join(incarnations, "incarnation", "left").where(waits & F.col("value_hash").isNotNull())
    firsts = waiting.groupBy("partition", "key", "value_hash").agg(F.min("offset").alias("offset")).drop("key", "value_hash")
    kept = stages.keep("orphans", firsts)
    (lowest,) = kept.agg(F.min("offset").alias("offset")).collect()
    # Spark skips files with lower offsets by their footers, so most values are not read again.
    return joined.payload.where(F.col("offset") >= F.lit(lowest.offset)).join(kept, ["partition", "offset"], "left_semi")
