"""`TreeView`: a tree at one size, and the proofs made from it (RFC 6962, section 2.1).

RFC 6962's tree can be built bottom-up: neighbours are hashed in pairs, and at each height a last node without a neighbour moves up
unchanged. So at each height at most one node, the last, covers an incomplete subtree. A view adds that node to the rows of the tiles at the
right edge. Every other hash of a proof is in a tile.
"""

from collections.abc import Callable, Sequence

from notary.tree.hashing import EMPTY_ROOT, node_hash
from notary.tree.tiles import TILE_HEIGHT, TILE_WIDTH, Inside, ReadTile, inside_of, read_edge

ReadInside = Callable[[int, int], Inside]
"""(level, index) -> a full tile's hashes and the nodes over them."""


class TreeView:
    """The tree of the first `size` leaves; it does not change while the tree grows."""

    def __init__(self, size: int, edge: Sequence[Inside], read_full: ReadInside) -> None:
        """`edge`: the inside of the partial tile of each level, as a `Tree` of that size has it."""
        self.size = size
        self._read_full = read_full
        self._edge: list[Inside] = []
        last: bytes | None = None  # the node over the incomplete subtree at the right edge, as it moves up
        for partial in edge:
            rows: Inside = []
            for row in partial:
                rows.append(row[:] if last is None else [*row, last])
                # A node with a left neighbour is hashed with it; a node without one moves up.
                last = (row[-1] if last is None else node_hash(row[-1], last)) if len(row) & 1 else last
            # The row above the highest belongs to the next level.
            last = rows.pop()[-1] if rows[TILE_HEIGHT] else None
            self._edge.append(rows)
        self.root = EMPTY_ROOT if last is None else last

    def inclusion(self, index: int) -> list[bytes]:
        """Returns PATH(index, D[size]): the hashes that tie leaf `index` to the root, from the leaf up."""
        assert 0 <= index < self.size, f"there is no leaf {index} in a tree of {self.size}"
        return self.path(0, index)

    def consistency(self, old: int) -> list[bytes]:
        """Returns PROOF(old, D[size]): the hashes that show that the tree of the first `old` leaves is a prefix of this one."""
        assert 0 <= old <= self.size, f"a tree of {old} leaves is no beginning of one of {self.size}"
        if old in (0, self.size):
            return []
        # Start from the last complete subtree of the old tree: the rest of the old tree lies to the left of the path from there.
        height = (old & -old).bit_length() - 1
        number = (old - 1) >> height
        return ([self.node(height, number)] if number else []) + self.path(height, number)

    def node(self, height: int, number: int) -> bytes:
        """Returns the hash of the complete subtree that is the `number`-th with 2^`height` leaves."""
        assert 0 <= number < self.size >> height, f"a tree of {self.size} leaves has no complete subtree {number} at height {height}"
        level, inside = divmod(height, TILE_HEIGHT)
        tile, at = divmod(number, TILE_WIDTH >> inside)
        return self._rows(level, tile)[inside][at]

    def over(self, low: int, high: int) -> bytes:
        """Returns the hash over the leaves from `low` up to `high`, exclusive: a node of this tree, or of a smaller one (RFC 6962, MTH)."""
        assert 0 <= low < high <= self.size, f"a tree of {self.size} leaves has no leaves from {low} up to {high}"
        if high - low == 1:
            return self.node(0, low)
        height = (high - low - 1).bit_length() - 1
        half = 1 << height
        if high - low == 2 * half:
            return self.node(height + 1, low >> height + 1)
        return node_hash(self.node(height, low >> height), self.over(low + half, high))

    def inside(self, tile: int) -> Inside:
        """Returns the rows of a tile of level 0, the lowest first: they hold the other hashes of its leaves' inclusion proofs."""
        return self._rows(0, tile)

    def path(self, height: int, number: int) -> list[bytes]:
        """Returns the hashes beside the `number`-th node at `height`, up to the root: the common end of its leaves' inclusion proofs."""
        path: list[bytes] = []
        level, start = divmod(height, TILE_HEIGHT)
        while level < len(self._edge):
            tile, at = divmod(number, TILE_WIDTH >> start)
            path += siblings(self._rows(level, tile)[start:TILE_HEIGHT], at)
            level, number, start = level + 1, tile, 0
        return path

    def _rows(self, level: int, tile: int) -> Inside:
        if tile == (self.size >> (TILE_HEIGHT * level)) // TILE_WIDTH:
            return self._edge[level]
        return self._read_full(level, tile)


def siblings(rows: Sequence[Sequence[bytes]], at: int) -> list[bytes]:
    """Returns the neighbours on the way up from index `at` of the lowest row; a height without a neighbour adds none."""
    found: list[bytes] = []
    for row in rows:
        neighbour = at ^ 1
        if neighbour < len(row):
            found.append(row[neighbour])
        at >>= 1
    return found


def view_at(size: int, read: ReadTile) -> TreeView:
    """Returns the tree at `size`, read from its tiles; they must hold at least that many leaves."""
    edge = [inside_of(tile) for tile in read_edge(size, read)]
    return TreeView(size, edge, lambda level, index: inside_of(read(level, index)))
