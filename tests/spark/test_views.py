"""Tests that foreign views are summed up by writer, and settled ones reported separately."""

import pytest
from pyspark.sql import SparkSession

from spark_join.order.effects import Carry
from spark_join.order.views import differences

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_SCHEMA = "offset bigint, view string, seen binary, history binary, expected string, seen_here bigint, foreign_writer binary"
Place = tuple[int, int | None, int]
"""Offset, writer, and the number of records in effect there."""


def _row(offset: int, writer: int | None, seen_here: int, view: str = "foreign") -> tuple[object, ...]:
    history = bytes([offset]) * 32
    number = None if writer is None else writer.to_bytes(8, "big")
    return offset, view, (2**64 - 1).to_bytes(8, "big"), history, f"expected at {offset}", seen_here, number


def _found(spark: SparkSession, carry: Carry, *places: Place) -> list[tuple[object, ...]]:
    rows = [_row(*place) for place in places] + [_row(90, 1, 5, "own"), _row(91, 2, 5, "beyond")]
    found = differences(spark.createDataFrame(rows, _SCHEMA), carry).orderBy("offset").collect()
    return [(row.offset, row.offset_last, row.records, row.settled) for row in found]


def test_a_row_for_each_writer(spark: SparkSession) -> None:
    """Each incarnation, and the owner, has one row with first and last place and number; `found` and `expected` are of the first."""
    rows = [_row(each, writer, 5) for each, writer in ((9, 2**64 - 1), (3, 1), (7, 1), (5, 1), (8, None))]
    found = differences(spark.createDataFrame(rows, _SCHEMA), Carry()).orderBy("offset").collect()
    assert [(row.offset, row.offset_last, row.records, row.settled) for row in found] == [
        (3, 7, 3, False),
        (8, 8, 1, False),
        (9, 9, 1, False),
    ]
    view = "a view of 18446744073709551615 records, "
    assert [row.found for row in found] == [
        f"{view}{'03' * 32}; incarnation 1 wrote 3 such records, the last at offset 7",
        f"{view}{'08' * 32}; the owner wrote it",
        f"{view}{'09' * 32}; incarnation 18446744073709551615 wrote it",
    ]
    assert [row.expected for row in found] == ["expected at 3", "expected at 8", "expected at 9"]


def test_what_a_settle_record_settles(spark: SparkSession) -> None:
    """A settle record settles the earlier views whose places its history covers, and no others."""
    carry = Carry(settled=7, settled_offset=20)
    assert _found(spark, carry, (10, 1, 6), (11, 1, 7), (12, 1, 8), (21, 1, 7)) == [(10, 11, 2, True), (12, 21, 2, False)]
    assert _found(spark, Carry(), (0, 1, 0)) == [(0, 0, 1, False)]


def test_settled_in_an_earlier_part(spark: SparkSession) -> None:
    """A settle record of a part that was verified before settles nothing that came after it."""
    assert _found(spark, Carry(settled=7, settled_offset=9), (10, 1, 6)) == [(10, 10, 1, False)]
    assert _found(spark, Carry(settled=7), (10, 1, 6)) == [(10, 10, 1, False)]
