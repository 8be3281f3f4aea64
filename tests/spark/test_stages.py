"""Tests that each stage finds the files of the one before, or the log is not verified."""

import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_join.commands import main
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_rows_that_the_driver_does_not_find(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that an executor wrote to a folder that the driver does not see are reported, and the rest does not count as complete."""

    def out_of_reach(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.column("id")[0].as_py():  # the second task: move the first one's files to a place that the driver does not read
                while not (written := list((tmp_path / "a-stage/_temporary/0").glob("task_*"))):
                    time.sleep(0.05)
                shutil.move(written[0], tmp_path / "of another machine")
            yield batch

    stages = Stages(spark, tmp_path)
    frame = spark.range(0, 10, numPartitions=2).mapInArrow(out_of_reach, "id bigint")
    with pytest.raises(CouldNotVerify, match=r"10 rows were written into .*/a-stage, and 5 are there: .* --work"):
        stages.keep("a stage", frame)
    assert stages.keep("nothing", spark.createDataFrame([], "id bigint")).count() == 0


def test_executors_elsewhere_need_a_folder_that_all_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With remote executors, a temporary folder of the driver's is rejected before anything is read, and before a cluster is contacted."""
    assert main(["verify", "--archive", str(tmp_path), "--out", str(tmp_path / "out"), "--master", "spark://127.0.0.1:1"]) == 2
    assert "the executors of spark://127.0.0.1:1 do not reach a temporary folder of this machine" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
