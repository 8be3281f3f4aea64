"""Which ordering records count (R2, R5), and the log time of those that do (R6), as windows over the whole topic.

The rules are told record by record; of a complete log they can be said all at once:

- A life begins at the first register record of its nonce, and its incarnation is the ordinal of that record.
- It ends at the next life of its name, or at the first fence whose `sequence` is the highest of the life's entries before it, if that is
  earlier. A fence that does not compare changes nothing, and what comes after the first one that does cannot change it any more.
- So within a life an entry counts if its sequence is higher than those of all its entries before, whether they counted or not: the highest
  of all is the highest of those that counted. Entries for a partition that does not exist are as if they were not there.
"""

import msgspec
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_join.constants import SENT_AT_AHEAD_MAX_MS
from spark_join.engine.octets import u64
from spark_join.engine.running import before
from spark_join.engine.stages import Stages

_NO_SEQUENCE = bytes(8)


class Order(msgspec.Struct, frozen=True):
    """What the ordering topic says by itself."""

    lives: DataFrame
    """incarnation (8 bytes), nonce, name, offset_first, offset_end (null while it goes on), reached (8 bytes): the highest sequence of an
    earlier one that counted before these records, else null"""
    entries: DataFrame
    """Those that count if no hole is before them: offset, incarnation, sequence, reached (the highest sequence of the life before it),
    partition, count, ids_digest, append_time_ms, log_time_ms"""
    checkpoints: DataFrame
    """offset, incarnation, tree_size (8 bytes), root, counted: whether its life had begun and had not ended"""


def judge(records: DataFrame, payload_partitions: int, earlier: DataFrame, log_time_ms: int, stages: Stages) -> Order:
    """`records` as `ordering_records.parse` gives them. The `earlier` lives and the log time are those of the `State` before them."""
    begun = _begun(records.where(F.col("kind") == "register"), earlier)
    spoken = _within(
        records.where((F.col("kind") == "fence") | (F.col("kind") == "entry") & (F.col("partition") < payload_partitions)), begun
    ).select("offset", "incarnation", "sequence", "kind")
    # What a life had reached before these records stands where it began.
    had_reached = begun.where(F.col("reached").isNotNull()).select(
        F.col("offset_first").alias("offset"), "incarnation", F.col("reached").alias("sequence"), F.lit("reached").alias("kind")
    )
    spoken = spoken.union(had_reached)
    sequence = F.when(F.col("kind") != "fence", F.col("sequence"))
    reached = before(spoken, "reached", sequence, "max", "offset", ["incarnation"]).withColumn(
        "reached", F.coalesce("reached", F.lit(_NO_SEQUENCE))
    )
    reached = stages.keep("sequences reached", reached)
    fenced = (
        reached.where((F.col("kind") == "fence") & (F.col("sequence") == F.col("reached")))
        .groupBy("incarnation")
        .agg(F.min("offset").alias("fenced"))
    )
    lives = begun.join(fenced, "incarnation", "left").withColumn("offset_end", F.least("offset_end", "fenced")).drop("fenced")
    counting = (
        reached.where((F.col("kind") == "entry") & (F.col("sequence") > F.col("reached")))
        .join(fenced, "incarnation", "left")
        .where(F.col("fenced").isNull() | (F.col("offset") < F.col("fenced")))
        .select("offset", "reached")
    )
    entries = records.join(counting, "offset").select(
        "offset", "incarnation", "sequence", "reached", "partition", "count", "ids_digest", "append_time_ms", _held_back().alias("_time")
    )
    entries = before(entries, "_reached", F.col("_time"), "max", "offset")
    checkpoints = records.where(F.col("kind") == "checkpoint").join(
        lives.select("incarnation", "offset_first", "offset_end"), "incarnation", "left"
    )
    return Order(
        lives,
        entries.withColumn("log_time_ms", F.greatest("_reached", "_time", F.lit(log_time_ms))).drop("_reached", "_time"),
        checkpoints.select("offset", "incarnation", "tree_size", "root", F.coalesce(_is_within(), F.lit(False)).alias("counted")),
    )


def _begun(registers: DataFrame, earlier: DataFrame) -> DataFrame:
    """Lives, as long as no fence ends them. All registrations are in one task: there are as many as workers were ever started."""
    none = F.lit(None)
    told = registers.select(
        "nonce", "name", F.col("offset").alias("offset_first"), none.cast("bigint").alias("ended"), none.cast("binary").alias("reached")
    ).union(earlier.select("nonce", "name", "offset_first", "offset_end", "reached"))
    firsts = told.groupBy("nonce").agg(
        F.min("offset_first").alias("offset_first"),
        *[F.min_by(each, "offset_first").alias(each) for each in ("name", "ended", "reached")],
    )
    ordinal = F.row_number().over(Window.partitionBy(F.lit(0)).orderBy("offset_first"))
    next_of_name = F.lead("offset_first").over(Window.partitionBy("name").orderBy("offset_first"))
    return firsts.select(
        u64(ordinal.cast("bigint")).alias("incarnation"),
        "nonce",
        "name",
        "offset_first",
        F.least("ended", next_of_name).alias("offset_end"),
        "reached",
    )


def _within(records: DataFrame, lives: DataFrame) -> DataFrame:
    """Records of lives that have begun and have not ended where the record stands."""
    return records.join(lives, "incarnation").where(_is_within())


def _is_within() -> Column:
    return (F.col("offset") > F.col("offset_first")) & (F.col("offset_end").isNull() | (F.col("offset") < F.col("offset_end")))


def _held_back() -> Column:
    """min(append time, sent_at + 60 s); a sum that no long holds is later than any append time."""
    limit = F.try_add(F.col("sent_at_ms"), F.lit(SENT_AT_AHEAD_MAX_MS))
    return F.least("append_time_ms", F.coalesce(limit, F.col("append_time_ms")))
