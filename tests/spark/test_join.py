"""Of a whole log Spark says what counts, when and in which order, as the rules say it record by record (R2, R3, R5 to R7)."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ordering.log import ORDERING
from ordering.records import Activate
from spark_join.engine.running import before
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.join import Joined, join
from spark_join.log.archive import read_archive
from spark_join.state.state import start
from tests.checkers.replay import LogRecord, Replayed, replay
from tests.joiner.history import NOTARY, History
from tests.properties.test_joiner import PARTITIONS, MemoryStreams, histories
from tests.spark.archived import archive

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

# Of a log the length matters little to Spark, and the run much: few examples, of many histories each.
FEW = settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def joined(spark: SparkSession, streams: Mapping[int, Sequence[LogRecord]], folder: Path) -> Joined:
    """What Spark makes of that log."""
    return join(read_archive(spark, archive(streams, folder / "archive")), start(spark), None, Stages(spark, folder / "stages"))


def _hold(found: Joined, replayed: Replayed) -> None:
    requests = [(row.position, bytes(row.id).hex(), row.log_time_ms) for row in found.requests.orderBy("position").collect()]
    assert requests == [(each["position"], each["transaction_id"], each["log_time"]) for each in replayed.decisions]
    checkpoints = [(row.offset, row.counted) for row in found.checkpoints.orderBy("offset").collect()]
    if found.offset_hole is not None:
        checkpoints = [each for each in checkpoints if each[0] < found.offset_hole]
    assert checkpoints == [(each.offset, each.counted) for each in replayed.checkpoints]
    assert found.offset_hole == (replayed.offset_end if replayed.ended_by == "hole" else None)


def _one_after_the_other(several: Sequence[tuple[list[Any], list[list[Any]]]]) -> tuple[list[Any], list[list[Any]]]:
    """One history out of several: the names, nonces and incarnations of each are its own, its transactions are not."""
    ordering: list[Any] = []
    payloads: list[list[Any]] = [[] for _ in range(PARTITIONS)]
    lives = 0
    for number, (records, contents) in enumerate(several):
        for record in records:
            match record:
                case ("register", nonce, name):
                    ordering.append(("register", number * 7 + nonce, f"{name} of {number}"))
                case ("fence", incarnation, last):
                    ordering.append(("fence", lives + incarnation, last))
                case ("entry", incarnation, *rest):
                    ordering.append(("entry", lives + incarnation, *rest))
                case _:
                    ordering.append(record)
        for stream, found in zip(payloads, contents, strict=True):
            stream += [each and (lives + each[0], *each[1:]) for each in found]
        lives += len({record[1] for record in records if record[0] == "register"})
    return ordering, payloads


def _streams(ordering: list[Any], payloads: list[list[Any]]) -> dict[int, list[LogRecord]]:
    streams = MemoryStreams(ordering, payloads)
    return {stream: [streams.record(stream, offset) for offset in range(streams.end(stream))] for stream in range(ORDERING, PARTITIONS)}


@FEW
@given(st.lists(histories(), min_size=3, max_size=8), st.booleans())
def test_joins_as_the_replay(spark: SparkSession, several: list[tuple[list[Any], list[list[Any]]]], holes: bool) -> None:
    """Of any history the same requests count, at the same positions and log times, up to the same hole."""
    ordering, payloads = _one_after_the_other(several)
    while not holes and (end := _hole(ordering, payloads)) is not None:
        _, incarnation, sequence, _, _, partition, _ = ordering[end]
        payloads[partition].append((incarnation, sequence, None))
    log = _streams(ordering, payloads)
    with tempfile.TemporaryDirectory() as folder:
        _hold(joined(spark, log, Path(folder)), replay(log, NOTARY, PARTITIONS))


def _hole(ordering: list[Any], payloads: list[list[Any]]) -> int | None:
    """Where the first hole is."""
    replayed = replay(_streams(ordering, payloads), NOTARY, PARTITIONS)
    return replayed.offset_end if replayed.ended_by == "hole" else None


def _eventful() -> History:
    """Each rule at least once, in one log without a hole."""
    log = History(PARTITIONS)
    log.register("w1")
    log.register("w1", nonce_of="again")
    log.register("w2")
    log.register("w3", nonce_of="again")  # repeated: no life begins
    for sequence, label in ((1, "a"), (2, "b"), (2, "b"), (5, "c"), (4, "d")):
        log.entry(2, sequence, label)
        log.payload(2, sequence, label)
    log.entry(2, 5, "c", at=1_500_000)  # repeated: moves no log time
    log.fence(2, 4)  # not the last
    log.entry(2, 6, "e", partition=1)
    log.fill(2, 6, partition=1)
    log.payload(2, 6, "e", partition=1)  # too late
    log.entry(2, 7, "f", "a", partition=2)
    log.put(2, log.payload(2, 7, "x", partition=1).key, b"nonsense")  # counts as a fill
    log.entry(2, 8, "g", partition=PARTITIONS)  # no such partition: the sequence is not used up
    log.entry(2, 8, "g", "h", partition=1)
    log.payload(2, 8, "g", "h", partition=1)
    log.checkpoint(2, 1)
    log.fence(2, 8)
    log.entry(2, 9, "i")
    log.checkpoint(2, 2)
    log.entry(3, 2**64 - 1, "a", "j", sent_at=-(2**63), at=5)
    log.payload(3, 2**64 - 1, "a", "j")
    log.entry(3, 3, "k")
    log.register("w2")
    log.entry(4, 1, "k", "l", sent_at=2**63 - 1, at=2_000_000)
    log.payload(4, 1, "k", "l")
    log.entry(4, 2, "m", sent_at=1_990_000, at=3_000_000)
    log.payload(4, 2, "m")
    log.entry(5, 1, "n")  # nobody
    return log


def test_every_rule_once(spark: SparkSession, tmp_path: Path) -> None:
    """Namesakes, repeated registrations and entries, fences that compare and that do not, fills, garbage, clocks that are wrong."""
    log = _eventful()
    replayed = replay(log.streams, NOTARY, PARTITIONS)
    assert replayed.ended_by == "end"
    assert [len(batch.ids) for batch in replayed.batches] == [1, 1, 1, 0, 0, 2, 2, 2, 1]
    found = joined(spark, log.streams, tmp_path)
    _hold(found, replayed)
    assert [(row.offset, row.found) for row in found.unreadable.collect()] == [
        (batch.offset, "a value that does not decode") for batch in replayed.batches if (batch.incarnation, batch.sequence) == (2, 7)
    ]


def test_contents_with_other_ids_are_told(spark: SparkSession, tmp_path: Path) -> None:
    """A content that decodes and is not the entry's counts as a fill, and is found."""
    log = History(PARTITIONS)
    log.register("w1")
    entry = log.entry(1, 1, "a", "b")
    log.payload(1, 1, "b", "a")
    found = joined(spark, log.streams, tmp_path)
    assert found.requests.count() == 0
    assert [(row.offset, row.found) for row in found.unreadable.collect()] == [(entry.offset, "other transaction ids than the entry's")]


def test_nothing_is_said_of_a_newer_format(spark: SparkSession, tmp_path: Path) -> None:
    """A log that activates a version that is not known here is not verified."""
    log = History(PARTITIONS)
    log.register("w1")
    log.ordering(Activate(1))
    log.ordering(Activate(7))
    with pytest.raises(CouldNotVerify, match="ordering record 2 activates format version 7, and this software reads 1"):
        joined(spark, log.streams, tmp_path)


@pytest.mark.parametrize("how", ["max", "sum"])
def test_before_in_any_blocks(spark: SparkSession, how: str) -> None:
    """What came before is the same in blocks of any size, for each key alone, with gaps in the order and values that are null."""
    rows = [(at * 3, at % 2, None if at % 5 == 0 else (at * 7) % 11) for at in range(40)]
    frame = spark.createDataFrame(rows, "at bigint, key int, value bigint")
    expected = {}
    for at, key, _ in rows:
        earlier = [value for other, other_key, value in rows if other < at and other_key == key and value is not None]
        expected[at] = (max if how == "max" else sum)(earlier) if earlier else None
    for block in (1, 7, 1_000):
        found = before(frame, "so_far", F.col("value"), how, "at", ["key"], block).collect()  # type: ignore[arg-type]
        assert {row.at: row.so_far for row in found} == expected
