"""The replay says what the joiner and the index say, of any log; and, where a worked example exists, what that says."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joiner import JoinerLimits
from ordering.log import ORDERING
from ordering.records import Activate, Checkpoint
from tests.asking.party import digest, state
from tests.checkers import indexes, memory, receipts
from tests.checkers.history import Submission
from tests.checkers.honest import Honest, busy
from tests.checkers.replay import replay
from tests.checkers.requests import requests_of
from tests.checkers.tree import leaf_of
from tests.checkers.violation import describe
from tests.joiner.history import NOTARY, History
from tests.properties.test_joiner import PARTITIONS, MemoryStreams, Worker, histories

VECTORS = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())
SHARED = settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
FEW = settings(SHARED, max_examples=40)


@SHARED
@given(histories())
def test_replay_joins_as_the_joiner_does(history: tuple[list[Any], list[list[Any]]]) -> None:
    """Of any log the batches, log times, lives and the first hole are the joiner's, which keeps in memory what it must and no more."""
    streams = MemoryStreams(*history)
    worker = Worker(streams, JoinerLimits())
    worker.read_all(0)
    log = {stream: [streams.record(stream, offset) for offset in range(streams.end(stream))] for stream in range(ORDERING, PARTITIONS)}
    replayed = replay(log, NOTARY, PARTITIONS)
    joined = [(b.offset, b.incarnation, b.sequence, b.log_time, b.filled, tuple(map(bytes.fromhex, b.ids))) for b in replayed.batches]
    assert joined == worker.plain()
    assert replayed.offset_end == worker.joiner.offset_head
    assert replayed.ended_by == ("end" if worker.joiner.hole is None else "hole")
    for life in replayed.lives:
        other = worker.joiner.lives.get(life.incarnation)
        assert other is not None
        assert (life.name, life.sequence_last, life.fenced) == (other.name, other.sequence_last, other.fenced)
    assert worker.joiner.lives.get(len(replayed.lives) + 1) is None
    kept = {"read_next": worker.joiner.read_next(), "offsets_next": worker._offsets, "buffered_records": worker.joiner.buffered_records}
    assert memory.violations(log, replayed, **kept) == []


few_states = st.lists(st.integers(0, 4).map(lambda n: state("few", n)), max_size=3, unique=True)
windows = st.sampled_from([None, None, None, {"from": None, "until": 1_000_010}, {"from": 1_000_010, "until": None}])


@st.composite
def asked(draw: st.DrawFn) -> dict[str, Any]:
    """A request of a small universe, so that conflicts, references to what is consumed and repeated ids are frequent."""
    inputs, references, window = draw(few_states), draw(few_states), draw(windows)
    request: dict[str, Any] = {"inputs": inputs, "references": references, "content_hash": digest("one")}
    if window or not inputs + references:
        request["time_window"] = window or {"from": 0, "until": None}
    return request


@FEW
@given(st.lists(st.tuples(st.lists(asked(), min_size=1, max_size=4), st.booleans(), st.integers(0, PARTITIONS - 1)), max_size=12))
def test_honest_notary_has_no_violations(plan: list[Any]) -> None:
    """Whatever clients ask, a joiner and an index that read the log give what the replay gives, and their receipts and answers hold."""
    with TemporaryDirectory() as directory:
        notary = Honest(Path(directory) / "index")
        notary.log.register("w1")
        for requests, answered, partition in plan:
            once = list({json.dumps(request): request for request in requests}.values())
            submission = notary.party.submission(*once)
            if len(set(submission.ids)) < len(submission.ids):
                continue  # the same states in another order: one transaction, and so no submission
            submission = notary.send(*once, partition=partition)
            if answered:
                notary.answer(submission)
        notary.read()
        _hold(notary)
        notary.index.close()


def _hold(notary: Honest) -> None:
    replayed = replay(notary.log.streams, NOTARY, PARTITIONS)
    assert replayed.ended_by == "end"
    found = indexes.violations(notary.rows(), replayed)
    found += notary.history.violations(replayed.decisions, replayed.consumed.keys())
    found += receipts.violations([notary.key], notary.history.receipts(), replayed.tree, notary.notes)
    assert not found, describe(found)


def test_busy_notary_has_no_violations(tmp_path: Path) -> None:
    """Conflicts, windows, fills, garbage, fences, retries and more than a tile of decisions: nothing is flagged."""
    notary = busy(tmp_path / "index", spends=260)
    _hold(notary)
    replayed = replay(notary.log.streams, NOTARY, PARTITIONS)
    assert len(replayed.decisions) > 256
    assert {decision["reason"] for decision in replayed.decisions} == {None, "input-conflict", "reference-conflict", "outside-time-window"}
    assert sum(batch.filled for batch in replayed.batches) == 5
    assert [(life.name, life.fenced) for life in replayed.lives] == [("w1", False), ("w2", True), ("w2", False)]
    assert [(checkpoint.size, checkpoint.counted) for checkpoint in replayed.checkpoints] == [(2, True)]
    notary.index.close()


def test_worked_example_of_ids() -> None:
    """The replay's reading of a payload gives the transaction ids of the worked example."""
    submission = {"party": "O=A", "signature": "", "requests": [each["request"] for each in VECTORS["requests"]]}
    found = requests_of(json.dumps([submission]).encode(), VECTORS["notary"])
    assert found is not None
    assert [id_ for id_, _ in found] == [each["transaction_id"] for each in VECTORS["requests"]]


def test_worked_example_of_leaves() -> None:
    """Leaves and root are those of the worked example."""
    leaves = [leaf_of(each["decision"]) for each in VECTORS["decisions"]]
    assert [leaf.hex() for leaf in leaves] == [each["leaf_hex"] for each in VECTORS["decisions"]]
    replayed = replay({}, "", 0)
    replayed.leaves.extend(leaves)
    assert replayed.root(3).hex() == VECTORS["root_of_the_three_leaves"]


def test_stops_before_an_unknown_version() -> None:
    """What comes after the activation of a version that nobody knows is not judged; an activation of a known one changes nothing."""
    log = History(PARTITIONS)
    log.register("w1")
    log.ordering(Activate(1))
    log.entry(1, 1, "a")
    log.payload(1, 1, "a")
    log.ordering(Activate(2))
    log.entry(1, 2, "b")
    log.payload(1, 2, "b")
    replayed = replay(log.streams, NOTARY, PARTITIONS)
    assert (replayed.ended_by, replayed.offset_end, len(replayed.decisions)) == ("activate", 3, 1)


def test_replays_up_to_a_place() -> None:
    """The order may be judged as far as a worker has come, with all payloads at hand."""
    log = History(PARTITIONS)
    log.register("w1")
    for sequence, label in enumerate("abc", 1):
        log.entry(1, sequence, label)
        log.payload(1, sequence, label)
    replayed = replay(log.streams, NOTARY, PARTITIONS, offset_stop=3)
    assert (replayed.ended_by, replayed.offset_end, len(replayed.decisions)) == ("end", 3, 2)


def test_checkpoints_count_while_their_life_goes_on() -> None:
    """A checkpoint record of a life that has not registered, or was fenced, does not count."""
    log = History(PARTITIONS)
    log.register("w1")
    log.checkpoint(1, 0)
    log.checkpoint(2, 0)
    log.register("w1")
    log.ordering(Checkpoint(1, 0, bytes(32)))
    replayed = replay(log.streams, NOTARY, PARTITIONS)
    assert [(root.offset, root.incarnation, root.counted) for root in replayed.checkpoints] == [(1, 1, True), (2, 2, False), (4, 1, False)]


def test_submission_again_in_another_batch(tmp_path: Path) -> None:
    """A transaction in two batches is decided once, at the first, and both batches name that position."""
    notary = Honest(tmp_path / "index")
    notary.log.register("w1")
    submission: Submission = notary.ask({"inputs": [state("x")], "content_hash": digest("x")})
    notary.append(1, [submission], 2)
    notary.read()
    replayed = replay(notary.log.streams, NOTARY, PARTITIONS)
    assert [batch.positions for batch in replayed.batches] == [(0,), (0,)]
    assert indexes.violations(notary.rows(), replayed) == []
    notary.index.close()
