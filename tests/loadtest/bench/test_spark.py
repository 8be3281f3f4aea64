"""Tests that the generated logs on which Spark's time is measured are valid: a replay by the rules decides every request."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest

from loadtest.bench.spark import PARTITIONS, ROW_GROUP_RECORDS, GrowingLog, read_archive, records
from ordering.log import ORDERING, Record
from spark_join.log.archive import ends_of, read_ranges
from tests.checkers.replay import replay

pytestmark = pytest.mark.spark


def _records(log: Iterable[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {partition: [] for partition in range(ORDERING, PARTITIONS)}
    for record in log:
        found[record.partition].append(record)
    return found


def test_archive_gives_back_the_log(tmp_path: Path) -> None:
    """The archive returns the written log, row group by row group."""
    log = GrowingLog(tmp_path / "archive", records(1, 100, 4, signed=False))
    log.grow(50_000)
    found = list(read_archive(tmp_path / "archive"))
    written = _records(islice(records(1, 100, 4, signed=False), len(found)))
    assert _records(found) == written
    assert len(written[ORDERING]) > ROW_GROUP_RECORDS


def test_made_log_is_decided() -> None:
    """A replay of a generated log decides each request once, and commits it."""
    replayed = replay(_records(islice(records(1, 100, 4, signed=True), 8)))
    assert replayed.ended_by == "end"
    assert len(replayed.decisions) >= 2_000
    assert {each["outcome"] for each in replayed.decisions} == {"committed"}


def test_a_growing_log_is_an_archive_of_its_ranges(tmp_path: Path) -> None:
    """Each range begins where the one before it ended, and together they have the records of the log."""
    log = GrowingLog(tmp_path / "archive", records(1, 100, 4, signed=False))
    for requests in (5_000, 3_000):
        before = log.requests
        log.grow(requests)
        assert log.requests >= before + requests
    files = [file for each in read_ranges(tmp_path / "archive") for file in each.files]
    ends = ends_of(files, PARTITIONS)
    written = _records(islice(records(1, 100, 4, signed=False), sum(ends.values())))
    assert ends == {("ordering" if partition < 0 else "payload", max(partition, 0)): len(each) for partition, each in written.items()}
    assert sum(file.records for file in files) == sum(ends.values())
