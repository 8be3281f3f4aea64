"""The settings of glibc's allocator in a worker, and of Python's garbage collector in a worker and its acceptor processes.

The reasons are in docs/decisions/memtables.md and docs/decisions/garbage-collector.md.
"""

import ctypes
import gc
from typing import Final

MMAP_BYTES: Final = 256 << 10
"""The size from which the allocator gets a block from the system and returns it when it is freed.

These are RocksDB's blocks of a memtable, and the large ones of its compactions.
"""
GARBAGE_OBJECTS: Final = 10_000
"""Python's garbage collector runs when the number of containers has grown by this many.

Python's default, 700, costs a worker a twentieth of its time: the collector scans tens of thousands of pending submissions. They are in
use, and hardly any object here is in a cycle.
"""
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""Numbers of settings, from glibc's malloc.h."""


def collect_garbage_rarely() -> None:
    """Have the collector run rarely, and never scan the objects that exist now: modules and their objects stay for ever."""
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)


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
