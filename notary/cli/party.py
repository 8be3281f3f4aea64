"""`notary party add`: registers a party's public key or certificate."""

import argparse
import json
from pathlib import Path

from notary import parties
from notary.cli import EXIT_DONE
from notary.config import load
from ordering.errors import ConfigurationError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary party`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="register a party; running workers take it in within seconds")
    add.add_argument("name", metavar="NAME", help="the party's name, an X.500 name, compared byte for byte")
    add.add_argument("--public-key", required=True, type=Path, metavar="FILE", help="PEM public key or certificate: Ed25519 or P-256")
    add.add_argument("--config", required=True, type=Path, metavar="F", help="notary.toml")
    add.add_argument("--json", action="store_true", help="say what was done as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Register the party. Returns 0, also when the party is registered with that key already."""
    config = load(arguments.config)
    try:
        pem = arguments.public_key.read_bytes()
    except OSError as problem:
        raise ConfigurationError(f"cannot read {arguments.public_key}: {problem.strerror}") from None
    added = parties.add(config.path(config.parties_file), arguments.name, pem, str(arguments.public_key))
    if arguments.json:
        print(json.dumps({"party": arguments.name, "added": added}))
    else:
        print(f"{'registered' if added else 'registered already:'} {arguments.name}")
    return EXIT_DONE
