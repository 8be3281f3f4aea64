"""The command line: `python -m loadtest.bench [--only NAME] [--quick] [--out bench.jsonl] [--brokers 3]`.

Exit codes: 0 measured; 1 a load saw errors, its figures mean nothing; 2 it could not be measured.
"""

import argparse
import logging
import sys

from deploy.local import CannotRun
from loadtest.bench import apply, decode, end_to_end, raw, rebuild, receipts
from loadtest.bench.place import brokers_of, interrupt_once
from loadtest.bench.report import Report, lines_to, progress
from loadtest.bench.stages import measure as stages
from ordering.errors import NotaryError

FIGURES = ("decode", "apply", "receipts", "stages", "raw", "rebuild", "end-to-end")
SECONDS, SECONDS_QUICK = 20.0, 4.0


def main(arguments: list[str] | None = None) -> int:
    """Measure; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description="How fast it is, on this machine.")
    parser.add_argument("--only", action="append", choices=FIGURES, metavar="NAME", help=f"one of {', '.join(FIGURES)}; may be repeated")
    parser.add_argument("--quick", action="store_true", help=f"{SECONDS_QUICK:g} s a measurement instead of {SECONDS:g}")
    parser.add_argument("--out", default="bench.jsonl", metavar="FILE", help="where the JSON lines go; - is stdout, and the table stderr")
    parser.add_argument("--brokers", type=int, choices=(0, 1, 3), help="only with so many, 0: the embedded log")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is made (default: 1)")
    chosen = parser.parse_args(arguments)
    figures = tuple(chosen.only or FIGURES)
    seconds = SECONDS_QUICK if chosen.quick else SECONDS
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    interrupt_once()
    try:
        with lines_to(chosen.out) as lines:
            report = Report(lines, sys.stderr if chosen.out == "-" else sys.stdout)
            _measure(report, figures, seconds, chosen.seed, chosen.brokers)
            report.print_table()
    except (CannotRun, NotaryError, RuntimeError, OSError) as problem:
        progress(f"cannot go on: {problem}")
        return 2
    except KeyboardInterrupt:
        progress("interrupted")
        return 2
    return 1 if report.failed else 0


def _measure(report: Report, figures: tuple[str, ...], seconds: float, seed: int, brokers_only: int | None) -> None:
    if "decode" in figures:
        decode.measure(report, seconds / 4, seed)
    if "apply" in figures:
        apply.measure(report, seconds / 4, seed)
    if "receipts" in figures:
        receipts.measure(report, seconds / 4, seed)
    if "stages" in figures:
        with brokers_of(1 if brokers_only is None else brokers_only) as cluster:
            stages.measure(report, cluster, 1 if brokers_only is None else brokers_only, seconds, seed)
    brokers = 3 if brokers_only is None else brokers_only
    # A cluster of its own for each: brokers copy partition by partition, so that what one figure leaves would slow the next.
    for name, of_brokers in (("raw", raw.measure), ("rebuild", rebuild.measure)):
        if name in figures and brokers:
            with brokers_of(brokers) as cluster:
                assert cluster is not None
                of_brokers(report, cluster.bootstrap, brokers, seconds, seed)
    if "end-to-end" in figures:
        for each in (3, 1, 0) if brokers_only is None else (brokers,):
            with brokers_of(each) as cluster:
                end_to_end.measure(report, cluster, each, seconds, seed)


if __name__ == "__main__":
    sys.exit(main())
