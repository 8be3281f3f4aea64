"""`notary verify-log`: decides a complete log again in Spark, and compares the results (docs/command-line.md).

The independent verifier is a separate program, `python -P -m spark_join verify`, which shares no code with the service that it checks. This
command passes on its arguments and returns its exit code. So only that program declares them, and `--help` shows its own help.
"""

import argparse
import subprocess
import sys

from notary.exit_codes import EXIT_COULD_NOT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Accept any arguments, also those that begin with a dash."""
    parser.prefix_chars = ""
    parser.add_argument("arguments", nargs=argparse.REMAINDER)


def run(arguments: argparse.Namespace) -> int:
    """Run the verifier. Returns 0 for a clean log, 1 for violations, 2 for a failure."""
    code = subprocess.call([sys.executable, "-P", "-m", "spark_join", "verify", *arguments.arguments])
    if code < 0:
        print(f"notary verify-log: signal {-code} ended the verifier: there is no result. It may need more memory", file=sys.stderr)
        return EXIT_COULD_NOT
    return code
