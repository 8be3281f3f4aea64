"""Tests the rows and the texts of violations."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_join.violations import LOG, VIOLATION, render_conflicts, render_consumed, render_outcome, violations

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_DECISION = "decision struct<outcome: int, conflicts: array<struct<state: binary, kind: int, consumed_by: binary>>>"


def test_row_has_what_is_given(spark: SparkSession) -> None:
    """Each column has its own value, a computed one or that of the frame; others are null, and the source is the log then."""
    frame = spark.createDataFrame([("found it", "expected it", "else")], "found string, expected string, other string")
    rest = {name: F.lit(name) for name in ("id", "source", "found")} | {
        name: F.lit(number) for number, name in enumerate(("position", "offset", "offset_last", "records"), 1)
    }
    bare, complete = violations(frame, F.lit("a")), violations(frame, F.lit("b"), **rest)
    assert bare.schema.simpleString() == complete.schema.simpleString() == spark.createDataFrame([], VIOLATION).schema.simpleString()
    assert [tuple(row) for row in bare.union(complete).orderBy("type").collect()] == [
        ("a", None, None, None, "found it", "expected it", LOG, None, None),
        ("b", 1, 2, "id", "found", "expected it", "source", 3, 4),
    ]


def test_texts_of_a_decision(spark: SparkSession) -> None:
    """An outcome has its name, and an unknown one its number; of many conflicts there are the number and the first three."""
    conflicts = [(bytes([at]) * 32 + (2**32 - 1 - at).to_bytes(4, "big"), 0, bytes([at + 8]) * 32) for at in range(4)]
    rows = [((outcome, conflicts[:count]),) for outcome, count in ((0, 0), (1, 1), (2, 3), (3, 4), (9, 0))]
    frame = spark.createDataFrame(rows, _DECISION)
    found = [tuple(row) for row in frame.select(render_outcome("decision"), render_conflicts("decision")).collect()]
    one, two, three = (f"{f'0{at}' * 32}:{2**32 - 1 - at} consumed by {f'{at + 8:02x}' * 32}" for at in range(3))
    assert found == [
        ("committed", "0 conflicts"),
        ("input-conflict", f"1 conflicts: {one}"),
        ("reference-conflict", f"3 conflicts: {one}, {two}, {three}"),
        ("outside-time-window", f"4 conflicts: {one}, {two}, {three}"),
        ("outcome 9", "0 conflicts"),
    ]


def test_texts_of_a_state(spark: SparkSession) -> None:
    """A state is not consumed, consumed by a transaction at a position, or consumed once more."""
    state, consumer = b"\xab" * 32 + b"\x00\x00\x01\x00", (b"\xcd" * 32, 7)
    rows = [(1, state, None, False), (2, state, None, True), (3, state, consumer, False), (4, state, consumer, True)]
    frame = spark.createDataFrame(rows, "at int, state binary, row struct<id: binary, position: bigint>, twice boolean")
    found = [row[0] for row in frame.orderBy("at").select(render_consumed("row", F.col("twice"))).collect()]
    by = f"consumed by {'cd' * 32} at position 7"
    name = f"{'ab' * 32}:256"
    assert found == [f"{name} not consumed", f"{name} not consumed", f"{name} {by}", f"{name} again {by}"]
