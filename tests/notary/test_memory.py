"""The allocator's setting, in a process of its own, since it lasts as long as the process."""

import os
import subprocess
import sys

import pytest

from tests.sources import ROOT

SCRIPT = """
import ctypes, sys, threading
from notary.memory import MMAP_BYTES, bound_memory

class Usage(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Usage
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
if sys.argv[1] == "set":
    assert bound_memory()
libc.free(libc.malloc(16 * MMAP_BYTES))  # glibc raises its threshold now, unless it is set
before = libc.mallinfo2().hblks
kept = libc.malloc(MMAP_BYTES)
print(libc.mallinfo2().hblks - before)
blocks = []
thread = threading.Thread(target=lambda: blocks.append(libc.malloc(MMAP_BYTES // 8)))
thread.start()
thread.join()
(heap,) = [line for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]")]
first, end = [int(each, 16) for each in heap.split()[0].split("-")]
print(first <= blocks[0] < end)
"""


@pytest.mark.seconds
@pytest.mark.parametrize(("argument", "printed"), [("set", "1\nTrue"), ("not-set", "0\nFalse")])
def test_blocks_of_memtables_are_mapped_alone(argument: str, printed: str) -> None:
    """A block of a memtable is returned when it is freed, even if a larger one was freed before; threads share one heap."""
    command = [sys.executable, "-P", "-c", SCRIPT, argument]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == printed
