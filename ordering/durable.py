"""Files that survive a crash of the machine, and locks between processes. Only this module of the product syncs files or locks them.

A file's content is durable once the file is synced, and its name once its directory is synced. `spark_join` imports no package that it
checks, so it has its own functions. RocksDB syncs its own files.
"""

import contextlib
import fcntl
import os
import select
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from errno import EEXIST, EMFILE, EMLINK, ENFILE, ENOSYS, EOPNOTSUPP, EPERM
from glob import escape
from pathlib import Path
from stat import S_IMODE
from typing import IO, Any, Final
from uuid import uuid4

from ordering.clock import clock_ms

_NO_LINKS: Final = (EPERM, EOPNOTSUPP, ENOSYS, EMLINK)
"""The errors of `link` on a file system without hard links."""
TOO_MANY_FILES: Final = (EMFILE, ENFILE)
"""The errors of a process, or a machine, that has as many open files as it may have: they say nothing about the file."""
LOCK_S: Final = 5.0
"""The time to wait for a lock that other processes hold for milliseconds."""
_LOCK_TRY_S: Final = 0.01
_LEFT_S: Final = 600.0
"""A temporary folder that is older and not locked was left by a killed process. A younger one may not be locked yet."""


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises `OSError`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path, mode: int = 0o777) -> list[Path]:
    """Create a directory and its missing parents, and make their names durable. `mode`: the mode of the directory itself.

    A directory that exists already stays as it is. Returns the new ones, the deepest first. After an `OSError` no new one is left.
    """
    new = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(mode, parents=True, exist_ok=True)
        for each in new:
            sync_directory(each.parent)
    except OSError:
        remove_empty(new)
        raise
    return new


def remove_empty(directories: Iterable[Path]) -> None:
    """Remove those of the directories that exist and are empty."""
    for each in directories:
        with contextlib.suppress(OSError):
            each.rmdir()


def sync(file: IO[Any]) -> None:
    """Make the content of an open file durable, but not its name. Raises `OSError`."""
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a file or a folder in each error of this block that names none: the error of a write to a full disk has no name."""
    try:
        yield
    except OSError as problem:
        if problem.errno is not None and problem.filename is None:
            problem.filename = str(path)
        raise


def create_file(file: Path, content: bytes, mode: int = 0o666) -> None:
    """Create a file, durably. A reader or a crash finds no file, or the complete one. The umask limits `mode`.

    A file system without hard links, such as a share, may show a part of the file after a crash. Raises `FileExistsError`. After another
    `OSError` there is no file, unless only its name could not be synced.
    """
    new = file.with_name(f".{file.name}.{uuid4().hex}.new")
    try:
        _write_new(new, content, mode)
        # A crash here leaves a file under the temporary name, which the next creation of `file` removes.
        os.link(new, file)  # replaces nothing, unlike a rename
    except OSError as problem:
        new.unlink(missing_ok=True)
        if isinstance(problem, FileNotFoundError) and file.exists():
            raise FileExistsError(EEXIST, os.strerror(EEXIST), str(file)) from None  # the process that created it removed our file
        if problem.errno not in _NO_LINKS:
            raise
        _write_new(file, content, mode)  # a crash in this line leaves a part of the file
    # No other process can create the file any more: remove this temporary name, and those that killed processes left.
    for left in file.parent.glob(f".{escape(file.name)}.*.new"):
        left.unlink(missing_ok=True)
    sync_directory(file.parent)


def replace_file(file: Path, content: bytes, mode: int = 0o644, *, like: os.stat_result | None = None) -> None:
    """Replace the content of a file, or create it, durably. A reader or a crash finds the old content or the new one, never a part.

    The new file never has more permissions than `mode`. With `like` it gets that file's mode, and its owner as far as this user may give
    it. The caller holds a lock if another process may replace the same file at the same time. A symbolic link is replaced, not followed.
    Raises `OSError`.
    """
    if like is not None:
        mode = S_IMODE(like.st_mode)
    beside = file.with_name(f".{file.name}.new")
    beside.unlink(missing_ok=True)  # a crash of an earlier call left it
    try:
        _write_new(beside, content, mode & 0o600)
        if like is not None:
            with contextlib.suppress(PermissionError):
                os.chown(beside, like.st_uid, like.st_gid)
        beside.chmod(mode)
        move_into_place(beside, file)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def move_into_place(made: Path, target: Path) -> None:
    """Rename a file or a folder to `target`, durably. It replaces a file, or an empty folder.

    The caller has synced the content, unless it can be made again.

    Raises `OSError`; if only the new name could not be synced, `made` is gone all the same.
    """
    made.replace(target)
    # A crash here may leave both names as they were, which is correct: this call has not returned yet.
    sync_directory(target.parent)


def _write_new(file: Path, content: bytes, mode: int) -> None:
    """Create a file that does not exist yet, and sync its content. Raises `OSError`, and then leaves no file of its own."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with naming(file), os.fdopen(descriptor, "wb") as out:
            out.write(content)
            sync(out)
    except OSError:
        file.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked_directory(directory: Path, lock_s: float = 0.0) -> Iterator[None]:
    """Hold an exclusive lock on a directory for the length of a block. The system releases it when the process dies.

    Raises `BlockingIOError` if another process holds it for longer than `lock_s`; `OSError` for a directory that cannot be read.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(descriptor, lock_s)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a folder in `parent`, locked, for the length of a block. Raises `OSError` if none can be made.

    Folders of that prefix that killed processes left are removed first, as far as this user may.
    """
    for left in parent.glob(f"{escape(prefix)}*"):
        with contextlib.suppress(OSError):  # another process uses it or has removed it
            if clock_ms() / 1000 - left.stat().st_mtime > _LEFT_S:
                with locked_directory(left):
                    shutil.rmtree(left)
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    with locked_directory(made):
        try:
            yield made
        finally:
            shutil.rmtree(made)


@contextlib.contextmanager
def locked_file(file: Path, mode: int = 0o644, lock_s: float | None = None) -> Iterator[int]:
    """Wait for an exclusive lock on a file, created if it is missing, and hold it for the length of a block.

    Yields a descriptor for reading and writing, which the block leaves open. The system releases the lock when the process dies.
    Raises `BlockingIOError` if another process holds it for longer than `lock_s`, None: for ever; another `OSError` for an unusable file.
    """
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, mode)
        try:
            _lock(descriptor, lock_s)
            # The former holder may have removed the file, or its directory: a lock on a removed file has no effect, so try again.
            if _is_still_at(descriptor, file):
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _lock(descriptor: int, lock_s: float | None) -> None:
    """Lock an open file or directory. Raises `BlockingIOError` if another process holds the lock for longer than `lock_s`."""
    if lock_s is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    for tries_left in range(round(lock_s / _LOCK_TRY_S), -1, -1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not tries_left:
                raise
            select.select([], [], [], _LOCK_TRY_S)
        else:
            return


def _is_still_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
