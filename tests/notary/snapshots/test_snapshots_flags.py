"""`notary snapshot`: its flags, names from a store that is not trusted, and files with other bytes."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from notary.snapshots.make import STAGE, remove_links
from notary.snapshots.store import MANIFESTS, Folder
from notary.snapshots.take import stage_of
from ordering.durable import locked_directory
from tests.notary.process import ROOT
from tests.notary.snapshots.fixture import SnapshotFixture

pytestmark = pytest.mark.seconds


@pytest.mark.parametrize(
    ("action", "flag"),
    [("create", "--keep=-1"), ("create", "--if-older-s=-1"), ("create", "--if-older-s=nan"), ("prune", "--margin-s=-1")],
)
def test_a_negative_number_is_refused(fixture: SnapshotFixture, action: str, flag: str) -> None:
    """A negative number, or none, is a wrong argument, and nothing is made or removed."""
    name, _, value = flag.partition("=")
    assert f"{name} is {value}" in fixture.snapshot(action, flag, code=2)["stderr"]
    assert not fixture.store.exists()


@pytest.mark.parametrize("url", ["github://x", "reference://x", "dir://x"])
def test_a_url_that_lacks_its_settings_is_refused(fixture: SnapshotFixture, url: str) -> None:
    """A URL whose file system cannot be made from it alone is a wrong argument, not a bug."""
    decided = fixture.snapshot("list", "--url", url, code=2)["stderr"]
    assert f"{url} cannot be used for snapshots" in decided
    assert "Traceback" not in decided


@pytest.mark.parametrize("url", ["s3:/bucket/notary", "s3:bucket"])
def test_a_mistyped_url_is_no_folder(fixture: SnapshotFixture, url: str) -> None:
    """With one slash too few the snapshot would be on this machine's own disk, and the command would report success."""
    assert f"{url} is neither a URL nor a folder" in fixture.snapshot("create", "--url", url, code=2)["stderr"]
    assert not (fixture.directory.path / "s3:").exists()


def test_prune_keeps_at_least_one(fixture: SnapshotFixture) -> None:
    """`--keep 0` is not replaced by the configuration's number."""
    assert "set --keep" in fixture.snapshot("prune", "--keep", "0", code=2)["stderr"]


def test_a_fresh_snapshot_of_another_log_does_not_count(fixture: SnapshotFixture) -> None:
    """With `--log` only snapshots of that log prevent a new one; without it those of any log do."""
    made = fixture.snapshot("create")["snapshot"]
    (manifest,) = fixture.found()
    (fixture.store / MANIFESTS / made).unlink()
    fixture.signed(msgspec.structs.replace(manifest, log="another " + "00" * 32))
    assert not fixture.snapshot("create", "--if-older-s", "86400")["made"]
    assert fixture.snapshot("create", "--if-older-s", "86400", "--log", manifest.log)["made"]


def test_links_of_a_killed_run_go_beside_a_fresh_snapshot(fixture: SnapshotFixture) -> None:
    """A killed run left links, and then another worker makes the snapshots. A run that is still making one keeps its links."""
    fixture.snapshot("create")
    left = fixture.index / STAGE / "000001.sst"
    left.write_bytes(b"a link")
    with locked_directory(left.parent):
        assert not fixture.snapshot("create", "--if-older-s", "86400")["made"]
        assert left.exists()
    assert not fixture.snapshot("create", "--if-older-s", "86400")["made"]
    assert not left.exists()


def test_a_snapshot_counts_if_old_ones_cannot_be_removed(fixture: SnapshotFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without the right to delete makes snapshots all the same, and the command warns."""
    fixture.snapshot("create")

    def refuse(*given: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Folder, "remove", refuse)
    made = fixture.snapshot("create", "--keep", "1")
    assert made["made"]
    assert "old ones could not be removed: [Errno 13] Permission denied" in made["stderr"]
    assert len(fixture.names("manifests")) == 2


def test_a_fresh_snapshot_needs_no_index(fixture: SnapshotFixture, tmp_path: Path) -> None:
    """The check of the age reads the store alone: it opens no index, so a kill leaves nothing there."""
    fixture.snapshot("create")
    fixture.index.rename(tmp_path / "away")
    assert not fixture.snapshot("create", "--if-older-s", "600")["made"]


def test_a_damaged_file_is_copied_again(fixture: SnapshotFixture) -> None:
    """`verify` only reports a file with other bytes, and names the flag that removes it; the next snapshot copies it again.

    So older snapshots are sound too.
    """
    fixture.snapshot("create")
    file = fixture.largest
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    found = fixture.snapshot("verify", code=1)
    assert (found["removed"], file.exists(), "--remove-damaged" in found["stderr"]) == ([], True, True)
    found = fixture.snapshot("verify", "--remove-damaged", code=1)
    assert (found["removed"], "with the hash" in found["problem"]) == ([f"files/{file.name}"], True)
    assert not file.exists()
    fixture.snapshot("create")
    assert fixture.snapshot("verify", "--all")["problem"] is None


def test_a_file_that_was_cut_off_is_copied_again(fixture: SnapshotFixture) -> None:
    """A process that was killed may leave the beginning of a file in some stores."""
    fixture.snapshot("create")
    for file in (fixture.store / "files").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    fixture.snapshot("create")
    assert fixture.snapshot("verify", "--all")["problem"] is None


def test_a_file_that_is_pruned_meanwhile_is_copied_again(fixture: SnapshotFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `prune` that listed the manifests just before the new one removes files that only the new one names."""
    put = Folder.put

    def put_beside_a_prune(store: Folder, source: Path, folder: str, name: str) -> None:
        for file in (fixture.store / "files").iterdir() if folder == "manifests" else ():
            file.unlink()
        put(store, source, folder, name)

    monkeypatch.setattr(Folder, "put", put_beside_a_prune)
    fixture.snapshot("create")
    assert fixture.snapshot("verify", "--all")["problem"] is None


@pytest.mark.parametrize("name", [b"\xff.note", b"\x1b[2J\x1b]0;owned\x07.note"], ids=["not UTF-8", "escapes"])
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("action", ["list", "prune", "verify"])
def test_names_command_no_terminal(fixture: SnapshotFixture, name: bytes, flags: list[str], action: str) -> None:
    """A manifest's name that is not UTF-8, or has escape sequences, is printed escaped."""
    (fixture.store / MANIFESTS).mkdir(parents=True)
    (fixture.store / MANIFESTS / os.fsdecode(name)).write_text("x")
    keep = ["--keep", "1"] if action == "prune" else []
    command = [sys.executable, "-P", "-m", "notary", "snapshot", action, "--config", str(fixture.config), "--url", str(fixture.store)]
    found = subprocess.run([*command, *keep, *flags], check=False, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert found.returncode == (1 if action == "verify" else 0), found.stderr
    assert b"\x1b" not in found.stdout + found.stderr
    assert b".note" in found.stdout + found.stderr


def test_a_table_in_the_making_is_left_out(fixture: SnapshotFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction writes its tables under their final names: such a file grows while the snapshot is made."""
    growing = fixture.index / "999999.sst"
    growing.write_bytes(b"its beginning")
    put = Folder.put

    def beside_a_compaction(store: Folder, source: Path, folder: str, name: str) -> None:
        with growing.open("ab") as out:
            out.write(b", and more")
        put(store, source, folder, name)

    monkeypatch.setattr(Folder, "put", beside_a_compaction)
    fixture.snapshot("create")
    assert fixture.snapshot("verify")["problem"] is None


def test_files_behind_a_link_are_left_alone(fixture: SnapshotFixture, tmp_path: Path) -> None:
    """Where a link has the name of a stage, its files are not this software's: no start, snapshot or restore removes them."""
    fixture.snapshot("create")
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_bytes(b"x")
    (fixture.index / STAGE).rmdir()
    links = fixture.index / STAGE, stage_of(fixture.index.with_name("worker-2"))
    for link in links:
        link.symlink_to(other)
    remove_links(fixture.index)
    for link, action in zip(links, ("create", "restore"), strict=True):
        name = "worker-1" if action == "create" else "worker-2"
        assert f"{link} is a link" in fixture.snapshot(action, "--name", name, code=2)["stderr"]
    assert (other / "file").read_bytes() == b"x"


def test_links_in_a_stage_are_removed(fixture: SnapshotFixture, tmp_path: Path) -> None:
    """A link to a folder is removed like a file, and what it leads to stays. It would prevent all later snapshots."""
    (fixture.index / STAGE).mkdir()
    (fixture.index / STAGE / "link").symlink_to(tmp_path)
    fixture.snapshot("create")
    assert not any((fixture.index / STAGE).iterdir())
    assert fixture.index.exists()


def test_an_empty_folder_of_an_index_stays_empty(fixture: SnapshotFixture) -> None:
    """A worker restores only into an empty folder, also after a snapshot was wanted of the index that is not there."""
    fixture.snapshot("create")
    empty = fixture.index.with_name("worker-2")
    empty.mkdir()
    assert "there is no index in" in fixture.snapshot("create", "--name", "worker-2", code=2)["stderr"]
    fixture.snapshot("restore", "--name", "worker-2")
