"""What is gone from a log by the offsets of its records, where the part that was read begins and ends too."""

import pytest
from pyspark.sql import SparkSession

from spark_join.order.gaps import sequence_gaps

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_ENTRIES = "offset bigint, incarnation binary, sequence binary, reached binary"
_EDGES = "topic string, partition int, offset bigint"


def test_what_is_gone_from_the_ends(spark: SparkSession) -> None:
    """The first and the last record of a part, and a partition that is gone as a whole; one that is empty misses nothing."""
    entries = spark.createDataFrame([], _ENTRIES)
    records = spark.createDataFrame([(6,), (7,)], "offset bigint")
    payload = spark.createDataFrame([(0, 0), (0, 1)], "partition int, offset bigint")
    ends = [("ordering", 0, 4, 9), ("payload", 0, -1, 2), ("payload", 1, -1, 3), ("payload", 2, 5, 6)]
    edges = spark.createDataFrame([(topic, of, at) for topic, of, *both in ends for at in both], _EDGES)
    told = sequence_gaps(entries, records, payload, edges).orderBy("found").collect()
    assert [(row.offset, row.found) for row in told] == [
        (None, "offsets 0 to 2 of payload partition 1 are not there"),
        (5, "offsets 5 to 5 of the ordering topic are not there"),
        (8, "offsets 8 to 8 of the ordering topic are not there"),
    ]
