"""A log as it was read, whether from brokers or from an archive."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

Place = tuple[str, int]
"""A topic, `ordering` or `payload`, and one of its partitions."""

ORDERING: Final[Place] = ("ordering", 0)


class Log(msgspec.Struct, frozen=True):
    """What is read: partition, offset, append_time_ms, key and value of each topic's records."""

    ordering: DataFrame
    payload: DataFrame
    payload_partitions: int
    """How many the topic has; the log declares as many or fewer"""
    offsets_end: Mapping[Place, int]
    """Behind the last record of each partition"""
    at: Callable[[Mapping[Place, int]], DataFrame]
    """The records at one offset each of these partitions, with topic besides, and no others read"""


def records_since(records: DataFrame, topic: str, since: Mapping[Place, int]) -> DataFrame:
    """`records` of a topic without those that are before `since`, in the partitions that it names."""
    for (of, partition), offset in since.items():
        if of == topic:
            records = records.where((F.col("partition") != partition) | (F.col("offset") >= offset))
    return records
