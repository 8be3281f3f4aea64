"""tree: one append-only Merkle tree over the decisions (RFC 6962), kept as tiles (C2SP tlog-tiles). Pure.

The leaves are the decisions in order of position, so all workers that have read the same part of the log have the same tree. If two workers
have the same root at a size, they agree on every decision up to it (R9). A proof is a few hashes of the tree that tie one leaf, or an older
root, to a root.

The tree is stored in tiles: tile (level L, index N) holds the hashes at height 8 L, numbers 256 N to 256 N + 255, 32 bytes each. At the
right edge a tile is partial. A full tile never changes.

| file | subject |
|---|---|
| `hashing` | leaves, nodes, the empty tree |
| `tiles` | `Tree`: appends leaves, returns the tiles that changed |
| `view` | `TreeView`: the root and the proofs of a tree at one size, made from its tiles |
| `proofs` | verification of inclusion and consistency proofs, without tiles |
| `paths` | `tile/0/x001/234.p/5`: the path under which a tile is served and stored |
"""

from notary.tree.hashing import EMPTY_ROOT, HASH_BYTES, leaf_hash, node_hash
from notary.tree.paths import TilePath, format_tile_path, parse_tile_path
from notary.tree.proofs import ProofError, check_consistency, check_inclusion
from notary.tree.tiles import (
    TILE_BYTES,
    TILE_HEIGHT,
    TILE_WIDTH,
    Inside,
    ReadTile,
    Tree,
    edge_widths,
    inside_of,
    read_edge,
)
from notary.tree.view import ReadInside, TreeView, siblings, view_at

__all__ = [
    "EMPTY_ROOT",
    "HASH_BYTES",
    "TILE_BYTES",
    "TILE_HEIGHT",
    "TILE_WIDTH",
    "Inside",
    "ProofError",
    "ReadInside",
    "ReadTile",
    "TilePath",
    "Tree",
    "TreeView",
    "check_consistency",
    "check_inclusion",
    "edge_widths",
    "format_tile_path",
    "inside_of",
    "leaf_hash",
    "node_hash",
    "parse_tile_path",
    "read_edge",
    "siblings",
    "view_at",
]
