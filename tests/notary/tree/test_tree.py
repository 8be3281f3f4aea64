"""The tree compared with the checkers' independent computation of it."""

from functools import cache
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notary.tree import (
    EMPTY_ROOT,
    HASH_BYTES,
    ProofError,
    Tree,
    TreeView,
    check_consistency,
    check_inclusion,
    inside_of,
    leaf_hash,
    read_edge,
    view_at,
)
from tests.checkers import tree as independent
from tests.examples import some

LEAVES = [leaf_hash(b"%d" % n) for n in range(70_000)]
INDEPENDENT = independent.Tree([b"%d" % n for n in range(70_000)])
"""The tree of the same leaves, as the checkers compute it by the definitions of RFC 6962."""


class Tiles(dict[tuple[int, int], bytes]):
    """Tiles in memory, as a store would keep them."""

    def grow(self, tree: Tree, leaves: list[bytes]) -> None:
        for place, tile in tree.append(leaves).items():
            assert tile.startswith(self.get(place, b"")), "a tile only grows"
            self[place] = tile

    def read(self, level: int, index: int) -> bytes:
        return self[level, index]

    def inside(self, level: int, index: int) -> list[list[bytes]]:
        assert len(self[level, index]) == 256 * HASH_BYTES, "only full tiles are read: the others are at the edge"
        return inside_of(self[level, index])


def grown(size: int) -> tuple[Tree, Tiles]:
    tree, tiles = Tree(), Tiles()
    tiles.grow(tree, LEAVES[:size])
    return tree, tiles


@pytest.mark.parametrize("size", [0, 1, 2, 3, 255, 256, 257, 511, 512, 513, 65_535, 65_536, 65_537, 66_000])
def test_root_and_tiles_at_the_edges(size: int) -> None:
    """Around full tiles of every level the root is the independent one, and the tiles are exactly those that tlog-tiles names."""
    tree, tiles = grown(size)
    assert TreeView(size, tree.edge, tiles.inside).root == INDEPENDENT.root(size) == view_at(size, tiles.read).root
    assert tiles == INDEPENDENT.tiles(size)


@given(st.lists(st.integers(0, 700), max_size=8))
@settings(max_examples=some(100), deadline=None)
def test_growth_in_any_steps(steps: list[int]) -> None:
    """Any split of leaves into steps, with a restart from the tiles at each, gives the same root and tiles."""
    tree, tiles = Tree(), Tiles()
    for step in steps:
        tiles.grow(tree, LEAVES[tree.size : tree.size + step])
        tree = Tree(tree.size, read_edge(tree.size, tiles.read))
        assert TreeView(tree.size, tree.edge, tiles.inside).root == INDEPENDENT.root(tree.size)
    assert tiles == grown(tree.size)[1]


def wrong_proofs(proof: list[bytes]) -> list[tuple[str, list[bytes]]]:
    """Returns proofs that are not valid where this one is, each with the reason."""
    changed = [("proof-too-short", []), ("proof-too-short", proof[:-1]), ("wrong-root", [EMPTY_ROOT, *proof[1:]])] if proof else []
    return [("proof-too-long", [*proof, EMPTY_ROOT]), *changed]


def test_every_proof_of_small_trees() -> None:
    """Each leaf and each older size of trees up to 40 leaves is proven, and the proof proves no other."""
    _, tiles = grown(40)
    roots = [INDEPENDENT.root(size) for size in range(41)]
    for size in range(1, 41):
        view = view_at(size, tiles.read)
        for index in range(size):
            proof = view.inclusion(index)
            check_inclusion(index, size, LEAVES[index], proof, roots[size])
            for other in (index - 1, index + 1):
                with pytest.raises(ProofError):
                    check_inclusion(other, size, LEAVES[index], proof, roots[size])
            for reason, wrong in wrong_proofs(proof):
                with pytest.raises(ProofError) as refused:
                    check_inclusion(index, size, LEAVES[index], wrong, roots[size])
                assert refused.value.reason == reason
        for old in range(size + 1):
            proof = view.consistency(old)
            check_consistency(old, size, roots[old], roots[size], proof)
            with pytest.raises(ProofError):
                check_consistency(old, size, leaf_hash(b"x"), roots[size], proof)
            for reason, wrong in wrong_proofs(proof):
                with pytest.raises(ProofError) as refused:
                    check_consistency(old, size, roots[old], roots[size], wrong)
                assert refused.value.reason == reason
        for old in (-1, size + 1):
            with pytest.raises(ProofError) as refused:
                check_consistency(old, size, roots[0], roots[size], [])
            assert refused.value.reason == "index-out-of-range"


@pytest.mark.parametrize("size", [1, 5, 255, 257])
def test_a_view_stays_as_it_is_while_its_tree_grows(size: int) -> None:
    """Receipts are made from a view of the edge while later leaves are appended."""
    tree, tiles = grown(size)
    view = TreeView(size, tree.edge, tiles.inside)
    tree.append(LEAVES[size : size + 3])
    for index in {0, size - 1}:
        check_inclusion(index, size, LEAVES[index], view.inclusion(index), INDEPENDENT.root(size))


@cache
def large() -> Tiles:
    """Returns the tiles of 66,000 leaves."""
    return grown(66_000)[1]


@given(st.integers(1, 66_000), st.data())
@settings(max_examples=some(60), deadline=None)
def test_proofs_of_large_trees(size: int, data: st.DataObject) -> None:
    """Proofs at any older size can be made from the tiles of a larger tree, with at most one hash a level."""
    tiles, index = large(), data.draw(st.integers(0, size - 1))
    old = data.draw(st.integers(0, size))
    view = view_at(size, tiles.read)
    proof = view.inclusion(index)
    assert len(proof) <= size.bit_length()
    check_inclusion(index, size, LEAVES[index], proof, view.root)
    check_consistency(old, size, view_at(old, tiles.read).root, view.root, view.consistency(old))


@pytest.mark.seconds
@pytest.mark.nightly
def test_a_tree_of_a_million_leaves() -> None:
    """Around 2^20 leaves, with three full levels of tiles, roots and proofs match RFC 6962's recursive definitions."""
    size_max = 2**20 + 5
    leaves = [leaf_hash(b"%d" % n) for n in range(size_max)]
    complete: dict[tuple[int, int], bytes] = {}

    def mth(start: int, end: int) -> bytes:
        """Returns MTH(D[start:end]); the results for larger subtrees are cached."""
        if end - start == 1:
            return leaves[start]
        if (start, end) in complete:
            return complete[start, end]
        middle = start + (1 << (end - start - 1).bit_length() - 1)
        node = sha256(b"\x01" + mth(start, middle) + mth(middle, end)).digest()
        if end - start >= 64:
            complete[start, end] = node
        return node

    def path(index: int, start: int, end: int) -> list[bytes]:
        """Returns PATH(index, D[start:end])."""
        if end - start == 1:
            return []
        middle = start + (1 << (end - start - 1).bit_length() - 1)
        if index < middle:
            return [*path(index, start, middle), mth(middle, end)]
        return [*path(index, middle, end), mth(start, middle)]

    tree, tiles = Tree(), Tiles()
    for step in (2**20 - 1, 1, 1, 4):
        tiles.grow(tree, leaves[tree.size : tree.size + step])
        assert TreeView(tree.size, tree.edge, tiles.inside).root == mth(0, tree.size)
    full = dict.fromkeys([(0, index) for index in range(4096)] + [(1, index) for index in range(16)], 256)
    assert {place: len(tile) // HASH_BYTES for place, tile in tiles.items()} == full | {(0, 4096): 5, (2, 0): 16}
    for size in (2**20 - 1, 2**20, 2**20 + 1, size_max, 2**19 + 3):
        view = view_at(size, tiles.read)
        assert view.root == mth(0, size)
        for index in {0, 1, 255, 256, 65_535, 65_536, 2**19 - 1, 2**19, size - 2, size - 1, *range(0, size, 40_009)}:
            assert view.inclusion(index) == path(index, 0, size)
            check_inclusion(index, size, leaves[index], view.inclusion(index), view.root)
        for old in {1, 2, 3, 256, 257, 65_536, 65_537, 2**19, 2**19 + 1, size - 1, size, *range(1, size, 40_009)}:
            check_consistency(old, size, mth(0, old), view.root, view.consistency(old))
