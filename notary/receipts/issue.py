"""`Issuer`: makes checkpoints and receipts of the tree at its present size. It signs each tree size once, for any number of receipts.

Nothing in a receipt depends on the worker: Ed25519 signs without randomness, so the same size gives the same bytes everywhere.

Receipts are built as bytes, in the JSON string form that answers hold. As Python strings they cost four times as much: the dash of a
signature line makes every character of the string two bytes wide.
"""

from binascii import b2a_base64
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.receipts.checkpoint import Checkpoint
from notary.receipts.note import sign_note
from notary.receipts.proof import HEAD
from notary.tree import TILE_HEIGHT, TILE_WIDTH, View, siblings

GROUP_HEIGHT: Final = 4
GROUP_WIDTH: Final = 1 << GROUP_HEIGHT
"""The number of neighbouring receipts that share the hashes above their group; these are computed once for the group."""
GROUPS_KEPT: Final = 1_024
"""Groups kept in memory, about 4 MB. Requests for receipts spread over a large tree miss this cache."""
_NEW_LINE: Final = b"\\n"
_BEGINNING: Final = b'"' + HEAD.encode().replace(b"\n", _NEW_LINE)


class Issuer:
    """Signs checkpoints of one origin's growing tree, and makes receipts from it."""

    def __init__(self, origin: str, key: Ed25519PrivateKey, view: Callable[[], View]) -> None:
        """`view` returns the tree at its present size; the same object as long as it has not grown."""
        self._origin = origin
        self._key = key
        self._view = view
        self._signed: View | None = None
        self._checkpoint = ""
        self._ending = b""
        # Per group number: the lines of the group's own hashes at each height, and the ending that all its receipts share.
        self._groups: dict[int, tuple[list[list[bytes]], bytes]] = {}
        self.signatures = 0

    def sign_with(self, key: Ed25519PrivateKey) -> None:
        """Sign with this key from now on: the notary's key was rotated."""
        self._key, self._signed = key, None

    def checkpoint(self) -> str:
        """Returns the signed checkpoint of the tree at its present size."""
        self._sign()
        return self._checkpoint

    def receipt(self, position: int) -> str:
        """Returns the receipt of the decision at that position, which must be in the tree."""
        receipt: str = msgspec.json.decode(self.receipt_json(position))
        return receipt

    def receipt_json(self, position: int) -> bytes:
        """Returns the receipt as `receipt` does, encoded as a JSON string."""
        view = self._sign()
        assert 0 <= position < view.size, f"there is no decision {position} in a tree of {view.size}"
        group, at = divmod(position, GROUP_WIDTH)
        made = self._groups.get(group)
        if made is None:
            if len(self._groups) >= GROUPS_KEPT:
                self._groups.clear()
            made = self._groups[group] = self._make_group(view, group)
        rows, rest = made
        parts = [_BEGINNING, b"%d" % position, _NEW_LINE]
        for row in rows:
            neighbour = at ^ 1
            if neighbour < len(row):
                parts.append(row[neighbour])
            at >>= 1
        parts.append(rest)
        return b"".join(parts)

    def _make_group(self, view: View, group: int) -> tuple[list[list[bytes]], bytes]:
        tile, at = divmod(group, TILE_WIDTH >> GROUP_HEIGHT)
        inside = view.inside(tile)
        own = [
            _lines(row[at << GROUP_HEIGHT - height : (at + 1) << GROUP_HEIGHT - height]) for height, row in enumerate(inside[:GROUP_HEIGHT])
        ]
        above = siblings(inside[GROUP_HEIGHT:TILE_HEIGHT], at) + view.above(tile)
        return own, b"".join(_lines(above)) + self._ending

    def _sign(self) -> View:
        view = self._view()
        if view is not self._signed:
            self._checkpoint = sign_note(Checkpoint(self._origin, view.size, view.root).text(), [(self._origin, self._key)])
            self._ending = msgspec.json.encode("\n" + self._checkpoint)[1:]
            self._signed = view
            self._groups.clear()
            self.signatures += 1
        return view


def _lines(hashes: Sequence[bytes]) -> list[bytes]:
    return [b2a_base64(node, newline=False) + _NEW_LINE for node in hashes]
