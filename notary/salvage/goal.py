"""The goal of a salvage attempt: the log as it must be once the attempt's `done` record has taken effect.

`notary salvage` writes it to a file before it appends `done`. A later run finds it there, and compares the log with it.
"""

from hashlib import sha256

import msgspec

from notary.tree import TreeView
from ordering.errors import CorruptRecord, Malformed
from ordering.ids import parse_hash
from ordering.salvage import Decided, Item, decode_items, encode_items


class Goal(msgspec.Struct, frozen=True):
    """The number of decisions, the root, and the items that the attempt put back."""

    size: int
    root: bytes
    items: tuple[Item, ...]

    def encode(self) -> bytes:
        """Returns the content of the goal's file."""
        return f"{self.size} {self.root.hex()}\n".encode() + (encode_items(self.size - len(self.items), self.items) if self.items else b"")

    @property
    def consumed(self) -> list[tuple[bytes, bytes]]:
        """Each state that an item consumes, with the hash of its consumer's id."""
        decided = [item for item in self.items if isinstance(item, Decided)]
        return [(state, sha256(item.transaction_id).digest()) for item in decided for state in item.inputs]

    def is_in(self, tree: TreeView) -> bool:
        """Returns true if a tree begins with the tree of this goal."""
        return 0 <= self.size <= tree.size and (not self.size or tree.over(0, self.size) == self.root)


def decode_goal(data: bytes) -> Goal:
    """Decodes the content of a goal's file. Raises `CorruptRecord`."""
    head, _, items = data.partition(b"\n")
    size, _, root = head.decode(errors="replace").partition(" ")
    try:
        return Goal(int(size), parse_hash(root), decode_items(items)[1] if items else ())
    except (ValueError, Malformed) as problem:
        raise CorruptRecord(f"expected the number of decisions and the root: {problem}") from None
