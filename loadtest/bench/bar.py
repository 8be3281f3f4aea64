"""The progress bar of a measurement: the current part, the share done, and the time left."""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from loadtest.bench.report import CLEAR

WIDTH = 24
LOOK_S = 0.5
LINE_EVERY_S = 10.0
"""Without a terminal, a line is printed this often, and when the text changes."""


class Bar:
    """On a terminal one line that is updated, elsewhere separate lines."""

    def __init__(self, out: TextIO | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._out = sys.stderr if out is None else out
        self._now_s = now_s
        self._began_s = now_s()
        self._terminal = self._out.isatty()
        self._told_s, self._told = float("-inf"), ""

    def show(self, share: float, text: str, details: str = "") -> None:
        """Show that the share (0 to 1) is done; `text` is the current part, `details` may change at every update."""
        now_s = self._now_s()
        share = min(max(share, 0.0), 1.0)
        # Estimated from the time so far; at share 0 there is no estimate.
        left = f"{_time((now_s - self._began_s) * (1 - share) / share)} left" if share > 0 else "just begun"
        told = f"{share:4.0%} {text}{', ' + details if details else ''}, {left}"
        if self._terminal:
            full = round(share * WIDTH)
            line = f"[{'#' * full}{'.' * (WIDTH - full)}]{told}"
            # A longer line would wrap into the next row and could not be erased.
            print(CLEAR + line[: shutil.get_terminal_size().columns - 1], end="", file=self._out, flush=True)
        elif text != self._told or now_s - self._told_s >= LINE_EVERY_S:
            self._told_s, self._told = now_s, text
            print(f"bench: {told.strip()}", file=self._out, flush=True)

    @contextlib.contextmanager
    def during(self, share: float, more: float, seconds: float, text: str) -> Iterator[None]:
        """Advance the bar by the clock during a block: `share` is done before it, `more` is added by it, in about `seconds`."""
        began_s, over = self._now_s(), threading.Event()
        # Scale this part's estimate by the time so far per share done, once 10 % is done.
        expected_s = max(more * (began_s - self._began_s) / share if share > 0.1 else seconds, 0.1)

        def keep_showing() -> None:
            while not over.wait(LOOK_S):
                self.show(share + more * min((self._now_s() - began_s) / expected_s, 0.99), text)

        self.show(share, text)
        showing = threading.Thread(target=keep_showing, name="bar", daemon=True)
        showing.start()
        try:
            yield
        finally:
            over.set()
            showing.join()

    def end(self) -> None:
        """Erase the bar."""
        if self._terminal:
            print(CLEAR, end="", file=self._out, flush=True)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"
