"""Merkle trees as RFC 6962 defines them, over lists of leaf hashes."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256


def digest(*parts: object) -> bytes:
    """Returns the SHA-256 of plain values: of tuples, numbers, texts and bytes."""
    return sha256(repr(parts).encode()).digest()


@lru_cache(1 << 16)
def node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def split(size: int) -> int:
    """Returns the largest power of two that is less than `size`."""
    return 1 << (size - 1).bit_length() - 1


def root(leaves: Sequence[bytes]) -> bytes:
    if not leaves:
        return sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    middle = split(len(leaves))
    return node(root(leaves[:middle]), root(leaves[middle:]))


def path(position: int, leaves: Sequence[bytes]) -> list[bytes]:
    """Returns the inclusion proof of a leaf, from its neighbour up."""
    if len(leaves) == 1:
        return []
    middle = split(len(leaves))
    if position < middle:
        return [*path(position, leaves[:middle]), root(leaves[middle:])]
    return [*path(position - middle, leaves[middle:]), root(leaves[:middle])]


def nodes(position: int, leaf: bytes, proof: Sequence[bytes], low: int, high: int) -> dict[tuple[int, int], bytes]:
    """Returns all nodes that a proof shows, by the positions under them: its own hashes and those that follow. (0, size) is the root."""
    if high - low == 1:
        return {(low, high): leaf}
    middle = low + split(high - low)
    if position < middle:
        inner, outer = (low, middle), (middle, high)
    else:
        inner, outer = (middle, high), (low, middle)
    found = nodes(position, leaf, proof[:-1], *inner)
    found[outer] = proof[-1]
    found[low, high] = node(*[found[half] for half in sorted((inner, outer))])
    return found
