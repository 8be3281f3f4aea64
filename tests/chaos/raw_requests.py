"""Requests to one broker, in its own network, that aiokafka's administration client does not support.

Three requests of Kafka's protocol: DescribeQuorum (the active controller), AlterPartitionReassignments with another order of the same
replicas, and ElectLeaders; the last two together move the leadership of a partition.
"""

import asyncio
from typing import Any, ClassVar

from aiokafka.conn import create_conn
from aiokafka.protocol.admin import AlterPartitionReassignmentsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import Array, CompactArray, CompactString, Int16, Int32, Int64, Schema, String, TaggedFields

from deploy.local import Cluster
from deploy.local.state import Broker
from deploy.namespace import run_inside

ANSWER_MS_MAX = 5_000
_REPLICA = CompactArray(("replica_id", Int32), ("log_end_offset", Int64), ("tags", TaggedFields))


class DescribeQuorumResponse(Response):
    API_KEY = 55
    API_VERSION = 0
    SCHEMA = Schema(
        ("error_code", Int16),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("high_watermark", Int64),
                        ("current_voters", _REPLICA),
                        ("observers", _REPLICA),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeQuorumRequest0(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 55
    API_VERSION = 0
    RESPONSE_TYPE = DescribeQuorumResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(("partition", Int32), ("tags", TaggedFields))),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeQuorumRequest(Request[DescribeQuorumRequest0]):
    API_KEY: ClassVar[int] = 55

    def build(self, request_struct_class: type[DescribeQuorumRequest0]) -> DescribeQuorumRequest0:
        return request_struct_class([("__cluster_metadata", [(0, {})], {})], {})


class ElectLeadersResponse(Response):
    API_KEY = 43
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                ("partitions", Array(("partition", Int32), ("error_code", Int16), ("error_message", String("utf-8")))),
            ),
        ),
    )


class ElectLeadersRequest0(RequestStruct):
    """Elects preferred leaders, as all requests of this version do."""

    API_KEY = 43
    API_VERSION = 0
    RESPONSE_TYPE = ElectLeadersResponse
    SCHEMA = Schema(("topics", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))), ("timeout_ms", Int32))


class ElectLeadersRequest(Request[ElectLeadersRequest0]):
    API_KEY: ClassVar[int] = 43

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[ElectLeadersRequest0]) -> ElectLeadersRequest0:
        return request_struct_class([(self._topic, [0])], ANSWER_MS_MAX)


async def ask(broker: Broker, request: Request[Any]) -> dict[str, Any]:
    """Returns this broker's answer. Raises `OSError`, `KafkaError` or `TimeoutError`."""

    async def there() -> dict[str, Any]:
        async with asyncio.timeout(2 * ANSWER_MS_MAX / 1000):
            connection = await create_conn(broker.host, broker.port, request_timeout_ms=ANSWER_MS_MAX)
            try:
                answer: dict[str, Any] = (await connection.send(request)).to_object()
            finally:
                connection.close()
            return answer

    return await asyncio.to_thread(run_inside, broker.network, lambda: asyncio.run(there()))


async def partitions(broker: Broker, topic_prefix: str) -> list[dict[str, Any]]:
    """Returns `leader`, `isr` and `replicas` of every partition of the topics of that prefix, the ordering topic first."""
    topics = (await ask(broker, MetadataRequest(None)))["topics"]
    return [
        partition for topic in sorted(topics, key=lambda topic: topic["topic"]) if topic["topic"].startswith(topic_prefix)
        for partition in topic["partitions"]
    ]  # fmt: skip


async def ordering_leader(broker: Broker, topic_prefix: str) -> int:
    """Returns the broker that leads the ordering topic."""
    leader: int = (await partitions(broker, topic_prefix))[0]["leader"]
    return leader


async def active_controller(broker: Broker) -> int:
    """Returns the broker whose controller is active."""
    answer = await ask(broker, DescribeQuorumRequest())
    controller: int = answer["topics"][0]["partitions"][0]["leader_id"]
    return controller


async def move_leader(broker: Broker, topic: str, wanted: int, brokers: Cluster) -> str:
    """Make another broker the leader of partition 0 of a topic, without moving replicas; returns the broker's error codes."""
    order = [wanted, *(other.id for other in brokers.state.brokers if other.id != wanted)]
    await ask(broker, AlterPartitionReassignmentsRequest(ANSWER_MS_MAX, [(topic, [(0, order, {})], {})], {}))
    answer = await ask(broker, ElectLeadersRequest(topic))
    codes = [partition["error_code"] for found in answer["topics"] for partition in found["partitions"]]
    return f"error codes {codes}"
