"""The command line: `python -P -m loadtest.bench [--only NAME] [--quick | --seconds S] [--out bench.jsonl] [--brokers 3]`.

Exit codes: 0 measured; 1 a load saw errors, so its figures are invalid; 2 a measurement was impossible, or the run was interrupted. Then
the file has the figures measured so far.
"""

import argparse
import logging
import sys
from collections.abc import Iterable, Sequence

from deploy.local import CannotRun
from loadtest.bench.figure import Part, RunOptions, as_a_worker
from loadtest.bench.figures import all_figures
from loadtest.bench.report import Report, report_to
from loadtest.rig.arguments import above_zero
from loadtest.rig.notaries import interrupt_once, log_name
from loadtest.rig.progress import Bar, progress
from ordering.errors import NotaryError

SECONDS, SECONDS_QUICK = 20.0, 3.0


def main(arguments: list[str] | None = None) -> int:
    """Run the measurements; returns the exit code."""
    names = measurable()
    parser = argparse.ArgumentParser(
        prog="python -P -m loadtest.bench",
        description="The speed of the notary on this machine.",
        epilog="figures:\n" + "\n".join([f"  {name:<12} {all_figures()[name].question}" for name in names]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="one of the figures below; may be repeated")
    parser.add_argument("--quick", action="store_true", help=f"{SECONDS_QUICK:g} s a load, and a shorter curve: about five minutes")
    parser.add_argument("--seconds", type=above_zero, metavar="S", help=f"the length of a load (default: {SECONDS:g})")
    parser.add_argument(
        "--out", default="bench.jsonl", metavar="FILE", help="where the JSON lines are added; - is stdout, and the table stderr"
    )
    parser.add_argument("--brokers", type=int, choices=(0, 1, 3), help="only with this number of brokers, 0: the embedded log")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is generated (default: 1)")
    chosen = parser.parse_args(arguments)
    seconds = chosen.seconds or (SECONDS_QUICK if chosen.quick else SECONDS)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    interrupt_once()
    bar = Bar()
    with report_to(chosen.out) as report:
        parts = parts_of(report, chosen.only or names, RunOptions(seconds, chosen.seed, chosen.quick, chosen.brokers))
        try:
            problems = (
                run(parts, report, bar) if parts else [f"nothing to measure: no such figure has a part on {log_name(chosen.brokers)}"]
            )
        except KeyboardInterrupt:
            problems = ["interrupted"]
        bar.end()
    for problem in problems:
        progress(problem)
    return 2 if problems else 1 if report.failed else 0


def measurable() -> list[str]:
    """Returns the names of the figures that `make bench` measures."""
    return [figure.name for figure in all_figures().values() if figure.parts is not None]


def parts_of(report: Report, figures: Iterable[str], options: RunOptions) -> list[Part]:
    """Returns the parts of these figures. The shortest figure comes first, so that an interrupted run has most of them."""
    chosen = [figure.parts(report, options) for name in dict.fromkeys(figures) if (figure := all_figures()[name]).parts is not None]
    return [part for parts in sorted(chosen, key=seconds_of) for part in parts]


def seconds_of(parts: Sequence[Part]) -> float:
    """Returns the approximate time that these parts take."""
    return sum([step.seconds for part in parts for step in part.steps])


def run(parts: Sequence[Part], report: Report, bar: Bar) -> list[str]:
    """Run one part after another; returns the reasons for parts that could not be measured, which do not stop the others."""
    seconds = seconds_of(parts)
    steps = sum([len(part.steps) for part in parts])
    done_s, number, problems = 0.0, 0, []
    for part in parts:
        ends_s, last = done_s + seconds_of([part]), number + len(part.steps)
        bar.show(done_s / seconds, f"{number}/{steps} {part.text}: starting")
        try:
            with part.open() as opened:
                for step in part.steps:
                    number += 1
                    report.others.begin()
                    with bar.during(done_s / seconds, step.seconds / seconds, step.seconds, f"{number}/{steps} {step.text}"), as_a_worker():
                        step.run(opened)
                    done_s += step.seconds
        except (CannotRun, NotaryError, RuntimeError, OSError) as problem:
            problems.append(f"{part.text} cannot be measured: {problem}")
            progress(problems[-1])
            done_s, number = ends_s, last
    return problems


if __name__ == "__main__":
    sys.exit(main())
