"""Results: a JSON line each for programs, written and read again, and a table for people."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtest.rig.machine import OthersMeter, load_average, machine
from loadtest.rig.progress import progress

OTHERS_SHARE_MAX: Final = 0.02
"""The share of the machine that other processes may take while a published figure is measured."""
CHANGED: Final = "-changed"
"""The end of the commit of a tree with uncommitted changes."""


class ResultLine(msgspec.Struct, frozen=True):
    """One result."""

    figure: str
    case: str
    figures: dict[str, Any]
    parameters: dict[str, Any]
    machine: dict[str, Any]
    time: str
    goal: str | None = None
    failed: bool = False
    """True if the system under test made errors: then the figures are invalid."""
    load_average: float | None = None
    others_share: float | None = None
    """The share of all cores that processes of others took while this was measured; None if it is unknown."""

    @property
    def refusals(self) -> list[str]:
        """The reasons why the page does not publish it; empty if it does."""
        reasons = []
        if self.others_share is None:
            reasons.append("others took an unknown share of the machine")
        elif self.others_share >= OTHERS_SHARE_MAX:
            reasons.append(f"others took {self.others_share:.1%} of the machine")
        commit = self.machine.get("git")
        if not commit:
            reasons.append("it has no commit")
        elif commit.endswith(CHANGED):
            reasons.append("its tree had uncommitted changes")
        return reasons


class Report:
    """Writes results: a JSON line each to `lines`, and at the end a table to `table`."""

    def __init__(self, lines: TextIO, table: TextIO) -> None:
        self._lines = lines
        self._table = table
        self._results: list[ResultLine] = []
        self.others = OthersMeter()
        """Measures how much others take, from `begin` on; otherwise the period of a result begins with the result before it."""
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
        others_share: float | None = None,
    ) -> None:
        """Add one result. `failed`: the system under test made errors, so its figures are invalid.

        `others_share`: of the period in which it was measured, if that did not end now.
        """
        result = ResultLine(
            figure=figure,
            case=case,
            figures={name: _rounded(value) for name, value in figures.items()},
            parameters=dict(parameters),
            machine=machine(),
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            goal=goal,
            failed=failed,
            load_average=load_average(),
            others_share=_rounded(self.others.share() if others_share is None else others_share),
        )
        self.failed = self.failed or failed
        self._results.append(result)
        print(orjson.dumps(msgspec.structs.asdict(result)).decode(), file=self._lines, flush=True)
        progress(f"{figure}: {case}: {_summary(result)}")
        if result.refusals:
            progress(f"{figure}: {case}: not for docs/performance.md: {', '.join(result.refusals)}")

    def print_table(self) -> None:
        """Print all results, a table for each figure."""
        about = machine()
        # Without a terminal no line is broken: programs may read it.
        console = Console(file=self._table, width=None if self._table.isatty() else 10_000, highlight=False)
        console.print(f"{about['cores']} cores of {about['cpu']}, {about['memory_bytes'] / 2**30:.0f} GiB, Python {about['python']}")
        for figure in dict.fromkeys(result.figure for result in self._results):
            table = Table(title=Text(figure), title_justify="left", box=None, show_header=False, pad_edge=False)
            for result in self._results:
                if result.figure == figure:
                    goal = f" (goal: {result.goal})" if result.goal else ""
                    table.add_row(Text(result.case), Text(_summary(result) + goal))
            console.print("", table)
        self._table.flush()


@contextlib.contextmanager
def report_to(out: str) -> Iterator[Report]:
    """Yields a report whose lines are appended to a file, or for `-` go to stdout; prints its table at the end, for `-` on stderr.

    A run that fails leaves the results of earlier runs. The newest result of each case counts (`last_of_each`).
    """
    with contextlib.ExitStack() as stack:
        lines = sys.stdout if out == "-" else stack.enter_context(Path(out).open("a"))
        report = Report(lines, sys.stderr if out == "-" else sys.stdout)
        yield report
        report.print_table()


def read(file: Path) -> list[ResultLine]:
    """Returns the results of a file without the failed ones, which are invalid. Raises `ValueError` naming a line that is no result."""
    found: list[ResultLine] = []
    for number, text in enumerate(file.read_bytes().splitlines(), 1):
        try:
            line = msgspec.json.decode(text, type=ResultLine)
        except msgspec.DecodeError as problem:
            raise ValueError(f"{file}, line {number} is not a result: {problem}") from None
        if not line.failed:
            found.append(line)
    return found


def last_of_each(lines: Sequence[ResultLine], figure: str) -> list[ResultLine]:
    """Returns the newest result of each case of a figure, in the order in which the cases first appeared."""
    of_figure = [line for line in lines if line.figure == figure]
    newest = {line.case: line for line in sorted(of_figure, key=lambda line: line.time)}
    return [newest[case] for case in dict.fromkeys([line.case for line in of_figure])]


def about(lines: Sequence[ResultLine]) -> list[str]:
    """Returns a text for each machine, versions and commit of some results, with their days and load averages.

    If there are several, each text names its cases.
    """
    groups: dict[str, list[ResultLine]] = {}
    for line in lines:
        groups.setdefault(_origin(line), []).append(line)
    return [
        ("" if len(groups) == 1 else f"{'; '.join([line.case for line in group])}: ")
        + f"{origin}, {_range([line.time[:10] for line in group])}, load average {_range([line.load_average for line in group])}"
        for origin, group in groups.items()
    ]


def _origin(line: ResultLine) -> str:
    machine = line.machine
    commit = str(machine.get("git") or "no commit")
    shown = commit[:10] + (CHANGED if commit.endswith(CHANGED) else "")
    cores = f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB"
    return f"{cores}, Python {machine['python']}, Kafka {machine['kafka']}; {shown}"


def _range(values: Sequence[Any]) -> str:
    known = sorted([value for value in values if value is not None])
    return " to ".join(map(str, dict.fromkeys([*known[:1], *known[-1:]]))) or "unknown"


def _summary(result: ResultLine) -> str:
    # Only programs read a list of objects.
    values = {
        name: value for name, value in result.figures.items() if not (isinstance(value, list) and value and isinstance(value[0], dict))
    }
    shown = ", ".join([f"{name} {_shown(value)}" for name, value in values.items()])
    return f"FAILED ({shown})" if result.failed else shown


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
