"""`notary key show` and `notary key rotate`: the notary's own key, and those before it."""

import argparse
import json
from pathlib import Path

import msgspec

from notary import keys
from notary.cli import EXIT_DONE
from notary.config import Config, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `notary key`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in (
        ("show", "print the present verifier key and the key history, checked"),
        ("rotate", "put a new key in place of the present one, which endorses it; once for a notary, not once for a worker"),
    ):
        action = actions.add_parser(name, help=summary, description=summary)
        action.add_argument("--config", required=True, type=Path, metavar="F", help="notary.toml")
        action.add_argument("--json", action="store_true", help="say it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show or rotate; 0 when the key file and the history fit each other (afterwards)."""
    config = load(arguments.config)
    action = _rotate if arguments.action == "rotate" else _show
    action(config, as_json=arguments.json)
    return EXIT_DONE


def _show(config: Config, *, as_json: bool) -> None:
    key = keys.load(config.path(config.key_file)).public_key()
    history = keys.load_history(config.path(config.key_history_file), config.origin, key)
    if as_json:
        # The member `keys` is as in `GET /v1/notary`: either is what a verifier follows.
        print(json.dumps({"verifier_key": keys.verifier_key(config.origin, key), "keys": msgspec.to_builtins(history)}))
        return
    print(f"verifier key   {keys.verifier_key(config.origin, key)}")
    for number, each in enumerate(history, 1):
        print(f"{f'key {number}':<15}{each.verifier_key}")


def _rotate(config: Config, *, as_json: bool) -> None:
    key_file, history_file = config.path(config.key_file), config.path(config.key_history_file)
    done = keys.rotate(key_file, history_file, config.origin)
    if as_json:
        told = {
            "previous_verifier_key": done.previous,
            "verifier_key": done.verifier_key,
            "resumed": done.resumed,
            "key_file": str(key_file),
            "key_history_file": str(history_file),
            "keys": msgspec.to_builtins(done.history),
        }
        print(json.dumps(told))
        return
    if done.resumed:
        print("completed      a rotation that had been interrupted")
    print(f"old key        {done.previous}")
    print(f"new key        {done.verifier_key}")
    print(f"next           copy {key_file} and {history_file} to every other worker's machine,")
    print("               then restart the workers, one after the other; until the last one, receipts are signed with either key")
