"""Chooses the items that a salvage puts back (R11, docs/salvage.md). Pure: the same sources give the same items."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from notary.decision import hashes_of
from notary.salvage.forest import compare_indexes, compare_receipts
from notary.salvage.past import check_past
from notary.salvage.statements import THE_LOG, ChoiceRefused, KeptLog, Receipt, Survivor, Witness
from notary.tree import TreeView, leaf_hash
from ordering.salvage import Decided, Hashed, Item, Lost, lost_leaf

LOST_MAX: Final = 1_000_000
"""The maximum number of positions that one salvage declares lost: otherwise a receipt with a false size could fill the log."""


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
    """The source of each item; empty for a lost one."""
    root: bytes
    same_roots_to: int
    """Checkpoints up to this size keep their roots: no position below it is lost."""
    forked: tuple[ForkedCheckpoint, ...]
    """The checkpoints of receipts whose root is not in the new tree."""

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


def choose(log: KeptLog, indexes: Sequence[Survivor], receipts: Sequence[Receipt], *, lost_max: int = LOST_MAX) -> Choice:
    """Returns the items that the log lacks. Raises `ChoiceRefused` if the sources contradict each other or do not suffice."""
    trees: list[Witness] = [log, *indexes]
    compare_indexes(trees)
    largest = max(trees, key=lambda index: index.tree.size)
    first = log.tree.size
    end = max([largest.tree.size, *[receipt.size for receipt in receipts]])
    known = _Known(first)
    for index in indexes:
        known.take_all(index.items(first, index.tree.size), index.name)
    gaps = log.gaps()
    lost_before = [position for position, item in gaps.items() if isinstance(item, Lost)]
    beyond = compare_receipts(largest, receipts, {*lost_before, *known.lost()}, _lost_before(log, lost_before))
    _check_finality([position for position, item in gaps.items() if isinstance(item, Hashed)], indexes, receipts)
    for receipt in receipts:
        known.take_receipt(receipt)
    for (low, high), (value, name) in beyond.items():
        if high - low == 1:
            known.take_hash(low, value, name)
    known.check_inputs()
    if (lost := end - first - len(known.items)) > lost_max:
        of = max(receipts, key=lambda receipt: receipt.size).name
        raise ChoiceRefused(
            first, f"{lost:,} positions up to {end} would be lost, more than {lost_max:,}; the size {end} is shown by", [of]
        )
    items = [known.items.get(position, _LOST) for position in range(first, end)]
    names = [known.names.get(position, "") for position in range(first, end)]
    check_past(log, items, names, indexes)
    lost_now = [position for position, item in enumerate(items, first) if isinstance(item, Lost)]
    root, forked = _roots(log, items, receipts)
    return Choice(first, tuple(items), tuple(names), root, min([*lost_before, *lost_now, end]), tuple(forked))


_LOST: Final = Lost()


def _lost_before(log: KeptLog, lost: Sequence[int]) -> dict[bytes, list[int]]:
    """Returns, for each key, the positions among `lost` that a salvage had declared lost by the time the key came into force.

    A salvage brings a key into force, which no worker has before. So that key, and every later one, signs only trees with the lost leaves.
    """
    declared = {position: number for first, end, number in log.salvages for position in lost if first <= position < end}
    return {key: [position for position, under in declared.items() if under <= number] for number, key in enumerate(log.keys)}


def _two_lists(one: Decided, other: Decided) -> str:
    return f"two lists of consumed states, with {len(one.inputs)} and {len(other.inputs)} states"


class _Known:
    """The best item that any source has for each position from `first` on."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.items: dict[int, Item] = {}
        self.names: dict[int, str] = {}
        self._bare: dict[int, str] = {}
        """The committed decisions whose consumed states are unknown, with their receipts."""

    def take_all(self, items: Iterable[Item], name: str) -> None:
        """Add the items of an index, from `first` on."""
        for position, item in enumerate(items, self._first):
            mine = self.items.get(position)
            if not isinstance(mine, Decided):
                self._put(position, item, name)
            elif isinstance(item, Decided) and item.inputs != mine.inputs:
                raise ChoiceRefused(position, _two_lists(mine, item), [self.names[position]], [name])

    def lost(self) -> list[int]:
        """Returns the positions that an earlier salvage declared lost, if the log has lost the records of that salvage."""
        return [position for position, item in self.items.items() if isinstance(item, Lost)]

    def take_receipt(self, receipt: Receipt) -> None:
        """Add the decision of a receipt."""
        position = receipt.position
        if position < self._first:
            return
        mine = self.items.get(position)
        if isinstance(mine, Decided) and position not in self._bare:
            if receipt.with_inputs and mine.inputs != receipt.item.inputs:
                raise ChoiceRefused(position, _two_lists(mine, receipt.item), [self.names[position]], [receipt.name])
            return
        self._put(position, receipt.item, receipt.name)
        if receipt.with_inputs:
            self._bare.pop(position, None)
        else:
            self._bare[position] = receipt.name

    def take_hash(self, position: int, value: bytes, name: str) -> None:
        """Add the hash of a leaf, which a proof shows."""
        if position not in self.items:
            self._put(position, Lost() if value == leaf_hash(lost_leaf(position)) else Hashed(value), name)

    def check_inputs(self) -> None:
        """Raise `ChoiceRefused` for a committed decision without its consumed states."""
        if self._bare:
            position = min(self._bare)
            why = "the receipt of a committed transaction, without its request, and no index has it: its states could be spent again"
            raise ChoiceRefused(position, why, [self._bare[position]])

    def _put(self, position: int, item: Item, name: str) -> None:
        self.items[position], self.names[position] = item, name


def _check_finality(hashed: Sequence[int], indexes: Sequence[Survivor], receipts: Sequence[Receipt]) -> None:
    """Raise `ChoiceRefused` if a source has the decision at a position for which an earlier salvage put back only the hash."""
    for position in hashed:
        knows = [index.name for index in indexes if position < index.tree.size and index.has_decided(position)]
        knows += [receipt.name for receipt in receipts if receipt.position == position]
        if knows:
            raise ChoiceRefused(position, "an earlier salvage put back the hash of this decision alone, which is final", [THE_LOG], knows)


def _roots(log: KeptLog, items: Sequence[Item], receipts: Sequence[Receipt]) -> tuple[bytes, list[ForkedCheckpoint]]:
    """Returns the root with all items, and the checkpoints of receipts whose root is not that of the new tree at their size."""
    checkpoints = {(receipt.size, receipt.root): receipt.name for receipt in reversed(receipts)}
    first, forked = log.tree.size, []
    end = first + len(items)
    sizes = iter(sorted({size for size, _ in checkpoints if size > first} | {end}))
    roots = {size: log.tree.over(0, size) for size, _ in checkpoints if size <= first}
    roots |= dict(_growing(log, items, sizes))
    for (size, root), name in sorted(checkpoints.items()):
        if roots[size] != root:
            forked.append(ForkedCheckpoint(size, root, name))
    return roots[end], forked


def _growing(log: KeptLog, items: Sequence[Item], sizes: Iterator[int]) -> Iterator[tuple[int, bytes]]:
    """Yields (size, root) for these sizes, which rise from the log's size."""
    tree = log.grown()
    for size in sizes:
        start = tree.size - log.tree.size
        tree.append(hashes_of(tree.size, items[start : size - log.tree.size]))
        yield size, TreeView(size, tree.edge, _no_tile).root


def _no_tile(level: int, index: int) -> list[list[bytes]]:
    raise AssertionError(f"a root is made from the right edge, without the full tile ({level}, {index})")
