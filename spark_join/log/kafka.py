"""Queries and changes of a cluster: its topics, their settings, and their offsets.

Each request has a connection of its own: there are few, and hours of reading may lie between two. aiokafka's own clients would not do.
They do not report why a connection failed, and their Metadata requests create a missing topic if the brokers' settings allow that.
Records are read (`reading`) between offsets that are fixed before the first record is read.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final, TypeVar

import msgspec
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import KafkaError, LeaderNotAvailableError, UnknownError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.types import Array, Boolean, Int8, Int16, Int32, Schema, String

from spark_join.errors import CouldNotVerify
from spark_join.log import ORDERING, TopicPartition
from spark_join.log.client import Kafka, client_settings, time_limits

_AGAIN_S: Final = 0.2
_CLOSE_S_MAX: Final = 1.0
_LATEST, _EARLIEST = -1, -2
"""Times that stand for the log end offset and the log start offset."""
_READ_UNCOMMITTED: Final = 0
"""The log end offset is the high watermark, also while a transaction is open."""
_PROBLEMS: Final = (KafkaError, OSError, ValueError, OverflowError, NotImplementedError)
"""Failures of a response, a connection, an address, and a version of a request that brokers lack. A `TimeoutError` is an `OSError`, and
a port above 65535 an `OverflowError`."""

_Result = TypeVar("_Result")


class OffsetRange(msgspec.Struct, frozen=True):
    """A range of offsets of a topic-partition, by default from its log start to its log end."""

    offset_first: int
    offset_end: int


class Admin:
    """Kafka's administration requests. Every method raises `CouldNotVerify` on failure, within the deadline of `time_limits`.

    Until then a query is repeated, if its failure may pass. No method may be called in a running event loop.
    """

    def __init__(self, kafka: Kafka) -> None:
        """Connects to no broker yet. Raises `CouldNotVerify` for properties that cannot be used."""
        self._kafka = kafka
        self._query_ms, self._request_ms = time_limits(kafka)
        self._settings = client_settings(kafka)
        del self._settings["bootstrap_servers"]

    def partitions(self, topic: str) -> int | None:
        """Returns the number of partitions of a topic; None if it does not exist."""

        async def query() -> int | None:
            try:
                return len((await self._describe(topic))[1])
            except UnknownTopicOrPartitionError:
                return None

        return self._run(f"does not describe topic {topic}", query)

    def replicas(self, topic: str) -> int:
        """Returns the replication factor of a topic that exists: the number of replicas of the partition that has the fewest."""

        async def query() -> int:
            return min(len(replicas) for _, _, _, replicas, *_ in (await self._describe(topic))[1])

        return self._run(f"does not describe topic {topic}", query)

    def log_offsets(self, topic: str) -> list[OffsetRange]:
        """Returns the log start and log end offsets of each partition of a topic, in their order."""
        count = self.partitions(topic)
        if count is None:
            raise CouldNotVerify(
                f"Kafka at {self._kafka.bootstrap} has no topic {topic}, or this user may not describe it: name the right --prefix, or"
                " restore it"
            )
        # The log start offsets are read after the log end offsets, so that records deleted between the two calls show.
        ends = self._offsets(topic, count, _LATEST)
        firsts = self._offsets(topic, count, _EARLIEST)
        return [OffsetRange(first, end) for first, end in zip(firsts, ends, strict=True)]

    def offsets_at(self, topic: str, time_ms: int) -> dict[int, int]:
        """Returns by partition the offset of the first record with this time or a later one; partitions without one are left out."""
        found = self._offsets(topic, self.partitions(topic) or 0, time_ms)
        return {partition: offset for partition, offset in enumerate(found) if offset >= 0}

    def brokers(self) -> int:
        """Returns the number of brokers that are up."""

        async def query() -> int:
            return len((await self._ask(MetadataRequest([], allow_auto_topic_creation=False))).brokers)

        return self._run("does not describe its cluster", query)

    def create(self, topics: Mapping[str, int], replicas: int, settings: Mapping[str, str]) -> None:
        """Create topics; `topics` has their partition counts by name."""
        wanted: list[Any] = [(name, count, replicas, [], [*settings.items()]) for name, count in topics.items()]

        async def query() -> None:
            response = await self._ask(CreateTopicsRequest(wanted, timeout=self._request_ms, validate_only=False))
            for _, code, message in response.topic_errors:
                _check(code, message)

        self._run(f"does not create {', '.join(topics)} with {replicas} replicas", query)

    def setting(self, topic: str, name: str) -> str:
        """Returns the value of a setting of a topic that exists."""

        async def query() -> str:
            response = await self._ask(DescribeConfigsRequest([(ConfigResourceType.TOPIC, topic, [name])]))
            ((code, message, _, _, found),) = response.resources
            _check(code, message)
            ((_, value, *_),) = found
            return str(value)

        return self._run(f"does not return the settings of {topic}", query)

    def change(self, topic: str, settings: Mapping[str, str | None]) -> None:
        """Change these settings of a topic that exists; None restores the default."""

        async def query() -> None:
            ((code, message, *_),) = (await self._ask(_AlterSettings(topic, settings))).responses
            _check(code, message)

        self._run(f"does not change the settings of {topic}", query)

    def _offsets(self, topic: str, count: int, time_ms: int) -> list[int]:
        async def query() -> list[int]:
            brokers, partitions = await self._describe(topic)
            led: dict[int, list[tuple[int, int]]] = {}
            for _, partition, leader, *_ in partitions:
                led.setdefault(leader, []).append((partition, time_ms))
            found: dict[int, int] = {}
            for leader, wanted in led.items():
                if leader not in brokers:
                    raise LeaderNotAvailableError(f"partitions {', '.join(str(partition) for partition, _ in wanted)} have no leader")
                request = OffsetRequest(-1, _READ_UNCOMMITTED, [(topic, wanted)])
                ((_, offsets),) = (await self._send(*brokers[leader], request)).topics
                for partition, code, _, offset in offsets:
                    _check(code, f"partition {partition}")
                    found[partition] = offset
            if not found.keys() >= {*range(count)}:  # a broker may not know all partitions yet
                raise UnknownTopicOrPartitionError(f"{len(found)} of {count} partitions are known")
            return [found[partition] for partition in range(count)]

        return self._run(f"does not return the offsets of {topic}", query) if count else []

    async def _describe(self, topic: str) -> tuple[dict[int, tuple[str, int]], list[Any]]:
        """Returns the addresses of the brokers, and the partitions of a topic: error code, number, leader, replicas, …"""
        response = await self._ask(MetadataRequest([topic], allow_auto_topic_creation=False))
        ((code, _, _, partitions),) = response.topics
        _check(code)
        return {broker: (host, port) for broker, host, port, _ in response.brokers}, partitions

    async def _ask(self, request: Request) -> Response:
        """Returns the response of any broker in `bootstrap`. If all fail, raises a problem that may pass, if there is one."""
        problems: list[Exception] = []
        for host, port, _ in collect_hosts(self._kafka.bootstrap):
            try:
                return await self._send(host, port, request)
            except _PROBLEMS as problem:
                problems.append(problem)
        raise min(problems, key=_is_final)

    async def _send(self, host: str, port: int, request: Request) -> Response:
        try:
            connection = await create_conn(host, port, request_timeout_ms=self._request_ms, **self._settings)
            try:
                return await connection.send(request)
            finally:
                await asyncio.wait([connection.close()], timeout=_CLOSE_S_MAX)
        except _PROBLEMS as problem:
            problem.add_note(f"{host}:{port}")
            raise

    def _run(self, what: str, query: Callable[[], Awaitable[_Result]]) -> _Result:
        return asyncio.run(self._repeat(what, query))

    async def _repeat(self, what: str, query: Callable[[], Awaitable[_Result]]) -> _Result:
        problem: Exception | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._query_ms / 1000):
                while True:
                    try:
                        return await query()
                    except _PROBLEMS as raised:
                        problem = raised
                    if _is_final(problem):
                        break
                    await asyncio.sleep(_AGAIN_S)
        text = _text(problem or TimeoutError(f"no reply for {self._query_ms} ms")).rstrip(".")
        raise CouldNotVerify(
            f"Kafka at {self._kafka.bootstrap} {what}: {text}. Are the brokers there, and do --kafka-config and --kafka-option say how to"
            " connect to them?"
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
    return {ORDERING: ordering[0], **{("payload", partition): offset_range for partition, offset_range in enumerate(payload)}}


def _check(code: int, message: str | None = None) -> None:
    """Raise the error with that code, if it is one."""
    if code:
        error = for_code(code)
        texts = [text for text in (f"code {code}" if error is UnknownError else "", message) if text]
        raise error(": ".join(texts)) if texts else error()


def _is_final(problem: Exception) -> bool:
    """Returns False for a failure that may pass, such as a broker that is down, or that does not lead a partition any more."""
    found = problem.__cause__ or problem
    if isinstance(found, KafkaError):
        return not found.retriable and not isinstance(found, UnknownError)  # an `UnknownError` has a code that aiokafka does not know
    finals = (ssl.SSLError, socket.gaierror, ValueError, OverflowError, NotImplementedError)
    return isinstance(found, finals) and not isinstance(found, ssl.SSLEOFError)


def _text(problem: BaseException) -> str:
    """Returns name and text of a problem, its cause, and the broker."""
    name, text = type(problem).__name__, str(problem)
    if not text.startswith((name, "[Error ")):  # aiokafka's errors begin with their names
        text = f"{name}: {text}" if text else name
    more = [_text(problem.__cause__)] if isinstance(problem.__cause__, Exception) else []
    more += getattr(problem, "__notes__", [])
    return f"{text} ({', '.join(more)})" if more else text


class _AlterSettingsResponse0(Response):  # type: ignore[misc]  # aiokafka ships no types, here and below
    API_KEY = 44
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "responses",
            Array(("error_code", Int16), ("error_message", String("utf-8")), ("resource_type", Int8), ("resource_name", String("utf-8"))),
        ),
    )


class _AlterSettingsRequest0(RequestStruct):  # type: ignore[misc]
    API_KEY = 44
    API_VERSION = 0
    RESPONSE_TYPE = _AlterSettingsResponse0
    SCHEMA = Schema(
        (
            "resources",
            Array(
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
                ("configs", Array(("name", String("utf-8")), ("operation", Int8), ("value", String("utf-8")))),
            ),
        ),
        ("validate_only", Boolean),
    )


class _AlterSettings(Request[_AlterSettingsRequest0]):  # type: ignore[misc]
    """IncrementalAlterConfigs, version 0: leaves all other settings of the topic. aiokafka's AlterConfigs resets them."""

    API_KEY: ClassVar[int] = 44

    def __init__(self, topic: str, settings: Mapping[str, str | None]) -> None:
        to_set, to_delete = 0, 1
        changes = [(name, to_delete if value is None else to_set, value) for name, value in settings.items()]
        self._resources = [(ConfigResourceType.TOPIC, topic, changes)]

    def build(self, request_struct_class: type[_AlterSettingsRequest0]) -> _AlterSettingsRequest0:
        """Returns the request struct for the wire."""
        return request_struct_class(self._resources, False)
