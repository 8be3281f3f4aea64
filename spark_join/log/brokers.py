"""A log as brokers have it."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_join.errors import CouldNotVerify
from spark_join.log import LogFrames, TopicPartition
from spark_join.log.client import Kafka
from spark_join.log.kafka import Admin, OffsetRange, read_log_offsets
from spark_join.log.reading import read_records

TASK_RECORDS_MAX: Final = 100_000
"""The most records that one task reads. The ordering topic is one partition; without a limit one core would read and write all of it."""


def read_kafka(
    session: SparkSession,
    kafka: Kafka,
    since: Mapping[TopicPartition, int] | None = None,
    *,
    task_records_max: int = TASK_RECORDS_MAX,
) -> LogFrames:
    """Reads the log from its start, or in each partition from `since` on, to its current end. Raises `CouldNotVerify`.

    A task reads `task_records_max` offsets of a partition at most.
    """
    log_offsets = read_log_offsets(Admin(kafka), kafka)
    wanted: dict[TopicPartition, OffsetRange] = {}
    for (topic, partition), offset_range in log_offsets.items():
        first = (since or {}).get((topic, partition), 0)
        if offset_range.offset_first > first:
            raise CouldNotVerify(
                f"topic {kafka.prefix}.{topic} partition {partition} begins at offset {offset_range.offset_first}: the records before are"
                " deleted. Verify from the archive that has them (--archive)"
            )
        wanted[topic, partition] = OffsetRange(min(first, offset_range.offset_end), offset_range.offset_end)
    read = {}
    for name in ("ordering", "payload"):
        of_topic = {topic_partition: offset_range for topic_partition, offset_range in wanted.items() if topic_partition[0] == name}
        read[name] = read_records(session, kafka, of_topic, task_records_max).drop("topic")
    ends = {topic_partition: offset_range.offset_end for topic_partition, offset_range in log_offsets.items()}

    def at(topic_partitions: Mapping[TopicPartition, int]) -> DataFrame:
        return read_records(session, kafka, {each: OffsetRange(offset, offset + 1) for each, offset in topic_partitions.items()})

    return LogFrames(read["ordering"], read["payload"], len(log_offsets) - 1, ends, at)
