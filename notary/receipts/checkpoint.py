"""C2SP checkpoints (tlog-checkpoint), the text that the notary signs: a line each for origin, tree size and root; no extension lines."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from notary.receipts.errors import NotVerified
from notary.receipts.note import VerifierKey, from_base64, open_note, to_base64
from notary.tree import EMPTY_ROOT, HASH_BYTES
from ordering.ids import excerpt

SIZE_MAX: Final = 2**63 - 1
_decimal = re.compile("0|[1-9][0-9]{0,18}").fullmatch


class SignedCheckpoint(msgspec.Struct, frozen=True):
    """The root (32 bytes) of the tree of the first `size` decisions of the notary with that origin."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        """Returns the text to sign."""
        return f"{self.origin}\n{self.size}\n{to_base64(self.root)}\n"


def checkpoint_of(note: str, keys: Sequence[VerifierKey]) -> SignedCheckpoint:
    """Returns the checkpoint of a signed note. Raises `NotVerified` unless one of the keys, named like the origin, signed it."""
    return checkpoint_and_signer(note, keys)[0]


def checkpoint_and_signer(note: str, keys: Sequence[VerifierKey]) -> tuple[SignedCheckpoint, VerifierKey]:
    """Returns the checkpoint as `checkpoint_of` does, and the first of the keys that signed it."""
    text, signed_by = open_note(note, keys, "malformed-checkpoint")
    lines = text[:-1].split("\n")
    if len(lines) != 3:
        raise NotVerified("malformed-checkpoint", f"a checkpoint has three lines, origin, size and root; this one has {len(lines)}")
    origin, size_text, root_text = lines
    if all(key.name != origin for key in signed_by):
        raise NotVerified("wrong-origin", f"the checkpoint is of {excerpt(origin)}, and the key is of {excerpt(signed_by[0].name)}")
    size = decimal(size_text)
    if size is None:
        raise NotVerified("malformed-checkpoint", f"the tree size {excerpt(size_text, 40)} is no decimal number below 2^63")
    root = from_base64(root_text, "malformed-checkpoint", "the root")
    if len(root) != HASH_BYTES:
        raise NotVerified("malformed-checkpoint", f"the root has {len(root)} bytes, not {HASH_BYTES}")
    if not size and root != EMPTY_ROOT:
        raise NotVerified("malformed-checkpoint", "a tree of no leaves has the root SHA-256 of nothing")
    return SignedCheckpoint(origin, size, root), signed_by[0]


def decimal(text: str) -> int | None:
    """Parses a canonical decimal below 2^63; returns None for anything else."""
    if _decimal(text) is None or (number := int(text)) > SIZE_MAX:
        return None
    return number
