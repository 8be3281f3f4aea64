"""The comparison of this worker's roots with the others' (R9), and the copies of it that a restart or an interruption needs. Pure."""

from collections.abc import Callable, Sequence

import msgspec

from joiner.ready import Ready, RootSeen, VoteVoid
from notary.agreement import Agreement
from notary.decision import Decision

Vote = tuple[RootSeen | VoteVoid, int]
"""A checkpoint or retire record, and the size of our tree at its place in the log."""


class ComparedRoots(msgspec.Struct, frozen=True):
    """The comparison after the last step.

    After a start or an interruption the joiner reads again from the last record that took effect. Later comparisons are dropped first: a
    vote from a root disagreement that has ended would open another one if it were compared twice.
    """

    last: Agreement
    before: Agreement
    """The comparison as of the last record that took effect. A restart reads later checkpoints and compares them again (R8)."""
    open_before: Agreement | None = None
    """While checkpoints are read again: the last comparison, if it has an open root disagreement. Meanwhile nothing is answered."""

    @property
    def agreement(self) -> Agreement:
        """The comparison that decides whether this worker may answer."""
        return self.open_before or self.last

    def quarantined(self, why: str) -> "ComparedRoots":
        """Returns the comparison of a quarantined index."""
        return ComparedRoots(msgspec.structs.replace(self.agreement, quarantined=why), self.before)

    def after(self, ready: Ready, votes: Sequence[Vote], compare: Callable[[Agreement, Sequence[Vote]], Agreement]) -> "ComparedRoots":
        """Returns the comparison after a step with these votes; `compare` adds votes to an agreement."""
        last, before, open_before = self.last, self.before, self.open_before
        if votes and votes[0][0].offset < last.offset_next:
            open_before = open_before or (None if last.disagreement is None else last)
            last = before
        through_effects = 0
        if ready.effects:
            through_effects = len([seen for seen, _ in votes if seen.offset <= ready.effects[-1].offset])
            last = before = compare(last, votes[:through_effects])
        last = compare(last, votes[through_effects:])
        if open_before is not None and last.offset_next >= open_before.offset_next:
            open_before = None
        return ComparedRoots(last, before, open_before)


def votes_of(ready: Ready, outcomes: Sequence[Sequence[Decision]], size_before: int) -> list[Vote]:
    """Returns the step's checkpoint and retire records as votes. `size_before`: the size of our tree before the step."""
    sizes = [size_before]
    for decisions in outcomes:
        sizes.append(max([sizes[-1], *[decision.position + 1 for decision in decisions]]))
    return [(seen, sizes[seen.batches_before]) for seen in ready.roots_seen]
