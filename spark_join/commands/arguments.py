"""The arguments that all commands share (Spark's master, memory, a work folder), and the session that they describe."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from spark_join.engine.progress import Progress
from spark_join.engine.session import open_session
from spark_join.log.client import jar_settings


def folder(text: str) -> Path:
    """Returns the absolute path: executors have other working directories."""
    return Path(text).absolute()


def positive(text: str) -> int:
    """Parses a number of at least 1. Raises `ArgumentTypeError`."""
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} should be a number from 1 on")
    return int(text)


def add_session_arguments(command: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    """Add the flags that `session` reads, and set `run` as the function of the command."""
    command.add_argument(
        "--work", type=folder, metavar="DIR", help="for what the stages make; all executors reach it (default: a temporary one)"
    )
    command.add_argument("--master", default="local[*]", help="Spark's master (default: local[*])")
    command.add_argument("--memory", default="2g", help="the driver's memory (default: 2g)")
    command.add_argument("--quiet", action="store_true", help="do not tell the stages")
    command.set_defaults(run=run)


@contextmanager
def session(chosen: argparse.Namespace) -> Iterator[tuple[SparkSession, Path, Progress]]:
    """Opens a Spark session, a folder for the files of its stages, and the display of its progress, for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="spark_join-", dir=chosen.work) as work:
        jars = {} if chosen.bootstrap is None else jar_settings()
        opened = open_session(Path(work), master=chosen.master, memory=chosen.memory, settings=jars)
        progress = Progress(opened, chosen.command, quiet=chosen.quiet)
        try:
            yield opened, Path(work) / "stages", progress
        finally:
            progress.end()
            opened.stop()


def warn(chosen: argparse.Namespace, progress: Progress, warning: str) -> None:
    """Print a warning to stderr; on a terminal it replaces the progress line, which comes back."""
    progress.clear()
    print(f"spark_join {chosen.command}: {warning}", file=sys.stderr)
