"""What a notary leaves when it is over, and the checkers on all of it: its log, the indexes of its workers, what its clients were told.

The log is the judge: it is decided all over again by brute force, and everything else is held against that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tests.checkers import indexes, receipts
from tests.checkers.history import History
from tests.checkers.indexes import Rows
from tests.checkers.replay import Replayed, Streams, replay
from tests.checkers.violation import Kind, Violation


@dataclass(frozen=True)
class Remains:
    """All of one notary; `name` is what its requests were signed for."""

    name: str
    verifier_keys: Sequence[str]
    partitions: int
    streams: Streams
    indexes: Mapping[str, Rows]
    """By the names of the workers."""
    history: History

    @cached_property
    def replayed(self) -> Replayed:
        """What the log says."""
        return replay(self.streams, self.name, self.partitions)

    def violations(self, *, roots_right: bool = True) -> list[Violation]:
        """Everything that is not as one honest notary leaves it. `roots_right`: so are the roots that workers wrote into the log."""
        replayed = self.replayed
        found = indexes.all_violations(self.indexes, replayed)
        found += self.history.violations(replayed.decisions, set(replayed.consumed))
        found += receipts.violations(self.verifier_keys, self.history.receipts(), replayed.tree)
        return found + (_wrong_roots(replayed) if roots_right else [])


def _wrong_roots(replayed: Replayed) -> list[Violation]:
    """Every root that counts is that of the log's own tree (R9)."""
    found: list[Violation] = []
    for checkpoint in [checkpoint for checkpoint in replayed.checkpoints if checkpoint.counted]:
        place = f"the root that life {checkpoint.incarnation} wrote at offset {checkpoint.offset}"
        if checkpoint.size > len(replayed.decisions):
            wanted = f"{len(replayed.decisions)} at most, as many as the log decides"
            found.append(Violation(Kind.AHEAD_OF_LOG, place, f"{checkpoint.size} decisions", wanted))
        elif checkpoint.root != replayed.root(checkpoint.size):
            found.append(Violation(Kind.OTHER_TREE, place, checkpoint.root, replayed.root(checkpoint.size)))
    return found
