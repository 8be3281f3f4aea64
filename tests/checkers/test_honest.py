"""Tests that an honest notary has no violations: a joiner and an index compute the same from a log as the replay."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkers import indexes, receipts
from tests.checkers.history import Submission
from tests.checkers.honest import PARTITIONS, Honest, busy
from tests.checkers.replay import Seen, replay
from tests.checkers.violation import describe
from tests.clients.party import digest, state
from tests.examples import some

FEW = settings(deadline=None, max_examples=some(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

few_states = st.lists(st.integers(0, 4).map(lambda n: state("few", n)), max_size=3, unique=True)
windows = st.sampled_from([None, None, None, {"from": None, "until": 1_000_010}, {"from": 1_000_010, "until": None}])


@st.composite
def asked(draw: st.DrawFn) -> dict[str, Any]:
    """A request over few states, so that conflicts, references to consumed states and repeated ids are frequent."""
    inputs, references, window = draw(few_states), draw(few_states), draw(windows)
    request: dict[str, Any] = {"inputs": inputs, "references": references, "content_hash": digest("one")}
    if window or not inputs + references:
        request["time_window"] = window or {"from": 0, "until": None}
    return request


@FEW
@given(st.lists(st.tuples(st.lists(asked(), min_size=1, max_size=4), st.booleans(), st.integers(0, PARTITIONS - 1)), max_size=12))
def test_honest_notary_has_no_violations(plan: list[Any]) -> None:
    """For any requests, a joiner and an index give the same as the replay, and their receipts and answers verify."""
    with TemporaryDirectory() as directory:
        notary = Honest(Path(directory) / "index")
        notary.log.register("w1")
        for requests, answered, partition in plan:
            once = list({json.dumps(request): request for request in requests}.values())
            submission = notary.party.submission(*once)
            if len(set(submission.ids)) < len(submission.ids):
                continue  # the same states in another order have the same id, so they cannot be in one submission
            submission = notary.send(*once, partition=partition)
            if answered:
                notary.answer(submission)
        notary.read()
        _compare(notary)
        notary.index.close()


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
