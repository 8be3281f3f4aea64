"""Tests which comparison of roots counts while checkpoints are read again after a restart or an interruption (R9)."""

from collections.abc import Sequence

import msgspec

from joiner import OrderedBatch, Ready, RootSeen
from joiner.history import Effect
from notary.agreement import Agreement, observe
from notary.decision import Decision, Outcome
from notary.index.roots import ComparedRoots, Vote, votes_of

RIGHT, WRONG = bytes(32), bytes([1]) * 32
SIZE = 10
NEW = ComparedRoots(Agreement(), Agreement())


def _vote(offset: int, name: str, root: bytes, size: int = SIZE) -> Vote:
    return RootSeen(name, ord(name), size, root, 0, frozenset("abc"), offset=offset), SIZE


def _compare(agreement: Agreement, votes: Sequence[Vote]) -> Agreement:
    """Compares as the index of worker "a" does, whose root is right."""
    agreement = observe(agreement, votes, "a", SIZE, lambda _: RIGHT)
    return msgspec.structs.replace(agreement, offset_next=votes[-1][0].offset + 1) if votes else agreement


def _steps(roots: ComparedRoots, *votes: Vote, effect: int | None = None) -> ComparedRoots:
    """Returns the comparison after a step for each vote; a record at offset `effect` takes effect in the first one."""
    effects = [] if effect is None else [Effect(1, b"", effect, 0, b"")]
    for vote in votes:
        roots = roots.after(Ready({}, 0, effects=effects), [vote], _compare)
        effects = []
    return roots


def _restarted(roots: ComparedRoots) -> ComparedRoots:
    """Returns what a restart reads from the rows of the index."""
    return ComparedRoots(roots.agreement, roots.before)


def test_votes_that_are_read_again_count_once() -> None:
    """The vote that lost opens no second disagreement, and the sizes that agreed do not go back."""
    votes = [_vote(5, "c", WRONG, 9), _vote(6, "a", RIGHT, 9), _vote(7, "b", RIGHT, 9), _vote(8, "b", WRONG, 8)]
    first = _steps(NEW, *votes, effect=4)
    assert first.agreement.in_disagreement  # at 8, opened by the last one
    again = _steps(_restarted(first), *votes)
    assert (again.last, again.before, again.open_before) == (first.last, first.before, None)


def test_a_restart_continues_from_the_votes_before_the_last_effect() -> None:
    """A vote behind the last record that took effect is read again, also if it came in the same step."""
    ready = Ready({}, 0, effects=[Effect(1, b"", 4, 0, b"")])
    roots = NEW.after(ready, [_vote(3, "b", RIGHT), _vote(5, "c", WRONG)], _compare)
    assert (roots.before.agreed_size, roots.before.offset_next, roots.before.in_disagreement) == (SIZE, 4, False)
    assert (roots.last.offset_next, roots.last.in_disagreement) == (6, True)


def test_an_open_disagreement_stays_open_while_it_is_read_again() -> None:
    """A worker must not answer between its restart and the vote that had opened the disagreement."""
    votes = [_vote(5, "b", RIGHT), _vote(6, "c", WRONG)]
    roots = _restarted(_steps(NEW, *votes, effect=4))
    roots = _steps(roots, votes[0])
    assert (roots.last.in_disagreement, roots.agreement.in_disagreement) == (False, True)
    roots = _steps(roots, votes[1])
    assert (roots.last.in_disagreement, roots.open_before) == (True, None)


def test_a_quarantine_is_the_comparison_that_counts() -> None:
    """It is written from the comparison with the open disagreement, also while checkpoints are read again."""
    votes = [_vote(5, "b", RIGHT), _vote(6, "c", WRONG)]
    roots = _steps(_restarted(_steps(NEW, *votes, effect=4)), votes[0]).quarantined("a row is wrong")
    assert (roots.agreement.quarantined, roots.agreement.in_disagreement) == ("a row is wrong", True)


def test_a_vote_has_the_size_of_the_tree_at_its_place() -> None:
    """Retries and rejected repetitions of earlier positions do not change the size; a vote comes after the batches before it."""

    def decided(position: int) -> Decision:
        return Decision(position, bytes(32), Outcome.COMMITTED, 0)

    seen = [RootSeen("b", 2, 0, RIGHT, 0, frozenset("ab"), batches_before=count) for count in (0, 1, 2)]
    batches = [OrderedBatch(1, 1, 1, 0, False, ()), OrderedBatch(2, 1, 2, 0, False, ())]
    ready = Ready({}, 0, batches=batches, roots_seen=list(seen))
    votes = votes_of(ready, [[decided(7), decided(8)], [decided(3)]], 7)
    assert votes == [(seen[0], 7), (seen[1], 9), (seen[2], 9)]
