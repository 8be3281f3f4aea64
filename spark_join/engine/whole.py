"""Complete Parquet folders: written with all their rows, or reported as incomplete.

Executors write the files, and the driver lists them. If the folder is another one on another machine, the driver lists fewer files or none,
and Spark reports success. A reader that gives the schema then sees fewer rows and no error. So the rows are counted.
"""

from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from spark_join.errors import CouldNotVerify


def write_whole(frame: DataFrame, folder: Path, compression: str = "snappy") -> int:
    """Write `frame` into `folder`, which must not exist yet; return the number of rows.

    Raises `CouldNotVerify` unless the driver finds all of them there.
    """
    counted = Observation()
    frame.observe(counted, F.count("*").alias("rows")).write.option("compression", compression).parquet(str(folder))
    rows: int = counted.get["rows"]
    refuse_fewer(folder, rows)
    return rows


def refuse_fewer(folder: Path, rows: int) -> None:
    """Raise `CouldNotVerify` unless the files in `folder` have exactly `rows` rows, by their footers."""
    found = rows_in(folder.glob("*.parquet"))
    if found != rows:
        raise CouldNotVerify(
            f"{rows} rows were written into {folder}, and {found} are there: it is another folder for the driver than for some executors,"
            " or files were taken out of it. Name one with --work and --out that all of them reach"
        )


def rows_in(files: Iterable[Path]) -> int:
    """Returns the number of rows of Parquet files, from their footers; reads nothing else of them."""
    return sum([pq.read_metadata(file).num_rows for file in files])
