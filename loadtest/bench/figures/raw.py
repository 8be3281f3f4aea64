"""The performance of the log itself: the same bytes appended to both topics at once and read back, nothing decoded or decided.

It uses plain aiokafka without any code of `ordering`, and so gives the limit that everything else is compared with.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from loadtest.bench.figure import Figure, part_on_brokers
from loadtest.bench.report import Report
from loadtest.rig.generate import payload_values
from loadtest.rig.latencies import Latencies, Percentiles
from ordering.topics import create_topics, topic_names
from payload.partitions import SMALL_BYTES_MAX

PARTITIONS = 16
IN_FLIGHT = 4
BATCH_BYTES_MAX = 1 << 20
KEY = bytes(16)
WARM_UP_SHARE = 0.25
"""The warm-up's share of the time: brokers that were just started are slow."""

PAIRS, WARM_UP_PAIRS = 200, 50

ENTRY_BYTES = 170
"""An entry without its transaction ids, signature included."""


def measure(report: Report, bootstrap: str, brokers: int, seconds: float, seed: int) -> None:
    """Measure the figure `raw`: appending and reading at two sizes of batch, and the idle latency."""
    for name, submission_requests, batch_bytes in (("small batches", 1, 32 << 10), ("large batches", 100, 512 << 10)):
        prefix = f"raw-{name.split()[0]}"
        figures = uvloop.run(_throughput(bootstrap, prefix, submission_requests, batch_bytes, seconds / 2, seed))
        case = f"append to both topics and read back, {name}, {brokers} brokers"
        parameters = {"brokers": brokers, "batch_bytes": batch_bytes, "inputs": 4, "in_flight": IN_FLIGHT, "seed": seed}
        report.add("raw", case, figures, parameters)
    idle = uvloop.run(idle_latency(bootstrap, "raw-idle", seed))
    figures = {"ms_p50": idle.p50, "ms_p99": idle.p99, "pairs": idle.count}
    report.add("raw", f"two appends at once, idle, {brokers} brokers", figures, {"brokers": brokers})


async def idle_latency(bootstrap: str, prefix: str, seed: int) -> Percentiles:
    """Returns the milliseconds of one round trip of R1: a submission of one request and its entry, both acknowledged."""
    await create_topics(bootstrap, prefix, payload_partitions=PARTITIONS)
    value = next(payload_values(seed, 1, 4, 1)).value
    took = Latencies()
    async with producer(bootstrap) as send:
        partitions = await payload_partitions(send, prefix, len(value))
        for at in range(PAIRS + WARM_UP_PAIRS):
            started = time.perf_counter()
            await append_both(send, prefix, partitions[at % len(partitions)], value, bytes(ENTRY_BYTES + 32))
            if at >= WARM_UP_PAIRS:  # the first pairs open connections and load metadata
                took.add((time.perf_counter() - started) * 1000)
    return took.percentiles()


async def _throughput(
    bootstrap: str, prefix: str, submission_requests: int, batch_bytes: int, seconds: float, seed: int
) -> dict[str, float]:
    await create_topics(bootstrap, prefix, payload_partitions=PARTITIONS)
    values = list(islice(payload_values(seed, submission_requests, 4, batch_bytes), 32))
    batches: list[tuple[float, int, int]] = []  # the time of the acknowledgement, requests, bytes
    async with producer(bootstrap) as send:
        partitions = await payload_partitions(send, prefix, batch_bytes)
        counts_from = time.perf_counter() + seconds * WARM_UP_SHARE
        ends_at = counts_from + seconds
        sent_to = zip(cycle(values), cycle(partitions), strict=False)

        async def append() -> None:
            while time.perf_counter() < ends_at:
                made, partition = next(sent_to)
                entry = bytes(ENTRY_BYTES) + b"".join(made.ids)
                await append_both(send, prefix, partition, made.value, entry)
                batches.append((time.perf_counter(), len(made.ids), len(made.value) + len(entry)))

        await asyncio.gather(*[append() for _ in range(IN_FLIGHT)])
        appended_s = time.perf_counter() - counts_from
    read_s, read = await read_back(bootstrap, prefix)
    assert read == 2 * len(batches), f"{read} records were read and {2 * len(batches)} appended"
    counted = [batch for batch in batches if batch[0] >= counts_from]
    requests = sum([each for _, each, _ in batches])
    return {
        "append_requests_per_s": sum([each for _, each, _ in counted]) / appended_s,
        "append_mb_per_s": sum([octets for _, _, octets in counted]) / appended_s / 1e6,
        "append_records_per_s": 2 * len(counted) / appended_s,
        "read_requests_per_s": requests / read_s,
        "read_mb_per_s": sum([octets for _, _, octets in batches]) / read_s / 1e6,
        "requests_per_batch": requests / len(batches),
    }


async def append_both(send: AIOKafkaProducer, prefix: str, partition: int, value: bytes, entry: bytes) -> None:
    """Append a payload and its entry at once (R1); returns when both are acknowledged."""
    ordering, payload = topic_names(prefix)
    both = await asyncio.gather(send.send(payload, value, KEY, partition), send.send(ordering, entry, None, 0))
    await asyncio.gather(*both)


async def payload_partitions(send: AIOKafkaProducer, prefix: str, batch_bytes: int) -> list[int]:
    """Returns the partitions that a worker uses for batches of this size: for small ones those of the ordering topic's leader.

    One produce request then carries both records (docs/decisions/batches.md). With others, two appends would take longer than a worker's.
    """
    ordering, payload = topic_names(prefix)
    for topic in (ordering, payload):
        await send.partitions_for(topic)  # loads the leaders
    leader_of = send.client.cluster.leader_for_partition
    near = [at for at in range(PARTITIONS) if leader_of(TopicPartition(payload, at)) == leader_of(TopicPartition(ordering, 0))]
    return near if near and batch_bytes <= SMALL_BYTES_MAX else list(range(PARTITIONS))


async def read_back(bootstrap: str, prefix: str) -> tuple[float, int]:
    """Returns (seconds, records) for reading everything in both topics, with the fetch settings of `ordering.kafka`."""
    partitions = topic_partitions(prefix)
    async with consumer(bootstrap) as client:
        ends = await client.end_offsets(partitions)
        started = time.perf_counter()
        read_all(client, partitions)
        left, read = sum(ends.values()), 0
        while left > read:
            fetched = await client.getmany(timeout_ms=10_000)
            if not fetched:
                raise RuntimeError(f"{left - read} records of topic prefix {prefix} were not returned in time")
            read += sum(map(len, fetched.values()))
        return time.perf_counter() - started, read


def topic_partitions(prefix: str) -> list[TopicPartition]:
    """Returns the ordering partition and all payload partitions."""
    ordering, payload = topic_names(prefix)
    return [TopicPartition(ordering, 0), *[TopicPartition(payload, number) for number in range(PARTITIONS)]]


def read_all(client: Any, partitions: Sequence[TopicPartition]) -> None:
    """Assign these partitions to a consumer, from offset 0."""
    client.assign(partitions)
    for partition in partitions:
        client.seek(partition, 0)


def consumer(bootstrap: str) -> AIOKafkaConsumer:
    """Returns a consumer without partitions, for the length of a block, with the fetch settings of `ordering.kafka`."""
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=100,
        fetch_max_bytes=16 << 20,
        max_partition_fetch_bytes=4 << 20,
        max_poll_records=4096,
    )


def producer(bootstrap: str) -> AIOKafkaProducer:
    """Returns an idempotent producer, for the length of a block, with the settings of `ordering.kafka`."""
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        acks="all",
        linger_ms=0,
        max_batch_size=BATCH_BYTES_MAX,
        max_request_size=8 << 20,
    )


FIGURES = (Figure("raw", "how fast is the log itself, with nothing decoded or decided?", part_on_brokers("raw", measure, 0.5, 4.0)),)
