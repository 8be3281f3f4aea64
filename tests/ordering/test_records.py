"""The ordering records, to the byte: golden bytes made by hand, round trips, and decoders that take anything."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.errors import CorruptRecord
from ordering.ids import NAME_BYTES_MAX
from ordering.records import (
    Activate,
    Checkpoint,
    Entry,
    Fence,
    OrderingRecord,
    Register,
    batch_key,
    decode,
    decode_batch_key,
    encode,
)

ID_1, ID_2, ROOT, NONCE = b"\x01" * 32, b"\x02" * 32, b"\x0f" * 32, bytes(range(16))

GOLDEN = [
    (
        Entry(3, 7, 1_700_000_000_000, 5, (ID_1, ID_2)),
        b"\x01\x01" + struct.pack(">QQqII", 3, 7, 1_700_000_000_000, 5, 2) + ID_1 + ID_2,
    ),
    (Entry(1, 1, -1, 0, ()), b"\x01\x01" + struct.pack(">QQqII", 1, 1, -1, 0, 0)),
    (
        Register(NONCE, 1, "wörker", "0.1.0"),
        b"\x01\x02" + NONCE + struct.pack(">H", 1) + struct.pack(">H", 7) + "wörker".encode() + struct.pack(">H", 5) + b"0.1.0",
    ),
    (Fence(3, 0), b"\x01\x03" + struct.pack(">QQ", 3, 0)),
    (Checkpoint(2, 100, ROOT), b"\x01\x04" + struct.pack(">QQ", 2, 100) + ROOT),
    (Activate(2), b"\x01\x05" + struct.pack(">H", 2)),
]

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
hashes = st.binary(min_size=32, max_size=32)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=NAME_BYTES_MAX // 4)
RECORDS: st.SearchStrategy[OrderingRecord] = st.one_of(
    st.builds(Entry, u64, u64, st.integers(-(2**63), 2**63 - 1), u32, st.lists(hashes, max_size=5).map(tuple)),
    st.builds(Register, st.binary(min_size=16, max_size=16), u16, names, names),
    st.builds(Fence, u64, u64),
    st.builds(Checkpoint, u64, u64, hashes),
    st.builds(Activate, st.integers(1, 2**16 - 1)),
)


@pytest.mark.parametrize(("record", "data"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(record: OrderingRecord, data: bytes) -> None:
    """Every kind is laid out as the table in `ordering.records` says."""
    assert encode(record) == data
    assert decode(data) == record


@given(RECORDS)
def test_round_trip(record: OrderingRecord) -> None:
    """What is encoded decodes to itself."""
    assert decode(encode(record)) == record


def total(data: bytes | None) -> None:
    try:
        record = decode(data)
    except CorruptRecord:
        return
    assert encode(record) == data


@given(st.none() | st.binary(max_size=200) | st.builds(lambda kind, rest: bytes([1, kind]) + rest, st.integers(0, 7), st.binary()))
def test_decode_is_total(data: bytes | None) -> None:
    """Any bytes give a record, which has exactly these bytes, or `CorruptRecord`."""
    total(data)


@given(RECORDS, st.data())
def test_decode_is_total_near_real_records(record: OrderingRecord, data: st.DataObject) -> None:
    """A real record with a byte changed, cut short or with more behind it is read to its last byte, or refused."""
    whole = bytearray(encode(record))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    total(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    total(bytes(whole) + data.draw(st.binary(max_size=40)))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "at least two bytes"),
        (b"", "at least two bytes"),
        (b"\x01", "at least two bytes"),
        (b"\x02\x01", "format version 2 is not active"),
        (b"\x00\x01", "format version 0 is not active"),
        (b"\x01\x00", "kind 0 is unknown"),
        (b"\x01\x06", "kind 6 is unknown"),
        (GOLDEN[0][1][:-1], "should have 98 bytes and has 97"),
        (b"\x01\x01" + struct.pack(">QQqII", 1, 1, 0, 0, 2**32 - 1), "should have"),
        (b"\x01\x02" + NONCE + struct.pack(">HH", 1, 2) + b"\xff\xff" + struct.pack(">H", 0), "does not decode"),
        (b"\x01\x02" + NONCE + struct.pack(">HH", 1, 9) + b"short", "ends inside a text of 9 bytes"),
        (b"\x01\x05\x00\x00", "version 0, which is none"),
    ],
)
def test_corrupt_records(data: bytes | None, why: str) -> None:
    """A refusal says what is wrong."""
    with pytest.raises(CorruptRecord, match=why):
        decode(data)


@given(u64, u64)
def test_batch_keys(incarnation: int, sequence: int) -> None:
    """A batch key is the incarnation and the sequence, big-endian, so that keys sort as batches do."""
    key = batch_key(incarnation, sequence)
    assert key == struct.pack(">QQ", incarnation, sequence)
    assert decode_batch_key(key) == (incarnation, sequence)


@given(st.none() | st.binary(max_size=40).filter(lambda key: len(key) != 16))
def test_batch_keys_of_other_lengths(key: bytes | None) -> None:
    """Anything but 16 bytes is no batch key."""
    with pytest.raises(CorruptRecord):
        decode_batch_key(key)
