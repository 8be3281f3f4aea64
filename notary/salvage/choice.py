"""The choice of the items that a salvage puts back (R11, docs/salvage.md). Pure: the same sources give the same items."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from notary.salvage.forest import compare_indexes, compare_receipts
from notary.salvage.past import check_past
from notary.salvage.statements import THE_LOG, Index, KeptLog, Receipt, Refused, Source
from notary.tree import EMPTY_ROOT, TreeView, leaf_hash
from ordering.salvage import Decided, Hashed, Item, Lost, leaf_of, lost_leaf

LOST_MAX: Final = 1_000_000
"""The positions that one salvage declares lost at most. A receipt of a false size would else fill the log."""


class ForkedCheckpoint(msgspec.Struct, frozen=True):
    """A signed checkpoint from which no consistency proof leads to the new tree."""

    size: int
    root: bytes
    name: str
    """The source that holds it."""


class Choice(msgspec.Struct, frozen=True):
    """The items from position `first` on, and the tree with them."""

    first: int
    items: tuple[Item, ...]
    names: tuple[str, ...]
    """Of each item, the source that has it; empty for a lost one."""
    root: bytes
    same_roots_to: int
    """Checkpoints up to this size keep their roots: no position below it is lost."""
    forked: tuple[ForkedCheckpoint, ...]
    """The checkpoints of the receipts that do not."""

    @property
    def end(self) -> int:
        """The size of the tree with the items."""
        return self.first + len(self.items)

    def count(self, form: type[Item]) -> int:
        """Returns the number of items of a form."""
        return sum(1 for item in self.items if isinstance(item, form))

    def positions(self, form: type[Item]) -> list[tuple[int, int]]:
        """Returns the ranges of positions with items of a form, each from its first up to its last."""
        found: list[tuple[int, int]] = []
        for position, item in enumerate(self.items, self.first):
            if isinstance(item, form):
                begins = found.pop()[0] if found and found[-1][1] == position - 1 else position
                found.append((begins, position))
        return found


def choose(log: KeptLog, indexes: Sequence[Index], receipts: Sequence[Receipt], *, lost_max: int = LOST_MAX) -> Choice:
    """Returns what the log lacks. Raises `Refused` where the sources contradict each other or say too little."""
    indexes = sorted(indexes, key=lambda index: -index.tree.size)
    trees: list[Source] = [log, *indexes]
    compare_indexes(trees)
    gaps = [index.gaps() for index in trees]
    largest = max(trees, key=lambda index: index.tree.size)
    beyond = compare_receipts(largest, receipts, gaps)
    _check_finality(log, trees, gaps, receipts)
    first = log.tree.size
    end = max(first, largest.tree.size, *[receipt.size for receipt in receipts])
    known = _Known(first, end)
    for index in indexes:
        known.take_all(first, index.items(first, index.tree.size), index.name)
    for receipt in receipts:
        known.take_receipt(receipt)
    for (low, high), (value, name) in beyond.items():
        if high - low == 1:
            known.take_hash(low, value, name)
    known.check_inputs()
    if (lost := end - first - len(known.items)) > lost_max:
        of = max(receipts, key=lambda receipt: receipt.size).name
        raise Refused(first, f"{lost:,} positions up to {end} would be lost, more than {lost_max:,}; the size {end} is shown by", [of])
    items = [known.items.get(position, _LOST) for position in range(first, end)]
    names = [known.names.get(position, "") for position in range(first, end)]
    check_past(log, items, names)
    lost_first = min([position for position, item in enumerate(items, first) if isinstance(item, Lost)], default=end)
    lost_before = min([position for position, item in gaps[0].items() if isinstance(item, Lost)], default=end)
    root, forked = _roots(log, items, receipts)
    return Choice(first, tuple(items), tuple(names), root, min(lost_first, lost_before), tuple(forked))


_LOST: Final = Lost()


class _Known:
    """The best item that any source has for each position from `first` up to `end`."""

    def __init__(self, first: int, end: int) -> None:
        self._first, self._end = first, end
        self.items: dict[int, Item] = {}
        self.names: dict[int, str] = {}
        self._bare: dict[int, str] = {}
        """The committed decisions whose consumed states are unknown, with their receipts."""

    def take_all(self, first: int, items: Iterable[Item], name: str) -> None:
        """Take the items of an index."""
        for position, item in enumerate(items, first):
            mine = self.items.get(position)
            if not isinstance(mine, Decided):
                if mine is None or isinstance(item, Decided):
                    self._put(position, item, name)
            elif isinstance(item, Decided) and item.inputs != mine.inputs:
                raise Refused(position, "two lists of consumed states", [self.names[position]], [name])

    def take_receipt(self, receipt: Receipt) -> None:
        """Take the decision of a receipt."""
        position = receipt.position
        if position < self._first:
            return
        mine = self.items.get(position)
        if isinstance(mine, Decided) and position not in self._bare:
            if receipt.with_inputs and mine.inputs != receipt.item.inputs:
                raise Refused(position, "two lists of consumed states", [self.names[position]], [receipt.name])
            return
        self._put(position, receipt.item, receipt.name)
        if receipt.with_inputs:
            self._bare.pop(position, None)
        else:
            self._bare[position] = receipt.name

    def take_hash(self, position: int, value: bytes, name: str) -> None:
        """Take the hash of a leaf, which a proof shows."""
        if position >= self._first and position not in self.items:
            self._put(position, Lost() if value == leaf_hash(lost_leaf(position)) else Hashed(value), name)

    def check_inputs(self) -> None:
        """Raise `Refused` for a committed decision without its consumed states."""
        if self._bare:
            position = min(self._bare)
            why = "the receipt of a committed transaction, without its request, and no index has it: its states could be spent again"
            raise Refused(position, why, [self._bare[position]])

    def _put(self, position: int, item: Item, name: str) -> None:
        self.items[position], self.names[position] = item, name


def _check_finality(log: KeptLog, trees: Sequence[Source], gaps: Sequence[Mapping[int, Item]], receipts: Sequence[Receipt]) -> None:
    """Raise `Refused` for a decision at a position that the log has as a hash since an earlier salvage."""
    hashed = [position for position, item in gaps[0].items() if isinstance(item, Hashed)]
    held = {receipt.position: receipt.name for receipt in reversed(receipts)}
    for position in hashed:
        names = [index.name for index, own in zip(trees, gaps, strict=True) if position < index.tree.size and position not in own]
        if names or position in held:
            raise Refused(
                position,
                "an earlier salvage put back the hash of this decision alone, which is final",
                [THE_LOG],
                [*names, *([held[position]] if position in held else [])],
            )


def _roots(log: KeptLog, items: Sequence[Item], receipts: Sequence[Receipt]) -> tuple[bytes, list[ForkedCheckpoint]]:
    """Returns the root with all items, and the checkpoints of receipts that have another root than the new tree at their size."""
    checkpoints = {(receipt.size, receipt.root): receipt.name for receipt in reversed(receipts)}
    first, forked = log.tree.size, []
    end = first + len(items)
    sizes = iter(sorted({size for size, _ in checkpoints if size > first} | {end}))
    roots = {size: log.tree.over(0, size) for size, _ in checkpoints if 0 < size <= first}
    roots |= dict(_growing(log, items, sizes))
    for (size, root), name in sorted(checkpoints.items()):
        if size and roots[size] != root:
            forked.append(ForkedCheckpoint(size, root, name))
    return roots.get(end, EMPTY_ROOT), forked


def _growing(log: KeptLog, items: Sequence[Item], sizes: Iterator[int]) -> Iterator[tuple[int, bytes]]:
    """Yields the roots at these sizes, which rise from the log's size on."""
    tree = log.grown()
    for size in sizes:
        start = tree.size - log.tree.size
        tree.append([leaf_hash_of(item, place) for place, item in enumerate(items[start : size - log.tree.size], tree.size)])
        yield size, TreeView(size, tree.edge, _no_tile).root


def leaf_hash_of(item: Item, position: int) -> bytes:
    """Returns the hash of an item's leaf."""
    return item.leaf_hash if isinstance(item, Hashed) else leaf_hash(leaf_of(item, position))


def _no_tile(level: int, index: int) -> list[list[bytes]]:
    raise AssertionError(f"a root is made from the right edge, without the full tile ({level}, {index})")
