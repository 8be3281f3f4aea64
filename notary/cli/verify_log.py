"""`notary verify-log`: decides a complete log again in Spark, and compares the results (docs/command-line.md).

The independent verifier is a separate program, `python -P -m spark_join verify`, which shares no code with the service that it checks. This
command passes on its arguments and returns its exit code.
"""

import argparse
import subprocess
import sys
from importlib.util import find_spec

from ordering.errors import ConfigurationError

_NEEDED = ("pyspark", "pyarrow", "pandas")
_HANDED_ON = ("archive", "bootstrap", "prefix", "kafka-config", "out", "parties", "checkpoint-from", "work", "master", "memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `notary verify-log`."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--archive", metavar="DIR", help="the archive of both topics")
    source.add_argument("--bootstrap", metavar="HOST:PORT[,...]", help="the brokers that have both topics")
    parser.add_argument("--prefix", help="of the topics' names (with --bootstrap)")
    parser.add_argument("--kafka-config", metavar="FILE", help="how to connect: a properties file as Kafka's own tools take it")
    parser.add_argument("--kafka-option", action="append", metavar="NAME=VALUE", help="one more such property")
    parser.add_argument("--out", metavar="DIR", required=True, help="where report.json and violations/ go; it has neither yet")
    parser.add_argument(
        "--parties", metavar="FILE", help="the parties' keys, as parties.json has them; without them no signature is checked"
    )
    parser.add_argument("--keep-state", action="store_true", help="keep in --out what a later run goes on from")
    parser.add_argument("--checkpoint-from", metavar="DIR", help="the --out of an earlier run: verify what came after it")
    parser.add_argument("--index", metavar="DIR", action="append", help="an exported index (notary export), to be compared too; any number")
    parser.add_argument("--work", metavar="DIR", help="for what the stages make; all executors reach it")
    parser.add_argument("--master", help="Spark's master")
    parser.add_argument("--memory", help="the driver's memory")


def run(arguments: argparse.Namespace) -> int:
    """Run the verifier. Returns 0 for a clean log, 1 for violations, 2 for a failure."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise ConfigurationError(f"{', '.join(missing)} is not installed, which Spark needs: pip install 'kafka-notary[spark]'")
    given = vars(arguments)
    single = [(name, given[name.replace("-", "_")]) for name in _HANDED_ON]
    repeated = [(name, value) for name in ("kafka-option", "index") for value in given[name.replace("-", "_")] or ()]
    handed_on = [f"--{name}={value}" for name, value in single + repeated if value is not None]
    if arguments.keep_state:
        handed_on.append("--keep-state")
    return subprocess.call([sys.executable, "-P", "-m", "spark_join", "verify", *handed_on])
