"""Anomalies of the order: each `sequence-gap`, that is, records that were in the log and are missing, and each foreign view (R10).

Two kinds of numbers in the log have no gap as long as nothing is lost (docs/spark.md, Sequence gaps):

- **An incarnation numbers its batches 1, 2, 3, …** Its producer is idempotent and has one request in flight in each partition. Kafka
  rejects a request if one before it is missing, so a failed append is the last of its incarnation. So the entries in effect of an
  incarnation skip no number, whatever crashed.
- **Kafka numbers the records of a partition 0, 1, 2, …** and these topics are never compacted. (Markers of transactions take numbers too:
  see `settled_by_owner`.)

A gap in the numbers of an incarnation is not reported if missing offsets already explain it.

After a single loss, every record whose writer had seen the lost records has a foreign view, and an incarnation keeps its other history. So
there is one row for each such incarnation. Its first offset shows the difference; its last offset and the number of records, the extent.

A settle record in effect declares the reader's history valid. It settles all views before it at which the number of records in effect is at
most its `seen`. `seen` rises from one settle record to the next, so the last settle record settles all views that any of them settles. So
each view is compared only with the last one.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_join.engine.columns import before, frame_of
from spark_join.errors import CouldNotVerify
from spark_join.order.effects import FOREIGN, Carry
from spark_join.violations import render_hex


def missing_offsets(records: DataFrame, payload: DataFrame, edges: DataFrame) -> DataFrame | None:
    """Returns topic, partition, first and last of each run of missing offsets, none settled; None if no offset is missing.

    `records` are the ordering topic, with offset; `payload` the payload topic, with partition and offset. `edges` (topic, partition,
    offset) are not records: they mark the start and the end of each partition that was read. Raises `CouldNotVerify` for an offset that
    appears twice.
    """
    offsets = (
        records.select(F.lit("ordering").alias("topic"), F.lit(0).alias("partition"), "offset")
        .union(payload.select(F.lit("payload").alias("topic"), "partition", "offset"))
        .union(edges.select("topic", "partition", "offset"))
    )
    # The number of rows alone does not show a gap: a duplicate offset would make up for a missing one.
    span = F.max("offset").cast("decimal(20,0)") - F.min("offset") + 1  # an archive may claim to end at the last offset
    counted = offsets.groupBy("topic", "partition").agg(
        F.count("*").alias("rows"), F.count_distinct("offset").alias("offsets"), span.alias("span")
    )
    suspect = []
    for row in sorted(counted.where("rows > offsets OR span > offsets").collect()):  # by topic and partition
        if row.rows > row.offsets:
            of_partition = offsets.where((F.col("topic") == row.topic) & (F.col("partition") == row.partition))
            (twice,) = of_partition.groupBy("offset").count().where("count > 1").agg(F.min("offset").alias("offset")).collect()
            raise CouldNotVerify(
                f"offset {twice.offset} of {row.topic} partition {row.partition} is there more than once, and no topic has that: what"
                " is read is not a log; verify from the brokers, or archive it again"
            )
        suspect.append((row.topic, row.partition))
    if not suspect:  # the usual case needs no sort
        return None
    named = F.broadcast(frame_of(offsets.sparkSession, suspect, "topic string, partition int"))
    within = offsets.join(named, ["topic", "partition"], "left_semi")
    placed = before(within, "previous", F.col("offset"), "max", "offset", ["topic", "partition"])
    gaps = placed.where(F.col("offset") > F.col("previous") + 1)
    first, last = (F.col("previous") + 1).alias("first"), (F.col("offset") - 1).alias("last")
    return gaps.select("topic", "partition", first, last, F.lit(False).alias("settled"))


def settled_by_owner(missing: DataFrame | None, records: DataFrame) -> DataFrame | None:
    """Returns `missing` (`missing_offsets`), with `settled` true for the runs inside a history that the owner has signed.

    The view of a `done` (R11) is exactly the history of the records before it: the owner's command has read them all, and declares them
    valid. A log that a program copied in transactions has runs before it: the transactions' markers take offsets. In a payload partition a
    run is before the `done` if no entry behind the `done` has its content before the run. A content that was lost behind the `done` may
    be in such a run: then its entry is a hole.

    The view of a settle record (R10) is the history up to one record, and a run before that record is settled. Workers send before and
    after it alike. So in a payload partition the content of an entry in that history must come after the run too.

    `records` have the columns of `contents.with_locations` and `effects.AppliedRecord`.
    """
    if missing is None:
        return None
    in_effect = records.where("effect")
    done = F.max(F.when(F.col("kind") == "salvage-done", F.col("offset"))).alias("done")
    (owner,) = in_effect.agg(done, F.max("settled_last").alias("settle")).collect()
    if owner.done is None and owner.settle is None:
        return missing
    offset, content, last = F.col("offset"), F.col("content_offset"), F.col("last")
    of_partitions = (
        in_effect.where(content.isNotNull())
        .groupBy("partition")
        .agg(
            F.min(F.when(offset > F.lit(owner.done), content)).alias("behind_done"),
            F.min(F.when(offset > F.lit(owner.settle), content)).alias("behind_settle"),
            F.max(F.when(offset <= F.lit(owner.settle), content)).alias("within_settle"),
        )
        .withColumn("topic", F.lit("payload"))
    )
    before_done = F.coalesce(last < F.col("behind_done"), F.lit(owner.done is not None))
    before_settle = (last < F.col("within_settle")) & F.coalesce(last < F.col("behind_settle"), F.lit(True))
    of_ordering = last < F.lit(max(each for each in owner if each is not None))
    settled = F.when(F.col("topic") == "ordering", of_ordering).otherwise(before_done | F.coalesce(before_settle, F.lit(False)))
    marked = missing.join(F.broadcast(of_partitions), ["topic", "partition"], "left").withColumn("settled", settled)
    return marked.select(missing.columns)


def sequence_gaps(entries: DataFrame, missing: DataFrame | None) -> DataFrame:
    """Returns offset (null for the payload topic), found and expected of each gap, in incarnations and in partitions.

    `entries` are those in effect, sealed ones too, with offset, incarnation, sequence and reached, the incarnation's highest sequence
    before (8 bytes each); `missing` comes from `missing_offsets`. A settled run is no gap, and still explains a skipped number.
    """
    numbered = entries.select("offset", *[_number(name).alias(name) for name in ("incarnation", "sequence", "reached")])
    if missing is None:
        return _sequence_rows(_passing(numbered))
    is_ordering = F.col("topic") == "ordering"
    where = F.when(is_ordering, "the ordering topic").otherwise(F.format_string("payload partition %s", "partition"))
    unsettled = missing.where(~F.col("settled")).select(
        F.when(is_ordering, F.col("first")).alias("offset"),
        F.format_string("offsets %s to %s of %s are not there", "first", "last", where).alias("found"),
        F.lit("a record at each offset").alias("expected"),
    )
    return unsettled.union(_sequence_rows(_unexcused(numbered, missing.where(is_ordering))))


def _unexcused(numbered: DataFrame, missing: DataFrame) -> DataFrame:
    """Returns the entries that skip a sequence, if no ordering offset is missing since the entry of their incarnation before them.

    There may be many missing offsets: a mirror that writes in transactions leaves one for each. So a running sum counts them up to each
    entry, and no task gets all of them.
    """
    marks = missing.select(F.col("first").alias("offset"), F.lit(1).alias("gap"))
    together = numbered.unionByName(marks, allowMissingColumns=True)
    counted = before(together, "gaps", F.coalesce("gap", F.lit(0)), "sum", "offset").where(F.col("gap").isNull())
    counted = counted.withColumn("gaps", F.coalesce("gaps", F.lit(0)))
    last = counted.select("incarnation", F.col("sequence").alias("reached"), F.col("gaps").alias("gaps_last"))
    placed = _passing(counted).join(last, ["incarnation", "reached"], "left")
    # An entry of an earlier part, which is not here, comes before all gaps of this part.
    return placed.where(F.col("gaps") == F.coalesce("gaps_last", F.lit(0)))


def _passing(numbered: DataFrame) -> DataFrame:
    return numbered.where(F.col("sequence") > F.col("reached") + 1)


def _sequence_rows(passing: DataFrame) -> DataFrame:
    found = F.format_string("batch %s of incarnation %s counts next", "sequence", "incarnation")
    expected = F.format_string("batch %s", F.col("reached") + 1)
    return passing.select("offset", found.alias("found"), expected.alias("expected"))


def _number(octets: str) -> Column:
    """Decodes a u64 of 8 bytes as a decimal: a long does not hold all of them."""
    return F.conv(F.hex(octets), 16, 10).cast("decimal(20,0)")


def differences(records: DataFrame, carry: Carry) -> DataFrame:
    """Returns one row for each writer with foreign views in `records`, or two if the owner has settled only the earlier ones.

    Columns: offset, offset_last and records (the first offset, the last one, and their number), found and expected (of the first), and
    settled. `records` has the columns of `effects.AppliedRecord`; `carry` is the one after them, or at the hole.
    """
    settled = (F.col("offset") < carry.settled_offset) & (F.col("seen_here") <= carry.settled)
    foreign = records.where(F.col("view") == FOREIGN).withColumn("settled", settled)
    of_writers = foreign.groupBy("foreign_writer", "settled").agg(
        F.min(F.struct("offset", "seen", "history", "expected")).alias("first"),
        F.max("offset").alias("offset_last"),
        F.count("*").alias("records"),
    )
    incarnation = F.concat(F.lit("incarnation "), F.conv(F.hex("foreign_writer"), 16, 10))
    who = F.coalesce(incarnation, F.lit("the owner"))
    number = F.when(F.col("records") == 1, "wrote it").otherwise(
        F.format_string("wrote %s such records, the last at offset %s", "records", "offset_last")
    )
    seen, history = F.conv(F.hex("first.seen"), 16, 10), render_hex(F.col("first.history"))
    return of_writers.select(
        F.col("first.offset").alias("offset"),
        "offset_last",
        "records",
        F.format_string("a view of %s records, %s; %s %s", seen, history, who, number).alias("found"),
        F.col("first.expected").alias("expected"),
        "settled",
    )
