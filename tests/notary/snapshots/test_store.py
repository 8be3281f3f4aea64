"""The stores of snapshots: files that vanish while they are listed, and entries that are no files."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from notary.snapshots.store import FILES, MANIFESTS, PRUNE_MARGIN_S, Folder, Remote, SnapshotStore, store_of
from ordering.durable import naming
from ordering.errors import ConfigurationError, NotReady


@pytest.fixture(params=["folder", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    """Both kinds of stores, in the folder `store` with two manifests."""
    (tmp_path / "store" / MANIFESTS).mkdir(parents=True)
    for name in ("1", "2"):
        (tmp_path / "store" / MANIFESTS / name).write_bytes(b"manifest")
    return _remote(tmp_path / "store") if request.param == "url" else store_of("store", tmp_path)


def _remote(folder: Path) -> Remote:
    """Returns a store behind fsspec in a folder of this machine."""
    return Remote(f"test://{folder}", LocalFileSystem(), str(folder))


class _Entries(list[Any]):
    """The entries of a folder, in the form of `os.scandir`."""

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_an_age_is_in_seconds(tmp_path: Path, store: SnapshotStore) -> None:
    """`prune` compares it with its margin: files of a snapshot in the making must look young."""
    made_s = time.time() - 1.5 * PRUNE_MARGIN_S
    os.utime(tmp_path / "store" / MANIFESTS / "1", (made_s, made_s))
    old_s, young_s, missing_s = [store.age_s(MANIFESTS, name) for name in ("1", "2", "missing")]
    assert PRUNE_MARGIN_S < old_s < 2 * PRUNE_MARGIN_S
    assert -1 < young_s < PRUNE_MARGIN_S
    assert missing_s == 0


def test_a_file_that_vanishes_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process removes a file between listing and `stat`, the other files are still listed."""
    (tmp_path / MANIFESTS).mkdir()
    for name in ("1", "2", "3"):
        (tmp_path / MANIFESTS / name).write_bytes(b"manifest")
    entries = _Entries(os.scandir(tmp_path / MANIFESTS))
    (tmp_path / MANIFESTS / "2").unlink()
    monkeypatch.setattr(os, "scandir", lambda folder: entries)
    assert Folder(tmp_path).sizes(MANIFESTS) == {"1": 8, "3": 8}


@pytest.mark.parametrize(
    ("problem", "named"),
    [(FileNotFoundError, "was removed while it was listed"), (PermissionError, "PermissionError")],
    ids=["a vanished file", "no right to list"],
)
def test_a_listing_that_fails_is_an_error(tmp_path: Path, problem: type[OSError], named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be listed, or a library behind a URL that stops at a vanished file, is no proof of an empty folder."""
    (tmp_path / MANIFESTS).mkdir()
    store: Any = _remote(tmp_path)

    def fail(path: str, detail: bool) -> None:
        raise problem(path, detail)

    monkeypatch.setattr(store._fs, "ls", fail)
    with pytest.raises(NotReady, match=named):
        store.sizes(MANIFESTS)


def test_only_regular_files_are_listed(tmp_path: Path, store: SnapshotStore) -> None:
    """Folders, pipes and dangling links are no files of a store."""
    manifests = tmp_path / "store" / MANIFESTS
    (manifests / "lost+found").mkdir()
    (manifests / "lost+found" / "3").write_bytes(b"inside")
    os.mkfifo(manifests / "pipe")
    (manifests / "link").symlink_to("nowhere")
    assert {name: size for name, size in store.sizes(MANIFESTS).items() if name != "link"} == {"1": 8, "2": 8}
    assert "link" not in Folder(tmp_path / "store").sizes(MANIFESTS)


def test_a_missing_folder_is_empty(tmp_path: Path, store: SnapshotStore) -> None:
    """A folder that does not exist has no files."""
    shutil.rmtree(tmp_path / "store")
    assert store.sizes(MANIFESTS) == {}


def test_a_folder_is_a_missing_file(tmp_path: Path) -> None:
    """A folder with the name of a file counts as a missing file, so an older snapshot can be restored."""
    (tmp_path / MANIFESTS / "1").mkdir(parents=True)
    with pytest.raises(FileNotFoundError):
        list(Folder(tmp_path).chunks(MANIFESTS, "1"))


def test_a_pipe_is_a_missing_file(tmp_path: Path) -> None:
    """A pipe with the name of a file counts as a missing file. To open it would wait for a writer, and a worker's start for ever."""
    (tmp_path / FILES).mkdir()
    os.mkfifo(tmp_path / FILES / "1")
    read = threading.Thread(target=lambda: (tmp_path / FILES / "1").write_bytes(b""), daemon=True)  # ends a wait after the time below
    timer = threading.Timer(5, read.start)
    timer.start()
    try:
        with pytest.raises(FileNotFoundError, match="there is no regular file"):
            list(Folder(tmp_path).chunks(FILES, "1"))
    finally:
        timer.cancel()


def test_a_file_that_cannot_be_read_has_a_name(tmp_path: Path) -> None:
    """The error of a read has none, and a caller names the folder into which it copies."""
    (tmp_path / FILES).mkdir()
    (tmp_path / FILES / "1").symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error") as failed, naming(tmp_path / "copy"):
        list(Folder(tmp_path).chunks(FILES, "1"))
    assert failed.value.filename == str(tmp_path / FILES / "1")


@pytest.mark.seconds
def test_a_file_that_another_program_writes_is_waited_for(tmp_path: Path) -> None:
    """A file server holds a lease on a file that its client writes. The system breaks it, and opens the file then."""
    file = tmp_path / FILES / "1"
    file.parent.mkdir()
    file.write_bytes(b"content")
    gives_up = (
        "import fcntl, os, signal, sys\n"
        "file = os.open(sys.argv[1], os.O_WRONLY)\n"
        "signal.signal(signal.SIGIO, lambda *_: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK))\n"
        "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
        "print('holds', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-P", "-c", gives_up, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        assert b"".join(Folder(tmp_path).chunks(FILES, "1")) == b"content"
        holder.communicate()


def test_a_folder_marker_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The empty object with the folder's own name, which consoles of object stores make, is left out, however a library lists it."""
    store: Any = _remote(tmp_path)
    folder = f"{tmp_path}/{MANIFESTS}"
    listed = [{"name": name, "size": 0, "type": "file"} for name in (f"{folder}/", folder, f"{folder}/1")]
    monkeypatch.setattr(store._fs, "ls", lambda path, detail: listed)
    assert store.sizes(MANIFESTS) == {"1": 0}


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_a_file_url_is_a_folder(tmp_path: Path, scheme: str) -> None:
    """A file of a `file://` URL is written atomically and synced, as in a folder that has no URL."""
    (tmp_path / "source").write_bytes(b"content")
    store = store_of(f"{scheme}://{tmp_path}/store", Path("elsewhere"))
    assert isinstance(store, Folder)
    store.put(tmp_path / "source", FILES, "name")
    assert (tmp_path / "store" / FILES / "name").read_bytes() == b"content"


def test_a_chain_of_urls_is_refused(tmp_path: Path) -> None:
    """A cache in front of a store is no other store, and reads no damage of the store behind it."""
    with pytest.raises(ConfigurationError, match="name the store itself, the URL after the last `::`"):
        store_of("simplecache::s3://bucket/of", tmp_path)
