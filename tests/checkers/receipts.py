"""The receipts and checkpoints that clients received, verified with the notary's public keys alone and compared with the tree.

A receipt is a C2SP tlog-proof: `index`, the hashes of an RFC 6962 inclusion proof, a blank line, and a checkpoint, which is a signed note
of three lines: origin, size, root. Every root must be the one that the decisions give at its size; so any two of them are consistent.
"""

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from struct import error
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.checkers.precedence import Decided
from tests.checkers.tree import Tree, leaf_of
from tests.checkers.violation import Kind, Violation

HEAD = "c2sp.org/tlog-proof@v1\n"
NOTES_KEPT = 10_000
PATH_MAX = 63


class Checkpoint(NamedTuple):
    """A tree size and root that one of the notary's keys has signed."""

    size: int
    root: bytes
    key: str


class _BadError(Exception):
    """Raised when something does not verify: (kind, found, expected)."""


def violations(keys: Sequence[str], decisions: Iterable[Decided], tree: Tree, notes: Iterable[str] = ()) -> list[Violation]:
    """Check that each decision's "receipt" verifies, and that every checkpoint, in receipts or alone (`notes`), is one of this tree.

    `keys`: the notary's verifier keys in their text form. `tree`: `Replayed.tree`, or `Tree([leaf_of(decision) for decision in ...])`.
    """
    found: list[Violation] = []
    heard: dict[str, Checkpoint] = {}
    trusted = tuple(keys)
    for decision in decisions:
        place = f"the receipt of {decision['transaction_id']}"
        try:
            note, checkpoint = _verify(decision["receipt"], decision, trusted)
        except _BadError as problem:
            kind, there, wanted = problem.args
            found.append(Violation(kind, place, there, wanted))
        else:
            heard[note] = checkpoint
    for note in notes:
        try:
            heard[note] = _opened(note, trusted)
        except _BadError as problem:
            kind, there, wanted = problem.args
            found.append(Violation(kind, "a checkpoint", there, wanted))
    first: dict[tuple[int, str], str] = {}
    for note, checkpoint in heard.items():
        place = f"the checkpoint of {checkpoint.size}"
        if checkpoint.size > tree.size:
            found.append(Violation(Kind.AHEAD_OF_LOG, place, checkpoint.size, f"{tree.size} at most, as many as there are decisions"))
        elif checkpoint.root != tree.root(checkpoint.size):
            found.append(Violation(Kind.OTHER_TREE, place, checkpoint.root, tree.root(checkpoint.size)))
        elif (same := first.setdefault((checkpoint.size, checkpoint.key), note)) != note:
            found.append(Violation(Kind.OTHER_CHECKPOINT, place, note, same))
    return found


def _verify(receipt: str, decision: Decided, keys: tuple[str, ...]) -> tuple[str, Checkpoint]:
    proof, blank, note = receipt.partition("\n\n")
    head, *lines = proof.removeprefix(HEAD).split("\n")
    if not blank or not receipt.startswith(HEAD + "index ") or len(lines) > PATH_MAX:
        raise _BadError(Kind.BAD_RECEIPT, receipt, "a tlog-proof")
    index = _decimal(head.removeprefix("index "))
    path = [_base64(line, 32) for line in lines]
    checkpoint = _opened(note, keys)
    if index != decision["position"]:
        raise _BadError(Kind.OTHER_POSITION, index, decision["position"])
    try:
        leaf = leaf_of(decision)
    except (KeyError, ValueError, error) as problem:
        raise _BadError(Kind.BAD_PROOF, f"{decision}: {problem!r}", "a decision that has a leaf") from None
    root = _root(index, checkpoint.size, sha256(b"\x00" + leaf).digest(), path) if index < checkpoint.size else None
    if root != checkpoint.root or path:
        raise _BadError(Kind.BAD_PROOF, root, checkpoint.root)
    return note, checkpoint


def _root(index: int, size: int, leaf: bytes, path: list[bytes]) -> bytes | None:
    """Returns the root that PATH(index, D[size]) leads to and removes its hashes from the end of `path`; None if there are too few."""
    if size == 1:
        return leaf
    if not path:
        return None
    left_size = 1 << (size - 1).bit_length() - 1
    sibling = path.pop()
    left: bytes | None
    right: bytes | None
    if index < left_size:
        left, right = _root(index, left_size, leaf, path), sibling
    else:
        left, right = sibling, _root(index - left_size, size - left_size, leaf, path)
    return None if left is None or right is None else sha256(b"\x01" + left + right).digest()


def _opened(note: str, keys: tuple[str, ...]) -> Checkpoint:
    opened = _open(note, keys)
    if isinstance(opened, _BadError):
        raise _BadError(*opened.args)  # a new one: a cached exception would keep the frames of its traceback alive
    return opened


@lru_cache(maxsize=NOTES_KEPT)
def _open(note: str, keys: tuple[str, ...]) -> Checkpoint | _BadError:
    """Returns the checkpoint of a note.

    The result is cached: most receipts share a checkpoint, and a signature costs as much as all the rest together.
    """
    try:
        text, blank, signatures = note.rpartition("\n\n")
        if not blank or not signatures.endswith("\n") or text.count("\n") != 2:
            raise _BadError(Kind.BAD_RECEIPT, note, "a signed checkpoint")
        origin, size, root = text.split("\n")
        lines = [line.split(" ") for line in signatures[:-1].split("\n")]
        if any(len(line) != 3 or line[0] != "\u2014" for line in lines):
            raise _BadError(Kind.BAD_RECEIPT, signatures, "signature lines")
        for name, signature in [(line[1], _base64(line[2])) for line in lines]:
            for key in keys:
                key_name, key_id, encoded = key.split("+", 2)
                public = _base64(encoded, 33)
                if (key_name, key_id) != (name, signature[:4].hex()) or key_name != origin:
                    continue
                if public[:1] != b"\x01" or sha256(key_name.encode() + b"\n" + public).digest()[:4].hex() != key_id:
                    raise _BadError(Kind.BAD_SIGNATURE, key, "a verifier key")
                try:
                    Ed25519PublicKey.from_public_bytes(public[1:]).verify(signature[4:], f"{text}\n".encode())
                except InvalidSignature:
                    raise _BadError(Kind.BAD_SIGNATURE, note, f"signed by {key}") from None
                return Checkpoint(_decimal(size), _base64(root, 32), key)
        raise _BadError(Kind.BAD_SIGNATURE, note, f"signed by {' or '.join(keys)}")
    except _BadError as problem:
        return _BadError(*problem.args)


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and str(int(text)) == text):
        raise _BadError(Kind.BAD_RECEIPT, text, "a decimal number")
    return int(text)


def _base64(text: str, length: int | None = None) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except (Error, ValueError):
        data = b""
    if b64encode(data).decode() != text or len(data) not in (length or len(data),):
        raise _BadError(Kind.BAD_RECEIPT, text, "base64" if length is None else f"base64 of {length} bytes")
    return data
