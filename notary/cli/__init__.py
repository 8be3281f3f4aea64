"""The command line, `notary ...` (docs/command-line.md).

Each command is a module, or an object of `owner_commands`, with `add_arguments(parser)` and `run(arguments) -> exit code`. Output for
programs goes to stdout, messages for people go to stderr. If both go to stdout, `--json` selects output for programs. Nothing is coloured.

Scripts read exit code 1 as a result (`notary.exit_codes`), so only the return value of a command can be 1. Every exception ends here, with
exit code 2.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Any, TypeGuard

import orjson

from notary.exit_codes import EXIT_COULD_NOT
from notary.version import VERSION
from ordering.errors import ConfigurationError, Fatal, NotaryError

PROGRESS_INTERVAL_S = 0.2

COMMANDS = {
    "activate": "make records of another format version valid from here on",
    "archive": "add the segments of a log that workers stream to an archive",
    "demo": "run a complete notary in a temporary folder, with a double spend and a crash",
    "export": "write the decisions and consumed states of an index as Parquet",
    "failover": "make a mirror in another cluster the notary's log",
    "init": "make a notary's keys, configuration and log",
    "key": "show the notary's keys, prepare the next key, or put it in force",
    "log": "show a log's records, their signers, and the reasons why records took no effect",
    "mirror": "copy the log into a mirror in another cluster, until a signal ends it",
    "partitions": "give a log more payload partitions",
    "party": "register a party, whose submissions are accepted from then on",
    "retire": "end a worker's incarnation and its vote",
    "salvage": "put back decisions that the log lost, from indexes, snapshots and receipts that survived",
    "serve": "run one worker, until a signal ends it",
    "settle": "declare the history of an index to be the valid one",
    "size": "compute the workers, cores and disks that a load needs",
    "snapshot": "make signed copies of an index, list, verify and prune them, or restore one",
    "submit": "have requests decided in a party's name",
    "top": "show workers and brokers at work: rates, latency, lag",
    "trim": "free old payloads that two snapshots and a verified archive cover",
    "verify": "check receipts and checkpoints offline",
    "verify-log": "decide a complete log again in Spark, and compare the results",
}


OWNERS = ("activate", "partitions", "retire", "settle")
"""The commands of `owner_commands`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the process's exit code."""
    if sys.stderr is None:
        # The parent process closed stderr. Without this, `print` would write messages to stdout.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - lives until the process ends
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a file's name need not be text in the terminal's encoding
    given = list(sys.argv[1:] if argv is None else argv)
    wanted = next((word for word in given if word in COMMANDS), "")
    try:
        code = _run(given, wanted)
        if sys.stdout is not None:
            sys.stdout.flush()  # flush here, where the error of a full disk can still be reported
    except BrokenPipeError:
        message = ""  # the process that reads our output has ended, so there is nothing to report
    except (NotaryError, OSError) as problem:
        text = f"standard output cannot be written: {problem.strerror}" if _is_of_stdout(problem) else str(problem)
        message = _line(f"notary {wanted}: {text}", problem, as_json="--json" in given)
    except KeyboardInterrupt:
        message = f"notary {wanted}: interrupted\n"
    except Exception:
        message = traceback.format_exc()  # a bug; Python's exit code for it would be 1, which has another meaning here
    else:
        return code
    with suppress(OSError):
        sys.stderr.write(message)
    drop_what_cannot_be_written()
    return EXIT_COULD_NOT


def _is_of_stdout(problem: NotaryError | OSError) -> TypeGuard[OSError]:
    """Returns True if stdout cannot be written: such an error names no file, and the output that stays in the buffer causes it again.

    With PYTHONUNBUFFERED nothing stays there, so the error is not known to be of stdout.
    """
    if isinstance(problem, OSError) and problem.filename is None and sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError:
            return True
    return False


def _line(text: str, problem: Exception, *, as_json: bool) -> str:
    """Returns the line that reports an error: text, or under `--json` an object. It includes the code of a fatal error."""
    code = {"code": problem.code} if isinstance(problem, Fatal) else {}
    if as_json:
        return json_line({"level": "error", "message": text, **code}) + "\n"
    return " ".join([text, *[f"code={each}" for each in code.values()]]) + "\n"


def json_line(facts: object) -> str:
    """Returns a result for programs: JSON on one line. Bytes of a name that is not UTF-8 are escaped, as on a terminal."""
    try:
        return orjson.dumps(facts).decode()
    except TypeError:
        return orjson.dumps(_as_utf8(facts)).decode()


def print_result(facts: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the result of a command: the facts for programs, or the lines for people."""
    for line in [json_line(facts)] if as_json else lines:
        print(line)


def _as_utf8(facts: Any) -> Any:
    """Returns the facts with escaped surrogates, which stand for bytes that are not UTF-8."""
    if isinstance(facts, str):
        return facts.encode(errors="backslashreplace").decode()
    if isinstance(facts, Mapping):
        return {_as_utf8(key): _as_utf8(value) for key, value in facts.items()}
    return [_as_utf8(each) for each in facts] if isinstance(facts, list | tuple) else facts


def _run(given: list[str], wanted: str) -> int:
    parser = argparse.ArgumentParser(prog="notary", description="A notary: no state is spent twice.")
    parser.add_argument("--version", action="version", version=f"notary {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == wanted:
            found = command_named(name)
            found.add_arguments(command)
            command.set_defaults(run=found.run)
    arguments = parser.parse_args(given)
    code: int = arguments.run(arguments)
    return code


def command_named(name: str) -> Any:
    """Returns the module or object of a command. Only its module is imported: `notary submit` needs no RocksDB."""
    if name in OWNERS:
        return import_module("notary.cli.owner_commands").COMMANDS[name]
    return import_module(f"notary.cli.{name.replace('-', '_')}")


def check_pyarrow(what: str) -> None:
    """Raise `ConfigurationError` if pyarrow is not installed. `what` names its task, for the message."""
    if find_spec("pyarrow") is None:
        raise ConfigurationError(f"pyarrow, which {what}, is not installed: pip install 'kafka-notary[parquet]'")


class ProgressLine:
    """A progress line on stderr, rewritten in place; shown on terminals only."""

    def __init__(self, shown_at_s: float = 0.0) -> None:
        """The first line is shown `PROGRESS_INTERVAL_S` after `shown_at_s`, in the time of `time.monotonic`."""
        self._shows = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown_at_s = shown_at_s
        self.is_shown = False

    def show(self, text: str) -> None:
        """Show this text, unless the line was shown a moment ago."""
        if self._shows and time.monotonic() - self._shown_at_s >= PROGRESS_INTERVAL_S:
            self._shown_at_s, self.is_shown = time.monotonic(), True
            print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)

    def __call__(self, what: str, done: int, of: int | None) -> None:
        """Show the progress of a task; `of` is None if nobody knows how much there is to do."""
        self.show(f"{done:,}{'' if of is None else f' of {of:,}'} {what}")

    def end(self) -> None:
        """Clear the line."""
        if self.is_shown:
            self.is_shown = False
            print(f"\r{'':<78}", end="\r", file=sys.stderr, flush=True)


def drop_what_cannot_be_written() -> None:
    """Redirect stdout and stderr to /dev/null if they fail. Otherwise Python flushes them again at exit, and changes the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except OSError:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
