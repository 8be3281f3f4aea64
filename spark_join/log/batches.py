"""Decodes record batches as brokers send them (Kafka's record batch format, version 2)."""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from aiokafka.record.util import calc_crc32c

_HEAD: Final = Struct(">qiibIhiqq")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base time, largest time."""
_AFTER_LENGTH, _AFTER_CRC, _AFTER_HEAD = 12, 21, 61
_CODEC_BITS, _APPEND_TIME_BIT, _CONTROL_BIT = 0x07, 0x08, 0x20


class DecodedRecord(NamedTuple):
    """A record, at the offset that the broker gave it."""

    offset: int
    append_time_ms: int
    key: bytes | None
    value: bytes | None


def decode(fetched: bytes, offset_first: int) -> tuple[list[DecodedRecord], int]:
    """Returns the records of a fetched record set from `offset_first` on, and the offset after them.

    The offsets that records claim do not count. A transaction's marker has an offset, but is no record. The last batch may be incomplete,
    and is left out then. Raises `ValueError` for a batch that no broker sends, or that is compressed.
    """
    found: list[DecodedRecord] = []
    end, offset_next = 0, offset_first
    while end + _AFTER_HEAD <= len(fetched):
        start = end
        base, length, _, magic, crc, attributes, last, first_ms, largest_ms = _HEAD.unpack_from(fetched, start)
        end = start + _AFTER_LENGTH + length
        if end > len(fetched):
            break
        if magic != 2 or calc_crc32c(fetched[start + _AFTER_CRC : end]) != crc:
            raise ValueError(f"the batch at offset {base} is damaged, or of a format before Kafka 0.11")
        if attributes & _CODEC_BITS:
            raise ValueError(f"the batch at offset {base} is compressed, and the notary's topics have compression.type=uncompressed")
        if not attributes & _CONTROL_BIT:
            times = largest_ms if attributes & _APPEND_TIME_BIT else None
            records = _records(fetched[start + _AFTER_HEAD : end], base, first_ms, times)
            found += [record for record in records if record.offset >= offset_first]
        offset_next = max(offset_next, base + last + 1)
    return found, offset_next


def _records(body: bytes, base: int, first_ms: int, append_time_ms: int | None) -> Iterator[DecodedRecord]:
    at, offset = 0, base
    try:
        while at < len(body):
            length, at = _varint(body, at)
            end = at + length
            after_ms, at = _varint(body, at + 1, 64)  # before it the record's attributes, after it the offset that it claims
            _, at = _varint(body, at)
            key, at = _field(body, at)
            value, at = _field(body, at)
            if not at < end <= len(body):
                raise IndexError
            yield DecodedRecord(offset, first_ms + after_ms if append_time_ms is None else append_time_ms, key, value)
            at, offset = end, offset + 1
    except IndexError:
        raise ValueError(f"the record at offset {offset} is longer or shorter than its length") from None


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
