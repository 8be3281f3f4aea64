"""Tests that each stage finds the files of the one before, or the log is not verified; and the display of the progress."""

import os
import resource
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_join.commands import main
from spark_join.engine import files
from spark_join.engine.stages import SMALL_BYTES_MAX, SMALL_ROWS_MAX, Progress, Stages
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


def test_an_empty_stage_that_the_driver_does_not_find(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stage of most logs has no rows. Without its file the driver knows that executors write elsewhere."""
    refuse_fewer = files.refuse_fewer

    def elsewhere(folder: Path, rows: int) -> None:
        for file in folder.glob("*.parquet"):
            file.rename(tmp_path / file.name)
        refuse_fewer(folder, rows)

    monkeypatch.setattr(files, "refuse_fewer", elsewhere)
    with pytest.raises(CouldNotVerify, match=r"0 rows were written into .*/nothing, and no file is there: .* --work"):
        Stages(spark, tmp_path).keep("nothing", spark.createDataFrame([], "id bigint"))


def test_small_results_are_a_part_of_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    """A later stage reads no file of a small result; rows and types are the same as in files. Many rows, or large ones, stay in files."""
    schema = "id binary, met array<struct<state: binary, kind: int>>, text string, at bigint, ok boolean"
    rows = [(b"a", [(b"x", 1), (None, 2)], "t", 1, True), (None, None, None, None, None), (b"", [], "", -1, False)]
    stages = Stages(spark, tmp_path)
    kept = stages.keep("few", spark.createDataFrame(rows, schema))
    read = spark.read.parquet(str(tmp_path / "few"))
    assert (kept.inputFiles(), kept.schema) == ([], read.schema)
    assert sorted(map(str, kept.collect())) == sorted(map(str, read.collect()))
    tasks = spark.range(0, 4, numPartitions=4).where("id > 1")  # the first file has no rows, and comes before the others
    assert sorted([row.id for row in stages.keep("of several tasks", tasks).collect()]) == [2, 3]
    assert kept.join(kept.select("id"), "id").where("ok").count() == 1
    assert stages.keep("many", spark.range(SMALL_ROWS_MAX + 1)).inputFiles()
    large = spark.range(2).selectExpr("uuid() AS id", f"repeat(uuid(), {SMALL_BYTES_MAX // 36}) AS value")
    assert stages.keep("large", large).inputFiles()


def test_small_results_of_many_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """A result of a few hundred rows may be in as many files. The driver opens one after the other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/proc/self/fd")) + 64
    stages = Stages(spark, tmp_path)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        kept = stages.keep("of many tasks", spark.range(0, 150, numPartitions=150))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list((tmp_path / "of-many-tasks").glob("*.parquet"))) == 150
    assert (kept.inputFiles(), kept.count()) == ([], 150)


def test_executors_elsewhere_need_a_folder_that_all_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With remote executors, a temporary folder of the driver's is rejected before anything is read, and before a cluster is contacted."""
    assert main(["verify", "--archive", str(tmp_path), "--out", str(tmp_path / "out"), "--master", "spark://127.0.0.1:1"]) == 2
    assert "the executors of spark://127.0.0.1:1 do not reach a temporary folder of this machine" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


ERASED = "\r\x1b[1A\x1b[2K"
"""Control characters of a terminal: go up one line, and erase it."""


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def _until(there: threading.Event, out: StringIO, text: str) -> None:
    while text not in out.getvalue():
        assert not there.wait(0.05), f"it ended without {text!r}: {out.getvalue()!r}"


def test_bar_on_a_terminal(spark: SparkSession, tmp_path: Path) -> None:
    """On a terminal a bar shows the stage and its finished tasks; the line is erased at the end."""
    go_on, ended = tmp_path / "go on", threading.Event()

    def waiting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while batch.column("id")[0].as_py() and not go_on.exists():
                time.sleep(0.05)
            yield batch

    def run() -> None:
        spark.range(0, 2, numPartitions=2).mapInArrow(waiting, "id bigint").collect()
        ended.set()

    out = Terminal()
    progress = Progress(spark, "verify", quiet=False, out=out)
    running = threading.Thread(target=run)
    try:
        progress("decisions")
        running.start()
        _until(ended, out, "spark_join verify: decisions")
        _until(ended, out, "1 of 2 tasks")
        with progress.paused():
            assert out.getvalue().endswith(ERASED)
            out.write("a message\n")
    finally:
        go_on.touch()
        running.join()
        progress.end()
    assert out.getvalue().endswith(ERASED)
    assert progress.took_s.keys() == {"decisions"}


@pytest.mark.parametrize(("quiet", "printed"), [(False, "spark_join verify: one\nspark_join verify: two\n"), (True, "")])
def test_stages_print_lines_without_a_terminal(spark: SparkSession, quiet: bool, printed: str) -> None:
    """Without a terminal each stage prints a line, none when quiet; the times are measured in any case."""
    out = StringIO()
    progress = Progress(spark, "verify", quiet=quiet, out=out)
    progress("one")
    progress("two")
    progress.end()
    assert out.getvalue() == printed
    assert list(progress.took_s) == ["one", "two"]


def test_quiet_on_a_terminal(spark: SparkSession) -> None:
    """A quiet run prints no bar on a terminal."""
    out = Terminal()
    progress = Progress(spark, "verify", quiet=True, out=out)
    progress("one")
    progress.end()
    assert out.getvalue() == ""
