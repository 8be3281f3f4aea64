"""`notary init`: a notary's key, configuration and log; with `--kafka`, its two topics."""

import argparse
import asyncio
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from notary import keys, parties
from notary.cli import EXIT_DONE
from notary.cli.staged import staged, write
from notary.config import NAME_BYTES_MAX, LogConfig, check_origin, kafka_security
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError
from ordering.topics import CreatedTopics, create_topics, topic_names

CONFIG, KEY, KEY_HISTORY, PARTIES, LOG = "notary.toml", "notary-key.pem", "notary-keys.json", "parties.json", "log"
PARTITIONS_DEFAULT = 16
PARTITIONS_MAX = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `notary init`."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="made if it is not there; nothing in it is overwritten")
    parser.add_argument("--name", required=True, help="the notary's name, an X.500 name; part of every transaction id, for ever")
    parser.add_argument("--origin", required=True, help="the origin of its checkpoints, e.g. notary.example/london")
    parser.add_argument("--kafka", metavar="HOST:PORT,...", help="brokers: creates and checks the topics; left out: an embedded log")
    parser.add_argument("--topic-prefix", help="<prefix>.ordering and <prefix>.payload (default: notary)")
    parser.add_argument("--partitions", type=int, help=f"payload partitions of the log, for ever (default: {PARTITIONS_DEFAULT})")
    parser.add_argument("--replication", type=int, help="of both topics (default: 3, or as many brokers as there are)")
    parser.add_argument(
        "--log-settings",
        type=Path,
        metavar="FILE",
        help="TOML with settings of [log], such as security_protocol and ca_file: used for the topics and kept in the configuration",
    )
    parser.add_argument("--json", action="store_true", help="say what was made as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Make everything; 0 when it is there."""
    directory: Path = arguments.directory
    check_origin(arguments.origin)
    name_bytes = len(arguments.name.encode(errors="surrogateescape"))
    if not 0 < name_bytes <= NAME_BYTES_MAX or not parties.is_utf8(arguments.name):
        raise ConfigurationError(f"--name has 1 to {NAME_BYTES_MAX} bytes of UTF-8, this one has {name_bytes}")
    if not parties.is_utf8(str(directory)):
        raise ConfigurationError(f"the directory {str(directory)!r} is not UTF-8")
    log_settings = _log_settings(arguments)
    kafka = log_settings.kind == "kafka"
    # The configuration last: a directory that has one is complete.
    files = (KEY, KEY_HISTORY, PARTIES, CONFIG)
    names = files if kafka else (LOG, *files)
    made = CreatedTopics((), (), ())
    try:
        with staged(directory, names) as stage:
            key = keys.create(stage / KEY)
            keys.create_history(stage / KEY_HISTORY, arguments.origin, key.public_key())
            parties.write(stage / PARTIES, {})
            write(stage / CONFIG, _toml(arguments, log_settings))
            if kafka:
                # Not before all that can fail here has been written: of all this, topics alone cannot be taken back.
                made = asyncio.run(_topics(arguments, log_settings))
            else:
                EmbeddedLog.create(stage / LOG, log_settings.payload_partitions)
    except OSError as problem:
        raise ConfigurationError(f"cannot make a notary in {directory}: {problem.strerror or problem}") from None
    warnings, topics = list(made.warnings), list(topic_names(log_settings.topic_prefix)) if kafka else []
    if made.existed:
        warnings.append(
            f"{' and '.join(made.existed)} existed already, and this directory has a key of its own: the workers of one notary share"
            " one directory's key and parties; copy that directory instead if this is the same notary"
        )
    file = directory / CONFIG
    verifier_key = keys.verifier_key(arguments.origin, key.public_key())
    for warning in warnings:
        print(f"notary init: warning: {warning}", file=sys.stderr)
    if arguments.json:
        told = {
            "directory": str(directory),
            "config": str(file),
            "verifier_key": verifier_key,
            "topics": topics,
            "warnings": warnings,
        }
        print(json.dumps(told))
    else:
        print(f"configuration  {file}")
        print(f"key            {directory / KEY} (keep it secret, keep a copy)")
        print(f"verifier key   {verifier_key}")
        print(f"log            {', '.join(topics) or directory / LOG}")
        print(f"next           notary party add NAME --public-key FILE --config {file}")
    return EXIT_DONE


async def _topics(arguments: argparse.Namespace, log_settings: LogConfig) -> CreatedTopics:
    return await create_topics(
        log_settings.bootstrap,
        log_settings.topic_prefix,
        payload_partitions=log_settings.payload_partitions,
        replication=arguments.replication,
        security=kafka_security(log_settings, arguments.directory),
    )


def _log_settings(arguments: argparse.Namespace) -> LogConfig:
    """`[log]` as the flags and the file of `--log-settings` say it; raises `ConfigurationError`."""
    given: dict[str, Any] = {}
    if arguments.log_settings is not None:
        if arguments.kafka is None:
            raise ConfigurationError("--log-settings goes with --kafka: the embedded log has none")
        try:
            given = tomllib.loads(arguments.log_settings.read_bytes().decode())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
            raise ConfigurationError(f"--log-settings {arguments.log_settings}: {problem}") from None
    flags = {"bootstrap": arguments.kafka, "topic_prefix": arguments.topic_prefix, "payload_partitions": arguments.partitions}
    given = {"payload_partitions": PARTITIONS_DEFAULT} | given | {key: value for key, value in flags.items() if value is not None}
    # An empty list of brokers is a mistake of a script, and not a wish for an embedded log.
    given["kind"] = "embedded" if arguments.kafka is None else "kafka"
    try:
        settings = msgspec.convert(given, LogConfig)
    except msgspec.ValidationError as problem:
        raise ConfigurationError(f"--log-settings {arguments.log_settings}: {problem}") from None
    if not 1 <= settings.payload_partitions <= PARTITIONS_MAX:
        raise ConfigurationError(f"--partitions {settings.payload_partitions} should be 1 to {PARTITIONS_MAX}")
    return settings


def _toml(arguments: argparse.Namespace, log_settings: LogConfig) -> str:
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
    for field in msgspec.structs.fields(LogConfig):
        value = getattr(log_settings, field.name)
        # What is as it would be anyway is left to the defaults, but for what a reader looks for.
        if value != field.default or field.name == "kind" or (field.name == "directory" and log_settings.kind == "embedded"):
            lines.append(f"{field.name} = {_quoted(value) if isinstance(value, str) else value}")
    lines += ["", "[http]", 'listen = "127.0.0.1:8080"', ""]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    # A JSON string is a TOML basic string, but for the one control character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
