"""The kept log, which is left after the disaster, as a source: the command replays it into an index in a folder of its own."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from joiner import JoinerState, Ready
from notary.index import Index
from notary.index.tiles import StoredTree
from notary.salvage.statements import THE_LOG
from notary.tree import Tree, TreeView, read_edge
from ordering.ids import StateRef, TransactionId
from ordering.salvage import Item


class KeptIndex:
    """A `KeptLog`. `apply` brings its index to the end of the log."""

    name = THE_LOG

    def __init__(self, index: Index) -> None:
        self._index = index

    @property
    def stored_tree(self) -> StoredTree:
        """The tree in the form that the joiner needs."""
        return self._index.tree

    def state(self) -> JoinerState:
        """Returns the state from which the joiner resumes."""
        return self._index.joiner_state()

    def apply(self, ready: Ready) -> None:
        """Apply a step of the joiner, as a worker does."""
        if ready.advanced:
            self._index.apply(ready)

    @property
    def tree(self) -> TreeView:
        """The tree of all decisions."""
        return self._index.tree.view()

    @property
    def log_time_ms(self) -> int:
        """Log time of the last decision; 0 without one."""
        for position in range(self.tree.size - 1, -1, -1):
            if (id_ := self._index.transaction_at(position)) is not None:
                decision = self._index.decision(id_)
                assert decision is not None
                return decision.log_time_ms
        return 0

    @property
    def keys(self) -> Sequence[bytes]:
        """Every key of the notary that has been in force, in order."""
        state = self.state().log_state
        return () if state is None else state.keys

    @property
    def salvages(self) -> Sequence[tuple[int, int, int]]:
        """Per salvage: its first position, the position after its last one, and the number of its key among `keys`."""
        state = self.state().log_state
        return () if state is None else state.salvages

    def gaps(self) -> Mapping[int, Item]:
        """Returns the positions without a decision, which an earlier salvage left."""
        if len(self.keys) < 2:
            return {}  # every salvage begins with a new key
        return self._index.undecided()

    def grown(self) -> Tree:
        """Returns the tree in a form to which leaves can be appended."""
        size = self.tree.size
        return Tree(size, read_edge(size, self._index.tree.tile))

    def transaction_at(self, position: int) -> TransactionId | None:
        """Returns the id of the transaction that the log decided at that position; None without one."""
        return self._index.transaction_at(position)

    def decided(self, ids: Sequence[TransactionId]) -> dict[TransactionId, int]:
        """Returns the positions of those transactions that are decided."""
        found = [(id_, self._index.position(id_)) for id_ in ids]
        return {id_: position for id_, position in found if position is not None}

    def consumed(self, states: Sequence[StateRef]) -> dict[StateRef, bytes]:
        """Returns, for those states that are consumed or reserved, the SHA-256 of the consumer's transaction id."""
        found = [(state, self._index.consumed(state)) for state in states]
        return {state: consumed.by_hash for state, consumed in found if consumed is not None}


@contextmanager
def keeping(directory: Path, notary_name: str, log_identity: str) -> Iterator[KeptIndex]:
    """Open or create the index of the kept log in that folder, for the length of a block. Raises the errors of `Index.open`."""
    index = Index.open(directory, notary_name=notary_name, log_identity=log_identity)
    try:
        yield KeptIndex(index)
    finally:
        index.close()
