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
from notary.config import NAME_BYTES_MAX, LogConfig, check_origin, kafka_security
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError
from ordering.topics import create_topics, topic_names

PARTITIONS_DEFAULT = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `notary init`."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="made if it is not there; nothing in it is overwritten")
    parser.add_argument("--name", required=True, help="the notary's name, an X.500 name; part of every transaction id, for ever")
    parser.add_argument("--origin", required=True, help="the origin of its checkpoints, e.g. notary.example/london")
    parser.add_argument("--kafka", metavar="HOST:PORT,...", help="brokers: creates and checks the topics; left out: an embedded log")
    parser.add_argument("--topic-prefix", default="notary", help="<prefix>.ordering and <prefix>.payload (default: notary)")
    parser.add_argument("--partitions", type=int, default=PARTITIONS_DEFAULT, help=f"of the payload topic (default: {PARTITIONS_DEFAULT})")
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
    if not 1 <= arguments.partitions <= 1000:
        raise ConfigurationError(f"--partitions {arguments.partitions} should be 1 to 1000")
    file = directory / "notary.toml"
    for made_here in (file, directory / "notary-key.pem", directory / "parties.json"):
        if made_here.exists():
            raise ConfigurationError(f"{made_here} exists already: nothing is overwritten; choose another directory")
    warnings: list[str] = []
    topics: list[str] = []
    log_settings = _log_settings(arguments)
    if arguments.kafka:
        # First what can fail: with no topics there is no configuration that claims them.
        made = asyncio.run(
            create_topics(
                arguments.kafka,
                arguments.topic_prefix,
                payload_partitions=arguments.partitions,
                replication=arguments.replication,
                security=kafka_security(log_settings, directory),
            )
        )
        warnings, topics = list(made.warnings), list(topic_names(arguments.topic_prefix))
        if made.existed:
            warnings.append(
                f"{' and '.join(made.existed)} existed already, and this directory has a key of its own: the workers of one notary share"
                " one directory's key and parties; copy that directory instead if this is the same notary"
            )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigurationError(f"cannot make {directory}: {problem.strerror}") from None
    key = keys.create(directory / "notary-key.pem")
    parties.write(directory / "parties.json", {})
    if not arguments.kafka:
        EmbeddedLog.create(directory / "log", arguments.partitions)
    # Last: a directory with a configuration is complete.
    try:
        file.write_bytes(_toml(arguments, log_settings).encode())
    except OSError as problem:
        raise ConfigurationError(f"cannot write {file}: {problem.strerror}") from None
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
        print(f"key            {directory / 'notary-key.pem'} (keep it secret, keep a copy)")
        print(f"verifier key   {verifier_key}")
        print(f"log            {', '.join(topics) or directory / 'log'}")
        print(f"next           notary party add NAME --public-key FILE --config {file}")
    return EXIT_DONE


def _log_settings(arguments: argparse.Namespace) -> LogConfig:
    """`[log]` as the flags and the file of `--log-settings` say it; raises `ConfigurationError`."""
    given: dict[str, Any] = {}
    if arguments.log_settings is not None:
        if not arguments.kafka:
            raise ConfigurationError("--log-settings goes with --kafka: the embedded log has none")
        try:
            given = tomllib.loads(arguments.log_settings.read_bytes().decode())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
            raise ConfigurationError(f"--log-settings {arguments.log_settings}: {problem}") from None
    if arguments.kafka:
        given |= {"kind": "kafka", "bootstrap": arguments.kafka, "topic_prefix": arguments.topic_prefix}
    try:
        return msgspec.convert(given, LogConfig)
    except msgspec.ValidationError as problem:
        raise ConfigurationError(f"--log-settings {arguments.log_settings}: {problem}") from None


def _toml(arguments: argparse.Namespace, log_settings: LogConfig) -> str:
    lines = [
        "# A notary's configuration. Every setting: docs/configuration.md.",
        f"name = {_quoted(arguments.name)}",
        f"origin = {_quoted(arguments.origin)}",
        'key_file = "notary-key.pem"',
        'parties_file = "parties.json"',
        "",
        "[log]",
    ]
    for field in msgspec.structs.fields(LogConfig):
        value = getattr(log_settings, field.name)
        # What is as it would be anyway is left to the defaults, but for what a reader looks for.
        if value != field.default or field.name == "kind" or (field.name == "directory" and not arguments.kafka):
            lines.append(f"{field.name} = {_quoted(value) if isinstance(value, str) else value}")
    lines += ["", "[http]", 'listen = "127.0.0.1:8080"', ""]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    # A JSON string is a TOML basic string, but for the one control character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
