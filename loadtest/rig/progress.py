"""Progress on stderr: on a terminal a bar by `rich`, with lines above it; elsewhere lines alone, and not too many."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

CONSOLE: Final = Console(stderr=True)
CHECK_S: Final = 0.5
LINE_EVERY_S: Final = 10.0
"""Without a terminal, a line is printed this often, and when the text changes."""


def progress(text: str) -> None:
    """Print a line of progress, above the bar if there is one."""
    CONSOLE.print(f"bench: {text}", markup=False, highlight=False, soft_wrap=True)


class Bar:
    """The share of a run that is done, and the time that is left."""

    def __init__(self, console: Console = CONSOLE, now_s: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now_s = now_s
        self._began_s = now_s()
        self._printed_s, self._printed = float("-inf"), ""
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (TaskProgressColumn(), BarColumn(24), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
            self._task = self._bar.add_task("", total=1.0)

    def show(self, share: float, text: str, details: str = "") -> None:
        """Show that the share (0 to 1) is done; `text` is the current part, `details` may change at every update."""
        share = min(max(share, 0.0), 1.0)
        described = f"{text}{', ' + details if details else ''}"
        if self._bar is not None:
            self._bar.start()
            self._bar.update(self._task, completed=share, description=described)
            return
        now_s = self._now_s()
        if text != self._printed or now_s - self._printed_s >= LINE_EVERY_S:
            self._printed_s, self._printed = now_s, text
            # Estimated from the time so far; at share 0 there is no estimate.
            left = f"{_time((now_s - self._began_s) * (1 - share) / share)} left" if share > 0 else "just begun"
            self._console.print(f"bench: {share:.0%} {described}, {left}", markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def during(self, share: float, more: float, seconds: float, text: str) -> Iterator[None]:
        """Advance the bar by the clock during a block: `share` is done before it, `more` is added by it, in about `seconds`."""
        began_s, over = self._now_s(), threading.Event()
        # Scale this part's estimate by the time so far per share done, once 10 % is done.
        expected_s = max(more * (began_s - self._began_s) / share if share > 0.1 else seconds, 0.1)

        def keep_showing() -> None:
            while not over.wait(CHECK_S):
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
        if self._bar is not None:
            self._bar.stop()


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"
