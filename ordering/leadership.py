"""Who leads, as an aiokafka client knows it: asked for patiently of no broker, and never older than it knew before.

What aiokafka 0.14 makes of it costs a worker its time when a data centre is cut off. `Leadership` takes that part over.

| what aiokafka does | what is done about it here |
|---|---|
| it believes whoever spoke last, a broker that does not hear the controllers too | a leader of a lower epoch than was heard is not taken |
| whom it asks is chance | the brokers are asked in turn |
| it waits for metadata, and for a connection, as long as for any request | both have a limit of their own |
| what was sent to a broker that leads no more is waited for | its connection is closed: the request is sent again, to who leads now |

The leader epoch of a partition rises with each election, and Metadata has it from version 7 on; Kafka's own clients do the same with it
(KIP-320). It is kept by the topic's id, since a topic that was deleted and created again begins anew. Sending again is what the idempotent
producer does after any lost answer: the brokers know the batch by its sequence.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.errors import KafkaError

from ordering.connection import TopicsRequest


class Leadership:
    """Takes over how one client, not started yet, learns who leads."""

    def __init__(self, client: AIOKafkaClient, connect_ms: int) -> None:
        """`connect_ms` is for each step of connecting, and for each broker's answer to the question who leads."""
        self._client = client
        self._limit_s = connect_ms / 1000
        self._request_s = client._request_timeout_ms / 1000
        self._asked = 0
        self._heard: dict[tuple[str, int], tuple[int, int, list[int]]] = {}  # (topic id, partition) -> epoch, leader, in sync
        # What the client is made with holds for connecting; `_connect` gives each connection the limit for its requests.
        client._request_timeout_ms = min(connect_ms, client._request_timeout_ms)
        self._connect_slowly = client._get_conn
        client._get_conn = self._connect
        client._metadata_update = self._update

    async def _connect(self, node: int, **how: Any) -> Any:
        connection = await self._connect_slowly(node, **how)
        if connection is not None:
            connection._request_timeout = self._request_s
        return connection

    async def _update(self, cluster: Any, topics: set[str]) -> bool:
        """Ask one broker after the other, from where the last time ended, until one answers; whether one did."""
        nodes = sorted(broker.nodeId for broker in cluster.brokers())
        for _ in nodes:
            self._asked += 1
            node = nodes[self._asked % len(nodes)]
            try:
                connection = await self._connect(node)
                async with asyncio.timeout(self._limit_s):
                    answer = None if connection is None else await connection.send(TopicsRequest(sorted(topics)))
            except (KafkaError, TimeoutError):
                continue
            if answer is not None and answer.brokers:
                cluster.update_metadata(self._newest(answer))
                return True
        cluster.failed_update(None)
        return False

    def _newest(self, answer: Any) -> SimpleNamespace:
        """The answer in the form of version 5, which aiokafka reads, with what was heard before where that is newer."""
        topics = []
        for code, name, topic_id, internal, partitions, *_ in answer.topics:
            found: list[tuple[Any, ...]] = []
            for error, number, leader, epoch, replicas, in_sync, *_ in partitions:
                heard = self._heard.get((str(topic_id), number))
                if heard is None or epoch >= heard[0]:
                    heard = self._heard[str(topic_id), number] = (epoch, leader, in_sync)
                found.append((error, number, heard[1], replicas, heard[2], []))
            topics.append((code, name, internal, found))
        brokers = [(node, host, port, rack) for node, host, port, rack, *_ in answer.brokers]
        return SimpleNamespace(API_VERSION=5, brokers=brokers, controller_id=answer.controller_id, topics=topics)

    def disconnect(self, node: int) -> None:
        """Fail what this broker was sent and has not answered, as a broken connection would."""
        connection = self._client._conns.get((node, ConnectionGroup.DEFAULT))
        if connection is not None:
            connection.close(reason=CloseReason.CONNECTION_BROKEN)
