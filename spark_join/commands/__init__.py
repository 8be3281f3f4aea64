"""The command line: `python -P -m spark_join verify|archive|restore …` (docs/spark.md), one module for each command.

`exit_codes` lists the exit codes.
"""

import argparse
import sys
import traceback
from collections.abc import Sequence

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from deploy.local.errors import CannotRun
from spark_join.commands import archive, restore, verify
from spark_join.errors import CouldNotVerify, cause
from spark_join.exit_codes import COULD_NOT


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name, by default the process's own; return the exit code."""
    chosen = parser().parse_args(arguments)
    try:
        code: int = chosen.run(chosen)
        return code
    except (CouldNotVerify, CannotRun, OSError) as problem:
        print(f"spark_join {chosen.command}: {problem}", file=sys.stderr)
    except (Py4JJavaError, PySparkException) as problem:
        print(f"spark_join {chosen.command}: Spark failed: {cause(problem)}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"spark_join {chosen.command}: interrupted", file=sys.stderr)
    except Exception:
        traceback.print_exc()  # a bug; Python's own exit code, 1, would mean that there are violations
    return COULD_NOT


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands. The namespaces that it makes have `command`, the name, and `run`, the function."""
    made = argparse.ArgumentParser(prog="python -P -m spark_join", description="The log of a notary, decided all over again in Spark.")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (verify, archive, restore):
        name = command.__name__.rpartition(".")[2]
        command.add_arguments(commands.add_parser(name, help=command.HELP))
    return made
