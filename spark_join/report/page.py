"""Renders `report.html`: one self-contained page with the numbers of `report.json`, plots, and the violations.

The plots show bins over time and batch sizes, which Spark counts. The number of bins does not grow with the log.

Names and texts on it come from the log, so anyone may have written them. Jinja escapes them, and invisible characters are spelled out.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from importlib.resources import files
from typing import Any, Final

import msgspec
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from spark_join.constants import OUTCOMES
from spark_join.errors import visible
from spark_join.report.plots import bars, lanes, lines, moment, stacked, time_ticks

BINS: Final = 120
"""The most bins of time."""
_WORD_MAX: Final = 30
_Rows = list[tuple[str, ...]]


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
    apart = F.abs(F.col("append_time_ms").cast("double") - F.col("content_append_time_ms"))  # of longs it may be no long
    apart = F.percentile_approx(apart, [0.5, 0.99], 1_000).alias("apart")
    batches = {row.bin: row for row in entries.groupBy(bin_).agg(apart, F.min("offset").alias("first")).collect()}
    power = F.when(F.col("count") > 0, F.length(F.bin("count")) - 1).otherwise(-1)  # the largest n with 2^n <= count
    sizes = entries.groupBy(power.alias("power")).count().orderBy("power").collect()
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


def page(report: Mapping[str, Any], numbers: Series, violations: Sequence[Row], by_bin: Mapping[str, Sequence[int]]) -> str:
    """Renders the page. `report` is the content of `report.json`, `violations` are the rows of the table, a bounded number of them.

    `by_bin` is from `violations_over_time`.
    """
    wrong = sum(report["violations"].values())
    drawn = bars("By type", "violations", report["violations"]) if wrong else Markup()
    if by_bin:
        unit = "in which bin there are how many; each type by its own scale"
        drawn += lanes("Where in the log", unit, by_bin, *_time_axis(numbers))
    in_bins = sum([sum(counts) for counts in by_bin.values()])
    return _TEMPLATE.render(
        report=report,
        wrong=wrong,
        outcomes=_outcomes(report["outcomes"]),
        exports=_exports(report),
        restored=_restored(report["salvaged"]),
        over_time=_over_time(numbers) if numbers.moments else None,
        drawn_violations=drawn,
        nowhere=wrong - in_bins if numbers.moments else 0,
        shown=_table([row.asDict() for row in violations]),
        settled=_table(report["settled"]["shown"]),
        ranges=[
            (f"{topic}, partition {partition}", f"{first:,}", f"{end:,}")
            for topic, partitions in report["ranges"].items()
            for partition, (first, end) in partitions.items()
        ],
        kinds=[(kind, f"{count:,}") for kind, count in report["ordering_records"].items()],
        skipped=[(reason, f"{each['records']:,}", f"{each['offset_first']:,}") for reason, each in report["skipped"].items()],
        stages=[(stage, f"{took_s:,.1f}") for stage, took_s in report["stages_s"].items()],
    )


def _outcomes(counts: Mapping[str, int]) -> _Rows:
    total = sum(counts.values())
    return [(name, f"{count:,}", f"{count / total:.2%}" if total else "") for name, count in counts.items()]


def _restored(salvaged: Mapping[str, int]) -> _Rows:
    if not any(salvaged.values()):
        return []
    return [("restored by salvages", ", ".join([f"{count:,} {form}" for form, count in salvaged.items()]))]


def _exports(report: Mapping[str, Any]) -> _Rows:
    clean = "as the log says" + ("" if report["undecided_from_offset"] is None else ", as far as that is decided")
    rows: _Rows = []
    for source, export in report["exports"].items():
        found = ", ".join([f"{count:,} {type_}" for type_, count in export["violations"].items()])
        rows.append((source, f"{export['decisions']:,}", found or clean))
    return rows


def _table(rows: Sequence[Mapping[str, object]]) -> tuple[list[str], list[list[str]]]:
    """Returns the column names of `rows`, which are the same in each, and their values as text."""
    return list(rows[0] if rows else ()), [["" if value is None else str(value) for value in row.values()] for row in rows]


def _over_time(numbers: Series) -> Markup:
    moments, width_s = numbers.moments, numbers.width_ms / 1000
    ticks, axis = _time_axis(numbers)
    rates = {name: [each.outcomes[name] / width_s for each in moments] for name in moments[0].outcomes}
    rejected = dict(list(rates.items())[1:])
    sizes = numbers.batch_sizes
    powers = range(min(sizes), max(sizes) + 1)
    size_ticks = [((at + 0.5) / len(powers), _size(power)) for at, power in enumerate(powers)]
    return Markup().join(
        [
            stacked("Requests", "decisions a second", rates, ticks, axis),
            stacked("Conflicts and other rejections", "decisions a second", rejected, ticks, axis, colour_first=1),
            stacked("Batch sizes", "batches", {"batches": [sizes.get(power, 0) for power in powers]}, size_ticks, "requests of a batch"),
            lines(
                "Between the append times of a batch's payload and of its entry",
                "milliseconds, whichever came first",
                {"median": [each.apart_ms_p50 for each in moments], "99 of 100": [each.apart_ms_p99 for each in moments]},
                ticks,
                axis,
            ),
        ]
    )


def _time_axis(numbers: Series) -> tuple[list[tuple[float, str]], str]:
    ticks = time_ticks(numbers.start_ms, numbers.width_ms * len(numbers.moments))
    return ticks, f"log time, UTC, from {moment(numbers.start_ms)}; {numbers.width_ms / 1000:,.6g} s a bin"


def _size(power: int) -> str:
    if power < 1:
        return "0" if power < 0 else "1"
    return f"{1 << power:,}–{(2 << power) - 1:,}"


def _cell_class(text: str) -> str:
    """Returns the class of a table cell: `n` for a number, `long` for a text with a word that the browser may break, else nothing."""
    if text.replace(",", "").replace(".", "").removesuffix("%").isdecimal() and len(text) < 30:
        return "n"
    return "long" if max(map(len, text.split()), default=0) > _WORD_MAX else ""


def _visible(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_environment = Environment(
    autoescape=True, undefined=StrictUndefined, finalize=_visible, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
)
_environment.filters |= {"thousands": "{:,}".format, "cell_class": _cell_class}
_TEMPLATE: Final = _environment.from_string(files("spark_join.report").joinpath("page.html.jinja").read_text())
