"""Record batches as brokers send them (Kafka's record batch format, version 2): their heads, and their records as a client expects them.

The notary's records have no headers. A writer without the notary's key may append a record that has some: brokers accept any bytes as a
header's key, and millions of headers in one batch. The Kafka client would fail at a key that is not UTF-8, and would need gigabytes for the
others. So `WithoutHeaders` removes headers before the client decodes a batch. Key, value, offset and time of the record stay: every worker
reads the same record, and skips it (R10).

Brokers number the records of a batch, but they do not check the offset deltas in the records, and they accept varints with surplus bits,
which Java ignores. The client would believe a wrong delta, and continue to read there; it would fail at such a varint. So the records of
each batch get the offsets that the broker gave them: the base offset, and one more for each record. (No batch has gaps: the topics are not
compacted, and a producer's batch with other counts is rejected.)

A compressed batch may be a decompression bomb, and needs codecs that the client lacks. The topics have `compression.type=uncompressed`:
brokers decompress what a producer compressed, and reject the batch if it is larger than `max.message.bytes` then. If a batch is compressed
nevertheless, somebody has changed that setting. It is reported, and never decompressed.
"""

import asyncio
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.util import calc_crc32c

_HEAD: Final = Struct(">qiibIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""
_LENGTH_FROM, _CRC_FROM, _CRC_COVERS_FROM, _RECORDS_FROM, _MAGIC = 8, 17, 21, 61, 2
_LENGTH, _CRC = Struct(">i"), Struct(">I")
_BEFORE_LENGTH_ENDS: Final = 12
"""The length counts the bytes after itself."""
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_CODEC_BITS, _CONTROL_BIT = 0x07, 0x20
_VARINT_BYTES_MAX: Final = 5
"""The bytes of the longest length, a number of 32 bits."""
_NULL: Final = b"\x01"
"""The length -1, of a null."""
RECORDS_AT_ONCE: Final = 1000
"""Records that are examined in one turn of the event loop: about 3 ms."""


class BatchHead(NamedTuple):
    """The head of a complete batch, and its place in the fetched bytes."""

    start: int
    end: int
    base_offset: int
    epoch: int
    """The leader epoch."""
    magic: int
    attributes: int
    last_offset_delta: int
    """The last record's offset minus the base offset."""


def heads(records: bytes | memoryview) -> Iterator[BatchHead]:
    """Yields the head of each batch of a fetched record set. The last batch may be incomplete, and is left out then."""
    end = 0
    while end + _HEAD.size <= len(records):
        start = end
        base_offset, length, epoch, magic, _, attributes, last_offset_delta = _HEAD.unpack_from(records, start)
        end = start + _BEFORE_LENGTH_ENDS + length
        if length <= 0 or end > len(records):
            return
        yield BatchHead(start, end, base_offset, epoch, magic, attributes, last_offset_delta)


class CompressedBatch(Exception):
    """A batch is compressed."""


class WithoutHeaders:
    """Removes the headers of all records that one client fetches. The client has not been used yet."""

    def __init__(self, client: AIOKafkaClient) -> None:
        self.unreadable: tuple[str, int, str] | None = None
        """(topic, number of the partition, reason) of the last fetch that cannot be read; its records are dropped."""
        self._send = client.send
        client.send = self._send_and_remove

    async def _send_and_remove(self, node: int, request: Any, **how: Any) -> Any:
        response = await self._send(node, request, **how)
        if isinstance(request, FetchRequest):
            for topic, parts in response.topics:
                for at, (number, *facts, records) in enumerate(parts):
                    try:
                        parts[at] = (number, *facts, await without_headers(records or b""))
                    except CompressedBatch as problem:
                        self.unreadable = topic, number, str(problem)
                        parts[at] = (number, *facts, b"")
        return response


async def without_headers(records: bytes) -> bytes:
    """Returns a fetched record set, with the same records but without their headers. Raises `CompressedBatch`.

    A batch with a wrong CRC stays as it is: the client reports it.
    """
    found: list[bytes] = []
    copied = 0
    for head in heads(records):
        if head.magic != _MAGIC or head.attributes & _CONTROL_BIT:
            continue
        if codec := head.attributes & _CODEC_BITS:
            name = _CODECS[codec] if codec < len(_CODECS) else f"codec {codec}"
            raise CompressedBatch(f"the batch at offset {head.base_offset} is compressed ({name})")
        pieces = await _pieces(records, head.start + _RECORDS_FROM, head.end, head.last_offset_delta + 1)
        if pieces is None:
            continue
        batch = records[head.start : head.end]
        if calc_crc32c(batch[_CRC_COVERS_FROM:]) == _CRC.unpack_from(batch, _CRC_FROM)[0]:
            made = bytearray(batch[:_RECORDS_FROM]) + b"".join(pieces)
            _LENGTH.pack_into(made, _LENGTH_FROM, len(made) - _BEFORE_LENGTH_ENDS)
            _CRC.pack_into(made, _CRC_FROM, calc_crc32c(bytes(made[_CRC_COVERS_FROM:])))
            found += [records[copied : head.start], bytes(made)]
            copied = head.end
    return b"".join([*found, records[copied:]]) if found else records


async def _pieces(records: bytes, at: int, end: int, count: int) -> list[bytes] | None:
    """Returns the `count` records between two indexes, in pieces, in the form that the client must decode.

    Returns None if all are correct already, or if no broker accepts such a batch.
    """
    found: list[bytes] = []
    copied, number = at, 0
    try:
        while at < end:
            if number % RECORDS_AT_ONCE == RECORDS_AT_ONCE - 1:
                await asyncio.sleep(0)
            start = at
            length, body, is_exact = _varint(records, at)
            at = body + length
            offset_delta, after_time, key, value, headers, are_exact = _fields(records, body)
            if not body < headers < at <= end:
                return None
            if headers + 1 != at or offset_delta != number or not (is_exact and are_exact):  # a count of 0 headers is one byte
                made = records[body:after_time] + _encoded(number)
                for each in (key, value):
                    made += _NULL if each is None else _encoded(len(records[each])) + records[each]
                made += b"\0"
                found += [records[copied:start], _encoded(len(made)), made]
                copied = at
            number += 1
    except (IndexError, ValueError):
        return None
    return [*found, records[copied:end]] if found and number == count else None


def _fields(records: bytes, at: int) -> tuple[int, int, slice | None, slice | None, int, bool]:
    """Returns the parts of the record whose body begins at `at`.

    These are its offset delta, the index after its timestamp delta, its key and value (None for null), and the index of its header count.
    The last part is False if one of the record's numbers has more than 32 bits.
    """
    at += 1  # attributes
    while records[at] & 0x80:  # the timestamp delta
        at += 1
    after_time = at + 1
    offset_delta, at, exact_offset = _varint(records, after_time)
    length, at, exact_key = _varint(records, at)
    key = slice(at, at := at + length) if length >= 0 else None
    length, at, exact_value = _varint(records, at)
    value = slice(at, at := at + length) if length >= 0 else None
    return offset_delta, after_time, key, value, at, exact_offset and exact_key and exact_value


def _varint(records: bytes, at: int) -> tuple[int, int, bool]:
    """Returns (number, index after it, whether it has 32 bits) of a zigzag varint. Raises `ValueError` if it has too many bytes.

    Brokers ignore further bits in its fifth byte, as Java does in a shift. The Kafka client here would read another number.
    """
    bits = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        byte = records[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if not byte & 0x80:
            number = bits & 0xFFFFFFFF
            return (number >> 1) ^ -(number & 1), at, number == bits
    raise ValueError(f"a number has more than {_VARINT_BYTES_MAX} bytes")


def _encoded(number: int) -> bytes:
    """Returns a number of at least 0 as a zigzag varint."""
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
