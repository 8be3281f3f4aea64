"""Detects that a Kafka consumer may be reading a different log than before (R10), after each fetch and before its records are returned.

Kafka loses a tail only when brokers restart or a leader changes. So a topic-partition counts as interrupted when, since its last successful
fetch,

- a fetch has failed and the present one succeeds. A failed fetch alone does not count, so that a partition without a leader does not
  disturb the others;
- the connection to its leader is a new one;
- its high watermark has gone back;
- its first new batch has another leader epoch than the last batch read, which was at the end of the log: so the leader has changed in
  between. (If the epoch changes between older batches, the leader changed before we read them, which is no interruption.)
"""

from typing import Any, TypeAlias

import msgspec
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest

from ordering.batches import heads

_Partition: TypeAlias = tuple[str, int]
"""A topic, and the number of its partition."""


class Fetched(msgspec.Struct, frozen=True):
    """The state of a topic-partition after its last successful fetch."""

    connection: Any
    high_watermark: int
    at_end: bool
    """True if that fetch reached the high watermark."""
    epoch: int | None
    """The leader epoch of the last batch read; None before the first batch."""


class Interruptions:
    """Counts the interruptions of one consumer, whose client has not been used yet."""

    def __init__(self, client: AIOKafkaClient) -> None:
        self.count = 0
        self._client = client
        self._last: dict[_Partition, Fetched] = {}
        self._failed: set[_Partition] = set()
        self._send = client.send
        client.send = self._send_and_check

    async def _send_and_check(self, node: int, request: Any, **how: Any) -> Any:
        if not isinstance(request, FetchRequest):
            return await self._send(node, request, **how)
        requested = {(topic, number): offset for topic, parts in request.topics for number, offset, *_ in parts}
        try:
            response = await self._send(node, request, **how)
        except KafkaError:
            self._failed |= requested.keys()
            raise
        connection = self._client._conns.get((node, ConnectionGroup.DEFAULT))
        for topic, parts in response.topics:
            for number, error_code, high_watermark, *_, records in parts:
                partition = topic, number
                if error_code:
                    self._failed.add(partition)
                else:
                    self._fetched(partition, requested[partition], connection, high_watermark, records or b"")
        return response

    def _fetched(self, partition: _Partition, offset: int, connection: Any, high_watermark: int, records: bytes) -> None:
        before = self._last.get(partition)
        epochs, offset_next = batches(records)
        offset_next = max(offset, offset_next)
        interrupted = partition in self._failed
        if before is not None:
            interrupted |= before.connection is not connection or high_watermark < before.high_watermark
            interrupted |= before.at_end and before.epoch is not None and bool(epochs) and epochs[0] != before.epoch
        epoch = epochs[-1] if epochs else None if before is None else before.epoch
        self._last[partition] = Fetched(connection, high_watermark, offset_next >= high_watermark, epoch)
        self._failed.discard(partition)
        self.count += interrupted


def batches(records: bytes | memoryview) -> tuple[list[int], int]:
    """Returns the leader epochs of the batches in a fetched record set, and the offset after the last. An incomplete batch is left out."""
    epochs: list[int] = []
    offset_next = 0
    for head in heads(records):
        epochs.append(head.epoch)
        offset_next = head.base_offset + head.last_offset_delta + 1
    return epochs, offset_next
