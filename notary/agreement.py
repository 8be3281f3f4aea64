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

from joiner.ready import RootSeen, VoteVoid
from ordering.ids import excerpt

VOTES_MIN: Final = 2
NAMES_TOLD_MAX: Final = 10
PENDING_MAX: Final = 16
"""How many checkpoints ahead of our tree are kept, the nearest first: a forger cannot fill memory with them."""


class Votes(msgspec.Struct, frozen=True):
    """Who said which root at one size; `electorate` as of the last vote."""

    size: int
    roots: dict[str, bytes]
    electorate: frozenset[str] = frozenset()
    settled: bool = False
    """Whether our root has won here: who says another later is wrong, and opens nothing."""
    incarnations: dict[str, int] = msgspec.field(default_factory=dict)
    """Per voter the incarnation that voted."""

    def told(self) -> str:
        """Who has which root, and who has not said, for the operator."""
        by_root: dict[bytes, list[str]] = {}
        for name, root in self.roots.items():
            by_root.setdefault(root, []).append(name)
        said = "; ".join([f"{_names(names)}: {root.hex()}" for root, names in by_root.items()])
        missing = self.electorate - self.roots.keys()
        return f"at {self.size} decisions {said}" + (f"; not heard yet: {_names(missing)}" if missing else "")

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
    outvoted: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Per worker name the last incarnation with another root than the one that won, and the smallest size where it had it: its votes from
    there on, and copies of them, open nothing more. One at a smaller size does: else it would wait for our vote there for ever."""
    condemned: str = ""
    """Why this index must never answer again; empty while it may."""

    @property
    def dispute(self) -> Votes | None:
        """The votes of the dispute that is open."""
        return self.votes if self.disputed else None


def observe(
    agreement: Agreement, seen: Iterable[tuple[RootSeen | VoteVoid, int]], own_name: str, size: int, root_at: Callable[[int], bytes]
) -> Agreement:
    """Take the step's checkpoints, each with the size of our tree at its place in the log; `size` is that after the step.

    `root_at`: our root at any size up to there. How the log was split over steps must not matter: each checkpoint is compared at its own
    place, and one that was ahead of our tree at the place where the tree reaches it.
    """
    for one, size_there in seen:
        agreement = _catch_up(agreement, size_there, own_name, root_at)
        if isinstance(one, VoteVoid):
            agreement = _without(agreement, one.name, own_name, root_at)
            continue
        reached = one.size <= size_there
        agreement = msgspec.structs.replace(
            agreement,
            incarnation_last=one.incarnation,
            size_last=max(one.size if reached else 0, agreement.size_last),
            log_time_last_ms=one.log_time_ms,
        )
        if reached:
            agreement = _count(agreement, one, own_name, root_at)
        else:
            pending = sorted((*agreement.pending, one), key=lambda ahead: ahead.size)
            agreement = msgspec.structs.replace(agreement, pending=tuple(pending[:PENDING_MAX]))
    return _catch_up(agreement, size, own_name, root_at)


def _catch_up(agreement: Agreement, size: int, own_name: str, root_at: Callable[[int], bytes]) -> Agreement:
    """Compare what was ahead of our tree and is not any more, the smallest first."""
    while agreement.pending and agreement.pending[0].size <= size:
        one, *ahead = agreement.pending
        agreement = _count(msgspec.structs.replace(agreement, pending=tuple(ahead)), one, own_name, root_at)
    return agreement


def _count(agreement: Agreement, seen: RootSeen, own_name: str, root_at: Callable[[int], bytes]) -> Agreement:
    incarnation, size = agreement.outvoted.get(seen.name, (0, 0))
    if agreement.condemned or seen.incarnation < incarnation or (seen.incarnation == incarnation and seen.size >= size):
        return agreement
    votes, disputed = agreement.votes, agreement.disputed
    if seen.size == votes.size:
        if seen.name in votes.roots and not disputed:
            return agreement  # what is settled stays settled, however often it is said again
        roots, incarnations = {seen.name: seen.root, **votes.roots}, {seen.name: seen.incarnation, **votes.incarnations}
        votes = Votes(seen.size, roots, seen.electorate, votes.settled, incarnations)
    elif not disputed or (seen.size < votes.size and seen.root != root_at(seen.size)):
        # One dispute at a time, and of several the one at the smallest size: all come to the same, and its votes are what is counted.
        votes, disputed = Votes(seen.size, {seen.name: seen.root}, seen.electorate, False, {seen.name: seen.incarnation}), False
    else:
        return agreement
    return _tally(agreement, votes, own_name, root_at, disputed=disputed)


def _without(agreement: Agreement, name: str, own_name: str, root_at: Callable[[int], bytes]) -> Agreement:
    """The owner retired that worker: its vote in an open dispute is void, and it is no voter."""
    votes = agreement.votes
    pending = tuple([seen for seen in agreement.pending if seen.name != name])
    agreement = msgspec.structs.replace(agreement, pending=pending)
    if not agreement.disputed or agreement.condemned or name not in votes.roots.keys() | votes.electorate:
        return agreement
    roots = {voter: root for voter, root in votes.roots.items() if voter != name}
    incarnations = {voter: incarnation for voter, incarnation in votes.incarnations.items() if voter != name}
    return _tally(
        agreement, Votes(votes.size, roots, votes.electorate - {name}, votes.settled, incarnations), own_name, root_at, disputed=True
    )


def _tally(agreement: Agreement, votes: Votes, own_name: str, root_at: Callable[[int], bytes], *, disputed: bool) -> Agreement:
    """Returns what follows from these votes: agreement, a dispute that stays open, or that this index is condemned."""
    own = root_at(votes.size)
    # That a worker agrees with itself says nothing.
    confirmed = any(root == own and name != own_name for name, root in votes.roots.items())
    agreed_size = max(agreement.agreed_size, votes.size) if confirmed else agreement.agreed_size
    winner = votes.winner()
    if all(root == own for root in votes.roots.values()) or winner == own or (votes.settled and not disputed):
        settled = votes.settled or winner == own
        lost = {name: votes.incarnations[name] for name, root in votes.roots.items() if settled and root != own}
        return msgspec.structs.replace(
            agreement,
            votes=msgspec.structs.replace(votes, settled=settled),
            disputed=False,
            agreed_size=agreed_size,
            outvoted=agreement.outvoted | {name: (incarnation, votes.size) for name, incarnation in lost.items()},
        )
    if winner is None:
        return msgspec.structs.replace(agreement, votes=votes, disputed=True)
    agreed_before = agreement.agreed_size if agreement.agreed_size < votes.size else 0
    others = _names([name for name, root in votes.roots.items() if root == winner])
    return msgspec.structs.replace(
        agreement,
        votes=votes,
        disputed=True,
        condemned=(
            f"at {votes.size} decisions its root is {own.hex()}, and {others} have {winner.hex()}: the first"
            f" decision that differs is at a position from {agreed_before} to {votes.size - 1}"
        ),
    )


def _names(names: Iterable[str]) -> str:
    """Names out of the log, where anyone who may write there can put anything."""
    quoted = [excerpt(name) for name in sorted(names)]
    return ", ".join(quoted[:NAMES_TOLD_MAX]) + (f" and {len(quoted) - NAMES_TOLD_MAX} more" if len(quoted) > NAMES_TOLD_MAX else "")


def turn_comes_ms(agreement: Agreement, incarnation: int, senders: Iterable[int], interval_ms: int) -> int | None:
    """The log time from which it is that life's turn to write a checkpoint; None when it has none.

    `senders`: the lives that sent something of late. The next after the last writer comes first, an interval after its checkpoint; then the
    one after that, another interval later, in case the first is gone.
    """
    order = sorted(senders, key=lambda sender: (sender <= agreement.incarnation_last, sender))
    if incarnation not in order:
        return None
    return agreement.log_time_last_ms + interval_ms * (1 + order.index(incarnation))
