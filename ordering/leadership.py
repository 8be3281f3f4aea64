"""Partition leaders for an aiokafka client: requested from each broker with a short deadline, and never replaced by older ones.

With aiokafka's own discovery (0.14), a worker loses much time when a data centre is cut off. `Leadership` replaces it.

| behaviour of aiokafka | remedy here |
|---|---|
| it believes the last reply, even of a broker that cannot reach the controllers | a leader of a lower epoch than the known one is ignored |
| it picks the broker for Metadata at random | Metadata is requested from the brokers in turn |
| it waits for metadata, and for a connection, as long as for any request | both waits have deadlines of their own |
| it waits for the reply of a broker that is no longer the leader | the connection is closed; the request is sent to the new leader |

The leader epoch of a partition rises with each election. Metadata has it from version 7 on, and Kafka's own clients use it in the same way
(KIP-320). It is stored by topic id, since the epochs of a topic that is deleted and created again start anew. An idempotent producer may
send a batch again after a lost reply: the brokers recognise the batch by its sequence.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.errors import KafkaError

from ordering.connection import TopicsRequest


class Leadership:
    """Replaces the leader discovery of one client that is not started yet."""

    def __init__(self, client: AIOKafkaClient, connect_ms: int) -> None:
        """`connect_ms`: the deadline of each connection step, and of each broker's reply to a Metadata request."""
        self._client = client
        self._limit_s = connect_ms / 1000
        self._request_s = client._request_timeout_ms / 1000
        self._requests_sent = 0
        self._latest: dict[tuple[str, int], tuple[int, int, list[int]]] = {}  # (topic id, partition) -> epoch, leader, in sync
        # The timeout at construction applies to connecting; `_connect` gives each connection the timeout for its requests.
        client._request_timeout_ms = min(connect_ms, client._request_timeout_ms)
        self._get_connection = client._get_conn
        client._get_conn = self._connect
        client._metadata_update = self._update

    async def _connect(self, node: int, **how: Any) -> Any:
        connection = await self._get_connection(node, **how)
        if connection is not None:
            connection._request_timeout = self._request_s
        return connection

    async def _update(self, cluster: Any, topics: set[str]) -> bool:
        """Request Metadata from one broker after another, from where the last round ended, until one replies; returns True if one did."""
        nodes = sorted(broker.nodeId for broker in cluster.brokers())
        for _ in nodes:
            self._requests_sent += 1
            node = nodes[self._requests_sent % len(nodes)]
            try:
                connection = await self._connect(node)
                async with asyncio.timeout(self._limit_s):
                    response = None if connection is None else await connection.send(TopicsRequest(sorted(topics)))
            except (KafkaError, TimeoutError):
                continue
            if response is not None and response.brokers:
                cluster.update_metadata(self._newest(response))
                return True
        cluster.failed_update(None)
        return False

    def _newest(self, response: Any) -> SimpleNamespace:
        """Returns the reply in the form of version 5, which aiokafka reads. Known leaders replace older ones in the reply."""
        topics = []
        for code, name, topic_id, internal, partitions, *_ in response.topics:
            found: list[tuple[Any, ...]] = []
            for error, number, leader, epoch, replicas, in_sync, *_ in partitions:
                latest = self._latest.get((str(topic_id), number))
                if latest is None or epoch >= latest[0]:
                    latest = self._latest[str(topic_id), number] = (epoch, leader, in_sync)
                found.append((error, number, latest[1], replicas, latest[2], []))
            topics.append((code, name, internal, found))
        brokers = [(node, host, port, rack) for node, host, port, rack, *_ in response.brokers]
        return SimpleNamespace(API_VERSION=5, brokers=brokers, controller_id=response.controller_id, topics=topics)

    def disconnect(self, node: int) -> None:
        """Fail the requests in flight to this broker, as a broken connection would."""
        connection = self._client._conns.get((node, ConnectionGroup.DEFAULT))
        if connection is not None:
            connection.close(reason=CloseReason.CONNECTION_BROKEN)
