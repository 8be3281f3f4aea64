"""The stages of a run: what each one makes is written down as Parquet, so that the next one starts from files and nothing is made twice."""

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_join.engine.whole import write_whole

Told = Callable[[str], None]
"""Called with the name of each stage when it begins."""


class Stages:
    """Writes into `folder`, which all executors reach. `told` hears which stage begins."""

    def __init__(self, session: SparkSession, folder: Path, told: Told = lambda stage: None) -> None:
        self._session = session
        self._folder = folder
        self._told = told

    def keep(self, stage: str, frame: DataFrame) -> DataFrame:
        """Compute `frame` now, once, and read it from its files from here on. `stage` is its name, one of a kind.

        Raises `CouldNotVerify` for a folder that not all executors reach.
        """
        self._told(stage)
        where = self._folder / stage.replace(" ", "-")
        write_whole(frame, where)
        return self._session.read.schema(frame.schema).parquet(str(where))
