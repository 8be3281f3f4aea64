"""The command line, `notary ...` (docs/command-line.md).

Each command is a module with `add_arguments(parser)` and `run(arguments) -> exit code`. Data goes to stdout, messages to stderr; `--json`
wherever something prints for people; NO_COLOR is honoured.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the answer is no: a rejection under `--fail-on-rejection`, a proof that does not verify, a verification that found violations |
| 2 | could not do it: usage, configuration, unreachable |
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from notary.version import VERSION
from ordering.errors import NotaryError

EXIT_DONE, EXIT_NO, EXIT_COULD_NOT = 0, 1, 2

COMMANDS = {
    "demo": "the main job on an embedded log, start to finish",
    "init": "make a notary's key, configuration and, with --kafka, its topics",
    "party": "register the parties whose submissions are taken",
    "serve": "run one worker",
    "submit": "sign and send requests, and write their decisions",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="notary", description="A notary: no state is spent twice.")
    parser.add_argument("--version", action="version", version=f"notary {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # Only the module of the command that was asked for is imported: `notary submit` needs no RocksDB.
    wanted = next((word for word in given if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == wanted:
            module = import_module(f"notary.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    arguments = parser.parse_args(given)
    try:
        code: int = arguments.run(arguments)
    except NotaryError as problem:
        print(f"notary {arguments.command}: {problem}", file=sys.stderr)
        return EXIT_COULD_NOT
    except KeyboardInterrupt:
        print(f"notary {arguments.command}: interrupted", file=sys.stderr)
        return EXIT_COULD_NOT
    except BrokenPipeError:
        # Whoever read our output has left; Python would complain again when it flushes at exit.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - lives until the process ends
        return EXIT_COULD_NOT
    return code
