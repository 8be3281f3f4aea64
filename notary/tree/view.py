"""`View`: a tree at one size, and the proofs made from it (RFC 6962, section 2.1).

Seen from the bottom, RFC 6962's tree is simple: neighbours are hashed two by two, and at each height the last one without a neighbour
moves up as it is. So at each height there is at most one node over a part of a subtree only, the last. A view adds that node to the rows
of the tiles at the right edge; every other hash of a proof stands in a tile.
"""

from collections.abc import Callable, Sequence

from notary.tree.hashing import EMPTY_ROOT, node_hash
from notary.tree.tiles import TILE_HEIGHT, TILE_WIDTH, Inside, ReadTile, inside_of, read_edge

ReadInside = Callable[[int, int], Inside]
"""(level, index) -> what a full tile is made of."""


class View:
    """The tree of the first `size` leaves; it stays as it is while the tree grows."""

    def __init__(self, size: int, edge: Sequence[Inside], read_full: ReadInside) -> None:
        """`edge`: the inside of the partial tile of each level, as a `Tree` of that size has it."""
        self.size = size
        self._read_full = read_full
        self._edge: list[Inside] = []
        last: bytes | None = None  # the node over the part of a subtree at the right edge, as it moves up
        for partial in edge:
            rows: Inside = []
            for row in partial:
                rows.append(row[:] if last is None else [*row, last])
                # What has a neighbour to its left is hashed with it; what has none moves up.
                last = (row[-1] if last is None else node_hash(row[-1], last)) if len(row) & 1 else last
            # The row above the highest belongs to the next level.
            last = rows.pop()[-1] if rows[TILE_HEIGHT] else None
            self._edge.append(rows)
        self.root = EMPTY_ROOT if last is None else last

    def inclusion(self, index: int) -> list[bytes]:
        """PATH(index, D[size]): the hashes that tie leaf `index` to the root, from the leaf up."""
        assert 0 <= index < self.size, f"there is no leaf {index} in a tree of {self.size}"
        return self._path(0, index)

    def consistency(self, old: int) -> list[bytes]:
        """PROOF(old, D[size]): the hashes that show that the tree of the first `old` leaves is the beginning of this one."""
        assert 0 <= old <= self.size, f"a tree of {old} leaves is no beginning of one of {self.size}"
        if old in (0, self.size):
            return []
        # The last whole subtree of the old tree: everything else of it lies to the left of the path from there.
        height = (old & -old).bit_length() - 1
        number = (old - 1) >> height
        own = [self._row(height, number)[number % (TILE_WIDTH >> height % TILE_HEIGHT)]] if number else []
        return own + self._path(height, number)

    def above(self, tile: int) -> list[bytes]:
        """What every inclusion proof of a leaf in that tile of level 0 ends with: the hashes outside of the tile."""
        return self._path(TILE_HEIGHT, tile) if len(self._edge) > 1 else []

    def inside(self, tile: int) -> Inside:
        """The rows of a tile of level 0, the lowest first: the other hashes of its inclusion proofs."""
        return self._rows(0, tile)

    def _path(self, height: int, number: int) -> list[bytes]:
        path: list[bytes] = []
        level, start = divmod(height, TILE_HEIGHT)
        while level < len(self._edge):
            tile, at = divmod(number, TILE_WIDTH >> start)
            path += siblings(self._rows(level, tile)[start:TILE_HEIGHT], at)
            level, number, start = level + 1, tile, 0
        return path

    def _row(self, height: int, number: int) -> list[bytes]:
        level, inside = divmod(height, TILE_HEIGHT)
        return self._rows(level, number // (TILE_WIDTH >> inside))[inside]

    def _rows(self, level: int, tile: int) -> Inside:
        if tile == (self.size >> (TILE_HEIGHT * level)) // TILE_WIDTH:
            return self._edge[level]
        return self._read_full(level, tile)


def siblings(rows: Sequence[Sequence[bytes]], at: int) -> list[bytes]:
    """The neighbours on the way up from place `at` of the lowest row; where there is none the node moves up as it is."""
    found: list[bytes] = []
    for row in rows:
        neighbour = at ^ 1
        if neighbour < len(row):
            found.append(row[neighbour])
        at >>= 1
    return found


def view_at(size: int, read: ReadTile) -> View:
    """The tree at any size that its tiles reach."""
    edge = [inside_of(tile) for tile in read_edge(size, read)]
    return View(size, edge, lambda level, index: inside_of(read(level, index)))
