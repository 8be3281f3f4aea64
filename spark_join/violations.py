"""Rows of `violations/`, one for each violation (docs/spark.md, What it writes)."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

VIOLATION: Final = (
    "type string, position bigint, offset bigint, id string, found string, expected string, source string,"
    " offset_last bigint, records bigint"
)
"""The schema of a violation in the log or in an export: its position or ordering offset, the value found, and the value expected.

A row that stands for several records has the offset of the last one, and their number."""

LOG: Final = "log"
"""The `source` of a violation in the log; for one in an export it is the absolute path of the export's folder."""


def violations(
    frame: DataFrame,
    type_: Column,
    *,
    found: Column,
    expected: Column,
    position: Column | None = None,
    offset: Column | None = None,
    id_: Column | None = None,
    source: Column | None = None,
    offset_last: Column | None = None,
    records: Column | None = None,
) -> DataFrame:
    """Returns a row of `VIOLATION` for each row of `frame`. Without `source` it is the log; other columns not given are null."""
    return frame.select(
        type_.alias("type"),
        (F.lit(None) if position is None else position).cast("bigint").alias("position"),
        (F.lit(None) if offset is None else offset).cast("bigint").alias("offset"),
        (F.lit(None) if id_ is None else id_).cast("string").alias("id"),
        found.alias("found"),
        expected.alias("expected"),
        (F.lit(LOG) if source is None else source).alias("source"),
        (F.lit(None) if offset_last is None else offset_last).cast("bigint").alias("offset_last"),
        (F.lit(None) if records is None else records).cast("bigint").alias("records"),
    )
