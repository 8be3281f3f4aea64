"""A log as brokers have it: by Spark's Kafka source, and by aiokafka where that returns no record for an offset."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from spark_join.errors import CouldNotVerify
from spark_join.log import LogFrames, TopicPartition
from spark_join.log.kafka import TASK_RECORDS_MAX, Admin, Kafka, OffsetRange, read_log_offsets, read_records
from spark_join.log.rereading import read_again


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
    with Admin(session, kafka) as admin:
        log_offsets = read_log_offsets(admin, kafka)
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
        read[name] = read_all(session, kafka, of_topic, task_records_max).drop("topic")
    ends = {topic_partition: offset_range.offset_end for topic_partition, offset_range in log_offsets.items()}

    def at(topic_partitions: Mapping[TopicPartition, int]) -> DataFrame:
        return read_all(session, kafka, {each: OffsetRange(offset, offset + 1) for each, offset in topic_partitions.items()})

    return LogFrames(read["ordering"], read["payload"], len(log_offsets) - 1, ends, at)


def read_all(
    session: SparkSession, kafka: Kafka, wanted: Mapping[TopicPartition, OffsetRange], task_records_max: int | None = None
) -> DataFrame:
    """Returns what `read_records` does, and the records that Java's client does not return (`rereading`).

    It counts the records first. A partition with fewer records than offsets is read by aiokafka. Raises `CouldNotVerify`.
    """
    found = read_records(session, kafka, wanted, task_records_max)
    counts = {(row.topic, row.partition): row["count"] for row in found.groupBy("topic", "partition").count().collect()}
    short = {
        topic_partition: offset_range
        for topic_partition, offset_range in wanted.items()
        if counts.get(topic_partition, 0) < offset_range.offset_end - offset_range.offset_first
    }
    if not short:
        return found
    again = read_again(session, kafka, short, task_records_max)
    others = {topic_partition: offset_range for topic_partition, offset_range in wanted.items() if topic_partition not in short}
    return read_records(session, kafka, others, task_records_max).union(again) if others else again
