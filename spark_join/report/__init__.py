"""Writes the report of a verification: `violations/` as Parquet, `report.html`, and `report.json`.

`report.json` is written last, by an atomic rename. If it is missing, the other files are of a run that is still writing or was interrupted.
"""

import contextlib
import platform
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson
import pyarrow
import pyspark
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_join.engine.files import refuse_fewer, sync_files, write_last
from spark_join.errors import CouldNotVerify
from spark_join.kept_state import REPORT, STATE
from spark_join.log import ORDERING, LogFrames
from spark_join.log.archive import ArchivedRanges
from spark_join.report.page import page, series, violations_over_time
from spark_join.state import AppliedState
from spark_join.verify import Verified

REPORT_VERSION: Final = 4
VIOLATIONS: Final = "violations"
PAGE: Final = "report.html"

ROWS_A_FILE: Final = 1_000_000
"""Rows in a file of `violations/`. It bounds the rows that one task sorts and writes."""
SHOWN_MAX: Final = 100
"""Rows of each type and source on the page (`violations/` has all rows), and settled differences in the report."""
_ORDER: Final = ("type", "source", "position", "offset", "id", "found")


def refuse_used(folder: Path) -> None:
    """Raise `CouldNotVerify` if the folder has a report, or a run has begun to write one there."""
    if (folder / REPORT).exists():
        raise CouldNotVerify(f"{folder} has a report already: name another folder with --out")
    if begun := [name for name in (STATE, VIOLATIONS, PAGE) if (folder / name).exists()]:
        raise CouldNotVerify(
            f"{folder} has no report: it has {', '.join(begun)}, and no {REPORT}, which a run writes last. One is still writing there, or"
            " was interrupted: delete these, or name another folder with --out"
        )


class RunMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a run that its log and result do not show."""

    at: datetime
    """The time of writing, UTC"""
    signatures: bool
    """True if the parties' signatures were checked"""
    stages_s: Mapping[str, float]
    """Seconds that each stage took"""
    state: AppliedState
    """The state that the run went on from"""
    archive: ArchivedRanges | None = None
    """The ranges of the archive that were verified; None if this run, or one that it continues, did not read them"""
    unlisted: str | None = None
    """A sentence about files of the archive that no range lists (`archive.unlisted`)"""
    earlier: Path | None = None
    """The folder of the run that had kept it; None at the start of the log"""
    state_sha256: str | None = None
    """The SHA-256 that `kept_state.write_state` returned"""


def write_report(folder: Path, log: LogFrames, verified: Verified, run: RunMetadata) -> dict[str, Any]:
    """Write all three into `folder`, which has none of them (`refuse_used`); return the content of `report.json`."""
    violations = verified.violations
    counts = {(row.source, row.type): row["count"] for row in violations.groupBy("source", "type").count().collect()}
    write_violations(violations, sum(counts.values()), folder / VIOLATIONS)
    sync_files(folder / VIOLATIONS)
    report = _content(log, verified, run, counts)
    numbers = series(verified.decisions, verified.entries)
    shown = shown_of(violations).collect() if counts else []
    over_time = violations_over_time(violations, numbers.moments) if counts else {}
    write_last(folder / PAGE, page(report, numbers, shown, over_time).encode())
    # A crash before this leaves files that `refuse_used` reports; after it, the complete report.
    write_last(folder / REPORT, orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return report


def write_violations(violations: DataFrame, count: int, folder: Path, rows_a_file: int = ROWS_A_FILE) -> None:
    """Write `count` rows, sorted within each file and from file to file; tasks write the files in parallel.

    Raises `CouldNotVerify` unless all rows are there afterwards.
    """
    files = max(1, -(-count // rows_a_file))
    placed = violations.repartitionByRange(files, *_ORDER) if files > 1 else violations.coalesce(1)
    placed.sortWithinPartitions(*_ORDER).write.parquet(str(folder))
    refuse_fewer(folder, count)


def shown_of(violations: DataFrame, shown_max: int = SHOWN_MAX) -> DataFrame:
    """Returns the first `shown_max` rows of each type and source, in order."""
    ordinal = F.row_number().over(Window.partitionBy("type", "source").orderBy(*_ORDER))
    return violations.withColumn("_ordinal", ordinal).where(F.col("_ordinal") <= shown_max).drop("_ordinal").orderBy(*_ORDER)


def _content(log: LogFrames, verified: Verified, run: RunMetadata, counts: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    """Returns the content of `report.json`. `counts`: numbers of violations by source and type."""
    hole = verified.undecided
    return {
        "report_version": REPORT_VERSION,
        "notary": verified.notary_name,
        "log_id": verified.log_id.hex(),
        "verified_at": f"{run.at:%Y-%m-%dT%H:%M:%SZ}",
        "archive": msgspec.to_builtins(run.archive),
        "unlisted": run.unlisted,
        "ranges": {topic: _ranges(log, run.state, topic) for topic in ("ordering", "payload")},
        "ordering_records": dict(sorted(verified.records.items())),
        "skipped": msgspec.to_builtins(verified.skipped),
        "decisions": verified.decided,
        "outcomes": verified.outcomes,
        "salvaged": verified.salvaged,
        "root": verified.root.hex(),
        "checkpoints": msgspec.to_builtins(verified.checkpoints),
        "signatures_checked": run.signatures,
        "exports": {
            source: {"decisions": decisions, "violations": _by_type(counts, source)} for source, decisions in verified.exports.items()
        },
        "undecided_from_offset": hole.from_offset if hole else None,
        "undecided_entries": hole.entries if hole else 0,
        "undecided_requests": hole.requests if hole else 0,
        "undecided_because": hole.because if hole else None,
        "continued_from": None if run.earlier is None else _continued(run.state, run.earlier / REPORT),
        "state_sha256": run.state_sha256,
        "violations": _by_type(counts),
        "settled": _settled(verified.settled),
        "gaps_settled": verified.gaps_settled,
        "versions": _versions(log),
        "stages_s": run.stages_s,
    }


def _settled(settled: DataFrame) -> dict[str, Any]:
    """Returns the number of writers and records, and the first of these differences."""
    (counted,) = settled.agg(F.count("*").alias("writers"), F.sum("records").alias("records")).collect()
    shown = settled.orderBy("offset").limit(SHOWN_MAX).collect() if counted.writers else []
    columns = ("offset", "offset_last", "records", "found", "expected")
    return {
        "writers": counted.writers,
        "records": counted.records or 0,
        "shown": [{column: row[column] for column in columns} for row in shown],
    }


def _by_type(counts: Mapping[tuple[str, str], int], of: str | None = None) -> dict[str, int]:
    """Returns numbers of violations by type, of all sources or of one."""
    found: dict[str, int] = {}
    for (source, type_), count in sorted(counts.items()):
        if of in (None, source):
            found[type_] = found.get(type_, 0) + count
    return dict(sorted(found.items()))


def _versions(log: LogFrames) -> dict[str, str]:
    """Returns the versions of the software used. The notary's own is missing if it runs from a folder and is not installed."""
    java = log.ordering.sparkSession.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version') AS version")
    own = {}
    with contextlib.suppress(PackageNotFoundError):
        own["kafka-notary"] = version("kafka-notary")
    return {
        **own,
        "spark": pyspark.__version__,
        "java": java.collect()[0].version,
        "python": platform.python_version(),
        "pyarrow": pyarrow.__version__,
    }


def _continued(state: AppliedState, report: Path) -> dict[str, Any]:
    """Returns the facts about the earlier run, whose report this is."""
    return {
        "report": str(report),
        "report_sha256": sha256(report.read_bytes()).hexdigest(),
        "ordering_offset": state.offsets_next[ORDERING],
        "decisions": state.decided,
        "root": state.root.hex(),
        "signatures_checked": state.signatures_checked,
    }


def _ranges(log: LogFrames, state: AppliedState, topic: str) -> dict[str, list[int]]:
    """Returns [first offset, offset after the last] of each partition that has grown since `state`."""
    starts = {topic_partition: state.offsets_next.get(topic_partition, 0) for topic_partition in sorted(log.log_end_offsets)}
    return {
        str(topic_partition[1]): [start, log.log_end_offsets[topic_partition]]
        for topic_partition, start in starts.items()
        if topic_partition[0] == topic and start < log.log_end_offsets[topic_partition]
    }
