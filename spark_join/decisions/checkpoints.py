"""Every checkpoint record against the root of its size (R9), all of them in Spark.

A checkpoint is the claim of one worker that so many decisions have that root. It is compared where its incarnation is not over and its
view is the history that is read here (R10): then the writer has read the same log, and its root has to be the same. Any other view that
can be compared is a `foreign-view`, whatever the root.

Behind a hole nobody knows the history here. A checkpoint there is compared if its view is from before the hole.
"""

from collections.abc import Collection

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_join.decisions import tree
from spark_join.engine.octets import part, u64, unsigned
from spark_join.engine.stages import Stages
from spark_join.order.effects import BEYOND, OWN
from spark_join.violations import violations


class Counts(msgspec.Struct, frozen=True):
    """How many checkpoint records there are."""

    compared: int
    not_compared: int
    """Those with a view from behind the hole"""
    skipped: int
    """Those of incarnations that had not begun or were over, or with a view that is not the history here, or without a good signature"""


class Compared(msgspec.Struct, frozen=True):
    """What came of the roots."""

    violations: DataFrame
    """`root-mismatch`: see `violations.VIOLATION`"""
    root: bytes
    """Over all decisions"""
    roots: dict[int, bytes]
    """By size, of the sizes that were asked for besides, as far as there are so many decisions"""


def counts_of(records: DataFrame) -> Counts:
    """`records` as `Joined` has them, those behind a hole too."""
    (found,) = (
        records.where(F.col("kind") == "checkpoint")
        .agg(
            F.count_if(_is_compared()).alias("compared"),
            F.count_if(F.col("skipped").isNull() & (F.col("view") == BEYOND)).alias("not_compared"),
            F.count_if(F.col("skipped").isNotNull()).alias("skipped"),
        )
        .collect()
    )
    return Counts(found.compared, found.not_compared, found.skipped)


def compared_of(records: DataFrame) -> DataFrame:
    """offset, tree_size (8 bytes) and root of the checkpoints that are compared."""
    return records.where((F.col("kind") == "checkpoint") & _is_compared()).select("offset", "tree_size", "root")


def sizes_of(checkpoints: DataFrame, decided: int, others: Collection[int]) -> DataFrame:
    """size: distinct ones of the `others`, few, and of the checkpoints, as far as there are so many decisions. See `tree.parts`."""
    told = _sized(checkpoints, decided).select("size").where(F.col("size").isNotNull())
    wanted = [(size,) for size in others if size <= decided]
    return told.union(checkpoints.sparkSession.createDataFrame(wanted, "size bigint")).distinct()


def compare_roots(checkpoints: DataFrame, parts: DataFrame, decided: int, others: Collection[int], stages: Stages) -> Compared:
    """Compare each of `checkpoints`, as `compared_of` gives them, with the root of its size.

    `parts`: `tree.parts` of the `sizes_of` them and the `others`.
    """
    roots = stages.keep("roots", tree.roots(parts))
    asked = roots.where(F.col("size").isin(decided, *others)).collect()
    root_of = {row["size"]: bytes(row.root) for row in asked}
    return Compared(_mismatches(checkpoints, roots, decided), root_of[decided], root_of)


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


def _is_compared() -> Column:
    return F.col("skipped").isNull() & (F.col("view") == OWN)


def _is_of_more(decided: int) -> Column:
    return F.col("tree_size") > u64(F.lit(decided).cast("bigint"))
