"""Restores an archive into a cluster, with the same keys, values, order and append times (docs/spark.md, the runbook).

A topic takes append times from its producers only while its `message.timestamp.type` is CreateTime. No worker starts on such an ordering
topic. So this setting also marks an unfinished restore: the topic is open. After all records were read back and equal the archive, the last
step closes the topics: it sets LogAppendTime. If the broker's reply to that step is lost, its outcome is unknown. So a closed log also
counts as a finished restore if it equals the archive to the last record; if a notary already uses it, it has more records.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from spark_join.engine.columns import results_of
from spark_join.errors import CouldNotVerify
from spark_join.log import ORDERING, TopicPartition, describe
from spark_join.log.archive import ends_of, read_archive, read_ranges, unlisted
from spark_join.log.client import Kafka
from spark_join.log.files import ArchivedFile, Digest
from spark_join.log.kafka import Admin, OffsetRange, read_log_offsets
from spark_join.log.reading import digests
from spark_join.log.sending import Job, Sent, digest_of_first, send

REPLICAS_WANTED: Final = 3
TOPIC_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "compression.type": "uncompressed",
    "max.message.bytes": str(8 * 1024 * 1024),
}
"""The settings of both topics, as the notary creates them."""
_TYPE: Final = "message.timestamp.type"
_LIMITS: Final = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
_OPEN: Final = {_TYPE: "CreateTime"} | dict.fromkeys(_LIMITS, str(2**62 // 1000))  # Spark reads microseconds, in 64 bits
"""The second setting allows append times in the future, from a broker whose clock was ahead."""
_CLOSED: Final = {_TYPE: "LogAppendTime"} | dict.fromkeys(_LIMITS)


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore: records and replicas by topic, and the number of records that this run appended."""

    records: dict[str, int]
    appended: int
    replicas: dict[str, int]


def restore(
    session: SparkSession,
    kafka: Kafka,
    folder: Path,
    on_stage: Callable[[str], None],
    on_warning: Callable[[str], None],
    *,
    go_on: bool = False,
    renumber: bool = False,
    without_unlisted: bool = False,
    flush_messages: bool = False,
    until: int | None = None,
) -> Restored:
    """Restore the archive in `folder`. `on_stage` gets the name of each stage, and `on_warning` each warning. Raises `CouldNotVerify`.

    `go_on` finishes an interrupted restore, or finds that it is done. `renumber` allows an archive with offsets without a record: no
    producer can leave an offset out, so later records get other offsets. `without_unlisted` allows files that no range lists.
    `flush_messages` sets `flush.messages=1` on the ordering topic: an archive has no settings. `until` leaves out the ordering records from
    this offset of the archive on, for a salvage of a log that went on after a loss (docs/salvage.md).
    """
    closed = _CLOSED | ({"flush.messages": "1"} if flush_messages else {})
    ranges = read_ranges(folder)
    payload_partitions = ranges[-1].payload_partitions
    files = [file for each in ranges for file in each.files]
    ends = ends_of(files, payload_partitions)
    wanted = _records(files, ends)
    _refuse_unlisted(folder, on_warning, without_unlisted=without_unlisted)
    if not renumber:
        _refuse_gaps(folder, wanted, ends)
    if until is not None:
        wanted[ORDERING] = _before(session, folder, until, wanted[ORDERING], ends)
    counts = {kafka.ordering: 1, kafka.payload: payload_partitions}
    admin = Admin(kafka)
    on_stage("topics")
    is_done = go_on and _has_all(admin, kafka, counts, wanted)
    for topic, partitions in counts.items():
        _refuse_what_is_there(admin, kafka, topic, partitions, go_on=go_on, is_done=is_done)
    on_stage("archive")
    read_archive(session, folder)  # compares every file with its range
    jobs = _jobs(kafka, folder, files, wanted)
    if go_on:
        on_stage("what is there already")
        _refuse_other_records(session, kafka, admin, jobs)
    if is_done:
        if admin.setting(kafka.payload, _TYPE) != _CLOSED[_TYPE]:
            admin.change(kafka.payload, _CLOSED)
        if flush_messages:
            admin.change(kafka.ordering, closed)
        return Restored(_by_topic(wanted), 0, _replicas(admin, kafka, {}, on_warning))
    replicas = _replicas(admin, kafka, _make_ready(admin, counts), on_warning)
    on_stage("records")
    sent = _send_all(session, kafka, jobs)
    on_stage("what is there now")
    log_offsets = read_log_offsets(admin, kafka)
    _compare(session, kafka, log_offsets, {topic_partition: each.digest for topic_partition, each in sent.items()})
    # The ordering topic last: a crash between the two calls leaves an open restore, which `go_on` finishes.
    admin.change(kafka.payload, _CLOSED)
    admin.change(kafka.ordering, closed)
    records = _by_topic({topic_partition: each.digest.records for topic_partition, each in sent.items()})
    return Restored(records, sum(each.appended for each in sent.values()), replicas)


def _records(files: list[ArchivedFile], topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the number of archived records of each partition."""
    return {each: sum(file.records for file in files if file.topic_partition == each) for each in topic_partitions}


def _by_topic(records: Mapping[TopicPartition, int]) -> dict[str, int]:
    return {topic: sum(count for (of, _), count in records.items() if of == topic) for topic in ("ordering", "payload")}


def _refuse_unlisted(folder: Path, on_warning: Callable[[str], None], *, without_unlisted: bool) -> None:
    """Raise `CouldNotVerify`, or warn, if there are files that no range lists.

    If the last ranges are lost, only such files show that the log went on.
    """
    found = unlisted(folder)
    if found is not None and not without_unlisted:
        raise CouldNotVerify(
            f"{found}, and their records would be missing from the log. If the old topics exist, run `archive` once more, which removes"
            " such files if the topics have their records; or find the ranges; or give up the records that only those files have, with"
            " --without-unlisted"
        )
    if found is not None:
        on_warning(found)


def _has_all(admin: Admin, kafka: Kafka, counts: Mapping[str, int], records: Mapping[TopicPartition, int]) -> bool:
    """Returns True if the log is closed and ends where the archive does; the records themselves are compared later."""
    if any(admin.partitions(topic) != partitions for topic, partitions in counts.items()) or not any(records.values()):
        return False
    is_closed = admin.setting(kafka.ordering, _TYPE) == _CLOSED[_TYPE]
    return is_closed and read_log_offsets(admin, kafka) == {each: OffsetRange(0, count) for each, count in records.items()}


def _before(session: SparkSession, folder: Path, until: int, records: int, ends: Mapping[TopicPartition, int]) -> int:
    """Returns how many of the archive's `records` ordering records are before offset `until`. Raises `CouldNotVerify`."""
    last = ends[ORDERING] - 1
    if last < 1:
        found = "one ordering record" if last == 0 else "no ordering record"
        raise CouldNotVerify(f"{folder} has {found}, so --until {until} has none to leave out behind the first: restore without --until")
    if not 0 < until <= last:
        raise CouldNotVerify(f"--until {until} should be 1 to {last}: the archive has the ordering records up to offset {last}")
    later: int = read_archive(session, folder, {**ends, ORDERING: until}).ordering.count()
    return records - later


def _refuse_gaps(folder: Path, wanted: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    for topic_partition, records in wanted.items():
        if records != (end := ends[topic_partition]):
            raise CouldNotVerify(
                f"{folder} has {records} records of {describe(topic_partition)} at {end} offsets: no producer can leave an offset"
                " out, so offsets would differ from the archive's. Workers that replay the log still reach the same roots: to restore"
                " it with other offsets, give --renumber"
            )


def _refuse_what_is_there(admin: Admin, kafka: Kafka, topic: str, wanted: int, *, go_on: bool, is_done: bool) -> None:
    """Raise `CouldNotVerify` unless the topic may be written: it is missing or empty, or an interrupted restore is to go on.

    A finished restore is only read, so it passes too.
    """
    partitions = admin.partitions(topic)
    if partitions is None:
        return
    if partitions != wanted:
        raise CouldNotVerify(
            f"topic {topic} exists with {partitions} partitions, and the archive has {wanted}: restore to another --prefix"
        )
    if all(offset_range.offset_first == offset_range.offset_end == 0 for offset_range in admin.log_offsets(topic)):
        return
    begun = admin.partitions(kafka.ordering) is not None and admin.setting(kafka.ordering, _TYPE) == "CreateTime"
    if is_done or (begun and go_on):
        return
    if begun:
        raise CouldNotVerify(
            f"topic {topic} has records, and {kafka.ordering} is open as a restore leaves it that was interrupted: finish it with"
            " --continue, or delete both topics and start again. But a mirror is open too: do neither with one, restore to another --prefix"
        )
    raise CouldNotVerify(
        f"topic {topic} exists and has records: nothing is written to a log that is in use; restore to another --prefix. If a restore"
        " did not get the brokers' last reply, --continue finds out whether it is complete"
    )


def _make_ready(admin: Admin, counts: Mapping[str, int]) -> dict[str, int]:
    """Create both topics, or open those that exist; return the number of replicas of the created ones."""
    replicas = min(REPLICAS_WANTED, admin.brokers())
    settings = {**TOPIC_SETTINGS, **_OPEN, "min.insync.replicas": "2" if replicas >= 2 else "1"}
    missing = {topic: count for topic, count in counts.items() if admin.partitions(topic) is None}
    if missing:
        admin.create(missing, replicas, settings)
    for topic in counts.keys() - missing.keys():
        admin.change(topic, {**TOPIC_SETTINGS, **_OPEN})
    return dict.fromkeys(missing, replicas)


def _replicas(admin: Admin, kafka: Kafka, made: Mapping[str, int], on_warning: Callable[[str], None]) -> dict[str, int]:
    """Returns the number of replicas of each topic, and warns if it is below `REPLICAS_WANTED`.

    A broker may not know the topics in `made` yet, so their numbers come from there.
    """
    found = {}
    for topic, name in (("ordering", kafka.ordering), ("payload", kafka.payload)):
        found[topic] = made[name] if name in made else admin.replicas(name)
        if found[topic] < REPLICAS_WANTED:
            loses = "the loss of a disk loses the log" if found[topic] == 1 else "no broker may be away"
            on_warning(f"topic {name} has {found[topic]} replicas instead of {REPLICAS_WANTED}: {loses}")
    return found


def _jobs(kafka: Kafka, folder: Path, files: list[ArchivedFile], wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, Job]:
    paths: dict[TopicPartition, list[str]] = {topic_partition: [] for topic_partition in wanted}
    for file in files:
        paths[file.topic_partition].append(str(folder / file.path))
    return {each: Job(f"{kafka.prefix}.{each[0]}", each[1], paths[each], records) for each, records in wanted.items()}


def _refuse_other_records(session: SparkSession, kafka: Kafka, admin: Admin, jobs: Mapping[TopicPartition, Job]) -> None:
    """Raise `CouldNotVerify` unless the topics hold exactly the first records of the archive.

    An open topic may be no restore, or the restore of another archive.
    """
    topics = {job.topic for job in jobs.values()}
    log_offsets = {topic: admin.log_offsets(topic) for topic in topics if admin.partitions(topic) is not None}
    there = {each: log_offsets[job.topic][job.partition] for each, job in jobs.items() if job.topic in log_offsets}
    there = {each: offset_range for each, offset_range in there.items() if offset_range.offset_end}
    asked = [(jobs[each], offset_range.offset_end) for each, offset_range in there.items()]
    archived = results_of(session, lambda each: digest_of_first(*each), asked)
    found = digests(session, kafka, there)
    for (topic_partition, offset_range), wanted in zip(there.items(), archived, strict=True):
        if found[topic_partition] != wanted:
            raise CouldNotVerify(
                f"{describe(topic_partition, kafka.prefix)} holds {found[topic_partition]} in {offset_range}, and the archive begins"
                f" with {wanted}: it is no interrupted restore of this archive, and nothing is appended to it; restore to another --prefix"
            )


def _send_all(session: SparkSession, kafka: Kafka, jobs: Mapping[TopicPartition, Job]) -> dict[TopicPartition, Sent]:
    sent = dict(zip(jobs, results_of(session, partial(send, kafka=kafka), [*jobs.values()]), strict=True))
    for topic_partition, each in sent.items():
        if each.problem is not None:
            raise CouldNotVerify(
                f"{describe(topic_partition, kafka.prefix)} could not be restored to its end: {each.problem}. When the brokers are well,"
                " finish it with --continue"
            )
    return sent


def _compare(
    session: SparkSession, kafka: Kafka, log_offsets: Mapping[TopicPartition, OffsetRange], archived: Mapping[TopicPartition, Digest]
) -> None:
    found = digests(session, kafka, log_offsets)
    for topic_partition, wanted in archived.items():
        there = found[topic_partition]
        if there != wanted or log_offsets[topic_partition] != OffsetRange(0, wanted.records):
            raise CouldNotVerify(
                f"{describe(topic_partition, kafka.prefix)} holds {there} in {log_offsets[topic_partition]}, and the archive {wanted}:"
                " somebody else has written to it. Delete both topics and start again"
            )
