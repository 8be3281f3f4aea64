"""Tests `ordering.kafka` at moments that cannot be forced on brokers, with clients that are replaced."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import RecordListTooLargeError, RequestTimedOutError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.fetch import FetchRequest

from joiner import DriverSettings
from ordering.batches import WithoutHeaders
from ordering.connection import METADATA_AGE_MS
from ordering.endings import Producer, stop_consumer
from ordering.errors import NotReady, OutcomeUnknown
from ordering.interruptions import Interruptions
from ordering.kafka import FETCH_BROKER_BYTES_MAX, FETCH_GROWS_BYTES, FetchSize, KafkaLog, KafkaReader, KafkaTimeouts, KafkaWriter
from ordering.leadership import Leadership
from ordering.log import ORDERING, Leader, LogOffsets, Record


class SilentProducer:
    """A producer that never sends anything, and records whether it was abandoned."""

    def __init__(self) -> None:
        self.abandoned = self.sends = 0

    async def wait_until_known(self, partition: TopicPartition) -> None:
        pass

    async def send(self, *_: object) -> Any:
        await asyncio.get_running_loop().create_future()

    async def abandon(self, timeout_s: float) -> None:
        self.abandoned += 1


class FailingProducer(SilentProducer):
    """A producer whose sends fail."""

    async def send(self, *_: object) -> Any:
        self.sends += 1
        await asyncio.sleep(0)
        raise RecordListTooLargeError


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


async def test_nothing_is_sent_after_a_failure() -> None:
    """Not even an append that has waited for its turn: once its batch counts, the one that failed counts no more (R2)."""
    producer = FailingProducer()
    writer = writer_on(producer, append_ms=3_600_000)
    outcomes = await asyncio.gather(*[writer.append(ORDERING, None, b"entry") for _ in range(2)], return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {OutcomeUnknown}
    with pytest.raises(OutcomeUnknown, match="open another"):
        await writer.append(ORDERING, None, b"entry")
    assert producer.sends == 1


async def test_a_reader_whose_fetching_ended_fails() -> None:
    """It would return nothing, for ever; a reader that is closed while it polls returns nothing."""
    consumer: Any = SimpleNamespace(_fetcher=SimpleNamespace(error_future=asyncio.get_running_loop().create_future()))
    reader = KafkaReader(consumer, Interruptions(AIOKafkaClient()), WithoutHeaders(AIOKafkaClient()), {}, KafkaTimeouts())

    async def nothing(**_: int) -> dict[TopicPartition, list[Any]]:
        return {}

    consumer.getmany = nothing
    assert await reader.poll(0) == []
    consumer._fetcher.error_future.set_result(None)
    with pytest.raises(NotReady, match="its fetching task ended"):
        await reader.poll(0)
    with pytest.raises(NotReady, match="open another: its fetching task ended"):
        await reader.poll(0)


async def test_a_reader_pauses_only_its_own_partitions() -> None:
    """The log may have more partitions than when the reader was opened."""
    paused: list[TopicPartition] = []
    consumer: Any = SimpleNamespace(pause=lambda *some: paused.extend(some), resume=lambda *some: None)
    own = TopicPartition("p.payload", 0)
    reader = KafkaReader(consumer, Interruptions(AIOKafkaClient()), WithoutHeaders(AIOKafkaClient()), {0: own}, KafkaTimeouts())
    reader.pause({0, 1})
    assert paused == [own]


async def test_a_quick_fetch_of_another_reader_keeps_the_smaller_size() -> None:
    """It began before the fetch that took too long has ended. An idle reader always has one in flight."""
    sizes, ends = [], dict[int, asyncio.Future[None]]()

    async def send(node: int, request: FetchRequest) -> None:
        sizes.append(request._max_bytes)
        await ends.setdefault(len(sizes), asyncio.get_running_loop().create_future())

    fetch_size = FetchSize()
    clients: list[Any] = [SimpleNamespace(send=send) for _ in range(2)]
    for client in clients:
        fetch_size.adapt(client, 3_600)
    slow, quick = [asyncio.ensure_future(client.send(1, FetchRequest(1, 1, 1, 0, []))) for client in clients]
    await asyncio.sleep(0)
    ends[1].set_exception(RequestTimedOutError())
    with pytest.raises(RequestTimedOutError):
        await slow
    ends[2].set_result(None)
    await quick
    last = asyncio.ensure_future(clients[0].send(1, FetchRequest(1, 1, 1, 0, [])))
    await asyncio.sleep(0)
    ends[3].set_result(None)
    await last
    assert sizes == [FETCH_BROKER_BYTES_MAX, FETCH_BROKER_BYTES_MAX, FETCH_BROKER_BYTES_MAX // 2 + FETCH_GROWS_BYTES]


async def test_opening_a_client_keeps_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may accept a connection and never reply. The client is closed then."""
    log = KafkaLog({}, None, "p", 1, "id", KafkaTimeouts(open_ms=50))
    closed: list[str] = []

    class Hanging:
        def __init__(self, *_: object, **__: object) -> None:
            self._client = AIOKafkaClient()

        async def start(self) -> None:
            await asyncio.Event().wait()

        async def abandon(self, limit_s: float) -> None:
            closed.append("producer")

    async def stop(consumer: Hanging, limit_s: float) -> None:
        closed.append("consumer")

    monkeypatch.setattr(log, "_consumer", Hanging)
    monkeypatch.setattr("ordering.kafka.Producer", Hanging)
    monkeypatch.setattr("ordering.kafka.stop_consumer", stop)
    for opening in (log.open_writer(), log.open_reader({})):
        with pytest.raises(NotReady, match="cannot be opened now"):
            await asyncio.wait_for(opening, 5)
    assert closed == ["producer", "consumer"]


async def test_readers_ignore_leaders_of_the_past() -> None:
    """So do writers (test_kafka.py, `test_former_leader_is_not_waited_for`)."""
    consumer = KafkaLog({}, None, "p", 1, "id", KafkaTimeouts())._consumer(1_000)
    assert isinstance(consumer._client._metadata_update.__self__, Leadership)
    await stop_consumer(consumer, 1)


@pytest.mark.parametrize("offset", [-1, 4])
async def test_a_copy_at_another_offset_is_no_copy(offset: int) -> None:
    """Another process has appended to the mirror, or the broker knows the batch already and does not name its offset."""

    class ElsewhereProducer(SilentProducer):
        def create_batch(self) -> BatchBuilder:
            return BatchBuilder(1_000, 0)

        async def send_batch(self, *_: object, **__: object) -> Any:
            acknowledged = asyncio.get_running_loop().create_future()
            acknowledged.set_result(SimpleNamespace(offset=offset))
            return acknowledged

    writer = writer_on(ElsewhereProducer(), append_ms=10_000)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match=f"a copy at offset {offset}, expected 3: another process .* or an append was repeated"):
            await writer.copy(ORDERING, [Record(ORDERING, 0, 1, b"key", b"value")], 3)


async def test_a_partition_without_a_leader_is_left_out() -> None:
    """Otherwise an append or a request for offsets there would hang, or fail for all partitions."""
    log = KafkaLog({}, None, "p", 2, "id", KafkaTimeouts())
    cluster = ClusterMetadata()
    payloads: list[Any] = [(0, 0, 1, [1], [1], []), (0, 1, -1, [1], [1], [])]
    topics = [(0, "p.ordering", False, payloads[:1]), (0, "p.payload", False, payloads)]
    cluster.update_metadata(SimpleNamespace(API_VERSION=5, brokers=[(1, "host", 9_092, "x")], controller_id=1, topics=topics))

    async def offsets(partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 7)

    log._watcher = SimpleNamespace(_client=SimpleNamespace(cluster=cluster), beginning_offsets=offsets, end_offsets=offsets)
    assert log.leaders() == {0: Leader("x")}
    assert await log.offsets() == {ORDERING: LogOffsets(7, 7), 0: LogOffsets(7, 7)}


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
