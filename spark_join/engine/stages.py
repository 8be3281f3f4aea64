"""The stages of a run: each writes its result as Parquet. So the next one starts from files, and Spark computes nothing twice."""

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_join.engine.whole import write_whole

Told = Callable[[str], None]
"""A callback that gets the name of each stage when it begins."""


class Stages:
    """Writes the results of stages into `folder`, which all executors reach, and calls `told` with the name of each stage."""

    def __init__(self, session: SparkSession, folder: Path, told: Told = lambda stage: None) -> None:
        self._session = session
        self._folder = folder
        self._told = told

    def keep(self, stage: str, frame: DataFrame) -> DataFrame:
        """Compute `frame` now, once, and return a frame that reads its files. `stage` is its name, unique in this run.

        Raises `CouldNotVerify` for a folder that not all executors reach.
        """
        self._told(stage)
        where = self._folder / stage.replace(" ", "-")
        write_whole(frame, where)
        return self._session.read.schema(frame.schema).parquet(str(where))
