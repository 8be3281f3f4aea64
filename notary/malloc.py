"""The settings of glibc's allocator with which a worker's memory stays bounded (docs/decisions/memtables.md)."""

import ctypes
from typing import Final

MMAP_BYTES: Final = 1 << 20
"""The size from which the allocator gets a block from the system and returns it when it is freed: RocksDB's blocks of a memtable."""
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""Numbers of settings, from glibc's malloc.h."""


def bound_memory() -> bool:
    """Return large blocks to the system as soon as they are freed. Returns False where the C library has no such setting.

    By default glibc raises the threshold, up to 32 MiB, when a large block is freed. From then on memtables are allocated among other
    blocks, and most of their memory stays with the process after a flush. And it gives threads heaps of their own, whose free parts other
    threads do not use: all threads share one (mallopt(3)).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(_M_ARENA_MAX, 1))
