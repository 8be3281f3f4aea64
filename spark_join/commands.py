"""The command line: `python -m spark_join verify|archive|restore …` (docs/spark.md).

What each ends with is in `exit_codes`.
"""

import argparse
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from deploy.local.errors import CannotRun
from spark_join.engine.progress import Progress
from spark_join.engine.session import open_session, refuse_folder_of_its_own
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify, cause
from spark_join.exit_codes import CLEAN, COULD_NOT, VIOLATED
from spark_join.exports.read import read_exports
from spark_join.join import rest_of
from spark_join.log.archive import read_archive, unlisted
from spark_join.log.archiving import RANGE_RECORDS_MAX, archive
from spark_join.log.client import jar_settings
from spark_join.log.kafka import read_kafka
from spark_join.log.kafka_arguments import add_kafka_arguments, chosen_kafka
from spark_join.log.restore import restore
from spark_join.order.notary_name import refuse_no_name
from spark_join.order.signatures import read_keys
from spark_join.report.write import PAGE, VIOLATIONS, Run, refuse_used, write_report
from spark_join.state.kept import REPORT, STATE, read_state, write_state
from spark_join.state.state import start
from spark_join.verify import verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    chosen = _parser().parse_args(arguments)
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
        traceback.print_exc()  # a bug; Python's own exit code for it says that there are violations
    return COULD_NOT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m spark_join", description="The log of a notary, decided all over again in Spark.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser("verify", help="decide everything again, and compare with what the log says of it")
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--archive", type=_folder, metavar="DIR", help="the archive of both topics")
    source.add_argument("--bootstrap", metavar="HOST:PORT[,…]", help="the brokers that have both topics")
    add_kafka_arguments(command)
    command.add_argument("--notary", metavar="NAME", help="the notary's name, which the topics do not say (with --bootstrap)")
    command.add_argument("--parties", type=Path, metavar="FILE", help="the parties' keys; without them no signature is checked")
    command.add_argument(
        "--index",
        type=_folder,
        action="append",
        default=[],
        metavar="DIR",
        help="an exported index (notary export), to be compared too; any number",
    )
    command.add_argument(
        "--out", type=_folder, required=True, metavar="DIR", help=f"where {REPORT}, {PAGE} and {VIOLATIONS}/ go; it has none of them yet"
    )
    command.add_argument("--keep-state", action="store_true", help=f"keep in --out what a later run goes on from, as {STATE}/")
    command.add_argument("--checkpoint-from", type=_folder, metavar="DIR", help="the --out of an earlier run: verify what came after it")
    _add_session_arguments(command, _verify)

    command = commands.add_parser("archive", help="take what both topics have grown by into an archive, which is made if there is none")
    command.add_argument("--bootstrap", required=True, metavar="HOST:PORT[,…]", help="the brokers that have both topics")
    add_kafka_arguments(command)
    command.add_argument("--notary", metavar="NAME", required=True, help="the notary's name, which the topics do not say")
    command.add_argument("--archive", type=_folder, required=True, metavar="DIR", help="the archive; all executors reach it")
    command.add_argument(
        "--range-records",
        type=_positive,
        default=RANGE_RECORDS_MAX,
        metavar="N",
        help=f"of how many records each range is at most, but for a few (default: {RANGE_RECORDS_MAX})",
    )
    _add_session_arguments(command, _archive)

    command = commands.add_parser("restore", help="bring an archive back into a cluster that does not have its topics")
    command.add_argument("--archive", type=_folder, required=True, metavar="DIR", help="the archive; all executors reach it")
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
    _add_session_arguments(command, _restore)
    return parser


def _folder(text: str) -> Path:
    """From the root on: executors run in folders of their own."""
    return Path(text).absolute()


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} should be a number from 1 on")
    return int(text)


def _add_session_arguments(command: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    command.add_argument(
        "--work", type=_folder, metavar="DIR", help="for what the stages make; all executors reach it (default: a temporary one)"
    )
    command.add_argument("--master", default="local[*]", help="Spark's master (default: local[*])")
    command.add_argument("--memory", default="2g", help="the driver's memory (default: 2g)")
    command.add_argument("--quiet", action="store_true", help="do not tell the stages")
    command.set_defaults(run=run)


@contextmanager
def _session(chosen: argparse.Namespace) -> Iterator[tuple[SparkSession, Path, Progress]]:
    """A session, a folder for the stages, and who tells them, for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="spark_join-", dir=chosen.work) as folder:
        jars = {} if chosen.bootstrap is None else jar_settings()
        session = open_session(Path(folder), master=chosen.master, memory=chosen.memory, settings=jars)
        progress = Progress(session, chosen.command, quiet=chosen.quiet)
        try:
            yield session, Path(folder) / "stages", progress
        finally:
            progress.end()
            session.stop()


def _verify(chosen: argparse.Namespace) -> int:
    refuse_used(chosen.out)
    if chosen.work is None:
        refuse_folder_of_its_own(chosen.master)
    if chosen.bootstrap is not None and chosen.notary is None:
        raise CouldNotVerify("the topics do not say whose they are: give the notary's name with --notary")
    if chosen.notary is not None:
        refuse_no_name(chosen.notary)
    if chosen.index and chosen.checkpoint_from is not None:
        raise CouldNotVerify("an export is compared from its first decision on: leave --checkpoint-from out where there is an --index")
    chosen.out.mkdir(parents=True, exist_ok=True)
    keys = None if chosen.parties is None else read_keys(chosen.parties)
    with _session(chosen) as (session, folder, progress):
        earlier = chosen.checkpoint_from
        state = start(session)
        if earlier is not None:
            progress("state")
            state = read_state(session, earlier)
        progress("log")
        if chosen.archive is not None:
            log = read_archive(session, chosen.archive, state.since)
            if (found := unlisted(chosen.archive)) is not None:
                _warn(chosen, progress, found)
            if chosen.notary not in (None, log.notary_name):
                raise CouldNotVerify(f"{chosen.archive} is the archive of {log.notary_name!r}, not of {chosen.notary!r}")
        else:
            log = read_kafka(session, chosen_kafka(session, chosen), chosen.notary, state.since)
        log = rest_of(log, state)
        exports = read_exports(session, chosen.index) if chosen.index else None
        verified = verify(session, log, state, keys, Stages(session, folder, progress), exports)
        state_sha256 = None
        if chosen.keep_state and verified.violations.isEmpty():
            progress("state that is kept")
            state_sha256 = write_state(session, chosen.out, verified.after(), earlier)
        progress("report")
        run = Run(
            at=datetime.now(UTC),
            signatures=keys is not None,
            stages_s=progress.took_s,
            state=state,
            earlier=earlier,
            state_sha256=state_sha256,
        )
        said = write_report(chosen.out, log, verified, run)
    print(
        msgspec.json.encode(
            {name: said[name] for name in ("decisions", "outcomes", "root", "checkpoints", "exports", "undecided_entries", "violations")}
        ).decode()
    )
    if (hole := verified.undecided) is not None:
        print(
            f"spark_join verify: nothing is decided from ordering offset {hole.from_offset} on, {hole.entries} entries with {hole.requests}"
            f" requests: {hole.because}",
            file=sys.stderr,
        )
    if chosen.keep_state and state_sha256 is None:
        print("spark_join verify: no state is kept: nothing is to be built on a log with violations", file=sys.stderr)
    return VIOLATED if said["violations"] else CLEAN


def _warn(chosen: argparse.Namespace, progress: Progress, warning: str) -> None:
    progress.clear()
    print(f"spark_join {chosen.command}: {warning}", file=sys.stderr)


def _archive(chosen: argparse.Namespace) -> int:
    refuse_no_name(chosen.notary)
    added = 0
    with _session(chosen) as (session, _, progress):
        kafka = chosen_kafka(session, chosen)
        for each in archive(session, kafka, chosen.archive, chosen.notary, progress, chosen.range_records):
            added += 1
            progress.clear()
            print(msgspec.json.encode(each).decode(), flush=True)
            for place, missing in each.gaps.items():
                print(f"spark_join archive: {missing} offsets of {place} hold no record, as a transaction leaves them", file=sys.stderr)
    if not added:
        print(f"spark_join archive: {chosen.archive} has all that there is", file=sys.stderr)
    return CLEAN


def _restore(chosen: argparse.Namespace) -> int:
    with _session(chosen) as (session, _, progress):
        kafka, folder = chosen_kafka(session, chosen), chosen.archive
        restored = restore(
            session,
            kafka,
            folder,
            progress,
            partial(_warn, chosen, progress),
            go_on=chosen.go_on,
            renumber=chosen.renumber,
            without_unlisted=chosen.without_unlisted,
        )
    print(msgspec.json.encode(restored).decode())
    if not restored.appended:
        print("spark_join restore: all records of the archive were there already", file=sys.stderr)
    return CLEAN
