"""The progress of a run: its current stage, and the share of Spark's current tasks that are done."""

import shutil
import sys
import threading
import time
from typing import TextIO

from pyspark.sql import SparkSession

_WIDTH = 24
_LOOK_S = 0.3
_CLEAR = "\r\x1b[K"


class Progress:
    """Shows the progress, and records the seconds of each stage in `took_s`.

    On a terminal it keeps one line up to date; elsewhere it prints one line a stage. It prints nothing if it is quiet.
    """

    def __init__(self, session: SparkSession, command: str, *, quiet: bool, out: TextIO | None = None) -> None:
        self.took_s: dict[str, float] = {}
        self._out = sys.stderr if out is None else out
        self._name = f"spark_join {command}"
        self._quiet = quiet
        self._stage, self._started_s = "", time.monotonic()
        self._tracker = session.sparkContext.statusTracker()
        self._over = threading.Event()
        self._showing: threading.Thread | None = None
        if not quiet and self._out.isatty():
            self._showing = threading.Thread(target=self._keep_showing, name="progress", daemon=True)
            self._showing.start()

    def __call__(self, stage: str) -> None:
        """Record that `stage` begins and that the one before it has ended."""
        now_s = time.monotonic()
        if self._stage:
            self.took_s[self._stage] = round(now_s - self._started_s, 3)
        self._stage, self._started_s = stage, now_s
        if self._showing is None and not self._quiet and stage:
            print(f"{self._name}: {stage}", file=self._out, flush=True)

    def end(self) -> None:
        """End the last stage and remove the line. Call this before the session stops: the thread asks it for the running tasks."""
        self("")
        self._over.set()
        if self._showing is not None:
            self._showing.join()
            self.clear()

    def clear(self) -> None:
        """Remove the line, so that the caller can print there; the next refresh shows it again below."""
        if self._showing is not None:
            print(_CLEAR, end="", file=self._out, flush=True)

    def _keep_showing(self) -> None:
        while not self._over.wait(_LOOK_S):
            line = self._line()
            # A line that wraps into the next row could not be removed again.
            print(_CLEAR + line[: shutil.get_terminal_size().columns - 1], end="", file=self._out, flush=True)

    def _line(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._started_s), 60)
        text = f"{self._name}: {self._stage}, {minutes}:{seconds:02d} min"
        running = [self._tracker.getStageInfo(number) for number in self._tracker.getActiveStageIds()]
        tasks = sum([stage.numTasks for stage in running if stage is not None])
        if not tasks:
            return text
        done = sum([stage.numCompletedTasks for stage in running if stage is not None])
        full = done * _WIDTH // tasks
        return f"[{'#' * full}{'.' * (_WIDTH - full)}] {text}, {done} of {tasks} tasks"
