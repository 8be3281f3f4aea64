"""Running aggregates (a maximum or a sum over all earlier rows), over a log of any length.

A Spark window without partitions would bring the complete log to one task. So the order is cut into blocks. Spark aggregates each block in
parallel, then runs through the results of the blocks only, and adds the result of the blocks before to each row.
"""

from collections.abc import Sequence
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

BLOCK = 1 << 16
"""Width of a block, in values of the ordering column. 10^9 records make 15,259 blocks."""

_START = Window.unboundedPreceding
_AGGREGATES = {"max": F.max, "sum": F.sum}


def before(
    frame: DataFrame, name: str, value: Column, how: Literal["max", "sum"], order: str, by: Sequence[str] = (), block: int = BLOCK
) -> DataFrame:
    """Returns `frame` with a column `name`: the aggregate of `value` over the rows with a lower `order` and the same `by`.

    It is null for a row that has no such rows before it. `order` is a long, and no two rows with the same `by` have the same `order`.
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
