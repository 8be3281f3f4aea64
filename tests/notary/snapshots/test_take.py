"""Snapshots are listed, restored and pruned, whatever else is in their store."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from notary.snapshots.manifest import Manifest
from notary.snapshots.store import FILES, MANIFESTS, Folder
from notary.snapshots.take import damaged_files, prune
from tests.notary.snapshots.desk import Desk

pytestmark = pytest.mark.seconds

ANOTHER_LOG = "another " + "00" * 32
DAY_S = 86_400


def _only(desk: Desk) -> Manifest:
    (manifest,) = desk.found()
    return manifest


def test_a_dangling_link_costs_no_snapshot(desk: Desk) -> None:
    """A dangling link among the manifests hides none of them, so `prune` removes no file that a manifest names."""
    desk.snapshot("create")
    desk.age()
    (desk.store / MANIFESTS / "x").symlink_to("nowhere")
    files = desk.names(FILES)
    assert desk.snapshot("prune", "--keep", "1")["files"] == 0
    assert desk.names(FILES) == files


def test_no_file_goes_without_a_manifest(desk: Desk) -> None:
    """Without any manifest `prune` removes no file, and the command reports it: their folder may be out of reach."""
    desk.snapshot("create")
    desk.age()
    shutil.rmtree(desk.store / MANIFESTS)
    files = desk.names(FILES)
    assert "there is no manifest" in desk.snapshot("prune", "--keep", "1")["stderr"]
    assert desk.names(FILES) == files


def test_files_of_a_snapshot_made_meanwhile_stay(desk: Desk) -> None:
    """A snapshot that is made between the two lists of `prune` uses old files that no manifest named before; they stay."""
    desk.snapshot("create")
    complete = _only(desk)
    desk.signed(msgspec.structs.replace(complete, decisions=1, files=tuple([file for file in complete.files if file.name == "CURRENT"])))
    (desk.store / MANIFESTS / complete.name).unlink()
    desk.age()
    lists = iter([desk.look()])
    desk.snapshot("create")
    assert prune(Folder(desk.store), lambda: next(lists, None) or desk.look(), 9, DAY_S).files == 0
    assert not list(damaged_files(Folder(desk.store), desk.found()[0], lambda *_: None))


def test_snapshots_of_another_log_displace_none(desk: Desk) -> None:
    """`--keep` counts the snapshots of each log by itself: later ones of another, with more decisions, displace none of this one."""
    desk.snapshot("create")
    other = msgspec.structs.replace(_only(desk), log=ANOTHER_LOG)
    theirs = [desk.signed(msgspec.structs.replace(other, decisions=9_000 + more, made_at_ms=9 * 10**12 + more)) for more in range(2)]
    made = desk.snapshot("create", "--keep", "1")["snapshot"]
    assert desk.names(MANIFESTS) == {made, theirs[1]}


def test_older_decisions_displace_no_new_ones(desk: Desk) -> None:
    """A log that lost its end has fewer decisions than its old snapshots; the newest by time stays too."""
    desk.snapshot("create")
    old = msgspec.structs.replace(_only(desk), decisions=9_000, made_at_ms=1)
    (desk.store / MANIFESTS / _only(desk).name).unlink()
    names = [desk.signed(msgspec.structs.replace(old, decisions=9_000 + more, made_at_ms=1 + more)) for more in range(2)]
    made = desk.snapshot("create", "--keep", "1")["snapshot"]
    assert desk.names(MANIFESTS) == {made, names[1]}


def test_a_pipe_blocks_no_restore(desk: Desk) -> None:
    """A pipe and a folder among the manifests do not count; the sound snapshot is restored."""
    desk.snapshot("create")
    os.mkfifo(desk.store / MANIFESTS / "9.note")
    (desk.store / MANIFESTS / "lost+found").mkdir()
    shutil.rmtree(desk.index)
    desk.snapshot("restore")


def test_an_unreadable_manifest_blocks_no_restore(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that cannot be read is reported, and the next snapshot is restored."""
    made = desk.snapshot("create")["snapshot"]
    (desk.store / MANIFESTS / "9.note").write_bytes(b"closed")
    chunks = Folder.chunks

    def closed(store: Folder, folder: str, name: str) -> Iterator[bytes]:
        if name == "9.note":
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return chunks(store, folder, name)

    shutil.rmtree(desk.index)
    monkeypatch.setattr(Folder, "chunks", closed)
    restored = desk.snapshot("restore")
    assert restored["snapshot"] == made
    assert "9.note cannot be read: Permission denied" in restored["stderr"]


def test_a_reason_names_its_snapshot(desk: Desk) -> None:
    """A restore names each snapshot that it does not use, also one whose manifest does not open."""
    made = desk.snapshot("create")["snapshot"]
    (desk.store / MANIFESTS / made).write_text("hello")
    shutil.rmtree(desk.index)
    assert f"{made}: malformed-snapshot" in desk.snapshot("restore", code=1)["stderr"]


def test_a_linked_folder_is_restored(desk: Desk, tmp_path: Path) -> None:
    """If the index's folder is a link to an empty folder, the index is restored there."""
    desk.snapshot("create")
    before = desk.rows(desk.index)
    shutil.rmtree(desk.index)
    (tmp_path / "disk" / "index").mkdir(parents=True)
    desk.index.symlink_to(tmp_path / "disk" / "index")
    desk.snapshot("restore")
    assert desk.index.is_symlink()
    assert desk.rows(desk.index) == before


def test_a_failed_restore_leaves_a_linked_folder(desk: Desk, tmp_path: Path) -> None:
    """If no snapshot is sound, the link still leads to an empty folder: the worker makes its index there, and replays the log."""
    desk.snapshot("create")
    for file in (desk.store / FILES).iterdir():
        file.write_bytes(b"x")
    shutil.rmtree(desk.index)
    (tmp_path / "disk" / "index").mkdir(parents=True)
    desk.index.symlink_to(tmp_path / "disk" / "index")
    desk.snapshot("restore", code=1)
    assert list(desk.index.iterdir()) == []


def test_a_mounted_folder_is_refused_first(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be replaced, such as a mount point, is refused before anything is copied."""
    desk.snapshot("create")
    shutil.rmtree(desk.index)
    desk.index.mkdir()
    shutil.rmtree(desk.store / FILES)

    def busy(path: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    monkeypatch.setattr(Path, "rmdir", busy)
    assert "cannot be replaced by a restored index: Device or resource busy" in desk.snapshot("restore", code=2)["stderr"]
