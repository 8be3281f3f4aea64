"""The tree against RFC 6962's definitions, computed the naive way."""

import itertools
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notary.tree import (
    EMPTY_ROOT,
    HASH_BYTES,
    ProofError,
    Tree,
    check_consistency,
    check_inclusion,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root_at,
    tile_widths,
)
from notary.tree.tiles import edge_widths

LEAVES = [leaf_hash(b"%d" % n) for n in range(70_000)]


def naive_root(hashes: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1, over leaf hashes, level by level: a node without a sibling moves up as it is."""
    if not hashes:
        return sha256(b"").digest()
    while len(hashes) > 1:
        pairs = itertools.zip_longest(hashes[::2], hashes[1::2])
        hashes = [left if right is None else sha256(b"\x01" + left + right).digest() for left, right in pairs]
    return hashes[0]


class Tiles(dict[tuple[int, int], bytes]):
    """Tiles as a store would keep them."""

    def grow(self, tree: Tree, leaves: list[bytes]) -> None:
        for place, tile in tree.append(leaves).items():
            assert tile.startswith(self.get(place, b"")), "a tile only grows"
            self[place] = tile

    def read(self, level: int, index: int) -> bytes:
        return self[level, index]

    def edge(self, size: int) -> list[bytes]:
        return [
            self[level, (size >> 8 * level) // 256][: width * HASH_BYTES] if width else b"" for level, width in enumerate(edge_widths(size))
        ]


def grown(size: int) -> tuple[Tree, Tiles]:
    tree, tiles = Tree(), Tiles()
    tiles.grow(tree, LEAVES[:size])
    return tree, tiles


@pytest.mark.parametrize("size", [0, 1, 2, 3, 255, 256, 257, 511, 512, 513, 65_535, 65_536, 65_537, 66_000])
def test_root_and_tiles_at_the_edges(size: int) -> None:
    """Around full tiles of every level the root is the naive one, and there is exactly the tiles that tlog-tiles names."""
    tree, tiles = grown(size)
    assert tree.root() == naive_root(LEAVES[:size]) == root_at(size, tiles.read)
    assert {place: len(tile) // HASH_BYTES for place, tile in tiles.items()} == {
        (level, index): width for level, index, width in tile_widths(size)
    }


@given(st.lists(st.integers(0, 700), max_size=8))
@settings(max_examples=100, deadline=None)
def test_growth_in_any_steps(steps: list[int]) -> None:
    """However leaves are split over steps, and after a restart from the tiles at each, root and tiles are the same."""
    tree, tiles = Tree(), Tiles()
    for step in steps:
        tiles.grow(tree, LEAVES[tree.size : tree.size + step])
        tree = Tree(tree.size, tiles.edge(tree.size))
        assert tree.root() == naive_root(LEAVES[: tree.size])
    assert tiles == grown(tree.size)[1]


def test_every_proof_of_small_trees() -> None:
    """Each leaf and each older size of trees up to 40 leaves is proven, and the proof proves nothing else."""
    tree, tiles = grown(40)
    roots = [naive_root(LEAVES[:size]) for size in range(41)]
    for size in range(1, 41):
        for index in range(size):
            proof = inclusion_proof(index, size, tiles.read)
            check_inclusion(index, size, LEAVES[index], proof, roots[size])
            for other in (index - 1, index + 1):
                with pytest.raises(ProofError):
                    check_inclusion(other, size, LEAVES[index], proof, roots[size])
            for wrong in (proof[:-1] if proof else [EMPTY_ROOT], [*proof, EMPTY_ROOT], [EMPTY_ROOT, *proof[1:]]):
                with pytest.raises(ProofError):
                    check_inclusion(index, size, LEAVES[index], wrong, roots[size])
        for old in range(size + 1):
            proof = consistency_proof(old, size, tiles.read)
            check_consistency(old, size, roots[old], roots[size], proof)
            with pytest.raises(ProofError):
                check_consistency(old, size, leaf_hash(b"x"), roots[size], proof)
            with pytest.raises(ProofError):
                check_consistency(old, size, roots[old], roots[size], [*proof, EMPTY_ROOT])


@given(st.integers(1, 66_000), st.data())
@settings(max_examples=60, deadline=None)
def test_proofs_of_large_trees(size: int, data: st.DataObject) -> None:
    """Proofs at any older size are made from the tiles of a larger tree, in at most one hash a level."""
    tiles, index = _large(), data.draw(st.integers(0, size - 1))
    old = data.draw(st.integers(0, size))
    root = root_at(size, tiles.read)
    proof = inclusion_proof(index, size, tiles.read)
    assert len(proof) <= size.bit_length()
    check_inclusion(index, size, LEAVES[index], proof, root)
    check_consistency(old, size, root_at(old, tiles.read), root, consistency_proof(old, size, tiles.read))


_grown_large: list[Tiles] = []


def _large() -> Tiles:
    if not _grown_large:
        _grown_large.append(grown(66_000)[1])
    return _grown_large[0]
