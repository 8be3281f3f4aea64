"""Operations on Kafka that a principal may be denied, each as one call of a real client; the results are error codes."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DeleteRecordsRequest,
    DescribeAclsRequest,
    DescribeConfigsRequest,
)
from aiokafka.protocol.api import Response
from aiokafka.protocol.fetch import FetchRequest

from ordering.connection import AlterSettingsRequest, TopicsRequest
from tests.chaos.raw_requests import ElectLeadersRequest

ANY, TOPIC, BROKER = 1, 2, 4
LITERAL, ALLOW = 3, 3
READ = 3
NOTHING_IS_THERE = "nobody-has-this-name"
TIMEOUT_MS = 20_000
NOT_THE_LEADER = 6
TOPIC_REFUSED = 29
REFUSED = {TOPIC_REFUSED, 30, 31}
"""The errors of a principal without the right: on a topic, a group, the cluster."""

Operation = Callable[["Who", str], Awaitable[set[int]]]


class Who:
    """A principal: a client's certificate, or its name and password, and the brokers to which it connects."""

    def __init__(
        self, bootstrap: str, context: ssl.SSLContext, user: str = "", password: str = "", brokers: Sequence[int] = (1, 2, 3)
    ) -> None:
        self.brokers = brokers
        self.settings = {"bootstrap_servers": bootstrap, "security_protocol": "SASL_SSL" if user else "SSL", "ssl_context": context}
        if user:
            self.settings |= {"sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": user, "sasl_plain_password": password}

    async def admin(self, work: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> set[int]:
        """Returns the error codes in the answer, at any depth, or of the error that the client raised for them."""
        client = AIOKafkaAdminClient(**self.settings, request_timeout_ms=TIMEOUT_MS)
        try:
            await client.start()
            answer = await work(client)
            return codes(answer.to_object() if isinstance(answer, Response) else answer)
        except KafkaError as problem:
            return {code(problem)}
        finally:
            await client.close()


def code(problem: KafkaError) -> int:
    """Returns the broker's code for an error; -1 for an error that no broker answered."""
    return int(getattr(problem, "errno", -1))


def codes(answer: Any) -> set[int]:
    """Returns all error codes except 0."""
    if isinstance(answer, Mapping):
        own = {answer["error_code"]} - {0} if "error_code" in answer else set()
        return own.union(*(codes(value) for value in answer.values()))
    if isinstance(answer, list | tuple):
        return set().union(*(codes(value) for value in answer))
    return set()


async def read(who: Who, topic: str) -> set[int]:
    # Sent to each broker, one of which is the leader; aiokafka's own consumer would wait until it gets the right.
    async def fetch(client: AIOKafkaAdminClient) -> list[dict[str, int]]:
        asked = FetchRequest(100, 0, 1 << 20, 0, [(topic, [(0, 0, 1 << 20)])])
        answers = [await client._send_request(asked, broker) for broker in who.brokers]
        return [{"error_code": code} for answer in answers for _, partitions in answer.topics for _, code, *_ in partitions]

    return await who.admin(fetch) - {NOT_THE_LEADER}


async def write(who: Who, topic: str) -> set[int]:
    producer = AIOKafkaProducer(**who.settings, acks="all", request_timeout_ms=TIMEOUT_MS)
    try:
        await producer.start()
        await producer.send_and_wait(topic, b"no worker wrote this, so all skip it", partition=0)
    except KafkaError as problem:
        return {code(problem)}
    finally:
        await producer.stop()
    return set()


async def delete_records(who: Who, topic: str) -> set[int]:
    # Nothing is before offset 0, so a principal with the right deletes nothing. Sent to each broker, one of which is the leader.
    async def delete(client: AIOKafkaAdminClient) -> list[dict[str, Any]]:
        asked = DeleteRecordsRequest([(topic, [(0, 0)])], TIMEOUT_MS)
        return [(await client._send_request(asked, broker)).to_object() for broker in who.brokers]

    return await who.admin(delete) - {NOT_THE_LEADER}


async def elect_leader(who: Who, topic: str) -> set[int]:
    # 84: the preferred replica is already the leader.
    return await who.admin(lambda client: client._send_request(ElectLeadersRequest(topic))) - {84}


async def use_a_group(who: Who, topic: str) -> set[int]:
    consumer = AIOKafkaConsumer(**who.settings, group_id=NOTHING_IS_THERE)
    try:
        await consumer.start()
        consumer.assign([TopicPartition(topic, 0)])
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            await consumer.committed(TopicPartition(topic, 0))
    except KafkaError as problem:
        return {code(problem)}
    finally:
        await consumer.stop()
    return set()


def request(make: Callable[[str], Any], broker: int | None = None) -> Operation:
    """Returns the operation that sends one request about a topic, to this broker or to any."""
    return lambda who, topic: who.admin(lambda client: client._send_request(make(topic), broker))


ACL = (TOPIC, NOTHING_IS_THERE, LITERAL, f"User:{NOTHING_IS_THERE}", "*", READ, ALLOW)
OPERATIONS: Mapping[str, Operation] = {
    "describe": request(lambda topic: TopicsRequest([topic])),
    "read": read,
    "write": write,
    "read settings": request(lambda topic: DescribeConfigsRequest([(TOPIC, topic, None)], False)),
    # The topic exists: a principal with the right gets that error (36).
    "create this topic": lambda who, topic: who.admin(lambda client: client.create_topics([NewTopic(topic, 1, 3)], validate_only=True)),
    "create another topic": lambda who, topic: who.admin(
        lambda client: client.create_topics([NewTopic(f"{topic}.copy", 1, 3)], validate_only=True)
    ),
    "add partitions": lambda who, topic: who.admin(lambda client: client.create_partitions({topic: NewPartitions(50)}, validate_only=True)),
    "alter settings": request(lambda topic: AlterConfigsRequest([(TOPIC, topic, [("retention.ms", "1")])], True)),
    "alter one setting": request(
        lambda topic: AlterSettingsRequest(ConfigResourceType.TOPIC, {topic: {"retention.ms": "1"}}, validate_only=True)
    ),
    "alter a brokers setting": request(
        lambda topic: AlterSettingsRequest(ConfigResourceType.BROKER, {"": {"log.retention.ms": "1"}}, validate_only=True)
    ),
    "read a brokers settings": request(lambda topic: DescribeConfigsRequest([(BROKER, "1", None)], False), 1),
    "delete records": delete_records,
    "delete topic": lambda who, topic: who.admin(lambda client: client.delete_topics([topic])),
    "move replicas": request(lambda topic: AlterPartitionReassignmentsRequest(TIMEOUT_MS, [(topic, [(0, [1, 2, 3], {})], {})], {})),
    "elect leader": elect_leader,
    "give rights": request(lambda topic: CreateAclsRequest(*ACL)),
    "see rights": request(lambda topic: DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY)),
    "take rights": request(lambda topic: DeleteAclsRequest(*ACL)),
    "use a group": use_a_group,
}


async def allowed_of(who: Who, topic: str, operations: Iterable[str] = OPERATIONS) -> set[str]:
    """Returns those of the operations that are allowed. Fails if another one failed for a reason other than the missing right."""
    answers = {operation: await OPERATIONS[operation](who, topic) for operation in operations}
    assert set().union(*answers.values()) <= REFUSED, answers
    return {operation for operation, errors in answers.items() if not errors}
