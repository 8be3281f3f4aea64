"""Appends an archived partition to a topic with its original append times, which Spark's own sink does not send.

Each partition is one task with one idempotent producer of aiokafka, which keeps its order; partitions go in parallel. A task continues from
the log end offset of its partition, so a second attempt appends nothing twice.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
import pyarrow.parquet as pq
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder

from spark_join.errors import CouldNotVerify
from spark_join.log.client import Kafka, client_settings
from spark_join.log.files import RECORD, Digest, Digester

BATCH_BYTES_MAX: Final = 1 << 20
"""Bytes of one batch. The producer sends one request at a time to each broker, so large batches make it fast."""
RECORD_BYTES_MAX: Final = 9 << 20
"""Above the limit of the topics, 8 MiB, which the brokers enforce."""
SEND_S_MAX: Final = 120
"""Deadline for one batch, in seconds; also for connecting and for closing."""


class Job(msgspec.Struct, frozen=True):
    """A partition to restore."""

    topic: str
    """The name of the topic in the cluster, with the prefix."""
    partition: int
    files: Sequence[str]
    """Paths of its archived files, in their order."""
    records: int
    """The number of their records to restore, from the first one on."""


class Sent(msgspec.Struct, frozen=True):
    """The result of one job. The partition holds the records of `digest` if `problem` is None."""

    digest: Digest
    """The digest of all records to restore, numbered 0, 1, 2, …"""
    appended: int
    problem: str | None


def send(job: Job, kafka: Kafka) -> Sent:
    """Append the records of these files that the topic does not have yet; a failure is returned as `Sent.problem`."""
    digester = Digester()
    appended, problem = 0, None
    try:
        appended = asyncio.run(_append(job, kafka, digester))
    except TimeoutError:
        problem = f"no broker has answered for {SEND_S_MAX} s"
    except (KafkaError, OSError, ValueError, CouldNotVerify) as raised:
        problem = f"{type(raised).__name__}: {raised}"
    return Sent(digester.digest(), appended, problem)


def digest_of_first(job: Job, records: int) -> Digest:
    """Returns the digest of the first `records` of the records to restore, numbered 0, 1, 2, …; of all if there are fewer."""
    digester = Digester()
    for number, record in enumerate(islice(_records(job), records)):
        digester.add_one(number, *record)
    return digester.digest()


async def _append(job: Job, kafka: Kafka, digester: Digester) -> int:
    """Send batch after batch, at most two in flight; return the number of records appended."""
    settings = client_settings(kafka)
    topic_partition = TopicPartition(job.topic, job.partition)
    log_end_offset = await _end(topic_partition, settings)
    producer = AIOKafkaProducer(
        **settings, acks="all", enable_idempotence=True, max_batch_size=BATCH_BYTES_MAX, max_request_size=RECORD_BYTES_MAX
    )
    async with asyncio.timeout(SEND_S_MAX):
        await producer.start()
    try:
        batch, before = producer.create_batch(), None
        number = 0
        for number, record in enumerate(_records(job), 1):
            digester.add_one(number - 1, *record)
            if number > log_end_offset and not _fits(batch, *record):
                before = await _hand_over(producer, batch, topic_partition, before)
                batch = producer.create_batch()
                assert _fits(batch, *record), "a batch takes one record of any size"
        if batch.record_count():
            before = await _hand_over(producer, batch, topic_partition, before)
        if before is not None:
            async with asyncio.timeout(SEND_S_MAX):
                await before
        return max(0, number - log_end_offset)
    finally:
        async with asyncio.timeout(SEND_S_MAX):
            await producer.stop()


def _records(job: Job) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Yields append_time_ms, key and value of each record to restore; keeps one row group in memory."""
    return islice(_archived(job.files), job.records)


def _archived(files: Sequence[str]) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    for file in files:
        with pq.ParquetFile(file) as parquet:
            for group in range(parquet.num_row_groups):
                records = parquet.read_row_group(group, columns=list(RECORD[1:]))
                yield from zip(*(records.column(name).to_pylist() for name in RECORD[1:]), strict=True)


def _fits(batch: BatchBuilder, append_time_ms: int, key: bytes | None, value: bytes | None) -> bool:
    return batch.append(timestamp=append_time_ms, key=key, value=value) is not None


async def _hand_over(
    producer: AIOKafkaProducer, batch: BatchBuilder, topic_partition: TopicPartition, before: "asyncio.Future[Any] | None"
) -> "asyncio.Future[Any]":
    async with asyncio.timeout(SEND_S_MAX):
        delivery: asyncio.Future[Any] = await producer.send_batch(batch, topic_partition.topic, partition=topic_partition.partition)
        if before is not None:
            await before
    return delivery


async def _end(topic_partition: TopicPartition, settings: Mapping[str, Any]) -> int:
    consumer = AIOKafkaConsumer(**settings, group_id=None)
    try:
        async with asyncio.timeout(SEND_S_MAX):
            await consumer.start()
            ends = await consumer.end_offsets([topic_partition])
            return int(ends[topic_partition])
    finally:
        await consumer.stop()
