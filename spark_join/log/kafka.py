"""Reads both topics with Spark's Kafka source, between offsets that are fixed before the first record is read."""

import json
from collections.abc import Mapping
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.errors import CouldNotVerify
from spark_join.log.client import Admin, Bounds, Kafka
from spark_join.log.log import Log, Place

TASK_RECORDS_MAX: Final = 100_000
"""Records that one task reads. The ordering topic is one partition; without a limit one core would read and write all of it."""


def read_kafka(
    session: SparkSession,
    kafka: Kafka,
    since: Mapping[Place, int] | None = None,
    *,
    task_records_max: int = TASK_RECORDS_MAX,
) -> Log:
    """Reads the log from its start, or in each partition from `since` on, to its current end. Raises `CouldNotVerify`.

    A task reads `task_records_max` offsets of a partition at most.
    """
    with Admin(session, kafka) as admin:
        bounds = log_bounds(admin, kafka)
    wanted: dict[Place, Bounds] = {}
    for (topic, partition), bound in bounds.items():
        first = (since or {}).get((topic, partition), 0)
        if bound.offset_first > first:
            raise CouldNotVerify(
                f"topic {kafka.prefix}.{topic} partition {partition} begins at offset {bound.offset_first}: the records before are deleted."
                " Verify from the archive that has them (--archive)"
            )
        wanted[topic, partition] = Bounds(min(first, bound.offset_end), bound.offset_end)
    read = {}
    for name in ("ordering", "payload"):
        of_topic = {place: bound for place, bound in wanted.items() if place[0] == name}
        read[name] = read_records(session, kafka, of_topic, task_records_max).drop("topic")
    ends = {place: bound.offset_end for place, bound in bounds.items()}

    def at(places: Mapping[Place, int]) -> DataFrame:
        return read_records(session, kafka, {place: Bounds(offset, offset + 1) for place, offset in places.items()})

    return Log(read["ordering"], read["payload"], len(bounds) - 1, ends, at)


def log_bounds(admin: Admin, kafka: Kafka) -> dict[Place, Bounds]:
    """Returns the log start and log end of each partition; reads those of the ordering topic first.

    A worker sends an entry and its payload at once. The end of the payload topic is read later, so it lies behind the payloads of all
    entries before the ordering end, except those in flight at that moment. In the other order, entries appended between the two reads would
    have no content, and a busy notary would seem to lose payloads. A payload whose entry is after the end is an orphan: it changes nothing.
    """
    ordering = admin.bounds(kafka.ordering)
    payload = admin.bounds(kafka.payload)
    if len(ordering) != 1:
        raise CouldNotVerify(f"topic {kafka.ordering} has {len(ordering)} partitions: a notary's has 1, whose order is the global order")
    return {("ordering", 0): ordering[0], **{("payload", partition): bound for partition, bound in enumerate(payload)}}


def read_records(session: SparkSession, kafka: Kafka, wanted: Mapping[Place, Bounds], task_records_max: int | None = None) -> DataFrame:
    """Returns topic (`ordering` or `payload`), offset, append_time_ms, key, value and partition of all records between `wanted` offsets.

    A task reads one partition in the order of offsets; with `task_records_max`, a part of it with at most so many offsets. The task fails
    if an offset has been deleted. Raises `CouldNotVerify`.
    """
    names = {"ordering": kafka.ordering, "payload": kafka.payload}
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), bound in wanted.items():
        assigned.setdefault(names[topic], []).append(partition)
        starts.setdefault(names[topic], {})[str(partition)] = bound.offset_first
        ends.setdefault(names[topic], {})[str(partition)] = bound.offset_end
    options = {f"kafka.{name}": value for name, value in kafka.properties.items()} | {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "failOnDataLoss": "true",
    }
    if task_records_max is not None:
        options["maxRecordsPerPartition"] = str(task_records_max)
    try:
        found = session.read.format("kafka").options(**options).load()
    except PySparkException as problem:
        raise CouldNotVerify(f"Spark's Kafka source does not take these options: {' '.join(str(problem).split())}") from None
    which = F.when(F.col("topic") == kafka.ordering, "ordering").otherwise("payload")
    return found.select(
        which.alias("topic"), "offset", F.unix_millis("timestamp").alias("append_time_ms"), "key", "value", F.col("partition").cast("int")
    )
