"""`notary init`: makes a notary's keys, configuration and log; the log begins with the genesis record, which names its owner (R10).

With `--kafka` these are the durable steps:

| step | a crash after it leaves |
|---|---|
| both topics | empty topics: the next `init` with this prefix continues |
| the directory: keys and configuration, atomically | a directory whose log is empty: the same `init` again continues |
| the genesis record | a complete notary |

An embedded log, with its genesis record, is made inside the directory, so there everything appears atomically.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary import keys, parties
from notary.cli import json_line, print_result
from notary.cli.staged import staged
from notary.config import NAME_BYTES_MAX, check_origin, kafka_security, load, read_toml
from notary.exit_codes import EXIT_DONE
from ordering.durable import create_file
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError, Fatal, NotReady, OutcomeUnknown
from ordering.genesis import append_genesis, check_empty, first_record, read_genesis
from ordering.kafka import KafkaLog
from ordering.log import ORDERING, Log
from ordering.records import ACTIVE_AT_START, FORMAT_VERSION, Activate, Genesis
from ordering.records import NONCE_BYTES as SALT_BYTES
from ordering.settings import PAYLOAD_PARTITIONS_DEFAULT, LogSettings
from ordering.signatures import SigningKey, sign_record
from ordering.topics import PARTITIONS_MAX, CreatedTopics, create_topics, topic_names

T = TypeVar("T")

CONFIG, KEY, KEY_HISTORY, PARTIES, LOG = "notary.toml", "notary-key.pem", "notary-keys.json", "parties.json", "log"
OWNER_KEY = "owner-key.pem"
LEADERS_S_MAX = 30.0
CHECK_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary init`."""
    parser.add_argument("directory", type=_directory, metavar="DIR", help="created if missing; nothing in it is overwritten")
    parser.add_argument("--name", required=True, help="the notary's name, an X.500 name; part of every transaction id, for ever")
    parser.add_argument("--origin", required=True, help="the origin of its checkpoints, e.g. notary.example/london")
    parser.add_argument("--kafka", metavar="HOST:PORT,...", help="brokers: creates and checks the topics (default: an embedded log)")
    parser.add_argument("--topic-prefix", help="<prefix>.ordering and <prefix>.payload (default: notary)")
    partitions = f"payload partitions of the log (default: {PAYLOAD_PARTITIONS_DEFAULT}); `notary partitions` can add more later"
    parser.add_argument("--partitions", type=int, default=PAYLOAD_PARTITIONS_DEFAULT, help=partitions)
    parser.add_argument("--replication", type=int, help="of both topics (default: 3, or as many brokers as there are)")
    flush = "each replica syncs an ordering record before it acknowledges it: for brokers with a common power supply"
    parser.add_argument("--flush-messages", action="store_true", help=flush)
    settings = "TOML with settings of [log], such as ca_file: used for the topics and kept in the configuration"
    parser.add_argument("--log-settings", type=Path, metavar="FILE", help=settings)
    versions = range(max(ACTIVE_AT_START), FORMAT_VERSION + 1)
    highest = f"the highest format version to activate (default: {FORMAT_VERSION}); a lower one only for workers of older software"
    parser.add_argument("--format-version", type=int, choices=versions, default=FORMAT_VERSION, help=highest)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Make the notary. Returns 0; every failure raises."""
    directory: Path = arguments.directory
    _check(arguments)
    # An empty list of brokers is a script's mistake, not a request for an embedded log.
    kafka = arguments.kafka is not None
    flags = {"bootstrap": arguments.kafka, "topic_prefix": arguments.topic_prefix, "kind": "kafka" if kafka else "embedded"}
    log_settings = log_settings_of(arguments.log_settings, flags)
    made = CreatedTopics((), (), ())
    try:
        if kafka and (directory / CONFIG).exists():
            # An earlier call may have made everything but the genesis record: `_go_on` looks for the record in the log.
            keys_made = _Keys.load(directory)
            log_id = asyncio.run(_go_on(arguments, log_settings, keys_made))
        else:
            # The configuration is last: a directory that has one is complete.
            files = (KEY, OWNER_KEY, KEY_HISTORY, PARTIES, CONFIG)
            with staged(directory, files if kafka else (LOG, *files)) as stage:
                keys_made = _Keys.create(stage, arguments.origin)
                parties.write(stage / PARTIES, {})
                create_file(stage / CONFIG, _toml(arguments, log_settings).encode())
                if kafka:
                    # Create the topics last, after all other steps that can fail: only this step cannot be undone.
                    made = asyncio.run(_topics(arguments, log_settings))
                else:
                    log_id = asyncio.run(_embedded(arguments, stage / LOG, keys_made))
            if kafka:
                # A crash before this line leaves a directory whose log is empty: the same command continues. The keys are written first,
                # since a log whose keys are lost cannot be used any more.
                log_id = asyncio.run(_genesis(arguments, log_settings, keys_made))
    except OSError as problem:
        raise ConfigurationError(f"cannot make a notary in {directory}: {problem.strerror or problem}") from None
    _report(arguments, log_settings, keys_made, log_id, made)
    return EXIT_DONE


class _Keys(msgspec.Struct, frozen=True):
    """The keys of a new notary."""

    notary: Ed25519PrivateKey
    owner: SigningKey

    @classmethod
    def create(cls, directory: Path, origin: str) -> "_Keys":
        """Make both key files, and the key history of the notary's key. Raises `ConfigurationError`, `OSError`."""
        notary, owner = keys.create(directory / KEY), keys.create(directory / OWNER_KEY, keys.OWNERS)
        keys.create_history(directory / KEY_HISTORY, origin, notary.public_key())
        return cls(notary, SigningKey(owner.private_bytes_raw()))

    @classmethod
    def load(cls, directory: Path) -> "_Keys":
        """Read the keys of an existing directory. Raises `ConfigurationError`."""
        if not (directory / OWNER_KEY).exists():
            raise ConfigurationError(
                f"{directory / CONFIG} exists already, and {OWNER_KEY} is not beside it: to complete a `notary init` that was interrupted,"
                " put it back; to make another notary, choose another directory"
            )
        return cls(keys.load(directory / KEY), SigningKey(keys.load(directory / OWNER_KEY, keys.OWNERS).private_bytes_raw()))

    @property
    def public_keys(self) -> tuple[bytes, bytes]:
        """The public keys: the notary's and the owner's."""
        return self.notary.public_key().public_bytes_raw(), self.owner.public_key


def _directory(given: str) -> Path:
    if not given:
        # An empty name is a script's mistake. `Path` would make it the present folder.
        raise ConfigurationError("DIR is empty: name a folder, or . for the present one")
    return Path(given)


def _check(arguments: argparse.Namespace) -> None:
    check_origin(arguments.origin)
    for what, text in (("--name", arguments.name), ("--origin", arguments.origin)):
        if not parties.is_utf8(text):
            raise ConfigurationError(f"{what} {text!r} is not UTF-8")
        size = len(text.encode())
        if not 0 < size <= NAME_BYTES_MAX:
            raise ConfigurationError(f"{what} should have 1 to {NAME_BYTES_MAX} bytes of UTF-8, and has {size}")
    if not parties.is_utf8(str(arguments.directory)):
        raise ConfigurationError(f"the directory {str(arguments.directory)!r} is not UTF-8")
    if os.path.isfile(arguments.directory):
        raise ConfigurationError(f"{arguments.directory} is a file: name a new or an empty folder")
    if not 1 <= arguments.partitions <= PARTITIONS_MAX:
        raise ConfigurationError(f"--partitions {arguments.partitions} should be 1 to {PARTITIONS_MAX}")
    if arguments.replication is not None and arguments.replication < 1:
        raise ConfigurationError(f"--replication {arguments.replication} should be 1 or more")
    for flag, given in (("--replication", arguments.replication), ("--topic-prefix", arguments.topic_prefix)):
        if given is not None and arguments.kafka is None:
            raise ConfigurationError(f"{flag} needs --kafka: an embedded log has no topics and no replicas")
    if arguments.log_settings is not None and arguments.kafka is None:
        raise ConfigurationError("--log-settings needs --kafka: an embedded log has no such settings")
    if arguments.flush_messages and arguments.kafka is None:
        raise ConfigurationError("--flush-messages needs --kafka: an embedded log always syncs to its disk before it acknowledges")


async def _embedded(arguments: argparse.Namespace, directory: Path, keys_made: _Keys) -> bytes:
    EmbeddedLog.create(directory, arguments.partitions)
    log = EmbeddedLog.open(directory)
    try:
        return await _begin(arguments, log, keys_made)
    finally:
        await log.close()


async def _topics(arguments: argparse.Namespace, log_settings: LogSettings) -> CreatedTopics:
    """Create both topics, or check that existing ones are empty and have the right settings."""
    try:
        made = await create_topics(
            log_settings.bootstrap,
            log_settings.topic_prefix,
            payload_partitions=arguments.partitions,
            replication=arguments.replication,
            security=kafka_security(log_settings, arguments.directory),
            flush_ordering=arguments.flush_messages,
        )
    except Fatal:  # another number of payload partitions: the remedy in this error is right only for topics without an owner
        async with _kafka_log(arguments, log_settings) as log:
            await check_empty(log)
        raise
    async with _kafka_log(arguments, log_settings) as log:
        await check_empty(log)
    return made


async def _genesis(arguments: argparse.Namespace, log_settings: LogSettings, keys_made: _Keys) -> bytes:
    try:
        async with _kafka_log(arguments, log_settings) as log:
            return await _begin(arguments, log, keys_made)
    except (NotReady, OutcomeUnknown) as problem:
        raise NotReady(
            f"{arguments.directory} is complete, but its log may still be empty: {problem}. Run the same command again to continue"
        ) from None


async def _begin(arguments: argparse.Namespace, log: Log, keys_made: _Keys) -> bytes:
    """Append the genesis record with a random salt, and activate the format versions. Returns the log id."""
    genesis = Genesis(os.urandom(SALT_BYTES), arguments.partitions, *keys_made.public_keys, arguments.name, arguments.origin)
    log_id = await append_genesis(log, genesis, keys_made.owner)
    await _activate(log, keys_made, log_id, arguments.format_version)
    return log_id


async def _activate(log: Log, keys_made: _Keys, log_id: bytes, highest: int) -> None:
    """Activate the format versions up to the highest. Behind a lost content this is impossible, and a salvage needs version 2.

    A crash before this leaves a log of version 1, and `notary activate` does the same.
    """
    writer = await log.open_writer()
    try:
        for version in range(max(ACTIVE_AT_START) + 1, highest + 1):
            await writer.append(ORDERING, None, sign_record(Activate(version), log_id, keys_made.owner))
    finally:
        await writer.close()


async def _go_on(arguments: argparse.Namespace, log_settings: LogSettings, keys_made: _Keys) -> bytes:
    """Append the genesis record if an earlier call did not get that far. Raises `ConfigurationError` for another notary, or another log.

    Returns the log id.
    """
    file = arguments.directory / CONFIG
    config = load(file, environment={})
    if config.log.kind != "kafka" or (config.name, config.origin) != (arguments.name, arguments.origin):
        raise ConfigurationError(f"{file} of notary {config.name!r} exists already, and is not overwritten: choose another directory")
    has, given = [f"{each.topic_prefix!r} at {each.bootstrap!r}" for each in (config.log, log_settings)]
    if has != given:
        raise ConfigurationError(f"{file} exists already, with the topics {has}, and the command names {given}: choose another directory")
    async with _kafka_log(arguments, config.log) as log:
        if await first_record(log) is not None:
            genesis, log_id = await read_genesis(log)
            if keys_made.public_keys != (genesis.notary_key, genesis.owner_key):
                raise ConfigurationError(
                    f"{file} exists already, and its log belongs to another notary, {genesis.notary_name!r}: choose another --topic-prefix"
                )
            if arguments.partitions != genesis.payload_partitions:
                raise ConfigurationError(
                    f"{file} exists already, and its log began with {genesis.payload_partitions} payload partitions, not"
                    f" {arguments.partitions}: give the same --partitions to continue, or change them with `notary partitions`"
                )
            if (await log.offsets())[ORDERING].log_end == 1:  # an earlier call was killed behind the genesis record
                await _activate(log, keys_made, log_id, arguments.format_version)
            return log_id
    await _topics(arguments, config.log)
    return await _genesis(arguments, config.log, keys_made)


@contextlib.asynccontextmanager
async def _kafka_log(arguments: argparse.Namespace, log_settings: LogSettings) -> AsyncIterator[KafkaLog]:
    """Open the log once its new partitions have leaders. Raises `NotReady` after `LEADERS_S_MAX`."""
    to, prefix, security = log_settings.bootstrap, log_settings.topic_prefix, kafka_security(log_settings, arguments.directory)
    log = await when_ready(lambda: KafkaLog.open(to, prefix, client_id="notary-init", security=security))
    try:
        yield log
    finally:
        await log.close()


async def when_ready(attempt: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of `attempt`, which is made again while it raises `NotReady`, for `LEADERS_S_MAX` at most."""
    give_up_s = time.monotonic() + LEADERS_S_MAX
    while True:
        try:
            return await attempt()
        except NotReady:
            if time.monotonic() > give_up_s:
                raise
        await asyncio.sleep(CHECK_S)


def _report(arguments: argparse.Namespace, log_settings: LogSettings, keys_made: _Keys, log_id: bytes, made: CreatedTopics) -> None:
    directory, kafka = arguments.directory, log_settings.kind == "kafka"
    topics = list(topic_names(log_settings.topic_prefix)) if kafka else []
    file = directory / CONFIG
    verifier_key = keys.verifier_key(arguments.origin, keys_made.notary.public_key())
    for warning in made.warnings:
        print(f"notary init: warning: {warning}", file=sys.stderr)
    facts = {
        "directory": str(directory),
        "config": str(file),
        "verifier_key": verifier_key,
        "owner_key": str(directory / OWNER_KEY),
        "log_id": log_id.hex(),
        "topics": topics,
        "warnings": list(made.warnings),
    }
    keep = "move it off this machine: no worker needs it" if kafka else "it is here for convenience: in production keep it off the worker"
    lines = (
        f"configuration  {file}",
        f"key            {directory / KEY} (keep it secret, keep a copy)",
        f"owner key      {directory / OWNER_KEY} (signs changes of the log; keep a copy, and {keep})",
        f"verifier key   {verifier_key}",
        f"log            {', '.join(topics) or directory / LOG}",
        f"log id         {log_id.hex()}",
        f"next           notary party add NAME --public-key FILE --config {file}",
    )
    print_result(facts, lines, as_json=arguments.json)


def log_settings_of(file: Path | None, flags: Mapping[str, str | None]) -> LogSettings:
    """Returns the `[log]` settings in the file of `--log-settings`, if there is one; flags with a value replace them.

    Raises `ConfigurationError`.
    """
    try:
        given = {} if file is None else read_toml(file)
        return msgspec.convert(given | {key: value for key, value in flags.items() if value is not None}, LogSettings)
    except (OSError, ValueError) as problem:  # msgspec's errors are of the second type
        raise ConfigurationError(f"--log-settings {file}: {problem}") from None


def _toml(arguments: argparse.Namespace, log_settings: LogSettings) -> str:
    lines = [
        "# A notary's configuration. Every setting: docs/configuration.md.",
        f"name = {_quoted(arguments.name)}",
        f"origin = {_quoted(arguments.origin)}",
        f'key_file = "{KEY}"',
        f'key_history_file = "{KEY_HISTORY}"',
        f'parties_file = "{PARTIES}"',
        "",
        "[log]",
    ]
    for field in msgspec.structs.fields(LogSettings):
        value = getattr(log_settings, field.name)
        # Settings with their default value are left out, except those that a reader expects.
        if value != field.default or field.name == "kind" or (field.name == "directory" and log_settings.kind == "embedded"):
            lines.append(f"{field.name} = {_quoted(value) if isinstance(value, str) else value}")
    lines += ["", "[http]", 'listen = "127.0.0.1:8080"', ""]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    # A JSON string is a TOML basic string, except for DEL, the one control character that JSON does not escape.
    return json_line(text).replace("\x7f", "\\u007f")
