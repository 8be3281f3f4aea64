"""What is gone from a log by the offsets of its records, where the part that was read begins and ends too."""

import pytest
from pyspark.sql import Row, SparkSession

from spark_join.errors import CouldNotVerify
from spark_join.order.gaps import missing_offsets, sequence_gaps

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_ENTRIES = "offset bigint, incarnation binary, sequence binary, reached binary"
_GONE = "topic string, partition int, first bigint, last bigint"
_EDGES = "topic string, partition int, offset bigint"


def _told(spark: SparkSession, ordering: list[int], payload: list[tuple[int, int]], ends: list[tuple[str, int, int, int]]) -> list[Row]:
    """Of ordering records and payload records (partition, offset); `ends`: just before and just behind what each partition should have."""
    records = spark.createDataFrame([(each,) for each in ordering], "offset bigint")
    edges = spark.createDataFrame([(topic, of, at) for topic, of, *both in ends for at in both], _EDGES)
    gone = missing_offsets(records, spark.createDataFrame(payload, "partition int, offset bigint"), edges)
    return sequence_gaps(spark.createDataFrame([], _ENTRIES), gone).orderBy("found").collect()


def test_what_is_gone_from_the_ends(spark: SparkSession) -> None:
    """The first and the last record of a part, and a partition that is gone as a whole; one that is empty misses nothing.

    What is behind the last record may be a transaction's marker: no reader is told which it is.
    """
    ends = [("ordering", 0, 4, 9), ("payload", 0, -1, 2), ("payload", 1, -1, 3), ("payload", 2, 5, 6)]
    assert [(row.offset, row.found) for row in _told(spark, [6, 7], [(0, 0), (0, 1)], ends)] == [
        (None, "offsets 0 to 2 of payload partition 1 are not there"),
        (5, "offsets 5 to 5 of the ordering topic are not there"),
        (8, "offsets 8 to 8 of the ordering topic are not there"),
    ]


def _incarnation(number: int, *batches: tuple[int, int, int]) -> list[tuple[int, bytes, bytes, bytes]]:
    """Its entries that count: of each the offset, its sequence, and the one that the incarnation had reached."""
    return [(offset, *(each.to_bytes(8, "big") for each in (number, sequence, reached))) for offset, sequence, reached in batches]


def test_lives_that_offsets_excuse(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """What is passed over in a life is told if no offset is missing since its entry before; no task gets all gaps to find that.

    Of a life that had reached a sequence in a part before this one, the whole part is looked at up to its entry.
    """
    entries = [
        *_incarnation(1, (1, 1, 0), (5, 3, 1), (9, 5, 3)),  # an offset is gone before its 3, none before its 5
        *_incarnation(2, (6, 2, 0), (70_000, 4, 2), (70_001, 6, 4)),  # the same, far on
        *_incarnation(3, (2, 8, 6)),  # no gap is before it
        *_incarnation(4, (70_002, 8, 6)),
    ]
    gone = spark.createDataFrame([("ordering", 0, 3, 4), ("payload", 1, 7, 7), ("ordering", 0, 69_000, 69_500)], _GONE)
    told = sequence_gaps(spark.createDataFrame(entries, _ENTRIES), gone)
    assert sorted([row.offset for row in told.where("expected LIKE 'batch%'").collect()]) == [2, 9, 70_001]
    told.explain()
    assert not {"CartesianProduct", "BroadcastNestedLoopJoin"} & set(capsys.readouterr().out.split())


def test_an_offset_that_is_there_twice(spark: SparkSession) -> None:
    """It stands for no other that is missing; and as nobody can say which record it is, nothing is said of the log."""
    ends = [("ordering", 0, -1, 3), ("payload", 0, -1, 4)]
    with pytest.raises(CouldNotVerify, match="offset 1 of payload partition 0 is there more than once"):
        _told(spark, [0, 1, 2], [(0, 0), (0, 1), (0, 1), (0, 3)], ends)
    with pytest.raises(CouldNotVerify, match="offset 2 of ordering partition 0 is there more than once"):
        _told(spark, [0, 2, 2], [(0, 0), (0, 1), (0, 2), (0, 3)], ends)
