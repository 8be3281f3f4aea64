"""Tests of record batches without a broker: what Spark's tasks decode is what the notary's client reads."""

import tracemalloc
from collections.abc import Callable

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from spark_join.log import batches
from spark_join.log.batches import DecodedRecord, decode, offset_after
from tests.kafka import foreign_batches
from tests.kafka.foreign_batches import (
    as_gzip,
    as_zstd,
    varint,
    with_body,
    with_deltas,
    with_earlier_offset,
    with_later_offset,
    with_offset,
)


def batch(*records: tuple[bytes | None, bytes | None], first_ms: int = 1000, base: int = 0) -> bytes:
    """Returns a batch of (key, value), each a millisecond after the one before, with a header."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for number, (key, value) in enumerate(records):
        builder.append(number, first_ms + number, key, value, [("h", b"x")])
    made = bytearray(builder.build())
    made[:8] = base.to_bytes(8, "big")
    return bytes(made)


def decoded(fetched: bytes, offset_first: int = 0) -> list[DecodedRecord]:
    """Returns all records from an offset on."""
    return [*decode(fetched, offset_first, 1 << 40)]


def test_every_record_of_several_batches_is_decoded() -> None:
    """Keys and values that are null or empty stay so; records before the first offset, and an incomplete batch, are left out."""
    fetched = batch((b"k", b"v"), (None, b""), base=7) + batch((b"", None), base=9, first_ms=5)
    expected = [DecodedRecord(7, 1000, b"k", b"v"), DecodedRecord(8, 1001, None, b""), DecodedRecord(9, 5, b"", None)]
    assert (decoded(fetched, 7), offset_after(fetched, 7)) == (expected, 10)
    assert (decoded(fetched, 8), [*decode(fetched, 7, 8)], [*decode(fetched, 8, 9)]) == (expected[1:], expected[:1], expected[1:2])
    assert (decoded(fetched[:-1], 7), offset_after(fetched[:-1], 7)) == (expected[:2], 9)
    assert (decoded(b"", 7), offset_after(b"", 7)) == ([], 7)


@pytest.mark.parametrize("change", [with_offset, with_earlier_offset, with_later_offset, foreign_batches.with_long_length])
def test_claimed_offsets_do_not_count(change: Callable[[bytes], bytes]) -> None:
    """A record has the offset of its batch, whatever it claims."""
    assert decoded(change(batch((None, b"junk")))) == [DecodedRecord(0, 1000, None, b"junk")]


def test_a_marker_has_an_offset_and_no_record() -> None:
    """The batch of a transaction's marker is passed."""
    made = bytearray(batch((b"\0\0\0\1", b"end"), base=4))
    made[22] |= 0x20
    assert (decoded(with_body_of(made), 4), offset_after(with_body_of(made), 4)) == ([], 5)


def test_the_time_of_the_broker_counts() -> None:
    """With LogAppendTime all records of a batch have its largest time."""
    made = bytearray(batch((None, b"a"), (None, b"b")))
    made[22] |= 0x08
    made[35:43] = (77).to_bytes(8, "big")
    assert [record.append_time_ms for record in decoded(with_body_of(made))] == [77, 77]


def with_body_of(made: bytearray) -> bytes:
    """Returns a changed batch with its CRC; `with_body` would clear its attributes."""
    made[17:21] = foreign_batches.calc_crc32c(bytes(made[21:])).to_bytes(4, "big")
    return bytes(made)


@pytest.mark.parametrize("change", [as_gzip, as_zstd])
def test_a_compressed_batch_is_decompressed(change: Callable[[bytes], bytes]) -> None:
    """A topic may have compressed batches, of a time with another setting."""
    assert decoded(change(batch((b"k", b"v")))) == [DecodedRecord(0, 1000, b"k", b"v")]


def test_a_batch_that_expands_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed batch is decompressed up to a limit."""
    monkeypatch.setattr(batches, "BODY_BYTES_MAX", 1000)
    assert len(decoded(as_gzip(batch((None, bytes(900)))))) == 1
    with pytest.raises(ValueError, match="batch at offset 0 has more than 1000 bytes"):
        decoded(as_gzip(batch((None, bytes(1000)))))


def test_a_batch_of_many_records_takes_little_memory() -> None:
    """Records are decoded one at a time: a batch of tiny ones, which anybody may append, takes no hundred bytes for each."""
    fetched = batch(*[(None, None)] * 50_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in decode(fetched, 0, 50_000)) == 50_000
        assert tracemalloc.get_traced_memory()[1] < 3 * len(fetched)
    finally:
        tracemalloc.stop()


def test_what_no_broker_sends_is_refused() -> None:
    """A damaged batch, a compressed one, and records that do not end where their length says raise an error that names the offset."""
    good = batch((None, b"junk"), base=3)
    for wrong, why in (
        (good[:-1] + b"?", "batch at offset 3 is damaged"),
        (with_body(good, good[61:], 1), "batch at offset 3 cannot be decompressed"),
        (with_body(good, good[61:], 2), "batch at offset 3 is compressed by snappy"),
        (with_body(good, b"\x7e" + good[62:]), "record at offset 3 is longer"),
        (with_deltas(good, b"\x80" * 11, varint(0)), "record at offset 3 is longer"),
    ):
        with pytest.raises(ValueError, match=why):
            decoded(wrong, 3)


@pytest.mark.parametrize("cut", range(1, 20))
def test_no_bytes_are_read_beyond_a_batch(cut: int) -> None:
    """A record that is cut raises an error, wherever its end is missing."""
    good = batch((b"key", b"value of some bytes"))
    with pytest.raises(ValueError, match="record at offset 0"):
        decoded(with_body(good, good[61:-cut]))
