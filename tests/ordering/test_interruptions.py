"""Tests the moments at which a consumer may read another log than before (R10). Real brokers: tests/kafka/test_lost_tails.py."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from ordering.interruptions import Interruptions, batches


def batch(base_offset: int, records: int, epoch: int) -> bytes:
    """Returns a record batch as a broker stores it."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for offset in range(records):
        assert builder.append(offset, 0, b"key", b"value", []) is not None
    made = bytearray(builder.build())
    made[0:8] = base_offset.to_bytes(8, "big")
    made[12:16] = epoch.to_bytes(4, "big")
    return bytes(made)


class Broker:
    """A Kafka client with scripted answers."""

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
    """A consumer of one partition of that broker."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.interruptions = Interruptions(self.broker)
        self.offset = 0

    async def fetch(self, records: bytes = b"", high_watermark: int | None = None, error_code: int = 0) -> int:
        """Fetch once; returns the number of interruptions that it showed. By default the high watermark is the end of the records."""
        before = self.interruptions.count
        offset_next = max(self.offset, batches(records)[1])
        mark = offset_next if high_watermark is None else high_watermark
        self.broker.answers.append(SimpleNamespace(topics=[("t", [(0, error_code, mark, mark, 0, None, records)])]))
        await self.broker.send(1, FetchRequest(0, 0, 0, 0, [("t", [(0, self.offset, 1)])]))
        self.offset = offset_next
        return self.interruptions.count - before


def test_incomplete_batches_are_ignored() -> None:
    """A record set has epochs and a next offset; an incomplete last batch, and bytes that are no batch, are ignored."""
    both = batch(5, 3, 1) + batch(8, 2, 4)
    assert batches(both) == ([1, 4], 10)
    assert batches(both[:-1]) == ([1], 8)
    assert batches(b"") == ([], 0)
    assert batches(bytes(100)) == ([], 0)


async def test_one_connection_and_epoch_is_no_interruption() -> None:
    """Fetches over one connection and of one epoch are no interruption, with or without records."""
    consumer = Consumer()
    assert [await consumer.fetch(batch(0, 2, 7)), await consumer.fetch(), await consumer.fetch(batch(2, 1, 7))] == [0, 0, 0]


async def test_other_requests_are_left_alone() -> None:
    """Requests other than fetches pass unchanged."""
    consumer = Consumer()
    consumer.broker.answers.append("answer")
    assert await consumer.broker.send(1, object()) == "answer"


@pytest.mark.parametrize("records", [b"", batch(2, 1, 7)], ids=["empty", "records"])
async def test_another_connection_is_one_interruption(records: bytes) -> None:
    """The first fetch over another connection is one interruption, with or without records."""
    consumer = Consumer()
    await consumer.fetch(batch(0, 2, 7))
    consumer.broker.reconnect()
    assert [await consumer.fetch(records), await consumer.fetch()] == [1, 0]


async def test_a_fetch_that_failed() -> None:
    """A failed fetch counts only when the next one succeeds: a partition without a leader causes no interruption."""
    consumer = Consumer()
    await consumer.fetch(batch(0, 2, 7))
    consumer.broker.answers.append(KafkaConnectionError("gone"))
    with pytest.raises(KafkaConnectionError):
        await consumer.broker.send(1, FetchRequest(0, 0, 0, 0, [("t", [(0, 2, 1)])]))
    assert [await consumer.fetch(), await consumer.fetch()] == [1, 0]
    assert [await consumer.fetch(error_code=6), await consumer.fetch(), await consumer.fetch()] == [0, 1, 0]


async def test_a_high_watermark_that_went_back() -> None:
    """A high watermark that falls is an interruption: the log has lost its tail."""
    consumer = Consumer()
    await consumer.fetch(batch(0, 2, 7), high_watermark=9)
    assert await consumer.fetch(high_watermark=8) == 1


async def test_another_leader_at_the_end() -> None:
    """New records of another epoch at the former end are an interruption: the leader has changed, and a tail may be lost."""
    consumer = Consumer()
    await consumer.fetch(batch(0, 2, 7))
    await consumer.fetch()
    assert [await consumer.fetch(batch(2, 1, 8)), await consumer.fetch(batch(3, 1, 8))] == [1, 0]


async def test_another_leader_long_ago() -> None:
    """An epoch that changes within records that were already there is history: it does not interrupt a replay."""
    consumer = Consumer()
    await consumer.fetch(batch(0, 2, 7), high_watermark=6)
    assert await consumer.fetch(batch(2, 2, 8) + batch(4, 2, 9)) == 0


async def test_the_first_fetch_is_no_interruption() -> None:
    """The first fetch is no interruption: there is nothing to compare with, and a new reader compares the log anyway."""
    assert await Consumer().fetch(batch(40, 1, 3)) == 0
