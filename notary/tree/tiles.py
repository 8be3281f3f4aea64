"""`Tree`: append leaf hashes; get the tiles that changed, and the root (C2SP tlog-tiles, tile height 8).

It holds the right edge only: per level the hashes of the tile that is not full yet, and the roots of the perfect subtrees that the tree
is made of, one for each bit of its size. Appending a leaf costs one node hash on average. What is full lies in tiles and is never
needed to append.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from notary.tree.hashing import EMPTY_ROOT, HASH_BYTES, node_hash

TILE_HEIGHT: Final = 8
TILE_WIDTH: Final = 1 << TILE_HEIGHT

ReadTile: TypeAlias = Callable[[int, int], bytes]
"""(level, index) -> the tile's bytes as far as it goes; at least as many hashes as were asked to be there when it is read."""


class Tree:
    """The right edge of a tree of `size` leaves."""

    def __init__(self, size: int = 0, edge: Sequence[bytes] = ()) -> None:
        """The tree of that size; `edge` holds the bytes of its partial tile at each level, level 0 first, as `tile_widths` says."""
        self.size = size
        self._rows: list[list[bytes]] = [
            [tile[at : at + HASH_BYTES] for at in range(0, width * HASH_BYTES, HASH_BYTES)]
            for tile, width in zip(edge, edge_widths(size), strict=True)
        ]
        self._subtrees: list[bytes] = []  # the largest first
        for row in reversed(self._rows):
            self._subtrees += _perfect_subtrees(row)

    def append(self, leaf_hashes: Sequence[bytes]) -> dict[tuple[int, int], bytes]:
        """Append leaves; the tiles that are new or longer now, by (level, index)."""
        rows, subtrees = self._rows, self._subtrees
        size_before, size = self.size, self.size
        if leaf_hashes and not rows:
            rows.append([])
        for node in leaf_hashes:
            rows[0].append(node)
            height, bits = 0, size
            while bits & 1:
                node = node_hash(subtrees.pop(), node)  # noqa: PLW2901 - the node on its way up
                height, bits = height + 1, bits >> 1
                if height % TILE_HEIGHT == 0:
                    level = height // TILE_HEIGHT
                    if level == len(rows):
                        rows.append([])
                    rows[level].append(node)
            subtrees.append(node)
            size += 1
        self.size = size
        return self._take_changed(size_before)

    def root(self) -> bytes:
        """The root at this size."""
        if not self._subtrees:
            return EMPTY_ROOT
        root = self._subtrees[-1]
        for left in reversed(self._subtrees[:-1]):
            root = node_hash(left, root)
        return root

    def _take_changed(self, size_before: int) -> dict[tuple[int, int], bytes]:
        changed: dict[tuple[int, int], bytes] = {}
        for level, row in enumerate(self._rows):
            before = size_before >> (TILE_HEIGHT * level)
            if self.size >> (TILE_HEIGHT * level) == before:
                break  # nothing above has changed either
            index = before // TILE_WIDTH
            for at in range(0, len(row), TILE_WIDTH):
                changed[level, index] = b"".join(row[at : at + TILE_WIDTH])
                index += 1
            del row[: len(row) - len(row) % TILE_WIDTH]
        return changed


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


def _perfect_subtrees(row: Sequence[bytes]) -> list[bytes]:
    """The roots of the perfect subtrees that a row of hashes is made of, the largest first."""
    roots: list[bytes] = []
    at = 0
    for bit in reversed(range(len(row).bit_length())):
        width = 1 << bit
        if len(row) & width:
            roots.append(perfect_root(row[at : at + width]))
            at += width
    return roots


def perfect_root(hashes: Sequence[bytes]) -> bytes:
    """The root over a power of two of hashes."""
    level = list(hashes)
    while len(level) > 1:
        level = [node_hash(level[at], level[at + 1]) for at in range(0, len(level), 2)]
    return level[0]
