"""Functions that DataFrames lack: frames of the driver's rows, calls of Python functions, big-endian numbers, and running aggregates.

The executors call a Python function with each item of a list, and the driver gets the results (`results_of`). Or they call it with each
Arrow batch of a frame, and the results are a frame (`map_batches`).

Unsigned 64-bit numbers stay binary, 8 bytes: Spark compares binary values as unsigned, and its signed longs cannot hold all of them. The
expressions need no Python worker.

A running aggregate is a maximum or a sum over all earlier rows. A Spark window without partitions would bring the complete log to one task.
So the order is cut into blocks. Spark aggregates each block in parallel, then runs through the results of the blocks only, and adds the
result of the blocks before to each row.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

BLOCK = 1 << 16
"""Width of a block, in values of the ordering column. 10^9 records make 15,259 blocks."""

_START = Window.unboundedPreceding
_AGGREGATES = {"max": F.max, "sum": F.sum}
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def frame_of(session: SparkSession, rows: Sequence[Sequence[object]], schema: str) -> DataFrame:
    """Returns a frame of rows that the driver has. Plans contain them: Spark filters them without a job, and drops an empty frame."""
    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType)
    types = to_arrow_schema(columns)
    return session.createDataFrame(pa.Table.from_pylist([dict(zip(types.names, row, strict=True)) for row in rows], types))


def results_of(session: SparkSession, call: Callable[[_Item], _Result], items: Sequence[_Item], tasks_a_core: int = 0) -> list[_Result]:
    """Calls a function with each item on the executors, and returns the results in the order of the items.

    Each item has a task of its own. With `tasks_a_core` there are at most so many tasks for each core.
    """
    tasks = min(len(items), tasks_a_core * session.sparkContext.defaultParallelism or len(items))
    return session.sparkContext.parallelize(items, tasks).map(call).collect() if items else []


def map_batches(frame: DataFrame, call: Callable[[pa.RecordBatch], pa.RecordBatch], schema: str | StructType | pa.Schema) -> DataFrame:
    """Calls a function with each Arrow batch of `frame`, in the task that has it; the results are a frame with this schema."""
    return frame.mapInArrow(lambda batches: map(call, batches), from_arrow_schema(schema) if isinstance(schema, pa.Schema) else schema)


def part(column: Column, start: int | Column, length: int | Column) -> Column:
    """Returns `length` bytes from the byte `start` on, counted from 0; fewer if the value ends before."""
    position = F.lit(start) + 1 if isinstance(start, int) else start + 1
    return F.substring(column, position, F.lit(length) if isinstance(length, int) else length)


def unsigned(octets: Column) -> Column:
    """Decodes an unsigned number of at most 7 bytes as a long."""
    return F.conv(F.hex(octets), 16, 10).cast("bigint")


def u64(number: Column) -> Column:
    """Encodes a long in 8 bytes, in two's complement: the i64, and for a number from 0 on also the u64."""
    return F.unhex(F.lpad(F.hex(number), 16, "0"))


def sha256(octets: Column) -> Column:
    """Returns the SHA-256, 32 bytes."""
    return F.unhex(F.sha2(octets, 256))


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
