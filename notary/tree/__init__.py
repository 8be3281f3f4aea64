"""tree: one append-only Merkle tree over the decisions (RFC 6962), kept as tiles (C2SP tlog-tiles). Pure.

The leaves are the decisions in order of position, so every worker that read as far has the same tree, and one root says whether two
workers agree on everything up to there (R9). A proof is a few hashes of the tree that tie one leaf, or an older root, to a root.

Tiles are how it is kept: tile (level L, index N) holds the hashes at height 8 L, numbers 256 N to 256 N + 255, 32 bytes each; at the right
edge a tile is partial. A tile that is full never changes.

| file | subject |
|---|---|
| `hashing` | leaves, nodes, the empty tree |
| `tiles` | `Tree`: append leaves, get the tiles that changed and the root |
| `proofs` | inclusion and consistency: made from tiles, and checked without them |
"""

from notary.tree.hashing import EMPTY_ROOT, HASH_BYTES, leaf_hash, node_hash
from notary.tree.proofs import (
    ProofError,
    check_consistency,
    check_inclusion,
    consistency_proof,
    inclusion_proof,
    root_at,
)
from notary.tree.tiles import TILE_HEIGHT, TILE_WIDTH, ReadTile, Tree, tile_widths

__all__ = [
    "EMPTY_ROOT",
    "HASH_BYTES",
    "TILE_HEIGHT",
    "TILE_WIDTH",
    "ProofError",
    "ReadTile",
    "Tree",
    "check_consistency",
    "check_inclusion",
    "consistency_proof",
    "inclusion_proof",
    "leaf_hash",
    "node_hash",
    "root_at",
    "tile_widths",
]
