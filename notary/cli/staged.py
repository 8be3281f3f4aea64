"""`staged`: creates a folder's files atomically: after an error or a crash either all files are there, or the next run removes them.

The files are made in a subfolder, `.notary-init`, and moved at the end, the configuration last. If a run is killed, its subfolder remains.
The next run first undoes that run, and begins anew.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from notary.access import alone_in
from ordering.durable import create_file, make_directory, move_into_place, remove_empty, sync_directory
from ordering.errors import ConfigurationError

STAGE: Final = ".notary-init"
_MOVING = "moving"
"""A file in the stage that lists the names about to be moved. A listed name that is no longer in the stage was moved."""


@contextlib.contextmanager
def staged(directory: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """Yields a folder in which the block makes `names`; they are moved into `directory` when the block succeeds.

    The directory is complete once the last name is there; it is created if it is missing. Raises `ConfigurationError` when a name exists
    already, or another process works in the directory; `OSError`.
    """
    new = make_directory(directory)
    try:
        with alone_in(directory, f"another process is making files in {directory}: wait for it, or choose another one"):
            _take_back(directory, names[-1])
            _check_free(directory, names)
            try:
                stage = directory / STAGE
                stage.mkdir(mode=0o700)
                yield stage
                _move(stage, directory, names)
            finally:
                _take_back(directory, names[-1])
    except BaseException:
        remove_empty(new)
        raise


def _check_free(directory: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = directory / name
        # An empty folder is no obstacle: renaming another folder to it replaces it.
        if os.path.lexists(path) and not (path.is_dir() and not path.is_symlink() and not any(path.iterdir())):
            raise ConfigurationError(f"{path} exists already: nothing is overwritten; choose another directory")


def _move(stage: Path, directory: Path, names: tuple[str, ...]) -> None:
    """Move the files out of the stage, the last name last.

    A crash before the last name is moved leaves a list of the names to undo. A crash after it leaves a complete directory and an empty
    stage.
    """
    _check_free(directory, names)
    create_file(stage / _MOVING, "\n".join(names).encode())
    *others, last = names
    for name in others:
        (stage / name).rename(directory / name)
    sync_directory(directory)
    move_into_place(stage / last, directory / last)


def _take_back(directory: Path, last: str) -> None:
    """Remove the stage, and the files moved out of it, unless the last name was moved too. After a crash here the next call continues."""
    stage = directory / STAGE
    if not stage.exists():
        return
    if (stage / _MOVING).exists():
        if not os.path.lexists(directory / last):
            for name in (stage / _MOVING).read_text().splitlines():
                if not os.path.lexists(stage / name) and os.path.lexists(directory / name):
                    (directory / name).rename(stage / name)
        (stage / _MOVING).unlink()
    shutil.rmtree(stage)
