"""Tests the progress output: stage and fraction done, and nothing when quiet."""

import threading
import time
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_join.engine.progress import Progress

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


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
        _until(ended, out, "[############............] spark_join verify: decisions, 0:")
        _until(ended, out, " min, 1 of 2 tasks")
    finally:
        go_on.touch()
        running.join()
        progress.end()
    assert out.getvalue().endswith("\r\x1b[K")
    assert progress.took_s.keys() == {"decisions"}


@pytest.mark.parametrize(("quiet", "told"), [(False, "spark_join verify: one\nspark_join verify: two\n"), (True, "")])
def test_lines_elsewhere(spark: SparkSession, quiet: bool, told: str) -> None:
    """Without a terminal each stage prints a line, none when quiet; the times are measured in any case."""
    out = StringIO()
    progress = Progress(spark, "verify", quiet=quiet, out=out)
    progress("one")
    progress("two")
    progress.end()
    assert out.getvalue() == told
    assert list(progress.took_s) == ["one", "two"]


def test_quiet_on_a_terminal(spark: SparkSession) -> None:
    """A quiet run prints no bar on a terminal."""
    out = Terminal()
    progress = Progress(spark, "verify", quiet=True, out=out)
    progress("one")
    progress.end()
    assert out.getvalue() == ""
