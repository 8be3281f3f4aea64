"""Aggregates of all that came before, over a log of any length.

A window without partitions would bring the whole log to one task. So the order is cut into blocks: what a block comes to is worked out in
parallel, only the blocks' results are run through one after the other, and then each block goes on from where the one before it ended.
"""

from collections.abc import Sequence
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

BLOCK = 1 << 16
"""Of the ordering column. A thousand million records are 15,259 blocks."""

_START = Window.unboundedPreceding
_AGGREGATES = {"max": F.max, "sum": F.sum}


def before(
    frame: DataFrame, name: str, value: Column, how: Literal["max", "sum"], order: str, by: Sequence[str] = (), block: int = BLOCK
) -> DataFrame:
    """`frame` with a column `name`: the aggregate of `value` over the rows whose `order` is lower, and whose `by` is the same.

    It is null where there are none. Within `by` no two rows have the same `order`, which is a long.
    """
    aggregate = _AGGREGATES[how]
    blocked = frame.withColumn("_block", F.floor(F.col(order) / block)).withColumn("_value", value)
    keys = [*by, "_block"]
    blocks = (
        blocked.groupBy(*keys)
        .agg(aggregate("_value").alias("_total"))
        .select(*keys, aggregate("_total").over(Window.partitionBy(*by).orderBy("_block").rowsBetween(_START, -1)).alias("_before"))
    )
    inside = aggregate("_value").over(Window.partitionBy(*keys).orderBy(order).rowsBetween(_START, -1))
    together = F.greatest("_before", "_inside") if how == "max" else _sum(F.col("_before"), F.col("_inside"))
    return (
        blocked.withColumn("_inside", inside)
        .join(blocks, keys, "left")
        .withColumn(name, together)
        .drop("_block", "_value", "_before", "_inside")
    )


def _sum(one: Column, other: Column) -> Column:
    return F.when(one.isNull() & other.isNull(), F.lit(None)).otherwise(F.coalesce(one, F.lit(0)) + F.coalesce(other, F.lit(0)))
