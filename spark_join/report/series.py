"""The numbers that the page draws: bins over time and batch sizes, counted in Spark. Their number does not grow with the log."""

from collections.abc import Mapping, Sequence
from functools import reduce

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_join.constants import OUTCOMES

BINS = 120
"""The most bins of time."""


class Moment(msgspec.Struct, frozen=True):
    """One bin of log time."""

    outcomes: Mapping[str, int]
    """Numbers of decisions, by outcome as in `constants.OUTCOMES`"""
    apart_ms_p50: float | None
    apart_ms_p99: float | None
    """Median and 99th percentile of the time between the appends of a batch's payload and entry. None if no batch with content is here"""
    offset_first: int | None
    """The lowest ordering offset of the batches in the bin"""
    position_first: int | None
    """The lowest position of the decisions in the bin"""


class Series(msgspec.Struct, frozen=True):
    """Bins of the same width, from `start_ms` on, including empty ones."""

    start_ms: int
    width_ms: int
    moments: Sequence[Moment]
    batch_sizes: Mapping[int, int]
    """Numbers of batches with 2^n to 2^(n+1) - 1 requests, by n; -1 stands for batches without requests"""


def series(decisions: DataFrame, entries: DataFrame) -> Series:
    """Counts `decisions` and `entries`, which are those of `Verified`, in bins."""
    (ends,) = entries.agg(F.min("log_time_ms").alias("first"), F.max("log_time_ms").alias("last")).collect()
    if ends["first"] is None:
        return Series(0, 1, [], {})
    start_ms, span_ms = ends["first"], ends["last"] - ends["first"] + 1
    width_ms = -(-span_ms // BINS)
    bin_ = F.floor((F.col("log_time_ms") - start_ms) / width_ms).alias("bin")
    decided = decisions.groupBy(bin_, "outcome").agg(F.count("*").alias("decided"), F.min("position").alias("first")).collect()
    counts = {(row.bin, row.outcome): row.decided for row in decided}
    positions: dict[int, int] = {}
    for row in decided:
        positions[row.bin] = min(row["first"], positions.get(row.bin, row["first"]))
    apart = F.abs(F.col("append_time_ms") - F.col("content_append_time_ms"))
    apart = F.percentile_approx(apart, [0.5, 0.99], 1_000).alias("apart")
    batches = {row.bin: row for row in entries.groupBy(bin_).agg(apart, F.min("offset").alias("first")).collect()}
    sizes = entries.groupBy(_power(F.col("count")).alias("power")).count().orderBy("power").collect()
    moments = []
    for number in range(-(-span_ms // width_ms)):
        batch = batches.get(number)
        p50, p99 = map(float, batch.apart) if batch is not None and batch.apart else (None, None)
        outcomes = {name: counts.get((number, outcome), 0) for outcome, name in OUTCOMES.items()}
        moments.append(Moment(outcomes, p50, p99, None if batch is None else batch["first"], positions.get(number)))
    return Series(start_ms, width_ms, moments, {row.power: row["count"] for row in sizes})


def violations_over_time(violations: DataFrame, moments: Sequence[Moment]) -> dict[str, list[int]]:
    """Returns the numbers of violations by type and bin: the bin of their ordering record, or without one that of their decision.

    A violation after the last bin counts in the last bin, and one before the first bin in the first. Violations with neither an offset nor
    a position are left out.
    """
    by_offset = _bin(F.col("offset"), [each.offset_first for each in moments])
    by_position = _bin(F.col("position"), [each.position_first for each in moments])
    placed = violations.select("type", F.coalesce(by_offset, by_position).alias("bin")).where(F.col("bin").isNotNull())
    found: dict[str, list[int]] = {}
    for row in placed.groupBy("type", "bin").count().orderBy("type").collect():
        found.setdefault(row.type, [0] * len(moments))[row.bin] = row["count"]
    return found


def _bin(place: Column, firsts: Sequence[int | None]) -> Column:
    """Returns the last bin that begins at or before `place`; null if `place` is null. `firsts` ascend, None for an empty bin."""
    begun = [(number, first) for number, first in enumerate(firsts) if first is not None]
    if not begun:
        return F.lit(None).cast("int")
    found = reduce(lambda cases, each: cases.when(place >= each[1], each[0]), reversed(begun), F.when(place.isNull(), F.lit(None)))
    return found.otherwise(begun[0][0])


def _power(number: Column) -> Column:
    """Returns the largest n with 2^n <= number; -1 for 0."""
    return F.when(number > 0, F.length(F.bin(number)) - 1).otherwise(-1)
