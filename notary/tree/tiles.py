"""`Tree`: appends leaf hashes and returns the tiles that changed (C2SP tlog-tiles, tile height 8).

It holds only the right edge: for each level, the hashes of its partial tile at every height. Appending a leaf costs one node hash on
average, and never reads a full tile.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, TypeAlias

from notary.tree.hashing import HASH_BYTES, NODE_PREFIX

TILE_HEIGHT: Final = 8
TILE_WIDTH: Final = 1 << TILE_HEIGHT
TILE_BYTES: Final = TILE_WIDTH * HASH_BYTES

ReadTile: TypeAlias = Callable[[int, int], bytes]
"""(level, index) -> the tile's present bytes. They may hold more hashes than the caller's tree has, and never fewer."""

Inside: TypeAlias = list[list[bytes]]
"""A tile's hashes and their nodes: at [height] the nodes at that height (0 to TILE_HEIGHT), left to right; complete subtrees only."""


class Tree:
    """The right edge of a tree of `size` leaves."""

    def __init__(self, size: int = 0, edge: Sequence[bytes] = ()) -> None:
        """`edge` holds the bytes of the partial tile at each level, level 0 first; `edge_widths` gives their lengths in hashes."""
        widths = edge_widths(size)
        assert [len(tile) for tile in edge] == [width * HASH_BYTES for width in widths], f"this is not the edge of a tree of {size}"
        self.size = size
        self.edge: list[Inside] = [inside_of(tile) for tile in edge]

    def append(self, leaf_hashes: Sequence[bytes]) -> dict[tuple[int, int], bytes]:
        """Append leaves. Returns the tiles that are new or longer now, by (level, index)."""
        changed: dict[tuple[int, int], bytes] = {}
        level, hashes = 0, leaf_hashes
        while hashes:
            if level == len(self.edge):
                self.edge.append(_empty())
            hashes = self._append_at(level, hashes, changed)
            level += 1
        self.size += len(leaf_hashes)
        return changed

    def _append_at(self, level: int, hashes: Sequence[bytes], changed: dict[tuple[int, int], bytes]) -> list[bytes]:
        """Append hashes at a level. Returns the hashes for the level above: one for each tile that this completed."""
        finished: list[bytes] = []
        index = (self.size >> (TILE_HEIGHT * level)) // TILE_WIDTH
        at = 0
        while at < len(hashes):
            inside = self.edge[level]
            space = TILE_WIDTH - len(inside[0])
            _grow(inside, hashes[at : at + space])
            at += space
            changed[level, index] = b"".join(inside[0])
            if inside[TILE_HEIGHT]:
                finished += inside[TILE_HEIGHT]
                self.edge[level] = _empty()
                index += 1
        return finished


def inside_of(tile: bytes) -> Inside:
    """Returns the hashes of a tile, from its bytes, and the nodes over them."""
    inside = _empty()
    _grow(inside, [tile[at : at + HASH_BYTES] for at in range(0, len(tile), HASH_BYTES)])
    return inside


def edge_widths(size: int) -> list[int]:
    """Returns the number of hashes in the partial tile of each level, level 0 first; 0 where the last tile is full."""
    widths = []
    while size:
        widths.append(size % TILE_WIDTH)
        size //= TILE_WIDTH
    return widths


def read_edge(size: int, read: ReadTile) -> list[bytes]:
    """Returns the bytes of the partial tile at each level of a tree of that size. The tiles read may have grown since."""
    return [
        read(level, (size >> (TILE_HEIGHT * level)) // TILE_WIDTH)[: width * HASH_BYTES] if width else b""
        for level, width in enumerate(edge_widths(size))
    ]


def _empty() -> Inside:
    return [[] for _ in range(TILE_HEIGHT + 1)]


def _grow(inside: Inside, hashes: Sequence[bytes]) -> None:
    """Append to the lowest row, and to each row above it the nodes that are complete now."""
    inside[0] += hashes
    for height in range(TILE_HEIGHT):
        row, above = inside[height], inside[height + 1]
        # `node_hash` is inlined here: this line is half of the tree's CPU cost in a worker.
        made = [sha256(NODE_PREFIX + row[at] + row[at + 1]).digest() for at in range(2 * len(above), len(row) - 1, 2)]
        if not made:
            return
        above += made
