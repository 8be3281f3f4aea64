"""Tests the anomalies of the order: offsets that are missing anywhere in a log, and foreign views, one row for each writer."""

import pytest
from pyspark.sql import Row, SparkSession

from spark_join.errors import CouldNotVerify
from spark_join.order.anomalies import differences, missing_offsets, sequence_gaps, settled_by_owner
from spark_join.order.effects import Carry

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("as_large"), pytest.mark.timeout(900)]

_ENTRIES = "offset bigint, incarnation binary, sequence binary, reached binary"
_GONE = "topic string, partition int, first bigint, last bigint, settled boolean"
_EDGES = "topic string, partition int, offset bigint"

_SCHEMA = "offset bigint, view string, seen binary, history binary, expected string, seen_here bigint, foreign_writer binary"
Place = tuple[int, int | None, int]
"""Offset, writer, and the number of records in effect there."""


def _anomalies(
    spark: SparkSession, ordering: list[int], payload: list[tuple[int, int]], ends: list[tuple[str, int, int, int]]
) -> list[Row]:
    """Returns the gaps of ordering records and payload records (partition, offset).

    `ends`: the offsets just before and just behind the records that each partition should have.
    """
    records = spark.createDataFrame([(each,) for each in ordering], "offset bigint")
    edges = spark.createDataFrame([(topic, of, at) for topic, of, *both in ends for at in both], _EDGES)
    gone = missing_offsets(records, spark.createDataFrame(payload, "partition int, offset bigint"), edges)
    return sequence_gaps(spark.createDataFrame([], _ENTRIES), gone).orderBy("found").collect()


@pytest.mark.nightly
def test_what_is_gone_from_the_ends(spark: SparkSession) -> None:
    """The first and the last record of a part, and a missing partition, are reported; an empty partition misses nothing.

    Behind the last record there may be a transaction's marker, which no reader can distinguish from a gap.
    """
    ends = [("ordering", 0, 4, 9), ("payload", 0, -1, 2), ("payload", 1, -1, 3), ("payload", 2, 5, 6)]
    assert [(row.offset, row.found) for row in _anomalies(spark, [6, 7], [(0, 0), (0, 1)], ends)] == [
        (None, "offsets 0 to 2 of payload partition 1 are not there"),
        (5, "offsets 5 to 5 of the ordering topic are not there"),
        (8, "offsets 8 to 8 of the ordering topic are not there"),
    ]


def test_a_part_may_end_at_the_last_offset(spark: SparkSession) -> None:
    """A range of an archive may claim so: all offsets behind its last record are missing."""
    (row,) = _anomalies(spark, [0, 1], [], [("ordering", 0, -1, 2**63 - 1)])
    assert (row.offset, row.found) == (2, f"offsets 2 to {2**63 - 2} of the ordering topic are not there")


def _incarnation(number: int, *batches: tuple[int, int, int]) -> list[tuple[int, bytes, bytes, bytes]]:
    """Returns the entries of an incarnation that count: offset, sequence, and the sequence that it had reached before."""
    return [
        (offset, number.to_bytes(8, "big"), sequence.to_bytes(8, "big"), reached.to_bytes(8, "big"))
        for offset, sequence, reached in batches
    ]


def test_missing_offsets_explain_skipped_sequences(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Skipped sequences are reported unless an offset is missing since the incarnation's last entry; no task needs all gaps for that.

    For an incarnation that was active in an earlier part, all of the part up to its entry is examined. A settled run explains them too.
    """
    entries = [
        *_incarnation(1, (1, 1, 0), (5, 3, 1), (9, 5, 3)),  # an offset is missing before its 3, none before its 5
        *_incarnation(2, (6, 2, 0), (70_000, 4, 2), (70_001, 6, 4)),  # the same at high offsets
        *_incarnation(3, (2, 8, 6)),  # no gap is before it
        *_incarnation(4, (70_002, 8, 6)),
    ]
    runs = [("ordering", 0, 3, 4, False), ("payload", 1, 7, 7, False), ("ordering", 0, 69_000, 69_500, True)]
    gone = spark.createDataFrame(runs, _GONE)
    returned = sequence_gaps(spark.createDataFrame(entries, _ENTRIES), gone)
    assert sorted([row.offset for row in returned.where("expected LIKE 'batch%'").collect()]) == [2, 9, 70_001]
    returned.explain()
    assert not {"CartesianProduct", "BroadcastNestedLoopJoin"} & set(capsys.readouterr().out.split())


def test_an_offset_that_is_there_twice(spark: SparkSession) -> None:
    """A duplicate offset does not replace a missing one; the log cannot be verified, because the right record is unknown."""
    ends = [("ordering", 0, -1, 3), ("payload", 0, -1, 4)]
    with pytest.raises(CouldNotVerify, match="offset 1 of payload partition 0 is there more than once"):
        _anomalies(spark, [0, 1, 2], [(0, 0), (0, 1), (0, 1), (0, 3)], ends)
    with pytest.raises(CouldNotVerify, match="offset 2 of ordering partition 0 is there more than once"):
        _anomalies(spark, [0, 2, 2], [(0, 0), (0, 1), (0, 2), (0, 3)], ends)


_APPLIED = "offset bigint, kind string, effect boolean, partition int, content_offset bigint, settled_last bigint"
Applied = tuple[int, str, bool, int | None, int | None, int | None]


def _entry(offset: int, content_offset: int) -> Applied:
    return offset, "entry", True, 0, content_offset, None


def _settled(spark: SparkSession, records: list[Applied], runs: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """Returns topic and first offset of the settled ones of these runs (topic, first, last)."""
    gone = spark.createDataFrame([(topic, 0, first, last, False) for topic, first, last in runs], _GONE)
    found = settled_by_owner(gone, spark.createDataFrame(records, _APPLIED))
    assert found is not None
    return sorted([(row.topic, row["first"]) for row in found.where("settled").collect()])


def test_missing_offsets_in_a_settled_history(spark: SparkSession) -> None:
    """A settle record confirms the offsets before the last record of its history, and those before a content of it, but no later ones."""
    records = [_entry(2, 3), _entry(5, 9), _entry(8, 6), (9, "settle", True, None, None, 5), _entry(11, 30)]
    ordering, payload = [("ordering", 3, 4), ("ordering", 6, 7)], [("payload", 4, 5), ("payload", 7, 8), ("payload", 12, 20)]
    assert _settled(spark, records, ordering + payload) == [("ordering", 3), ("payload", 4)]
    skipped = [*records[:3], (9, "settle", False, None, None, None)]
    assert _settled(spark, skipped, ordering + payload) == []


def test_missing_offsets_before_a_salvage(spark: SparkSession) -> None:
    """The end of a salvage confirms all offsets before it, and those before the first content of an entry behind it."""
    records = [_entry(2, 3), (9, "salvage-done", True, None, None, None), _entry(11, 30)]
    runs = [("ordering", 3, 8), ("ordering", 10, 10), ("payload", 4, 29), ("payload", 31, 31)]
    assert _settled(spark, records, runs) == [("ordering", 3), ("payload", 4)]


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
