"""Snapshots are listed, restored and pruned, whatever else is in their store."""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from notary.snapshots.manifest import Manifest, SnapshotFile
from notary.snapshots.store import FILES, MANIFESTS, Folder, Remote
from notary.snapshots.take import FoundSnapshot, damaged_files, find, prune, restore_newest, stage_of
from ordering.errors import ConfigurationError, Fatal
from tests.notary.snapshots.fixture import SnapshotFixture
from tests.open_files import errors_with_few_open_files

pytestmark = pytest.mark.seconds

ANOTHER_LOG = "another " + "00" * 32
DAY_S = 86_400


def _only(fixture: SnapshotFixture) -> Manifest:
    (manifest,) = fixture.found()
    return manifest


def unreadable(monkeypatch: pytest.MonkeyPatch, unread: str, problem: OSError) -> None:
    """Make the read of one file of a folder fail."""
    chunks = Folder.chunks

    def read(store: Folder, folder: str, name: str) -> Iterator[bytes]:
        if name == unread:
            raise problem
        return chunks(store, folder, name)

    monkeypatch.setattr(Folder, "chunks", read)


def test_a_dangling_link_costs_no_snapshot(fixture: SnapshotFixture) -> None:
    """A dangling link among the manifests hides none of them, so `prune` removes no file that a manifest names."""
    fixture.snapshot("create")
    fixture.age()
    (fixture.store / MANIFESTS / "x").symlink_to("nowhere")
    files = fixture.names(FILES)
    assert fixture.snapshot("prune", "--keep", "1")["files"] == 0
    assert fixture.names(FILES) == files


def test_no_file_goes_without_a_manifest(fixture: SnapshotFixture) -> None:
    """Without any manifest `prune` removes no file, and the command reports it: their folder may be out of reach."""
    fixture.snapshot("create")
    fixture.age()
    shutil.rmtree(fixture.store / MANIFESTS)
    files = fixture.names(FILES)
    assert "there is no manifest" in fixture.snapshot("prune", "--keep", "1")["stderr"]
    assert fixture.names(FILES) == files


def test_files_of_a_snapshot_made_meanwhile_stay(fixture: SnapshotFixture) -> None:
    """A snapshot that is made between the two lists of `prune` uses old files that no manifest named before; they stay."""
    fixture.snapshot("create")
    complete = _only(fixture)
    fixture.signed(msgspec.structs.replace(complete, decisions=1, files=tuple([file for file in complete.files if file.name == "CURRENT"])))
    (fixture.store / MANIFESTS / complete.name).unlink()
    fixture.age()
    lists = iter([fixture.look()])
    fixture.snapshot("create")
    assert prune(Folder(fixture.store), lambda: next(lists, None) or fixture.look(), 9, DAY_S).files == 0
    assert not list(damaged_files(Folder(fixture.store), fixture.found()[0], lambda *_: None))


def test_snapshots_of_another_log_displace_none(fixture: SnapshotFixture) -> None:
    """`--keep` counts the snapshots of each log by itself: later ones of another, with more decisions, displace none of this one."""
    fixture.snapshot("create")
    other = msgspec.structs.replace(_only(fixture), log=ANOTHER_LOG)
    theirs = [fixture.signed(msgspec.structs.replace(other, decisions=9_000 + more, made_at_ms=9 * 10**12 + more)) for more in range(2)]
    made = fixture.snapshot("create", "--keep", "1")["snapshot"]
    assert fixture.names(MANIFESTS) == {made, theirs[1]}


def test_older_decisions_displace_no_new_ones(fixture: SnapshotFixture) -> None:
    """A log that lost its end has fewer decisions than its old snapshots; the newest by time stays too."""
    fixture.snapshot("create")
    old = msgspec.structs.replace(_only(fixture), decisions=9_000, made_at_ms=1)
    (fixture.store / MANIFESTS / _only(fixture).name).unlink()
    names = [fixture.signed(msgspec.structs.replace(old, decisions=9_000 + more, made_at_ms=1 + more)) for more in range(2)]
    made = fixture.snapshot("create", "--keep", "1")["snapshot"]
    assert fixture.names(MANIFESTS) == {made, names[1]}


@pytest.mark.parametrize("is_remote", [False, True], ids=["a folder", "a remote store"])
def test_an_unreadable_manifest_blocks_no_restore(fixture: SnapshotFixture, is_remote: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that cannot be read is reported, and the next snapshot is restored. Nor does it block `create`.

    s3fs raises `PermissionError` for an object that its own rights or its storage class close (AccessDenied, InvalidObjectState).
    """
    made = fixture.snapshot("create")["snapshot"]
    (fixture.store / MANIFESTS / "9.note").write_bytes(b"closed")
    problem = PermissionError(errno.EACCES, "The operation is not valid for the object's storage class")
    opened = LocalFileSystem._open

    def closed(self: LocalFileSystem, path: str, *args: Any, **flags: Any) -> Any:
        if path.endswith("9.note"):
            raise problem
        return opened(self, path, *args, **flags)

    shutil.rmtree(fixture.index)
    if is_remote:
        monkeypatch.setattr(LocalFileSystem, "_open", closed)
        monkeypatch.setattr("notary.cli.snapshot.store_of", lambda url, _: Remote(url, LocalFileSystem(), str(fixture.store)))
    else:
        unreadable(monkeypatch, "9.note", problem)
    restored = fixture.snapshot("restore")
    assert restored["snapshot"] == made
    assert "9.note cannot be read: The operation is not valid" in restored["stderr"]
    assert not fixture.snapshot("create", "--if-older-s", "600")["made"]


def test_a_reason_names_its_snapshot(fixture: SnapshotFixture) -> None:
    """A restore names each snapshot that it does not use, also one whose manifest does not open."""
    made = fixture.snapshot("create")["snapshot"]
    (fixture.store / MANIFESTS / made).write_text("hello")
    shutil.rmtree(fixture.index)
    assert f"{made}: malformed-snapshot" in fixture.snapshot("restore", code=1)["stderr"]


@pytest.fixture
def linked(fixture: SnapshotFixture, tmp_path: Path) -> SnapshotFixture:
    """A notary with a snapshot; its index was moved to `before`, and a link to an empty folder is there."""
    fixture.snapshot("create")
    fixture.index.rename(tmp_path / "before")
    (tmp_path / "disk" / "index").mkdir(parents=True)
    (tmp_path / "disk" / "index").chmod(0o750)
    fixture.index.symlink_to(tmp_path / "disk" / "index")
    return fixture


def test_a_linked_folder_is_restored(linked: SnapshotFixture, tmp_path: Path) -> None:
    """If the index's folder is a link to an empty folder, the index is restored there, with the mode of that folder."""
    linked.snapshot("restore")
    assert linked.index.is_symlink()
    assert linked.index.stat().st_mode & 0o777 == 0o750
    assert linked.rows(linked.index) == linked.rows(tmp_path / "before")


def test_a_linked_folder_is_always_there(linked: SnapshotFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore may be killed at any step. Behind a link to nothing a worker could not make its index."""
    mkdir = Path.mkdir

    def watched(path: Path, *given: Any, **named: Any) -> None:
        assert linked.index.is_dir()
        mkdir(path, *given, **named)

    monkeypatch.setattr(Path, "mkdir", watched)
    linked.snapshot("restore")


def test_a_failed_restore_leaves_a_linked_folder(linked: SnapshotFixture, tmp_path: Path) -> None:
    """If no snapshot is sound, the link still leads to an empty folder: the worker makes its index there, and replays the log."""
    for file in (linked.store / FILES).iterdir():
        file.write_bytes(b"x")
    linked.snapshot("restore", code=1)
    assert list(linked.index.iterdir()) == []
    assert linked.index.stat().st_mode & 0o777 == 0o750
    assert [left.name for left in (tmp_path / "disk").iterdir()] == ["index"]


def test_a_mounted_folder_is_refused_first(fixture: SnapshotFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be replaced, such as a mount point, is refused before anything is copied."""
    fixture.snapshot("create")
    shutil.rmtree(fixture.index)
    fixture.index.mkdir()
    shutil.rmtree(fixture.store / FILES)

    def busy(path: Path, target: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    monkeypatch.setattr(Path, "replace", busy)
    assert "cannot be replaced by a restored index: Device or resource busy" in fixture.snapshot("restore", code=2)["stderr"]


def test_an_unreadable_file_costs_one_snapshot(fixture: SnapshotFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the newest snapshot cannot be read, a bad sector or a closed object: an older snapshot is restored.

    `verify` names the file in its result, like a missing one, and verifies the others too.
    """
    made = fixture.snapshot("create")["snapshot"]
    bad = SnapshotFile("999999.sst", 3, "ba" * 32)
    newest = fixture.signed(msgspec.structs.replace(_only(fixture), decisions=9_000, files=(*_only(fixture).files, bad)))
    shutil.rmtree(fixture.index)
    unreadable(monkeypatch, bad.sha256, OSError(errno.EIO, "Input/output error"))
    problem = fixture.snapshot("verify", code=1)["problem"]
    assert "its file 999999.sst, files/bababa" in problem
    assert problem.endswith(", cannot be read: Input/output error")
    last = fixture.snapshot("verify", "--all", code=1)
    assert (last["snapshot"], last["problem"]) == (made, None)
    restored = fixture.snapshot("restore")
    assert restored["snapshot"] == made
    assert newest in restored["stderr"]
    assert "Input/output error" in restored["stderr"]


def test_a_full_disk_is_no_fault_of_the_snapshot(fixture: SnapshotFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of this machine's own disk ends a restore: no other snapshot helps, and no snapshot is called unsound."""
    fixture.snapshot("create")

    def full(opened: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    shutil.rmtree(fixture.index)
    monkeypatch.setattr("notary.snapshots.take.sync", full)
    assert f"No space left on device: '{stage_of(fixture.index)}'" in fixture.snapshot("restore", code=2)["stderr"]


def test_too_few_open_files_are_no_fault_of_the_snapshot(fixture: SnapshotFixture) -> None:
    """Without open files a restore ends: no other snapshot helps, and none is called unsound. Later it succeeds."""
    fixture.snapshot("create")
    shutil.rmtree(fixture.index)
    manifest, reported = _only(fixture), list[str]()

    def restored() -> None:
        found = iter([FoundSnapshot(manifest.name, manifest)])
        assert restore_newest(Folder(fixture.store), found, fixture.index, "", lambda *_: None, reported.append), reported

    problems = errors_with_few_open_files(restored, OSError, Fatal, ConfigurationError)
    assert problems
    assert reported == []
    assert [problem for problem in problems if "open files" not in str(problem)] == []


def test_too_few_open_files_are_no_damage(fixture: SnapshotFixture) -> None:
    """Without open files neither the manifests nor the files of a snapshot are called unreadable: the command fails."""
    fixture.snapshot("create")
    trusted, notary = fixture.trusted, _only(fixture).notary

    def verified() -> None:
        (found,) = find(Folder(fixture.store), trusted, notary)
        assert found.manifest is not None
        assert list(damaged_files(Folder(fixture.store), found.manifest, lambda *_: None)) == []

    assert errors_with_few_open_files(verified, OSError)


def test_an_index_of_a_terabyte_has_a_manifest_that_opens(fixture: SnapshotFixture) -> None:
    """RocksDB's files have at most 64 MiB, so a large index has many. Its manifest is longer than a receipt may be, and opens."""
    fixture.snapshot("create")
    small = _only(fixture)
    files = tuple([SnapshotFile(f"{number:06d}.sst", 64 << 20, f"{number:064x}") for number in range(500_000, 500_000 + (1 << 14))])
    large = fixture.signed(msgspec.structs.replace(small, decisions=2 * 10**9, files=(*small.files, *files)))
    assert [each.name for each in fixture.found()] == [large, small.name]
