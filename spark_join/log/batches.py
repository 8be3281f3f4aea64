"""Decodes record batches as brokers send them (Kafka's record batch format, version 2).

Memory stays bounded, whatever somebody appended: one batch, decompressed to `BODY_BYTES_MAX` at most, and one record at a time.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import pyarrow as pa
from aiokafka.record.util import calc_crc32c

BODY_BYTES_MAX: Final = 64 << 20
"""The most that a compressed batch may contain: eight times the limit of the topics."""
_HEAD: Final = Struct(">qiibIhiqq")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base time, largest time."""
_AFTER_LENGTH, _AFTER_CRC, _AFTER_HEAD = 12, 21, 61
_CODEC_BITS, _APPEND_TIME_BIT, _CONTROL_BIT = 0x07, 0x08, 0x20
_CODECS: Final = {1: "gzip", 3: "lz4", 4: "zstd"}


class DecodedRecord(NamedTuple):
    """A record, at the offset that the broker gave it."""

    offset: int
    append_time_ms: int
    key: bytes | None
    value: bytes | None


class _Batch(NamedTuple):
    start: int
    end: int
    base: int
    attributes: int
    offset_end: int
    first_ms: int
    largest_ms: int


def decode(fetched: bytes, offset_first: int, offset_end: int) -> Iterator[DecodedRecord]:
    """Yields the records of a fetched record set from `offset_first` up to `offset_end`.

    The offsets that records claim do not count. A transaction's marker has an offset, but is no record. The last batch may be incomplete,
    and is left out then. Raises `ValueError` for a batch that no broker sends, or that is compressed by snappy.
    """
    for batch in _batches(fetched):
        if batch.attributes & _CONTROL_BIT or not (batch.base < offset_end and offset_first < batch.offset_end):
            continue
        body = _body(fetched[batch.start + _AFTER_HEAD : batch.end], batch)
        append_time_ms = batch.largest_ms if batch.attributes & _APPEND_TIME_BIT else None
        try:
            at = 0
            for offset in range(batch.base, min(batch.offset_end, offset_end)):
                length, at = _varint(body, at)
                end = at + length
                if offset >= offset_first:
                    after_ms, at = _varint(body, at + 1, 64)  # before it the record's attributes, after it the offset that it claims
                    _, at = _varint(body, at)
                    key, at = _field(body, at)
                    value, at = _field(body, at)
                    if not at < end <= len(body):
                        raise IndexError
                    yield DecodedRecord(offset, batch.first_ms + after_ms if append_time_ms is None else append_time_ms, key, value)
                at = end
        except IndexError:
            raise ValueError(f"the record at offset {offset} is longer or shorter than its length") from None


def offset_after(fetched: bytes, offset_first: int) -> int:
    """Returns the offset after a fetched record set that was asked for from `offset_first` on. Raises `ValueError`, as `decode` does."""
    return max([offset_first, *(batch.offset_end for batch in _batches(fetched))])


def _batches(fetched: bytes) -> Iterator[_Batch]:
    end = 0
    while end + _AFTER_HEAD <= len(fetched):
        start = end
        base, length, _, magic, crc, attributes, last, first_ms, largest_ms = _HEAD.unpack_from(fetched, start)
        end = start + _AFTER_LENGTH + length
        if end > len(fetched):
            return
        if magic != 2 or calc_crc32c(fetched[start + _AFTER_CRC : end]) != crc:
            raise ValueError(f"the batch at offset {base} is damaged, or of a format before Kafka 0.11")
        yield _Batch(start, end, base, attributes, base + last + 1, first_ms, largest_ms)


def _body(body: bytes, batch: _Batch) -> bytes:
    """Returns the records of a batch, decompressed: somebody may have changed `compression.type=uncompressed`, the topics' setting."""
    codec = batch.attributes & _CODEC_BITS
    if not codec:
        return body
    if codec not in _CODECS:
        raise ValueError(f"the batch at offset {batch.base} is compressed by snappy (codec {codec}), which only Java's client reads")
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), _CODECS[codec]) as unpacked:
            content = bytes(unpacked.read(BODY_BYTES_MAX + 1))
    except OSError as problem:
        raise ValueError(f"the batch at offset {batch.base} cannot be decompressed: {problem}") from None
    if len(content) > BODY_BYTES_MAX:
        raise ValueError(f"the batch at offset {batch.base} has more than {BODY_BYTES_MAX} bytes when it is decompressed")
    return content


def _field(body: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(body, at)
    return (None, at) if length < 0 else (body[at : at + length], at + length)


def _varint(body: bytes, at: int, width: int = 32) -> tuple[int, int]:
    """Returns a zigzag varint and the index after it; bits beyond `width` are ignored, as Java's shifts do."""
    bits = shift = 0
    while True:
        byte = body[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            bits &= (1 << width) - 1
            return (bits >> 1) ^ -(bits & 1), at
        if shift >= width:
            raise IndexError
