"""Connection settings of every Kafka client of this project, and requests in versions that aiokafka does not speak.

aiokafka 0.14 speaks the Metadata request up to version 5: with the cluster's id, without topic ids. `TopicsRequest` below is version 12: it
has topic ids, which distinguish a topic that was deleted and created again from the first one. It never creates a topic. Writers and
readers use it too (`leadership.py`). `FeaturesRequest` is version 3 of ApiVersions, which aiokafka speaks up to version 2: it returns the
cluster's finalized features. `AlterSettingsRequest` is IncrementalAlterConfigs: aiokafka's AlterConfigs resets all other settings.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any, ClassVar, Final

import msgspec
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.conn import collect_hosts
from aiokafka.errors import KafkaError, for_code
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.types import Array, Boolean, CompactArray, CompactString, Int8, Int16, Int32, Schema, String, TaggedFields

from ordering.certificates import connection_error_text
from ordering.errors import ConfigurationError, NotReady, error_text
from ordering.settings import LogSettings

METADATA_AGE_MS: Final = 1_000
"""The maximum age of a client's metadata: the partition leaders, and the racks in `leaders()`.

If a leader is cut off, a client learns the new leader from the other brokers. A broker that cannot reach the active controller still claims
to be the leader. So a client requests metadata from the brokers in turn, and reaches all of them before a worker would stop because its log
contradicts its index.
"""


class KafkaSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """TLS and SASL settings for connections to the brokers. A client without them uses `PLAINTEXT`, for a private network or a trial."""

    protocol: str = "SSL"
    """`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`."""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    sasl_mechanism: str = LogSettings().sasl_mechanism
    sasl_user: str | None = None
    sasl_password: str | None = None

    def settings(self) -> dict[str, Any]:
        """Returns the keyword arguments of aiokafka's clients. Raises `ConfigurationError` for a file or value that cannot be used."""
        if self.protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise ConfigurationError(f"Kafka security protocol {self.protocol!r}: use PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
        settings: dict[str, Any] = {"security_protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            try:
                # With an encrypted key and no password here, OpenSSL would ask for it at the terminal.
                settings["ssl_context"] = create_ssl_context(
                    cafile=self.ca_file, certfile=self.cert_file, keyfile=self.key_file, password=""
                )
            except (OSError, ValueError) as problem:  # SSLError is an OSError; a path with a NUL raises ValueError
                given = [file for file in (self.ca_file, self.cert_file, self.key_file) if file]
                # Errors of `ssl` do not name the file.
                unreadable = [file for file in given if not os.access(file, os.R_OK)]
                files = ", ".join(unreadable or given)
                raise ConfigurationError(
                    f"the TLS files for Kafka ({files or 'none given'}) cannot be used: {problem}. Keys are unencrypted PEM"
                ) from problem
        if self.protocol.startswith("SASL"):
            if self.sasl_mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
                raise ConfigurationError(f"SASL mechanism {self.sasl_mechanism!r}: use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
            if not self.sasl_user or self.sasl_password is None:
                raise ConfigurationError(f"Kafka over {self.protocol} needs a SASL user and a password")
            settings["sasl_mechanism"] = self.sasl_mechanism
            settings["sasl_plain_username"] = self.sasl_user
            settings["sasl_plain_password"] = self.sasl_password
        return settings


def client_settings(bootstrap: str, client_id: str, security: KafkaSecurity | None) -> dict[str, Any]:
    """Returns the settings that all clients of one process share. Raises `ConfigurationError` for invalid brokers or security settings."""
    _check_brokers(bootstrap)
    return {
        "bootstrap_servers": bootstrap,
        "client_id": client_id,
        "retry_backoff_ms": 100,
        "metadata_max_age_ms": METADATA_AGE_MS,
        **(security.settings() if security is not None else {}),
    }


def _check_brokers(bootstrap: str) -> None:
    """Raise `ConfigurationError` for invalid brokers: aiokafka would raise various exceptions, some of them only while it connects."""
    try:
        for host, port, _ in collect_hosts(bootstrap):
            host.encode("idna")  # the resolver does the same; a UnicodeError is a ValueError
            if not host or not 0 < port <= 65535:
                raise ValueError("each broker is a host and a port from 1 to 65535")
    except ValueError as problem:
        raise ConfigurationError(f"expected brokers as HOST:PORT,HOST:PORT, got {bootstrap!r}: {problem}") from None


@asynccontextmanager
async def admin(bootstrap: str, client_id: str, security: KafkaSecurity | None, timeout_ms: int) -> AsyncIterator[AIOKafkaAdminClient]:
    """Yields an administration client; errors of the brokers inside the block become `NotReady`.

    The block takes at most `timeout_ms`, plus two seconds to find out why TLS fails.
    """
    # The client may have to try several brokers within the deadline, so each may take a third of it.
    request_ms = max(timeout_ms // 3, 1)
    settings = client_settings(bootstrap, client_id, security)
    client = AIOKafkaAdminClient(**settings, request_timeout_ms=request_ms)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await client.start()
            yield client
    except TimeoutError as problem:
        raise NotReady(f"Kafka at {bootstrap} did not answer within {timeout_ms} ms") from problem
    except KafkaError as problem:
        raise NotReady(f"Kafka at {bootstrap} cannot be used now: {await connection_error_text(problem, settings)}") from problem
    finally:
        await client.close()


class TopicFacts(msgspec.Struct, frozen=True):
    """One topic as described by a broker."""

    topic_id: str
    replicas: tuple[int, ...]
    """The number of replicas of each partition, in the order of the partitions."""


class ClusterFacts(msgspec.Struct, frozen=True):
    """The cluster as described by one of its brokers. `topics` has only existing topics."""

    cluster_id: str
    brokers: int
    topics: dict[str, TopicFacts]


async def describe_cluster(client: AIOKafkaAdminClient, topics: list[str]) -> ClusterFacts:
    """Describe the cluster and these topics, from one broker's response. Raises `KafkaError`; `NotReady` while a topic is being created."""
    response = await client._send_request(TopicsRequest(topics))
    found: dict[str, TopicFacts] = {}
    for code, name, topic_id, _, partitions, *_ in response.topics:
        if code in (3, 29):  # unknown topic; not authorized, which a broker returns for topics that this user may not describe
            continue
        if code != 0:
            raise NotReady(f"Kafka topic {name} cannot be described now: {error_text(for_code(code)())}")
        counts = {index: len(replicas) for _, index, _, _, replicas, *_ in partitions}
        found[name] = TopicFacts(str(topic_id), tuple(counts[index] for index in sorted(counts)))
    return ClusterFacts(response.cluster_id or "", len(response.brokers), found)


async def finalized_features(client: AIOKafkaAdminClient) -> dict[str, int]:
    """Returns the finalized features of the cluster, such as `metadata.version`, with their levels; empty when the broker reports none."""
    response = await client._send_request(FeaturesRequest())
    encoded = response.tags.get(_FINALIZED_FEATURES)
    if response.error_code or encoded is None:
        return {}
    return {name: level for name, level, *_ in _FEATURES.decode(BytesIO(encoded)) or ()}


class _Uuid(AbstractType[uuid.UUID]):  # type: ignore[misc]  # aiokafka ships no types, here and below
    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))


class _TopicsResponse12(Response):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _TopicsRequest12(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = _TopicsResponse12
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", _Uuid), ("topic", CompactString("utf-8")), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicsRequest(Request[_TopicsRequest12]):  # type: ignore[misc]
    """Metadata version 12 (Kafka 2.8 and newer) of some topics by name; creates none of them."""

    API_KEY: ClassVar[int] = 3

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_TopicsRequest12]) -> _TopicsRequest12:
        """Returns the request struct for the wire."""
        names: list[tuple[uuid.UUID, str, dict[int, bytes]]] = [(uuid.UUID(int=0), topic, {}) for topic in self._topics]
        return request_struct_class(names, False, False, {})


_FINALIZED_FEATURES = 2
"""The tag of the finalized features in the response."""
_FEATURES = CompactArray(("name", CompactString("utf-8")), ("max_level", Int16), ("min_level", Int16), ("tags", TaggedFields))


class _FeaturesResponse3(Response):  # type: ignore[misc]
    API_KEY = 18
    API_VERSION = 3
    SCHEMA = Schema(
        ("error_code", Int16),
        ("api_versions", CompactArray(("api_key", Int16), ("min_version", Int16), ("max_version", Int16), ("tags", TaggedFields))),
        ("throttle_time_ms", Int32),
        ("tags", TaggedFields),
    )


class _FeaturesRequest3(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 18
    API_VERSION = 3
    RESPONSE_TYPE = _FeaturesResponse3
    SCHEMA = Schema(("software_name", CompactString("utf-8")), ("software_version", CompactString("utf-8")), ("tags", TaggedFields))

    def parse_response_header(self, read_buffer: BytesIO | bytes) -> ResponseHeader_v0:
        """Decodes response header version 0: ApiVersions always uses it, so that any client and broker understand each other (KIP-511)."""
        return ResponseHeader_v0.decode(read_buffer)


class FeaturesRequest(Request[_FeaturesRequest3]):  # type: ignore[misc]
    """ApiVersions, version 3 (Kafka 2.4 and newer)."""

    API_KEY: ClassVar[int] = 18

    def build(self, request_struct_class: type[_FeaturesRequest3]) -> _FeaturesRequest3:
        """Returns the request struct for the wire, with the client's name and version."""
        return request_struct_class("kafka-notary", "1", {})


class _AlterSettingsResponse0(Response):  # type: ignore[misc]
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


_SET: Final = 0
"""The operation of IncrementalAlterConfigs that sets a value."""


class AlterSettingsRequest(Request[_AlterSettingsRequest0]):  # type: ignore[misc]
    """IncrementalAlterConfigs, version 0 (Kafka 2.3 and newer): sets these settings of topics or brokers, and leaves all others."""

    API_KEY: ClassVar[int] = 44

    def __init__(self, resource: ConfigResourceType, settings: Mapping[str, Mapping[str, str]], *, validate_only: bool = False) -> None:
        """`settings`: by topic or broker id (empty: all brokers), the value of each setting. `validate_only`: change nothing."""
        self._resource, self._settings, self._validate_only = resource, settings, validate_only

    def build(self, request_struct_class: type[_AlterSettingsRequest0]) -> _AlterSettingsRequest0:
        """Returns the request struct for the wire."""
        changes = [(self._resource, name, [(key, _SET, value) for key, value in some.items()]) for name, some in self._settings.items()]
        return request_struct_class(changes, self._validate_only)
