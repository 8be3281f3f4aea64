"""Tests `Leadership` with in-memory brokers that answer as scripted, or not at all."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import KafkaConnectionError

from ordering.connection import TopicsRequest
from ordering.leadership import Leadership

ORDER = TopicPartition("order", 0)
TOPIC, ANOTHER = uuid.UUID(int=1), uuid.UUID(int=2)
BROKERS = (1, 2, 3)
FOR_EVER_MS = 3_600_000
AWAY = "away"
"""The reply of a broker to which no connection can be made."""


def answer(leader: int, epoch: int, topic_id: uuid.UUID = TOPIC, in_sync: Sequence[int] = BROKERS, nodes: Sequence[int] = BROKERS) -> Any:
    """Returns a broker's answer about one partition, in its wire form."""
    brokers: list[Any] = [(node, "host", 9_092, None, {}) for node in nodes]
    partitions: list[Any] = [(0, 0, leader, epoch, list(BROKERS), list(in_sync), [], {})]
    topics: list[Any] = [(0, "order", topic_id, False, partitions, 0, {})]
    response = TopicsRequest([]).build(TopicsRequest._CLASSES[0]).RESPONSE_TYPE
    return response(0, brokers, "cluster", 1, topics, {})


class Brokers:
    """Brokers that repeat their answers until the test changes them."""

    def __init__(self, connect_ms: int = FOR_EVER_MS) -> None:
        self.replies: dict[int, Any] = dict.fromkeys(BROKERS, answer(1, 5))
        self.asked: list[int] = []
        self.cluster = ClusterMetadata()
        self._client = AIOKafkaClient(bootstrap_servers="host:9092")
        self._client._get_conn = self._connect
        Leadership(self._client, connect_ms)
        self.cluster.update_metadata(MetadataOfBootstrap())

    async def _connect(self, node: int) -> Any:
        self.asked.append(node)
        reply = self.replies[node]
        if reply == AWAY:
            return None

        class Connection:
            async def send(self, request: TopicsRequest) -> Any:
                if reply is None:
                    await asyncio.get_running_loop().create_future()
                if isinstance(reply, Exception):
                    raise reply
                return reply

        return Connection()

    async def leader(self) -> tuple[bool, int | None]:
        """Let the client ask once; returns whether it got an answer, and the leader since then."""
        answered = await self._client._metadata_update(self.cluster, {"order"})
        return answered, self.cluster.leader_for_partition(ORDER)


class MetadataOfBootstrap:
    """The metadata of a client that has reached its first broker."""

    API_VERSION = 5
    brokers = tuple((node, "host", 9_092, None) for node in BROKERS)
    controller_id = 1
    topics = ()


async def test_brokers_are_asked_in_turn() -> None:
    """The brokers are asked in turn, so that an outdated one is not the only one that answers."""
    brokers = Brokers()
    for _ in range(6):
        assert await brokers.leader() == (True, 1)
    assert sorted(brokers.asked[:3]) == list(BROKERS)
    assert brokers.asked[:3] == brokers.asked[3:]


async def test_a_leader_of_the_past_is_not_taken() -> None:
    """After a client has learned of an election, it ignores the answers of brokers that have not, in any order."""
    brokers = Brokers()
    assert await brokers.leader() == (True, 1)
    for node in (2, 3):
        brokers.replies[node] = answer(2, 6)
    heard = [(await brokers.leader())[1] for _ in range(6)]
    assert heard in ([2] * 6, [1, *[2] * 5])
    brokers.replies = dict.fromkeys(BROKERS, answer(3, 7))
    assert await brokers.leader() == (True, 3)


async def test_no_leader_is_taken_too() -> None:
    """The news that no broker leads is accepted like any other, if it is newer."""
    brokers = Brokers()
    await brokers.leader()
    brokers.replies = dict.fromkeys(BROKERS, answer(-1, 6))
    assert await brokers.leader() == (True, -1)
    brokers.replies = dict.fromkeys(BROKERS, answer(1, 5))
    assert await brokers.leader() == (True, -1)


async def test_a_follower_that_falls_behind_is_noticed() -> None:
    """Its loss begins no epoch: the latest answer of the same epoch counts."""
    brokers = Brokers()
    await brokers.leader()
    brokers.replies = dict.fromkeys(BROKERS, answer(1, 5, in_sync=[1, 3]))
    await brokers.leader()
    assert brokers.cluster._partitions[ORDER.topic][ORDER.partition].isr == [1, 3]


async def test_a_topic_made_anew_begins_anew() -> None:
    """A topic that was deleted and created again starts with new epochs."""
    brokers = Brokers()
    await brokers.leader()
    brokers.replies = dict.fromkeys(BROKERS, answer(2, 0, ANOTHER))
    assert await brokers.leader() == (True, 2)


async def test_connecting_has_a_deadline_of_its_own() -> None:
    """A broker that is cut off is left soon. A fetch may take longer."""
    client = Brokers(connect_ms=1_500)._client
    assert client._request_timeout_ms == 1_500
    assert (await client._get_conn(1))._request_timeout == 40


async def test_a_silent_broker_is_passed_over() -> None:
    """A broker that does not answer in time is skipped; one that breaks the connection, or knows no brokers yet, is skipped at once."""
    brokers = Brokers(connect_ms=1)
    brokers.replies |= {1: None, 2: KafkaConnectionError("broken")}
    for _ in range(3):
        assert await brokers.leader() == (True, 1)
    assert brokers.asked.count(3) == 3
    brokers.replies |= {1: AWAY, 2: answer(1, 5, nodes=())}
    for _ in range(3):
        assert await brokers.leader() == (True, 1)
        assert brokers.asked[-1] == 3
    brokers.replies[3] = None
    assert await brokers.leader() == (False, 1)
