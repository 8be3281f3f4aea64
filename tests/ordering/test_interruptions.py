"""Tests the moments at which a consumer may read another log than before (R10). Real brokers: tests/kafka/test_lost_tails.py."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.fetch import FetchRequest

from ordering.interruptions import Interruptions, batches
from tests.ordering.test_batches import batch as batch_of


def batch(base_offset: int, records: int, epoch: int) -> bytes:
    """Returns a record batch as a broker stores it."""
    made = batch_of(base_offset, *[(b"key", b"value", [])] * records)
    return made[:12] + epoch.to_bytes(4, "big") + made[16:]  # the checksum does not cover it


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


FETCHES = {
    "the first: there is nothing to compare with, and a new reader compares the log anyway": [(batch(40, 1, 3), None, 0)],
    "one connection and epoch, with or without records": [(batch(0, 2, 7), None, 0), (b"", None, 0), (batch(2, 1, 7), None, 0)],
    "a high watermark that fell: the log has lost its tail": [(batch(0, 2, 7), 9, 0), (b"", 8, 1)],
    "another epoch at the former end": [(batch(0, 2, 7), None, 0), (b"", None, 0), (batch(2, 1, 8), None, 1), (batch(3, 1, 8), None, 0)],
    "another epoch in records that were there already": [(batch(0, 2, 7), 6, 0), (batch(2, 2, 8) + batch(4, 2, 9), None, 0)],
}
"""Records, high watermark and shown interruptions of each fetch."""


@pytest.mark.parametrize("fetches", FETCHES.values(), ids=FETCHES)
async def test_a_fetch_shows_an_interruption_or_none(fetches: list[tuple[bytes, int | None, int]]) -> None:
    """A fetch shows an interruption if the log may have lost records since the one before it."""
    consumer = Consumer()
    assert [await consumer.fetch(records, mark) for records, mark, _ in fetches] == [shown for _, _, shown in fetches]


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
