"""Reads a log from brokers, each record at the offset that the broker gave it.

Spark's own Kafka source cannot be used. Brokers do not compare the offsets that the records of a batch claim with those that they give the
batch, and Java's client believes the claim. It drops a record that claims an earlier offset, and after one that claims a later offset all
up to there; Spark reports no loss. So anybody who may write to a topic could hide records from the verifier, without the notary's key.
Counting the records does not help: if reading begins inside a batch, the batch's records may claim the offsets of later ones.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, UnknownError, for_code
from aiokafka.protocol.fetch import FetchRequest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_join.engine.columns import results_of
from spark_join.errors import CouldNotVerify
from spark_join.log import LogFrames, TopicPartition
from spark_join.log.batches import DecodedRecord, decode, offset_after
from spark_join.log.client import Kafka, client_settings
from spark_join.log.files import SCHEMA, Digest, digest_of
from spark_join.log.kafka import Admin, OffsetRange, read_log_offsets

FETCH_BYTES: Final = 4 << 20
"""Bytes of one fetch; a larger batch comes alone."""
ROWS_MAX: Final = 10_000
"""Records that a task has in memory at a time."""
ROWS_BYTES: Final = 16 << 20
"""Bytes of their keys and values after which it takes no more."""
FETCH_WAIT_MS: Final = 500
READ_S_MAX: Final = 60
"""Deadline of the next records, in seconds, with all attempts at other leaders."""
_AGAIN_S: Final = 0.2
TASK_RECORDS_MAX: Final = 100_000
"""The most records that one task reads. The ordering topic is one partition; without a limit one core would read and write all of it."""
_Result = TypeVar("_Result")
_SCHEMA: Final = pa.schema([("topic", pa.string()), *SCHEMA, ("partition", pa.int32())])


class TaskOffsets(NamedTuple):
    """The offsets that one task reads."""

    topic_partition: TopicPartition
    offset_first: int
    offset_end: int


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

    def of(topic: str) -> DataFrame:
        of_topic = {topic_partition: offset_range for topic_partition, offset_range in wanted.items() if topic_partition[0] == topic}
        return read_records(session, kafka, of_topic, task_records_max).drop("topic")

    ends = {topic_partition: offset_range.offset_end for topic_partition, offset_range in log_offsets.items()}
    return LogFrames(of("ordering"), of("payload"), ends, partial(records_at, session, kafka))


def read_records(
    session: SparkSession, kafka: Kafka, wanted: Mapping[TopicPartition, OffsetRange], task_records_max: int | None = None
) -> DataFrame:
    """Returns topic (`ordering` or `payload`), offset, append_time_ms, key, value and partition of all records between `wanted` offsets.

    An offset without a record, such as that of a transaction's marker, has no row. A task reads one partition in the order of offsets; with
    `task_records_max`, a part of it with at most so many offsets. Raises `CouldNotVerify` if aiokafka cannot connect with these properties;
    so does a task that cannot read, as when an offset was deleted.
    """
    client_settings(kafka)
    parts = [
        TaskOffsets(topic_partition, first, min(first + step, offset_range.offset_end))
        for topic_partition, offset_range in wanted.items()
        for step in [task_records_max or max(1, offset_range.offset_end - offset_range.offset_first)]
        for first in range(offset_range.offset_first, offset_range.offset_end, step)
    ]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from _read(kafka, parts[number])

    # One row for each task, which a `repartition` would not promise.
    return session.range(0, len(parts), 1, max(1, len(parts))).mapInArrow(read, from_arrow_schema(_SCHEMA))


def records_at(session: SparkSession, kafka: Kafka, offsets: Mapping[TopicPartition, int]) -> DataFrame:
    """Returns the columns of `read_records` of the record at one offset of each partition. Raises `CouldNotVerify`, as that does."""
    return read_records(session, kafka, {each: OffsetRange(offset, offset + 1) for each, offset in offsets.items()})


def results_by_partition(
    session: SparkSession,
    kafka: Kafka,
    wanted: Mapping[TopicPartition, OffsetRange],
    call: Callable[[TopicPartition, Iterator[pa.RecordBatch]], _Result],
) -> dict[TopicPartition, _Result]:
    """Calls a function with the records of each partition between `wanted` offsets, in the task that reads them; returns the results.

    Raises `CouldNotVerify`, as `read_records` does.
    """
    client_settings(kafka)
    parts = [TaskOffsets(each, offset_range.offset_first, offset_range.offset_end) for each, offset_range in wanted.items()]
    results = results_of(session, lambda part: call(part.topic_partition, _read(kafka, part)), parts)
    return dict(zip(wanted, results, strict=True))


def digests(session: SparkSession, kafka: Kafka, wanted: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, Digest]:
    """Returns the digest of the records of each partition between `wanted` offsets, as `results_by_partition` does."""
    return results_by_partition(session, kafka, wanted, lambda _, batches: digest_of(batches))


def _read(kafka: Kafka, part: TaskOffsets) -> Iterator[pa.RecordBatch]:
    """Yields the records in pieces. Raises `CouldNotVerify`."""
    topic, partition = part.topic_partition
    name = f"{kafka.prefix}.{topic}"
    offset = part.offset_first

    def fetched() -> Iterator[DecodedRecord]:
        nonlocal offset
        while offset < part.offset_end:
            some, offset_next = runner.run(_fetch(client, KafkaPartition(name, partition), offset))
            yield from decode(some, offset, part.offset_end)
            offset = offset_next

    with asyncio.Runner() as runner:
        client = AIOKafkaClient(loop=runner.get_loop(), **client_settings(kafka))
        try:
            runner.run(_connect(client))
            for rows in _pieces(fetched()):
                columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), SCHEMA.types, strict=True)]
                topics, partitions = pa.array([topic] * len(rows)), pa.array([partition] * len(rows), pa.int32())
                yield pa.RecordBatch.from_arrays([topics, *columns, partitions], schema=_SCHEMA)
        except (KafkaError, TimeoutError, ValueError, OverflowError) as problem:
            raise CouldNotVerify(f"{name} partition {partition} cannot be read at offset {offset}: {problem}") from None
        finally:
            runner.run(client.close())


def _pieces(records: Iterator[DecodedRecord]) -> Iterator[list[DecodedRecord]]:
    """Yields the records in pieces: a fetch may have many compressed batches, and an archive has a row group for each piece."""
    rows: list[DecodedRecord] = []
    octets = 0
    for record in records:
        rows.append(record)
        octets += len(record.key or b"") + len(record.value or b"")
        if len(rows) == ROWS_MAX or octets >= ROWS_BYTES:
            yield rows
            rows, octets = [], 0
    if rows:
        yield rows


async def _connect(client: AIOKafkaClient) -> None:
    try:
        async with asyncio.timeout(READ_S_MAX):
            await client.bootstrap()
            # Metadata of all topics: aiokafka's request for one topic would create it, if it was deleted since its offsets were read.
            await client.force_metadata_update()
    except TimeoutError:
        raise TimeoutError(f"no broker has answered for {READ_S_MAX} s") from None


async def _fetch(client: AIOKafkaClient, partition: KafkaPartition, offset: int) -> tuple[bytes, int]:
    """Returns batches and the offset after them, which is behind that offset; asks each new leader until `READ_S_MAX` has passed.

    Raises `KafkaError`, `TimeoutError` and `ValueError`.
    """
    problem = "it has no leader"
    request = FetchRequest(FETCH_WAIT_MS, 1, FETCH_BYTES, 0, [(partition.topic, [(partition.partition, offset, FETCH_BYTES)])])
    try:
        async with asyncio.timeout(READ_S_MAX):
            while True:
                leader = client.cluster.leader_for_partition(partition)
                if leader is not None and leader >= 0:
                    try:
                        topics = (await client.send(leader, request)).topics
                        if not topics:  # a broker answers so, and waits, if a quota of this client is used up (KIP-219)
                            problem = "a quota of this client is used up"
                            await asyncio.sleep(_AGAIN_S)
                            continue
                        ((_, ((_, code, *_, fetched),)),) = topics
                        failed: KafkaError | None = for_code(code)() if code else None
                    except KafkaError as raised:
                        failed = raised
                    else:
                        if failed is not None and not failed.retriable and not isinstance(failed, UnknownError):
                            raise failed
                    if failed is None:
                        problem = "the log ends here"
                        if (offset_next := offset_after(fetched or b"", offset)) > offset:
                            return bytes(fetched), offset_next
                        continue
                    problem = str(failed)
                await asyncio.sleep(_AGAIN_S)
                await client.force_metadata_update()
    except TimeoutError:
        raise TimeoutError(f"for {READ_S_MAX} s, {problem}") from None
