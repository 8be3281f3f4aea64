"""From the state before a log's records, and what became of these, to the state behind them."""

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join.constants import COMMITTED, KEY_BYTES
from spark_join.engine.octets import part, sha256
from spark_join.engine.stages import Stages
from spark_join.join import Joined
from spark_join.log.log import ORDERING, Log, Place
from spark_join.state.last_records import last_records
from spark_join.state.state import State

_NO_SEQUENCE = bytes(8)


class Decided(msgspec.Struct, frozen=True):
    """What was made of the requests of `Joined`."""

    count: int
    """Of all decisions, those of the earlier part too"""
    root: bytes
    """Over all of them"""
    decisions: DataFrame
    """See `decide.decide`"""
    hashes: DataFrame
    """See `tree.hashed`"""
    chunks: DataFrame
    """See `tree.full_chunks`"""


def state_after(state: State, log: Log, joined: Joined, decided: Decided, stages: Stages, *, signatures: bool) -> State:
    """The state at the end of `log`, or at its first hole. Of the tables that grow it has only what came to those of `state`."""
    offset_next = log.offsets_end[ORDERING] if joined.offset_hole is None else joined.offset_hole
    lives = stages.keep("lives", _lives(joined, offset_next))
    (log_time,) = joined.entries.agg(F.max("log_time_ms").alias("ms")).collect()
    committed = decided.decisions.where(F.col("outcome") == COMMITTED).select("position")
    consumers = joined.requests.join(committed, "position", "left_semi").sort("position")
    return State(
        notary_name=log.notary_name,
        payload_partitions=log.payload_partitions,
        offsets_next={**log.offsets_end, ORDERING: offset_next},
        last_records={**state.last_records, **last_records(log, _last_offsets(joined, offset_next))},
        log_time_ms=state.log_time_ms if log_time.ms is None else log_time.ms,
        decided=decided.count,
        root=decided.root,
        signatures_checked=state.signatures_checked and signatures,
        ids=decided.decisions.sort("position").select("id"),
        # One after the other, the inputs of a transaction cost its 32 bytes once: zstd finds them again.
        consumed=consumers.select(F.explode("inputs").alias("state"), sha256(F.col("id")).alias("consumed_by")),
        hashes=decided.hashes.sort("position"),
        chunks=decided.chunks,
        lives=lives.drop("incarnation"),
        orphans=_orphans(joined, lives, stages),
    )


def _lives(joined: Joined, offset_next: int) -> DataFrame:
    """Lives that began before that ordering offset, as they were there."""
    highest = joined.entries.groupBy("incarnation").agg(F.max("sequence").alias("highest"))
    ended = F.when(F.col("offset_end") < offset_next, F.col("offset_end"))
    reached = F.when(ended.isNull(), F.coalesce("highest", "reached", F.lit(_NO_SEQUENCE)))
    begun = joined.lives.where(F.col("offset_first") < offset_next).join(highest, "incarnation", "left")
    return begun.select("incarnation", "nonce", "name", "offset_first", ended.alias("offset_end"), reached.alias("reached"))


def _last_offsets(joined: Joined, offset_next: int) -> dict[Place, int]:
    """Of the last record of each partition; of those that have none here nothing."""
    judged = joined.records.where(F.col("offset") < offset_next).select(
        F.lit("ordering").alias("topic"), F.lit(0).alias("partition"), "offset"
    )
    read = joined.places.where(~F.col("is_orphan")).select(F.lit("payload").alias("topic"), "partition", "offset")
    rows = judged.union(read).groupBy("topic", "partition").agg(F.max("offset").alias("offset")).collect()
    return {(row.topic, row.partition): row.offset for row in rows}


def _orphans(joined: Joined, lives: DataFrame, stages: Stages) -> DataFrame:
    """The first record of each key that an entry may still name: of a life that goes on and has not come so far, or that has not begun."""
    keyed = joined.places.where(F.length("key") == KEY_BYTES).select(
        "partition", "offset", "key", part(F.col("key"), 0, 8).alias("incarnation"), part(F.col("key"), 8, 8).alias("sequence")
    )
    has_begun = lives.select("incarnation", "offset_end", "reached", F.lit(True).alias("has_begun"))
    waits = F.col("has_begun").isNull() | (F.col("offset_end").isNull() & (F.col("sequence") > F.col("reached")))
    waiting = keyed.join(has_begun, "incarnation", "left").where(waits)
    firsts = stages.keep("orphans", waiting.groupBy("partition", "key").agg(F.min("offset").alias("offset")).drop("key"))
    (lowest,) = firsts.agg(F.min("offset").alias("offset")).collect()
    # Files know which offsets they have, so the values of most are not read again.
    return joined.payload.where(F.col("offset") >= F.lit(lowest.offset)).join(firsts, ["partition", "offset"], "left_semi")
