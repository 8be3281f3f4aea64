"""Rows of exports beside the rows that should be there."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def differing(found: DataFrame, expected: DataFrame, key: str) -> DataFrame:
    """What is not the same in both, or there twice: source, key, found, expected (null where there is none), twice.

    `found` has source, key and the row as `found`, which has a position; `expected` the same, each key of a source once.
    """
    times = F.count("*").over(Window.partitionBy("source", key))
    joined = found.withColumn("times", times).join(expected, ["source", key], "full")
    same = F.col("found").eqNullSafe(F.col("expected"))
    wrong = joined.where(~same | (F.col("times") > 1)).drop("times")
    # Of rows with one key the one that is as it should be is the first.
    ordinal = F.row_number().over(Window.partitionBy("source", key).orderBy(~same, "found.position"))
    return wrong.withColumn("twice", ordinal > 1).where(F.col("twice") | ~same)


def up_to(frame: DataFrame, sizes: DataFrame) -> DataFrame:
    """What each export should have of `frame`, which has `position`. `sizes`: source, size (how many decisions it should have), decisions
    (how many it says that it has)."""
    return frame.crossJoin(F.broadcast(sizes)).where(F.col("position") < F.col("size"))


def within(found: DataFrame, sizes: DataFrame) -> DataFrame:
    """Of an index with more decisions than the log has, as far as it has read, only those that it should have. `sizes` as in `up_to`."""
    sized = found.join(F.broadcast(sizes), "source")
    return sized.where((F.col("position") < F.col("size")) | (F.col("size") == F.col("decisions"))).drop("size", "decisions")
