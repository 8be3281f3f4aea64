"""A figure: the complete description of one kind of result. Each file of `figures/` describes its own figures; no other file names them.

A figure is measured in parts, each on one system under test, in one or more steps; or by a separate command. Its results are JSON lines
(`report`), from which its tables and its picture on docs/performance.md are made (`page`).
"""

import argparse
import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from deploy.local import CannotRun
from loadtest.bench.report import Report, ResultLine, report_to
from loadtest.rig.arguments import acceptor_processes, count
from loadtest.rig.notaries import RunningNotary, brokers_of, interrupt_once, log_name, notary_on
from loadtest.rig.progress import progress
from loadtest.rig.signing import PARTY
from notary.memory import collect_garbage_rarely
from ordering.errors import NotaryError

if TYPE_CHECKING:  # `make bench` needs no plots
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

Row: TypeAlias = Sequence[str]
Lines: TypeAlias = Sequence[ResultLine]


class RunOptions(msgspec.Struct, frozen=True):
    """The options of a run of the bench."""

    seconds: float
    """The length of an `end-to-end` load. The lengths of other loads are in proportion."""
    seed: int = 1
    quick: bool = False
    brokers: int | None = None
    """Measure only with this number of brokers; None: with all that the figure has."""


class Step(msgspec.Struct, frozen=True):
    """One measurement of a part; `run` gets the object that the part opened."""

    text: str
    seconds: float
    run: Callable[[Any], None]


class Part(msgspec.Struct, frozen=True):
    """Measurements on one system under test."""

    text: str
    open: Callable[[], AbstractContextManager[Any]]
    steps: Sequence[Step]


class Figure(msgspec.Struct, frozen=True):
    """One kind of result: the way to measure it, and its tables and picture on the page."""

    name: str
    question: str
    parts: Callable[[Report, RunOptions], Sequence[Part]] | None = None
    """None: it is measured by a command of its own, not by `make bench`."""
    tables: Mapping[str, Callable[[Lines], Sequence[Row]]] = {}
    """By the name of its marker in the page: a function from the last result of each case to the rows, head first."""
    draw: "Callable[[Picture, Lines], None] | None" = None


# ---- parts ----


def part_alone(name: str, measure: Callable[[Report, float, int], None], times: float) -> Callable[[Report, RunOptions], Sequence[Part]]:
    """Returns the parts of a figure that needs no notary: `times` is its length, as a multiple of a quarter of a load."""

    def parts(report: Report, options: RunOptions) -> Sequence[Part]:
        seconds = options.seconds / 4
        step = Step(name, seconds * times, lambda opened: measure(report, seconds, options.seed))
        return [Part(name, contextlib.nullcontext, [step])]

    return parts


def part_on_brokers(
    name: str, measure: Callable[[Report, str, int, float, int], None], share: float, times: float
) -> Callable[[Report, RunOptions], Sequence[Part]]:
    """Returns the parts of a figure that needs brokers alone, three of them: `share` is its seconds' share of a load."""

    def parts(report: Report, options: RunOptions) -> Sequence[Part]:
        brokers, seconds = 3 if options.brokers is None else options.brokers, options.seconds * share
        if not brokers:
            return []
        step = Step(name, seconds * times, lambda cluster: measure(report, cluster.bootstrap, brokers, seconds, options.seed))
        return [Part(f"{name}, {log_name(brokers)}", lambda: brokers_of(brokers), [step])]

    return parts


def part_on_notary(name: str, brokers: int, steps: Sequence[Step], parties: Sequence[str] = (PARTY,)) -> Part:
    """Returns a part on a notary of one worker, with these parties registered; 0 brokers: the embedded log."""
    return Part(f"{name}, {log_name(brokers)}", lambda: notary_on(brokers, parties=parties), steps)


def load_s(seconds: float) -> float:
    """Returns the approximate time of a load of this length, including the generation of its bodies."""
    return seconds * 1.5 + 1.5


@contextlib.contextmanager
def as_a_worker() -> Iterator[None]:
    """Have Python's garbage collector run as rarely as in a worker for the length of a block: parts of workers run in this process."""
    before = gc.get_threshold()
    collect_garbage_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


# ---- a command that measures one figure, on a notary of its own ----


def add_arguments(parser: argparse.ArgumentParser, out: str) -> None:
    """Add the options that all such commands share; `out` is the default file for the line."""
    parser.add_argument("--submission-requests", type=count, default=100, metavar="N", help="requests of a submission (default: 100)")
    parser.add_argument("--inputs", type=count, default=1, metavar="N", help="inputs of a request (default: 1)")
    parser.add_argument("--brokers", type=int, choices=(0, 1, 3), default=1, help="0: the embedded log (default: 1)")
    parser.add_argument("--acceptor-processes", type=acceptor_processes, default=0, metavar="N", help="of the worker (default: none)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is made (default: 1)")
    parser.add_argument("--out", default=out, metavar="FILE", help=f"where the JSON line is added; - is stdout (default: {out})")


def run_alone(chosen: argparse.Namespace, measure: Callable[[Report, RunningNotary], None], parties: Sequence[str] = (PARTY,)) -> int:
    """Start a notary, measure it, stop it; returns the exit code."""

    def measured(report: Report) -> None:
        with notary_on(chosen.brokers, acceptors=chosen.acceptor_processes, parties=parties) as running:
            report.others.begin()
            measure(report, running)

    return exit_code(measured, chosen.out)


def exit_code(measure: Callable[[Report], None], out: str) -> int:
    """Measure into that file, or for `-` to stdout; returns the exit code, after printing any error. One Ctrl-C ends it in order.

    0: measured. 1: a load saw errors. 2: the measurement was impossible, or it was interrupted before its line was written.
    """
    interrupt_once()
    try:
        with report_to(out) as report, as_a_worker():
            measure(report)
    except (CannotRun, NotaryError, RuntimeError, OSError) as problem:
        progress(f"cannot go on: {problem}")
        return 2
    except KeyboardInterrupt:
        progress("interrupted")
        return 2
    return 1 if report.failed else 0


# ---- tables ----

Cell: TypeAlias = Callable[[ResultLine], str]


def columns(*described: tuple[str, str | Cell], only: Callable[[ResultLine], bool] = lambda line: True) -> Callable[[Lines], Sequence[Row]]:
    """Returns a table with a row for each result, or for each that `only` picks.

    A column is its head, and the name of a figure, shown as a number, or a function from a result to the cell.
    """
    head = [name for name, _ in described]
    cells = [number(cell) if isinstance(cell, str) else cell for _, cell in described]
    return lambda lines: [head, *[[cell(line) for cell in cells] for line in lines if only(line)]]


def formatted(name: str, form: str) -> Cell:
    """Returns a function from a result to the cell of one figure, in that format; empty if the result does not have it."""
    return lambda line: "" if (value := line.figures.get(name)) is None else form.format(value)


def number(name: str, unit: str = "") -> Cell:
    """Returns a function from a result to a figure as a number of about three digits; empty if the result does not have it."""

    def cell(line: ResultLine) -> str:
        value: Any = line.figures.get(name)
        return "" if value is None else f"{value:,.0f}{unit}" if abs(value) >= 100 else f"{value:.3g}{unit}"

    return cell


def both(values: Sequence[float], unit: str) -> str:
    """Returns the values before and after a load as a cell."""
    return " and ".join([f"{value:,}{unit}" for value in values])


def case_of(line: ResultLine) -> str:
    """Returns the case as a cell, which also shows that the submissions ran out: then the load was shorter, or lower."""
    return f"{line.case} (no submissions left before the end)" if line.figures.get("ran_out") else line.case


rate_rows = columns(
    ("case", lambda line: line.case),
    ("requests/s", "requests_per_s"),
    ("inputs/s", "inputs_per_s"),
    ("CPU microseconds a request", "cpu_us_per_request"),
)
"""The table of a figure without a load: its rate and its CPU time."""


# ---- pictures ----

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""The palette of Okabe and Ito, distinguishable with any colour vision; shapes and dashes differ too."""
MARKS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")


def series(lines: Iterable[ResultLine], name_of: Callable[[ResultLine], str]) -> dict[str, list[ResultLine]]:
    """Returns the lines by name."""
    found: dict[str, list[ResultLine]] = {}
    for line in lines:
        found.setdefault(name_of(line), []).append(line)
    return found


def values(moments: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Returns one value of each moment."""
    return [moment[name] for moment in moments]


def thousands(axes: "Axes") -> None:
    """Write the numbers of both axes with commas."""
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if axes.get_yscale() == "linear":
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
