"""How far a run is: its stage, and how many of the tasks that Spark has for it now are done."""

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
    """On a terminal one line that changes, elsewhere a line for each stage; nothing when quiet. Knows how long each stage took."""

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
        """This stage begins, and the one before it ends."""
        now_s = time.monotonic()
        if self._stage:
            self.took_s[self._stage] = round(now_s - self._started_s, 3)
        self._stage, self._started_s = stage, now_s
        if self._showing is None and not self._quiet and stage:
            print(f"{self._name}: {stage}", file=self._out, flush=True)

    def end(self) -> None:
        """The last stage ends, and the line goes; before the session does."""
        self("")
        self._over.set()
        if self._showing is not None:
            self._showing.join()
            self.clear()

    def clear(self) -> None:
        """Take the line away, for something else to be printed there; it comes back."""
        if self._showing is not None:
            print(_CLEAR, end="", file=self._out, flush=True)

    def _keep_showing(self) -> None:
        while not self._over.wait(_LOOK_S):
            line = self._line()
            # One that goes on in the next row could not be taken away again.
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
