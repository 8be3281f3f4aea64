"""Files that are on the disk before others speak of them."""

import os
from pathlib import Path


def sync_files(folder: Path) -> None:
    """Make all that is in `folder`, at whatever depth, outlive a crash of this machine.

    Executors of other machines write over the network, and what serves the folder to all has it once they have closed it.
    """
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(path) / name)
        sync_folder(Path(path))


def write_last(file: Path, content: bytes) -> None:
    """Write what speaks of other files, which are on the disk: all of it is there under its name, or nothing."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_bytes(content)
    _sync(temporary)
    temporary.rename(file)
    for folder in file.parents[:2]:  # the first of these may be as new as the file
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
