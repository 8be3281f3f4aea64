"""A thread's step into a network namespace and back: a socket that it opens there, a process that it starts there, stays there.

Linux gives each thread a network of its own choice. So nothing needs `ip netns exec`, and no namespace needs a name: it is told by a
path that leads to it, e.g. `/proc/PID/fd/N` of the process that holds it, and is gone with the last who is in it or holds it.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

CLONE_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"

Result = TypeVar("Result")


@contextmanager
def inside(network: str) -> Iterator[None]:
    """The calling thread is in this namespace for the length of the block (empty: it stays where it is). No `await` belongs inside.

    Raises `OSError`: nobody holds the namespace any more, or this user may not enter it.
    """
    if not network:
        yield
        return
    home = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(network)
        try:
            yield
        finally:
            _call("setns", home, CLONE_NEWNET)
    finally:
        os.close(home)


def run_inside(network: str, work: Callable[[], Result]) -> Result:
    """Return what `work` returns in a thread of its own in this namespace: for work that awaits, or that opens sockets in many places."""
    done: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with inside(network):
                done.append(work())
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def make() -> int:
    """Make a new network namespace; its descriptor, which holds it. The calling thread stays where it is. Raises `OSError`."""
    home = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", CLONE_NEWNET)
        try:
            return os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _call("setns", home, CLONE_NEWNET)
    finally:
        os.close(home)


def _enter(network: str) -> None:
    descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", descriptor, CLONE_NEWNET)
    finally:
        os.close(descriptor)


def _call(name: str, *arguments: int) -> None:
    # Python has these two as functions of `os` from 3.12 on.
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
