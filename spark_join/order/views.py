"""Foreign views (R10), summed up: one row for each incarnation that had another history, and whether the owner has settled it.

One loss makes a foreign view in every record that is written with knowledge of what was lost. An incarnation that had another history once
keeps it, so the first place tells what is wrong, and the last place and the number how far it went.

A settle record in effect says that the reader's history stands, for all views before it whose places its history goes beyond: the number of
records in effect there is at most its `seen`. Of several such records the last one settles all that any of them does, for `seen` rises from
one to the next. So one comparison with the last one is enough, and nothing about earlier ones is kept.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join.order.effects import FOREIGN, Carry


def differences(records: DataFrame, carry: Carry) -> DataFrame:
    """One row for each writer with foreign views in `records`, or two if the owner has settled only the earlier ones.

    Columns: offset, offset_last and records (the first place, the last one, and how many there are), found and expected (of the first), and
    settled. `records` has the columns of `effects.Verdict`; `carry` is the one behind them, or at the hole.
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
