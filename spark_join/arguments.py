"""The arguments of all commands. This module imports nothing of Spark, so `--help` works without it."""

import argparse
import re
from pathlib import Path
from typing import Final

PREFIX: Final = "notary"
"""The default prefix of both topics."""
RANGE_RECORDS_MAX: Final = 200_000
"""The default number of records in a range of an archive: some gigabytes with payloads of 64 KB. A busy notary writes them in minutes."""

MEMORY_MIB_MIN: Final = 512
"""Spark does not start with less than 450 MiB."""
_KIB_OF: Final = {"k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}
_is_memory = re.compile(r"([0-9]{1,12})([kmgt])b?", re.IGNORECASE | re.ASCII).fullmatch
_is_master = re.compile(r"local(-cluster)?(\[[0-9*, ]+\])?|yarn|(spark|k8s)://.+").fullmatch


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands. Its namespaces have the member `command`, the name of the command."""
    made = argparse.ArgumentParser(prog="python -P -m spark_join", description="Decide the log of a notary again, in Spark.")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_verify(commands.add_parser("verify", help="decide everything again, and compare it with the log's own claims"))
    _add_archive(commands.add_parser("archive", help="add the new records of both topics to an archive, which is made if there is none"))
    _add_nightly(commands.add_parser("nightly", help="archive, then verify what is new since the last report, in one session"))
    _add_restore(commands.add_parser("restore", help="bring an archive back into a cluster that does not have its topics"))
    return made


def _add_verify(command: argparse.ArgumentParser) -> None:
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--archive", type=_folder, metavar="DIR", help="the archive of both topics")
    source.add_argument("--bootstrap", metavar="HOST:PORT[,…]", help="the brokers that have both topics")
    _add_kafka(command)
    _add_parties(command)
    command.add_argument(
        "--index",
        type=_folder,
        action="append",
        default=[],
        metavar="DIR",
        help="an exported index (notary export), to be compared too; any number",
    )
    command.add_argument(
        "--out",
        type=_folder,
        required=True,
        metavar="DIR",
        help="the folder for report.json, report.html and violations/; it has none of them yet",
    )
    command.add_argument("--keep-state", action="store_true", help="keep in --out, as state/, what a later run continues from")
    command.add_argument("--checkpoint-from", type=_folder, metavar="DIR", help="the --out of an earlier run: verify what came after it")
    _add_session(command)


def _add_parties(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--parties",
        type=Path,
        metavar="FILE",
        help="the parties' keys, as parties.json has them; without them no signature of a party is checked",
    )


def _add_nightly(command: argparse.ArgumentParser) -> None:
    _add_archive(command)
    _add_parties(command)
    command.add_argument(
        "--reports",
        type=_folder,
        required=True,
        metavar="DIR",
        help="the folder of all nights: each run makes a folder there, and goes on from the newest one that kept a state",
    )


def _add_archive(command: argparse.ArgumentParser) -> None:
    command.add_argument("--bootstrap", required=True, metavar="HOST:PORT[,…]", help="the brokers that have both topics")
    _add_kafka(command)
    command.add_argument("--archive", type=_folder, required=True, metavar="DIR", help="the archive; all executors reach it")
    command.add_argument(
        "--range-records",
        type=_positive,
        default=RANGE_RECORDS_MAX,
        metavar="N",
        help=f"the most records of each range, but for a few (default: {RANGE_RECORDS_MAX})",
    )
    _add_session(command)


def _add_restore(command: argparse.ArgumentParser) -> None:
    command.add_argument("--archive", type=_folder, required=True, metavar="DIR", help="the archive; all executors reach it")
    command.add_argument("--bootstrap", required=True, metavar="HOST:PORT[,…]", help="the brokers that get both topics")
    _add_kafka(command)
    command.add_argument("--continue", dest="go_on", action="store_true", help="finish a restore that was interrupted")
    command.add_argument("--renumber", action="store_true", help="restore even if records get other offsets, where the archive lacks some")
    command.add_argument(
        "--flush-messages",
        action="store_true",
        help="every replica syncs the ordering topic to its disk before it acknowledges, as with notary init --flush-messages",
    )
    command.add_argument(
        "--until",
        type=_positive,
        metavar="OFFSET",
        help="leave out the ordering records from this offset on, which `notary salvage` names if the log went on after a loss",
    )
    command.add_argument(
        "--without-unlisted",
        action="store_true",
        help="restore even if files are there that no range lists: if the last ranges are gone, their decisions are given up, and states"
        " that were consumed there can be consumed again",
    )
    _add_session(command)


def _add_kafka(command: argparse.ArgumentParser) -> None:
    """Add the arguments that name the topics and the properties of the connection."""
    command.add_argument("--prefix", help=f"of the topics PREFIX.ordering and PREFIX.payload (default: {PREFIX})")
    command.add_argument(
        "--kafka-config", type=Path, metavar="FILE", help="a properties file for the connection, as Kafka's own tools take it"
    )
    command.add_argument(
        "--kafka-option", action="append", default=[], metavar="NAME=VALUE", help="one more such property; may be given several times"
    )


def _add_session(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the Spark session and of the progress."""
    command.add_argument(
        "--work", type=_folder, metavar="DIR", help="the folder for the files of stages; all executors reach it (default: a temporary one)"
    )
    command.add_argument("--master", type=_master, default="local[*]", help="Spark's master (default: local[*])")
    command.add_argument("--memory", type=_memory, default="2g", help="the driver's memory (default: 2g)")
    command.add_argument("--quiet", action="store_true", help="do not show the progress")


def _folder(text: str) -> Path:
    """Returns the absolute path: executors have other working directories."""
    return Path(text).absolute()


def _master(text: str) -> str:
    """Returns the text if Spark has such a master. Raises `ArgumentTypeError`."""
    if _is_master(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} should be local, local[N], local[*], yarn, or a URL spark://… or k8s://…")
    return text


def _memory(text: str) -> str:
    """Returns the text if it is enough memory for Spark's driver. Raises `ArgumentTypeError`."""
    found = _is_memory(text)
    if found is None or int(found[1]) * _KIB_OF[found[2].lower()] < MEMORY_MIB_MIN << 10:
        raise argparse.ArgumentTypeError(f"{text!r} should be a number with k, m, g or t, at least {MEMORY_MIB_MIN}m, such as 2g")
    return text


def _positive(text: str) -> int:
    """Parses a number of at least 1. Raises `ArgumentTypeError`."""
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} should be a number from 1 on")
    return int(text)
