"""Tests of the durable files and the locks, on a disk that loses power or fails at every step."""

import contextlib
import errno
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import ordering
from ordering.durable import create_file, locked_directory, locked_file, make_directory, replace_file, temporary_folder
from tests.notary.disk import Disk, Killed

ROOT = Path(ordering.__file__).parents[1]
"""The folder of the packages under test: the checkout, or an environment in which they are installed."""
PRODUCT = ("ordering", "payload", "joiner", "notary", "deploy", "loadtest", "spark_join")


def test_replaced_file_is_old_or_new_after_any_power_loss(tmp_path: Path) -> None:
    """A power loss at any step leaves the old content or the new one; after the call only the new one."""
    file = tmp_path / "file"
    file.write_bytes(b"old")
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, file)
        replace_file(file, b"new")
    left = [content[str(file)] for content in disk.after_power_losses()]
    assert set(left) == {b"old", b"new"}
    assert left[-1] == b"new"
    assert disk.is_settled()


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("problem", [Killed, OSError])
def test_replacing_can_be_repeated_after_any_failure(tmp_path: Path, steps: int, problem: type[BaseException]) -> None:
    """A kill or an error at any step leaves the old content or the new one, and the same call again succeeds."""
    file = tmp_path / "file"
    file.write_bytes(b"old")
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, file)
        disk.fail_after(steps, problem)
        with pytest.raises(problem):
            replace_file(file, b"new")
        assert file.read_bytes() in (b"old", b"new")
        replace_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert disk.is_settled()
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_replaced_file_has_its_mode_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    """The mode is the given one under a strict umask and under none, and that of the old file does not count."""
    file = tmp_path / "file"
    file.touch(0o666)
    for umask in (0o077, 0o000):
        before = os.umask(umask)
        try:
            replace_file(file, b"new", mode)
        finally:
            os.umask(before)
        assert stat.S_IMODE(file.stat().st_mode) == mode


def test_created_file_is_never_an_overwritten_one(tmp_path: Path) -> None:
    """A file that exists stays as it is."""
    file = tmp_path / "file"
    create_file(file, b"first", 0o600)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        create_file(file, b"second")
    assert file.read_bytes() == b"first"


def test_file_whose_content_cannot_be_synced_is_not_left(tmp_path: Path) -> None:
    """A file without its content would make the next attempt fail, so an error removes it. The error names it."""
    file = tmp_path / "file"
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch).fail_after(0, OSError)
        with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path}/\.file\."):
            create_file(file, b"content")
    assert not file.exists()


@pytest.mark.parametrize("problem", [Killed, OSError])
def test_created_file_is_complete_or_missing_after_any_failure(tmp_path: Path, problem: type[BaseException]) -> None:
    """A kill or an error at any step leaves no file or the complete one, and the next creation leaves nothing else."""
    for steps in range(4):
        file = tmp_path / f"{steps}" / "file"
        file.parent.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch).fail_after(steps, problem)
            with pytest.raises(problem):
                create_file(file, b"content")
        assert not file.exists() or file.read_bytes() == b"content"
        file.unlink(missing_ok=True)
        create_file(file, b"again", 0o600)
        assert (os.listdir(file.parent), file.read_bytes()) == (["file"], b"again")


def test_created_file_is_complete_or_missing_after_any_power_loss(tmp_path: Path) -> None:
    """A power loss at any step leaves no file or the complete one; after the call the file stays."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        create_file(tmp_path / "file", b"content")
    left = [content.get(str(tmp_path / "file")) for content in disk.after_power_losses()]
    assert set(left) == {None, b"content"}
    assert left[-1] == b"content"
    assert disk.is_settled()


def test_every_new_directory_has_its_name_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent of each directory that was missing is synced; for a directory that exists nothing is."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    make_directory(tmp_path / "a" / "b", 0o700)
    assert sorted(synced) == sorted([str(tmp_path), str(tmp_path / "a")])
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    make_directory(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_directory_whose_name_cannot_be_synced_is_not_left(tmp_path: Path) -> None:
    """After an error no new directory is left, so that the next attempt syncs all names."""
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch).fail_after(1, OSError)
        with pytest.raises(OSError, match="No space left"):
            make_directory(tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == []
    assert make_directory(tmp_path / "a" / "b") == [tmp_path / "a" / "b", tmp_path / "a"]


@pytest.mark.seconds
def test_locked_directory_admits_one_process(tmp_path: Path) -> None:
    """Another process is turned away while the lock is held, and gets it afterwards."""
    code = (
        "import sys; from pathlib import Path; from ordering.durable import locked_directory\n"
        "with locked_directory(Path(sys.argv[1])): pass"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    with locked_directory(tmp_path):
        assert "BlockingIOError" in subprocess.run(command, capture_output=True, text=True, check=False).stderr
    subprocess.run(command, check=True)


def test_a_link_of_a_stranger_is_not_followed(tmp_path: Path) -> None:
    """Anybody may put a link into a shared temporary folder, under a name that looks like a leftover. Its target keeps all files."""
    target, shared = tmp_path / "index", tmp_path / "shared"
    for folder in (target, shared):
        folder.mkdir()
    (target / "CURRENT").write_bytes(b"x")
    os.utime(target, (0, 0))
    (shared / "a-link").symlink_to(target)
    with temporary_folder(shared, "a-"):
        assert (target / "CURRENT").read_bytes() == b"x"
    assert (shared / "a-link").is_symlink()


def test_temporary_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """An old one that no process has locked goes. One of another prefix, a young one and one in use stay."""
    left, young, other = [tmp_path / name for name in ("a-[1]left", "a-[1]young", "b-left")]
    for folder in (left, young, other):
        folder.mkdir()
        (folder / "x").write_bytes(b"x")
    with temporary_folder(tmp_path, "a-[1]") as used:
        (used / "x").write_bytes(b"x")
        for folder in (left, other, used):
            os.utime(folder, (0, 0))
        with temporary_folder(tmp_path, "a-[1]") as second:
            assert second != used
            assert {*tmp_path.iterdir()} == {young, other, used, second}
    assert {*tmp_path.iterdir()} == {young, other}


def test_lock_of_a_removed_file_is_taken_again(tmp_path: Path) -> None:
    """A thread that waited for the lock of a file which its holder removed gets the lock of the file that is there now."""
    file = tmp_path / "lock"
    got = []

    def wait() -> None:
        with locked_file(file) as descriptor:
            got.append(os.fstat(descriptor).st_ino)

    waiting = threading.Thread(target=wait)
    with locked_file(file):
        waiting.start()
        while _descriptors(file) < 2:
            assert waiting.is_alive()
        file.rename(tmp_path / "removed")
        file.touch()
    waiting.join()
    assert got == [file.stat().st_ino]


def _descriptors(file: Path) -> int:
    """Returns how many descriptors of this process are of that file."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += each.readlink() == file
    return found


def test_nothing_else_syncs_or_locks() -> None:
    """No other module calls `fsync` or `flock`, except for one of the verifier, which imports nothing of the product."""
    found = [
        str(file.relative_to(ROOT))
        for package in PRODUCT
        for file in (ROOT / package).rglob("*.py")
        if re.search(r"\bos\.f(data)?sync\b|\bfcntl\.(flock|lockf)\b|\bos\.(replace|rename)\b", file.read_text())
    ]
    assert found == ["ordering/durable.py", "spark_join/engine/files.py"]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_is_created_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A share without hard links gets the file in place; a file that is there stays."""

    def link(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    create_file(tmp_path / "key.pem", b"x", 0o600)
    assert (tmp_path / "key.pem").read_bytes() == b"x"
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "key.pem", b"y", 0o600)
    assert [file.name for file in tmp_path.iterdir()] == ["key.pem"]


def test_a_full_disk_without_hard_links_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the middle of a file that is written in place leaves no file, so that the same call can succeed later."""

    def link(source: Path, target: Path) -> None:
        Disk(monkeypatch).fail_after(1, OSError)  # after the temporary file is gone, the disk is full
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="No space left"):
        create_file(tmp_path / "file", b"content")
    assert list(tmp_path.iterdir()) == []


def test_the_loser_of_a_creation_learns_that_the_file_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process creates the file first, and removes the temporary file of this one."""
    link = os.link

    def race(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        create_file(tmp_path / "file", b"winner")
        link(source, target)

    monkeypatch.setattr(os, "link", race)
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "file", b"loser")
    assert (tmp_path / "file").read_bytes() == b"winner"
