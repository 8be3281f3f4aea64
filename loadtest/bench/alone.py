"""A command that measures one figure, on a notary of its own.

Exit codes: 0 measured; 1 a load saw errors; 2 the measurement was impossible, or it was interrupted before its line was written.
"""

import argparse
import sys
from collections.abc import Callable

from deploy.local import CannotRun
from loadtest.bench.report import Report, lines_to, progress
from loadtest.rig import Place, brokers_of, interrupt_once, workers_on
from ordering.errors import NotaryError


def add_arguments(parser: argparse.ArgumentParser, out: str) -> None:
    """Add the options that all such commands share; `out` is the default file for the line."""
    parser.add_argument("--submission-requests", type=int, default=100, metavar="N", help="requests of a submission (default: 100)")
    parser.add_argument("--inputs", type=int, default=1, metavar="N", help="inputs of a request (default: 1)")
    parser.add_argument("--brokers", type=int, choices=(0, 1, 3), default=1, help="0: the embedded log (default: 1)")
    parser.add_argument("--intake-processes", type=int, default=0, metavar="N", help="of the worker (default: none)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is made (default: 1)")
    parser.add_argument("--out", default=out, metavar="FILE", help=f"where the JSON line is added; - is stdout (default: {out})")


def run(chosen: argparse.Namespace, measure: Callable[[Report, Place], None]) -> int:
    """Start a notary, measure it, stop it; returns the exit code."""

    def measured() -> Report:
        with (
            lines_to(chosen.out, append=True) as lines,
            brokers_of(chosen.brokers) as cluster,
            workers_on(cluster, intake=chosen.intake_processes) as place,
        ):
            report = Report(lines, sys.stderr if chosen.out == "-" else sys.stdout)
            measure(report, place)
            report.print_table()
        return report

    interrupt_once()
    return exit_code(measured)


def exit_code(measure: Callable[[], Report]) -> int:
    """Measure; returns the exit code, after printing any error."""
    try:
        report = measure()
    except (CannotRun, NotaryError, RuntimeError, OSError) as problem:
        progress(f"cannot go on: {problem}")
        return 2
    except KeyboardInterrupt:
        progress("interrupted")
        return 2
    return 1 if report.failed else 0
