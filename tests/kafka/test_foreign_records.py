"""Records of a writer without the notary's key, as real brokers accept them: no worker stops, and none needs much memory (R10)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError

from deploy.local import Cluster
from ordering.clock import clock_ms
from ordering.genesis import append_genesis
from ordering.kafka import KafkaLog
from ordering.records import Genesis
from ordering.topics import create_topics, topic_names
from tests.joiner.faulty import Worker
from tests.joiner.history import KEY, NOTARY, OWNER
from tests.kafka.foreign_batches import append, as_bomb, as_gzip, as_zstd, with_bad_header, with_long_length, with_offset, with_time
from tests.ordering.test_kafka import until_ready

pytestmark = pytest.mark.kafka


@pytest.fixture
async def log(kafka_cluster: Cluster, kafka_prefix: str) -> AsyncIterator[KafkaLog]:
    """A log with a genesis record and one payload partition."""
    await create_topics(kafka_cluster.bootstrap, kafka_prefix, payload_partitions=1)
    made = await until_ready(lambda: KafkaLog.open(kafka_cluster.bootstrap, kafka_prefix))  # brokers learn of topics one after the other
    await append_genesis(made, Genesis(bytes(16), 1, KEY.public_key, OWNER.public_key, NOTARY, "notary.example/test"), OWNER)
    yield made
    await made.close()


@pytest.mark.parametrize("change", [with_bad_header, as_gzip, as_zstd, with_offset, with_time, with_long_length])
async def test_no_record_of_others_stops_a_worker(
    kafka_cluster: Cluster,
    kafka_prefix: str,
    log: KafkaLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[bytes], bytes],
) -> None:
    """Such a record is in both topics: a running worker continues, and a new one reads the log from its start."""
    worker = Worker(log, tmp_path / "w1", "w1", clock=clock_ms)
    try:
        await asyncio.wait_for(worker.decided("a"), 30)
        for topic in topic_names(kafka_prefix):
            await append(kafka_cluster.bootstrap, topic, change, monkeypatch)
        await asyncio.wait_for(worker.decided("b"), 30)
    finally:
        await worker.stop()
    another = Worker(log, tmp_path / "w2", "w2", clock=clock_ms)
    try:
        await asyncio.wait_for(another.decided("c"), 30)
    finally:
        await another.stop()


async def test_brokers_reject_a_batch_that_expands(
    kafka_cluster: Cluster, kafka_prefix: str, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compressed batch that is larger than the limit once it is decompressed never gets into the log."""
    for topic in topic_names(kafka_prefix):
        with pytest.raises(KafkaError):
            await asyncio.wait_for(append(kafka_cluster.bootstrap, topic, as_bomb, monkeypatch), 60)
    assert [offsets.log_end for offsets in (await log.offsets()).values()] == [1, 0]
