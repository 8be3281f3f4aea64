"""What is written of a verification: `report.json`, `report.html`, and `violations/` as Parquet."""

import contextlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow
import pyspark

from spark_join.join import Log
from spark_join.log.durable import sync_files, write_last
from spark_join.report.page import VIOLATIONS_SHOWN_MAX, page
from spark_join.report.series import series
from spark_join.state.kept import REPORT
from spark_join.state.state import ORDERING, State
from spark_join.verify import Verified

REPORT_VERSION: Final = 1
VIOLATIONS: Final = "violations"
PAGE: Final = "report.html"


def write_report(
    folder: Path, log: Log, verified: Verified, *, signatures: bool, stages_s: dict[str, float], state: State, state_sha256: str | None
) -> dict[str, Any]:
    """Write all three into `folder`, which has none; what `report.json` says.

    `stages_s`: how many seconds each stage took. `state` is the one that the run went on from, `state_sha256` what `kept.write_state` gave.
    """
    verified.violations.coalesce(1).orderBy("type", "source", "position", "offset").write.parquet(str(folder / VIOLATIONS))
    by_type = verified.violations.groupBy("type").count().orderBy("type").collect()
    hole = verified.undecided
    said = {
        "report_version": REPORT_VERSION,
        "notary": log.notary_name,
        "ranges": {topic: _ranges(log, state, topic) for topic in ("ordering", "payload")},
        "ordering_records": dict(sorted(verified.records.items())),
        "decisions": verified.decided,
        "outcomes": verified.outcomes,
        "root": verified.root.hex(),
        "checkpoints": msgspec.to_builtins(verified.checkpoints),
        "signatures_checked": signatures,
        "exports": verified.exports,
        "undecided_from_offset": verified.offset_hole,
        "undecided_entries": hole.entries if hole else 0,
        "undecided_requests": hole.requests if hole else 0,
        "undecided_because": hole.because if hole else None,
        "continued_from": _continued(state),
        "state_sha256": state_sha256,
        "violations": {row.type: row["count"] for row in by_type},
        "versions": _versions(log),
        "stages_s": stages_s,
    }
    shown = verified.violations.orderBy("type", "position", "offset").limit(VIOLATIONS_SHOWN_MAX).collect()
    sync_files(folder / VIOLATIONS)
    write_last(folder / PAGE, page(said, series(verified.decisions, verified.entries), shown).encode())
    write_last(folder / REPORT, msgspec.json.format(msgspec.json.encode(said), indent=1) + b"\n")
    return said


def _versions(log: Log) -> dict[str, str]:
    """This software's is missing where it runs from a folder, not installed."""
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


def _continued(state: State) -> dict[str, Any] | None:
    """What an earlier run had verified."""
    if not state.offsets_next:
        return None
    return {
        "ordering_offset": state.offsets_next[ORDERING],
        "decisions": state.decided,
        "root": state.root.hex(),
        "signatures_checked": state.signatures_checked,
    }


def _ranges(log: Log, state: State, topic: str) -> dict[str, list[int]]:
    """[first offset, offset after the last] of each partition that has grown since `state`."""
    starts = {place: state.offsets_next.get(place, 0) for place in sorted(log.offsets_end)}
    return {
        str(place[1]): [start, log.offsets_end[place]]
        for place, start in starts.items()
        if place[0] == topic and start < log.offsets_end[place]
    }
