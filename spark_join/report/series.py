"""What the page draws, in numbers: bins over time and of sizes, counted in Spark. However long the log is, there are as many of them."""

from collections.abc import Mapping, Sequence

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_join.constants import OUTCOMES

BINS = 120
"""Of time, at most."""


class Moment(msgspec.Struct, frozen=True):
    """One bin of log time."""

    outcomes: Mapping[str, int]
    """Decisions, by outcome as in `constants.OUTCOMES`"""
    apart_ms_p50: float | None
    apart_ms_p99: float | None
    """Of the batches with content: how far the append times of payload and entry are apart. None where no batch was"""


class Series(msgspec.Struct, frozen=True):
    """Bins of the same width, from `start_ms` on, those with nothing in them too."""

    start_ms: int
    width_ms: int
    moments: Sequence[Moment]
    batch_sizes: Mapping[int, int]
    """How many batches had from 2^n to 2^(n+1) - 1 requests, by n; -1: none at all"""


def series(decisions: DataFrame, entries: DataFrame) -> Series:
    """`decisions` and `entries` as `Verified` has them."""
    (ends,) = entries.agg(F.min("log_time_ms").alias("first"), F.max("log_time_ms").alias("last")).collect()
    if ends["first"] is None:
        return Series(0, 1, [], {})
    start_ms, span_ms = ends["first"], ends["last"] - ends["first"] + 1
    width_ms = -(-span_ms // BINS)
    bin_ = F.floor((F.col("log_time_ms") - start_ms) / width_ms).alias("bin")
    counts = {(row.bin, row.outcome): row["count"] for row in decisions.groupBy(bin_, "outcome").count().collect()}
    apart = F.abs(F.col("append_time_ms") - F.col("content_append_time_ms"))
    apart = F.percentile_approx(apart, [0.5, 0.99], 1_000).alias("apart")
    waits = {row.bin: row.apart for row in entries.groupBy(bin_).agg(apart).collect() if row.apart}
    sizes = entries.groupBy(_power(F.col("count")).alias("power")).count().orderBy("power").collect()
    moments = [
        Moment(
            {name: counts.get((number, outcome), 0) for outcome, name in OUTCOMES.items()},
            *(map(float, waits[number]) if number in waits else (None, None)),
        )
        for number in range(-(-span_ms // width_ms))
    ]
    return Series(start_ms, width_ms, moments, {row.power: row["count"] for row in sizes})


def _power(number: Column) -> Column:
    """The largest n that 2^n is not above the number; -1 for 0."""
    return F.when(number > 0, F.length(F.bin(number)) - 1).otherwise(-1)
