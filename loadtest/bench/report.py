"""Results: JSON lines for programs, a table for people."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
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


def progress(text: str) -> None:
    """A line for whoever waits."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many percent are not above; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def _told(result: Mapping[str, Any]) -> str:
    told = ", ".join(
        [f"{name} {value:,}" if isinstance(value, int | float) else f"{name} {value}" for name, value in result["figures"].items()]
    )
    return f"FAILED ({told})" if result["failed"] else told


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")
