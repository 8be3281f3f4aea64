"""The commands: `verify`, `archive`, `nightly`, `restore` (docs/spark.md). `errors` has their exit codes, `arguments` their arguments."""

import argparse
import logging
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from deploy.local.errors import CannotRun
from spark_join.archiving import archive
from spark_join.arguments import PREFIX, parser
from spark_join.engine.session import cause, open_session, refuse_folder_of_its_own
from spark_join.engine.stages import Progress, Stages
from spark_join.errors import CLEAN, COULD_NOT, VIOLATED, CouldNotVerify, visible
from spark_join.exports import read_exports
from spark_join.kept_state import newest_state, read_state, verified_ranges, write_state
from spark_join.log.archive import read_archive, read_ranges, unlisted
from spark_join.log.client import PROPERTIES, Kafka, decode_properties, parse_properties
from spark_join.log.reading import read_kafka
from spark_join.log.restore import restore
from spark_join.order.payloads import Keys, read_keys
from spark_join.report import RunMetadata, refuse_used, write_report
from spark_join.state import rest_of, start
from spark_join.verify import verify

_PRINTED: Final = ("log_id", "decisions", "outcomes", "root", "checkpoints", "exports", "undecided_entries", "unlisted", "violations")


def main(arguments: Sequence[str]) -> int:
    """Run the command line `arguments`; return the exit code."""
    return run(parser().parse_args(arguments))


def run(chosen: argparse.Namespace) -> int:
    """Run the command of a namespace that `arguments.parser` made; return the exit code."""
    # A failure is reported in one line. The client library would log each connection with a password in the clear.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    command = {"verify": _verify, "archive": _archive, "nightly": _nightly, "restore": _restore}[chosen.command]
    try:
        return command(chosen)
    except (CouldNotVerify, CannotRun, OSError) as problem:
        _report(chosen, str(problem))
    except (Py4JError, PySparkException) as problem:  # a `Py4JNetworkError` if Spark's JVM has ended
        _report(chosen, f"Spark failed: {cause(problem)}")
    except KeyboardInterrupt:
        _report(chosen, "interrupted")
    except Exception:
        traceback.print_exc()  # a bug; Python's own exit code, 1, would mean that there are violations
    return COULD_NOT


def _verify(chosen: argparse.Namespace) -> int:
    """Verify, write the report, and print a JSON object with its main figures."""
    refuse_used(chosen.out)
    if chosen.work is None:
        refuse_folder_of_its_own(chosen.master)
    if chosen.index and chosen.checkpoint_from is not None:
        raise CouldNotVerify("an export is compared from its first decision on: leave --checkpoint-from out where there is an --index")
    if chosen.archive is not None:
        if chosen.prefix is not None or chosen.kafka_config or chosen.kafka_option:
            raise CouldNotVerify("an archive is read without brokers: leave --prefix, --kafka-config and --kafka-option out")
        read_ranges(chosen.archive)  # report a missing archive now: Spark needs half a minute to start
    chosen.out.mkdir(parents=True, exist_ok=True)
    keys = None if chosen.parties is None else read_keys(chosen.parties)
    with _session(chosen) as (session, folder, progress):
        report = _verify_in(chosen, session, folder, progress, keys)
    return _ended(chosen, report)


def _verify_in(chosen: argparse.Namespace, session: SparkSession, folder: Path, progress: Progress, keys: Keys | None) -> dict[str, Any]:
    """Verify in a session, and write report and state. Returns the report."""
    earlier = chosen.checkpoint_from
    state = start(session)
    if earlier is not None:
        progress("state")
        state = read_state(session, earlier)
    progress("log")
    ranges = others = None
    if chosen.archive is None:
        log = read_kafka(session, _kafka(session, chosen), state.since)
    else:
        # Before the log is read: a range that is added meanwhile is not in the report.
        ranges, others = verified_ranges(chosen.archive, earlier), unlisted(chosen.archive)
        if others is not None:
            _warn(chosen, progress, others)
        log = read_archive(session, chosen.archive, state.since)
    log = rest_of(log, state)
    exports = read_exports(session, chosen.index) if chosen.index else None
    verified = verify(session, log, state, keys, Stages(session, folder, progress), exports)
    state_sha256 = None
    if chosen.keep_state and verified.violations.isEmpty():
        progress("state that is kept")
        state_sha256 = write_state(session, chosen.out, verified.after(), earlier)
    progress("report")
    ran = RunMetadata(
        at=datetime.now(UTC),
        signatures=keys is not None,
        stages_s=progress.took_s,
        state=state,
        archive=ranges,
        unlisted=others,
        earlier=earlier,
        state_sha256=state_sha256,
    )
    return write_report(chosen.out, log, verified, ran)


def _ended(chosen: argparse.Namespace, report: Mapping[str, Any]) -> int:
    """Print the main figures of a report, and to stderr what is settled, undecided or not kept; returns the exit code."""
    print(orjson.dumps({name: report[name] for name in _PRINTED}).decode())
    if (settled := report["settled"])["writers"]:
        _report(
            chosen,
            f"{settled['records']} records of {settled['writers']} writers had another history; the owner declared this history valid"
            " (settle record), so these are not violations",
        )
    if gaps := report["gaps_settled"]:
        _report(
            chosen,
            f"{gaps} runs of offsets have no record; they are in a history that the owner has confirmed by a salvage, a failover or a"
            " settle record, so they are no violations",
        )
    if report["undecided_because"] is not None:
        _report(
            chosen,
            f"nothing is decided from ordering offset {report['undecided_from_offset']} on, {report['undecided_entries']} entries with"
            f" {report['undecided_requests']} requests: {report['undecided_because']}",
        )
    if chosen.keep_state and report["state_sha256"] is None:
        _report(chosen, "no state is kept: a later run may not continue from a log with violations")
    return VIOLATED if report["violations"] else CLEAN


def _archive(chosen: argparse.Namespace) -> int:
    """Archive, and print a JSON object for each range that was added, one a line."""
    with _session(chosen) as (session, _, progress):
        _archive_in(chosen, session, progress)
    return CLEAN


def _archive_in(chosen: argparse.Namespace, session: SparkSession, progress: Progress) -> None:
    """Archive in a session, and print the ranges."""
    added = 0
    for each in archive(session, _kafka(session, chosen), chosen.archive, progress, chosen.range_records):
        added += 1
        with progress.paused():
            print(msgspec.json.encode(each).decode(), flush=True)
            for topic_partition, missing in each.gaps.items():
                _report(chosen, f"{missing} offsets of {topic_partition} hold no record, as a transaction leaves them")
    if not added:
        _warn(chosen, progress, f"{chosen.archive} has all records of the topics already")


def _nightly(chosen: argparse.Namespace) -> int:
    """Archive, verify the archive from the newest state on, and keep a state, in one session. Prints the output of both commands."""
    if chosen.work is None:
        refuse_folder_of_its_own(chosen.master)
    keys = None if chosen.parties is None else read_keys(chosen.parties)
    chosen.index, chosen.keep_state = [], True
    chosen.checkpoint_from = newest_state(chosen.reports)
    chosen.out = chosen.reports / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    refuse_used(chosen.out)
    with _session(chosen) as (session, folder, progress):
        _archive_in(chosen, session, progress)
        chosen.out.mkdir(parents=True, exist_ok=True)
        report = _verify_in(chosen, session, folder, progress, keys)
    return _ended(chosen, report)


def _restore(chosen: argparse.Namespace) -> int:
    """Restore, and print a JSON object with the records, the appended ones and the replicas."""
    read_ranges(chosen.archive)  # before Spark starts
    with _session(chosen) as (session, _, progress):
        restored = restore(
            session,
            _kafka(session, chosen),
            chosen.archive,
            progress,
            partial(_warn, chosen, progress),
            go_on=chosen.go_on,
            renumber=chosen.renumber,
            without_unlisted=chosen.without_unlisted,
            flush_messages=chosen.flush_messages,
            until=chosen.until,
        )
    print(msgspec.json.encode(restored).decode())
    if not restored.appended:
        _report(chosen, "all records of the archive were there already")
    return CLEAN


@contextmanager
def _session(chosen: argparse.Namespace) -> Iterator[tuple[SparkSession, Path, Progress]]:
    """Opens a Spark session, a folder for the files of its stages, and the display of its progress, for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="spark_join-", dir=chosen.work) as work:
        if "," in work:
            raise CouldNotVerify(f"Spark takes {Path(work).parent} for several folders, because of the comma: name another one with --work")
        session = open_session(Path(work), master=chosen.master, memory=chosen.memory)
        progress = Progress(session, chosen.command, quiet=chosen.quiet)
        try:
            yield session, Path(work) / "stages", progress
        finally:
            progress.end()
            session.stop()


def _kafka(session: SparkSession, chosen: argparse.Namespace) -> Kafka:
    """Returns the cluster that the arguments describe. Raises `CouldNotVerify`, and `OSError` for the properties file."""
    properties: dict[str, str] = {}
    if (file := chosen.kafka_config) is not None:
        try:
            properties = parse_properties(session, decode_properties(file.read_bytes()))
        except (Py4JJavaError, PySparkException) as problem:
            raise CouldNotVerify(f"--kafka-config {file} is no properties file: {cause(problem)}. Write a backslash as two") from None
    for option in chosen.kafka_option:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise CouldNotVerify(f"--kafka-option {option!r} should be NAME=VALUE, as in security.protocol=SSL")
        if name not in PROPERTIES:
            raise CouldNotVerify(f"--kafka-option {name} would change nothing: it takes {', '.join(sorted(PROPERTIES))}")
        properties[name] = value
    return Kafka(chosen.bootstrap, PREFIX if chosen.prefix is None else chosen.prefix, properties)


def _warn(chosen: argparse.Namespace, progress: Progress, warning: str) -> None:
    with progress.paused():
        _report(chosen, warning)


def _report(chosen: argparse.Namespace, message: str) -> None:
    print(f"spark_join {chosen.command}: {visible(message)}", file=sys.stderr)
