"""Tests fetch sessions on real brokers: the end of one loses no record and hides no interruption (R10)."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11

from deploy.local import Cluster
from ordering.kafka import KafkaReader, KafkaWriter
from ordering.log import ORDERING
from ordering.topics import create_topics
from tests.ordering.closing import closing
from tests.ordering.test_kafka import opened, take, until_ready

pytestmark = pytest.mark.kafka

PARTITIONS = 6
FINAL_EPOCH = -1


class Fetch(NamedTuple):
    """A fetch as a broker gets it."""

    connection: AIOKafkaConnection
    message: Any

    @property
    def named(self) -> set[tuple[str, int]]:
        """The last part of each topic's name, and the number of the partition."""
        return {(topic.rpartition(".")[2], number) for topic, parts in self.message.topics for number, *_ in parts}


class Reading:
    """A reader that has begun a session with each broker, a writer, and the fetches that the reader sends."""

    def __init__(self, reader: KafkaReader, writer: KafkaWriter, sent: list[Fetch], to_break: list[int]) -> None:
        """`to_break`: the ports of brokers whose connection breaks when the next fetch is on its way to it."""
        self.reader, self.writer, self.sent, self.to_break = reader, writer, sent, to_break

    async def rounds(self, count: int) -> list[Fetch]:
        """Read nothing until each broker got `count` more fetches; returns all of these."""
        brokers = {fetch.connection._port for fetch in self.sent}
        self.sent.clear()
        while any([fetch.connection._port for fetch in self.sent].count(broker) < count for broker in brokers):
            assert await self.reader.poll(10) == []
        return list(self.sent)

    async def append_and_read(self, partition: int) -> None:
        """Append a record and read it."""
        await self.writer.append(partition, b"key", b"value")
        assert [record.partition for record in await take(self.reader, 1)] == [partition]


@pytest.fixture
async def reading(kafka_cluster: Cluster, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reading]:
    """Reads a log whose partitions are led by three brokers."""
    sent: list[Fetch] = []
    send = AIOKafkaConnection.send

    def record_and_send(connection: AIOKafkaConnection, request: Any, *others: Any, **named: Any) -> Any:
        if isinstance(request, FetchRequest):
            sent.append(Fetch(connection, request.prepare(connection._versions)))
        return send(connection, request, *others, **named)

    to_break: list[int] = []
    client_send = AIOKafkaClient.send

    async def break_and_send(client: AIOKafkaClient, node: int, request: Any, **how: Any) -> Any:
        connection = client._conns.get((node, ConnectionGroup.DEFAULT))
        if isinstance(request, FetchRequest) and connection is not None and connection._port in to_break:
            to_break.remove(connection._port)
            connection.close(reason=CloseReason.CONNECTION_BROKEN)
        return await client_send(client, node, request, **how)

    monkeypatch.setattr(AIOKafkaConnection, "send", record_and_send)
    monkeypatch.setattr(AIOKafkaClient, "send", break_and_send)
    await until_ready(lambda: create_topics(kafka_cluster.bootstrap, kafka_prefix, PARTITIONS))
    async with closing(await opened(kafka_cluster, kafka_prefix)) as log:
        reading = Reading(await log.open_reader({}), await log.open_writer(), sent, to_break)
        for partition in range(ORDERING, PARTITIONS):
            await reading.append_and_read(partition)
        await reading.rounds(2)
        yield reading


async def test_a_fetch_names_only_partitions_that_have_moved(reading: Reading) -> None:
    """A reader without news names nothing. After a record, one fetch names its partition."""
    assert all(not fetch.named and fetch.message.session_epoch for fetch in await reading.rounds(3))
    reading.sent.clear()
    await reading.append_and_read(2)
    while not any(fetch.named for fetch in reading.sent):
        assert await reading.reader.poll(10) == []
    assert [fetch.named for fetch in reading.sent if fetch.named] == [{("payload", 2)}]
    assert reading.reader.offset_next(2) == 2
    await reading.append_and_read(2)


async def test_a_paused_partition_leaves_the_session(reading: Reading) -> None:
    """It is not read meanwhile, and from the same offset on when it is resumed."""
    reading.reader.pause([3])
    await reading.rounds(2)
    await reading.writer.append(3, b"key", b"paused")
    await reading.rounds(2)
    reading.reader.pause([])
    assert [(record.partition, record.offset, record.value) for record in await take(reading.reader, 1)] == [(3, 1, b"paused")]


async def test_a_session_that_a_broker_forgot_begins_anew(reading: Reading, kafka_cluster: Cluster) -> None:
    """Nothing is lost, and nothing was interrupted: a broker forgets sessions when it has too many."""
    interruptions = reading.reader.interruptions
    latest = {fetch.connection._port: fetch.message.session_id for fetch in await reading.rounds(2)}
    other = AIOKafkaClient(bootstrap_servers=kafka_cluster.bootstrap)
    await other.bootstrap()
    try:
        for broker in other.cluster.brokers():
            end = FetchRequest_v11(-1, 0, 0, 1, 0, latest[broker.port], FINAL_EPOCH, [], [], "")
            connection = await other._get_conn(broker.nodeId)
            await AIOKafkaConnection.send(connection, _Message(end))
    finally:
        await other.close()
    while len(begun := [fetch for fetch in reading.sent if not fetch.message.session_epoch]) < len(latest):
        assert await reading.reader.poll(10) == []
    assert {fetch.connection._port for fetch in begun} == latest.keys()
    assert set().union(*[fetch.named for fetch in begun]) == {("ordering", 0), *[("payload", each) for each in range(PARTITIONS)]}
    for partition in range(ORDERING, PARTITIONS):
        await reading.append_and_read(partition)
    assert reading.reader.interruptions == interruptions


async def test_a_new_connection_begins_a_session_and_is_an_interruption(reading: Reading) -> None:
    """All partitions of that broker are named, so that each counts as interrupted."""
    interruptions = reading.reader.interruptions
    (fetch, *_) = await reading.rounds(2)
    fetch.connection.close(reason=CloseReason.CONNECTION_BROKEN)
    while not any(each.connection._port == fetch.connection._port and each.connection is not fetch.connection for each in reading.sent):
        await reading.reader.poll(10)
    begun = next(
        each for each in reading.sent if each.connection._port == fetch.connection._port and each.connection is not fetch.connection
    )
    assert begun.message.session_epoch == 0
    assert begun.named
    while reading.reader.interruptions < interruptions + len(begun.named):
        await reading.reader.poll(10)


async def test_a_session_does_not_go_on_over_another_connection(reading: Reading) -> None:
    """A fetch of the session goes over a new connection. Its response leaves out what has not moved, so the next fetch names everything."""
    interruptions = reading.reader.interruptions
    (fetch, *_) = await reading.rounds(2)
    port = fetch.connection._port
    reading.to_break.append(port)
    while len(after := [each for each in reading.sent if each.connection._port == port and each.connection is not fetch.connection]) < 2:
        assert await reading.reader.poll(10) == []
    assert after[0].message.session_epoch > 0
    assert not after[0].named
    assert after[1].message.session_epoch == 0
    assert after[1].named
    while reading.reader.interruptions < interruptions + len(after[1].named):
        await reading.reader.poll(10)


async def test_brokers_without_sessions_get_complete_fetches(reading: Reading) -> None:
    """Version 4 of the request has no session: each fetch names all partitions that its broker leads."""
    for fetch in await reading.rounds(2):
        fetch.connection._versions = fetch.connection._versions | {FetchRequest.API_KEY: (0, 4)}
    await reading.rounds(1)
    for partition in range(ORDERING, PARTITIONS):
        await reading.append_and_read(partition)
    fetches = await reading.rounds(2)
    assert {fetch.message.API_VERSION for fetch in fetches} == {4}
    assert all(fetch.named for fetch in fetches)


class _Message(FetchRequest):
    """A complete message."""

    def __init__(self, message: FetchRequest_v11) -> None:
        self.message = message

    def build(self, request_struct_class: type[FetchRequest_v11]) -> FetchRequest_v11:
        return self.message
