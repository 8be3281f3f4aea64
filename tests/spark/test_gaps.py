"""Tests missing offsets: records that are gone from within a log, and from both ends of the part that was read."""

import pytest
from pyspark.sql import Row, SparkSession

from spark_join.errors import CouldNotVerify
from spark_join.order.gaps import missing_offsets, sequence_gaps

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_ENTRIES = "offset bigint, incarnation binary, sequence binary, reached binary"
_GONE = "topic string, partition int, first bigint, last bigint"
_EDGES = "topic string, partition int, offset bigint"


def _told(spark: SparkSession, ordering: list[int], payload: list[tuple[int, int]], ends: list[tuple[str, int, int, int]]) -> list[Row]:
    """Returns the gaps of ordering records and payload records (partition, offset).

    `ends`: the offsets just before and just behind the records that each partition should have.
    """
    records = spark.createDataFrame([(each,) for each in ordering], "offset bigint")
    edges = spark.createDataFrame([(topic, of, at) for topic, of, *both in ends for at in both], _EDGES)
    gone = missing_offsets(records, spark.createDataFrame(payload, "partition int, offset bigint"), edges)
    return sequence_gaps(spark.createDataFrame([], _ENTRIES), gone).orderBy("found").collect()


def test_what_is_gone_from_the_ends(spark: SparkSession) -> None:
    """The first and the last record of a part, and a missing partition, are reported; an empty partition misses nothing.

    Behind the last record there may be a transaction's marker, which no reader can distinguish from a gap.
    """
    ends = [("ordering", 0, 4, 9), ("payload", 0, -1, 2), ("payload", 1, -1, 3), ("payload", 2, 5, 6)]
    assert [(row.offset, row.found) for row in _told(spark, [6, 7], [(0, 0), (0, 1)], ends)] == [
        (None, "offsets 0 to 2 of payload partition 1 are not there"),
        (5, "offsets 5 to 5 of the ordering topic are not there"),
        (8, "offsets 8 to 8 of the ordering topic are not there"),
    ]


def _incarnation(number: int, *batches: tuple[int, int, int]) -> list[tuple[int, bytes, bytes, bytes]]:
    """Returns the entries of an incarnation that count: offset, sequence, and the sequence that it had reached before."""
    return [(offset, *(each.to_bytes(8, "big") for each in (number, sequence, reached))) for offset, sequence, reached in batches]


def test_lives_that_offsets_excuse(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Skipped sequences are reported unless an offset is missing since the incarnation's last entry; no task needs all gaps for that.

    For an incarnation that was active in an earlier part, the whole part up to its entry is examined.
    """
    entries = [
        *_incarnation(1, (1, 1, 0), (5, 3, 1), (9, 5, 3)),  # an offset is missing before its 3, none before its 5
        *_incarnation(2, (6, 2, 0), (70_000, 4, 2), (70_001, 6, 4)),  # the same at high offsets
        *_incarnation(3, (2, 8, 6)),  # no gap is before it
        *_incarnation(4, (70_002, 8, 6)),
    ]
    gone = spark.createDataFrame([("ordering", 0, 3, 4), ("payload", 1, 7, 7), ("ordering", 0, 69_000, 69_500)], _GONE)
    told = sequence_gaps(spark.createDataFrame(entries, _ENTRIES), gone)
    assert sorted([row.offset for row in told.where("expected LIKE 'batch%'").collect()]) == [2, 9, 70_001]
    told.explain()
    assert not {"CartesianProduct", "BroadcastNestedLoopJoin"} & set(capsys.readouterr().out.split())


def test_an_offset_that_is_there_twice(spark: SparkSession) -> None:
    """A duplicate offset does not replace a missing one; the log cannot be verified, because the right record is unknown."""
    ends = [("ordering", 0, -1, 3), ("payload", 0, -1, 4)]
    with pytest.raises(CouldNotVerify, match="offset 1 of payload partition 0 is there more than once"):
        _told(spark, [0, 1, 2], [(0, 0), (0, 1), (0, 1), (0, 3)], ends)
    with pytest.raises(CouldNotVerify, match="offset 2 of ordering partition 0 is there more than once"):
        _told(spark, [0, 2, 2], [(0, 0), (0, 1), (0, 2), (0, 3)], ends)
