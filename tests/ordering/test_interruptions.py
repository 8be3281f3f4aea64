"""When a consumer notices that it may read another log than before (R10). Real brokers: tests/kafka/test_lost_tails.py."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from ordering.interruptions import Interruptions, batches

PARTITION = TopicPartition("t", 0)


def batch(base_offset: int, records: int, epoch: int) -> bytes:
    """A batch as a broker keeps it."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for offset in range(records):
        assert builder.append(offset, 0, b"key", b"value", []) is not None
    made = bytearray(builder.build())
    made[0:8] = base_offset.to_bytes(8, "big")
    made[12:16] = epoch.to_bytes(4, "big")
    return bytes(made)


class Broker:
    """A client whose answers a test scripts."""

    def __init__(self) -> None:
        self._conns: dict[Any, object] = {(1, ConnectionGroup.DEFAULT): object()}
        self.answers: list[Any] = []

    async def send(self, node: int, request: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def reconnect(self) -> None:
        self._conns[1, ConnectionGroup.DEFAULT] = object()


class Consumer:
    """Fetches from one partition of it."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.interruptions = Interruptions(self.broker)
        self.offset = 0

    async def fetch(self, records: bytes = b"", high_watermark: int | None = None, error_code: int = 0) -> int:
        """One fetch; how many interruptions it showed. The high watermark is where the records end if it is not given."""
        before = self.interruptions.count
        offset_next = max(self.offset, batches(records)[1])
        mark = offset_next if high_watermark is None else high_watermark
        self.broker.answers.append(SimpleNamespace(topics=[("t", [(0, error_code, mark, mark, 0, None, records)])]))
        await self.broker.send(1, FetchRequest(0, 0, 0, 0, [("t", [(0, self.offset, 1)])]))
        self.offset = offset_next
        return self.interruptions.count - before


def test_batches() -> None:
    """Epochs and the next offset of a record set; an incomplete batch at the end, and what is none, is left out."""
    both = batch(5, 3, 1) + batch(8, 2, 4)
    assert batches(both) == ([1, 4], 10)
    assert batches(both[:-1]) == ([1], 8)
    assert batches(b"") == ([], 0)
    assert batches(bytes(100)) == ([], 0)


async def test_undisturbed() -> None:
    """Fetches over one connection, of one epoch, with records and without, are no interruption."""
    consumer = Consumer()
    assert [await consumer.fetch(batch(0, 2, 7)), await consumer.fetch(), await consumer.fetch(batch(2, 1, 7))] == [0, 0, 0]


async def test_other_requests_are_left_alone() -> None:
    """A request that is no fetch passes."""
    consumer = Consumer()
    consumer.broker.answers.append("answer")
    assert await consumer.broker.send(1, object()) == "answer"


@pytest.mark.parametrize("records", [b"", batch(2, 1, 7)], ids=["empty", "records"])
async def test_another_connection(records: bytes) -> None:
    """The first fetch over another connection is one interruption, with records or without."""
    consumer = Consumer()
    await consumer.fetch(batch(0, 2, 7))
    consumer.broker.reconnect()
    assert [await consumer.fetch(records), await consumer.fetch()] == [1, 0]


async def test_a_fetch_that_failed() -> None:
    """A failed fetch counts when the next one succeeds, and not before: a partition without a leader disturbs nobody."""
    consumer = Consumer()
    await consumer.fetch(batch(0, 2, 7))
    consumer.broker.answers.append(KafkaConnectionError("gone"))
    with pytest.raises(KafkaConnectionError):
        await consumer.broker.send(1, FetchRequest(0, 0, 0, 0, [("t", [(0, 2, 1)])]))
    assert [await consumer.fetch(error_code=6), await consumer.fetch(), await consumer.fetch()] == [0, 1, 0]


async def test_a_high_watermark_that_went_back() -> None:
    """A log that is shorter than it was lost its tail."""
    consumer = Consumer()
    await consumer.fetch(batch(0, 2, 7), high_watermark=9)
    assert await consumer.fetch(high_watermark=8) == 1


async def test_another_leader_at_the_end() -> None:
    """New records of another epoch at what was the end: a leader changed since, and a tail may be another's."""
    consumer = Consumer()
    await consumer.fetch(batch(0, 2, 7))
    await consumer.fetch()
    assert [await consumer.fetch(batch(2, 1, 8)), await consumer.fetch(batch(3, 1, 8))] == [1, 0]


async def test_another_leader_long_ago() -> None:
    """An epoch that changes in the middle of what was there already is history: a replay is not disturbed by it."""
    consumer = Consumer()
    await consumer.fetch(batch(0, 2, 7), high_watermark=6)
    assert await consumer.fetch(batch(2, 2, 8) + batch(4, 2, 9)) == 0


async def test_the_first_fetch() -> None:
    """It has nothing before it to compare with: a new reader looks at the log anyway."""
    assert await Consumer().fetch(batch(40, 1, 3)) == 0
