"""`Issuer`: makes checkpoints and receipts of the tree at its present size. It signs each tree size once, for any number of receipts.

Nothing in a receipt depends on the worker: Ed25519 signs without randomness, so the same size gives the same bytes everywhere.
"""

from collections.abc import Callable
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.receipts.checkpoint import SignedCheckpoint
from notary.receipts.note import sign_note
from notary.receipts.proof import NEW_LINE, NEW_LINE_JSON, checkpoint_json, lines_of, receipt_json, receipt_text
from notary.tree import TILE_WIDTH, TreeView, siblings

GROUP_HEIGHT: Final = 4
GROUP_WIDTH: Final = 1 << GROUP_HEIGHT
"""The number of neighbouring receipts that share the hashes above their group; these are computed once for the group."""
GROUPS_KEPT: Final = 1_024
"""Groups kept in memory, about 4 MB. Requests for receipts spread over a large tree miss this cache."""


class Issuer:
    """Signs checkpoints of one origin's growing tree, and makes receipts from it."""

    def __init__(self, origin: str, key: Ed25519PrivateKey, view: Callable[[], TreeView]) -> None:
        """`view` returns the tree at its present size, and the same object until the tree grows."""
        self._origin = origin
        self._key = key
        self._view = view
        self._signed: TreeView | None = None
        self._checkpoint = ""
        self._checkpoint_json = b""
        # Per group number: the lines of the group's hashes at each height; the lines above the group, as text and in JSON.
        self._groups: dict[int, tuple[list[list[bytes]], bytes, bytes]] = {}
        self.signatures = 0

    def sign_with(self, key: Ed25519PrivateKey) -> None:
        """Sign with this key from now on: the notary's key was rotated."""
        self._key, self._signed = key, None

    def checkpoint(self) -> str:
        """Returns the signed checkpoint of the tree at its present size."""
        self._sign()
        return self._checkpoint

    def receipt(self, position: int) -> bytes:
        """Returns the text of the receipt of the decision at that position, which must be in the tree."""
        lines, above, _ = self._lines(self._sign(), position)
        return receipt_text(position, lines, above, self._checkpoint)

    def receipt_json(self, position: int) -> bytes:
        """Returns the receipt as `receipt` does, encoded as a JSON string."""
        lines, _, above = self._lines(self._sign(), position)
        return receipt_json(position, lines, above, self._checkpoint_json)

    def _lines(self, view: TreeView, position: int) -> tuple[list[bytes], bytes, bytes]:
        """Returns the first lines of a receipt's proof, and those above its group as text and in JSON."""
        assert 0 <= position < view.size, f"there is no decision {position} in a tree of {view.size}"
        group, at = divmod(position, GROUP_WIDTH)
        made = self._groups.get(group)
        if made is None:
            if len(self._groups) >= GROUPS_KEPT:
                self._groups.clear()
            made = self._groups[group] = self._make_group(view, group)
        rows, above, above_json = made
        return siblings(rows, at), above, above_json

    def _make_group(self, view: TreeView, group: int) -> tuple[list[list[bytes]], bytes, bytes]:
        tile, at = divmod(group, TILE_WIDTH >> GROUP_HEIGHT)
        rows = []
        for height, row in enumerate(view.inside(tile)[:GROUP_HEIGHT]):
            width = GROUP_WIDTH >> height
            rows.append(lines_of(row[at * width : (at + 1) * width]))
        above = lines_of(view.path(GROUP_HEIGHT, group))
        return rows, b"".join([line + NEW_LINE for line in above]), b"".join([line + NEW_LINE_JSON for line in above])

    def _sign(self) -> TreeView:
        view = self._view()
        if view is not self._signed:
            self._checkpoint = sign_note(SignedCheckpoint(self._origin, view.size, view.root).text(), [(self._origin, self._key)])
            self._checkpoint_json = checkpoint_json(self._checkpoint)
            self._signed = view
            self._groups.clear()
            self.signatures += 1
        return view
