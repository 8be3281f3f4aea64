"""The stages of a run, and the display of their progress.

Each stage writes its result as Parquet. So the next one starts from files, and Spark computes nothing twice. A small result becomes a part
of the plans that use it (`columns.frame_of`).
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StatusTracker
from pyspark.sql import DataFrame, SparkSession
from rich import progress
from rich.console import Console, RenderableType

from spark_join.engine.files import read_files, write_complete

SMALL_ROWS_MAX: Final = 1000
SMALL_BYTES_MAX: Final = 256 << 10
"""Rows and encoded bytes of a small result, which the driver reads."""
OnStage = Callable[[str], None]
"""A callback that gets the name of each stage when it begins."""


class Stages:
    """Writes the results of stages into `folder`, which all executors reach, and calls `on_stage` with the name of each stage."""

    def __init__(self, session: SparkSession, folder: Path, on_stage: OnStage = lambda stage: None) -> None:
        self._session = session
        self._folder = folder
        self._on_stage = on_stage

    def keep(self, stage: str, frame: DataFrame) -> DataFrame:
        """Compute `frame` now, once, and return a frame that reads its files. `stage` is its name, unique in this run.

        Raises `CouldNotVerify` for a folder that not all executors reach.
        """
        self._on_stage(stage)
        where = self.folder_of(stage)
        rows = write_complete(frame, where)
        if rows <= SMALL_ROWS_MAX and (small := _small(where)) is not None:
            return self._session.createDataFrame(small)
        return read_files(self._session, frame.schema, [where])

    def folder_of(self, stage: str) -> Path:
        """Returns the folder of a stage's files. All executors reach it."""
        return self._folder / stage.replace(" ", "-")


def _small(folder: Path) -> pa.Table | None:
    """Returns the rows of the Parquet files in `folder`, or None if they have too many bytes."""
    files = sorted(folder.glob("*.parquet"))
    footers = map(pq.read_metadata, files)  # not all files open at once: they may be more than a process may open
    if sum([each.row_group(number).total_byte_size for each in footers for number in range(each.num_row_groups)]) > SMALL_BYTES_MAX:
        return None
    # Spark takes an empty batch of Arrow for the last one. In one chunk there is none: task 0 writes a file without rows too.
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files]).combine_chunks()


class Progress:
    """Shows the progress, and records the seconds of each stage in `took_s`.

    On a terminal it keeps one line up to date: the stage, its time, and the share of Spark's current tasks that are done. Elsewhere it
    prints one line a stage. It prints nothing if it is quiet.
    """

    def __init__(self, session: SparkSession, command: str, *, quiet: bool, out: TextIO | None = None) -> None:
        self.took_s: dict[str, float] = {}
        self._out = sys.stderr if out is None else out
        self._name = f"spark_join {command}"
        self._quiet = quiet
        self._stage, self._started_s = "", time.monotonic()
        self._bar: _Bar | None = None
        if not quiet and self._out.isatty():
            self._bar = _Bar(session.sparkContext.statusTracker(), self._name, self._out)
            self._bar.start()

    def __call__(self, stage: str) -> None:
        """Record that `stage` begins and that the one before it has ended."""
        now_s = time.monotonic()
        if self._stage:
            self.took_s[self._stage] = round(now_s - self._started_s, 3)
        self._stage, self._started_s = stage, now_s
        if self._bar is not None and stage:
            self._bar.begin(f"{self._name}: {stage}")
        elif stage and not self._quiet:
            print(f"{self._name}: {stage}", file=self._out, flush=True)

    def end(self) -> None:
        """End the last stage and remove the line. Call this before the session stops: the line asks it for the running tasks."""
        self("")
        if self._bar is not None:
            self._bar.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Removes the line for the length of a block, so that the block can print there."""
        if self._bar is None:
            yield
            return
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()


class _Bar(progress.Progress):
    """The line on a terminal. Each refresh asks Spark for its tasks."""

    def __init__(self, tracker: StatusTracker, text: str, out: TextIO) -> None:
        self._tracker = tracker  # rich asks for the line before its constructor returns
        super().__init__(
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.description}", markup=False),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[tasks]}"),
            console=Console(file=out),
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,  # stdout may be a file, and rich would send it to the terminal
            redirect_stderr=False,
        )
        self.add_task(text, tasks="")

    def begin(self, text: str) -> None:
        """Show another stage, and count its time from 0."""
        self.reset(self.task_ids[0], description=text)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Returns the line, with the share of the tasks of Spark's running stages that are done."""
        running = [stage for number in self._tracker.getActiveStageIds() if (stage := self._tracker.getStageInfo(number)) is not None]
        tasks, done = sum([stage.numTasks for stage in running]), sum([stage.numCompletedTasks for stage in running])
        for line in self.task_ids:
            self.update(line, total=tasks or 1, completed=done, tasks=f"{done} of {tasks} tasks" if tasks else "")
        return super().get_renderables()
