"""The data that a notary leaves behind (its log, its workers' indexes, its answers to clients), and all checkers on it.

The log decides what is right: the replay decides it again by brute force, and everything else is compared with that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tests.checkers import indexes, receipts
from tests.checkers.history import History
from tests.checkers.indexes import Rows
from tests.checkers.replay import RecordsByPartition, Replayed, Seen, replay
from tests.checkers.violation import Kind, Violation


@dataclass(frozen=True)
class Remains:
    """The data of one notary. Its name, keys and partitions are in the log."""

    verifier_keys: Sequence[str]
    by_partition: RecordsByPartition
    indexes: Mapping[str, Rows]
    """The rows of each index, by worker name."""
    history: History

    @cached_property
    def replayed(self) -> Replayed:
        """The replay of the log."""
        return replay(self.by_partition)

    def violations(self, *, roots_right: bool = True) -> list[Violation]:
        """Returns every difference from the data of an honest notary. No record was lost, so every view must be the log's own.

        `roots_right`: also check the roots that workers wrote into the log.
        """
        replayed = self.replayed
        found = indexes.all_violations(self.indexes, replayed)
        found += self.history.violations(replayed.decisions, set(replayed.consumed))
        found += receipts.violations(self.verifier_keys, self.history.receipts(), replayed.tree)
        if roots_right:
            found += _wrong_roots(replayed)
        return found + _foreign_views(replayed)


def _wrong_roots(replayed: Replayed) -> list[Violation]:
    """Returns the roots that count and differ from the log's own tree (R9)."""
    found: list[Violation] = []
    for checkpoint in [checkpoint for checkpoint in replayed.checkpoints if checkpoint.counted]:
        place = f"the root that incarnation {checkpoint.incarnation} wrote at offset {checkpoint.offset}"
        if checkpoint.size > replayed.size:
            wanted = f"{replayed.size} at most, as many as the log decides"
            found.append(Violation(Kind.AHEAD_OF_LOG, place, f"{checkpoint.size} decisions", wanted))
        elif checkpoint.root != replayed.root(checkpoint.size):
            found.append(Violation(Kind.OTHER_TREE, place, checkpoint.root, replayed.root(checkpoint.size)))
    return found


def _foreign_views(replayed: Replayed) -> list[Violation]:
    """Returns the correctly signed records whose writers had another history than the log (R10)."""
    return [
        Violation(Kind.FOREIGN_VIEW, f"ordering record {applied.offset}", applied.record, "a view that is the log's own history")
        for applied in replayed.records
        if applied.view is Seen.FOREIGN
    ]
