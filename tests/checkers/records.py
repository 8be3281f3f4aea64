"""The records of the ordering topic and the keys of the payload topic, read from the contract's tables (docs/formats.md, Log records)."""

from struct import error, unpack_from
from typing import NamedTuple

FORMAT_VERSION = 1


class Entry(NamedTuple):
    incarnation: int
    sequence: int
    sent_at: int
    partition: int
    ids: tuple[str, ...]


class Register(NamedTuple):
    nonce: bytes
    name: str


class Fence(NamedTuple):
    incarnation: int
    sequence_last: int


class Root(NamedTuple):
    incarnation: int
    size: int
    root: bytes


class Activate(NamedTuple):
    version: int


Ordering = Entry | Register | Fence | Root | Activate


def ordering_record(value: bytes | None) -> Ordering | None:
    """The record, None for what every worker skips: it does not decode to its last byte, or version or kind are unknown."""
    if value is None or len(value) < 2 or value[0] != FORMAT_VERSION:
        return None
    try:
        record, end = _read(value)
    except (error, UnicodeDecodeError):
        return None
    return record if end == len(value) else None


def batch_key(key: bytes | None) -> tuple[int, int] | None:
    """(incarnation, sequence) of a payload record; None for what is nobody's."""
    if key is None or len(key) != 16:
        return None
    return int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")


def _read(value: bytes) -> tuple[Ordering | None, int]:
    """(the record, where it ends)."""
    kind = value[1]
    if kind == 1:
        incarnation, sequence, sent_at, partition, count = unpack_from(">QQqII", value, 2)
        end = 34 + 32 * count
        if end != len(value):  # before anything is made of a count that somebody invented
            return None, end
        ids = tuple([value[at : at + 32].hex() for at in range(34, end, 32)])
        return Entry(incarnation, sequence, sent_at, partition, ids), end
    if kind == 2:
        nonce, _, length = unpack_from(">16sHH", value, 2)
        name = value[22 : 22 + length].decode()
        (length_version,) = unpack_from(">H", value, 22 + length)
        end = 24 + length + length_version
        value[24 + length : end].decode()
        return Register(nonce, name), end
    if kind == 3:
        return Fence(*unpack_from(">QQ", value, 2)), 18
    if kind == 4:
        return Root(*unpack_from(">QQ32s", value, 2)), 50
    if kind == 5:
        (version,) = unpack_from(">H", value, 2)
        return (Activate(version) if version else None), 4
    return None, 2
