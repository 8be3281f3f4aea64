"""Tests that Spark finds the content of each entry with work that grows with the log, whatever anybody appends (R3)."""

from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_join.identity import Identity
from spark_join.log.archive import read_archive
from spark_join.order import contents
from spark_join.order.ordering_records import identity_at_start, parse
from tests.checkers.records import key_of
from tests.checkers.signed_log import SignedLog, payload_of
from tests.spark.archived import archive

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

COPIES = 50


def test_copies_of_an_entry_and_forged_fills(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N copies of a good entry, and N forged fills for it, take N checks of a signature, and change no content."""
    log = SignedLog(1)
    log.register("w1")
    entry = log.batch(1, 1, "a")
    for number in range(COPIES):
        log.again(entry)
        log.put(0, key_of(1, 1), sha256(payload_of("a")).digest() + number.to_bytes(64, "big"))
    checked = spark.sparkContext.accumulator(0)
    check = contents._good_fills

    def counting(identity: Identity, batch: pa.RecordBatch) -> pa.RecordBatch:
        checked.add(batch.num_rows)
        return check(identity, batch)

    monkeypatch.setattr(contents, "_good_fills", counting)
    frames = read_archive(spark, archive(log.by_partition, tmp_path / "archive"))
    identity = identity_at_start(frames)
    located = contents.with_locations(parse(frames.ordering, identity), contents.keyed(frames.payload, is_orphan=False), identity)
    rows = located.where("kind = 'entry'").collect()
    assert {(row.content_offset, row.mark) for row in rows} == {(0, 1)}
    assert (len(rows), checked.value) == (COPIES + 1, COPIES)
