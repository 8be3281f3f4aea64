"""Tests that a damaged archive is not verified, and that the message names the problem."""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from ordering.log import ORDERING
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.log.archive import read_archive, unlisted
from spark_join.state import start
from spark_join.verify import verify
from tests.checkers.records import key_of
from tests.checkers.signed_log import SignedLog
from tests.clients.party import spend, state
from tests.spark.archived import archive
from tests.spark.writing import Writer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

LAST = "payload/partition=1/00000002.parquet"


def _missing_file(folder: Path) -> None:
    (folder / LAST).unlink()


def _truncated_file(folder: Path) -> None:
    (folder / LAST).write_bytes((folder / LAST).read_bytes()[:-1])


def _other_records(folder: Path) -> None:
    table = pq.read_table(folder / LAST)
    pq.write_table(table.slice(0, table.num_rows - 1), folder / LAST)


def _fits(folder: Path, path: str, records: int) -> None:
    """Record the present size and hash of the file in the last range."""
    manifest = folder / "ranges/00000002.json"
    said = json.loads(manifest.read_bytes())
    for file in said["files"]:
        if file["path"] == path:
            file["records"], file["sha256"] = records, sha256((folder / path).read_bytes()).hexdigest()
    manifest.write_text(json.dumps(said))


def _at_offsets(*offsets: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        table = pq.ParquetFile(folder / LAST).read()
        pq.write_table(table.set_column(0, "offset", pa.array(offsets, pa.int64())), folder / LAST)
        _fits(folder, LAST, len(offsets))

    return write


def _other_columns(folder: Path) -> None:
    table = pq.ParquetFile(folder / LAST).read()
    pq.write_table(table.set_column(1, "append_time_ms", table.column(1).cast(pa.int32())), folder / LAST)
    _fits(folder, LAST, 2)


def _without_a_time(folder: Path) -> None:
    table = pq.ParquetFile(folder / LAST).read()
    pq.write_table(table.set_column(1, "append_time_ms", pa.array([7, None], pa.int64())), folder / LAST)
    _fits(folder, LAST, 2)


def _pipe_at(path: str) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        (folder / path).unlink()
        os.mkfifo(folder / path)

    return replace


def _no_parquet(folder: Path) -> None:
    (folder / LAST).write_bytes(b"garbage")
    _fits(folder, LAST, 2)


def _missing_range(folder: Path) -> None:
    (folder / "ranges/00000001.json").unlink()


def _range_twice(folder: Path) -> None:
    (folder / "ranges/00000003.json").write_bytes((folder / "ranges/00000002.json").read_bytes())


def _nested(folder: Path) -> None:
    (folder / "ranges/00000002.json").write_bytes(b'{"x":' + b"[" * 200_000)


def _stranger(folder: Path) -> None:
    (folder / "ranges/00000001 (1).json").write_bytes(b"{}")


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
        (_missing_file, r"00000002\.parquet cannot be read \(No such file or directory\), and its range lists it"),
        (_truncated_file, r"00000002\.parquet: its range lists SHA-256 [0-9a-f]{64}, the file has [0-9a-f]{64}"),
        (_other_records, r"00000002\.parquet: its range lists SHA-256 [0-9a-f]{64}, the file has [0-9a-f]{64}"),
        (_missing_range, r"range 1 is missing, and 00000002\.json is there"),
        (_range_twice, r"00000002\.parquet begins at offset \d+ of ordering partition 0, and what was archived before it ends at \d+"),
        (_edited(b'"archive_version":2', b'"archive_version":3'), r"archive version 3, and this software reads 2: use a newer one"),
        (_edited(b'"payload_partitions":2', b'"payload_partitions":1'), r"has fewer payload partitions than the range before it"),
        (_edited(b'"topic":"ordering"', b'"topic":"orders"'), r"cannot be read: Invalid enum value"),
        (_edited(b'"partition":1', b'"partition":9'), r"of a partition that the archive does not have"),
        (
            _edited(b'"records":2', b'"records":1'),
            r"00000002\.parquet holds 2 records, and its range says 1 at offsets that",
        ),
        *[
            (
                _at_offsets(*offsets),
                r"00000002\.parquet holds 2 records at other offsets, and its range says 2 at offsets that rise from 2 up to 4",
            )
            for offsets in ((3, 2), (2, 2), (1, 2), (2, 4))
        ],
        (_other_columns, r"00000002\.parquet has other columns than an archive's: offset, append_time_ms, key, value"),
        (_pipe_at(LAST), r"00000002\.parquet cannot be read \(there is no regular file\), and its range lists it"),
        (_pipe_at("ranges/00000002.json"), r"ranges/00000002\.json cannot be read: .*there is no regular file"),
        (_without_a_time, r"00000002\.parquet has records without an append time"),
        (
            _edited(b'"offset_first":2', b'"offset_first":3'),
            r"begins at offset 3 of payload partition 1, and what was .* ends at 2: a range",
        ),
        (_edited(b'"offset_end":4', b'"offset_end":1'), r"begins at offset 2 of payload partition 1, and what was .* ends at 2: a range"),
        (
            _edited(b"partition=1/00000002", b"partition=1/00000001"),
            r"1/00000001\.parquet is listed as of payload partition 1, .* listed twice",
        ),
        (_no_parquet, r"00000002\.parquet is no Parquet: "),
        (
            _edited(b'"records":2', b'"records":3'),
            r"partition=1/00000002\.parquet is listed with 3 records from offset 2 up to 4: too many",
        ),
        (_edited(b'"records":2', b'"records":-2'), r"ranges/00000002\.json cannot be read: Expected `int` >= 0 - at `\$\.files"),
        (_edited(b'"offset_end":4', b'"offset_end":1e99'), r"ranges/00000002\.json cannot be read: "),
        (_edited(b'"payload_partitions":2', b'"payload_partitions":999999999999'), r"cannot be read: Expected `int` <= 100000"),
        (_edited(b'"sha256":"', b'"sha256":"x'), r"cannot be read: Expected `str` matching regex"),
        (_edited(b'"path":"', b'"path":"../'), r"cannot be read: Expected `str` matching regex"),
        (_edited(b"payload/partition=1/", b"payload/partition=0/"), r"is listed as of payload partition 1, and lies elsewhere"),
        (_nested, r"ranges/00000002\.json cannot be read: "),
        (_stranger, r"ranges/00000001 \(1\)\.json is no range, .*: take it out of the archive"),
    ],
)
def test_harm_is_reported(spark: SparkSession, tmp_path: Path, harm: Callable[[Path], None], message: str) -> None:
    """Files that are missing, cut or changed, and ranges that are missing, duplicated, wrong or newer are each reported."""
    folder = archive(_log().by_partition, tmp_path / "archive")
    harm(folder)
    with pytest.raises(CouldNotVerify, match=message):
        read_archive(spark, folder)


def test_leftovers_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """A file that no range lists is left from a crash, and is no part of the log."""
    folder = archive(_log().by_partition, tmp_path / "archive")
    assert unlisted(folder) is None
    (folder / "payload/partition=1/00000003.parquet").write_bytes((folder / LAST).read_bytes())
    assert f"no range lists 1 of the files in {folder}, payload/partition=1/00000003.parquet first" in str(unlisted(folder))
    log = read_archive(spark, folder)
    assert log.payload.where("partition = 1").count() == 4
    assert log.ordering.count() == 6


def _rewrite(folder: Path, topic: str, partition: int, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the records of a partition in its files, and the ranges with them, as an informed attacker does."""
    for manifest in sorted((folder / "ranges").glob("*.json")):
        said = json.loads(manifest.read_bytes())
        (file,) = [each for each in said["files"] if (each["topic"], each["partition"]) == (topic, partition)]
        table = pq.ParquetFile(folder / file["path"]).read()
        rows = table.to_pylist()
        change(rows)
        pq.write_table(pa.Table.from_pylist(rows, table.schema), folder / file["path"])
        file["records"], file["sha256"] = len(rows), sha256((folder / file["path"]).read_bytes()).hexdigest()
        manifest.write_text(json.dumps(said))


@pytest.mark.nightly
def test_archive_that_somebody_rewrote(spark: SparkSession, tmp_path: Path) -> None:
    """Ranges that match the files prove nothing: a changed record has no valid signature, or not the hash that its entry names."""
    writer = Writer()
    log = writer.log
    log.register("w1")
    for partition in (0, 1, 2, 1):
        writer.batch(1, partition, spend(state(f"{partition} {len(log.by_partition[partition])}")))
        writer.checkpoint(1)
    orphan = log.payload(1, 9, "orphan", partition=0)
    log.payload(1, 10, "orphan", partition=0)
    folder = archive(log.by_partition, tmp_path / "archive")
    entries = [record.offset for record in log.by_partition[ORDERING] if record.value and record.value[1] == 1]

    def left_out(rows: list[dict[str, Any]]) -> None:
        rows[:] = [row for row in rows if row["key"] != orphan.key]

    def edited_entry(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["offset"] == entries[1]:
                row["value"] = row["value"][:-65] + b"?" + row["value"][-64:]

    def other_content(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["key"] == key_of(1, 4):
                row["value"] = log.by_partition[0][0].value

    _rewrite(folder, "payload", 0, left_out)
    _rewrite(folder, "ordering", 0, edited_entry)
    _rewrite(folder, "payload", 1, other_content)
    keys = {writer.party.name: writer.party.public_pem.decode()}
    verified = verify(spark, read_archive(spark, folder), start(spark), keys, Stages(spark, tmp_path / "stages"))
    assert verified.skipped["signature"].offset_first == entries[1]
    found = {(row.type, row.offset) for row in verified.violations.collect()}
    assert found >= {
        ("foreign-view", entries[1] + 1),
        ("missing-payload", entries[3]),
        ("sequence-gap", entries[2]),
        ("sequence-gap", None),
    }
    assert {offset for type_, offset in found if type_ == "foreign-view"} <= set(range(entries[1] + 1, entries[3] + 1))


def _log() -> SignedLog:
    log = SignedLog(2)
    log.register("w1")
    for sequence, label in enumerate("abcd", 1):
        log.batch(1, sequence, label, partition=1)
    return log
