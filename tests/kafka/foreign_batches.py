"""Record batches of a writer without the notary's key, which brokers accept, and their appending."""

import struct
import zlib
from collections.abc import Callable
from typing import Final

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import MessageBatch
from aiokafka.record.util import calc_crc32c

HEAD_BYTES: Final = 61
GZIP, ZSTD = 1, 4
BOMB_BYTES: Final = 64 << 20


def with_body(batch: bytes, body: bytes, codec: int = 0) -> bytes:
    """Returns a batch with other records, its length and CRC corrected."""
    made = bytearray(batch[:HEAD_BYTES] + body)
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">h", made, 21, codec)
    struct.pack_into(">I", made, 17, calc_crc32c(bytes(made[21:])))
    return bytes(made)


def with_bad_header(batch: bytes) -> bytes:
    """Its header key is no UTF-8."""
    return with_body(batch, batch[HEAD_BYTES:].replace(b"hh", b"\xff\xfe"))


def as_gzip(batch: bytes) -> bytes:
    """Its records are compressed."""
    packer = zlib.compressobj(wbits=31)
    return with_body(batch, packer.compress(batch[HEAD_BYTES:]) + packer.flush(), GZIP)


def as_zstd(batch: bytes) -> bytes:
    """Its records are in a zstd frame of one raw block."""
    body = batch[HEAD_BYTES:]
    return with_body(batch, b"\x28\xb5\x2f\xfd\x20" + bytes([len(body)]) + struct.pack("<I", 1 | len(body) << 3)[:3] + body, ZSTD)


def with_offset(batch: bytes) -> bytes:
    """Its record claims an offset far behind the end of the log."""
    return with_deltas(batch, varint(0), varint(1_000_000))


def with_earlier_offset(batch: bytes) -> bytes:
    """Its record claims an offset four before its own."""
    return with_deltas(batch, varint(0), b"\x07")


def with_later_offset(batch: bytes) -> bytes:
    """Its record claims an offset five behind its own, at which another record is."""
    return with_deltas(batch, varint(0), varint(5))


def with_time(batch: bytes) -> bytes:
    """The number in which its record has its time is longer than 32 bits."""
    return with_deltas(batch, b"\x80" * 9 + b"\x01", varint(0))


def with_deltas(batch: bytes, time: bytes, offset: bytes) -> bytes:
    """Returns a batch of one record with other deltas of time and offset."""
    body = batch[HEAD_BYTES + 1 : HEAD_BYTES + 2] + time + offset + batch[HEAD_BYTES + 4 :]
    return with_body(batch, varint(len(body)) + body)


def with_long_length(batch: bytes) -> bytes:
    """The length of its record has bits beyond the 32nd, which Java ignores."""
    body = batch[HEAD_BYTES + 1 :]
    low = len(body) << 1
    return with_body(batch, bytes([low & 127 | 128, low >> 7 & 127 | 128, 128, 128, 0x10]) + body)


def as_bomb(batch: bytes) -> bytes:
    """Its record has 64 MiB of zeros, which compress to 64 KB."""
    head = b"\x00\x00\x00\x01" + varint(BOMB_BYTES)  # attributes, deltas of time and offset, no key
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = packer.compress(varint(len(head) + BOMB_BYTES + 1) + head + bytes(BOMB_BYTES) + b"\x00") + packer.flush()
    return with_body(batch, body, GZIP)


def varint(number: int) -> bytes:
    """Returns a number of at least 0 as a zigzag varint."""
    number, out = number << 1, bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


async def append(bootstrap: str, topic: str, change: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Append one record, in a batch that is changed before it is sent."""
    build = MessageBatch.get_data_buffer
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        with monkeypatch.context() as patch:
            patch.setattr(MessageBatch, "get_data_buffer", lambda batch: change(bytes(build(batch))))
            await producer.send_and_wait(topic, b"junk", None, 0, headers=[("hh", b"v")])
