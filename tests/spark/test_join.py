"""Tests that Spark finds, for a complete log, the same effects, times and order as the replay (R2, R3, R5 to R7, R10)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import pack

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ordering.log import Record
from spark_join.constants import FORMAT_VERSION
from spark_join.engine.columns import before
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.log.archive import read_archive
from spark_join.order.effects import carry_of
from spark_join.order.join import Joined, join
from spark_join.state import start
from tests.checkers.random_logs import random_log
from tests.checkers.replay import LogRecord, Replayed, replay
from tests.checkers.signed_log import SignedLog, payload_of, private_key
from tests.checkers.test_replay import worked_log
from tests.spark.archived import archive

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PARTITIONS = 3


def joined(spark: SparkSession, by_partition: Mapping[int, Sequence[LogRecord]], folder: Path) -> Joined:
    """Returns Spark's result for that log."""
    return join(read_archive(spark, archive(by_partition, folder / "archive")), start(spark), None, Stages(spark, folder / "stages"))


def hold(found: Joined, replayed: Replayed) -> None:
    """Assert that both have the same requests, checkpoints, hole and history."""
    requests = [(row.position, bytes(row.id).hex(), row.log_time_ms) for row in found.requests.orderBy("position").collect()]
    assert requests == [(each["position"], each["transaction_id"], each["log_time"]) for each in replayed.decisions]
    entries = [(row.offset, row.content_offset, row.mark) for row in found.entries.orderBy("offset").collect()]
    assert entries == [(each.offset, each.content_offset, 0 if each.signed_fill else 1) for each in replayed.batches]
    until = replayed.offset_head
    rows = found.records.where(F.col("offset") < until).orderBy("offset").collect()
    assert [(row.offset, row.effect) for row in rows] == [(each.offset, each.why_not is None) for each in replayed.records]
    checkpoints = [(row.offset, row.skipped is None) for row in rows if row.kind == "checkpoint" and row.signed]
    assert checkpoints == [(each.offset, each.counted) for each in replayed.checkpoints]
    assert found.offset_hole == (until if replayed.ended_by == "hole" else None)
    carry = carry_of(found.carry)
    assert (carry.seen, carry.histories[-32:], carry.partitions) == (replayed.seen, replayed.history, replayed.partitions)


def test_the_vectors_give_their_history(spark: SparkSession, tmp_path: Path) -> None:
    """The log of the contract's vectors gives its history to the byte, its requests and its contents."""
    log = worked_log()
    hold(joined(spark, log, tmp_path), replay(log))


@pytest.mark.parametrize("seed", [14, pytest.param(23, marks=pytest.mark.nightly)])
def test_random_logs_join_as_the_replay_does(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """For any log the same records take effect, with the same contents, up to the same hole; `test_effects` has more such logs."""
    log = random_log(seed, 120)
    hold(joined(spark, log.by_partition, tmp_path), log.replayed())


def _eventful() -> SignedLog:
    """Returns one log without a hole that exercises each rule at least once."""
    log = SignedLog(PARTITIONS)
    log.register("w1")
    log.register("w1", "again")
    log.register("w2")
    log.register("w3", "again")  # repeated: no incarnation begins
    for sequence, label in ((1, "a"), (2, "b"), (2, "b"), (5, "c"), (4, "d")):
        log.batch(2, sequence, label)
    log.entry(2, 5, "c", at=1_500_000)  # repeated: moves no log time
    log.fence(2, 4)  # not the last
    log.fill(2, 6, "e", partition=1, by=private_key("forger"))
    log.put(1, log.fill(2, 6, "e", partition=2).key, log.by_partition[2][-1].value)  # signed for another partition
    log.fill(2, 6, "e", partition=1)
    log.batch(2, 6, "e", partition=1)  # its payload is too late
    log.put(2, log.payload(2, 7, partition=2, value=b"nonsense").key, None)  # neither is what the entry names
    log.batch(2, 7, "f", "a", partition=2)
    log.entry(2, 8, "g", partition=PARTITIONS)  # no such partition: the sequence stays unused
    log.payload(2, 8, "g", "h", partition=2)  # not in the partition that the entry names
    log.batch(2, 8, "g", "h", partition=1)
    log.checkpoint(2, 1)
    log.fence(2, 8)
    log.entry(2, 9, "i")
    log.checkpoint(2, 2)
    log.rotate("next")
    log.entry(3, 1, "p")  # directly behind the rotation, filled with the new key
    log.fill(3, 1, "p", by=private_key("notary"))
    log.fill(3, 1, "p")
    log.put(1, log.by_partition[1][-1].key, b"[]")
    log.entry(3, 2, "k", by=private_key("notary"))  # with the former key
    log.payload(3, 2, "k")
    log.payload(3, 2**64 - 1, "a", "j")
    log.entry(3, 2**64 - 1, "a", "j", sent_at=-(2**63), at=5)
    log.entry(3, 3, "k")
    log.register("w2")
    log.payload(4, 1, "k", "l")
    log.entry(4, 1, "k", "l", sent_at=2**63 - 1, at=2_000_000)
    log.payload(4, 2, "m")
    log.entry(4, 2, "m", sent_at=1_990_000, at=3_000_000)
    log.partitions(PARTITIONS + 1)
    log.by_partition[PARTITIONS] = []
    log.batch(4, 3, "n", partition=PARTITIONS)
    log.settle()
    log.again(log.by_partition[-1][-1])
    log.retire(4)
    log.entry(4, 4, "o")
    log.entry(5, 1, "o")  # no such incarnation
    return log


@pytest.mark.usefixtures("as_large")
def test_every_rule_once(spark: SparkSession, tmp_path: Path) -> None:
    """Duplicate names, repeated records, fences of both kinds, valid and forged fills, a rotation and wrong clocks give the same result."""
    log = _eventful()
    replayed = log.replayed()
    assert replayed.ended_by == "end"
    assert [len(batch.ids) for batch in replayed.batches] == [1, 1, 1, 0, 2, 2, 0, 2, 2, 1, 1]
    hold(joined(spark, log.by_partition, tmp_path), replayed)


def test_contents_that_decide_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A content with the right hash that does not decode, or has other ids, decides nothing and is found; its mark is 1."""
    log = SignedLog(PARTITIONS)
    log.register("w1")
    log.payload(1, 1, "b", "a")
    other = log.entry(1, 1, value=payload_of("b", "a"), ids=["ab" * 32])
    log.payload(1, 2, value=b"garbage")
    garbage = log.entry(1, 2, value=b"garbage")
    found = joined(spark, log.by_partition, tmp_path)
    hold(found, log.replayed())
    assert found.requests.count() == 0
    assert [(row.offset, row.found) for row in found.unreadable.orderBy("offset").collect()] == [
        (other.offset, "other transaction ids than the entry's"),
        (garbage.offset, "a value that does not decode"),
    ]


def test_offsets_that_are_gone_at_both_ends(spark: SparkSession, tmp_path: Path) -> None:
    """An offset before the first record of its partition, or between the last one and the log end, is gone."""
    log = SignedLog(1)
    log.register("w1")
    for sequence in (1, 2):
        log.batch(1, sequence)
    read = read_archive(spark, archive(log.by_partition, tmp_path / "archive"))
    ends = {("ordering", 0): 5, ("payload", 0): 2}
    assert {**ends, ("ordering", 0): 4} == read.log_end_offsets
    lacking = msgspec.structs.replace(read, payload=read.payload.where("offset > 0"), log_end_offsets=ends)
    found = join(lacking, start(spark), None, Stages(spark, tmp_path / "stages"))
    assert found.gone is not None
    assert [tuple(row) for row in found.gone.orderBy("topic").collect()] == [("ordering", 0, 4, 4, False), ("payload", 0, 0, 0, False)]


def test_newer_format_is_not_verified(spark: SparkSession, tmp_path: Path) -> None:
    """A log that activates an unknown version is not verified; an activation that is forged, or unreadable to a voter, changes nothing."""
    log = SignedLog(PARTITIONS)
    log.register("w1", reads=7)
    log.register("w2")
    log.activate(1)
    log.activate(7)
    log.write(5, pack(">H", 65535), by=private_key("forger"))
    hold(joined(spark, log.by_partition, tmp_path / "before"), log.replayed())
    log.retire(2)
    log.activate(7)
    with pytest.raises(CouldNotVerify, match=f"ordering record 7 activates format version 7, and this software reads {FORMAT_VERSION}"):
        joined(spark, log.by_partition, tmp_path)


def test_log_without_a_genesis(spark: SparkSession, tmp_path: Path) -> None:
    """A topic that is empty, or starts with another record, has no genesis and is not verified."""
    log = SignedLog(PARTITIONS)
    log.register("w1")
    genesis, register = log.by_partition[-1]
    forged = Record(-1, 0, 5, None, (genesis.value or b"")[:-1] + b"\x00")
    for number, (records, message) in enumerate(
        [
            ([], "it has no record at offset 0"),
            ([Record(-1, 0, 5, None, register.value)], "its first record is of kind register"),
            ([Record(-1, 0, 5, None, b"garbage")], "its first record is malformed"),
            ([forged], "its first record is a genesis record without its owner's signature"),
        ]
    ):
        with pytest.raises(CouldNotVerify, match=f"does not begin with a genesis record: {message}. This log has no owner"):
            joined(spark, {**log.by_partition, -1: records}, tmp_path / str(number))


@pytest.mark.usefixtures("as_large")
@pytest.mark.parametrize("how", ["max", "sum"])
def test_before_in_any_blocks(spark: SparkSession, how: str) -> None:
    """The preceding values are the same for blocks of any size, for each key alone, with gaps in the order and null values."""
    rows = [(at * 3, at % 2, None if at % 5 == 0 else (at * 7) % 11) for at in range(40)]
    frame = spark.createDataFrame(rows, "at bigint, key int, value bigint")
    expected = {}
    for at, key, _ in rows:
        earlier = [value for other, other_key, value in rows if other < at and other_key == key and value is not None]
        expected[at] = (max if how == "max" else sum)(earlier) if earlier else None
    for block in (1, 7, 1_000):
        found = before(frame, "so_far", F.col("value"), how, "at", ["key"], block).collect()  # type: ignore[arg-type]
        assert {row.at: row.so_far for row in found} == expected
