"""Parquet that is written as a whole, or told to be less.

Executors write the files and the driver lists them. Of a folder that is another one on another machine it lists fewer or none, takes that
for all there is, and says that the job has succeeded; who reads the rest with a schema that is given sees fewer rows and no error.
"""

from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from spark_join.errors import CouldNotVerify


def write_whole(frame: DataFrame, folder: Path, compression: str = "snappy") -> int:
    """Write `frame` into `folder`, which it makes; how many rows. Raises `CouldNotVerify` unless the driver finds them all there."""
    counted = Observation()
    frame.observe(counted, F.count("*").alias("rows")).write.option("compression", compression).parquet(str(folder))
    rows: int = counted.get["rows"]
    refuse_fewer(folder, rows)
    return rows


def refuse_fewer(folder: Path, rows: int) -> None:
    """Raise `CouldNotVerify` unless the files in `folder` have so many rows, as their footers say."""
    found = rows_in(folder.glob("*.parquet"))
    if found != rows:
        raise CouldNotVerify(
            f"{rows} rows were written into {folder}, and {found} are there: it is another folder for the driver than for some executors,"
            " or files were taken out of it. Name one with --work and --out that all of them reach"
        )


def rows_in(files: Iterable[Path]) -> int:
    """How many rows Parquet files have, as their footers say; nothing else of them is read."""
    return sum([pq.read_metadata(file).num_rows for file in files])
