"""Reads surviving indexes and snapshots, without changing them.

An index that a worker has open is read as a consistent view. The operator restores a snapshot first (`notary snapshot restore`), which
verifies it.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final

from notary.decision import ROW_HEAD_BYTES, hashes_of, leaf_of_row
from notary.index import IndexView, rows, viewing
from notary.index.store import DECISIONS, POSITIONS, STATES
from notary.salvage.statements import SourceRefused
from notary.tree import TreeView
from ordering.errors import CorruptRecord, Fatal, FatalCode
from ordering.ids import TRANSACTION_ID_BYTES, StateRef
from ordering.salvage import Decided, Item, decode_items, encode_items

AT_ONCE: Final = 1_000
"""The number of decisions whose rows are looked up together."""
_POSITION: Final = slice(TRANSACTION_ID_BYTES, None)
"""The bytes of a state's row that hold the position; they sort in its order."""

Progress = Callable[[str, int, int | None], None]
"""Reports progress: (task, number done, total or None)."""


class StoredIndex:
    """A `Survivor` on a disk."""

    def __init__(self, view: IndexView, name: str, progress: Progress) -> None:
        self.name = name
        self._view = view
        self._progress = progress

    @property
    def tree(self) -> TreeView:
        """The tree of all decisions."""
        return self._view.tree

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The notary's public keys that were in force in the log, as far as the index has read it."""
        with _sound(self.name):
            log_state = self._view.joiner_state().log_state
        return () if log_state is None else tuple(log_state.keys)

    def why_suspected(self) -> str:
        """Returns why the index may be wrong: a root disagreement (R9) or a suspicion (R10); empty for none of these."""
        with _sound(self.name):
            return self._view.unfit()

    def has_decided(self, position: int) -> bool:
        """Returns False for a position whose decision an earlier salvage could not restore."""
        with _sound(self.name):
            (row,) = self._view.rows_at(POSITIONS, [rows.U64.pack(position)])
            if row is None:
                raise CorruptRecord(f"it has no position {position}")
            return rows.undecided_of(row) is None

    def states(self) -> Iterator[tuple[StateRef, bytes]]:
        """Yields every consumed or reserved state, with the SHA-256 of its consumer's transaction id."""
        with _sound(self.name):
            for number, (state, row) in enumerate(self._view.rows_of(STATES)):
                consumer, position = rows.state_of(row)
                yield state, consumer if position == rows.RESERVED else sha256(consumer).digest()
                if not number % 100_000:
                    self._progress("states of the index compared", number, None)

    def items(self, first: int, end: int) -> Iterator[Item]:
        """Yields the items of these positions. Raises `SourceRefused` where a row is not the leaf of the tree."""
        if first >= end:
            return
        inputs = self._inputs(first)
        position = first
        with _sound(self.name):
            found = self._positions(first)
            while some := list(islice(found, AT_ONCE)):
                yield from self._items(position, some, inputs)
                position += len(some)
                self._progress("decisions of the index", position - first, end - first)
            if position != end:
                raise CorruptRecord(f"its positions end at {position}, and its tree at {end}")

    def _items(self, first: int, found: Sequence[bytes], inputs: Mapping[int, Sequence[StateRef]]) -> list[Item]:
        """Returns the items of these rows of `positions`, from position `first` on."""
        decided = self._view.rows_at(DECISIONS, found)
        items: list[Item] = []
        for position, (id_, row) in enumerate(zip(found, decided, strict=True), first):
            item: Item | None = rows.undecided_of(id_)
            if item is None:
                if row is None:
                    raise CorruptRecord(f"it has no decision of the transaction at position {position}")
                item = Decided(leaf_of_row(id_, row), row[ROW_HEAD_BYTES:], tuple(inputs.get(position, ())))
            items.append(item)
        for position, (item, value) in enumerate(zip(items, hashes_of(first, items), strict=True), first):
            if value != self.tree.node(0, position):
                raise CorruptRecord(f"its decision at position {position} is not the leaf of its tree")
            decode_items(encode_items(position, [item]))  # a record with an item that does not decode never takes effect
        return items

    def _positions(self, first: int) -> Iterator[bytes]:
        for number, (key, row) in enumerate(self._view.rows_of(POSITIONS, rows.U64.pack(first)), first):
            if key != rows.U64.pack(number):
                raise CorruptRecord(f"it has no position {number}")
            yield row

    def _inputs(self, first: int) -> dict[int, list[StateRef]]:
        """Returns the states consumed from position `first` on, ascending, by position. It reads the rows of all states."""
        found: dict[int, list[StateRef]] = {}
        lowest = rows.U64.pack(first)
        with _sound(self.name):
            for number, (state, row) in enumerate(self._view.rows_of(STATES)):
                if row[_POSITION] >= lowest:  # reserved ones stand under a position that no decision has
                    found.setdefault(rows.state_of(row)[1], []).append(state)
                if not number % 100_000:
                    self._progress("states of the index", number, None)
        return found


@contextlib.contextmanager
def open_indexes(directories: Sequence[Path], log_id: bytes, progress: Progress) -> Iterator[list[StoredIndex]]:
    """Open these indexes for the length of a block. Raises `SourceRefused` for one that is damaged, quarantined or of another log.

    Raises the errors of `viewing` for one that cannot be opened now.
    """
    with contextlib.ExitStack() as stack:
        found = []
        for directory in directories:
            with _sound(str(directory)):
                view = stack.enter_context(viewing(directory))
                if view.log_identity.rpartition(" ")[2] != log_id.hex():
                    raise SourceRefused(
                        f"the index {directory} is of another log, {view.log_identity}; this one has the id {log_id.hex()}: leave it out"
                    )
                if why := view.quarantined():
                    raise SourceRefused(f"the index {directory} is known to be wrong: {why}. Leave it out")
            found.append(StoredIndex(view, str(directory), progress))
        yield found


@contextlib.contextmanager
def _sound(name: str) -> Iterator[None]:
    """Raise `SourceRefused` for an index that is found to be damaged in this block."""
    try:
        yield
    except (CorruptRecord, Fatal) as problem:
        if isinstance(problem, Fatal) and problem.code is not FatalCode.INDEX_DAMAGED:
            raise  # a full disk, for example: the index may have the only copy of decisions
        raise SourceRefused(f"the index {name} is no source: {problem}. Leave it out, or give a sound copy") from problem
