"""An archive that is not whole is not verified, and the message says what is wrong with it."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_join.errors import CouldNotVerify
from spark_join.log.archive import read_archive
from tests.joiner.history import History
from tests.spark.archived import archive

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

LAST = "payload/partition=1/00000002.parquet"


def _missing_file(folder: Path) -> None:
    (folder / LAST).unlink()


def _truncated_file(folder: Path) -> None:
    (folder / LAST).write_bytes((folder / LAST).read_bytes()[:-1])


def _other_records(folder: Path) -> None:
    table = pq.read_table(folder / LAST)
    pq.write_table(table.slice(0, table.num_rows - 1), folder / LAST)


def _missing_range(folder: Path) -> None:
    (folder / "ranges/00000001.json").unlink()


def _range_twice(folder: Path) -> None:
    (folder / "ranges/00000003.json").write_bytes((folder / "ranges/00000002.json").read_bytes())


def _edited(old: bytes, new: bytes) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "ranges/00000002.json"
        content = file.read_bytes()
        assert old in content
        file.write_bytes(content.replace(old, new))

    return edit


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_missing_file, r"00000002\.parquet: its range says SHA-256 .* nothing that can be read"),
        (_truncated_file, r"00000002\.parquet: its range says SHA-256 [0-9a-f]{64}, and there is [0-9a-f]{64}"),
        (_other_records, r"00000002\.parquet: its range says SHA-256 [0-9a-f]{64}, and there is [0-9a-f]{64}"),
        (_missing_range, r"range 1 is missing, and 00000002\.json is there"),
        (_range_twice, r"00000002\.parquet begins at offset \d+ of ordering partition 0, and what was archived before it ends at \d+"),
        (_edited(b'"archive_version":1', b'"archive_version":2'), r"archive version 2, and this software reads 1: use a newer one"),
        (_edited(b'"notary":"O=', b'"notary":"P='), r"another notary than the first range"),
        (_edited(b'"topic":"ordering"', b'"topic":"orders"'), r"cannot be read: Invalid enum value"),
        (_edited(b'"partition":1', b'"partition":9'), r"of a partition that the archive does not have"),
        (_edited(b'"records":2', b'"records":3'), r"and their ranges say \d+ records"),
    ],
)
def test_harm_is_told(spark: SparkSession, tmp_path: Path, harm: Callable[[Path], None], message: str) -> None:
    """Files that are gone, cut or changed, ranges that are missing, there twice, wrong or newer."""
    folder = archive(_log().streams, tmp_path / "archive")
    harm(folder)
    with pytest.raises(CouldNotVerify, match=message):
        read_archive(spark, folder)


def test_leftovers_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """A file that no range lists is what a crash left, and no part of the log."""
    folder = archive(_log().streams, tmp_path / "archive")
    (folder / "payload/partition=1/00000003.parquet").write_bytes((folder / LAST).read_bytes())
    log = read_archive(spark, folder)
    assert log.payload.where("partition = 1").count() == 4
    assert log.ordering.count() == 5


def test_no_archive(spark: SparkSession, tmp_path: Path) -> None:
    """A folder that is none is said to be none."""
    with pytest.raises(CouldNotVerify, match=r"is no archive: there is no ranges/00000001\.json"):
        read_archive(spark, tmp_path)


def _log() -> History:
    log = History(2)
    log.register("w1")
    for sequence, label in enumerate("abcd", 1):
        log.entry(1, sequence, label, partition=1)
        log.payload(1, sequence, label, partition=1)
    return log
