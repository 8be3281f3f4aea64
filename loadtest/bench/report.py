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
    """Where results go: a JSON line each to `lines`, and in the end a table to `table`."""

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
        """One result. `failed`: what was measured did not do its work, so its figures mean nothing."""
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
        """Everything that was added, for people."""
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
"""Takes what stands on a terminal's last line away, such as a bar."""


def progress(text: str) -> None:
    """A line for whoever waits."""
    print(f"{CLEAR if sys.stderr.isatty() else ''}bench: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def lines_to(out: str, *, append: bool = False) -> Iterator[TextIO]:
    """Where a report's lines go: a file, or - for stdout."""
    if out == "-":
        yield sys.stdout
    else:
        with Path(out).open("a" if append else "w") as lines:
            yield lines


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many percent are not above; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def _told(result: Mapping[str, Any]) -> str:
    told = ", ".join([f"{name} {_shown(value)}" for name, value in result["figures"].items() if not _long(value)])
    return f"FAILED ({told})" if result["failed"] else told


def _long(value: Any) -> bool:
    """Whether it is for programs: a list of more than a few numbers."""
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
