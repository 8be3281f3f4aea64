"""The `verify` command: verifies a log and writes the report."""

import argparse
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from spark_join.commands.arguments import add_session_arguments, folder, session, warn
from spark_join.engine.progress import Progress
from spark_join.engine.session import refuse_folder_of_its_own
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.exit_codes import CLEAN, VIOLATED
from spark_join.exports.read import read_exports
from spark_join.join import rest_of
from spark_join.log.archive import read_archive, unlisted
from spark_join.log.kafka import read_kafka
from spark_join.log.kafka_arguments import add_kafka_arguments, chosen_kafka
from spark_join.log.log import Log
from spark_join.order.signatures import read_keys
from spark_join.report.write import PAGE, VIOLATIONS, Run, refuse_used, write_report
from spark_join.state.kept import REPORT, STATE, read_state, write_state
from spark_join.state.state import State, start
from spark_join.verify import Verified, verify

HELP: Final = "decide everything again, and compare with what the log says of it"
_PRINTED: Final = ("decisions", "outcomes", "root", "checkpoints", "exports", "undecided_entries", "violations")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--archive", type=folder, metavar="DIR", help="the archive of both topics")
    source.add_argument("--bootstrap", metavar="HOST:PORT[,…]", help="the brokers that have both topics")
    add_kafka_arguments(command)
    command.add_argument("--parties", type=Path, metavar="FILE", help="the parties' keys; without them no signature is checked")
    command.add_argument(
        "--index",
        type=folder,
        action="append",
        default=[],
        metavar="DIR",
        help="an exported index (notary export), to be compared too; any number",
    )
    command.add_argument(
        "--out", type=folder, required=True, metavar="DIR", help=f"where {REPORT}, {PAGE} and {VIOLATIONS}/ go; it has none of them yet"
    )
    command.add_argument("--keep-state", action="store_true", help=f"keep in --out what a later run goes on from, as {STATE}/")
    command.add_argument("--checkpoint-from", type=folder, metavar="DIR", help="the --out of an earlier run: verify what came after it")
    add_session_arguments(command, run)


def run(chosen: argparse.Namespace) -> int:
    """Verify, write the report, and print a JSON object with its main figures; return the exit code. Raises `CouldNotVerify`."""
    _refuse(chosen)
    chosen.out.mkdir(parents=True, exist_ok=True)
    keys = None if chosen.parties is None else read_keys(chosen.parties)
    earlier = chosen.checkpoint_from
    with session(chosen) as (opened, stages, progress):
        state = start(opened)
        if earlier is not None:
            progress("state")
            state = read_state(opened, earlier)
        progress("log")
        log = rest_of(_read_log(chosen, opened, progress, state), state)
        exports = read_exports(opened, chosen.index) if chosen.index else None
        verified = verify(opened, log, state, keys, Stages(opened, stages, progress), exports)
        state_sha256 = None
        if chosen.keep_state and verified.violations.isEmpty():
            progress("state that is kept")
            state_sha256 = write_state(opened, chosen.out, verified.after(), earlier)
        progress("report")
        ran = Run(
            at=datetime.now(UTC),
            signatures=keys is not None,
            stages_s=progress.took_s,
            state=state,
            earlier=earlier,
            state_sha256=state_sha256,
        )
        said = write_report(chosen.out, log, verified, ran)
    _tell(said, verified)
    if chosen.keep_state and state_sha256 is None:
        print("spark_join verify: no state is kept: nothing is to be built on a log with violations", file=sys.stderr)
    return VIOLATED if said["violations"] else CLEAN


def _refuse(chosen: argparse.Namespace) -> None:
    """Raise `CouldNotVerify` for arguments that contradict each other or the folders, before any work begins."""
    refuse_used(chosen.out)
    if chosen.work is None:
        refuse_folder_of_its_own(chosen.master)
    if chosen.index and chosen.checkpoint_from is not None:
        raise CouldNotVerify("an export is compared from its first decision on: leave --checkpoint-from out where there is an --index")


def _read_log(chosen: argparse.Namespace, opened: SparkSession, progress: Progress, state: State) -> Log:
    if chosen.archive is None:
        return read_kafka(opened, chosen_kafka(opened, chosen), state.since)
    log = read_archive(opened, chosen.archive, state.since)
    if (found := unlisted(chosen.archive)) is not None:
        warn(chosen, progress, found)
    return log


def _tell(said: Mapping[str, Any], verified: Verified) -> None:
    """Print the main figures of the report, `said`; print to stderr the settled differences and the hole, if there are any."""
    print(msgspec.json.encode({name: said[name] for name in _PRINTED}).decode())
    if (settled := said["settled"])["writers"]:
        print(
            f"spark_join verify: {settled['records']} records of {settled['writers']} writers had another history; the owner has settled"
            " that this one stands, so they are no violations",
            file=sys.stderr,
        )
    if (hole := verified.undecided) is not None:
        print(
            f"spark_join verify: nothing is decided from ordering offset {hole.from_offset} on, {hole.entries} entries with {hole.requests}"
            f" requests: {hole.because}",
            file=sys.stderr,
        )
