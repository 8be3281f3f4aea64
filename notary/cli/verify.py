"""`notary verify`: verifies receipts and checkpoints offline (docs/command-line.md).

The data to verify may come from anyone, so every error in it is a negative result (exit 1). An error in the caller's input, which is the
arguments, the verifier keys and the files that they name, is a failure (exit 2).
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final

from notary.cli import json_line
from notary.decision import Decision, leaf
from notary.exit_codes import EXIT_DONE, EXIT_NO
from notary.receipts import VerifierKey, parse_verifier_key, proof_of
from notary.receipts.note import NOTE_BYTES_MAX
from notary.tree import HASH_BYTES, TILE_BYTES, TILE_WIDTH, format_tile_path, leaf_hash
from notary.verify import (
    NotVerified,
    SignedCheckpoint,
    decision_and_receipt,
    decision_of,
    trusted_keys,
    verify_checkpoint,
    verify_consistency,
    verify_receipt,
)
from ordering.errors import ConfigurationError
from ordering.ids import format_state

FILE_BYTES_MAX: Final = 1 << 24
"""The longest file or line with a decision: 10,000 conflicts take 2 MB."""
FAILURES_SHOWN: Final = 5
TILES_KEPT: Final = 1024
_RECEIPT_HEAD: Final = b"c2sp.org/tlog-proof@"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `notary verify`."""
    receipt = "a receipt; or decisions with receipts, one a line, as submit writes them; or a checkpoint"
    parser.add_argument("receipt", metavar="RECEIPT", help=receipt)
    parser.add_argument("--decision", metavar="FILE", help="the decision that the receipt is for, as JSON")
    key = "the notary's verifier key, from a source that you trust; may be given again"
    parser.add_argument("--verifier-key", metavar="KEY", required=True, action="append", help=key)
    parser.add_argument("--key-history", metavar="FILE", help="the answer of GET /v1/notary: also trust the keys that your key endorses")
    parser.add_argument("--consistent-with", metavar="FILE", help="a checkpoint, or a receipt: check that it is of the same tree")
    parser.add_argument("--tiles", metavar="DIR", help="a folder with the larger tree's tiles, in tile/, for --consistent-with")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Verify the files. Returns 0 when everything verifies, 1 when something does not."""
    _check_usage(arguments)
    try:
        keys = [parse_verifier_key(key) for key in arguments.verifier_key]
    except NotVerified as rejection:
        raise ConfigurationError(f"--verifier-key: {rejection.what}. Copy it completely, as the operator gives it") from None
    found: dict[str, Any]
    try:
        if arguments.key_history is not None:
            history = _read(arguments.key_history, FILE_BYTES_MAX)
            with _named(arguments.key_history):
                keys = trusted_keys(keys, history)
        checkpoints, found = _verify(arguments, keys)
        if found["verified"] and arguments.consistent_with is not None:
            found["consistent_with"] = _consistent(arguments, keys, checkpoints)
    except NotVerified as rejection:
        found = {"verified": False, "reason": rejection.reason, "detail": rejection.what}
        print(f"notary verify: {rejection}", file=sys.stderr)
    if arguments.json:
        print(json_line(found))
    elif found["verified"]:
        print(_rendered(found))
    if found.get("reason") == "unknown-key" and arguments.key_history is None:
        remedy = "if the key was rotated, name the answer of GET /v1/notary with --key-history"
        print(f"notary verify: {remedy}", file=sys.stderr)
    return EXIT_DONE if found["verified"] else EXIT_NO


def _check_usage(arguments: argparse.Namespace) -> None:
    files = [arguments.receipt, arguments.decision, arguments.key_history, arguments.consistent_with]
    if files.count("-") > 1:
        raise ConfigurationError("standard input can be read once: give - for one file only")
    if arguments.tiles is not None and arguments.consistent_with is None:
        raise ConfigurationError("--tiles needs --consistent-with: name a checkpoint to compare with")


def _verify(arguments: argparse.Namespace, keys: list[VerifierKey]) -> tuple[list[SignedCheckpoint], dict[str, Any]]:
    """Verify the receipt, decisions or checkpoint. Returns (the verified checkpoints, the result object)."""
    if arguments.decision is not None:
        receipt = _read(arguments.receipt, NOTE_BYTES_MAX)
        text = _read(arguments.decision, FILE_BYTES_MAX)
        with _named(arguments.decision):
            decision = decision_of(text)
        checkpoint = verify_receipt(receipt, decision, keys)
        _Proven().add(decision, 1)  # one decision can contradict itself
        return [checkpoint], {"verified": True, "position": decision.position, **_as_object(checkpoint)}
    with _open(arguments.receipt) as stream:
        first = stream.readline(FILE_BYTES_MAX)
        if first.lstrip()[:1] == b"{" or not first.strip():
            return _verify_lines(first, stream, keys)
        note = first + stream.read(NOTE_BYTES_MAX)
    if note.startswith(_RECEIPT_HEAD):
        raise ConfigurationError(f"{arguments.receipt} is a receipt: give the decision that it is for with --decision")
    try:
        checkpoint = verify_checkpoint(note, keys)
    except NotVerified as rejection:
        if rejection.reason != "malformed-checkpoint":
            raise
        what = f"{arguments.receipt} is neither a receipt, nor decisions with one JSON object a line, nor a checkpoint: {rejection.what}"
        raise NotVerified(rejection.reason, what) from None
    return [checkpoint], {"verified": True, **_as_object(checkpoint)}


def _verify_lines(first: bytes, stream: IO[bytes], keys: list[VerifierKey]) -> tuple[list[SignedCheckpoint], dict[str, Any]]:
    """Verify a decision with its receipt on each line, and report the first `FAILURES_SHOWN` failures. Returns the same as `_verify`."""
    checkpoints: dict[tuple[str, int], SignedCheckpoint] = {}
    proven: defaultdict[str, _Proven] = defaultdict(_Proven)  # by origin
    decisions = 0
    failed: set[int] = set()
    failures: list[dict[str, Any]] = []

    def fail(number: int, rejection: NotVerified) -> None:
        if number not in failed and len(failures) < FAILURES_SHOWN:
            failures.append({"line": number, "reason": rejection.reason, "detail": rejection.what})
            print(f"notary verify: line {number}: {rejection}", file=sys.stderr)
        failed.add(number)

    for number, line in _lines(first, stream):
        decisions += 1
        try:
            decision, receipt = _decision_and_receipt(line)
            if receipt is None:
                raise NotVerified("malformed-receipt", "the decision came without a receipt")
            checkpoint = verify_receipt(receipt, decision, keys)
            known = checkpoints.setdefault((checkpoint.origin, checkpoint.size), checkpoint)
            verify_consistency(known, checkpoint, _no_tile)
            proven[checkpoint.origin].add(decision, number)
        except NotVerified as rejection:
            fail(number, rejection)
    for each in proven.values():
        for number, fall in each.out_of_time():
            fail(number, fall)
    if not decisions:
        raise NotVerified("malformed-receipt", "the input is empty: it has no receipt, decision or checkpoint")
    met = list(checkpoints.values())
    if failed:
        print(f"notary verify: {len(failed)} of {decisions} decisions do not verify", file=sys.stderr)
        why = {"reason": failures[0]["reason"], "detail": f"line {failures[0]['line']}: {failures[0]['detail']}"}
        return met, {"verified": False, **why, "decisions": decisions, "failed": len(failed), "failures": failures}
    by_size = sorted(met, key=lambda checkpoint: checkpoint.size)
    *others, largest = sorted({each.origin: each for each in by_size}.values(), key=lambda checkpoint: checkpoint.size)
    more = {"others": [_as_object(each) for each in others]} if others else {}
    return met, {"verified": True, "decisions": decisions, **_as_object(largest), **more}


def _decision_and_receipt(line: bytes) -> tuple[Decision, str | None]:
    try:
        return decision_and_receipt(line)
    except NotVerified as rejection:
        if not rejection.what.startswith("it is no JSON") or line.rstrip().endswith(b"}"):
            raise
        raise NotVerified(rejection.reason, f"{rejection.what}; give each decision on a line of its own, as submit writes it") from None


class _Proven:
    """The proven decisions of one notary, compared with each other: checkpoints of different sizes are not compared, for want of tiles.

    A rejection may cite a consumer that has a later position: a salvage may have lost its decision (docs/salvage.md).
    """

    def __init__(self) -> None:
        # Each decision has its leaf hash, its log time and its line.
        self._positions: dict[int, tuple[bytes, int, int]] = {}
        self._transactions: dict[bytes, tuple[bytes, int, int]] = {}
        self._consumers: dict[bytes, tuple[bytes, int]] = {}  # state -> `consumed_by`, and the line that has it first

    def add(self, decision: Decision, number: int) -> None:
        """Add the decision of a line. Raises `NotVerified` if an earlier line or the decision itself contradicts it."""
        decided = leaf_hash(leaf(decision)), decision.log_time_ms, number
        before = self._positions.setdefault(decision.position, decided)
        if before[0] != decided[0]:
            raise _inconsistent(f"another decision at position {decision.position}, that of line {before[2]}")
        before = self._transactions.setdefault(decision.transaction_id, decided)
        if before[0] != decided[0]:
            raise _inconsistent(f"another decision of transaction {decision.transaction_id.hex()}, that of line {before[2]}")
        itself = sha256(decision.transaction_id).digest() if decision.conflicts else b""
        for conflict in decision.conflicts:
            if conflict.consumed_by == itself:
                raise _inconsistent(f"the rejected transaction itself as the consumer of state {format_state(conflict.state)}")
            consumer, at = self._consumers.setdefault(conflict.state, (conflict.consumed_by, number))
            if consumer != conflict.consumed_by:
                raise _inconsistent(f"another consumer of state {format_state(conflict.state)}, in line {at}")

    def out_of_time(self) -> Iterator[tuple[int, NotVerified]]:
        """Yields (line, error) of each decision whose log time is before that of the position before it."""
        for position, following in pairwise(sorted(self._positions)):
            (_, time_ms, at), (_, time_next_ms, number) = self._positions[position], self._positions[following]
            if time_next_ms < time_ms:
                fall = f"falls from {time_ms} at position {position}, in line {at}, to {time_next_ms} at position {following}"
                yield number, NotVerified("inconsistent", f"log time {fall}")


def _inconsistent(other: str) -> NotVerified:
    return NotVerified("inconsistent", f"the notary signed {other}")


def _lines(first: bytes, stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields (number, line) of each line that is not blank."""
    number, line = 1, first
    while line:
        if len(line) >= FILE_BYTES_MAX:
            raise ConfigurationError(f"line {number} is too long: at most {FILE_BYTES_MAX} bytes")
        if line.strip():
            yield number, line
        number, line = number + 1, stream.readline(FILE_BYTES_MAX)


def _consistent(arguments: argparse.Namespace, keys: list[VerifierKey], checkpoints: list[SignedCheckpoint]) -> dict[str, Any]:
    note = _read(arguments.consistent_with, NOTE_BYTES_MAX)
    with _named(arguments.consistent_with):
        try:
            if note.startswith(_RECEIPT_HEAD):
                note = proof_of(note.decode()).checkpoint.encode()
            other = verify_checkpoint(note, keys)
        except UnicodeDecodeError:
            raise NotVerified("malformed-receipt", "it is not UTF-8") from None
    read = _no_tile if arguments.tiles is None else _tiles_under(Path(arguments.tiles))
    # All are compared with the largest: two trees may have the smaller ones in common.
    largest = max([*checkpoints, other], key=lambda checkpoint: checkpoint.size)
    for checkpoint in (*checkpoints, other):
        verify_consistency(checkpoint, largest, read)
    return _as_object(other)


def _no_tile(level: int, index: int, width: int) -> bytes:
    raise ConfigurationError("checkpoints of different sizes need the tiles of the larger tree to be compared: give --tiles DIR")


def _tiles_under(folder: Path) -> Callable[[int, int, int], bytes]:
    """Returns a function that reads tiles from a folder; it also accepts a wider version of a tile."""
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is no folder: --tiles should name the folder that has tile/")

    @lru_cache(maxsize=TILES_KEPT)
    def read(level: int, index: int, width: int) -> bytes:
        for wide in (TILE_WIDTH, *range(width, TILE_WIDTH)):
            try:
                with open(folder / format_tile_path(level, index, wide), "rb") as file:
                    tile = file.read(TILE_BYTES)
            except FileNotFoundError:
                continue
            if len(tile) >= HASH_BYTES * width:
                return tile
        path = format_tile_path(level, index, width)
        raise ConfigurationError(
            f"the tile {folder / path}, or a wider version of it, is missing or has fewer than {HASH_BYTES * width} bytes: copy it there"
        )

    return read


@contextmanager
def _named(file: str) -> Iterator[None]:
    """Puts the file's name into the `NotVerified` of its content."""
    try:
        yield
    except NotVerified as rejection:
        raise NotVerified(rejection.reason, f"{file}: {rejection.what}") from None


def _read(name: str, bytes_max: int) -> bytes:
    with _open(name) as stream:
        content = stream.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ConfigurationError(f"{name} is too large: at most {bytes_max} bytes are read")
    return content


def _open(name: str) -> IO[bytes]:
    try:
        return open(0, "rb", closefd=False) if name == "-" else open(name, "rb")
    except OSError as problem:
        raise ConfigurationError(f"{name} cannot be read: {problem.strerror}") from None


def _as_object(checkpoint: SignedCheckpoint) -> dict[str, Any]:
    return {"origin": checkpoint.origin, "tree_size": checkpoint.size, "root": checkpoint.root.hex()}


def _rendered(found: dict[str, Any]) -> str:
    tree = f"the tree of {found['origin']} with {found['tree_size']} decisions, root {found['root']}"
    if "position" in found:
        text = f"verified: decision {found['position']} is in {tree}"
    elif "decisions" in found:
        text = f"verified: {found['decisions']} decisions, the last checkpoint of {tree}"
    else:
        text = f"verified: a checkpoint of {tree}"
    for each in found.get("others", ()):
        text += f"; and of {each['origin']} with {each['tree_size']} decisions, root {each['root']}"
    if "consistent_with" in found:
        text += f"; consistent with that of {found['consistent_with']['tree_size']} decisions"
    return text
