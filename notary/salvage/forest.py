"""Compares the trees of sources: two sources with different hashes of one node have different histories (R11). Pure.

Indexes of millions of leaves are compared by their stored nodes, from the root down to the first leaf where they differ. The nodes of
receipts are compared with the largest index. Nodes beyond that index are compared with each other, and with hashes of the nodes below.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

from notary.salvage.statements import ChoiceRefused, Receipt, Witness
from notary.tree import TreeView, leaf_hash, node_hash
from ordering.salvage import lost_leaf

Span: TypeAlias = tuple[int, int]
"""The positions under a node: from the first up to the second."""
Nodes: TypeAlias = dict[Span, tuple[bytes, str]]
"""Nodes with the name of a source for each."""


def compare_indexes(indexes: Sequence[Witness]) -> None:
    """Raise `ChoiceRefused` at the first position where two indexes have different leaves."""
    largest = max(indexes, key=lambda index: index.tree.size)
    found = [difference(largest.tree, index.tree) for index in indexes]
    positions = [position for position in found if position is not None]
    if not positions:
        return
    position = min(positions)
    leaves = [(index.tree.node(0, position), index.name) for index in indexes if index.tree.size > position]
    sides = [[name for _, name in side] for _, side in groupby(sorted(leaves, key=itemgetter(0)), itemgetter(0))]
    raise ChoiceRefused(position, "two leaves", *sides)


def difference(one: TreeView, other: TreeView) -> int | None:
    """Returns the first position where two trees have different leaves, up to the end of the smaller one; None if there is none."""
    low, high = 0, min(one.size, other.size)
    if low == high or one.over(low, high) == other.over(low, high):
        return None
    while high - low > 1:
        middle = low + split(high - low)
        if one.over(low, middle) == other.over(low, middle):
            low = middle
        else:
            high = middle
    return low


def split(size: int) -> int:
    """Returns the number of leaves in the left half of a tree: the largest power of two below `size`, which is 2 or more."""
    return 1 << (size - 1).bit_length() - 1


def nodes_of(receipt: Receipt) -> dict[Span, bytes]:
    """Returns the nodes that a receipt shows, from the leaf up: its leaf, the hashes of the proof, and the hashes computed from them."""
    path: list[tuple[Span, Span]] = []
    low, high = 0, receipt.size
    while high - low > 1:
        middle = low + split(high - low)
        halves = (low, middle), (middle, high)
        left = receipt.position < middle
        path.append(halves if left else halves[::-1])
        low, high = path[-1][0]
    node = leaf_hash(receipt.item.leaf)
    found = {(low, high): node}
    for (inner, outer), sibling in zip(reversed(path), receipt.hashes, strict=True):
        found[outer] = sibling
        node = node_hash(node, sibling) if inner < outer else node_hash(sibling, node)
        found[min(inner, outer)[0], max(inner, outer)[1]] = node
    return found


def compare_receipts(
    largest: Witness, receipts: Sequence[Receipt], declared_lost: Collection[int], lost_before: Mapping[bytes, Collection[int]]
) -> Nodes:
    """Raise `ChoiceRefused` for a node with two hashes. Returns the nodes that receipts show beyond the largest index.

    A receipt from before an earlier salvage is valid, but differs from the tree in nodes over a position that the salvage declared lost. So
    nodes over a lost position are skipped. The receipt's leaf is always compared, and so is a lost leaf beside it.

    `lost_before`: for each key, the positions that a salvage of the kept log had declared lost by the time the key came into force. Trees
    signed by that key have the lost leaves there.
    """
    tree = largest.tree
    over = lru_cache(1 << 16)(tree.over)
    beside = {position for position in map(_lost_beside, receipts) if position is not None}
    lost_of = {key: sorted(beside.union(declared_lost).difference(lost_before.get(key, ()))) for key in {one.key for one in receipts}}
    beyond: Nodes = {}
    for receipt in receipts:
        if receipt.size <= tree.size and over(0, receipt.size) == receipt.root:
            continue  # the proof leads to this root, so the tree has all its nodes
        lost = lost_of[receipt.key]
        for (low, high), value in nodes_of(receipt).items():
            is_stated = high - low == 1 and low in (receipt.position, _lost_beside(receipt))
            if not is_stated and bisect_left(lost, low) < bisect_left(lost, high):
                continue
            known = (over(low, high), largest.name) if high <= tree.size else beyond.setdefault((low, high), (value, receipt.name))
            if known[0] != value:
                raise _two(low, high, known[1], receipt.name)
    _derive(largest, beyond)
    return beyond


def _lost_beside(receipt: Receipt) -> int | None:
    """Returns the neighbour of a receipt's leaf, if the proof shows that it is lost."""
    beside = receipt.position ^ 1
    return beside if receipt.hashes and receipt.hashes[0] == leaf_hash(lost_leaf(beside)) else None


def _derive(largest: Witness, beyond: Nodes) -> None:
    """Compare each node beyond the largest index with the hash computed from the nodes below it."""
    size = largest.tree.size
    derived: Nodes = dict(beyond)

    def known(low: int, high: int) -> tuple[bytes, str] | None:
        return (largest.tree.over(low, high), largest.name) if high <= size else derived.get((low, high))

    def derive(low: int, high: int) -> tuple[bytes, str] | None:
        middle = low + split(high - low)
        left = known(low, middle)
        right = known(middle, high)
        if right is None and (high - middle) & (high - middle - 1):
            right = derive(middle, high)  # the incomplete subtree at the right edge of a smaller tree
        if left is None or right is None:
            return None
        found = node_hash(left[0], right[0]), right[1] if left[1] == largest.name else left[1]
        stated = derived.setdefault((low, high), found)
        if stated[0] != found[0]:
            raise _two(low, high, found[1], stated[1])
        return stated

    # Complete subtrees first, from the smallest up: each known subtree may complete its parent.
    heights: dict[int, set[int]] = {}
    for low, high in beyond:
        if not (high - low) & (high - low - 1):
            heights.setdefault((high - low).bit_length() - 1, set()).add(low)
    height = 0
    while heights:
        width = 1 << height
        for low in sorted({low & -(2 * width) for low in heights.pop(height, ())}):
            if low + 2 * width > size and derive(low, low + 2 * width) is not None:
                heights.setdefault(height + 1, set()).add(low)
        height += 1
    for low, high in sorted(beyond, key=lambda span: span[1] - span[0]):
        if high - low > 1:
            derive(low, high)


def _two(low: int, high: int, one: str, other: str) -> ChoiceRefused:
    what = "two leaves" if high - low == 1 else f"two hashes of the leaves up to position {high}"
    return ChoiceRefused(low, what, [one], [other])
