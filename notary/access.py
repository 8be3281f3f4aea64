"""Checks of files: unreadable files, unwritable folders, and secrets that are open to others; each error names cause and remedy.

Kubernetes mounts a pod's files with other owners and modes than an operator sets on a machine. So each remedy covers both.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ordering.durable import locked_directory
from ordering.errors import ConfigurationError

_INIT: Final = "`notary init` makes it for a new notary; otherwise copy it from a backup, or from another machine of this notary"
_MOUNTED: Final = 0o440


def why_unreadable(file: Path, problem: OSError, missing: str = _INIT) -> str:
    """Returns the reason and the remedy; `missing` is the remedy for a missing file."""
    if problem.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"{problem.strerror}. {missing}"
    if problem.errno in (errno.EACCES, errno.EPERM):
        return f"{problem.strerror}. {_is_closed_to_us(file)}"
    return f"{problem.strerror or problem}. Look at the file and at its disk"


def read_secret(file: Path, whose: str, missing: str = _INIT) -> bytes:
    """Returns the content of a secret file. Raises `ConfigurationError` as `check_secret` does, and when the file cannot be read."""
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            content = opened.read()
    except OSError as problem:
        raise ConfigurationError(f"cannot read {whose} {file}: {why_unreadable(file, problem, missing)}") from None
    check_secret(file, whose, status)
    return content


def check_secret(file: Path, whose: str, status: os.stat_result) -> None:
    """Raise `ConfigurationError` unless only this process's user, root, and a group that root gave to this process may read the file.

    Kubernetes mounts a Secret with root as its owner and the pod's `fsGroup` as its group. Mode 440 then lets a process that is not root
    read it.
    """
    mode = status.st_mode & 0o777
    is_mounted = mode == _MOUNTED and status.st_uid == 0 and status.st_gid in {os.getegid(), *os.getgroups()}
    if mode & (stat.S_IRWXG | stat.S_IRWXO) and not is_mounted:
        raise ConfigurationError(
            f"{whose} {file} is open to others (mode {mode:o}, user {status.st_uid}, group {status.st_gid}): chmod 600 it. Mode 440"
            " may only have what belongs to root and to a group of this process: in a pod, mount the Secret with `defaultMode: 0440`, and"
            " set the pod's `fsGroup`"
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigurationError(
            f"{whose} {file} belongs to user {status.st_uid}, who can read it, and this is user {os.geteuid()}: run as its owner,"
            " or chown it"
        )


def check_writable(folder: Path, what: str, setting: str) -> None:
    """Raise `ConfigurationError` for an existing folder that this process may not write, or that is on a read-only file system."""
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        why = os.strerror(errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES)
        raise ConfigurationError(
            f"{what} {folder} cannot be written: {why}. Run as its owner, or name a folder that this process may write, on a disk that is"
            f" not read-only, by {setting}: docs/runbook.md, 'A folder cannot be written'"
        )


def _is_closed_to_us(file: Path) -> str:
    us = f"this process is user {os.geteuid()}, groups {', '.join(map(str, sorted({os.getegid(), *os.getgroups()})))}"
    try:
        status = file.stat()
    except OSError:
        return f"A folder on the way to it is closed to this process: {us}. Give it execute permission there"
    mode = status.st_mode & 0o777
    return (
        f"It has mode {mode:o}, user {status.st_uid}, group {status.st_gid}, and {us}. Run as its owner, or chown it; in a pod, mount its"
        " Secret with `defaultMode: 0440` and set the pod's `fsGroup`"
    )


@contextlib.contextmanager
def alone_in(directory: Path, busy: str, lock_s: float = 0.0) -> Iterator[None]:
    """Lock a folder for the length of a block, or until the process ends.

    Raises `ConfigurationError(busy)` if another process holds the lock for longer than `lock_s`; `OSError` when the folder cannot be read.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked_directory(directory, lock_s))
        except BlockingIOError:
            raise ConfigurationError(busy) from None
        yield
