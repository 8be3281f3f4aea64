"""Tests the report of a verification, of any size, and the leftovers of an interrupted run."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.commands import main
from spark_join.errors import CouldNotVerify
from spark_join.log import LogFrames
from spark_join.report import RunMetadata, refuse_used, shown_of, write_report, write_violations
from spark_join.state import start
from spark_join.tree import Counts
from spark_join.verify import Verified
from spark_join.violations import VIOLATION

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

RECORD = "partition int, offset bigint, append_time_ms bigint, key binary, value binary"


def _violations(spark: SparkSession, count: int) -> DataFrame:
    """Returns violations of two types and two sources, unordered, some without a place."""
    at = F.when(F.col("id") % 5 > 0, F.col("id") * 7919 % count)
    return spark.range(count).select(
        F.when(F.col("id") % 3 == 0, "bad-signature").otherwise("index-mismatch").alias("type"),
        at.alias("position"),
        F.lit(None).cast("bigint").alias("offset"),
        F.hex(F.col("id")).alias("id"),
        F.lit("this").alias("found"),
        F.lit("that").alias("expected"),
        F.when(F.col("id") % 2 == 0, "log").otherwise("/export").alias("source"),
        F.lit(None).cast("bigint").alias("offset_last"),
        F.lit(None).cast("bigint").alias("records"),
    )


def _key(row: dict[str, object]) -> tuple[tuple[bool, object], ...]:
    return tuple([(row[name] is not None, row[name]) for name in ("type", "source", "position", "offset", "id")])


def test_many_violations_go_to_many_files(spark: SparkSession, tmp_path: Path) -> None:
    """Several tasks write many violations, in order within each file and from one to the next. The page shows some of each kind."""
    violations = _violations(spark, 1_000)
    write_violations(violations, 1_000, tmp_path / "many", rows_a_file=100)
    files = sorted((tmp_path / "many").glob("*.parquet"))
    assert 5 <= len(files) <= 10
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert len({row["id"] for row in rows}) == 1_000
    assert rows == sorted(rows, key=_key)
    write_violations(violations, 1_000, tmp_path / "one")
    (file,) = (tmp_path / "one").glob("*.parquet")
    assert pq.read_table(file).to_pylist() == rows
    with pytest.raises(CouldNotVerify, match=r"1001 rows were written into .*/fewer, and 1000 are there"):
        write_violations(violations, 1_001, tmp_path / "fewer")
    shown = [row.asDict() for row in shown_of(violations, 7).collect()]
    kinds = [
        [row for row in rows if (row["type"], row["source"]) == kind][:7] for kind in sorted({(row["type"], row["source"]) for row in rows})
    ]
    assert len(kinds) == 4
    assert shown == [row for kind in kinds for row in kind]


def _verified(spark: SparkSession, violations: DataFrame) -> tuple[LogFrames, Verified]:
    """Returns an empty log, and the result of its verification."""
    records = spark.createDataFrame([], RECORD)
    log = LogFrames(records, records, {("ordering", 0): 0, ("payload", 0): 0}, lambda _: records)
    decisions = spark.createDataFrame([], "position bigint, log_time_ms bigint, outcome int")
    entries = spark.createDataFrame(
        [], "offset bigint, log_time_ms bigint, count bigint, append_time_ms bigint, content_append_time_ms bigint"
    )
    known = start(spark)
    return log, Verified(
        "O=Notary",
        bytes(32),
        0,
        {"committed": 0},
        {},
        bytes(32),
        Counts(0, 0, 0),
        {},
        {},
        None,
        decisions,
        entries,
        violations,
        violations.limit(0),
        {},
        lambda: known,
    )


def test_an_interrupted_run_is_reported(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The part that was written before the report is named as incomplete, and is no report; the report appears last."""
    log, verified = _verified(spark, _violations(spark, 1))
    run = RunMetadata(at=datetime(2026, 11, 22, 3, 4, 5, tzinfo=UTC), signatures=False, stages_s={}, state=start(spark))
    (tmp_path / "report.html").mkdir()  # makes the run fail when only the Parquet files exist
    with pytest.raises(IsADirectoryError):
        write_report(tmp_path, log, verified, run)
    assert not (tmp_path / "report.json").exists()
    assert main(["verify", "--archive", str(tmp_path), "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path} has no report: it has violations, report.html, and no report.json, which a run writes last" in said
    out = tmp_path / "out"
    out.mkdir()
    refuse_used(out)
    write_report(out, log, verified, run)
    assert sorted(file.name for file in out.iterdir()) == ["report.html", "report.json", "violations"]
    assert json.loads((out / "report.json").read_text())["violations"] == {"bad-signature": 1}
    assert json.loads((out / "report.json").read_text())["verified_at"] == "2026-11-22T03:04:05Z"
    with pytest.raises(CouldNotVerify, match="has a report already"):
        refuse_used(out)


def test_no_violation_has_a_table_too(spark: SparkSession, tmp_path: Path) -> None:
    """A table without rows has its columns."""
    empty = spark.createDataFrame([], VIOLATION)
    write_violations(empty, 0, tmp_path / "none")
    assert pq.read_table(tmp_path / "none").column_names == empty.columns
