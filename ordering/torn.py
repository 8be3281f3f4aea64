"""Distinguishes a last write that a crash interrupted from any other damage in a store's write-ahead log.

When a machine dies in the middle of a write, any of the file's pages may have reached the disk, for any length of the file. So a torn write
can look like damage to an old write. The data after the damage distinguishes them. The embedded log begins a write only when the previous
one is durable. So no write begins after a torn write, and a write that another one follows was acknowledged once.

The file is RocksDB's: blocks of 32 KiB, filled with fragments of writes, each with a checksum, a length and a kind (full, first, middle,
last); none crosses the end of a block. See the wiki of facebook/rocksdb, "Write Ahead Log File Format".
"""

import re
from pathlib import Path
from struct import Struct
from typing import Final

from aiokafka.record.util import calc_crc32c

_BLOCK: Final = 32 * 1024
_HEAD: Final = Struct("<IHB")
_KIND_AT: Final = 6
_BEGINS: Final = re.compile(rb"[\x01\x02]")
"""The kinds of fragment that begin a write: full and first."""


def only_last_write_torn(directory: Path) -> bool:
    """Returns True if there is damage and no write begins after it. Takes memory for the longest file. Raises `OSError`."""
    torn = False
    for file in sorted(directory.glob("*.log"), key=lambda file: int(file.stem)):
        data = file.read_bytes()
        complete = 0 if torn else _complete_until(data)
        torn = torn or complete < len(data)
        if torn and _a_write_begins(data, complete):
            return False
    return torn


def _complete_until(data: bytes) -> int:
    """Returns the position of the first damaged fragment, or the end of the data when all are intact."""
    at = 0
    while at < len(data):
        if _BLOCK - at % _BLOCK < _HEAD.size:  # too little space for another header: the rest of the block is unused
            at += _BLOCK - at % _BLOCK
        elif (end := _end_of_fragment(data, at)) is not None:
            at = end
        else:
            return at
    return len(data)


def _a_write_begins(data: bytes, start: int) -> bool:
    """Returns True if an intact fragment that begins a write is anywhere from `start` on, since damage may hide the fragment boundaries."""
    return any(_end_of_fragment(data, kind.start() - _KIND_AT) is not None for kind in _BEGINS.finditer(data, start + _KIND_AT))


def _end_of_fragment(data: bytes, at: int) -> int | None:
    """Returns the end of the fragment at `at`, or None if there is none or it is damaged."""
    if len(data) - at < _HEAD.size:
        return None
    checksum, length, kind = _HEAD.unpack_from(data, at)
    end = at + _HEAD.size + length
    if kind == 0 or end > len(data) or end - at > _BLOCK - at % _BLOCK:
        return None
    found = calc_crc32c(data[at + _KIND_AT : end])
    # RocksDB masks its checksums, so that data that contains checksums still gets a good checksum.
    masked = ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return end if checksum == masked else None
