"""The `restore` command: brings an archive back into a cluster."""

import argparse
import sys
from functools import partial
from typing import Final

import msgspec

from spark_join.commands.arguments import add_session_arguments, folder, session, warn
from spark_join.exit_codes import CLEAN
from spark_join.log.kafka_arguments import add_kafka_arguments, chosen_kafka
from spark_join.log.restore import restore

HELP: Final = "bring an archive back into a cluster that does not have its topics"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    command.add_argument("--archive", type=folder, required=True, metavar="DIR", help="the archive; all executors reach it")
    command.add_argument("--bootstrap", required=True, metavar="HOST:PORT[,…]", help="the brokers that shall have both topics")
    add_kafka_arguments(command)
    command.add_argument("--continue", dest="go_on", action="store_true", help="finish a restore that was interrupted")
    command.add_argument(
        "--renumber", action="store_true", help="though records come to lie at other offsets, where the archive lacks some"
    )
    command.add_argument(
        "--without-unlisted",
        action="store_true",
        help="though files are there that no range lists: if the last ranges are gone, what was decided in them is given up, and states"
        " that were consumed there can be consumed again",
    )
    add_session_arguments(command, run)


def run(chosen: argparse.Namespace) -> int:
    """Restore, and print a JSON object with the records, the appended ones and the replicas; return the exit code.

    Raises `CouldNotVerify`.
    """
    with session(chosen) as (opened, _, progress):
        restored = restore(
            opened,
            chosen_kafka(opened, chosen),
            chosen.archive,
            progress,
            partial(warn, chosen, progress),
            go_on=chosen.go_on,
            renumber=chosen.renumber,
            without_unlisted=chosen.without_unlisted,
        )
    print(msgspec.json.encode(restored).decode())
    if not restored.appended:
        print("spark_join restore: all records of the archive were there already", file=sys.stderr)
    return CLEAN
