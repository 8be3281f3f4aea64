"""Moves a thread into a network namespace and back. A socket that it opens there, or a process that it starts there, stays there.

On Linux each thread can be in another network namespace. So `ip netns exec` is not needed, and no namespace needs a name. A path such as
`/proc/PID/fd/N`, of a process with an open descriptor, identifies it. A namespace ends with its last process and its last open descriptor.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

CLONE_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"

Result = TypeVar("Result")


@contextmanager
def inside(network: str) -> Iterator[None]:
    """Moves the calling thread into this namespace for the length of the block; with an empty path it stays where it is.

    Do not `await` inside: other tasks of this thread would run there too. Raises `OSError` if the namespace has ended, or if this user may
    not enter it.
    """
    if not network:
        yield
        return
    home = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call("setns", descriptor, CLONE_NEWNET)
        finally:
            os.close(descriptor)
        try:
            yield
        finally:
            _call("setns", home, CLONE_NEWNET)
    finally:
        os.close(home)


def run_inside(network: str, work: Callable[[], Result]) -> Result:
    """Run `work` in a new thread in this namespace and return its result: for work that awaits, or opens sockets in many places."""

    def run() -> Result:
        with inside(network):
            return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def make() -> int:
    """Make a new network namespace, and return a descriptor that keeps it alive. The calling thread stays where it is.

    Raises `OSError`.
    """
    home = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", CLONE_NEWNET)
        try:
            return os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _call("setns", home, CLONE_NEWNET)
    finally:
        os.close(home)


def _call(name: str, *arguments: int) -> None:
    # `os` has both functions, but only from Python 3.12 on.
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
