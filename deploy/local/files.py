"""Locks between processes, and atomic writes of files."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on the file `path` (made if missing), for the length of a block. The system releases it if
    the process dies."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The former holder of the lock may have removed its folder. Then this file is deleted, and the lock on it has
            # no effect: try again.
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
