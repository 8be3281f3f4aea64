"""Compares rows of exports with the expected rows."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def differing(found: DataFrame, expected: DataFrame, key: str) -> DataFrame:
    """Returns the rows that differ or are duplicated: source, key, found, expected (each null if there is no row), twice.

    `found` has source, key and the row as the struct `found`, which has a position. `expected` has the same with the struct `expected`,
    and each key of a source once.
    """
    times = F.count("*").over(Window.partitionBy("source", key))
    joined = found.withColumn("times", times).join(expected, ["source", key], "full")
    same = F.col("found").eqNullSafe(F.col("expected"))
    wrong = joined.where(~same | (F.col("times") > 1)).drop("times")
    # Among rows with the same key, one that equals the expected row comes first, so that only the others are reported.
    ordinal = F.row_number().over(Window.partitionBy("source", key).orderBy(~same, "found.position"))
    return wrong.withColumn("twice", ordinal > 1).where(F.col("twice") | ~same)


def up_to(frame: DataFrame, sizes: DataFrame) -> DataFrame:
    """Returns the rows of `frame`, which has `position`, that each export should have.

    `sizes` has source, size (the number of decisions that the export should have), and decisions (the number in its manifest).
    """
    return frame.crossJoin(F.broadcast(sizes)).where(F.col("position") < F.col("size"))


def within(found: DataFrame, sizes: DataFrame) -> DataFrame:
    """Returns the rows of `found` without the surplus of an index that has more decisions than the log has up to where it has read.

    `sizes` is that of `up_to`.
    """
    sized = found.join(F.broadcast(sizes), "source")
    return sized.where((F.col("position") < F.col("size")) | (F.col("size") == F.col("decisions"))).drop("size", "decisions")
