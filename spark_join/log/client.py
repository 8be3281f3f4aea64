"""Kafka as Spark's JVM sees it: the jars that read it, and its own administration client, which finds topics and offsets and makes topics.

Spark's source, this client and nothing else of ours speak to the brokers in Java, so one set of properties, as Kafka's own tools take them
(`security.protocol`, `ssl.truststore.location`, …), says how to connect.
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
from spark_join.errors import CouldNotVerify, cause

API_MS_MAX: Final = 30_000
"""How long one question to the cluster may take, in all its attempts."""
REQUEST_MS_MAX: Final = 10_000

_ADMIN = "org.apache.kafka.clients.admin"
_SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_UNKNOWN_TOPIC = "UnknownTopicOrPartitionException"


class Kafka(msgspec.Struct, frozen=True):
    """A cluster, and the prefix of a notary's topics in it."""

    bootstrap: str
    prefix: str
    properties: Mapping[str, str]
    """How to connect, by the names that Java's clients know."""

    @property
    def ordering(self) -> str:
        """The ordering topic."""
        return f"{self.prefix}.ordering"

    @property
    def payload(self) -> str:
        """The payload topic."""
        return f"{self.prefix}.payload"


class Bounds(msgspec.Struct, frozen=True):
    """What a partition has."""

    offset_first: int
    offset_end: int
    """Of the record that comes next."""


def jar_settings() -> dict[str, str]:
    """The setting of a session that reads Kafka, once the jars for it are there; they are fetched if they are not. Raises `CannotRun`."""
    return {"spark.jars": ",".join(str(jar) for jar in sorted((fetch_jars(find_java(), SPARK) / "libs").glob("*.jar")))}


def add_jars(session: SparkSession) -> None:
    """Have the jars on the classpath of a session that was begun without them, as `spark-submit` begins it, its executors' too.

    What is added so late is not seen by all threads of the driver: why a task failed may come out as `UnknownReason`.
    """
    try:
        _jvm(session).java.lang.Thread.currentThread().getContextClassLoader().loadClass(_SOURCE)
    except Py4JJavaError:
        for jar in jar_settings()["spark.jars"].split(","):
            session.sql(f"ADD JAR '{jar}'")


def parse_properties(session: SparkSession, text: str) -> dict[str, str]:
    """What a Java properties file says."""
    jvm = _jvm(session)
    properties = jvm.java.util.Properties()
    properties.load(jvm.java.io.StringReader(text))
    return {name: properties.getProperty(name) for name in properties.stringPropertyNames()}


def _jvm(session: SparkSession) -> Any:
    return session.sparkContext._jvm


class Admin:
    """Kafka's administration client for the length of a block. Everything raises `CouldNotVerify`, within `API_MS_MAX`."""

    def __init__(self, session: SparkSession, kafka: Kafka) -> None:
        add_jars(session)
        self._jvm = _jvm(session)
        self._kafka = kafka
        properties = self._jvm.java.util.Properties()
        limits = {"default.api.timeout.ms": str(API_MS_MAX), "request.timeout.ms": str(REQUEST_MS_MAX)}
        for name, value in (limits | dict(kafka.properties) | {"bootstrap.servers": kafka.bootstrap}).items():
            properties.setProperty(name, value)
        with self._telling("cannot be connected to"):
            self._client = self._java(_ADMIN).AdminClient.create(properties)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close(self._jvm.java.time.Duration.ofSeconds(1))

    def partitions(self, topic: str) -> int | None:
        """How many partitions a topic has; None for one that does not exist."""
        answer = self._client.describeTopics([topic]).topicNameValues()
        try:
            return int(self._get(answer.get(topic)).partitions().size())
        except Py4JJavaError as problem:
            if _UNKNOWN_TOPIC in cause(problem):
                return None
            raise self._problem(f"does not describe topic {topic}", problem) from None

    def replicas(self, topic: str) -> int:
        """Of the partition that has the fewest, of a topic that exists."""
        with self._telling(f"does not describe topic {topic}"):
            partitions = self._get(self._client.describeTopics([topic]).topicNameValues().get(topic)).partitions()
            return min(int(partition.replicas().size()) for partition in partitions)

    def bounds(self, topic: str) -> list[Bounds]:
        """Where each partition of a topic begins and ends now, in their order."""
        count = self.partitions(topic)
        if count is None:
            raise CouldNotVerify(
                f"Kafka at {self._kafka.bootstrap} has no topic {topic}, or this user may not describe it: name the right --prefix, or"
                " restore it"
            )
        spec = self._java(_ADMIN).OffsetSpec
        # The beginnings are asked after the ends: what is deleted between the two is noticed.
        ends = self._offsets(topic, count, spec.latest())
        firsts = self._offsets(topic, count, spec.earliest())
        return [Bounds(first, end) for first, end in zip(firsts, ends, strict=True)]

    def offsets_at(self, topic: str, time_ms: int) -> dict[int, int]:
        """Of the first record of each partition that has this time or a later one; partitions that have none are left out."""
        found = self._offsets(topic, self.partitions(topic) or 0, self._java(_ADMIN).OffsetSpec.forTimestamp(time_ms))
        return {partition: offset for partition, offset in enumerate(found) if offset >= 0}

    def brokers(self) -> int:
        """How many brokers there are now."""
        with self._telling("does not describe its cluster"):
            return int(self._get(self._client.describeCluster().nodes()).size())

    def create(self, topics: Mapping[str, int], replicas: int, settings: Mapping[str, str]) -> None:
        """Make topics, each with as many partitions."""
        wanted = [self._java(_ADMIN).NewTopic(name, count, replicas).configs(dict(settings)) for name, count in topics.items()]
        with self._telling(f"does not create {', '.join(topics)} with {replicas} replicas"):
            self._get(self._client.createTopics(wanted).all())

    def setting(self, topic: str, name: str) -> str:
        """The value of a topic's setting."""
        resource = self._resource(topic)
        with self._telling(f"does not tell the settings of {topic}"):
            return str(self._get(self._client.describeConfigs([resource]).all()).get(resource).get(name).value())

    def change(self, topic: str, settings: Mapping[str, str | None]) -> None:
        """Set these settings of a topic; None for the default."""
        admin = self._java(_ADMIN)
        kinds = admin.AlterConfigOp.OpType
        changes = self._jvm.java.util.ArrayList()
        for name, value in settings.items():
            changes.add(admin.AlterConfigOp(admin.ConfigEntry(name, value or ""), kinds.DELETE if value is None else kinds.SET))
        wanted = self._jvm.java.util.HashMap()
        wanted.put(self._resource(topic), changes)
        with self._telling(f"does not change the settings of {topic}"):
            self._get(self._client.incrementalAlterConfigs(wanted).all())

    def _offsets(self, topic: str, count: int, spec: Any) -> Sequence[int]:
        places = [self._java("org.apache.kafka.common").TopicPartition(topic, partition) for partition in range(count)]
        asked = self._jvm.java.util.HashMap()
        for place in places:
            asked.put(place, spec)
        with self._telling(f"does not tell the offsets of {topic}"):
            answer = self._client.listOffsets(asked)
            return [int(self._get(answer.partitionResult(place)).offset()) for place in places]

    def _resource(self, topic: str) -> Any:
        config = self._java("org.apache.kafka.common.config").ConfigResource
        return config(config.Type.TOPIC, topic)

    def _java(self, package: str) -> Any:
        found = self._jvm
        for name in package.split("."):
            found = getattr(found, name)
        return found

    def _get(self, future: Any) -> Any:
        # The client keeps its own limit; this one is for a client that does not.
        return future.get(2 * API_MS_MAX, self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS)

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as problem:
            raise self._problem(what, problem) from None

    def _problem(self, what: str, problem: Py4JJavaError) -> CouldNotVerify:
        return CouldNotVerify(
            f"Kafka at {self._kafka.bootstrap} {what}: {cause(problem)}. Are the brokers there, and do --kafka-config and --kafka-option"
            " say how to connect to them?"
        )
