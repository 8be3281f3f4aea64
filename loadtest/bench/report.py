"""Results: JSON lines for programs, a table for people."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

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
