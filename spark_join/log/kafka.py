"""Kafka's Java admin client in Spark's JVM: topics, their settings, and their offsets.

Its connection properties are those of Kafka's own tools (`security.protocol`, `ssl.truststore.location`, …). Records are read
(`reading`) between offsets that are fixed before the first record is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from deploy.local.jars import SPARK, fetch_jars
from deploy.local.java import find_java
from spark_join.engine.session import cause
from spark_join.errors import CouldNotVerify
from spark_join.log import TopicPartition

API_MS_MAX: Final = 30_000
"""Deadline of one call to the cluster, with all its retries."""
REQUEST_MS_MAX: Final = 10_000

_ADMIN = "org.apache.kafka.clients.admin"
_UNKNOWN_TOPIC = "UnknownTopicOrPartitionException"
TASK_RECORDS_MAX: Final = 100_000
"""The most records that one task reads. The ordering topic is one partition; without a limit one core would read and write all of it."""


class Kafka(msgspec.Struct, frozen=True):
    """A cluster, and the prefix of a notary's topics in it."""

    bootstrap: str
    prefix: str
    properties: Mapping[str, str]
    """Connection properties, by the names of Kafka's Java clients."""

    @property
    def ordering(self) -> str:
        """The ordering topic."""
        return f"{self.prefix}.ordering"

    @property
    def payload(self) -> str:
        """The payload topic."""
        return f"{self.prefix}.payload"


class OffsetRange(msgspec.Struct, frozen=True):
    """A range of offsets of a topic-partition, by default from its log start to its log end."""

    offset_first: int
    """Log start offset: of the first record that is kept."""
    offset_end: int
    """Log end offset: of the next record that will be appended."""


def jar_settings() -> dict[str, str]:
    """Returns the setting of a session that reads Kafka, and fetches the jars for it if they are missing. Raises `CannotRun`."""
    return {"spark.jars": ",".join(str(jar) for jar in sorted((fetch_jars(find_java(), SPARK) / "libs").glob("*.jar")))}


def add_jars(session: SparkSession) -> None:
    """Add the jars to a running session that lacks them, and to its executors, as under `spark-submit`.

    Not all threads of the driver see jars that are added so late: the reason of a failed task may be reported as `UnknownReason`.
    """
    try:
        _jvm(session).java.lang.Thread.currentThread().getContextClassLoader().loadClass(f"{_ADMIN}.AdminClient")
    except Py4JJavaError:
        for jar in jar_settings()["spark.jars"].split(","):
            session.sql(f"ADD JAR '{jar}'")


def decode_properties(content: bytes) -> str:
    """Returns the text of a Java properties file: UTF-8, or Latin-1 if it is not UTF-8, which is Java's own encoding for these files."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def parse_properties(session: SparkSession, text: str) -> dict[str, str]:
    """Parses the text of a Java properties file."""
    jvm = _jvm(session)
    properties = jvm.java.util.Properties()
    properties.load(jvm.java.io.StringReader(text))
    return {name: properties.getProperty(name) for name in properties.stringPropertyNames()}


def _jvm(session: SparkSession) -> Any:
    return session.sparkContext._jvm


class Admin:
    """Kafka's admin client, for the length of a block. Every method raises `CouldNotVerify` on failure, within `API_MS_MAX`."""

    def __init__(self, session: SparkSession, kafka: Kafka) -> None:
        add_jars(session)
        self._jvm = _jvm(session)
        self._kafka = kafka
        properties = self._jvm.java.util.Properties()
        limits = {"default.api.timeout.ms": str(API_MS_MAX), "request.timeout.ms": str(REQUEST_MS_MAX)}
        for name, value in (limits | dict(kafka.properties) | {"bootstrap.servers": kafka.bootstrap}).items():
            properties.setProperty(name, value)
        with self._failing("cannot be connected to"):
            self._client = self._java(_ADMIN).AdminClient.create(properties)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close(self._jvm.java.time.Duration.ofSeconds(1))

    def partitions(self, topic: str) -> int | None:
        """Returns the number of partitions of a topic; None if it does not exist."""
        answer = self._client.describeTopics([topic]).topicNameValues()
        try:
            return int(self._get(answer.get(topic)).partitions().size())
        except Py4JJavaError as problem:
            if _UNKNOWN_TOPIC in cause(problem):
                return None
            raise self._problem(f"does not describe topic {topic}", problem) from None

    def replicas(self, topic: str) -> int:
        """Returns the replication factor of a topic that exists: the number of replicas of the partition that has the fewest."""
        with self._failing(f"does not describe topic {topic}"):
            partitions = self._get(self._client.describeTopics([topic]).topicNameValues().get(topic)).partitions()
            return min(int(partition.replicas().size()) for partition in partitions)

    def log_offsets(self, topic: str) -> list[OffsetRange]:
        """Returns the log start and log end offsets of each partition of a topic, in their order."""
        count = self.partitions(topic)
        if count is None:
            raise CouldNotVerify(
                f"Kafka at {self._kafka.bootstrap} has no topic {topic}, or this user may not describe it: name the right --prefix, or"
                " restore it"
            )
        spec = self._java(_ADMIN).OffsetSpec
        # The log start offsets are read after the log end offsets, so that records deleted between the two calls show.
        ends = self._offsets(topic, count, spec.latest())
        firsts = self._offsets(topic, count, spec.earliest())
        return [OffsetRange(first, end) for first, end in zip(firsts, ends, strict=True)]

    def offsets_at(self, topic: str, time_ms: int) -> dict[int, int]:
        """Returns by partition the offset of the first record with this time or a later one; partitions without one are left out."""
        found = self._offsets(topic, self.partitions(topic) or 0, self._java(_ADMIN).OffsetSpec.forTimestamp(time_ms))
        return {partition: offset for partition, offset in enumerate(found) if offset >= 0}

    def brokers(self) -> int:
        """Returns the number of brokers that are up."""
        with self._failing("does not describe its cluster"):
            return int(self._get(self._client.describeCluster().nodes()).size())

    def create(self, topics: Mapping[str, int], replicas: int, settings: Mapping[str, str]) -> None:
        """Create topics; `topics` has their partition counts by name."""
        wanted = [self._java(_ADMIN).NewTopic(name, count, replicas).configs(dict(settings)) for name, count in topics.items()]
        with self._failing(f"does not create {', '.join(topics)} with {replicas} replicas"):
            self._get(self._client.createTopics(wanted).all())

    def setting(self, topic: str, name: str) -> str:
        """Returns the value of a topic's setting."""
        resource = self._resource(topic)
        with self._failing(f"does not return the settings of {topic}"):
            return str(self._get(self._client.describeConfigs([resource]).all()).get(resource).get(name).value())

    def change(self, topic: str, settings: Mapping[str, str | None]) -> None:
        """Change these settings of a topic; None restores the default."""
        admin = self._java(_ADMIN)
        kinds = admin.AlterConfigOp.OpType
        changes = self._jvm.java.util.ArrayList()
        for name, value in settings.items():
            changes.add(admin.AlterConfigOp(admin.ConfigEntry(name, value or ""), kinds.DELETE if value is None else kinds.SET))
        wanted = self._jvm.java.util.HashMap()
        wanted.put(self._resource(topic), changes)
        with self._failing(f"does not change the settings of {topic}"):
            self._get(self._client.incrementalAlterConfigs(wanted).all())

    def _offsets(self, topic: str, count: int, spec: Any) -> Sequence[int]:
        topic_partitions = [self._java("org.apache.kafka.common").TopicPartition(topic, partition) for partition in range(count)]
        asked = self._jvm.java.util.HashMap()
        for topic_partition in topic_partitions:
            asked.put(topic_partition, spec)
        with self._failing(f"does not return the offsets of {topic}"):
            answer = self._client.listOffsets(asked)
            return [int(self._get(answer.partitionResult(topic_partition)).offset()) for topic_partition in topic_partitions]

    def _resource(self, topic: str) -> Any:
        config = self._java("org.apache.kafka.common.config").ConfigResource
        return config(config.Type.TOPIC, topic)

    def _java(self, package: str) -> Any:
        found = self._jvm
        for name in package.split("."):
            found = getattr(found, name)
        return found

    def _get(self, future: Any) -> Any:
        # The client has its own deadline; this one is a backstop.
        return future.get(2 * API_MS_MAX, self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS)

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as problem:
            raise self._problem(what, problem) from None

    def _problem(self, what: str, problem: Py4JJavaError) -> CouldNotVerify:
        return CouldNotVerify(
            f"Kafka at {self._kafka.bootstrap} {what}: {cause(problem)}. Are the brokers there, and do --kafka-config and --kafka-option"
            " say how to connect to them?"
        )


def read_log_offsets(admin: Admin, kafka: Kafka) -> dict[TopicPartition, OffsetRange]:
    """Returns the log start and log end of each partition; reads those of the ordering topic first.

    A worker sends an entry and its payload at once. The end of the payload topic is read later, so it lies behind the payloads of all
    entries before the ordering end, except those in flight at that moment. In the other order, entries appended between the two reads would
    have no content, and a busy notary would seem to lose payloads. A payload whose entry is after the end is an orphan: it changes nothing.
    """
    ordering = admin.log_offsets(kafka.ordering)
    payload = admin.log_offsets(kafka.payload)
    if len(ordering) != 1:
        raise CouldNotVerify(f"topic {kafka.ordering} has {len(ordering)} partitions: a notary's has 1, whose order is the global order")
    return {("ordering", 0): ordering[0], **{("payload", partition): offset_range for partition, offset_range in enumerate(payload)}}
