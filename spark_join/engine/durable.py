"""Durable files: each is synced to the disk before another file refers to it."""

import os
from pathlib import Path


def sync_files(folder: Path) -> None:
    """Sync all files and folders in `folder`, at any depth, so that they survive a crash of this machine.

    Executors on other machines write over the network: the server of a shared folder has a file once they have closed it.
    """
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(path) / name)
        sync_folder(Path(path))


def write_last(file: Path, content: bytes) -> None:
    """Write a file that refers to other files, which are already synced. The rename is atomic.

    A crash here leaves the complete file under its name, or no file of that name.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_bytes(content)
    _sync(temporary)
    temporary.rename(file)
    for folder in file.parents[:2]:  # the file's folder may be as new as the file, so its own name is synced too
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names in it survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
