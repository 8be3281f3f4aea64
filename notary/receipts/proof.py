"""Receipts: C2SP tlog-proofs, their writer and their reader.

    c2sp.org/tlog-proof@v1
    index <position>
    <base64 of a hash>          from the leaf up, a line each
    <blank line>
    <checkpoint>

The notary's receipts have no `extra` line, so they hold no unsigned data.

The writer makes bytes: a text, or the JSON string of an answer, which differs in its line ends. Python strings would cost four times as
much: the dash of a signature line makes every character of the string two bytes wide.
"""

from binascii import b2a_base64
from collections.abc import Sequence
from typing import Final

import msgspec

from notary.receipts.checkpoint import decimal
from notary.receipts.errors import NotVerified
from notary.receipts.note import NOTE_BYTES_MAX, from_base64
from notary.tree import HASH_BYTES
from ordering.ids import excerpt

HEAD: Final = "c2sp.org/tlog-proof@v1\nindex "
HASHES_MAX: Final = 63
"""The longest path in a tree of fewer than 2^63 leaves."""
NEW_LINE: Final = b"\n"
NEW_LINE_JSON: Final = b"\\n"
"""A new line within a JSON string."""
_FIRST: Final = HEAD.encode() + b"%d"
_FIRST_JSON: Final = b'"' + _FIRST.replace(NEW_LINE, NEW_LINE_JSON)


class Proof(msgspec.Struct, frozen=True):
    """A parsed receipt; only its form has been checked."""

    index: int
    hashes: tuple[bytes, ...]
    checkpoint: str


def lines_of(hashes: Sequence[bytes]) -> list[bytes]:
    """Returns the lines of these hashes, without their ends."""
    return [b2a_base64(node, newline=False) for node in hashes]


def receipt_text(index: int, lines: Sequence[bytes], above: bytes, checkpoint: str) -> bytes:
    """Returns a receipt in UTF-8. `above`: the last lines of its proof, with a `NEW_LINE` after each."""
    return NEW_LINE.join([_FIRST % index, *lines, above + NEW_LINE + checkpoint.encode()])


def receipt_json(index: int, lines: Sequence[bytes], above: bytes, checkpoint: bytes) -> bytes:
    """Returns a receipt as a JSON string. `above` has a `NEW_LINE_JSON` after each line; `checkpoint` is from `checkpoint_json`."""
    return NEW_LINE_JSON.join([_FIRST_JSON % index, *lines, above + checkpoint])


def checkpoint_json(checkpoint: str) -> bytes:
    """Returns the rest of a receipt's JSON string: the blank line and the checkpoint."""
    return msgspec.json.encode("\n" + checkpoint)[1:]


def proof_of(receipt: str) -> Proof:
    """Parses a receipt. Raises `NotVerified` ("malformed-receipt")."""
    if len(receipt) > NOTE_BYTES_MAX:
        raise _malformed(f"a receipt of {len(receipt)} characters is too long")
    if not receipt.startswith(HEAD):
        raise _malformed(f"it does not begin with {HEAD!r}: {excerpt(receipt[:60])}")
    head, blank, checkpoint = receipt.partition("\n\n")
    if not blank:
        raise _malformed("there is no blank line between the proof and its checkpoint: it is cut off")
    index_text, *lines = head[len(HEAD) :].split("\n")
    index = decimal(index_text)
    if index is None:
        raise _malformed(f"the index {excerpt(index_text, 40)} is no decimal number below 2^63")
    if len(lines) > HASHES_MAX:
        raise _malformed(f"it has {len(lines)} hashes: no path is longer than {HASHES_MAX}")
    hashes = tuple([from_base64(line, "malformed-receipt", f"hash {number} of the proof") for number, line in enumerate(lines)])
    for number, node in enumerate(hashes):
        if len(node) != HASH_BYTES:
            raise _malformed(f"hash {number} of the proof has {len(node)} bytes, not {HASH_BYTES}")
    return Proof(index, hashes, checkpoint)


def _malformed(what: str) -> NotVerified:
    return NotVerified("malformed-receipt", what)
