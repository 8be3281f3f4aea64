"""What the commands are told alike: where Spark runs, where it may write, which cluster is asked; and the session made of that."""

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
    """From the root on: executors run in folders of their own."""
    return Path(text).absolute()


def positive(text: str) -> int:
    """A number of at least 1."""
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} should be a number from 1 on")
    return int(text)


def add_session_arguments(command: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    """What `session` takes; and what the command does."""
    command.add_argument(
        "--work", type=folder, metavar="DIR", help="for what the stages make; all executors reach it (default: a temporary one)"
    )
    command.add_argument("--master", default="local[*]", help="Spark's master (default: local[*])")
    command.add_argument("--memory", default="2g", help="the driver's memory (default: 2g)")
    command.add_argument("--quiet", action="store_true", help="do not tell the stages")
    command.set_defaults(run=run)


@contextmanager
def session(chosen: argparse.Namespace) -> Iterator[tuple[SparkSession, Path, Progress]]:
    """A session, a folder for the stages, and who tells them, for the length of a block."""
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
    """A line on stderr, in the place of the one that tells how far it is."""
    progress.clear()
    print(f"spark_join {chosen.command}: {warning}", file=sys.stderr)
