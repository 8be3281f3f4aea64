"""`StoredTree`: the Merkle tree of the decisions in the index. Its tiles are written in the same batch as the decisions (R8, R9)."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from notary.decision import hashes_of
from notary.index import rows
from notary.index.store import Reading
from notary.tree import (
    HASH_BYTES,
    TILE_BYTES,
    TILE_HEIGHT,
    TILE_WIDTH,
    Inside,
    Tree,
    TreeView,
    edge_widths,
    inside_of,
    leaf_hash,
    read_edge,
    view_at,
)
from ordering.errors import CorruptRecord
from ordering.salvage import Item

INSIDES_KEPT: Final = 64
"""The number of full tiles kept in memory with their inner hashes, for receipts: about 50 kB each."""


class StoredTree:
    """The tree of all decisions in the index. A `TreeView` of it stays readable while the tree grows."""

    def __init__(self, size: int, family: Any, directory: Path) -> None:
        """Raises `Fatal` if the tiles at the right edge do not fit a tree of that size."""
        self._family = family
        self._directory = directory
        self._fresh: dict[tuple[int, int], bytes] = {}  # the last step's tiles: roots are computed before the step is written
        with Reading(directory):
            edge = read_edge(size, self.tile)
            if [len(tile) for tile in edge] != [width * HASH_BYTES for width in edge_widths(size)]:
                raise CorruptRecord(f"its tiles do not end at position {size}, which its progress row names")
            self._tree = Tree(size, edge)
        self._view: TreeView | None = None
        self.tiles_read = 0
        """Counts reads of full tiles that were not in memory. They are most of the cost of an old decision and its receipt."""
        self._full = lru_cache(maxsize=INSIDES_KEPT)(self._read_full)
        self._root_at = lru_cache(maxsize=INSIDES_KEPT)(lambda size: view_at(size, self.tile).root)

    @property
    def size(self) -> int:
        """The number of leaves."""
        return self._tree.size

    def append(self, leaf_hashes: Sequence[bytes], put: Callable[[bytes, bytes], None]) -> None:
        """Append leaves, and call `put` with the key and row of each tile that changed."""
        if not leaf_hashes:
            return
        self._fresh = self._tree.append(leaf_hashes)
        for (level, index), tile in self._fresh.items():
            put(rows.tile_key(level, index), tile)
        self._view = None

    def view(self) -> TreeView:
        """Returns the tree at its present size; the same object until the tree grows."""
        if self._view is None:
            self._view = TreeView(self._tree.size, self._tree.edge, self._inside)
        return self._view

    def root_at(self, size: int) -> bytes:
        """Returns the root of the first `size` decisions, 32 bytes."""
        return self.view().root if size == self.size else self._root_at(size)

    def root_with(self, items: Sequence[Item]) -> bytes:
        """Returns the root that the tree would have with these items of a salvage behind its leaves (R11)."""
        grown = Tree(self.size, [b"".join(tile[0]) for tile in self._tree.edge])
        grown.append(hashes_of(self.size, items))
        return TreeView(grown.size, grown.edge, self._inside).root

    def tile(self, level: int, index: int) -> bytes:
        """Returns the present bytes of a tile; a tile at the right edge may be partial. Raises `Fatal` for a missing or malformed one."""
        with Reading(self._directory):
            tile: bytes | None = self._fresh.get((level, index)) or self._family.get_in_passing(rows.tile_key(level, index))
            if tile is None or not tile or len(tile) % HASH_BYTES or len(tile) > TILE_BYTES:
                raise CorruptRecord(f"tile ({level}, {index}) has {0 if tile is None else len(tile)} bytes")
            return tile

    def check(self, first: int, leaves: Sequence[bytes]) -> None:
        """Compare leaves, made from rows, with the tree from position `first` on. Raises `CorruptRecord` for the first that differs."""
        self.check_hashes(first, [leaf_hash(leaf_read) for leaf_read in leaves])

    def check_hashes(self, first: int, leaf_hashes: Sequence[bytes]) -> None:
        """Compare leaf hashes with the tree from position `first` on. Raises `CorruptRecord` for the first that differs."""
        for at, hash_read in enumerate(leaf_hashes, first):
            tile, index = divmod(at, TILE_WIDTH)
            hashes = self.sound_tile(0, tile) if at < self.size else b""
            if hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES] != hash_read:
                raise CorruptRecord(f"the decision at position {at} is not the leaf of the tree there: one of them was changed")

    def sound_tile(self, level: int, index: int) -> bytes:
        """Returns the present bytes of a tile whose hash is in the tiles above it. Raises `CorruptRecord` when it is not."""
        edge = self._tree.edge[level] if level < len(self._tree.edge) else None
        if edge is not None and index == (self.size >> (TILE_HEIGHT * level)) // TILE_WIDTH:
            return b"".join(edge[0])
        return self._full(level, index)[0]

    def _read_full(self, level: int, index: int) -> tuple[bytes, Inside]:
        tile = self.tile(level, index)
        self.tiles_read += 1
        if len(tile) != TILE_BYTES:
            raise CorruptRecord(f"tile ({level}, {index}) has {len(tile)} bytes and should be full")
        inside = inside_of(tile)
        above, at = divmod(index, TILE_WIDTH)
        if inside[TILE_HEIGHT][0] != self.sound_tile(level + 1, above)[at * HASH_BYTES : (at + 1) * HASH_BYTES]:
            raise CorruptRecord(f"tile ({level}, {index}) does not have the hash in tile ({level + 1}, {above}): one of them was changed")
        return tile, inside

    def _inside(self, level: int, index: int) -> Inside:
        with Reading(self._directory):
            return self._full(level, index)[1]
