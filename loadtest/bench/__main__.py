"""The command line: `python -P -m loadtest.bench [--only NAME] [--quick | --seconds S] [--out bench.jsonl] [--brokers 3]`.

Exit codes: 0 measured; 1 a load saw errors and its figures are invalid; 2 a measurement was impossible, or the run was interrupted: the
file has the figures measured so far.
"""

import argparse
import logging
import sys

from loadtest.bench import program
from loadtest.bench.report import Bar, Report, lines_to, progress
from loadtest.rig import interrupt_once

SECONDS, SECONDS_QUICK = 20.0, 3.0


def main(arguments: list[str] | None = None) -> int:
    """Run the measurements; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.bench", description="How fast it is, on this machine.")
    figures = ", ".join(program.FIGURES)
    parser.add_argument("--only", action="append", choices=program.FIGURES, metavar="NAME", help=f"one of {figures}; may be repeated")
    parser.add_argument("--quick", action="store_true", help=f"{SECONDS_QUICK:g} s a load, and a shorter curve: about five minutes")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"how long a load is (default: {SECONDS:g})")
    parser.add_argument("--out", default="bench.jsonl", metavar="FILE", help="where the JSON lines go; - is stdout, and the table stderr")
    parser.add_argument("--brokers", type=int, choices=(0, 1, 3), help="only with so many, 0: the embedded log")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is made (default: 1)")
    chosen = parser.parse_args(arguments)
    seconds = chosen.seconds or (SECONDS_QUICK if chosen.quick else SECONDS)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    interrupt_once()
    bar = Bar()
    with lines_to(chosen.out) as lines:
        report = Report(lines, sys.stderr if chosen.out == "-" else sys.stdout)
        parts = program.parts_of(
            report, chosen.only or program.FIGURES, seconds, chosen.seed, quick=chosen.quick, brokers_only=chosen.brokers
        )
        try:
            problems = program.run(parts, bar)
        except KeyboardInterrupt:
            problems = ["interrupted"]
        bar.end()
        report.print_table()
        for problem in problems:
            progress(problem)
    return 2 if problems else 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
