"""The records of the ordering topic, to the byte (docs/formats.md, Log records).

First byte: format version; second byte: kind; then the body, big-endian. `decode` is total: any bytes give a record or `CorruptRecord`.

| kind | body |
|---|---|
| 1 entry | u64 incarnation, u64 sequence, i64 sent_at, u32 payload partition, u32 count, count x 32-byte transaction ids |
| 2 register | 16-byte nonce, u16 format version, u16 length, worker name, u16 length, software version |
| 3 fence | u64 incarnation, u64 last sequence counted |
| 4 checkpoint | u64 incarnation, u64 tree size, 32-byte root |
| 5 activate | u16 format version |
"""

from struct import Struct, error
from typing import Final, TypeAlias

import msgspec

from ordering.errors import CorruptRecord
from ordering.ids import TRANSACTION_ID_BYTES, TransactionId

FORMAT_VERSION: Final = 1
"""The highest format version that this software reads; version 1 is active from the start."""

NONCE_BYTES: Final = 16

_ENTRY, _REGISTER, _FENCE, _CHECKPOINT, _ACTIVATE = 1, 2, 3, 4, 5

_HEAD = Struct(">BB")
_ENTRY_BODY = Struct(">QQqII")
_REGISTER_BODY = Struct(">16sH")
_FENCE_BODY = Struct(">QQ")
_CHECKPOINT_BODY = Struct(">QQ32s")
_U16 = Struct(">H")
_BATCH_KEY = Struct(">QQ")


class Entry(msgspec.Struct, frozen=True, gc=False):
    """Batch (incarnation, sequence) stands here in the global order; its content is in payload partition `partition`."""

    incarnation: int
    sequence: int
    sent_at_ms: int
    partition: int
    transaction_ids: tuple[TransactionId, ...]


class Register(msgspec.Struct, frozen=True, gc=False):
    """A worker's new life begins; its incarnation is the ordinal of this record (R5)."""

    nonce: bytes
    format_version: int
    name: str
    software_version: str


class Fence(msgspec.Struct, frozen=True, gc=False):
    """Life `incarnation` ends, if `sequence_last` is still the last of its sequences counted, 0 for none (R5)."""

    incarnation: int
    sequence_last: int


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """What life `incarnation` has as the tree's root at `tree_size` (R9)."""

    incarnation: int
    tree_size: int
    root: bytes


class Activate(msgspec.Struct, frozen=True, gc=False):
    """From here on records of `format_version` count too; a worker that cannot read them stops before it."""

    format_version: int


OrderingRecord: TypeAlias = Entry | Register | Fence | Checkpoint | Activate


def encode(record: OrderingRecord) -> bytes:
    """The record's bytes in format version 1. Names longer than 255 UTF-8 bytes are the caller's mistake."""
    match record:
        case Entry(incarnation, sequence, sent_at_ms, partition, ids):
            return (
                _HEAD.pack(FORMAT_VERSION, _ENTRY)
                + _ENTRY_BODY.pack(incarnation, sequence, sent_at_ms, partition, len(ids))
                + b"".join(ids)
            )
        case Register(nonce, format_version, name, software_version):
            return (
                _HEAD.pack(FORMAT_VERSION, _REGISTER) + _REGISTER_BODY.pack(nonce, format_version) + _text(name) + _text(software_version)
            )
        case Fence(incarnation, sequence_last):
            return _HEAD.pack(FORMAT_VERSION, _FENCE) + _FENCE_BODY.pack(incarnation, sequence_last)
        case Checkpoint(incarnation, tree_size, root):
            return _HEAD.pack(FORMAT_VERSION, _CHECKPOINT) + _CHECKPOINT_BODY.pack(incarnation, tree_size, root)
        case Activate(format_version):
            return _HEAD.pack(FORMAT_VERSION, _ACTIVATE) + _U16.pack(format_version)


def decode(data: bytes | None) -> OrderingRecord:
    """The record that these bytes are, to the last one; `CorruptRecord` for anything else, never another exception."""
    if data is None or len(data) < _HEAD.size:
        raise CorruptRecord("an ordering record has at least two bytes: version and kind")
    version, kind = data[0], data[1]
    if version != FORMAT_VERSION:
        raise CorruptRecord(f"format version {version} is not active")
    try:
        match kind:
            case 1:
                return _decode_entry(data)
            case 2:
                return _decode_register(data)
            case 3:
                _exactly(data, _HEAD.size + _FENCE_BODY.size)
                return Fence(*_FENCE_BODY.unpack_from(data, _HEAD.size))
            case 4:
                _exactly(data, _HEAD.size + _CHECKPOINT_BODY.size)
                return Checkpoint(*_CHECKPOINT_BODY.unpack_from(data, _HEAD.size))
            case 5:
                _exactly(data, _HEAD.size + _U16.size)
                (format_version,) = _U16.unpack_from(data, _HEAD.size)
                if format_version == 0:
                    raise CorruptRecord("an activate record names format version 0, which is none")
                return Activate(format_version)
            case _:
                raise CorruptRecord(f"kind {kind} is unknown to format version {version}")
    except (error, UnicodeDecodeError) as problem:
        raise CorruptRecord(f"an ordering record of kind {kind} does not decode: {problem}") from problem


def batch_key(incarnation: int, sequence: int) -> bytes:
    """The payload record's key for a batch: u64 incarnation, u64 sequence."""
    return _BATCH_KEY.pack(incarnation, sequence)


def decode_batch_key(key: bytes | None) -> tuple[int, int]:
    """(incarnation, sequence) of a payload record's key; `CorruptRecord` if it is not 16 bytes."""
    if key is None or len(key) != _BATCH_KEY.size:
        raise CorruptRecord(f"a payload key has 16 bytes, this one has {0 if key is None else len(key)}")
    incarnation, sequence = _BATCH_KEY.unpack(key)
    return incarnation, sequence


def _decode_entry(data: bytes) -> Entry:
    incarnation, sequence, sent_at_ms, partition, count = _ENTRY_BODY.unpack_from(data, _HEAD.size)
    start = _HEAD.size + _ENTRY_BODY.size
    _exactly(data, start + count * TRANSACTION_ID_BYTES)
    ids = tuple([data[at : at + TRANSACTION_ID_BYTES] for at in range(start, len(data), TRANSACTION_ID_BYTES)])
    return Entry(incarnation, sequence, sent_at_ms, partition, ids)


def _decode_register(data: bytes) -> Register:
    nonce, format_version = _REGISTER_BODY.unpack_from(data, _HEAD.size)
    name, at = _take_text(data, _HEAD.size + _REGISTER_BODY.size)
    software_version, at = _take_text(data, at)
    _exactly(data, at)
    return Register(nonce, format_version, name, software_version)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _U16.pack(len(encoded)) + encoded


def _take_text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _U16.unpack_from(data, at)
    start = at + _U16.size
    if start + length > len(data):
        raise CorruptRecord(f"an ordering record ends inside a text of {length} bytes")
    return data[start : start + length].decode(), start + length


def _exactly(data: bytes, length: int) -> None:
    if len(data) != length:
        raise CorruptRecord(f"an ordering record of kind {data[1]} should have {length} bytes and has {len(data)}")
