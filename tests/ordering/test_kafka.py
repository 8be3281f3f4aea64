"""Tests `KafkaLog` beyond the contract: topics, brokers that are down, leaders that die, offsets that are gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

import msgspec
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaError, RequestTimedOutError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest

import ordering.topics
from deploy.local import Cluster
from ordering.connection import AlterSettingsRequest, ClusterFacts, KafkaSecurity, admin, describe_cluster
from ordering.errors import ConfigurationError, Fatal, FatalCode, NotReady, OutcomeUnknown
from ordering.kafka import FETCH_BROKER_BYTES_MAX, FetchSize, KafkaLog, KafkaTimeouts
from ordering.log import ORDERING, Log, Reader, Record
from ordering.topics import add_partitions, create_topics, inspect, topic_names, use_append_times, uses_append_times
from tests.ordering.closing import closing

pytestmark = pytest.mark.kafka

T = TypeVar("T")
LONG_TIMEOUTS = KafkaTimeouts(
    open_ms=90_000, topics_ms=60_000, offsets_ms=60_000, request_ms=30_000, connect_ms=10_000, append_ms=120_000
)  # where a call must succeed, however busy the machine is
QUICK = KafkaTimeouts(open_ms=2_000, append_ms=1_500, offsets_ms=1_000, request_ms=1_000, connect_ms=500, close_ms=500)


@pytest.fixture(scope="module")
def lone_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one broker, so that all brokers can be down."""
    with Cluster.create(tmp_path_factory.mktemp("lone") / "cluster", brokers=1) as cluster:
        yield cluster


async def until_ready(call: Callable[[], Awaitable[T]]) -> T:
    """Call until it does not raise NotReady; only the test's time limit bounds it."""
    while True:
        try:
            return await call()
        except NotReady:
            await asyncio.sleep(0.05)


async def opened(cluster: Cluster, prefix: str, timeouts: KafkaTimeouts = LONG_TIMEOUTS) -> KafkaLog:
    """Open the log, however long the brokers take for it."""
    return await until_ready(lambda: KafkaLog.open(cluster.bootstrap, prefix, timeouts=timeouts))


MakeLog: TypeAlias = Callable[..., Awaitable[KafkaLog]]


@pytest.fixture
async def make_log(kafka_prefix: str) -> AsyncIterator[MakeLog]:
    """Creates the topics, unless they exist, and opens the log in them; all is closed at the end."""
    async with contextlib.AsyncExitStack() as logs:

        async def make(cluster: Cluster, partitions: int, timeouts: KafkaTimeouts = LONG_TIMEOUTS) -> KafkaLog:
            await until_ready(lambda: create_topics(cluster.bootstrap, kafka_prefix, partitions))
            return await logs.enter_async_context(closing(await opened(cluster, kafka_prefix, timeouts)))

        yield make


async def problems_of(cluster: Cluster, prefix: str) -> list[str]:
    """Returns the problems with the topics of a prefix."""
    async with admin_of(cluster) as client:
        return (await inspect(client, prefix, wait_ms=0))[1]


async def take(reader: Reader, count: int) -> list[Record]:
    records: list[Record] = []
    while len(records) < count:
        records += await reader.poll(60_000)
    return records


def admin_of(cluster: Cluster) -> contextlib.AbstractAsyncContextManager[AIOKafkaAdminClient]:
    """Returns an administration client, for requests that `ordering.topics` does not make."""
    return admin(cluster.bootstrap, "test", None, 60_000)


# Topics


async def test_topics_are_created_once(kafka_cluster: Cluster, kafka_prefix: str, make_log: MakeLog) -> None:
    """Creating topics that exist checks them instead and reports that; it finds no problem with topics that it created."""
    names = topic_names(kafka_prefix)
    first = await create_topics(kafka_cluster.bootstrap, kafka_prefix, 3)
    again = await create_topics(kafka_cluster.bootstrap, kafka_prefix, 3)
    assert (first.created, first.existed, first.warnings) == (names, (), ())
    assert (again.created, again.existed, again.warnings) == ((), names, ())
    [warning] = (await create_topics(kafka_cluster.bootstrap, kafka_prefix, 3, flush_ordering=True)).warnings
    assert f"Topic {names[0]} has flush.messages=another value, wanted 1" in warning
    assert await problems_of(kafka_cluster, kafka_prefix) == []
    log = await make_log(kafka_cluster, 3)
    assert log.payload_partitions == 3
    leaders = log.leaders().values()
    assert {leader.data_centre for leader in leaders} == {"dc1", "dc2", "dc3"}
    assert [leader.leads_ordering for leader in leaders].count(True) == 1


async def test_a_new_partition_has_its_leader(kafka_cluster: Cluster, kafka_prefix: str, make_log: MakeLog) -> None:
    """Offsets and leaders include a new partition at once. Without it the process that seals segments ends, which raises an alert."""
    log = await make_log(kafka_cluster, 2)
    assert log.leaders().keys() == {0, 1}
    await add_partitions(kafka_cluster.bootstrap, kafka_prefix, 3)
    await (await opened(kafka_cluster, kafka_prefix)).close()  # all partitions have leaders now
    await log.has_partitions(3)
    with pytest.raises(NotReady, match="3 payload partitions"):
        await log.has_partitions(4)
    assert (await log.offsets()).keys() == {ORDERING, 0, 1, 2}
    assert log.leaders().keys() == {0, 1, 2}


async def test_records_for_one_broker_travel_together(kafka_cluster: Cluster, make_log: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two appends at once are one produce request if one broker leads both partitions, and two requests otherwise."""
    sent: list[int] = []
    send = AIOKafkaConnection.send

    def counted(self: AIOKafkaConnection, request: Any, *others: Any, **named: Any) -> Any:
        if isinstance(request, ProduceRequest):
            sent.append(sum(len(partitions) for _, partitions in request._topics))
        return send(self, request, *others, **named)

    monkeypatch.setattr(AIOKafkaConnection, "send", counted)
    log = await make_log(kafka_cluster, 3)
    writer = await log.open_writer()
    for partition, leader in log.leaders().items():
        sent.clear()
        await asyncio.gather(writer.append(partition, b"key", b"payload"), writer.append(ORDERING, None, b"entry"))
        assert sent == ([2] if leader.leads_ordering else [1, 1])


async def test_a_record_whose_reply_is_lost_is_appended_once(
    kafka_cluster: Cluster, make_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends it again, and the broker recognises it."""
    log = await make_log(kafka_cluster, 1)
    writer = await log.open_writer()
    send, lost = AIOKafkaClient.send, 0

    async def send_and_lose(client: AIOKafkaClient, node: int, request: Any, **how: Any) -> Any:
        nonlocal lost
        response = await send(client, node, request, **how)
        if isinstance(request, ProduceRequest) and not lost:
            lost += 1
            raise RequestTimedOutError
        return response

    with monkeypatch.context() as patch:
        patch.setattr(AIOKafkaClient, "send", send_and_lose)
        await writer.append(0, b"key", b"value")
    assert (lost, (await log.offsets())[0].log_end) == (1, 1)


async def test_missing_topics_are_named(kafka_cluster: Cluster, kafka_prefix: str) -> None:
    """Opening a log that was never created names the missing topics, and creates none."""
    for _ in range(2):
        problems = await problems_of(kafka_cluster, kafka_prefix)
        assert [name in problem for name, problem in zip(topic_names(kafka_prefix), problems, strict=True)] == [True, True]
    with pytest.raises(ConfigurationError, match="does not exist"):
        await until_ready(lambda: KafkaLog.open(kafka_cluster.bootstrap, kafka_prefix))


async def test_topics_that_are_not_known_yet_are_waited_for(kafka_cluster: Cluster, kafka_prefix: str) -> None:
    """A log whose topics appear while it is opened opens: brokers learn of a new topic one after the other."""
    opening = asyncio.create_task(KafkaLog.open(kafka_cluster.bootstrap, kafka_prefix, timeouts=LONG_TIMEOUTS))
    await asyncio.sleep(0.3)
    await create_topics(kafka_cluster.bootstrap, kafka_prefix, 2)
    log = await opening
    assert log.payload_partitions == 2
    await log.close()


async def test_topics_that_one_broker_has_not_heard_of(kafka_cluster: Cluster, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Existing topics are found, and not created, even if the brokers that are asked first do not know them, or all partitions, yet."""
    names = topic_names(kafka_prefix)
    await create_topics(kafka_cluster.bootstrap, kafka_prefix, 2)
    describe = describe_cluster
    answers: list[ClusterFacts] = []

    async def late(*arguments: Any) -> ClusterFacts:
        facts = await describe(*arguments)
        fewer = {name: msgspec.structs.replace(topic, replicas=topic.replicas[:1]) for name, topic in facts.topics.items()}
        answers.append(msgspec.structs.replace(facts, topics=({}, fewer, facts.topics)[min(len(answers), 2)]))
        return answers[-1]

    monkeypatch.setattr(ordering.topics, "describe_cluster", late)
    made = await create_topics(kafka_cluster.bootstrap, kafka_prefix, 2)
    assert len(answers) > 2
    assert (made.created, made.existed) == ((), names)


async def test_another_number_of_partitions_is_fatal(kafka_cluster: Cluster, kafka_prefix: str, make_log: MakeLog) -> None:
    """Topics with another number of payload partitions than requested are rejected; the message has both numbers.

    A log that is opened has as many as its topic.
    """
    payload = topic_names(kafka_prefix)[1]
    log = await make_log(kafka_cluster, 3)
    with pytest.raises(Fatal, match=f"{payload} exists already and has 3 payload partitions, wanted 2: .*--partitions") as raised:
        await create_topics(kafka_cluster.bootstrap, kafka_prefix, 2)
    assert raised.value.code is FatalCode.PARTITIONS_DIFFER
    assert log.payload_partitions == 3


async def test_a_mirror_may_have_more_partitions_than_its_log_declares(kafka_cluster: Cluster, kafka_prefix: str) -> None:
    """A mirror has as many as the log's topic. Before `notary partitions` the log declares fewer; if a mirror has fewer, it gets them."""
    names = topic_names(kafka_prefix)
    await create_topics(kafka_cluster.bootstrap, kafka_prefix, 3, mirror=True)
    with pytest.raises(ConfigurationError, match="it is a mirror, and no worker may use it before `notary failover"):
        await until_ready(lambda: KafkaLog.open(kafka_cluster.bootstrap, kafka_prefix))
    assert (await create_topics(kafka_cluster.bootstrap, kafka_prefix, 2, mirror=True)).existed == names
    with pytest.raises(
        Fatal, match=f"has 3 payload partitions, wanted 4: add them: kafka-topics.sh --alter --topic {names[1]} --partitions 4"
    ):
        await create_topics(kafka_cluster.bootstrap, kafka_prefix, 4, mirror=True)


async def test_half_a_log_is_refused(kafka_cluster: Cluster, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One topic without the other is never completed silently: the other one's records may be lost.

    Nor if the broker that is asked first has not heard of the one.
    """
    ordering_topic, payload = topic_names(kafka_prefix)
    async with admin_of(kafka_cluster) as client:
        await client.create_topics([NewTopic(ordering_topic, 1, 3)])

    async def late(*arguments: Any) -> ClusterFacts:
        return msgspec.structs.replace(await describe_cluster(*arguments), topics={})

    for describe in (late, describe_cluster):
        monkeypatch.setattr(ordering.topics, "describe_cluster", describe)
        with pytest.raises(ConfigurationError, match=f"{ordering_topic} exists and {payload} does not"):
            await until_ready(lambda: create_topics(kafka_cluster.bootstrap, kafka_prefix))


async def test_wrong_settings_are_named(kafka_cluster: Cluster, kafka_prefix: str) -> None:
    """Each wrong setting gives a sentence with the topic, the value found, the value needed, and the command that changes it."""
    ordering, payload = topic_names(kafka_prefix)
    wrong = {
        "cleanup.policy": "compact",
        "retention.ms": "604800000",
        "retention.bytes": "1000",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "true",
        "compression.type": "gzip",
        "max.message.bytes": "1000000",
        "message.timestamp.type": "CreateTime",
    }
    async with admin_of(kafka_cluster) as client:
        await client.create_topics([NewTopic(name, 2, 3, topic_configs=wrong) for name in (ordering, payload)])
    # A broker that has not read the topics' records yet reports fewer problems.
    while len(problems := await until_ready(lambda: problems_of(kafka_cluster, kafka_prefix))) < 2 * len(wrong):
        pass
    for setting, value in wrong.items():
        assert any(f"Topic {ordering} has {setting}={value}, wanted " in problem for problem in problems)
    assert any(f"Topic {ordering} has 2 partitions, wanted 1" in problem for problem in problems)
    # The time of a payload does not matter, and the payload topic may have any number of partitions.
    assert len([problem for problem in problems if payload in problem]) == len(wrong) - 1
    assert len(problems) == 2 * len(wrong)
    assert any("--add-config min.insync.replicas=2" in problem for problem in problems)
    with pytest.raises(ConfigurationError, match=r"retention.ms=604800000, wanted -1"):
        await create_topics(kafka_cluster.bootstrap, kafka_prefix)
    with pytest.raises(ConfigurationError, match=r"cleanup.policy=compact, wanted delete"):
        await until_ready(lambda: KafkaLog.open(kafka_cluster.bootstrap, kafka_prefix))


async def test_a_mirror_with_another_wrong_setting_becomes_no_log(kafka_cluster: Cluster, kafka_prefix: str) -> None:
    """The switch of the time type names the setting that somebody has changed meanwhile. It does not report that the brokers are away."""
    await create_topics(kafka_cluster.bootstrap, kafka_prefix, 1, mirror=True)
    payload = topic_names(kafka_prefix)[1]
    async with admin_of(kafka_cluster) as client:
        await client._send_request(AlterSettingsRequest(ConfigResourceType.TOPIC, {payload: {"retention.ms": "604800000"}}))
    with pytest.raises(ConfigurationError, match=rf"{payload} has retention.ms=604800000, wanted -1"):
        async with asyncio.timeout(60):
            await use_append_times(kafka_cluster.bootstrap, kafka_prefix, timeout_ms=10_000)


@pytest.mark.parametrize(
    ("number", "setting", "value"), [(1, "message.timestamp.type", "LogAppendTime"), (0, "message.timestamp.after.max.ms", "3600000")]
)
async def test_topics_that_change_or_refuse_times_become_no_mirror(
    kafka_cluster: Cluster, kafka_prefix: str, number: int, setting: str, value: str
) -> None:
    """A record with another time is not found again in the log; one that is refused stops the copying."""
    await create_topics(kafka_cluster.bootstrap, kafka_prefix, 1, mirror=True)
    topic = topic_names(kafka_prefix)[number]
    async with admin_of(kafka_cluster) as client:
        await client._send_request(AlterSettingsRequest(ConfigResourceType.TOPIC, {topic: {setting: value}}))
    with pytest.raises(ConfigurationError, match=rf"{topic} has {setting}={value}, wanted "):
        await create_topics(kafka_cluster.bootstrap, kafka_prefix, 1, mirror=True)
    assert await uses_append_times(kafka_cluster.bootstrap, kafka_prefix, either=True) == (value == "LogAppendTime")
    assert not await uses_append_times(kafka_cluster.bootstrap, kafka_prefix)
    await use_append_times(kafka_cluster.bootstrap, kafka_prefix)
    await create_topics(kafka_cluster.bootstrap, kafka_prefix, 1)


async def test_the_error_for_a_wrong_prefix_says_so(kafka_cluster: Cluster, kafka_prefix: str) -> None:
    """`notary mirror` waits for the topics and logs this; `notary failover` ends with it."""
    with pytest.raises(NotReady, match=rf"know topic {kafka_prefix}.ordering yet, or it does not exist: then name the right brokers"):
        await uses_append_times(kafka_cluster.bootstrap, kafka_prefix)


@pytest.mark.parametrize(("time_ms", "is_taken"), [(4_000_000_000_000_000, True), (10**16, False), (-(10**16), False)])
async def test_a_mirror_takes_only_times_that_auditors_can_read(
    kafka_cluster: Cluster, kafka_prefix: str, time_ms: int, is_taken: bool
) -> None:
    """Spark reads a time in microseconds, in 64 bits. One unsigned record beyond that would end each audit, also after a failover."""
    await create_topics(kafka_cluster.bootstrap, kafka_prefix, 1, mirror=True)
    async with AIOKafkaProducer(bootstrap_servers=kafka_cluster.bootstrap) as producer:
        for topic in topic_names(kafka_prefix):
            sending = producer.send_and_wait(topic, b"of anybody", partition=0, timestamp_ms=time_ms)
            with contextlib.nullcontext() if is_taken else pytest.raises(KafkaError, match="InvalidTimestamp"):
                await sending


async def test_more_replicas_than_brokers_are_rejected(kafka_cluster: Cluster, kafka_prefix: str) -> None:
    """A request for more replicas than brokers fails, and the message has the requested number."""
    with pytest.raises(ConfigurationError, match="4 replicas cannot be created"):
        await create_topics(kafka_cluster.bootstrap, kafka_prefix, replication=4)


async def test_few_replicas_are_warned_of(lone_broker: Cluster, kafka_cluster: Cluster, kafka_prefix: str) -> None:
    """A single broker is accepted for a trial, and two replicas too, with a warning that explains the risk."""
    made = await until_ready(lambda: create_topics(lone_broker.bootstrap, kafka_prefix, 2))
    assert ["1 replicas instead of 3: the loss of a disk loses the log" in warning for warning in made.warnings] == [True, True]
    two = await create_topics(kafka_cluster.bootstrap, kafka_prefix, 2, replication=2)
    assert ["2 replicas instead of 3: no broker may be away" in warning for warning in two.warnings] == [True, True]
    assert [ordering.topics._insync_wanted(replicas) for replicas in (1, 2, 3)] == [1, 2, 2]
    assert await problems_of(lone_broker, kafka_prefix) == []


async def test_recreated_topics_are_another_log(kafka_cluster: Cluster, kafka_prefix: str) -> None:
    """A log keeps its identity, and topics that were deleted and created again are another log."""
    await create_topics(kafka_cluster.bootstrap, kafka_prefix, 1)
    identities = []
    for _ in range(2):
        log = await opened(kafka_cluster, kafka_prefix)
        identities.append(log.identity)
        await log.close()
    async with admin_of(kafka_cluster) as client:
        await client.delete_topics(list(topic_names(kafka_prefix)))

    async def create_again() -> None:
        made = await create_topics(kafka_cluster.bootstrap, kafka_prefix, 1)
        if made.existed:  # this broker does not know of the deletion yet
            raise NotReady("not deleted yet")

    while True:
        try:
            await until_ready(create_again)
            break
        except ConfigurationError:  # one is deleted, the other is not yet
            await asyncio.sleep(0.05)
    log = await opened(kafka_cluster, kafka_prefix)
    assert identities[0] == identities[1]
    differs = [one != other for one, other in zip(identities[0].split(":"), log.identity.split(":"), strict=True)]
    assert differs == [False, False, False, True, True], "each topic has another id"
    await log.close()


# Offsets


async def test_deleted_records_are_fatal(kafka_cluster: Cluster, kafka_prefix: str, make_log: MakeLog) -> None:
    """An offset before the log start offset is Fatal, with topic-partition and offset: the records were deleted, and are never skipped."""
    log = await make_log(kafka_cluster, 2)
    writer = await log.open_writer()
    for number in range(5):
        await writer.append(1, b"key", b"%d" % number)
    async with admin_of(kafka_cluster) as client:
        await client.delete_records({TopicPartition(topic_names(kafka_prefix)[1], 1): RecordsToDelete(before_offset=3)})
    log_offsets = await log.offsets()
    assert (log_offsets[1].log_start, log_offsets[1].log_end) == (3, 5)
    reader = await log.open_reader({1: 2})
    with pytest.raises(Fatal) as raised:
        await take(reader, 1)
    assert raised.value.code is FatalCode.INDEX_AHEAD_OF_LOG
    with pytest.raises(NotReady, match="open another"):
        await reader.poll(0)
    reader = await log.open_reader({1: 3})
    assert [record.offset for record in await take(reader, 2)] == [3, 4]


async def test_a_reader_that_failed_is_broken(kafka_cluster: Cluster, make_log: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader returns nothing more after an error, because aiokafka may have dropped records that it had fetched."""
    log = await make_log(kafka_cluster, 1)
    writer = await log.open_writer()
    await writer.append(0, b"key", b"value")
    send = AIOKafkaClient.send

    async def send_and_damage(client: AIOKafkaClient, node: int, request: Any, **how: Any) -> Any:
        response = await send(client, node, request, **how)
        if isinstance(request, FetchRequest):
            for _, parts in response.topics:
                parts[:] = [(*facts, (records or b"").replace(b"value", b"other")) for *facts, records in parts]
        return response

    with monkeypatch.context() as patch:
        patch.setattr(AIOKafkaClient, "send", send_and_damage)
        reader = await log.open_reader({})
        with pytest.raises(NotReady, match="Invalid CRC"):
            await take(reader, 1)
    with pytest.raises(NotReady, match=r"open another.*Invalid CRC"):
        await reader.poll(0)


async def test_a_reader_stands_behind_a_transactions_marker(kafka_cluster: Cluster, kafka_prefix: str, make_log: MakeLog) -> None:
    """A reader reaches the end of a topic-partition that ends with a transaction's marker, behind the last record."""
    log = await make_log(kafka_cluster, 2)
    reader = await log.open_reader({})
    producer = AIOKafkaProducer(bootstrap_servers=kafka_cluster.bootstrap, transactional_id=kafka_prefix)
    async with producer as mirror, mirror.transaction():
        await mirror.send_and_wait(topic_names(kafka_prefix)[1], b"value", b"key", partition=1)
        (record,) = await take(reader, 1)  # a transaction that never ends delays no reader
    while (await log.offsets())[1].log_end == record.offset + 1:
        await reader.poll(10)
    while reader.offset_next(1) < (await log.offsets())[1].log_end:
        assert await reader.poll(10) == []
    assert (record.offset, reader.offset_next(1)) == (0, 2)


async def test_append_time_is_the_brokers(kafka_cluster: Cluster, kafka_prefix: str, make_log: MakeLog) -> None:
    """The time of a record is the broker's append time, whatever time its writer set."""
    log = await make_log(kafka_cluster, 1)
    async with AIOKafkaProducer(bootstrap_servers=kafka_cluster.bootstrap) as producer:
        for time_ms in (1, 2**41):
            await producer.send_and_wait(topic_names(kafka_prefix)[0], b"entry", partition=0, timestamp_ms=time_ms)
    reader = await log.open_reader({})
    first, second = await take(reader, 2)
    assert 1 < first.append_time_ms <= second.append_time_ms < 2**41


async def test_the_first_connections_have_the_time_of_an_open(lone_broker: Cluster, kafka_prefix: str) -> None:
    """Opening a log has more time for its first connections than later requests have, so it succeeds on a slow machine."""
    await until_ready(lambda: create_topics(lone_broker.bootstrap, kafka_prefix, 2))
    log = await KafkaLog.open(lone_broker.bootstrap, kafka_prefix, timeouts=msgspec.structs.replace(QUICK, open_ms=30_000, offsets_ms=1))
    await log.close()


# Brokers that are down


@pytest.mark.parametrize(
    ("leave", "come_back"),
    [pytest.param("kill", "start", id="killed", marks=pytest.mark.nightly), pytest.param("pause", "resume", id="silent")],
)
async def test_broker_away_and_back(lone_broker: Cluster, kafka_prefix: str, make_log: MakeLog, leave: str, come_back: str) -> None:
    """While no broker answers, every call fails within its time limit; afterwards the same log and reader continue."""
    log = await make_log(lone_broker, 2)
    writer, reader = await log.open_writer(), await log.open_reader({})
    await writer.append(ORDERING, None, b"before")
    assert [record.value for record in await take(reader, 1)] == [b"before"]
    try:
        await asyncio.to_thread(getattr(lone_broker, leave), 1)
        log._timeouts = writer._timeouts = QUICK
        await log._drop_watcher()
        with pytest.raises(NotReady, match="log end offsets"):
            await log.offsets()
        with pytest.raises(OutcomeUnknown, match="within 1500 ms"):
            await writer.append(ORDERING, None, b"while")
        with pytest.raises(OutcomeUnknown, match="open another"):
            await writer.append(0, b"key", b"broken")
        for call in (log.offsets, log.open_writer, lambda: log.open_reader({})):
            with pytest.raises(NotReady):
                await call()
        with pytest.raises(NotReady):
            await KafkaLog.open(lone_broker.bootstrap, kafka_prefix, timeouts=QUICK)
        assert await reader.poll(1) == []
        await writer.close()
    finally:
        await asyncio.to_thread(getattr(lone_broker, come_back), 1)
        await asyncio.to_thread(lone_broker.wait_until_serving)
    log._timeouts = LONG_TIMEOUTS
    await until_ready(log.offsets)
    writer = await until_ready(log.open_writer)
    await writer.append(ORDERING, None, b"after")
    values: list[bytes | None] = []
    while b"after" not in values:
        values += [record.value for record in await reader.poll(60_000)]
    # These appends may have arrived; their outcome is unknown, so they are not sent again.
    assert values in ([b"after"], [b"while", b"after"])


async def test_close_does_not_wait_for_brokers(lone_broker: Cluster, make_log: MakeLog) -> None:
    """Closing a writer fails the appends in flight at once, even if their time is not over and the broker is silent."""
    log = await make_log(lone_broker, 2, KafkaTimeouts(append_ms=3_600_000, close_ms=500))
    writer, reader = await log.open_writer(), await log.open_reader({})
    await asyncio.to_thread(lone_broker.pause, 1)
    try:
        appends = [asyncio.create_task(writer.append(number % 2, b"key", bytes(500_000))) for number in range(20)]
        await asyncio.sleep(0)
        await writer.close()
        assert {type(outcome) for outcome in await asyncio.gather(*appends, return_exceptions=True)} == {OutcomeUnknown}
        await reader.close()
        await log.close()
    finally:
        await asyncio.to_thread(lone_broker.resume, 1)
        await asyncio.to_thread(lone_broker.wait_until_serving)


async def appending(log: Log, acknowledged: list[int], enough: asyncio.Event) -> None:
    """Append numbers to the ordering topic until stopped, with a new writer after each failure."""
    number = 0
    while not enough.is_set():
        writer = await until_ready(log.open_writer)
        try:
            while not enough.is_set():
                number += 1
                await writer.append(ORDERING, None, b"%d" % number)
                acknowledged.append(number)
        except OutcomeUnknown:
            pass
        finally:
            await writer.close()


@pytest.mark.nightly
async def test_appends_recover_after_the_leader_dies(kafka_cluster: Cluster, kafka_prefix: str, make_log: MakeLog) -> None:
    """Appends and reads recover by themselves after the ordering leader dies; no acknowledged record is lost or out of order."""
    log = await make_log(kafka_cluster, 2)
    reader = await log.open_reader({})
    async with admin_of(kafka_cluster) as client:
        (topic,) = await client.describe_topics([topic_names(kafka_prefix)[0]])
    leader = topic["partitions"][0]["leader"]
    acknowledged: list[int] = []
    enough = asyncio.Event()
    work = asyncio.create_task(appending(log, acknowledged, enough))
    try:
        records = await take(reader, 20)
        await asyncio.to_thread(kafka_cluster.kill, leader)
        before = len(acknowledged)
        while len(acknowledged) < before + 50:
            records += await reader.poll(100)
        enough.set()
        await work
        end = (await until_ready(log.offsets))[ORDERING].log_end
        while len(records) < end:
            records += await reader.poll(60_000)
    finally:
        enough.set()
        await asyncio.gather(work, return_exceptions=True)
        await asyncio.to_thread(kafka_cluster.start, leader)
        await asyncio.to_thread(kafka_cluster.wait_until_serving)
    assert [record.offset for record in records] == list(range(end))
    seen = [int(record.value or b"") for record in records]
    assert seen == sorted(set(seen))
    assert set(acknowledged) <= set(seen)


async def test_former_leader_is_not_waited_for(kafka_cluster: Cluster, kafka_prefix: str, make_log: MakeLog) -> None:
    """Requests to a leader that froze are sent to its successor once there is one, long before their timeout."""
    log = await make_log(kafka_cluster, 2, KafkaTimeouts(request_ms=3_600_000, append_ms=3_600_000))
    writer = await log.open_writer()
    await writer.append(ORDERING, None, b"before")
    async with admin_of(kafka_cluster) as client:
        (topic,) = await client.describe_topics([topic_names(kafka_prefix)[0]])
    leader = topic["partitions"][0]["leader"]
    await asyncio.to_thread(kafka_cluster.pause, leader)
    try:
        # A client that waited for the former leader would wait for an hour.
        await asyncio.gather(*(writer.append(ORDERING, None, b"%d" % number) for number in range(5)))
    finally:
        await asyncio.to_thread(kafka_cluster.resume, leader)
        await asyncio.to_thread(kafka_cluster.wait_until_serving)
    reader = await log.open_reader({})
    assert [record.value for record in await take(reader, 6)] == [b"before", *(b"%d" % number for number in range(5))]


async def test_a_long_backlog_arrives_over_a_slow_line(lone_broker: Cluster, make_log: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that took too long is repeated with fewer bytes, also by the reader that replaces the failed one."""
    log = await make_log(lone_broker, 1)
    writer = await log.open_writer()
    records = [Record(0, number, 0, b"key", bytes(100_000)) for number in range(50)]
    await writer.copy(0, records, 0)
    send, timed_out = AIOKafkaClient.send, 0

    async def send_slowly(client: AIOKafkaClient, node: int, request: Any, **how: Any) -> Any:
        nonlocal timed_out
        response = await send(client, node, request, **how)
        if isinstance(request, FetchRequest) and sum(len(part[-1] or b"") for _, parts in response.topics for part in parts) > 1_500_000:
            timed_out += 1
            raise RequestTimedOutError
        return response

    with monkeypatch.context() as slow:
        slow.setattr(AIOKafkaClient, "send", send_slowly)
        for _ in range(2):
            reader = await log.open_reader({})
            async with asyncio.timeout(30):
                assert len(await take(reader, len(records))) == len(records)
            await reader.close()
    assert 0 < timed_out < 6


@pytest.mark.parametrize("bytes_per_s", [100_000, 1_000_000, 100_000_000])
def test_a_steady_slow_line_does_not_interrupt_reading_again_and_again(bytes_per_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fetch that fails interrupts reading (R10). After an interruption a mirror reads more than is fetched between two of them.

    The other brokers have no more records of the backlog, and so answer quickly.
    """
    loop, timed_out, now_s = asyncio.SelectorEventLoop(), 0, 0.0
    client: Any = SimpleNamespace()
    monkeypatch.setattr(loop, "time", lambda: now_s)

    async def fetch(node: int) -> None:
        await client.send(node, FetchRequest(1, 1, FETCH_BROKER_BYTES_MAX, 0, []))

    async def send(node: int, request: Any) -> None:
        nonlocal now_s
        assert request._max_bytes <= FETCH_BROKER_BYTES_MAX
        takes_s = 0.1 if node else request._max_bytes / bytes_per_s
        ends_s = now_s + min(takes_s, 5)
        while not node and now_s < ends_s:
            await fetch(1)
        now_s = ends_s
        if takes_s > 5:
            raise RequestTimedOutError

    async def read() -> None:
        nonlocal timed_out
        client.send = send
        FetchSize().adapt(client, 5)
        for _ in range(200):
            try:
                await fetch(0)
            except RequestTimedOutError:
                timed_out += 1

    loop.run_until_complete(read())
    loop.close()
    assert timed_out <= 6, "once for each halving"


# Security settings


@pytest.mark.parametrize(
    ("security", "why"),
    [
        (KafkaSecurity(protocol="TLS"), "'TLS': use PLAINTEXT"),
        (KafkaSecurity(protocol="SSL", ca_file="/nowhere/ca.pem"), "/nowhere/ca.pem.*cannot be used"),
        (KafkaSecurity(protocol="SASL_PLAINTEXT"), "needs a SASL user and a password"),
        (KafkaSecurity(protocol="SASL_SSL", sasl_mechanism="GSSAPI"), "'GSSAPI': use PLAIN"),
    ],
)
def test_unusable_security_is_rejected_before_connecting(security: KafkaSecurity, why: str) -> None:
    """Unusable settings are rejected before any connection."""
    with pytest.raises(ConfigurationError, match=why):
        security.settings()


def test_security_settings_reach_the_client_library() -> None:
    """SASL credentials, and TLS with the system's authorities, are passed to aiokafka under its own names."""
    settings = KafkaSecurity(protocol="SASL_SSL", sasl_user="notary", sasl_password="secret").settings()
    assert settings.pop("ssl_context").check_hostname
    assert settings == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "notary",
        "sasl_plain_password": "secret",
    }
