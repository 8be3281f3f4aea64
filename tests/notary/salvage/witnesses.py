"""Sources in memory, for tests of the choice: an index and a kept log made of items, and receipts of them."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

from notary.decision import ROW_HEAD_BYTES, Conflict, Decision, Kind, Outcome, hashes_of, leaf, to_row
from notary.salvage.statements import Receipt
from notary.tree import Tree, TreeView, read_edge, view_at
from ordering.ids import StateRef, TransactionId
from ordering.salvage import Decided, Item


def state_of(number: int) -> StateRef:
    return bytes(32) + number.to_bytes(4)


def id_of(label: object) -> TransactionId:
    return sha256(str(label).encode()).digest()


def tag_of(id_: TransactionId) -> bytes:
    return sha256(id_).digest()


def decided(
    position: int,
    label: object,
    *inputs: int,
    time: int | None = None,
    cites: Mapping[int, bytes] | None = None,
) -> Decided:
    """Returns an item: committed with these inputs, or rejected because of the states in `cites`, each with the hash of its consumer."""
    conflicts = tuple([Conflict(state_of(number), Kind.INPUT, by) for number, by in sorted((cites or {}).items())])
    outcome = Outcome.INPUT_CONFLICT if cites else Outcome.COMMITTED
    decision = Decision(position, id_of(label), outcome, position if time is None else time, conflicts)
    return Decided(leaf(decision), to_row(decision)[ROW_HEAD_BYTES:], tuple([state_of(number) for number in sorted(inputs)]))


class MemoryIndex:
    """A `Survivor` and a `KeptLog` made of the items from position 0 on."""

    def __init__(
        self,
        name: str,
        items: Sequence[Item],
        *,
        consumed: Mapping[StateRef, bytes] | None = None,
        keys: Sequence[bytes] = (),
        salvages: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self.name, self.keys, self.salvages = name, keys, salvages
        self._items = list(items)
        self._tiles = Tree().append(hashes_of(0, items))
        self.tree: TreeView = view_at(len(self._items), self._tile)
        decided = [item for item in items if isinstance(item, Decided)]
        self.log_time_ms = max([item.log_time_ms for item in decided], default=0)
        self._decided = {item.transaction_id: position for position, item in enumerate(items) if isinstance(item, Decided)}
        own = {state: tag_of(item.transaction_id) for item in decided for state in item.inputs}
        self._consumed = own if consumed is None else dict(consumed)

    def _tile(self, level: int, index: int) -> bytes:
        return self._tiles[level, index]

    def items(self, first: int, end: int) -> Iterator[Item]:
        yield from self._items[first:end]

    def states(self) -> Iterator[tuple[StateRef, bytes]]:
        yield from sorted(self._consumed.items())

    def has_decided(self, position: int) -> bool:
        return isinstance(self._items[position], Decided)

    def gaps(self) -> dict[int, Item]:
        return {position: item for position, item in enumerate(self._items) if not isinstance(item, Decided)}

    def grown(self) -> Tree:
        return Tree(self.tree.size, read_edge(self.tree.size, self._tile))

    def decided(self, ids: Sequence[TransactionId]) -> dict[TransactionId, int]:
        return {id_: self._decided[id_] for id_ in ids if id_ in self._decided}

    def consumed(self, states: Sequence[StateRef]) -> dict[StateRef, bytes]:
        return {state: self._consumed[state] for state in states if state in self._consumed}


def receipt(name: str, items: Sequence[Item], position: int, *, size: int | None = None, bare: bool = False, key: bytes = b"") -> Receipt:
    """Returns the receipt of a position, under the checkpoint of a size (default: of all items)."""
    tree = MemoryIndex("", items[:size]).tree
    item = items[position]
    assert isinstance(item, Decided)
    kept = Decided(item.leaf, item.conflicts) if bare else item
    return Receipt(name, position, kept, tree.size, tree.root, tuple(tree.inclusion(position)), key, with_inputs=not bare)
