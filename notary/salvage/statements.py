"""Statements about the tree of decisions, by everything that survived a disaster (R11, docs/salvage.md). Pure.

The kept log and each index state every leaf up to their size. A receipt states one leaf, the hashes of its proof, and the root of its size.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from notary.tree import Tree, TreeView
from ordering.errors import NotaryError
from ordering.ids import StateRef, TransactionId
from ordering.salvage import Decided, Item

THE_LOG: Final = "the log"
NAMES_SHOWN: Final = 6


class ChoiceRefused(NotaryError):
    """No items can be chosen from these sources. `sides`: the names of the sources; those that agree form one side."""

    def __init__(self, position: int, why: str, *sides: Sequence[str]) -> None:
        self.position, self.why, self.sides = position, why, tuple([tuple(side) for side in sides])
        super().__init__(f"position {position}: {why}: {' against '.join([named(side) for side in sides])}")

    @property
    def names(self) -> list[str]:
        """The names of all sources that take part."""
        return [name for side in self.sides for name in side]


class SourceRefused(NotaryError):
    """A named source cannot be used: it does not verify, or is of another log."""


class Witness(Protocol):
    """A source that states every leaf up to its size."""

    @property
    def name(self) -> str:
        """The name that messages show."""
        ...

    @property
    def tree(self) -> TreeView:
        """The tree of all its leaves."""
        ...


class Survivor(Witness, Protocol):
    """An index or a snapshot."""

    def items(self, first: int, end: int) -> Iterator[Item]:
        """Yields the items of the positions from `first` up to `end`, each decision with the states that it consumed."""
        ...

    def states(self) -> Iterator[tuple[StateRef, bytes]]:
        """Yields every consumed or reserved state, with the SHA-256 of its consumer's transaction id."""
        ...

    def has_decided(self, position: int) -> bool:
        """Returns False for a position whose decision it does not know, since an earlier salvage; the position is below its size."""
        ...


class KeptLog(Witness, Protocol):
    """The log that is left after the disaster."""

    @property
    def log_time_ms(self) -> int:
        """Log time of its last decision; 0 without one. Entries without a decision may have moved log time on after the loss."""
        ...

    @property
    def keys(self) -> Sequence[bytes]:
        """Every key of the notary that has been in force, in order."""
        ...

    @property
    def salvages(self) -> Sequence[tuple[int, int, int]]:
        """Per salvage: its first position, the position after its last one, and the number of its key among `keys`."""
        ...

    def gaps(self) -> Mapping[int, Item]:
        """Returns the positions without a decision, which an earlier salvage left."""
        ...

    def grown(self) -> Tree:
        """Returns the tree in a form to which leaves can be appended."""
        ...

    def decided(self, ids: Sequence[TransactionId]) -> Mapping[TransactionId, int]:
        """Returns the positions of those transactions that are decided."""
        ...

    def consumed(self, states: Sequence[StateRef]) -> Mapping[StateRef, bytes]:
        """Returns, for those states that are consumed or reserved, the SHA-256 of the consumer's transaction id."""
        ...


class Receipt(msgspec.Struct, frozen=True):
    """A receipt whose signature and proof were verified."""

    name: str
    position: int
    item: Decided
    size: int
    """The size of the checkpoint's tree."""
    root: bytes
    hashes: tuple[bytes, ...]
    """The inclusion proof, from the leaf up."""
    key: bytes
    """The notary's public key that signed the checkpoint."""
    with_inputs: bool
    """False for a committed transaction without its request: the states that it consumed are unknown."""


def named(names: Sequence[str]) -> str:
    """Returns the names for a message; only the first of many."""
    shown = list(dict.fromkeys(names))
    more = f" and {len(shown) - NAMES_SHOWN} more" if len(shown) > NAMES_SHOWN else ""
    return ", ".join(shown[:NAMES_SHOWN]) + more
