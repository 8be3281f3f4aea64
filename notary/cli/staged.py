"""Make a folder's files all or not at all, whatever fails or crashes on the way.

Everything is made in a folder of its own inside, `.notary-init`, and moved in at the end, the configuration last. What is found there later
is what a run left that was killed; nobody else keeps anything there. A run that finds some takes it back first, and begins anew.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ordering.errors import ConfigurationError
from ordering.store import sync_directory

STAGE: Final = ".notary-init"
_MOVING = "moving"
"""In the stage: the names that are about to be moved. One of them that is not in the stage any more has been."""


@contextlib.contextmanager
def staged(directory: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """A folder for the block to make `names` in; they come into `directory` when it ends well, the last one making it complete.

    The directory is made if it is not there. Raises `ConfigurationError` when a name is taken, or another process is at it; `OSError`.
    """
    new = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _alone_in(directory):
            _take_back(directory, names[-1])
            _check_free(directory, names)
            try:
                stage = directory / STAGE
                stage.mkdir(mode=0o700)
                yield stage
                _move(stage, directory, names)
            finally:
                _take_back(directory, names[-1])
        for each in new:
            sync_directory(each.parent)
    except BaseException:
        for each in new:
            with contextlib.suppress(OSError):  # not empty, or not there
                each.rmdir()
        raise


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another process is making files in {directory}: wait for it, or choose another one") from None
        yield
    finally:
        os.close(descriptor)


def _check_free(directory: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = directory / name
        # A folder with nothing in it is as good as none: renaming another folder to it replaces it.
        if os.path.lexists(path) and not (path.is_dir() and not path.is_symlink() and not any(path.iterdir())):
            raise ConfigurationError(f"{path} exists already: nothing is overwritten; choose another directory")


def _move(stage: Path, directory: Path, names: tuple[str, ...]) -> None:
    """A crash before the last name has moved leaves a list of what to take back; after it, all is there, and the stage is empty."""
    _check_free(directory, names)
    write(stage / _MOVING, "\n".join(names))
    sync_directory(stage)
    *others, last = names
    for name in others:
        (stage / name).rename(directory / name)
    sync_directory(directory)
    (stage / last).rename(directory / last)
    sync_directory(directory)


def _take_back(directory: Path, last: str) -> None:
    """Remove the stage, and what came out of it before the last name did. A crash in here leaves less to do."""
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


def write(file: Path, text: str) -> None:
    """A new file with this text, durable but for its name."""
    with file.open("x", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
