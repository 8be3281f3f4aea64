"""Foreign views (R10), summed up: one row for each incarnation that had another history. A foreign view may be settled by the owner.

A single loss makes a foreign view in every record whose writer had seen the lost records. An incarnation with another history keeps it. So
its first offset shows the difference; its last offset and the number of records show the extent.

A settle record in effect declares that the reader's history stands. It settles all views before it at which the number of records in effect
is at most its `seen`. `seen` rises from one settle record to the next, so the last one settles everything that any of them does. One
comparison with the last one is enough, and nothing about earlier ones is kept.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join.order.effects import FOREIGN, Carry


def differences(records: DataFrame, carry: Carry) -> DataFrame:
    """Returns one row for each writer with foreign views in `records`, or two if the owner has settled only the earlier ones.

    Columns: offset, offset_last and records (the first offset, the last one, and their number), found and expected (of the first), and
    settled. `records` has the columns of `effects.Verdict`; `carry` is the one after them, or at the hole.
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
    number = F.when(F.col("records") == 1, F.lit(" wrote it")).otherwise(
        F.concat(F.lit(" wrote "), F.col("records"), F.lit(" such records, the last at offset "), F.col("offset_last"))
    )
    view = F.concat(F.lit("a view of "), F.conv(F.hex("first.seen"), 16, 10), F.lit(" records, "), F.lower(F.hex("first.history")))
    return of_writers.select(
        F.col("first.offset").alias("offset"),
        "offset_last",
        "records",
        F.concat(view, F.lit("; "), who, number).alias("found"),
        F.col("first.expected").alias("expected"),
        "settled",
    )
