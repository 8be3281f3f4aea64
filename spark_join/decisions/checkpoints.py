"""Every checkpoint record against the root of its size (R9), all of them in Spark.

A checkpoint says which root so many decisions have. Among workers it counts while its life has begun and has not ended; whether it is true
is another question. A worker whose life has ended, and which has not read that yet, goes on deciding. What it has decided follows from the
part of the order that it has read, as everyone's does, so its roots are right too, and all are compared.

Only behind a hole there may be checkpoints of more decisions than there are here: who wrote them had the content.
"""

from collections.abc import Collection

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_join.decisions import tree
from spark_join.engine.octets import part, u64, unsigned
from spark_join.engine.stages import Stages
from spark_join.violations import violations


class Counts(msgspec.Struct, frozen=True):
    """How many checkpoint records there are."""

    compared: int
    not_compared: int
    """Behind a hole, of more decisions than there are here"""
    passed_over: int
    """Of all these, those of lives that had not begun or had ended"""


class Compared(msgspec.Struct, frozen=True):
    """What came of the roots."""

    violations: DataFrame
    """`root-mismatch`: see `violations.VIOLATION`"""
    root: bytes
    """Over all decisions"""
    roots: dict[int, bytes]
    """By size, of the sizes that were asked for besides, as far as there are so many decisions"""


def counts_of(checkpoints: DataFrame, decided: int, offset_hole: int | None) -> Counts:
    """`checkpoints` as `judged.Order` has them, those behind a hole too."""
    (found,) = checkpoints.agg(
        F.count("*").alias("all"),
        F.count_if(_is_beyond(decided, offset_hole)).alias("not_compared"),
        F.count_if(~F.col("counted")).alias("passed_over"),
    ).collect()
    return Counts(found["all"] - found.not_compared, found.not_compared, found.passed_over)


def sizes_of(checkpoints: DataFrame, decided: int, others: Collection[int]) -> DataFrame:
    """size: distinct ones of the `others`, few, and of the checkpoints, as far as there are so many decisions. See `tree.parts`."""
    told = _sized(checkpoints, decided).select("size").where(F.col("size").isNotNull())
    wanted = [(size,) for size in others if size <= decided]
    return told.union(checkpoints.sparkSession.createDataFrame(wanted, "size bigint")).distinct()


def compare_roots(
    checkpoints: DataFrame, parts: DataFrame, decided: int, offset_hole: int | None, others: Collection[int], stages: Stages
) -> Compared:
    """Hold each of `checkpoints`, as `judged.Order` has them, against the root of its size.

    `parts`: `tree.parts` of the `sizes_of` them and the `others`.
    """
    roots = stages.keep("roots", tree.roots(parts))
    asked = roots.where(F.col("size").isin(decided, *others)).collect()
    root_of = {row["size"]: bytes(row.root) for row in asked}
    compared = checkpoints.where(~_is_beyond(decided, offset_hole))
    return Compared(_mismatches(compared, roots, decided), root_of[decided], root_of)


def _mismatches(checkpoints: DataFrame, roots: DataFrame, decided: int) -> DataFrame:
    compared = _sized(checkpoints, decided).join(roots.withColumnRenamed("root", "right"), "size", "left")
    too_large = F.col("size").isNull()
    of_size = F.concat(F.lit("a root of "), F.conv(F.hex("tree_size"), 16, 10), F.lit(" decisions"))
    return violations(
        compared.where(~F.col("root").eqNullSafe(F.col("right"))),
        F.lit("root-mismatch"),
        position=F.col("size"),
        offset=F.col("offset"),
        found=F.when(too_large, of_size).otherwise(F.lower(F.hex("root"))),
        expected=F.when(too_large, F.lit(f"a root of at most {decided} decisions")).otherwise(F.lower(F.hex("right"))),
    )


def _sized(checkpoints: DataFrame, decided: int) -> DataFrame:
    """With `size`, null for one of more decisions than there are, which may be more than a long holds."""
    return checkpoints.withColumn("size", F.when(~_is_of_more(decided), unsigned(part(F.col("tree_size"), 1, 7))))


def _is_beyond(decided: int, offset_hole: int | None) -> Column:
    """Whether nothing can be said of it."""
    return F.lit(False) if offset_hole is None else (F.col("offset") > offset_hole) & _is_of_more(decided)


def _is_of_more(decided: int) -> Column:
    return F.col("tree_size") > u64(F.lit(decided).cast("bigint"))
