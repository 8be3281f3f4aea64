"""The `archive` command: adds the new records of both topics to an archive."""

import argparse
import sys
from typing import Final

import msgspec

from spark_join.commands.arguments import add_session_arguments, folder, positive, session
from spark_join.exit_codes import CLEAN
from spark_join.log.archiving import RANGE_RECORDS_MAX, archive
from spark_join.log.kafka_arguments import add_kafka_arguments, chosen_kafka

HELP: Final = "take what both topics have grown by into an archive, which is made if there is none"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    command.add_argument("--bootstrap", required=True, metavar="HOST:PORT[,…]", help="the brokers that have both topics")
    add_kafka_arguments(command)
    command.add_argument("--archive", type=folder, required=True, metavar="DIR", help="the archive; all executors reach it")
    command.add_argument(
        "--range-records",
        type=positive,
        default=RANGE_RECORDS_MAX,
        metavar="N",
        help=f"of how many records each range is at most, but for a few (default: {RANGE_RECORDS_MAX})",
    )
    add_session_arguments(command, run)


def run(chosen: argparse.Namespace) -> int:
    """Archive, and print one JSON object a line for each range that was added; return the exit code. Raises `CouldNotVerify`."""
    added = 0
    with session(chosen) as (opened, _, progress):
        kafka = chosen_kafka(opened, chosen)
        for each in archive(opened, kafka, chosen.archive, progress, chosen.range_records):
            added += 1
            progress.clear()
            print(msgspec.json.encode(each).decode(), flush=True)
            for place, missing in each.gaps.items():
                print(f"spark_join archive: {missing} offsets of {place} hold no record, as a transaction leaves them", file=sys.stderr)
    if not added:
        print(f"spark_join archive: {chosen.archive} has all that there is", file=sys.stderr)
    return CLEAN
