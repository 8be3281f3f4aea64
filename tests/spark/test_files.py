"""Tests that Spark reads the files that it is asked for."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_join.engine.files import read_files, write_complete

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_folder_names_that_look_like_patterns(spark: SparkSession, tmp_path: Path) -> None:
    """A folder is read under any name, and never another one that its name matches as a pattern."""
    for number, (name, other) in enumerate([("a[1]", "a1"), ("b{c,d}", "bc"), ("e*", "ef"), ("g?", "gh"), ("i\\j", "ij")]):
        for folder, value in ((name, number), (other, -1)):
            write_complete(spark.createDataFrame([(value,)], "at bigint"), tmp_path / folder / "partition=7")
        read = read_files(spark, "at bigint, partition int", [tmp_path / name / "partition=7"], tmp_path / name)
        assert [(row.at, row.partition) for row in read.collect()] == [(number, 7)]
