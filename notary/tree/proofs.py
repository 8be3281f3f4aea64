"""Verification of the proofs that RFC 6962 defines, by the algorithms of RFC 9162, sections 2.1.3.2 and 2.1.4.2.

`view` makes the proofs. This module shares only the two hash functions with it, and needs no tiles.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from notary.tree.hashing import EMPTY_ROOT, node_hash

Reason: TypeAlias = Literal["index-out-of-range", "proof-too-short", "proof-too-long", "wrong-root"]


class ProofError(Exception):
    """A proof that is not valid; `reason` is the machine-readable cause."""

    def __init__(self, reason: Reason, what: str) -> None:
        self.reason: Reason = reason
        super().__init__(what)


def _bad_inclusion(reason: Reason, what: str, index: int, size: int, proof: Sequence[bytes]) -> ProofError:
    return ProofError(reason, f"the inclusion proof {what}: index {index}, tree size {size}, hashes {len(proof)}")


def _bad_consistency(reason: Reason, what: str, old: int, new: int, proof: Sequence[bytes]) -> ProofError:
    return ProofError(reason, f"the consistency proof {what}: old size {old}, new size {new}, hashes {len(proof)}")


def check_inclusion(index: int, size: int, leaf: bytes, proof: Sequence[bytes], root: bytes) -> None:
    """Raise `ProofError` unless the proof ties the leaf hash at `index` to the root at `size` (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        raise ProofError("index-out-of-range", f"index {index} is not in a tree of {size} leaves")
    sides, node = list(_sides(index, size - 1)), leaf
    if len(proof) > len(sides):
        raise _bad_inclusion("proof-too-long", "is too long", index, size, proof)
    if len(proof) < len(sides):
        raise _bad_inclusion("proof-too-short", "is too short", index, size, proof)
    for sibling, is_left in zip(proof, sides, strict=True):
        node = node_hash(sibling, node) if is_left else node_hash(node, sibling)
    if node != root:
        raise _bad_inclusion("wrong-root", "leads to another root", index, size, proof)


def check_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Raise `ProofError` unless the tree with `old_root` is a prefix of the tree with `new_root` (RFC 9162, 2.1.4.2)."""
    if not 0 <= old <= new:
        raise ProofError("index-out-of-range", f"a tree of {old} leaves is no beginning of one of {new}")
    if old in (0, new):
        if proof:
            raise _bad_consistency("proof-too-long", "is too long", old, new, proof)
        if old_root != (new_root if old == new else EMPTY_ROOT):
            raise _bad_consistency("wrong-root", "has an old root that is not that of its size", old, new, proof)
        return
    path = list(proof)
    if old & (old - 1) == 0:
        path.insert(0, old_root)
    if not path:
        raise _bad_consistency("proof-too-short", "is too short", old, new, proof)
    this, last = old - 1, new - 1
    while this & 1:
        this, last = this >> 1, last >> 1
    from_old = from_new = path.pop(0)
    sides = list(_sides(this, last))
    if len(path) > len(sides):
        raise _bad_consistency("proof-too-long", "is too long", old, new, proof)
    if len(path) < len(sides):
        raise _bad_consistency("proof-too-short", "is too short", old, new, proof)
    for sibling, is_left in zip(path, sides, strict=True):
        if is_left:
            from_old, from_new = node_hash(sibling, from_old), node_hash(sibling, from_new)
        else:
            from_new = node_hash(from_new, sibling)
    if from_old != old_root:
        raise _bad_consistency("wrong-root", "does not lead to the old root", old, new, proof)
    if from_new != new_root:
        raise _bad_consistency("wrong-root", "does not lead to the new root", old, new, proof)


def _sides(this: int, last: int) -> Iterator[bool]:
    """Yields, for each hash of a proof, True if it is to the left of its path. The path leads from node `this` of its row up to the root.

    `last` is the number of the last node in that row.
    """
    while last:
        is_left = bool(this & 1) or this == last
        yield is_left
        while is_left and this and not this & 1:  # a last node without a neighbour moves up unchanged
            this, last = this >> 1, last >> 1
        this, last = this >> 1, last >> 1
