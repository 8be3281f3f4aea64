"""Inclusion and consistency proofs (RFC 6962, section 2.1): made from tiles in O(log n) reads, checked without any.

The checks follow RFC 9162, sections 2.1.3.2 and 2.1.4.2, which say how to verify what RFC 6962 defines. They are the other side: they
share no code with the making but the two hashes.
"""

from collections.abc import Sequence

from notary.tree.hashing import EMPTY_ROOT, HASH_BYTES, node_hash
from notary.tree.tiles import TILE_HEIGHT, TILE_WIDTH, ReadTile, perfect_root


class ProofError(Exception):
    """A proof that does not prove: its length, an index or size, or a hash is wrong. The message says which."""


def root_at(size: int, read: ReadTile) -> bytes:
    """The root of the first `size` leaves."""
    return _range_root(0, size, read) if size else EMPTY_ROOT


def inclusion_proof(index: int, size: int, read: ReadTile) -> list[bytes]:
    """PATH(index, D[size]): the hashes that tie leaf `index` to the root at `size`, from the leaf up."""
    if not 0 <= index < size:
        raise ProofError(f"there is no leaf {index} in a tree of {size}")
    proof: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        split = start + _split(end - start)
        if index < split:
            proof.append(_range_root(split, end, read))
            end = split
        else:
            proof.append(_range_root(start, split, read))
            start = split
    proof.reverse()
    return proof


def consistency_proof(old: int, new: int, read: ReadTile) -> list[bytes]:
    """PROOF(old, D[new]): the hashes that show that the tree of `old` leaves is the beginning of that of `new`."""
    if not 0 <= old <= new:
        raise ProofError(f"a tree of {old} leaves is no beginning of one of {new}")
    if old in (0, new):
        return []
    proof: list[bytes] = []
    start, end, whole = 0, new, True
    while old - start != end - start:
        split = start + _split(end - start)
        if old <= split:
            proof.append(_range_root(split, end, read))
            end = split
        else:
            proof.append(_range_root(start, split, read))
            start, whole = split, False
    if not whole:
        proof.append(_range_root(start, end, read))
    proof.reverse()
    return proof


def check_inclusion(index: int, size: int, leaf: bytes, proof: Sequence[bytes], root: bytes) -> None:
    """Raise `ProofError` unless the proof ties the leaf hash at `index` to the root at `size` (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        raise ProofError(f"index {index} is not in a tree of {size} leaves")
    this, last, node = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise ProofError("the inclusion proof is too long")
        if this & 1 or this == last:
            node = node_hash(sibling, node)
            while not this & 1 and this:
                this, last = this >> 1, last >> 1
        else:
            node = node_hash(node, sibling)
        this, last = this >> 1, last >> 1
    if last:
        raise ProofError("the inclusion proof is too short")
    if node != root:
        raise ProofError("the inclusion proof leads to another root")


def check_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Raise `ProofError` unless the tree with `old_root` is the beginning of that with `new_root` (RFC 9162, 2.1.4.2)."""
    if not 0 <= old <= new:
        raise ProofError(f"a tree of {old} leaves is no beginning of one of {new}")
    if old in (0, new):
        if proof:
            raise ProofError("the consistency proof is too long")
        if old_root != (new_root if old == new else EMPTY_ROOT):
            raise ProofError("the old root is not that of its size")
        return
    path = list(proof)
    if old & (old - 1) == 0:
        path.insert(0, old_root)
    if not path:
        raise ProofError("the consistency proof is too short")
    this, last = old - 1, new - 1
    while this & 1:
        this, last = this >> 1, last >> 1
    from_old = from_new = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise ProofError("the consistency proof is too long")
        if this & 1 or this == last:
            from_old, from_new = node_hash(sibling, from_old), node_hash(sibling, from_new)
            while not this & 1 and this:
                this, last = this >> 1, last >> 1
        else:
            from_new = node_hash(from_new, sibling)
        this, last = this >> 1, last >> 1
    if last:
        raise ProofError("the consistency proof is too short")
    if from_old != old_root:
        raise ProofError("the consistency proof does not lead to the old root")
    if from_new != new_root:
        raise ProofError("the consistency proof does not lead to the new root")


def _split(width: int) -> int:
    """The largest power of two smaller than `width`, where RFC 6962 divides a tree."""
    return 1 << ((width - 1).bit_length() - 1)


def _range_root(start: int, end: int, read: ReadTile) -> bytes:
    """The root over leaves `start` to `end`, where `start` is a multiple of a power of two that is at least the width."""
    root: bytes | None = None
    while end > start:
        # The last perfect subtree: as wide as the lowest bit of what is there.
        width = (end - start) & -(end - start)
        subtree = _subtree_root(width.bit_length() - 1, (end - width) // width, read)
        root = subtree if root is None else node_hash(subtree, root)
        end -= width
    assert root is not None
    return root


def _subtree_root(height: int, number: int, read: ReadTile) -> bytes:
    """The root of the perfect subtree of that height and number, out of one tile."""
    level, inside = divmod(height, TILE_HEIGHT)
    index, at = divmod(number << inside, TILE_WIDTH)
    tile = read(level, index)
    hashes = [tile[(at + k) * HASH_BYTES : (at + k + 1) * HASH_BYTES] for k in range(1 << inside)]
    assert len(hashes[-1]) == HASH_BYTES, f"tile ({level}, {index}) has no hash {at + (1 << inside) - 1}"
    return perfect_root(hashes)
