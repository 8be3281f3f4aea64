"""`SnapshotStore`: keeps snapshots in a folder of this machine, or at a URL that fsspec can reach, such as `s3://bucket/prefix`.

The contract: `put` is durable when it returns, and atomic: a file appears under its name with its complete content, or not at all. Object
stores keep this contract. In others (SFTP, SMB) a process that is killed may leave the beginning of a file. Its length differs from that in
the manifest, and the next snapshot with that file writes it again.

The store is not trusted. Its errors are raised as `NotReady`, a missing file as `FileNotFoundError`, and one file that cannot be read as
another `OSError`.
"""

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Final, Protocol

from ordering.clock import clock_ms
from ordering.durable import make_directory, move_into_place, naming, sync
from ordering.errors import ConfigurationError, NotReady

CHUNK_BYTES: Final = 1 << 20
PRUNE_MARGIN_S: Final = 86_400
"""The age from which a file is pruned, by default. A younger one may belong to a run that has not ended."""
FILES: Final = "files"
MANIFESTS: Final = "manifests"
_OBJECT_STORES: Final = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Object stores have no folders, so none has to be made."""
FILE_SCHEMES: Final = ("file", "local")
"""The schemes of fsspec for a folder of this machine. A relative one is in the working directory."""
_is_mistyped = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:").match


class SnapshotStore(Protocol):
    """A store of files by name, in the folders `files` and `manifests`."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Returns the length of each regular file of a folder, by name; a missing folder counts as empty."""
        ...

    def chunks(self, folder: str, name: str) -> Iterator[bytes]:
        """Yields a file's content in pieces. Raises `FileNotFoundError`, or another `OSError` if this file cannot be read."""
        ...

    def put(self, source: Path, folder: str, name: str) -> None:
        """Copy a file of this machine to the store, where it replaces any file of that name."""
        ...

    def age_s(self, folder: str, name: str) -> float:
        """Returns the time since the file was written, as the store recorded it."""
        ...

    def remove(self, folder: str, name: str) -> None:
        """Remove a file; nothing happens if it is not there."""
        ...


def store_of(url: str, relative_to: Path) -> SnapshotStore:
    """Returns the store of a URL, or of a folder. Raises `ConfigurationError` for a chain of URLs, or if a package is not installed."""
    if "://" not in url:
        if _is_mistyped(url):
            raise ConfigurationError(f"{url} is neither a URL nor a folder: write SCHEME://…, or ./{url} for a folder of that name")
        return Folder(relative_to / url)
    if "::" in url:
        raise ConfigurationError(f"{url} chains several file systems: name the store itself, the URL after the last `::`")
    scheme, _, rest = url.partition("://")
    if scheme in FILE_SCHEMES:
        return Folder(Path(rest).expanduser())
    try:
        from fsspec.core import url_to_fs  # here, since a store that is a folder needs no fsspec

        file_system, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    except Exception as problem:  # each file system checks its own settings, with exceptions of its own
        raise ConfigurationError(
            f"{url} cannot be used for snapshots: {problem}. For s3:// install kafka-notary[s3], for others fsspec and the package it names"
        ) from None
    return Remote(url, file_system, root)


def chunks_of(opened: IO[bytes]) -> Iterator[bytes]:
    """Yields the content of an open file in pieces."""
    while chunk := opened.read(CHUNK_BYTES):
        yield chunk


def open_regular(path: Path) -> BufferedReader:
    """Opens a regular file to read it. Raises `FileNotFoundError` for a pipe or a folder too, and another `OSError`."""
    try:
        opened = open(path, "rb", opener=_opened)  # noqa: SIM115 - the caller closes it
    except IsADirectoryError as problem:
        raise FileNotFoundError(*problem.args) from None
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise FileNotFoundError(errno.ENOENT, "there is no regular file", str(path))
    return opened


def _opened(path: str, flags: int) -> int:
    """Open a file, but wait for no writer of a pipe."""
    try:
        return os.open(path, flags | os.O_NONBLOCK)
    except BlockingIOError:  # a file server has a lease on this file, as on no pipe, and must give it back within a limited time
        return os.open(path, flags)


class Folder:
    """A `SnapshotStore` in a folder of this machine, or on a shared disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def sizes(self, folder: str) -> dict[str, int]:
        """As `SnapshotStore` describes it. Folders, pipes and dangling links are left out: reading them fails, or waits for ever."""
        sizes: dict[str, int] = {}
        try:
            entries = os.scandir(self._directory / folder)
        except FileNotFoundError:
            return sizes
        with entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # this file was removed meanwhile; the others are still there
                    if entry.is_file():
                        sizes[entry.name] = entry.stat().st_size
        return sizes

    def chunks(self, folder: str, name: str) -> Iterator[bytes]:
        """As `SnapshotStore` describes it."""
        path = self._directory / folder / name
        with naming(path), open_regular(path) as opened:
            yield from chunks_of(opened)

    def put(self, source: Path, folder: str, name: str) -> None:
        """As in `SnapshotStore`. A crash before the rename leaves a file in `files` that no manifest names; `prune` removes it."""
        target = self._directory / folder / name
        for needed in (FILES, folder):
            make_directory(self._directory / needed)
        descriptor, made = tempfile.mkstemp(prefix=".new-", dir=self._directory / FILES)
        new = Path(made)
        try:
            with naming(target.parent), source.open("rb") as reading, os.fdopen(descriptor, "wb") as writing:
                new.chmod(0o644)  # other users may read it too
                shutil.copyfileobj(reading, writing, CHUNK_BYTES)
                sync(writing)
            move_into_place(new, target)
        finally:
            new.unlink(missing_ok=True)

    def age_s(self, folder: str, name: str) -> float:
        """As `SnapshotStore` describes it."""
        try:
            return clock_ms() / 1000 - (self._directory / folder / name).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def remove(self, folder: str, name: str) -> None:
        """As `SnapshotStore` describes it."""
        (self._directory / folder / name).unlink(missing_ok=True)


class Remote:
    """A `SnapshotStore` behind an fsspec file system. Credentials and endpoints are that library's own settings (`AWS_*` for S3)."""

    def __init__(self, url: str, file_system: Any, root: str) -> None:
        self._url, self._fs, self._root = url, file_system, root.rstrip("/")
        self._is_object_store = url.partition("://")[0] in _OBJECT_STORES

    def _path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    @contextlib.contextmanager
    def _mapped(self, *, of_one_file: bool = False) -> Iterator[None]:
        """Raise errors as `NotReady`. `of_one_file`: but a `PermissionError` as it is: that file's rights or storage class close it."""
        try:
            yield
        except FileNotFoundError:
            raise
        except PermissionError as problem:
            if of_one_file:
                raise
            raise self._unusable(problem) from problem
        except Exception as problem:  # each library behind fsspec has its own exception types
            raise self._unusable(problem) from problem

    def _unusable(self, problem: Exception) -> NotReady:
        return NotReady(f"the store of snapshots {self._url} cannot be used: {type(problem).__name__}: {problem}")

    def sizes(self, folder: str) -> dict[str, int]:
        """As `SnapshotStore` describes it."""
        path = self._path(folder)
        with self._mapped():
            try:
                found = self._fs.ls(path, detail=True)  # not `find`, which takes some failures for an empty folder
            except FileNotFoundError:
                if not self._fs.exists(path):
                    return {}
                raise OSError(f"a file of {path} was removed while it was listed: try again") from None
            # A console's `Create folder` makes an empty object, whose name is that of the folder with "/" at its end.
            files = [each for each in found if each["type"] == "file" and str(each["name"]).strip("/") != path.strip("/")]
            return {name: int(each["size"]) for each in files if (name := str(each["name"]).rpartition("/")[2])}

    def chunks(self, folder: str, name: str) -> Iterator[bytes]:
        """As `SnapshotStore` describes it."""
        with self._mapped(of_one_file=True), self._fs.open(self._path(folder, name), "rb") as opened:
            yield from chunks_of(opened)

    def put(self, source: Path, folder: str, name: str) -> None:
        """As `SnapshotStore` describes it."""
        with self._mapped():
            if not self._is_object_store:  # s3fs would make the bucket
                self._fs.makedirs(self._path(folder), exist_ok=True)
            self._fs.put_file(str(source), self._path(folder, name))

    def age_s(self, folder: str, name: str) -> float:
        """As `SnapshotStore` describes it."""
        with self._mapped(), contextlib.suppress(FileNotFoundError):
            return clock_ms() / 1000 - float(self._fs.modified(self._path(folder, name)).timestamp())
        return 0.0

    def remove(self, folder: str, name: str) -> None:
        """As `SnapshotStore` describes it."""
        with self._mapped(), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(folder, name))
