"""`notary party add`: registers a party's public key or certificate."""

import argparse
from pathlib import Path
from typing import Final

from notary import parties
from notary.cli import json_line
from notary.config import load
from notary.exit_codes import EXIT_DONE
from ordering.errors import ConfigurationError

_DONE: Final[dict[parties.Added, str]] = {"added": "registered", "changed": "changed", "unchanged": "registered already:"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary party`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="register a party; running workers read the file again within seconds")
    add.add_argument("name", metavar="NAME", help="the party's name, an X.500 name, compared byte for byte")
    add.add_argument("--public-key", required=True, type=Path, metavar="FILE", help="PEM public key or certificate: Ed25519 or P-256")
    add.add_argument("--weight", type=int, metavar="N", help=f"its share, relative to other parties: 1 (default) to {parties.WEIGHT_MAX}")
    add.add_argument("--quota", type=int, metavar="N", help="requests a second, 0 for none (default: the configuration's)")
    add.add_argument("--config", required=True, type=Path, metavar="F", help="notary.toml")
    add.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Register the party, or change its weight and quota. Returns 0, even if nothing changes."""
    config = load(arguments.config)
    try:
        pem = arguments.public_key.read_bytes()
    except OSError as problem:
        raise ConfigurationError(f"cannot read {arguments.public_key}: {problem.strerror}") from None
    file, source = config.path(config.parties_file), str(arguments.public_key)
    done = parties.add(file, arguments.name, pem, source, arguments.weight, arguments.quota)
    known = "" if done == "unchanged" else f"; workers that use the file {file} read it within {parties.CHECK_S:g} s"
    facts = {"party": arguments.name, "added": done == "added", "changed": done == "changed"}
    print(json_line(facts) if arguments.json else f"{_DONE[done]} {arguments.name}{known}")
    return EXIT_DONE
