"""R9: do the workers have the same tree? Judged from checkpoint records in the ordering topic, and from nothing else. Pure.

Now and then a worker writes `checkpoint(size, root)`; every other compares. Where roots differ, one of them is wrong, and nothing in two
roots says which. The rule as first written made every reader of another root stop: had the *wrong* worker written, all the right ones would
have stopped, and the wrong one gone on (tests/notary/test_agreement.py has that history). So a difference opens a **dispute**:

1. whoever sees a root that is not its own answers nothing from then on, and writes its own root at that size: its vote;
2. votes are counted in the order of the log, one a worker name, the first of each. A root wins with more than half of the *electorate*:
   the workers that are not fenced and have shown themselves within a day of log time, and those who voted. One voice never wins;
3. who has another root than the winner is **condemned**: it stops, and its index never opens again. The others answer again.

While no root wins (two workers, one against one) nobody answers: not to answer is safe, and a third worker that replays the log settles
it, for it votes as it passes. A checkpoint of a size that this worker has not reached is compared when it gets there.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from joiner.ready import RootSeen

VOTES_MIN: Final = 2
PENDING_MAX: Final = 16
"""How many checkpoints ahead of our tree are kept, the nearest first: a forger cannot fill memory with them."""


class Votes(msgspec.Struct, frozen=True):
    """Who said which root at one size; `electorate` as of the last vote."""

    size: int
    roots: dict[str, bytes]
    electorate: frozenset[str] = frozenset()

    def told(self) -> str:
        """Who has which root, and who has not said, for the operator."""
        by_root: dict[bytes, list[str]] = {}
        for name, root in self.roots.items():
            by_root.setdefault(root, []).append(name)
        said = "; ".join([f"{', '.join(sorted(names))}: {root.hex()}" for root, names in by_root.items()])
        missing = ", ".join(sorted(self.electorate - self.roots.keys()))
        return f"at {self.size} decisions {said}" + (f"; not heard yet: {missing}" if missing else "")

    def winner(self) -> bytes | None:
        """The root that at least two, and more than half of the electorate, have."""
        voters = len(self.electorate | self.roots.keys())
        for root, count in Counter(self.roots.values()).items():
            if count >= VOTES_MIN and 2 * count > voters:
                return root
        return None


class Agreement(msgspec.Struct, frozen=True):
    """What this worker knows of the others' roots: a row of the index, written with the step that it follows from."""

    incarnation_last: int = 0
    size_last: int = 0
    log_time_last_ms: int = 0
    """Of the last checkpoint counted: whose turn it is follows from it."""
    agreed_size: int = 0
    """The largest size at which another checkpoint had our root."""
    votes: Votes = Votes(0, {})
    """At the size of the last checkpoint; during a dispute, at the size in dispute."""
    disputed: bool = False
    pending: tuple[RootSeen, ...] = ()
    condemned: str = ""
    """Why this index must never answer again; empty while it may."""

    @property
    def dispute(self) -> Votes | None:
        """The votes of the dispute that is open."""
        return self.votes if self.disputed else None


def observe(agreement: Agreement, seen: Iterable[RootSeen], own_name: str, size: int, root_at: Callable[[int], bytes]) -> Agreement:
    """Take the step's checkpoints; `size` is that of our tree after the step, `root_at` its root at any size up to there."""
    due: list[RootSeen] = []
    ahead: list[RootSeen] = []
    for one in agreement.pending:
        (due if one.size <= size else ahead).append(one)
    for one in seen:
        agreement = msgspec.structs.replace(
            agreement,
            incarnation_last=one.incarnation,
            size_last=max(one.size if one.size <= size else 0, agreement.size_last),
            log_time_last_ms=one.log_time_ms,
        )
        (due if one.size <= size else ahead).append(one)
    ahead.sort(key=lambda one: one.size)
    agreement = msgspec.structs.replace(agreement, pending=tuple(ahead[:PENDING_MAX]))
    for one in due:
        if agreement.condemned:
            break
        agreement = _count(agreement, one, own_name, root_at)
    return agreement


def _count(agreement: Agreement, seen: RootSeen, own_name: str, root_at: Callable[[int], bytes]) -> Agreement:
    votes = agreement.votes
    if seen.size == votes.size:
        votes = Votes(seen.size, {seen.name: seen.root, **votes.roots}, seen.electorate)
    elif agreement.disputed:
        return agreement  # one dispute at a time; a difference at another size shows again when this one is settled
    else:
        votes = Votes(seen.size, {seen.name: seen.root}, seen.electorate)
    own = root_at(votes.size)
    # That a worker agrees with itself says nothing.
    confirmed = any(root == own and name != own_name for name, root in votes.roots.items())
    agreed_size = max(agreement.agreed_size, votes.size) if confirmed else agreement.agreed_size
    if all(root == own for root in votes.roots.values()):
        return msgspec.structs.replace(agreement, votes=votes, agreed_size=agreed_size)
    winner = votes.winner()
    if winner is None:
        return msgspec.structs.replace(agreement, votes=votes, disputed=True)
    if winner == own:
        return msgspec.structs.replace(agreement, votes=votes, disputed=False, agreed_size=agreed_size)
    agreed_before = agreement.agreed_size if agreement.agreed_size < votes.size else 0
    others = sorted([name for name, root in votes.roots.items() if root == winner])
    return msgspec.structs.replace(
        agreement,
        votes=votes,
        disputed=True,
        condemned=(
            f"at {votes.size} decisions its root is {own.hex()}, and {', '.join(others)} have {winner.hex()}: the first decision that"
            f" differs is at a position from {agreed_before} to {votes.size - 1}"
        ),
    )


def turn_comes_ms(agreement: Agreement, incarnation: int, senders: Iterable[int], interval_ms: int) -> int | None:
    """The log time from which it is that life's turn to write a checkpoint; None when it has none.

    `senders`: the lives that sent something of late. The next after the last writer comes first, an interval after its checkpoint; then the
    one after that, another interval later, in case the first is gone.
    """
    order = sorted(senders, key=lambda sender: (sender <= agreement.incarnation_last, sender))
    if incarnation not in order:
        return None
    return agreement.log_time_last_ms + interval_ms * (1 + order.index(incarnation))
