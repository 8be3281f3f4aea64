"""A log: the records of both topics, read from brokers or from an archive, or restored into a cluster."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

TopicPartition = tuple[str, int]
"""A topic-partition: the topic, `ordering` or `payload`, and the number of the partition."""

ORDERING: Final[TopicPartition] = ("ordering", 0)


def describe(topic_partition: TopicPartition, prefix: str = "") -> str:
    """Returns the name of a topic-partition for messages, such as `notary.payload partition 3`."""
    topic, partition = topic_partition
    return f"{prefix and prefix + '.'}{topic} partition {partition}"


class LogFrames(msgspec.Struct, frozen=True):
    """The records of both topics: partition, offset, append_time_ms, key and value."""

    ordering: DataFrame
    payload: DataFrame
    log_end_offsets: Mapping[TopicPartition, int]
    """The offset after the last record of each partition"""
    at: Callable[[Mapping[TopicPartition, int]], DataFrame]
    """Returns the record at one offset of each given partition, with the column topic too. Reads no other records"""


def records_since(records: DataFrame, topic: str, since: Mapping[TopicPartition, int]) -> DataFrame:
    """Returns `records` of a topic, without those before the offsets that `since` gives for some partitions."""
    for (of, partition), offset in since.items():
        if of == topic:
            records = records.where((F.col("partition") != partition) | (F.col("offset") >= offset))
    return records
