"""Tests that an honest notary has no violations: a joiner and an index compute the same from a log as the replay."""

from pathlib import Path

from tests.checkers import indexes, receipts
from tests.checkers.history import Submission
from tests.checkers.honest import Honest, busy
from tests.checkers.replay import Seen, replay
from tests.checkers.violation import describe
from tests.clients.party import digest, state


def _compare(notary: Honest) -> None:
    replayed = replay(notary.log.by_partition)
    assert replayed.ended_by == "end"
    view = notary.joiner.history.view
    assert (view.seen, view.history) == (replayed.seen, replayed.history)
    assert {applied.view for applied in replayed.records} <= {None, Seen.OWN}
    found = indexes.violations(notary.rows(), replayed)
    found += notary.history.violations(replayed.decisions, replayed.consumed.keys())
    found += receipts.violations([notary.key], notary.history.receipts(), replayed.tree, notary.notes)
    assert not found, describe(found)


def test_busy_notary_has_no_violations(tmp_path: Path) -> None:
    """A log with conflicts, windows, fills, garbage, forgeries, fences and more than one tile of decisions has no violations."""
    notary = busy(tmp_path / "index", spends=260)
    _compare(notary)
    replayed = replay(notary.log.by_partition)
    assert len(replayed.decisions) > 256
    assert {decision["reason"] for decision in replayed.decisions} == {None, "input-conflict", "reference-conflict", "outside-time-window"}
    assert [sum(batch.filled for batch in replayed.batches), sum(batch.signed_fill for batch in replayed.batches)] == [5, 1]
    assert [(state.name, state.fenced) for state in replayed.incarnations] == [("w1", False), ("w2", True), ("w2", False)]
    assert [(checkpoint.size, checkpoint.counted) for checkpoint in replayed.checkpoints] == [(2, True)]
    notary.index.close()


def test_submission_again_in_another_batch(tmp_path: Path) -> None:
    """A transaction in two batches is decided once, at the first, and both batches name that position."""
    notary = Honest(tmp_path / "index")
    notary.log.register("w1")
    submission: Submission = notary.ask({"inputs": [state("x")], "content_hash": digest("x")})
    notary.append(1, [submission], 2)
    notary.read()
    replayed = replay(notary.log.by_partition)
    assert [batch.positions for batch in replayed.batches] == [(0,), (0,)]
    assert indexes.violations(notary.rows(), replayed) == []
    notary.index.close()
