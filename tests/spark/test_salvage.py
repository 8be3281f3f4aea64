"""Spark decides logs with salvages as workers and the replay do (R11); it reports what an owner restores wrongly."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ordering.log import ORDERING, Record
from ordering.salvage import Hashed, Lost
from spark_join.engine.stages import Stages
from spark_join.log.archive import read_archive
from spark_join.state import AppliedState, rest_of, start
from spark_join.verify import Verified, verify
from tests.checkers.replay import Replayed, replay
from tests.joiner.history import History
from tests.joiner.salvaged import Owner
from tests.model.real import salvaged_log
from tests.spark.archived import archive
from tests.spark.test_verify import found_decisions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

Streams = Mapping[int, Sequence[Record]]


def _verified(spark: SparkSession, folder: Path, streams: Streams, state: AppliedState | None = None) -> Verified:
    log = read_archive(spark, archive(streams, folder / "archive"))
    state = state or start(spark)
    return verify(spark, rest_of(log, state), state, None, Stages(spark, folder / "stages"))


def _hold(found: Verified, replayed: Replayed, salvaged: int) -> None:
    """Check decisions, positions and root against the replay; no more is wrong than what a disaster leaves in a log."""
    assert (found.decided, found.root) == (replayed.size, replayed.root(replayed.size))
    assert sum(found.salvaged.values()) == salvaged
    expected = {decision["position"]: decision for decision in replayed.decisions}
    for decision in found_decisions(found):
        assert decision == expected[decision["position"]]
    assert {row.type for row in found.violations.collect()} <= {"foreign-view", "sequence-gap", "missing-payload"}


@pytest.mark.parametrize("seed", [8, 59, 72])
def test_histories_of_disasters(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Spark has the replay's decisions and root for the model's histories: decisions, hashes, lost leaves, reservations, seals, trims."""
    streams = salvaged_log(seed)
    replayed = replay(streams)
    _hold(_verified(spark, tmp_path, streams), replayed, replayed.salvaged)


def test_a_night_in_the_middle_of_a_salvage(spark: SparkSession, tmp_path: Path) -> None:
    """A run that ends between the begin and the done of a salvage keeps a state before the begin; the next run restores all items."""
    history = History()
    history.activate(2)
    history.register(version=2)
    history.payload(1, 1, "a", "b")
    history.entry(1, 1, "a", "b")
    other = Owner(history).reader()
    items = [other.item(0), other.item(1)]
    history.cut({ORDERING: 3, 0: 0})
    owner = Owner(history)
    owner.key()
    owner.begin()
    owner.items(items[0])
    middle = {stream: list(records) for stream, records in history.streams.items()}
    owner.items(Hashed(bytes(32)), Lost())
    owner.done(items[0], Hashed(bytes(32)), Lost())
    history.register("w2", version=2)
    history.payload(2, 1, "a", "c")
    history.entry(2, 1, "a", "c")

    early = _verified(spark, tmp_path / "monday", middle)
    _hold(early, replay(middle), 0)
    kept = early.after()
    assert kept.offsets_next[ORDERING] == 4
    late = _verified(spark, tmp_path / "tuesday", history.streams, kept)
    _hold(late, replay(history.streams), 3)
    assert late.violations.isEmpty()
    assert [decision["position"] for decision in found_decisions(late)] == [3]


def test_wrong_items_are_violations(spark: SparkSession, tmp_path: Path) -> None:
    """An owner who restores a decision twice, or one that spends a spent state, or begins at another position, is reported."""
    history = History()
    history.activate(2)
    history.register(version=2)
    history.payload(1, 1, "a", "b")
    history.entry(1, 1, "a", "b")
    owner = Owner(history)
    reader = owner.reader()
    again = reader.item(1)
    leaf = bytearray(again.leaf)
    leaf[19:27] = (2).to_bytes(8, "big")
    second = type(again)(bytes(leaf), b"", again.inputs)  # the same transaction at another position
    leaf[19:27] = (3).to_bytes(8, "big")
    leaf[27:59] = bytes(32)
    thief = type(again)(bytes(leaf), b"", again.inputs)  # another transaction consumes the same state
    owner.salvage(second, thief)
    assert replay(history.streams).salvaged == 2
    owner.key("another")
    owner.begin(position=9)
    found = _verified(spark, tmp_path, history.streams)
    assert sorted([(row.type, row.position) for row in found.violations.collect()]) == [
        ("salvage-mismatch", 2),
        ("salvage-mismatch", 2),
        ("salvage-mismatch", 3),
        ("salvage-mismatch", 4),
    ]
