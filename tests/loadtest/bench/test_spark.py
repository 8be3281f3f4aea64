"""Tests that the generated logs on which Spark's time is measured are valid: a replay by the rules decides every request."""

from pathlib import Path

import msgspec
import pytest

from loadtest.bench.spark import PARTITIONS, ROW_GROUP_RECORDS, GrowingLog, read_archive, records, write_archive
from ordering.log import ORDERING, Record
from spark_join.log.archive import Range, ends_of, read_ranges
from tests.checkers.replay import replay

pytestmark = pytest.mark.spark


def _records(log: list[Record]) -> dict[int, list[Record]]:
    return {partition: [record for record in log if record.partition == partition] for partition in range(ORDERING, PARTITIONS)}


def test_archive_gives_back_the_log(tmp_path: Path) -> None:
    """The archive returns the written log, row group by row group, and its range has the counts."""
    made = list(records(1, 50_000, 100, 4, signed=False))
    written = _records(made)
    assert len(written[ORDERING]) > ROW_GROUP_RECORDS
    write_archive(tmp_path / "archive", iter(made))
    assert _records(list(read_archive(tmp_path / "archive"))) == written
    listed = msgspec.json.decode((tmp_path / "archive/ranges/00000001.json").read_bytes(), type=Range)
    assert [file.records for file in listed.files] == [len(each) for each in written.values()]


def test_made_log_is_decided() -> None:
    """A replay of a generated log decides each request once, and commits it."""
    replayed = replay(_records(list(records(1, 2_000, 100, 4, signed=True))))
    assert replayed.ended_by == "end"
    assert len(replayed.decisions) >= 2_000
    assert {each["outcome"] for each in replayed.decisions} == {"committed"}


def test_a_growing_log_is_an_archive_of_its_ranges(tmp_path: Path) -> None:
    """Each range begins where the one before it ended, and together they have the records of the log."""
    log = GrowingLog(tmp_path / "archive", records(1, None, 100, 4, signed=False))
    for requests in (5_000, 3_000):
        before = log.requests
        log.grow(requests)
        assert log.requests >= before + requests
    ranges = read_ranges(tmp_path / "archive")
    ends = ends_of([file for each in ranges for file in each.files], PARTITIONS)
    written = _records(list(records(1, log.requests, 100, 4, signed=False)))
    assert ends == {("ordering" if partition < 0 else "payload", max(partition, 0)): len(each) for partition, each in written.items()}
