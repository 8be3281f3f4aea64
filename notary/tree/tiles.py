"""`Tree`: append leaf hashes; get the tiles that changed, and a view that makes proofs (C2SP tlog-tiles, tile height 8).

It holds the right edge only: per level the hashes inside the tile that is not full yet, at every height of it. Appending a leaf costs one
node hash on average. What is full lies in tiles and is never needed to append.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Final, TypeAlias

from notary.tree.hashing import HASH_BYTES, NODE_PREFIX

TILE_HEIGHT: Final = 8
TILE_WIDTH: Final = 1 << TILE_HEIGHT
TILE_BYTES: Final = TILE_WIDTH * HASH_BYTES

ReadTile: TypeAlias = Callable[[int, int], bytes]
"""(level, index) -> the tile's bytes as far as it goes; at least as many hashes as were asked to be there when it is read."""

Inside: TypeAlias = list[list[bytes]]
"""What a tile is made of: at [height] the hashes at that height above its own, left to right, 0 to TILE_HEIGHT; whole subtrees only."""


class Tree:
    """The right edge of a tree of `size` leaves."""

    def __init__(self, size: int = 0, edge: Sequence[bytes] = ()) -> None:
        """The tree of that size; `edge` holds the bytes of its partial tile at each level, level 0 first, as `edge_widths` says."""
        widths = edge_widths(size)
        assert [len(tile) for tile in edge] == [width * HASH_BYTES for width in widths], f"this is not the edge of a tree of {size}"
        self.size = size
        self.edge: list[Inside] = [inside_of(tile) for tile in edge]

    def append(self, leaf_hashes: Sequence[bytes]) -> dict[tuple[int, int], bytes]:
        """Append leaves; the tiles that are new or longer now, by (level, index)."""
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
        """Append hashes at a level; those of the level above that were finished by it."""
        finished: list[bytes] = []
        index = (self.size >> (TILE_HEIGHT * level)) // TILE_WIDTH
        at = 0
        while at < len(hashes):
            inside = self.edge[level]
            room = TILE_WIDTH - len(inside[0])
            _grow(inside, hashes[at : at + room])
            at += room
            changed[level, index] = b"".join(inside[0])
            if inside[TILE_HEIGHT]:
                finished += inside[TILE_HEIGHT]
                self.edge[level] = _empty()
                index += 1
        return finished


def inside_of(tile: bytes) -> Inside:
    """The hashes inside a tile, from its bytes."""
    inside = _empty()
    _grow(inside, [tile[at : at + HASH_BYTES] for at in range(0, len(tile), HASH_BYTES)])
    return inside


def tile_widths(size: int) -> Iterator[tuple[int, int, int]]:
    """(level, index, width) of every tile of a tree of that size, partial ones too."""
    level, count = 0, size
    while count:
        full, rest = divmod(count, TILE_WIDTH)
        yield from ((level, index, TILE_WIDTH) for index in range(full))
        if rest:
            yield level, full, rest
        level, count = level + 1, full


def edge_widths(size: int) -> list[int]:
    """How many hashes the partial tile of each level has, level 0 first; 0 where the last tile is full."""
    widths = []
    while size:
        widths.append(size % TILE_WIDTH)
        size //= TILE_WIDTH
    return widths


def read_edge(size: int, read: ReadTile) -> list[bytes]:
    """The bytes of the partial tile at each level of a tree of that size, out of tiles that may have grown since."""
    return [
        read(level, (size >> (TILE_HEIGHT * level)) // TILE_WIDTH)[: width * HASH_BYTES] if width else b""
        for level, width in enumerate(edge_widths(size))
    ]


def _empty() -> Inside:
    return [[] for _ in range(TILE_HEIGHT + 1)]


def _grow(inside: Inside, hashes: Sequence[bytes]) -> None:
    """Append to the lowest row, and to each row above it the nodes that are whole now."""
    inside[0] += hashes
    for height in range(TILE_HEIGHT):
        row, above = inside[height], inside[height + 1]
        # Written out, not `node_hash`: this line is half of what the tree costs a worker.
        made = [sha256(NODE_PREFIX + row[at] + row[at + 1]).digest() for at in range(2 * len(above), len(row) - 1, 2)]
        if not made:
            return
        above += made
