"""Tests the record batches that reach the Kafka client: without headers, and never compressed. Real brokers: tests/kafka."""

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from ordering.batches import RECORDS_AT_ONCE, CompressedBatch, WithoutHeaders, heads, without_headers
from tests.kafka.foreign_batches import varint
from tests.turns import counted_turns

GZIP, CONTROL, TRANSACTIONAL = 1, 0x20, 0x10

Row = tuple[int, int, bytes | None, bytes | None]


def batch(base_offset: int, *records: tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]], codec: int = 0) -> bytes:
    """Returns a record batch of (key, value, headers), as a broker stores it."""
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 24)
    for offset, (key, value, headers) in enumerate(records):
        assert builder.append(offset, 1_000 + offset, key, value, list(headers)) is not None
    made = bytearray(builder.build())
    made[0:8] = base_offset.to_bytes(8, "big")
    return bytes(made)


def signed(changed: bytearray) -> bytes:
    """Returns a changed batch with its CRC corrected."""
    changed[17:21] = calc_crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


def rows(records: bytes) -> list[Row]:
    """Returns (offset, time, key, value) of all records, as the client decodes them. None has headers, and every CRC is right."""
    found: list[Row] = []
    read = MemoryRecords(records)
    while read.has_next():
        one: Any = read.next_batch()
        assert one.validate_crc()
        for record in one:
            assert not record.headers
            found.append((record.offset, record.timestamp, record.key, record.value))
    return found


async def test_records_without_headers_stay_as_they_are() -> None:
    """A record set of the notary's own is not copied, and an incomplete last batch stays at its end."""
    records = batch(5, (b"k", b"v", []), (None, b"", []), (b"k", None, [])) + batch(8, (b"", b"x" * 200, []))
    assert await without_headers(records) is records
    cut = records + batch(9, (b"k", b"v", [("h", b"v")]))[:-1]
    assert await without_headers(cut) is cut


async def test_only_the_headers_of_a_record_are_removed() -> None:
    """Offset, time, key and value of each record stay, wherever a record with headers is, and whatever its lengths are."""
    draw = random.Random(7)
    for _ in range(200):
        made, expected, offset = b"", [], 3
        for _ in range(draw.randrange(1, 4)):
            records = []
            for number in range(draw.randrange(1, 5)):
                key, value = (draw.choice([None, b"", bytes(draw.choice([1, 63, 64, 8191, 8192]))]) for _ in range(2))
                headers = [("h" * draw.choice([0, 1, 70]), draw.choice([None, b"", b"v" * 200])) for _ in range(draw.choice([0, 0, 1, 3]))]
                records.append((key, value, headers))
                expected.append((offset + number, 1_000 + number, key, value))
            made += batch(offset, *records)
            offset += len(records)
        assert rows(await without_headers(made)) == expected


async def test_a_header_key_that_is_no_text_is_removed() -> None:
    """The client could not decode it; brokers accept it."""
    changed = bytearray(batch(0, (b"k", b"v", [("hh", b"v")])))
    at = bytes(changed).index(b"hh")
    changed[at : at + 2] = b"\xff\xfe"
    with pytest.raises(UnicodeDecodeError):
        rows(signed(changed))
    assert rows(await without_headers(signed(changed))) == [(0, 1_000, b"k", b"v")]


def with_more_bits(number: int) -> bytes:
    """Returns a zigzag varint with a bit beyond the 32nd, which brokers ignore."""
    bits = number << 1 ^ number >> 31
    return bytes([bits >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)] + [bits >> 28 & 0x0F | 0x10])


@pytest.mark.parametrize("odd", ["offset", "length", "claimed", "key", "value", "null", "count"])
async def test_each_record_has_the_offset_of_the_broker(odd: str) -> None:
    """A record that claims another offset, or has numbers that the client reads otherwise than brokers, is the record that brokers have."""
    key, value = None if odd == "null" else b"k", b"v" * 100
    body = b"\0\0" + (with_more_bits(1) if odd == "offset" else varint(1_000_000 if odd == "claimed" else 1))
    body += with_more_bits(-1) if key is None else (with_more_bits if odd == "key" else varint)(1) + key
    body += (with_more_bits if odd == "value" else varint)(100) + value + b"\0"
    made = bytearray(batch(5, (b"k", b"first", []), (b"k", b"", []), (b"k", b"last", [])))
    records = [bytes(made[61 : 61 + 13]), bytes(made[61 + 13 : 61 + 13 + 8]), bytes(made[61 + 13 + 8 :])]
    records[1] = (with_more_bits if odd == "length" else varint)(len(body)) + body
    made[61:] = b"".join(records[:2] if odd == "count" else records)
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    changed = signed(made)
    if odd == "count":  # no broker accepts it
        assert await without_headers(changed) is changed
        return
    found = [(offset, k, v) for offset, _, k, v in rows(await without_headers(changed))]
    assert found == [(5, b"k", b"first"), (6, key, value), (7, b"k", b"last")]


async def test_a_batch_with_a_wrong_checksum_stays_wrong() -> None:
    """A damaged batch gets no new checksum: the client reports it."""
    damaged = bytearray(batch(0, (b"k", b"value", [("h", b"v")])))
    damaged[bytes(damaged).index(b"value")] ^= 1
    assert await without_headers(bytes(damaged)) == bytes(damaged)


async def test_wrong_lengths_in_a_record_change_nothing() -> None:
    """A record whose lengths contradict each other is left to the client, with any one byte changed."""
    made = batch(0, (b"key", b"value", [("h", b"v")]), (b"key", b"value", []))
    for at in range(61, len(made)):
        changed = bytearray(made)
        changed[at] ^= 0xFF
        await asyncio.wait_for(without_headers(signed(changed)), 5)


async def test_a_length_without_an_end_is_left_to_the_client() -> None:
    """A length is at most five bytes. Reading a longer one to its end would take time that grows with the square of its bytes."""
    made = bytearray(batch(0, (b"k", bytes(4 << 20), [("h", b"v")])))
    made[61:-1] = b"\xff" * (len(made) - 62)
    assert await without_headers(signed(made)) == signed(made)


async def test_a_control_batch_stays_as_it_is() -> None:
    """A transaction marker is no record of anybody."""
    changed = bytearray(batch(0, (b"k", b"v", [("h", b"v")])))
    changed[21:23] = (CONTROL | TRANSACTIONAL).to_bytes(2, "big")
    assert await without_headers(signed(changed)) == signed(changed)


async def test_a_compressed_batch_is_never_decompressed() -> None:
    """The error names its offset and its codec."""
    with pytest.raises(CompressedBatch, match=r"the batch at offset 9 is compressed \(gzip\)"):
        await without_headers(batch(8, (b"k", b"v", [])) + batch(9, (b"k", b"v", []), codec=GZIP))


async def test_many_records_leave_turns_to_others() -> None:
    """Records are examined some at a time, so that the event loop continues."""
    records = batch(0, *((None, b"v", [("h", b"v")]) for _ in range(5 * RECORDS_AT_ONCE)))
    async with counted_turns() as turns:
        assert len(rows(await without_headers(records))) == 5 * RECORDS_AT_ONCE
    assert turns.count >= 4


def test_heads_of_batches_are_read() -> None:
    """Each head has the first and last offset; bytes that are no complete batch end the list."""
    records = batch(5, (b"k", b"v", []), (b"k", b"v", [])) + batch(7, (b"k", b"v", []))
    assert [(head.base_offset, head.last_offset_delta, head.magic) for head in heads(records)] == [(5, 1, 2), (7, 0, 2)]
    assert len(list(heads(records[:-1]))) == 1
    assert list(heads(b"")) == list(heads(bytes(100))) == []


async def test_a_client_gets_clean_records() -> None:
    """Only the records in a response change; the partition that cannot be read is reported, and gives none."""
    dirty = batch(0, (b"k", b"v", [("h", b"v")]))
    parts = [(0, 0, 9, 9, 0, None, dirty), (1, 0, 9, 9, 0, None, batch(4, (b"k", b"v", []), codec=GZIP)), (2, 0, 9, 9, 0, None, None)]

    class Client:
        async def send(self, node: int, request: Any) -> Any:
            return SimpleNamespace(topics=[("t", list(parts))])

    client: Any = Client()
    cleaned = WithoutHeaders(client)
    response = await client.send(1, FetchRequest(0, 0, 0, 0, []))
    assert [part[:-1] for part in response.topics[0][1]] == [part[:-1] for part in parts]
    assert rows(response.topics[0][1][0][-1]) == [(0, 1_000, b"k", b"v")]
    assert [part[-1] for part in response.topics[0][1][1:]] == [b"", b""]
    assert cleaned.unreadable == ("t", 1, "the batch at offset 4 is compressed (gzip)")
    assert (await client.send(1, "another request")).topics[0][1] == parts
