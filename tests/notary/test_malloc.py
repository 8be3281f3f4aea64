"""The allocator's setting, in a process of its own, since it lasts as long as the process."""

import os
import subprocess
import sys

import pytest

from tests.sources import ROOT

SCRIPT = """
import ctypes, sys
from notary.malloc import MMAP_BYTES, return_large_blocks

class Usage(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Usage
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
if sys.argv[1] == "set":
    assert return_large_blocks()
libc.free(libc.malloc(16 * MMAP_BYTES))  # glibc raises its threshold now, unless it is set
before = libc.mallinfo2().hblks
kept = libc.malloc(MMAP_BYTES)
print(libc.mallinfo2().hblks - before)
"""


@pytest.mark.seconds
@pytest.mark.parametrize(("argument", "blocks"), [("set", "1"), ("not-set", "0")])
def test_blocks_of_memtables_are_mapped_alone(argument: str, blocks: str) -> None:
    """After a larger block was freed, a block of a memtable is returned when it is freed; without the setting it is not."""
    command = [sys.executable, "-P", "-c", SCRIPT, argument]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == blocks
