"""R9: compares the workers' roots and finds the wrong worker, from checkpoint records in the ordering topic alone. Pure.

From time to time a worker writes `checkpoint(size, root)`, and every other worker compares it with its own root. When two roots differ, one
of them is wrong, and the roots do not show which. Suppose that each worker stopped when it read another root. Then one *wrong* writer would
stop all the right workers, and continue itself (tests/notary/test_agreement.py has that history). So a difference opens a
**root disagreement**:

1. A worker that reads a root other than its own suspends serving, and writes its own root at that size: its vote.
2. Votes count in the order of the log, the first one of each worker name. A root wins with two votes or more, from more than half of the
   voters. Voters are the names that voted, and unfenced ones that registered or had an entry counted within a day of log time.
3. A worker whose root is not the winner is quarantined: it stops, and its index never opens again. The others serve again.

While no root wins (two workers, one against one) no worker answers, which is safe. A third worker that replays the log settles it, since it
votes when it reaches that size. A checkpoint of a size that this worker has not reached yet is compared when it gets there.

The root in the owner's trim record is a vote, too: an archive confirms it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from joiner.ready import OWNER_INCARNATION, RootSeen, VoteVoid
from ordering.ids import excerpt

VOTES_MIN: Final = 2
NAMES_RENDERED_MAX: Final = 10
PENDING_MAX: Final = 16
"""The maximum number of stored checkpoints whose size our tree has not reached, the smallest: a forger cannot fill memory."""


class Votes(msgspec.Struct, frozen=True):
    """The root that each worker reported at one size; `voters` are those as of the last vote."""

    size: int
    roots: dict[str, bytes]
    # `name`: the stored name of this member, as in the index's first version.
    voters: frozenset[str] = msgspec.field(default=frozenset(), name="electorate")
    settled: bool = False
    """True once our root has won at this size. A worker that reports another root later is wrong, and opens no disagreement."""
    incarnations: dict[str, int] = msgspec.field(default_factory=dict)
    """Per voter the incarnation that voted."""

    def rendered(self) -> str:
        """Renders the votes for the operator: the workers with each root, and the workers that have not voted."""
        by_root: dict[bytes, list[str]] = {}
        for name, root in self.roots.items():
            by_root.setdefault(root, []).append(name)
        voted = "; ".join([f"{_names(names)}: {root.hex()}" for root, names in by_root.items()])
        missing = self.voters - self.roots.keys()
        return f"at {self.size} decisions {voted}" + (f"; no vote yet: {_names(missing)}" if missing else "")

    def winner(self) -> bytes | None:
        """Returns the root of at least two workers and more than half of the voters; None while there is none."""
        voters = self.voters | self.roots.keys()
        for root, count in Counter(self.roots.values()).items():
            if count >= VOTES_MIN and 2 * count > len(voters):
                return root
        return None


class Agreement(msgspec.Struct, frozen=True):
    """This worker's comparison of its roots with the others'; a row of the index, written in the step's write batch."""

    incarnation_last: int = 0
    size_last: int = 0
    log_time_last_ms: int = 0
    """Log time of the last checkpoint read; the next writer's turn follows from it."""
    agreed_size: int = 0
    """The largest size at which another worker's checkpoint had our root."""
    votes: Votes = Votes(0, {})
    """The votes at the size of the last checkpoint; during a root disagreement, the votes at its size."""
    in_disagreement: bool = msgspec.field(default=False, name="disputed")
    pending: tuple[RootSeen, ...] = ()
    outvoted: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Per worker name the last incarnation whose root lost, and the smallest size at which it lost.

    Votes of that incarnation from that size on, and copies of them, open no more disagreements. A vote at a smaller size opens one:
    otherwise that worker would wait for ever for our vote there.
    """
    quarantined: str = msgspec.field(default="", name="condemned")
    """The reason why this index is quarantined and must never answer again; empty while it may answer."""
    offset_next: int = 0
    """The ordering offset after the last checkpoint that is in this state."""

    @property
    def disagreement(self) -> Votes | None:
        """The votes of the open root disagreement; None without one."""
        return self.votes if self.in_disagreement else None


def observe(
    agreement: Agreement, seen: Iterable[tuple[RootSeen | VoteVoid, int]], own_name: str, size: int, root_at: Callable[[int], bytes]
) -> Agreement:
    """Apply the step's checkpoints, each with the size of our tree at its place in the log. Returns the new state.

    `size` is the size of our tree after the step; `root_at` returns our root at any size up to that. The result must not depend on how the
    log was split into steps. So each checkpoint is compared at its own place in the log, or, if it is ahead of our tree, where the tree
    reaches its size.
    """
    for one, size_there in seen:
        agreement = _catch_up(agreement, size_there, own_name, root_at)
        if isinstance(one, VoteVoid):
            agreement = _without(agreement, one.name, own_name, root_at)
            continue
        reached = one.size <= size_there
        if one.incarnation != OWNER_INCARNATION:  # the owner takes no turn
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
    """Compare the pending checkpoints whose size our tree has reached by now, the smallest first."""
    while agreement.pending and agreement.pending[0].size <= size:
        one, *ahead = agreement.pending
        agreement = _count(msgspec.structs.replace(agreement, pending=tuple(ahead)), one, own_name, root_at)
    return agreement


def _count(agreement: Agreement, seen: RootSeen, own_name: str, root_at: Callable[[int], bytes]) -> Agreement:
    incarnation, size = agreement.outvoted.get(seen.name, (-1, 0))
    # A worker may have registered under the owner's name.
    is_older = OWNER_INCARNATION != seen.incarnation < incarnation
    if agreement.quarantined or is_older or (seen.incarnation == incarnation and seen.size >= size):
        return agreement
    votes, in_disagreement = agreement.votes, agreement.in_disagreement
    if seen.size == votes.size:
        if seen.name in votes.roots and not in_disagreement:
            return agreement  # a settled size stays settled, even if its votes are repeated
        roots, incarnations = {seen.name: seen.root, **votes.roots}, {seen.name: seen.incarnation, **votes.incarnations}
        votes = Votes(seen.size, roots, seen.voters, votes.settled, incarnations)
    elif not in_disagreement or (seen.size < votes.size and seen.root != root_at(seen.size)):
        # One disagreement is open at a time, the one at the smallest size, so that all workers vote at the same size.
        votes, in_disagreement = Votes(seen.size, {seen.name: seen.root}, seen.voters, False, {seen.name: seen.incarnation}), False
    else:
        return agreement
    return _tally(agreement, votes, own_name, root_at, in_disagreement=in_disagreement)


def _without(agreement: Agreement, name: str, own_name: str, root_at: Callable[[int], bytes]) -> Agreement:
    """Remove a worker that the owner retired: its vote in an open disagreement is void, and it is no longer a voter."""
    votes = agreement.votes
    pending = tuple([seen for seen in agreement.pending if seen.name != name])
    agreement = msgspec.structs.replace(agreement, pending=pending)
    if not agreement.in_disagreement or agreement.quarantined or name not in votes.roots.keys() | votes.voters:
        return agreement
    roots = {voter: root for voter, root in votes.roots.items() if voter != name}
    incarnations = {voter: incarnation for voter, incarnation in votes.incarnations.items() if voter != name}
    return _tally(
        agreement, Votes(votes.size, roots, votes.voters - {name}, votes.settled, incarnations), own_name, root_at, in_disagreement=True
    )


def _tally(agreement: Agreement, votes: Votes, own_name: str, root_at: Callable[[int], bytes], *, in_disagreement: bool) -> Agreement:
    """Returns the state that follows from these votes: agreement, an open disagreement, or a quarantined index."""
    own = root_at(votes.size)
    # A worker's agreement with itself confirms nothing.
    confirmed = any(root == own and name != own_name for name, root in votes.roots.items())
    agreed_size = max(agreement.agreed_size, votes.size) if confirmed else agreement.agreed_size
    winner = votes.winner()
    if all(root == own for root in votes.roots.values()) or winner == own or (votes.settled and not in_disagreement):
        settled = votes.settled or winner == own
        lost = {name: votes.incarnations[name] for name, root in votes.roots.items() if settled and root != own}
        return msgspec.structs.replace(
            agreement,
            votes=msgspec.structs.replace(votes, settled=settled),
            in_disagreement=False,
            agreed_size=agreed_size,
            outvoted=agreement.outvoted | {name: (incarnation, votes.size) for name, incarnation in lost.items()},
        )
    if winner is None:
        return msgspec.structs.replace(agreement, votes=votes, in_disagreement=True)
    agreed_before = agreement.agreed_size if agreement.agreed_size < votes.size else 0
    others = _names([name for name, root in votes.roots.items() if root == winner])
    return msgspec.structs.replace(
        agreement,
        votes=votes,
        in_disagreement=True,
        quarantined=(
            f"at {votes.size} decisions its root is {own.hex()}, and {others} have {winner.hex()}: the first"
            f" decision that differs is at a position from {agreed_before} to {votes.size - 1}"
        ),
    )


def _names(names: Iterable[str]) -> str:
    """Renders worker names from the log, quoted and shortened: anyone who may write to the log can put any text there."""
    quoted = [excerpt(name) for name in sorted(names)]
    return ", ".join(quoted[:NAMES_RENDERED_MAX]) + (
        f" and {len(quoted) - NAMES_RENDERED_MAX} more" if len(quoted) > NAMES_RENDERED_MAX else ""
    )


def turn_comes_ms(agreement: Agreement, incarnation: int, senders: Iterable[int], interval_ms: int) -> int | None:
    """Returns the log time, in ms, from which that incarnation may write a checkpoint; None when it has no turn.

    `senders`: the incarnations that wrote something recently. The next incarnation after the last writer may write one interval after the
    last checkpoint. In case it is gone, the one after it may write another interval later, and so on.
    """
    order = sorted(senders, key=lambda sender: (sender <= agreement.incarnation_last, sender))
    if incarnation not in order:
        return None
    return agreement.log_time_last_ms + interval_ms * (1 + order.index(incarnation))
