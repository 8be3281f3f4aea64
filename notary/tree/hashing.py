"""The hashes of RFC 6962, section 2.1. Leaves and nodes have different prefixes, so neither can be mistaken for the other."""

from hashlib import sha256
from typing import Final

HASH_BYTES: Final = 32
LEAF_PREFIX: Final = b"\x00"
NODE_PREFIX: Final = b"\x01"
EMPTY_ROOT: Final = sha256(b"").digest()
"""The root of the tree without leaves."""


def leaf_hash(leaf: bytes) -> bytes:
    """Returns SHA-256(0x00, leaf)."""
    return sha256(LEAF_PREFIX + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Returns SHA-256(0x01, left, right)."""
    return sha256(NODE_PREFIX + left + right).digest()
