"""Locks between processes, and files that are there whole or not at all."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` (made if missing) against all other processes. It goes with the process, however
    that ends."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Whoever held the lock may have removed its folder: then we hold a file that nobody else can see, and must
            # ask again.
            if _is_still_at(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)


def _is_still_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of `path`. A crash here leaves the old content or the new one, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)
