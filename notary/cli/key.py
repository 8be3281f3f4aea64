"""`notary key show`, `prepare` and `rotate`: show and rotate the notary's own key.

A rotation takes effect by a `key` record in the log (R10), at the same place for every worker. `prepare` makes the files of the new key.
`rotate` appends the record, then moves these files into place. `notary.keys` lists what a crash after each step leaves.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from notary import keys
from notary.cli import owner, print_result
from notary.config import Config, load
from notary.exit_codes import EXIT_DONE
from ordering.signatures import SigningKey, endorse_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary key`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in (
        ("show", "print the present verifier key and the key history, checked"),
        ("prepare", "make the key that follows the present one, to be copied to every worker's machine before `rotate`"),
        ("rotate", "put the prepared key in force in the log; once for a notary, not for each worker"),
    ):
        action = actions.add_parser(name, help=summary, description=summary)
        if name == "rotate":
            owner.add_index_argument(action)
            owner.add_arguments(action)
            action.add_argument("--lost", action="store_true", help="no machine and no backup has the present key: begin a new key history")
        else:
            action.add_argument("--config", required=True, type=Path, metavar="F", help="notary.toml")
            action.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show, prepare or rotate. Returns 0; 1 when the `key` record did not take effect."""
    config = load(arguments.config)
    if arguments.action == "rotate":
        return asyncio.run((_replace_lost if arguments.lost else _rotate)(config, arguments))
    action = _prepare if arguments.action == "prepare" else _show
    action(config, as_json=arguments.json)
    return EXIT_DONE


def _show(config: Config, *, as_json: bool) -> None:
    history = keys.present_history(config.key_files)
    waiting = keys.prepared(config.key_files)
    # The member `keys` has the form of `GET /v1/notary`, so that a verifier can use either.
    facts: dict[str, Any] = {"verifier_key": history[-1].verifier_key, "keys": msgspec.to_builtins(history)}
    lines = [f"verifier key   {history[-1].verifier_key}"]
    lines += [f"{f'key {number}':<15}{each.verifier_key}" for number, each in enumerate(history, 1)]
    if waiting is not None:
        facts["prepared"] = waiting.verifier_key
        lines.append(f"prepared       {waiting.verifier_key}")
    print_result(facts, lines, as_json=as_json)


def _prepare(config: Config, *, as_json: bool) -> None:
    files = config.key_files
    with keys.alone_with(files.key):
        waiting = keys.prepare(files)
    facts = {"verifier_key": waiting.present, "prepared": waiting.verifier_key, "found": waiting.found}
    lines = [
        *(["prepared       already, by an earlier call"] if waiting.found else []),
        f"present key    {waiting.present}",
        f"next key       {waiting.verifier_key}",
        f"next           copy {files.next.key} (mode 600) and {files.next.history} to every worker's machine, beside the present ones,",
        "               then run `notary key rotate` here",
    ]
    print_result(facts | files.next.shown(), lines, as_json=as_json)


async def _rotate(config: Config, arguments: argparse.Namespace) -> int:
    files = config.key_files
    with keys.alone_with(files.key):
        async with owner.replayed(config, arguments, "key rotate") as (log, signer):
            done = _complete(files, log.state.key)
            if done is None:
                waiting = keys.prepare(files)
                new = SigningKey(waiting.key.private_bytes_raw())
                outcome = await log.append(endorse_key(new, log.log_id, log.state.key), signer)
                if not outcome.took_effect:
                    return owner.report(outcome, "", {"prepared": waiting.verifier_key}, as_json=arguments.json)
                # A crash here leaves the new key in force: workers find it in `.next`, and the same command continues.
                keys.put_in_place(files)
                done = _Done(waiting.present, waiting.found, offset=outcome.offset)
    history = keys.present_history(files)
    facts = {
        "previous_verifier_key": done.previous,
        "verifier_key": history[-1].verifier_key,
        "offset": done.offset,
        "resumed": done.offset is None,
        **files.shown(),
        "keys": msgspec.to_builtins(history),
    }
    how = f"took effect    ordering record {done.offset}"
    if done.offset is None:
        how = "completed      a rotation whose record the log had already"
    lines = [how, f"old key        {done.previous}", f"new key        {history[-1].verifier_key}"]
    if config.log.kind == "embedded":
        lines.append("next           start the worker again")
    elif done.was_prepared:
        lines += [
            "next           workers that have the prepared files go on without a restart. On each machine but this one move them in place:",
            f"               mv {files.next.key} {files.key}; mv {files.next.history} {files.history}",
        ]
    else:
        lines.append(_to_copy(files))
    print_result(facts, lines, as_json=arguments.json)
    return EXIT_DONE


def _to_copy(files: keys.KeyAndHistory) -> str:
    return f"next           copy {files.key} and {files.history} to every other worker's machine now: workers without the key cannot write"


async def _replace_lost(config: Config, arguments: argparse.Namespace) -> int:
    """Put a new key in force whose predecessor is lost. The log requires only the signatures of the owner and of the new key."""
    files = config.key_files
    with keys.alone_with(files.key):
        async with owner.replayed(config, arguments, "key rotate") as (log, signer):
            lost = keys.verifier_key(config.origin, Ed25519PublicKey.from_public_bytes(log.state.key))
            new = keys.begin_anew(files, log.state.keys)
            facts: dict[str, Any] = {"verifier_key": keys.verifier_key(config.origin, new.public_key()), "key_file": str(files.key)}
            if new.public_key().public_bytes_raw() != log.state.key:  # else an earlier call appended the record and was killed
                outcome = await log.append(endorse_key(SigningKey(new.private_bytes_raw()), log.log_id, log.state.key), signer)
                if not outcome.took_effect:
                    return owner.report(outcome, "", facts, as_json=arguments.json)
                facts |= {"previous_verifier_key": lost, "offset": outcome.offset}
            # A crash here leaves the new key in force, and its file under `.next`: the same command continues.
            keys.end_anew(files)
    is_endorsed = len(keys.present_history(files)) > 1
    whose = "which the lost key has endorsed" if is_endorsed else "and nothing endorses it: give it to every client and verifier"
    lines = f"new key        {facts['verifier_key']}, {whose}", _to_copy(files)
    print_result(facts | {"key_history_file": str(files.history), "endorsed": is_endorsed}, lines, as_json=arguments.json)
    return EXIT_DONE


class _Done(msgspec.Struct, frozen=True):
    """A completed rotation. `offset`: the offset of its record; None if an earlier call appended it."""

    previous: str
    was_prepared: bool
    offset: int | None


def _complete(files: keys.KeyAndHistory, in_force: bytes) -> _Done | None:
    """Put a key in place that is already in force in the log. Returns None when there is no such rotation. Raises `ConfigurationError`."""
    half_placed = keys.finish(files)
    waiting = keys.prepared(files)
    if waiting is not None and waiting.key.public_key().public_bytes_raw() == in_force:
        keys.put_in_place(files)
        return _Done(waiting.present, was_prepared=True, offset=None)
    present = keys.load(files.key).public_key()
    if present.public_bytes_raw() != in_force:
        here = [keys.verifier_key(files.origin, key) for key in (present, *([waiting.key.public_key()] if waiting is not None else []))]
        raise keys.missed_rotation(files.origin, in_force, here)
    return _Done(keys.present_history(files)[-2].verifier_key, was_prepared=True, offset=None) if half_placed else None
