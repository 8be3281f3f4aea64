"""Tests `KafkaWriter` at moments that cannot be forced on brokers, with a producer that only waits."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from joiner import DriverSettings
from ordering.connection import METADATA_AGE_MS
from ordering.endings import Producer
from ordering.errors import NotReady, OutcomeUnknown
from ordering.kafka import KafkaLog, KafkaTimeouts, KafkaWriter
from ordering.log import ORDERING


class SilentProducer:
    """A producer that never sends anything, and records whether it was abandoned."""

    def __init__(self) -> None:
        self.abandoned = 0

    async def wait_until_known(self, partition: TopicPartition) -> None:
        pass

    async def send(self, *_: object) -> Any:
        await asyncio.get_running_loop().create_future()

    async def abandon(self, timeout_s: float) -> None:
        self.abandoned += 1


def writer_on(producer: SilentProducer, append_ms: int) -> KafkaWriter:
    partitions = {ORDERING: TopicPartition("ordering", 0)}
    return KafkaWriter(producer, partitions, KafkaTimeouts(append_ms=append_ms))  # type: ignore[arg-type]


async def test_close_while_an_append_times_out() -> None:
    """An append that has just timed out, and whose caller has not been notified yet, does not block closing the writer."""
    producer = SilentProducer()
    writer = writer_on(producer, append_ms=0)
    append = asyncio.create_task(writer.append(ORDERING, None, b"entry"))
    await asyncio.sleep(0)  # the append waits; its timeout expires in the next turn of the loop
    await asyncio.sleep(0)  # it has expired; the append is notified in the next turn
    assert not append.done()
    await writer.close()
    assert producer.abandoned == 1
    with pytest.raises(OutcomeUnknown):
        await append
    await writer.close()
    assert producer.abandoned == 1


async def test_close_fails_what_is_in_flight() -> None:
    """Closing fails the appends in flight at once, with an unknown outcome."""
    producer = SilentProducer()
    writer = writer_on(producer, append_ms=3_600_000)
    appends = [asyncio.create_task(writer.append(ORDERING, None, b"entry")) for _ in range(3)]
    await asyncio.sleep(0)
    await writer.close()
    assert {type(outcome) for outcome in await asyncio.gather(*appends, return_exceptions=True)} == {OutcomeUnknown}
    assert producer.abandoned == 1


async def test_an_append_waits_for_metadata_of_a_new_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker than the one that the log asked may not know of a new payload partition yet: the append waits, and does not fail."""
    producer = Producer(1_000, bootstrap_servers="host:9092", enable_idempotence=True, acks="all", retry_backoff_ms=1)
    known: list[int] = []

    async def update() -> bool:
        """Learn of one more partition."""
        partitions: list[Any] = [(0, number, 1, [1], [1], []) for number in range(len(known) + 1)]
        metadata = SimpleNamespace(API_VERSION=5, brokers=[(1, "host", 9_092, None)], controller_id=1, topics=[(0, "p", False, partitions)])
        producer.client.cluster.update_metadata(metadata)
        known.append(len(partitions))
        return True

    async def acknowledge(partition: TopicPartition, *_: object, **how: object) -> Any:
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        acknowledged.set_result(None)
        appended.append(partition)
        return acknowledged

    appended: list[TopicPartition] = []
    monkeypatch.setattr(producer.client, "force_metadata_update", update)
    monkeypatch.setattr(producer._message_accumulator, "add_message", acknowledge)
    await update()
    writer = KafkaWriter(producer, {number: TopicPartition("p", number) for number in range(3)}, KafkaTimeouts(append_ms=10_000))
    await writer.append(2, b"key", b"payload")
    await writer.append(0, b"key", b"payload")
    assert [partition.partition for partition in appended] == [2, 0]
    assert known == [1, 2, 3]
    await writer.close()


def test_metadata_is_requested_often_while_a_worker_suspects_itself() -> None:
    """Before a worker stops because its log contradicts it, brokers are asked ten times for the leaders, so not always an outdated one."""
    assert DriverSettings().contradiction_ms >= 10 * METADATA_AGE_MS


async def test_offsets_keep_their_deadline_beside_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """While brokers are away, fills of each partition ask too. The first call uses the deadline of all of them."""
    log = KafkaLog({}, None, "p", 16, "id", KafkaTimeouts(offsets_ms=100))

    class Hanging:
        async def start(self) -> None:
            await asyncio.Event().wait()

    made: list[Hanging] = []

    async def stop(consumer: Hanging, limit_s: float) -> None:
        made.append(consumer)

    monkeypatch.setattr(log, "_consumer", lambda limit_ms: Hanging())
    monkeypatch.setattr("ordering.kafka.stop_consumer", stop)
    problems = await asyncio.gather(*[log.offsets() for _ in range(17)], return_exceptions=True)
    assert {type(problem) for problem in problems} == {NotReady}
    assert len(made) < 17, "one after the other, each with a deadline of its own"
