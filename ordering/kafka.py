"""`KafkaLog`: topics of a Kafka cluster, replicated; production runs on it.

It trusts the cluster to keep records that it acknowledged with `acks=all` (`topics.py` has the settings for that), and to order each
partition. It trusts aiokafka for the protocol, but not for its behaviour without brokers: every call here has a deadline, closing never
waits for a broker, and a writer or reader that failed once is replaced.

| behaviour of aiokafka 0.14 | remedy here |
|---|---|
| an idempotent send is retried for ever | `append` has a deadline; after it the outcome is unknown, and the writer is broken |
| sends that wait for space in a batch may be reordered | one send per topic-partition at a time, first come first served |
| a send to a partition that its metadata lacks fails an assertion | `endings.Producer.wait_until_known` |
| `stop` waits until everything is sent | `endings.Producer.abandon` cancels instead |
| an error in one partition drops records already fetched from others | a reader that failed is broken |
| its fetching task may end silently | checked at each empty poll |
| a resumed partition waits for the end of its broker's fetch in flight | `fetch_max_wait_ms` is short |
| discovering leaders takes long when brokers are cut off | `leadership.Leadership` replaces that part |
| a fetch that took too long is repeated with the same size | `FetchSize` makes it smaller |
| every fetch, and its response, names all partitions | `fetch_sessions.FetchSessions` names those that have moved |
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, RequestTimedOutError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.fetch import FetchRequest

from ordering.batches import WithoutHeaders
from ordering.certificates import connection_error_text, shake_hands
from ordering.connection import KafkaSecurity, admin, client_settings, describe_cluster
from ordering.endings import Producer, stop_consumer
from ordering.errors import ConfigurationError, NotReady, OutcomeUnknown, OutOfRange, error_text
from ordering.fetch_sessions import FetchSessions
from ordering.interruptions import Interruptions
from ordering.leadership import Leadership
from ordering.local_reader import POLL_RECORDS_MAX, check_partitions
from ordering.log import ORDERING, BrokerSeen, Leader, LogOffsets, Record, describe
from ordering.settings import LogSettings
from ordering.topics import EITHER_TIMES, LOG_TIMES, MESSAGE_BYTES_MAX, inspect, topic_names

BATCH_BYTES_MAX: Final = 1024 * 1024
FETCH_PARTITION_BYTES_MAX: Final = 4 * 1024 * 1024
FETCH_BROKER_BYTES_MAX: Final = 16 * 1024 * 1024
FETCH_BROKER_BYTES_MIN: Final = 256 * 1024
FETCH_GROWS_BYTES: Final = 64 * 1024


class KafkaTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines and wait times, in milliseconds."""

    open_ms: int = 10_000
    """The deadline for connecting and checking the topics, for the log, a writer or a reader."""
    topics_ms: int = 3_000
    """The time for which a topic may be unknown before it counts as missing. Less than `open_ms`.

    Brokers learn of a new topic at different times.
    """
    append_ms: int = LogSettings().append_timeout_ms
    offsets_ms: int = 3_000
    """The deadline of `offsets`."""
    request_ms: int = 5_000
    """The deadline of a request to a broker: a fetch may return much data over a slow line."""
    connect_ms: int = 1_500
    """The deadline of each connection step, and of a broker's reply to Metadata. It allows for one lost first packet."""
    fetch_wait_ms: int = 100
    """The time for which an idle broker holds a fetch (`fetch_max_wait_ms`)."""
    close_ms: int = 2_000
    """The deadline of each step of closing a client, after which the step is cancelled."""


class FetchSize:
    """The bytes that a reader requests from each broker in one fetch. A timeout halves this size, and each quick fetch increases it a bit.

    Otherwise a reader over a slow line would never get a long backlog: every fetch would have the same size and time out. The size stops
    growing long before fetches time out, since each failed fetch interrupts reading (R10). A broker that has no backlog answers quickly,
    which says nothing about the others.
    """

    def __init__(self) -> None:
        self._sizes: defaultdict[int, int] = defaultdict(lambda: FETCH_BROKER_BYTES_MAX)

    def adapt(self, client: AIOKafkaClient, timeout_s: float) -> None:
        """Apply these sizes to the fetches of a client. All readers of a log share the sizes: a failed one is replaced.

        `timeout_s`: the deadline of a fetch. One that took half of it or more does not make the size grow.
        """
        send, sizes, now_s = client.send, self._sizes, asyncio.get_running_loop().time

        async def send_and_adapt(node: int, request: Any, **how: Any) -> Any:
            if not isinstance(request, FetchRequest):
                return await send(node, request, **how)
            request._max_bytes = sizes[node]
            began_s = now_s()
            try:
                response = await send(node, request, **how)
                if now_s() - began_s < timeout_s / 2:
                    sizes[node] = min(sizes[node] + FETCH_GROWS_BYTES, FETCH_BROKER_BYTES_MAX)
            except RequestTimedOutError:
                sizes[node] = max(sizes[node] // 2, FETCH_BROKER_BYTES_MIN)
                raise
            return response

        client.send = send_and_adapt


class KafkaLog:
    """A `Log` in two topics of a Kafka cluster. The topics are created by `ordering.topics.create_topics`, the log is opened by `open`."""

    def __init__(
        self,
        settings: dict[str, Any],
        security: KafkaSecurity | None,
        prefix: str,
        payload_partitions: int,
        identity: str,
        timeouts: KafkaTimeouts,
    ) -> None:
        """Called by `open` only."""
        self._security = security
        self._settings = settings
        self._timeouts = timeouts
        self._fetch_size = FetchSize()
        self._identity = identity
        self.payload_topic_id = ""
        """Set by `open`. No other topic, of this or another cluster, has the same."""
        ordering, payload = topic_names(prefix)
        self._partitions = {ORDERING: TopicPartition(ordering, 0)}
        self._partitions |= {number: TopicPartition(payload, number) for number in range(payload_partitions)}
        # The watcher is a consumer that requests offsets and knows the leaders. It is created on demand, and again after each failure.
        self._watcher: AIOKafkaConsumer | None = None
        self._watching = asyncio.Lock()
        self._leaders: dict[int, Leader] = {}
        self._leaders_in: object = None
        """The metadata that has these leaders: aiokafka replaces this object by each reply."""
        self._brokers: dict[int, BrokerSeen] = {}
        self._certificate_ends_s: dict[int, float] = {}
        self._prefix = prefix
        self._closed = False

    @classmethod
    async def open(
        cls,
        bootstrap: str,
        topic_prefix: str,
        *,
        client_id: str = "notary",
        security: KafkaSecurity | None = None,
        timeouts: KafkaTimeouts | None = None,
        mirror: bool = False,
    ) -> "KafkaLog":
        """Connect to existing topics and check them; `bootstrap` is `host:port,host:port`. `mirror`: they may be a mirror's.

        Raises `ConfigurationError` when they are missing or wrong, `NotReady` when the brokers cannot be reached: call again.
        """
        timeouts = timeouts or KafkaTimeouts()
        names = topic_names(topic_prefix)
        async with admin(bootstrap, client_id, security, timeouts.open_ms) as client:
            facts, problems = await inspect(client, topic_prefix, timeouts.topics_ms, times=EITHER_TIMES if mirror else LOG_TIMES)
        if problems:
            raise ConfigurationError(" ".join(problems))
        ordering, payload = (facts.topics[name] for name in names)
        # A topic gets its id at its creation, so a topic that was deleted and created again is another log.
        identity = f"kafka:{facts.cluster_id}:{topic_prefix}:{ordering.topic_id}:{payload.topic_id}"
        settings = client_settings(bootstrap, client_id, security)
        log = cls(settings, security, topic_prefix, len(payload.replicas), identity, timeouts)
        log.payload_topic_id = payload.topic_id
        # The first connections take longer than later requests, with TLS and on a busy machine, so use the longer deadline here.
        await log._offsets_within(timeouts.open_ms)
        return log

    @property
    def payload_partitions(self) -> int:
        """The number of partitions of the payload topic when it was last described."""
        return len(self._partitions) - 1

    async def has_partitions(self, count: int) -> None:
        """Describe the payload topic again if fewer than `count` partitions are known. Raises `NotReady` when there are fewer."""
        if self.payload_partitions < count:
            bootstrap, client_id = self._settings["bootstrap_servers"], self._settings["client_id"]
            async with admin(bootstrap, client_id, self._security, self._timeouts.open_ms) as client:
                facts = await describe_cluster(client, list(topic_names(self._prefix)))
            topic = topic_names(self._prefix)[1]
            found = len(facts.topics[topic].replicas) if topic in facts.topics else 0
            self._partitions |= {number: TopicPartition(topic, number) for number in range(self.payload_partitions, found)}
            async with self._watching:
                await self._drop_watcher()
            # The first answer of a new watcher leaves out partitions whose leaders the former one did not know.
            await self._offsets_within(self._timeouts.open_ms)
        check_partitions(f"topic {topic_names(self._prefix)[1]}", self.payload_partitions, count)

    @property
    def identity(self) -> str:
        """The cluster's id, the prefix and the ids of both topics."""
        return self._identity

    async def open_writer(self) -> "KafkaWriter":
        """Returns a writer with a new idempotent producer. Raises `NotReady`."""
        self._check_open()
        producer = Producer(
            self._timeouts.connect_ms,
            **self._settings,
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            max_batch_size=BATCH_BYTES_MAX,
            # A record may fill a message; Kafka's overhead is added to it.
            max_request_size=MESSAGE_BYTES_MAX,
            request_timeout_ms=self._timeouts.request_ms,
        )
        try:
            async with asyncio.timeout(self._timeouts.open_ms / 1000):
                await producer.start()
                for topic in {partition.topic for partition in self._partitions.values()}:
                    await producer.partitions_for(topic)
        except (KafkaError, TimeoutError) as problem:
            await producer.abandon(self._timeouts.close_ms / 1000)
            raise NotReady(f"a Kafka producer cannot be opened now: {await connection_error_text(problem, self._settings)}") from problem
        except BaseException:
            await producer.abandon(self._timeouts.close_ms / 1000)
            raise
        return KafkaWriter(producer, self._partitions, self._timeouts)

    async def open_reader(self, offsets_next: Mapping[int, int]) -> "KafkaReader":
        """Returns a reader with a new consumer, without a group. Raises `NotReady`, `ConfigurationError` for an unknown partition."""
        self._check_open()
        if unknown := offsets_next.keys() - self._partitions.keys():
            raise ConfigurationError(f"this log has no payload partition {min(unknown)}: it has {self.payload_partitions} of them")
        consumer = self._consumer(self._timeouts.request_ms)
        FetchSessions(consumer._client)
        interruptions, batches = Interruptions(consumer._client), WithoutHeaders(consumer._client)
        self._fetch_size.adapt(consumer._client, self._timeouts.request_ms / 1000)
        try:
            async with asyncio.timeout(self._timeouts.open_ms / 1000):
                await consumer.start()
        except (KafkaError, TimeoutError) as problem:
            await stop_consumer(consumer, self._timeouts.close_ms / 1000)
            raise NotReady(f"a Kafka consumer cannot be opened now: {await connection_error_text(problem, self._settings)}") from problem
        except BaseException:
            await stop_consumer(consumer, self._timeouts.close_ms / 1000)
            raise
        consumer.assign(list(self._partitions.values()))
        # No await since `assign`: the fetcher finds a position for every partition, and never requests a committed one.
        for partition, topic_partition in self._partitions.items():
            consumer.seek(topic_partition, offsets_next.get(partition, 0))
        return KafkaReader(consumer, interruptions, batches, dict(self._partitions), self._timeouts)

    async def offsets(self) -> Mapping[int, LogOffsets]:
        """Returns each partition's log start offset and high watermark now, from its leader. Raises `NotReady` within `offsets_ms`.

        If no TLS connection to a broker succeeds, it may take two seconds more, to find out the reason.

        A payload partition that has no leader, according to the cluster, is left out, so that the others remain usable.
        """
        return await self._offsets_within(self._timeouts.offsets_ms)

    async def _offsets_within(self, limit_ms: int) -> Mapping[int, LogOffsets]:
        self._check_open()
        try:
            async with asyncio.timeout(limit_ms / 1000), self._watching:  # the wait for other calls counts too
                return await self._watched_offsets(limit_ms)
        except (KafkaError, TimeoutError) as problem:
            why = await connection_error_text(problem, self._settings)
            raise NotReady(f"Kafka does not return the log end offsets: {why}") from problem

    async def _watched_offsets(self, limit_ms: int) -> Mapping[int, LogOffsets]:
        try:
            if self._watcher is None:
                # Several brokers may have to be tried within the deadline, so one may take a third of it.
                self._watcher = self._consumer(max(limit_ms // 3, 1))
                await self._watcher.start()
            # A watcher that has not described the topics yet knows no leader: then all partitions are requested.
            led = {ORDERING, *(self.leaders() or self._partitions)}
            requested = {partition: topic_partition for partition, topic_partition in self._partitions.items() if partition in led}
            partitions = list(requested.values())
            firsts = await self._watcher.beginning_offsets(partitions)
            ends = await self._watcher.end_offsets(partitions)
        except BaseException:
            await self._drop_watcher()
            raise
        return {partition: LogOffsets(firsts[topic_partition], ends[topic_partition]) for partition, topic_partition in requested.items()}

    def leaders(self) -> Mapping[int, Leader]:
        """Returns the payload partitions that have a leader, each with its leader; at most a few seconds old.

        While no broker can be reached, the result is the last one; then `offsets` raises `NotReady`.
        """
        if self._watcher is None or (cluster := self._watcher._client.cluster)._partitions is self._leaders_in or not cluster.topics():
            return self._leaders
        self._leaders, self._leaders_in = {}, cluster._partitions
        of_ordering = cluster.leader_for_partition(self._partitions[ORDERING])
        for partition, topic_partition in self._partitions.items():
            node = cluster.leader_for_partition(topic_partition)
            if partition != ORDERING and node is not None and node != -1:
                broker = cluster.broker_metadata(node)
                self._leaders[partition] = Leader(broker.rack if broker is not None else None, node == of_ordering)
        return self._leaders

    def brokers(self) -> Mapping[int, BrokerSeen]:
        """Returns the brokers that the cluster lists or that have a replica of the log, by node id; at most a few seconds old.

        While no broker can be reached, the result is the last one, with `connected` false. It is empty before the first metadata arrived.
        """
        if self._watcher is None or not (cluster := self._watcher._client.cluster).topics():
            return {node: msgspec.structs.replace(seen, connected=False) for node, seen in self._brokers.items()}
        partitions = [cluster._partitions.get(each.topic, {}).get(each.partition) for each in self._partitions.values()]
        known = [partition for partition in partitions if partition is not None]
        nodes = {broker.nodeId for broker in cluster.brokers() if not cluster.is_bootstrap(broker.nodeId)}
        connected = {node for (node, _), connection in self._watcher._client._conns.items() if connection.connected()}
        self._brokers = {
            node: BrokerSeen(
                connected=node in connected,
                leads=sum(partition.leader == node for partition in known),
                in_sync=sum(node in partition.isr for partition in known),
                replicas=sum(node in partition.replicas for partition in known),
                certificate_ends_s=self._certificate_ends_s.get(node),
            )
            for node in sorted(nodes.union(*[partition.replicas for partition in known]))
        }
        return self._brokers

    async def see_certificates(self) -> None:
        """Make a TLS handshake with each known broker, to read the expiry of its certificate for `brokers`.

        If a handshake fails, the earlier value stays. Without TLS this does nothing.
        """
        context = self._settings.get("ssl_context")
        if context is None or self._watcher is None:
            return
        cluster = self._watcher._client.cluster
        known = [broker for broker in cluster.brokers() if not cluster.is_bootstrap(broker.nodeId)]
        seen = await asyncio.gather(*[shake_hands(broker.host, broker.port, context) for broker in known])
        self._certificate_ends_s |= {
            broker.nodeId: handshake.certificate_ends_s
            for broker, handshake in zip(known, seen, strict=True)
            if handshake.certificate_ends_s is not None
        }

    async def close(self) -> None:
        """Close the log's own client; writers and readers are closed by the code that opened them."""
        self._closed = True
        async with self._watching:
            await self._drop_watcher()

    def _check_open(self) -> None:
        if self._closed:
            raise NotReady(f"the log {self._identity} is closed: open it again")

    async def _drop_watcher(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            await stop_consumer(watcher, self._timeouts.close_ms / 1000)

    def _consumer(self, request_timeout_ms: int) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            **self._settings,
            group_id=None,
            enable_auto_commit=False,
            # A missing offset must stop the worker. To resume silently at another offset would fork the notary.
            auto_offset_reset="none",
            check_crcs=True,
            fetch_min_bytes=1,
            fetch_max_wait_ms=self._timeouts.fetch_wait_ms,
            fetch_max_bytes=FETCH_BROKER_BYTES_MAX,
            max_partition_fetch_bytes=FETCH_PARTITION_BYTES_MAX,
            max_poll_records=POLL_RECORDS_MAX,
            request_timeout_ms=request_timeout_ms,
            isolation_level="read_uncommitted",
        )
        Leadership(consumer._client, self._timeouts.connect_ms)
        return consumer


class KafkaWriter:
    """A `Writer`: one idempotent producer, with one producer id and one sequence per partition."""

    def __init__(self, producer: Producer, partitions: Mapping[int, TopicPartition], timeouts: KafkaTimeouts) -> None:
        self._producer = producer
        self._partitions = partitions
        self._timeouts = timeouts
        self._send_locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._deadlines: set[asyncio.Timeout] = set()
        self._broken: str | None = None
        self._closed = False

    async def append(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Append a record. Returns when all in-sync replicas have it. Raises `OutcomeUnknown` for any failure, and on every later call.

        A record whose append timed out may still be sent until `close`. A cancelled append leaves the writer usable.
        """
        assert key is not None or value is not None, "a record has a key or a value"
        self._check()
        topic_partition = self._partitions.get(partition)
        if topic_partition is None:
            raise ConfigurationError(f"this log has no {describe(partition)}: it has {len(self._partitions) - 1} payload partitions")
        await self._deliver(partition, lambda: self._producer.send(topic_partition.topic, value, key, topic_partition.partition))

    async def copy(self, partition: int, records: Sequence[Record], offset: int) -> int:
        """Append records of another log with their times, in order; the first one must get this offset. Returns the offset after the last.

        Raises `OutcomeUnknown` for any failure, as `append`, also if another process has appended a record meanwhile. Raises
        `ConfigurationError` if the records got an earlier offset: then those before them are gone.
        """
        self._check()
        topic, at = self._partitions[partition], 0
        while at < len(records):
            batch, first = self._producer.create_batch(), at
            while at < len(records) and self._add(batch, records[at]):
                at += 1
            batch.close()
            assert at > first, "a batch may have one record of any size"
            metadata = await self._deliver(partition, partial(self._producer.send_batch, batch, topic.topic, partition=topic.partition))
            if metadata.offset != offset:
                self._break(
                    f"{describe(partition)} acknowledged a copy at offset {metadata.offset}, expected {offset}: another process appended a"
                    " record, or an append was repeated"
                )
                if 0 <= metadata.offset < offset:  # brokers that refuse a repetition return -1
                    raise ConfigurationError(
                        f"{describe(partition)} of the mirror ended at offset {metadata.offset}, expected {offset}: it lost records or was"
                        " created again, and later ones are in their place. A failover to it would forget decisions. Make the mirror anew"
                        " (docs/runbook.md, 'Failover to a mirror')"
                    )
                self._check()
            offset += at - first
        return offset

    @staticmethod
    def _add(batch: BatchBuilder, record: Record) -> bool:
        return batch.append(timestamp=record.append_time_ms, key=record.key, value=record.value) is not None

    async def _deliver(self, partition: int, send: Callable[[], Awaitable["asyncio.Future[Any]"]]) -> Any:
        """Returns what the brokers acknowledged. One call of `send` at a time for each topic-partition, first come, first served."""
        deadline = asyncio.timeout(self._timeouts.append_ms / 1000)
        self._deadlines.add(deadline)
        try:
            async with deadline:
                async with self._send_locks[partition]:
                    await self._producer.wait_until_known(self._partitions[partition])
                    self._check()
                    delivery = await send()
                    # A cancelled or timed-out caller never retrieves the result; retrieve it, so that asyncio does not log it.
                    delivery.add_done_callback(lambda done: done.cancelled() or done.exception())
                return await delivery
        except TimeoutError as problem:
            # After a crash, a close or the loss of a broker from here on, the record may be in the log, or not, or may still arrive.
            self._break(f"{describe(partition)} did not acknowledge within {self._timeouts.append_ms} ms")
            raise OutcomeUnknown(str(self._broken)) from problem
        except KafkaError as problem:
            self._break(f"{describe(partition)} answered {error_text(problem)}")
            raise OutcomeUnknown(str(self._broken)) from problem
        finally:
            self._deadlines.discard(deadline)

    async def close(self) -> None:
        """Fail what is in flight with `OutcomeUnknown`, send no more, disconnect; takes `close_ms` at most."""
        if self._closed:
            return
        self._closed = True
        self._break("it was closed")
        now = asyncio.get_running_loop().time()
        try:
            for deadline in self._deadlines:
                # An expired timeout cannot be rescheduled; its append is cancelled in the loop's next iteration.
                if not deadline.expired():
                    deadline.reschedule(now)
        finally:
            await self._producer.abandon(self._timeouts.close_ms / 1000)

    def _check(self) -> None:
        if self._broken is not None:
            raise OutcomeUnknown(f"this writer cannot be used any more, open another: {self._broken}")

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken = why


class KafkaReader:
    """A `Reader`: one consumer with all partitions assigned, always fetching from the leaders."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        interruptions: Interruptions,
        batches: WithoutHeaders,
        partitions: Mapping[int, TopicPartition],
        timeouts: KafkaTimeouts,
    ) -> None:
        self._consumer = consumer
        self._interruptions = interruptions
        self._batches = batches
        self._partitions = partitions
        self._numbers = {topic_partition: partition for partition, topic_partition in partitions.items()}
        self._timeouts = timeouts
        self._paused: frozenset[TopicPartition] = frozenset()
        self._broken: str | None = None

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Returns records as soon as a broker has any. While brokers are unreachable it returns an empty list, not an error.

        Raises `OutOfRange` for an offset that the log does not have, and `NotReady` for any other failure. Then open another reader at the
        offsets reached so far, since this one may have lost fetched records.
        """
        if self._broken is not None:
            raise NotReady(f"this reader cannot be used any more, open another: {self._broken}")
        try:
            fetched = await self._consumer.getmany(timeout_ms=timeout_ms)
        except OffsetOutOfRangeError as problem:
            self._broken = error_text(problem)
            raise OutOfRange(self._out_of_range(problem)) from problem
        except KafkaError as problem:
            self._broken = error_text(problem)
            raise NotReady(f"reading from Kafka failed: {self._broken}") from problem
        if self._batches.unreadable is not None:
            topic, number, why = self._batches.unreadable
            self._broken = f"{topic} partition {number}: {why}. See docs/runbook.md, 'A batch is compressed'"
            raise NotReady(f"reading from Kafka failed: {self._broken}")
        if not fetched and self._consumer._fetcher.error_future.done() and self._broken is None:
            self._broken = "its fetching task ended"
            raise NotReady(f"reading from Kafka failed: {self._broken}")
        return [
            Record(partition, record.offset, record.timestamp, record.key, record.value)
            for topic_partition, records in fetched.items()
            for partition in (self._numbers[topic_partition],)
            for record in records
        ]

    def offset_next(self, partition: int) -> int:
        """Returns the consumer's position, which also passes transaction markers.

        We use no transactions; a mirror with exactly-once, or another writer, may.
        """
        assignment = self._consumer._subscription.subscription.assignment
        return int(assignment.state_value(self._partitions[partition]).position)

    @property
    def interruptions(self) -> int:
        """Counts the fetches of a topic-partition that came after a possible change of its leader or connection (R10)."""
        return self._interruptions.count

    def pause(self, partitions: Collection[int]) -> None:
        """Pause exactly these partitions. Records fetched from them and not yet returned are dropped, and fetched again later."""
        # The log may have more partitions now than when this reader was opened.
        paused = frozenset([self._partitions[partition] for partition in partitions if partition in self._partitions])
        self._consumer.pause(*(paused - self._paused))
        self._consumer.resume(*(self._paused - paused))
        self._paused = paused

    async def close(self) -> None:
        """Close the consumer; a waiting poll returns nothing. Takes a few times `close_ms` at most."""
        self._broken = "it was closed"
        await stop_consumer(self._consumer, self._timeouts.close_ms / 1000)

    def _out_of_range(self, problem: OffsetOutOfRangeError) -> str:
        (found,) = problem.args
        offsets = ", ".join(f"{describe(self._numbers[each])} ({each.topic}) at offset {offset}" for each, offset in found.items())
        return (
            f"Kafka has no records at these offsets: {offsets}. They were deleted, or the log was truncated, or it is another log. "
            "If `notary trim` freed them, move this index away and restore a snapshot (`[snapshots] url`; `notary snapshot restore`), or "
            "read an archive. Otherwise do not skip offsets: compare with the other workers, then rebuild this index or restore the log"
        )
