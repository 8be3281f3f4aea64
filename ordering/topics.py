"""Creates and checks the two Kafka topics; `kafka` uses them.

| topic | partitions | special settings |
|---|---|---|
| `<prefix>.ordering` | 1 | its order is the global order; the broker's append time is log time |
| `<prefix>.payload` | 16 | leaders spread over the brokers |

Both keep every record for ever, on enough disks to survive the loss of one, and never elect a leader that lacks a record. With other
settings a topic loses or deletes records sooner or later. So no worker starts on such a topic, and a running worker reports it
(`find_problems`).

Kafka acknowledges from memory: a broker writes to its disk later. A record that all in-sync replicas acknowledged is lost when all of them
lose power at once, with every disk intact. `flush.messages=1` on the ordering topic (`flush_ordering`) has each replica write before it
acknowledges.

A mirror's topics are in another cluster, and `notary mirror` copies the records of the log into them. They keep the times that the records
carry (`CreateTime`), since log time, decisions and roots depend on the source's append times. No worker starts on them until `notary
failover` has made a log of them and called `use_append_times`.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Final

import msgspec
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidPartitionsError,
    InvalidReplicationAssignmentError,
    NotLeaderForPartitionError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.structs import TopicPartition

from ordering.connection import AlterSettingsRequest, ClusterFacts, KafkaSecurity, admin, describe_cluster, finalized_features
from ordering.errors import ConfigurationError, NotReady, error_text
from ordering.log import check_payload_partitions
from ordering.settings import PAYLOAD_PARTITIONS_DEFAULT

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
REPLICATION_WANTED: Final = 3
PARTITIONS_MAX: Final = 1000
"""The maximum number of payload partitions that a command creates."""
ASK_AGAIN_S: Final = 0.05
BROKERS_LEARN_S: Final = 2.0
"""The time within which too low a number of partitions is read again: a broker learns of new ones only after the controller."""

_FIXED: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "compression.type": "uncompressed",
}
_AT_LEAST: Final = {"max.message.bytes": MESSAGE_BYTES_MAX}
_TIMES: Final = "message.timestamp.type"
APPEND_TIME: Final = "LogAppendTime"
COPIED_TIME: Final = "CreateTime"
LOG_TIMES: Final = frozenset({APPEND_TIME})
"""The time types of a log's ordering topic."""
_MIRROR_TIMES: Final = frozenset({COPIED_TIME})
EITHER_TIMES: Final = LOG_TIMES | _MIRROR_TIMES
"""The time types that `inspect` accepts of a mirror that may have been failed over."""
_TIME_LIMITS: Final = {f"message.timestamp.{side}.max.ms": str((1 << 62) // 1000) for side in ("before", "after")}
"""The minimum in a mirror, which must accept almost any time: otherwise one wrong clock of the source would stop it.

The value is limited because Spark reads times as microseconds in 64 bits.
"""
_FLUSH: Final = {"flush.messages": "1"}
_FEATURES_LEAST: Final = {"metadata.version": (26, "4.1"), "eligible.leader.replicas.version": (1, "1")}
"""Per feature of the cluster: its minimum level, and that level as `kafka-features.sh` writes it.

Eligible leader replicas prevent the election of a leader that lacks acknowledged records when the in-sync replicas fail one after another;
they are production-ready from Kafka 4.1 on.
"""

_UNKNOWN_TOPIC, _ALREADY_EXISTS = 3, 36
# The characters that Kafka allows in a topic's name; the length leaves space for `.ordering` within 249 characters.
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,240}").fullmatch


class CreatedTopics(msgspec.Struct, frozen=True):
    """The topics that `create_topics` created, and those that existed."""

    created: tuple[str, ...]
    existed: tuple[str, ...]
    """Topics that existed already and have the right settings."""
    warnings: tuple[str, ...]


def topic_names(prefix: str) -> tuple[str, str]:
    """Returns the names of the ordering topic and the payload topic. Raises `ConfigurationError` for a prefix that cannot name a topic."""
    if _PREFIX(prefix) is None:
        raise ConfigurationError(f"the topic prefix {prefix!r} should be 1 to 240 letters, digits, dots, dashes, underscores")
    return f"{prefix}.ordering", f"{prefix}.payload"


async def create_topics(
    bootstrap: str,
    prefix: str,
    payload_partitions: int = PAYLOAD_PARTITIONS_DEFAULT,
    replication: int | None = None,
    security: KafkaSecurity | None = None,
    *,
    flush_ordering: bool = False,
    mirror: bool = False,
    timeout_ms: int = 30_000,
) -> CreatedTopics:
    """Create both topics, or check them if they exist; `replication` defaults to 3, or the number of brokers if there are fewer.

    `flush_ordering`: the replicas write each record of the ordering topic to their disks before they acknowledge it. `mirror`: the topics
    are the target of a mirror, which no worker uses before a failover.

    Raises `ConfigurationError` when the topics cannot be created, or exist with wrong settings, and `Fatal` when they exist with another
    number of payload partitions; a mirror may have more. Raises `NotReady` when the brokers are unreachable.
    """
    names = topic_names(prefix)
    async with admin(bootstrap, "notary-topics", security, timeout_ms) as client:
        facts = await describe_cluster(client, list(names))
        existed = tuple(name for name in names if name in facts.topics)
        if not existed:
            replicas = replication or min(REPLICATION_WANTED, facts.brokers)
            # The broker may not know of existing topics yet, but the controller, which creates topics, does. So first only validate.
            for validate_only in (True, False):
                existed = await _create(
                    client,
                    names,
                    payload_partitions,
                    replicas,
                    timeout_ms,
                    validate_only=validate_only,
                    flush_ordering=flush_ordering,
                    times={_TIMES: COPIED_TIME} | _TIME_LIMITS if mirror else {_TIMES: APPEND_TIME},
                )
                if existed:
                    break
        if len(existed) == 1:
            (missing,) = set(names) - set(existed)
            raise ConfigurationError(
                f"topic {existed[0]} exists and {missing} does not: half a log. If it held records, restore {missing}; "
                f"if it was never used, delete {existed[0]} and create both again"
            )
        facts, problems = await inspect(client, prefix, wait_ms=timeout_ms, times=_MIRROR_TIMES if mirror else LOG_TIMES)
        if problems:
            raise ConfigurationError(" ".join(problems))
        facts = await _extended(client, names, payload_partitions, facts)
        found = len(facts.topics[names[1]].replicas)
        # The topic of a log may have more partitions than its records declare, and its mirror gets as many.
        if not mirror or found < payload_partitions:
            check_payload_partitions(
                f"topic {names[1]} exists already and",
                found,
                payload_partitions,
                f"add them: kafka-topics.sh --alter --topic {names[1]} --partitions {payload_partitions}"
                if mirror
                else "ask for as many as it has (--partitions), or for topics of another name (--topic-prefix)",
            )
        warnings = _warnings(facts)
        if existed and flush_ordering and (await _settings(client, names))[names[0]].get("flush.messages") != "1":
            warnings = (*warnings, _setting_problem(names[0], "flush.messages", "another value", "1", "1"))
    return CreatedTopics(() if existed else names, existed, warnings)


async def add_partitions(
    bootstrap: str, prefix: str, payload_partitions: int, security: KafkaSecurity | None = None, *, timeout_ms: int = 30_000
) -> None:
    """Extend the payload topic to that many partitions; does nothing when it has as many. New ones may have no leader for a moment.

    Raises `ConfigurationError` when they cannot be created, `NotReady` when the brokers are unreachable.
    """
    payload = topic_names(prefix)[1]
    async with admin(bootstrap, "notary-topics", security, timeout_ms) as client:
        facts = await describe_cluster(client, [payload])
        if payload not in facts.topics:
            raise ConfigurationError(f"topic {payload} does not exist, or this user may not describe it")
        if len(facts.topics[payload].replicas) >= payload_partitions:
            return
        try:
            await client.create_partitions({payload: NewPartitions(payload_partitions)}, timeout_ms=timeout_ms)
        except (InvalidPartitionsError, PolicyViolationError, TopicAuthorizationFailedError, InvalidReplicationAssignmentError) as problem:
            if isinstance(problem, InvalidPartitionsError):
                facts = await _extended(client, (payload,), payload_partitions, facts)
                if len(facts.topics[payload].replicas) >= payload_partitions:
                    return
            what = f"topic {payload} cannot be extended to {payload_partitions} partitions: {error_text(problem)}"
            if isinstance(problem, TopicAuthorizationFailedError):
                what += ". This user may not alter topics: have one who may do that first (docs/operations.md, More payload partitions)"
            raise ConfigurationError(what) from None


async def free_records(
    bootstrap: str,
    prefix: str,
    topic_id: str,
    offsets_first: Mapping[int, int],
    security: KafkaSecurity | None = None,
    *,
    timeout_ms: int = 30_000,
) -> dict[int, int]:
    """Delete the records of payload partitions before these offsets (DeleteRecords). Returns each one's log start offset afterwards.

    Repeating the call changes nothing. Raises `ConfigurationError` for a user without the right, or a topic with another id than
    `topic_id`; `NotReady` when the brokers are unreachable.
    """
    payload = topic_names(prefix)[1]
    right = "It needs the ACL operation Delete on that topic, and no other right (docs/runbook.md, 'Freeing old payloads')"
    wanted = {TopicPartition(payload, partition): RecordsToDelete(offset) for partition, offset in offsets_first.items()}
    async with admin(bootstrap, "notary-trim", security, timeout_ms) as client:
        described = (await describe_cluster(client, [payload])).topics.get(payload)
        if described is not None and described.topic_id != topic_id:
            raise ConfigurationError(
                f"the topic {payload} at {bootstrap} is another one than the log's: it has the id {described.topic_id}, and the log's has"
                f" {topic_id}. Name brokers of the log's cluster"
            )
        try:
            found = await client.delete_records(wanted)
        except TopicAuthorizationFailedError as problem:
            raise ConfigurationError(f"this user may not delete records of {payload}: {error_text(problem)}. {right}") from None
        except NotLeaderForPartitionError:
            raise NotReady(f"{payload} has a partition without a leader, or this user may not describe that topic. {right}") from None
    return {partition.partition: offset for partition, offset in found.items()}


async def find_problems(
    bootstrap: str, prefix: str, security: KafkaSecurity | None = None, *, mirror: bool = False, timeout_ms: int = 10_000
) -> list[str]:
    """Returns the settings of topics and cluster that may lose acknowledged records: a sentence each, with the remedy.

    `mirror`: the topics are the target of a mirror that was not failed over. Empty when all settings are right. Raises `NotReady` when the
    brokers are unreachable, `ConfigurationError` when the settings cannot be read.
    """
    async with admin(bootstrap, "notary-topics", security, timeout_ms) as client:
        _, problems = await inspect(client, prefix, wait_ms=timeout_ms // 3, times=_MIRROR_TIMES if mirror else LOG_TIMES)
    return problems


async def use_append_times(bootstrap: str, prefix: str, security: KafkaSecurity | None = None, *, timeout_ms: int = 30_000) -> None:
    """Turn a mirror's topics into a log: from now on the brokers' append times count. Older records keep their times.

    Raises `ConfigurationError` if this user may not do that, or another setting is wrong; `NotReady` if the brokers are unreachable.
    """
    names, loop = topic_names(prefix), asyncio.get_running_loop()
    async with admin(bootstrap, "notary-topics", security, timeout_ms) as client:
        response = await client._send_request(
            AlterSettingsRequest(ConfigResourceType.TOPIC, {name: {_TIMES: APPEND_TIME} for name in names})
        )
        for code, text, _, name in response.responses:
            if code:
                raise ConfigurationError(
                    f"topic {name} cannot be set to {_TIMES}={APPEND_TIME}: {text or error_text(for_code(code)())}; give this user the ACL"
                    " operation AlterConfigs on it, or run kafka-configs.sh as one who has it"
                )
        # The broker that answers may not know of the change yet.
        deadline_s = loop.time() + timeout_ms / 2000  # before the client's own deadline, whose error would blame the brokers
        _, problems = await inspect(client, prefix, timeout_ms)
        while problems and loop.time() < deadline_s:
            await asyncio.sleep(ASK_AGAIN_S)
            _, problems = await inspect(client, prefix, timeout_ms)
        if problems:
            raise ConfigurationError(" ".join(problems))


async def uses_append_times(
    bootstrap: str, prefix: str, security: KafkaSecurity | None = None, *, either: bool = False, timeout_ms: int = 30_000
) -> bool:
    """Returns False for the topics of a mirror that was not failed over. Raises the errors of `find_problems`.

    The ordering topic alone shows that they are a log; with `either` this returns True also if only the payload topic has append times.
    """
    names = topic_names(prefix)
    async with admin(bootstrap, "notary-topics", security, timeout_ms) as client:
        found = await _settings(client, names)
    return any(found[name].get(_TIMES) == APPEND_TIME for name in (names if either else names[:1]))


async def inspect(
    client: AIOKafkaAdminClient, prefix: str, wait_ms: int, times: frozenset[str] = LOG_TIMES
) -> tuple[ClusterFacts, list[str]]:
    """Describe the topics of a prefix and their problems: a sentence each, with the value found, the value wanted and the remedy.

    `times`: the valid time types of the ordering topic.

    A new topic may be unknown to some brokers, or have no leader yet. While one is missing, this repeats the request, perhaps to another
    broker, for at most `wait_ms`. Raises `NotReady`, `KafkaError`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    while True:
        try:
            facts = await describe_cluster(client, list(topic_names(prefix)))
            if len(facts.topics) == 2 or loop.time() >= deadline:
                return facts, await _problems(client, prefix, facts, times)
        except NotReady:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(ASK_AGAIN_S)


async def _extended(client: AIOKafkaAdminClient, names: tuple[str, ...], payload_partitions: int, facts: ClusterFacts) -> ClusterFacts:
    """Describe the topics again while the last of `names` has fewer partitions: a broker may not have learnt of the new ones yet."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + BROKERS_LEARN_S
    while len(facts.topics[names[-1]].replicas) < payload_partitions and loop.time() < deadline:
        await asyncio.sleep(ASK_AGAIN_S)
        found = await describe_cluster(client, list(names))
        facts = found if set(names) <= set(found.topics) else facts
    return facts


async def _create(
    client: AIOKafkaAdminClient,
    names: tuple[str, str],
    payload_partitions: int,
    replication: int,
    timeout_ms: int,
    *,
    validate_only: bool,
    flush_ordering: bool,
    times: Mapping[str, str],
) -> tuple[str, ...]:
    """Create both topics. With `validate_only` change nothing. Returns the names of the topics that existed already."""
    settings = _FIXED | dict(times) | {setting: str(least) for setting, least in _AT_LEAST.items()}
    settings["min.insync.replicas"] = str(_insync_wanted(replication))
    counts = dict(zip(names, (1, payload_partitions), strict=True))
    # Create both in one request. If a crash or an error leaves only one of them, that is reported and not repaired.
    response = await client.create_topics(
        [
            NewTopic(name, count, replication, topic_configs=settings | (_FLUSH if flush_ordering and name == names[0] else {}))
            for name, count in counts.items()
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )
    existed = []
    for name, code, *text in response.topic_errors:
        if code == _ALREADY_EXISTS:
            existed.append(name)
        elif code != 0:
            why = error_text(for_code(code)()) + (f" ({text[0]})" if text and text[0] else "")
            raise ConfigurationError(f"topic {name} with {counts[name]} partitions and {replication} replicas cannot be created: {why}")
    return tuple(name for name in names if name in existed)


async def _problems(client: AIOKafkaAdminClient, prefix: str, facts: ClusterFacts, times: frozenset[str]) -> list[str]:
    names = topic_names(prefix)
    if missing := [name for name in names if name not in facts.topics]:
        return [
            f"Topic {name} does not exist, or this user may not describe it: create both topics with "
            f"`notary init ... --kafka`, or name the right prefix (now {prefix!r})."
            for name in missing
        ]
    found = await _settings(client, names)
    problems = []
    ordering = names[0]
    if (count := len(facts.topics[ordering].replicas)) != 1:
        problems.append(
            f"Topic {ordering} has {count} partitions, wanted 1: its order is the global order; create both topics under a new prefix."
        )
    for name in names:
        # The times of a log's payloads do not matter.
        if (name == ordering or times == _MIRROR_TIMES) and (now := found[name].get(_TIMES)) not in times:
            problems.append(_wrong_times(name, now, sorted(times)[0]))
        least = _AT_LEAST | {"min.insync.replicas": _insync_wanted(min(facts.topics[name].replicas))}
        if times == _MIRROR_TIMES:
            least |= {setting: int(value) for setting, value in _TIME_LIMITS.items()}
        for setting, value in _FIXED.items():
            if (now := found[name].get(setting)) != value:
                problems.append(_setting_problem(name, setting, now, value, value))
        for setting, number in least.items():
            now = found[name].get(setting)
            if now is None or int(now) < number:
                problems.append(_setting_problem(name, setting, now, f"at least {number}", str(number)))
    return problems + _feature_problems(await finalized_features(client))


def _feature_problems(found: Mapping[str, int]) -> list[str]:
    """Returns a sentence for each cluster feature below its minimum. Kafka before 3.3, or a proxy, reports none and is not checked."""
    return [
        f"The cluster has {feature} at level {found.get(feature, 0)}, wanted at least {least}: "
        f"kafka-features.sh upgrade {'--release-version' if feature == 'metadata.version' else '--feature'} "
        f"{written if feature == 'metadata.version' else f'{feature}={written}'}, on brokers of Kafka 4.1 or newer."
        for feature, (least, written) in _FEATURES_LEAST.items()
        if found and found.get(feature, 0) < least
    ]


def _setting_problem(topic: str, setting: str, found: str | None, wanted: str, value: str) -> str:
    return f"Topic {topic} has {setting}={found}, wanted {wanted}: kafka-configs.sh --alter --topic {topic} --add-config {setting}={value}."


def _wrong_times(topic: str, found: str | None, wanted: str) -> str:
    sentence = _setting_problem(topic, _TIMES, found, wanted, wanted)
    if found == COPIED_TIME:
        return (
            f"Topic {topic} has {_TIMES}={found}, wanted {wanted}: it is a mirror, and no worker may use it before `notary failover --to"
            " BROKERS` (docs/runbook.md, 'Failover to a mirror'); or a restore that is not done: run that again. If it is neither:"
            f" {sentence.partition(': ')[2]}"
        )
    if wanted == COPIED_TIME:
        return (
            f"Topic {topic} has {_TIMES}={found}, wanted {wanted}: it is a log, or a mirror that was failed over: then stop `notary"
            " mirror`. A new mirror needs new topics: `notary failover --prepare` creates them under a free name."
        )
    return sentence


async def _settings(client: AIOKafkaAdminClient, names: tuple[str, ...]) -> dict[str, dict[str, str | None]]:
    wanted = dict.fromkeys([*_FIXED, *_AT_LEAST, _TIMES, *_TIME_LIMITS, *_FLUSH, "min.insync.replicas"])
    answers = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name, wanted) for name in names])
    found: dict[str, dict[str, str | None]] = {}
    for code, text, _, name, entries in answers[0].resources:
        if code == _UNKNOWN_TOPIC:
            raise NotReady(f"the brokers do not all know topic {name} yet, or it does not exist: then name the right brokers and prefix")
        if code != 0:
            raise ConfigurationError(
                f"the settings of topic {name} cannot be read: {text or error_text(for_code(code)())}; "
                "give this user the ACL operation DescribeConfigs on it"
            )
        found[name] = {setting: value for setting, value, *_ in entries}
    return found


def _insync_wanted(replication: int) -> int:
    return 2 if replication >= 2 else 1


def _warnings(facts: ClusterFacts) -> tuple[str, ...]:
    warnings = []
    for name, topic in sorted(facts.topics.items()):
        if (replicas := min(topic.replicas)) < REPLICATION_WANTED:
            loses = "the loss of a disk loses the log" if replicas == 1 else "no broker may be away"
            warnings.append(f"topic {name} has {replicas} replicas instead of {REPLICATION_WANTED}: {loses}")
    return tuple(warnings)
