"""`StoredTree`: the tree of the decisions in the index. Its tiles are written in the same batch as the decisions (R8, R9)."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from notary.decision import Decision, leaf
from notary.index import rows
from notary.index.store import REMEDY, reading
from notary.tree import (
    HASH_BYTES,
    TILE_BYTES,
    TILE_HEIGHT,
    TILE_WIDTH,
    Inside,
    Tree,
    View,
    edge_widths,
    inside_of,
    leaf_hash,
    read_edge,
    view_at,
)
from ordering.errors import CorruptRecord, Fatal

INSIDES_KEPT: Final = 64
"""How many full tiles are kept taken apart, for receipts: about 45 kB each."""


class StoredTree:
    """The tree as far as the index goes. Whoever holds a `View` of it may read on while it grows."""

    def __init__(self, size: int, family: Any, directory: Path) -> None:
        """Raises `Fatal` when the tiles at the edge are not those of a tree of that size."""
        self._family = family
        self._directory = directory
        self._fresh: dict[tuple[int, int], bytes] = {}  # the tiles of the last step: it may ask for roots before it is written
        with reading(directory):
            edge = read_edge(size, self.tile)
            if [len(tile) for tile in edge] != [width * HASH_BYTES for width in edge_widths(size)]:
                raise CorruptRecord(f"its tiles do not end at position {size}, where its progress stands")
            self._tree = Tree(size, edge)
        self._view: View | None = None
        self._inside = lru_cache(maxsize=INSIDES_KEPT)(self._read_inside)

    @property
    def size(self) -> int:
        """How many leaves there are."""
        return self._tree.size

    def append(self, decisions: Sequence[Decision], put: Callable[[bytes, bytes], None]) -> None:
        """Append the decisions' leaves; `put` gets the rows of the tiles that changed."""
        if not decisions:
            return
        self._fresh = self._tree.append([leaf_hash(leaf(decision)) for decision in decisions])
        for (level, index), tile in self._fresh.items():
            put(rows.tile_key(level, index), tile)
        self._view = None

    def view(self) -> View:
        """The tree as it is now; the same object until it grows."""
        if self._view is None:
            self._view = View(self._tree.size, self._tree.edge, self._inside)
        return self._view

    def root_at(self, size: int) -> bytes:
        """The root of the first `size` decisions."""
        return self.view().root if size == self.size else view_at(size, self.tile).root

    def tile(self, level: int, index: int) -> bytes:
        """The bytes of a tile that is in the tree, as far as it goes now."""
        with reading(self._directory):
            tile: bytes | None = self._fresh.get((level, index)) or self._family.get(rows.tile_key(level, index))
            if tile is None or not tile or len(tile) % HASH_BYTES or len(tile) > TILE_BYTES:
                raise CorruptRecord(f"tile ({level}, {index}) has {0 if tile is None else len(tile)} bytes")
            return tile

    def check(self, decisions: Sequence[Decision]) -> None:
        """Hold decisions that were read from their rows against the tree; `CorruptRecord` names the first that is not its leaf."""
        by_tile = groupby(sorted(decisions, key=lambda decision: decision.position), lambda decision: decision.position // TILE_WIDTH)
        for index, group in by_tile:
            tile = self.tile(0, index) if index * TILE_WIDTH < self.size else b""
            for decision in group:
                at = decision.position % TILE_WIDTH * HASH_BYTES
                if tile[at : at + HASH_BYTES] != leaf_hash(leaf(decision)):
                    raise CorruptRecord(
                        f"the decision of transaction {decision.transaction_id.hex()} is not the leaf of the tree at position"
                        f" {decision.position}: one of them was changed"
                    )

    def check_tile(self, index: int) -> None:
        """Hold a full tile of level 0 against the hash above it; `CorruptRecord` when it is another."""
        tile = self.tile(0, index)
        if len(tile) == TILE_BYTES:
            above, at = divmod(index, TILE_WIDTH)
            if inside_of(tile)[TILE_HEIGHT][0] != self.tile(1, above)[at * HASH_BYTES : (at + 1) * HASH_BYTES]:
                raise CorruptRecord(f"tile (0, {index}) is not what tile (1, {above}) says of it: one of them was changed")

    def _read_inside(self, level: int, index: int) -> Inside:
        tile = self.tile(level, index)
        if len(tile) != TILE_BYTES:
            raise Fatal(
                f"the index {self._directory} is corrupt: tile ({level}, {index}) has {len(tile)} bytes and should be full. {REMEDY}"
            )
        return inside_of(tile)
