"""`notary verify-log`: decide a whole log again in Spark, and compare (docs/command-line.md).

The second opinion is a program of its own, `python -m spark_join verify`, so that it shares nothing with what it checks. This hands on its
arguments and its exit code.
"""

import argparse
import subprocess
import sys
from importlib.util import find_spec

from ordering.errors import ConfigurationError

_NEEDED = ("pyspark", "pyarrow", "pandas")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `notary verify-log`."""
    parser.add_argument("--archive", metavar="DIR", required=True, help="the archive of both topics")
    parser.add_argument("--out", metavar="DIR", required=True, help="where report.json and violations/ go; it has neither yet")
    parser.add_argument(
        "--parties", metavar="FILE", help="the parties' keys, as parties.json has them; without them no signature is checked"
    )
    parser.add_argument("--index", metavar="DIR", action="append", help="an exported index (notary export), to be compared too; any number")
    parser.add_argument("--work", metavar="DIR", help="for what the stages make; all executors reach it")
    parser.add_argument("--master", help="Spark's master")
    parser.add_argument("--memory", help="the driver's memory")


def run(arguments: argparse.Namespace) -> int:
    """Verify; 0 clean, 1 violations, 2 could not."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise ConfigurationError(f"{', '.join(missing)} is not installed, which Spark needs: pip install 'kafka-notary[spark]'")
    given = [(name, getattr(arguments, name)) for name in ("archive", "out", "parties", "work", "master", "memory")]
    handed_on = [part for name, value in given if value is not None for part in (f"--{name}", value)]
    handed_on += [part for export in arguments.index or () for part in ("--index", export)]
    return subprocess.call([sys.executable, "-m", "spark_join", "verify", *handed_on])
