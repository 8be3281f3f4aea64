"""Results: JSON lines for programs, written and read again; a table and a progress bar for people."""

import contextlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from loadtest.bench.facts import load_average, machine


class Report:
    """Writes results: a JSON line each to `lines`, and at the end a table to `table`."""

    def __init__(self, lines: TextIO, table: TextIO) -> None:
        self._lines = lines
        self._table = table
        self._results: list[dict[str, Any]] = []
        self.failed = False

    def add(
        self,
        figure: str,
        case: str,
        figures: Mapping[str, Any],
        parameters: Mapping[str, Any],
        goal: str | None = None,
        *,
        failed: bool = False,
    ) -> None:
        """Add one result. `failed`: the system under test made errors, so its figures are invalid."""
        result = {
            "figure": figure,
            "case": case,
            "goal": goal,
            "failed": failed,
            "figures": {name: _rounded(value) for name, value in figures.items()},
            "parameters": dict(parameters),
            "load_average": load_average(),
            "machine": machine(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self.failed = self.failed or failed
        self._results.append(result)
        print(json.dumps(result), file=self._lines, flush=True)
        progress(f"{figure}: {case}: {_told(result)}")

    def print_table(self) -> None:
        """Print all results as a table."""
        about = machine()
        memory = about["memory_bytes"] / 2**30
        print(f"{about['cores']} cores of {about['cpu']}, {memory:.0f} GiB, Python {about['python']}", file=self._table)
        width = max([len(result["case"]) for result in self._results], default=0)
        figure = ""
        for result in self._results:
            if result["figure"] != figure:
                figure = result["figure"]
                print(f"\n{figure}", file=self._table)
            goal = f"  (goal: {result['goal']})" if result["goal"] else ""
            print(f"  {result['case'].ljust(width)}  {_told(result)}{goal}", file=self._table)
        self._table.flush()


CLEAR = "\r\x1b[K"
"""Erases the last line of a terminal, such as a progress bar."""


def progress(text: str) -> None:
    """Print a line of progress on stderr."""
    print(f"{CLEAR if sys.stderr.isatty() else ''}bench: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def lines_to(out: str, *, append: bool = False) -> Iterator[TextIO]:
    """Yields the destination of a report's lines: a file, or stdout for `-`."""
    if out == "-":
        yield sys.stdout
    else:
        with Path(out).open("a" if append else "w") as lines:
            yield lines


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the least value that `percent` percent of the values do not exceed; 0 when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def _told(result: Mapping[str, Any]) -> str:
    told = ", ".join([f"{name} {_shown(value)}" for name, value in result["figures"].items() if not _long(value)])
    return f"FAILED ({told})" if result["failed"] else told


def _long(value: Any) -> bool:
    """Returns True for a value that only programs read: a list of objects."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join([f"{name} {_shown(each)}" for name, each in value.items() if each]) + ")"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if not isinstance(value, float):
        return value
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")


class Line(msgspec.Struct, frozen=True):
    """One result."""

    figure: str
    case: str
    figures: dict[str, Any]
    parameters: dict[str, Any]
    machine: dict[str, Any]
    time: str
    failed: bool = False
    goal: str | None = None
    load_average: float | None = None


def read(file: Path) -> list[Line]:
    """Returns the results of a file without the failed ones, which are invalid. Raises `ValueError` naming a line that is no result."""
    found: list[Line] = []
    for number, text in enumerate(file.read_text().splitlines(), 1):
        try:
            line = msgspec.convert(json.loads(text), Line)
        except (ValueError, msgspec.ValidationError) as problem:
            raise ValueError(f"{file}, line {number} is not a result: {problem}") from None
        if not line.failed:
            found.append(line)
    return found


def last_of_each(lines: Sequence[Line], figure: str) -> list[Line]:
    """Returns the last result of each case of a figure, in the order in which the cases first appeared."""
    return list({line.case: line for line in lines if line.figure == figure}.values())


def about(line: Line) -> str:
    """Returns the machine, the versions and the day of a result, as text."""
    machine = line.machine
    memory = machine["memory_bytes"] / 2**30
    commit = str(machine.get("git") or "no commit")
    shown = commit[:10] + ("-changed" if commit.endswith("-changed") else "")
    cores = f"{machine['cores']} cores of {machine['cpu']}, {memory:.0f} GiB"
    return f"{cores}, Python {machine['python']}, Kafka {machine['kafka']}; {shown}, {line.time[:10]}, load average {line.load_average}"


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
