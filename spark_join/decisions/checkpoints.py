"""Compares every checkpoint record with the root of its size (R9), in Spark.

In a checkpoint record a worker claims that the first `size` decisions have a certain root. It is compared if its incarnation has not ended
and its view is the reader's own history (R10). The writer has then read the same log, so both roots must be equal. Any other view that can
be compared is a `foreign-view`, whatever the root.

Behind a hole the reader does not know the history. A checkpoint there is compared only if its view is from before the hole.
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
    """The numbers of checkpoint records."""

    compared: int
    not_compared: int
    """Records with a view from behind the hole"""
    skipped: int
    """Records whose incarnation had not begun or had ended, whose view is not the reader's own, or that have no good signature"""


class Compared(msgspec.Struct, frozen=True):
    """The result of comparing the roots."""

    violations: DataFrame
    """`root-mismatch`: see `violations.VIOLATION`"""
    root: bytes
    """The root over all decisions"""
    roots: dict[int, bytes]
    """Roots by size: of all decisions, and of those `others` that are no larger than that"""


def counts_of(records: DataFrame) -> Counts:
    """Counts the checkpoints among `records`, which are `Joined.records`, those behind a hole included."""
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
    """Returns offset, tree_size (8 bytes) and root of the checkpoints that are to be compared."""
    return records.where((F.col("kind") == "checkpoint") & _is_compared()).select("offset", "tree_size", "root")


def sizes_of(checkpoints: DataFrame, decided: int, others: Collection[int]) -> DataFrame:
    """Returns the column size, for `tree.parts`: the distinct sizes of the checkpoints and of `others`, a few; none above `decided`."""
    told = _sized(checkpoints, decided).select("size").where(F.col("size").isNotNull())
    wanted = [(size,) for size in others if size <= decided]
    return told.union(checkpoints.sparkSession.createDataFrame(wanted, "size bigint")).distinct()


def compare_roots(checkpoints: DataFrame, parts: DataFrame, decided: int, others: Collection[int], stages: Stages) -> Compared:
    """Compares each checkpoint with the root of its size.

    `checkpoints` come from `compared_of`, and `parts` from `tree.parts` for the sizes that `sizes_of` returns for them and for `others`.
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
    """Adds `size`, a long; null for a checkpoint of more decisions than there are, since that number may not fit into a long."""
    return checkpoints.withColumn("size", F.when(~_is_of_more(decided), unsigned(part(F.col("tree_size"), 1, 7))))


def _is_compared() -> Column:
    return F.col("skipped").isNull() & (F.col("view") == OWN)


def _is_of_more(decided: int) -> Column:
    return F.col("tree_size") > u64(F.lit(decided).cast("bigint"))
