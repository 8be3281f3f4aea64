"""Tests the figure `raw` on real brokers: its appends go where a worker's go."""

import pytest
from aiokafka import TopicPartition

from deploy.local import Cluster
from loadtest.bench.figures.raw import PARTITIONS, payload_partitions, producer
from ordering.topics import create_topics, topic_names
from payload.partitions import SMALL_BYTES_MAX

pytestmark = [pytest.mark.kafka, pytest.mark.seconds]


async def test_small_batches_go_to_the_leader_of_the_ordering_topic(kafka_cluster: Cluster) -> None:
    """Two appends alone are as short as a worker's: both records go to one broker. Large batches are spread over all partitions."""
    await create_topics(kafka_cluster.bootstrap, "near", payload_partitions=PARTITIONS)
    ordering, payload = topic_names("near")
    async with producer(kafka_cluster.bootstrap) as send:
        small = await payload_partitions(send, "near", SMALL_BYTES_MAX)
        large = await payload_partitions(send, "near", SMALL_BYTES_MAX + 1)
        leader_of = send.client.cluster.leader_for_partition
        leaders = {at: leader_of(TopicPartition(payload, at)) for at in range(PARTITIONS)}
        first = leader_of(TopicPartition(ordering, 0))
    assert small == [at for at, leader in leaders.items() if leader == first]
    assert 0 < len(small) < len(large) == PARTITIONS
