"""`sequence-gap`: something is gone that was in the log (docs/spark.md, Sequence gaps).

Two kinds of numbers in the log have no gap as long as nothing is lost:

- **A life numbers its batches 1, 2, 3, …** Its producer is idempotent and has one request on its way in each partition. Kafka refuses the
  next one when one before it is missing, so an append that fails is the last of its life. Among the entries of a life that count, then,
  none is passed over, whatever crashed.
- **Kafka numbers the records of a partition 0, 1, 2, …** and these topics are never compacted.

A gap in a life where the offsets show that records are gone is not told besides.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_join.engine.running import before


def sequence_gaps(entries: DataFrame, records: DataFrame, payload: DataFrame, edges: DataFrame) -> DataFrame:
    """offset (of the ordering topic; null for the payload topic), found, expected: what is passed over in lives and in partitions.

    `entries` are those that count, with offset, incarnation, sequence and reached, the highest of its life before (8 bytes each); `records`
    the ordering topic, with offset; `payload` the payload topic, with partition and offset; `edges` (topic, partition, offset) stand where
    each partition that was read begins and ends, and are no records.
    """
    at = {topic: edges.where(F.col("topic") == topic).select("partition", "offset") for topic in ("ordering", "payload")}
    ordering = _gaps(records.select(F.lit(0).alias("partition"), "offset").union(at["ordering"]))
    told = _told(ordering, F.col("first"), F.lit("the ordering topic"))
    payload_partition = F.concat(F.lit("payload partition "), F.col("partition").cast("string"))
    told = told.union(
        _told(_gaps(payload.select("partition", "offset").union(at["payload"])), F.lit(None).cast("bigint"), payload_partition)
    )
    return told.union(_in_lives(entries, ordering))


def _gaps(records: DataFrame) -> DataFrame:
    """partition, first, last: the offsets that are not there between two that are."""
    counted = records.groupBy("partition").agg((F.max("offset") - F.min("offset") + 1 - F.count("*")).alias("missing"))
    suspect = counted.where(F.col("missing") > 0).select("partition")
    # Mostly there is none, and nothing has to be put in order.
    placed = before(records.join(suspect, "partition", "left_semi"), "previous", F.col("offset"), "max", "offset", ["partition"])
    gaps = placed.where(F.col("offset") > F.col("previous") + 1)
    return gaps.select("partition", (F.col("previous") + 1).alias("first"), (F.col("offset") - 1).alias("last"))


def _told(gaps: DataFrame, offset: Column, where: Column) -> DataFrame:
    found = F.concat(F.lit("offsets "), F.col("first").cast("string"), F.lit(" to "), F.col("last").cast("string"), F.lit(" of "), where)
    return gaps.select(
        offset.alias("offset"), F.concat(found, F.lit(" are not there")).alias("found"), F.lit("a record at each offset").alias("expected")
    )


def _in_lives(entries: DataFrame, gone: DataFrame) -> DataFrame:
    numbered = entries.select("offset", *[_number(name).alias(name) for name in ("incarnation", "sequence", "reached")])
    passing = numbered.where(F.col("sequence") > F.col("reached") + 1)
    last = numbered.select("incarnation", F.col("sequence").alias("reached"), F.col("offset").alias("offset_last"))
    placed = passing.join(last, ["incarnation", "reached"], "left").withColumn("offset_last", F.coalesce("offset_last", F.lit(-1)))
    between = (gone["first"] > placed["offset_last"]) & (gone["first"] < placed["offset"])
    found = F.concat(
        F.lit("batch "), F.col("sequence").cast("string"), F.lit(" of life "), F.col("incarnation").cast("string"), F.lit(" counts next")
    )
    expected = F.concat(F.lit("batch "), (F.col("reached") + 1).cast("string"))
    return placed.join(gone, between, "left_anti").select("offset", found.alias("found"), expected.alias("expected"))


def _number(octets: str) -> Column:
    """The u64 that 8 bytes say, which no long holds."""
    return F.conv(F.hex(octets), 16, 10).cast("decimal(20,0)")
