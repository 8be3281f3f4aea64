"""The leaves of decisions and the tree over them, by the contract and RFC 6962, section 2.1."""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from tests.checkers.precedence import Decided
from tests.checkers.records import LEAF, LEAF_PREFIX, OUTCOMES

KINDS = {"input": 0, "reference": 1}
TILE_WIDTH = 256
HASH_OF_NOTHING = sha256(b"").digest()
LOST_PREFIX = b"notary/lost/v1\n"


def conflict_bytes(decision: Decided) -> bytes:
    """Returns a decision's conflicts, 69 bytes each: state, kind, the hash of the consuming transaction's id."""
    parts = []
    for conflict in decision["conflicts"]:
        id_, index = conflict["state"].split(":")
        parts.append(bytes.fromhex(id_) + int(index).to_bytes(4, "big"))
        parts.append(bytes((KINDS[conflict["kind"]],)) + bytes.fromhex(conflict["consumed_by"]))
    return b"".join(parts)


def leaf_of(decision: Decided) -> bytes:
    """Returns the 104-byte leaf that a receipt of this decision proves."""
    conflicts = decision["conflicts"]
    return LEAF.pack(
        LEAF_PREFIX,
        decision["position"],
        bytes.fromhex(decision["transaction_id"]),
        decision["log_time"],
        OUTCOMES[decision["reason"]],
        len(conflicts),
        sha256(conflict_bytes(decision)).digest() if conflicts else HASH_OF_NOTHING,
    )


class Tree:
    """The tree of these leaves, at any size up to their number. Every hash is computed on demand, and cached.

    `hashes`: the leaf hashes at positions whose leaf nobody knows.
    """

    def __init__(self, leaves: Sequence[bytes], hashes: Mapping[int, bytes] | None = None) -> None:
        self._leaves = leaves
        self._hashes = {} if hashes is None else hashes
        self._known: dict[tuple[int, int], bytes] = {}

    @property
    def size(self) -> int:
        return len(self._leaves)

    def root(self, size: int) -> bytes:
        """Returns the root of the first `size` leaves."""
        assert 0 <= size <= len(self._leaves), f"there are {len(self._leaves)} leaves, not {size}"
        return self.over(0, size) if size else HASH_OF_NOTHING

    def over(self, start: int, end: int) -> bytes:
        """Returns MTH(D[start:end]) of at least one leaf: split at the largest power of two below their number."""
        found = self._known.get((start, end))
        if found is None:
            count = end - start
            if count == 1:
                found = self._hashes.get(start) or sha256(b"\x00" + self._leaves[start]).digest()
            else:
                middle = start + (1 << (count - 1).bit_length() - 1)
                found = sha256(b"\x01" + self.over(start, middle) + self.over(middle, end)).digest()
            self._known[start, end] = found
        return found

    def tiles(self, size: int) -> dict[tuple[int, int], bytes]:
        """Returns the tiles of the first `size` leaves, partial ones too, by (level, index), as C2SP tlog-tiles defines them."""
        tiles: dict[tuple[int, int], bytes] = {}
        level, count = 0, size
        while count:
            span = TILE_WIDTH**level
            for at in range(0, count, TILE_WIDTH):
                hashes = [self.over(number * span, (number + 1) * span) for number in range(at, min(at + TILE_WIDTH, count))]
                tiles[level, at // TILE_WIDTH] = b"".join(hashes)
            level, count = level + 1, count // TILE_WIDTH
        return tiles
