"""Closes Kafka clients in bounded time, in any state of the clients and the brokers.

aiokafka 0.14 closes gracefully: a producer first sends all queued records, and a consumer waits for its requests in flight. Without brokers
both may take for ever, or fail half-way and leave connections and tasks behind. This module uses private attributes of aiokafka, as do
`leadership.py`, `interruptions.py` and a few lines of `kafka.py` and `connection.py`. So pyproject.toml pins aiokafka below 0.15.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from ordering.errors import error_text
from ordering.leadership import Leadership

logger = logging.getLogger(__name__)


class Producer(AIOKafkaProducer):  # type: ignore[misc]  # aiokafka ships no types
    """aiokafka's producer, with a close that waits for no broker. Its own `stop` first sends all queued records, without a deadline."""

    _closed: bool | None

    def __init__(self, connect_ms: int, **settings: Any) -> None:
        super().__init__(**settings)
        self._leadership = Leadership(self.client, connect_ms)
        self.client.cluster.add_listener(self._leave_former_leaders)
        self._requests: set[asyncio.Task[Any]] = set()
        send = self._sender._send_produce_req

        async def send_and_remember(node: int, batches: Any) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._requests.add(task)
            try:
                await send(node, batches)
            finally:
                self._requests.discard(task)

        self._sender._send_produce_req = send_and_remember

    async def wait_until_known(self, partition: TopicPartition) -> None:
        """Return when the metadata has the partition: `send` asserts that. Brokers learn of a new partition at different times."""
        while partition.partition not in await self.partitions_for(partition.topic):
            await self.client.force_metadata_update()
            await asyncio.sleep(self.client._retry_backoff)

    def _leave_former_leaders(self, cluster: Any) -> None:
        """Disconnect brokers that no longer lead a partition with a batch in flight: they may never reply."""
        leaders = {cluster.leader_for_partition(partition) for partition in self._sender._muted_partitions}
        for node in self._sender._in_flight - leaders:
            self._leadership.disconnect(node)

    async def abandon(self, timeout_s: float) -> None:
        """Disconnect without sending queued records or waiting for a broker. Takes a few times `timeout_s` at most."""
        if self._closed:
            return
        self._closed = True
        # Cancel the requests first, since a cancelled sender waits for them.
        tasks = {*self._requests, *([self._sender.sender_task] if self._sender.sender_task is not None else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        await _within(self.client.close(), timeout_s)


async def stop_consumer(consumer: AIOKafkaConsumer, timeout_s: float) -> None:
    """Stop a consumer in bounded time, in any state."""
    await _within(consumer.stop(), timeout_s)
    # Stopping while a fetch waits to be retried raises CancelledError inside aiokafka, before it disconnects.
    fetcher = consumer._fetcher
    if fetcher is not None and (left := {task for task in fetcher._pending_tasks if not task.done()}):
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=timeout_s)
    await _within(consumer._client.close(), timeout_s)


async def _within(work: Coroutine[Any, Any, Any], timeout_s: float) -> None:
    """Run a coroutine to its end, or cancel it after `timeout_s`. Its errors are only logged, since the client is discarded anyway."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=timeout_s)
    finally:
        task.cancel()
    await asyncio.wait([task], timeout=timeout_s)
    if task.done() and not task.cancelled() and (problem := task.exception()) is not None:
        logger.warning("closing a kafka client failed error=%s", error_text(problem))
