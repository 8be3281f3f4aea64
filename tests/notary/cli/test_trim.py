"""`notary trim`: the offsets that it frees. `tests/spark/test_archive_trimmed.py` runs it on a broker."""

from pathlib import Path

import pytest

from joiner import JoinerState, Mark
from notary import cli
from notary.access import alone_in
from notary.cli.trim import INDEX, Snapshot, _where, to_free
from notary.snapshots.manifest import Manifest, SnapshotHistory
from ordering.log import ORDERING
from tests.notary.process import NotaryDirectory


def snapshot(offsets_next: dict[int, int], marks: dict[int, int]) -> Snapshot:
    """Returns a snapshot that has read up to these offsets, and whose last content in each partition is at its mark."""
    manifest = Manifest("n", "log", 1, "w", 0, 0, "", 0, SnapshotHistory(0, ""), {}, ())
    return Snapshot("place", manifest, JoinerState(offsets_next, marks={each: Mark(offset, b"") for each, offset in marks.items()}))


def test_the_smaller_offset_of_each_partition_counts() -> None:
    """Neither snapshot is behind in all partitions: each partition is freed up to the smaller of the two."""
    first = snapshot({ORDERING: 90, 0: 50, 1: 20}, {ORDERING: 89, 0: 49, 1: 19})
    second = snapshot({ORDERING: 80, 0: 40, 1: 30}, {ORDERING: 79, 0: 39, 1: 29})
    assert to_free([first, second], {ORDERING: 0, 0: 0, 1: 0}) == {0: 39, 1: 19}


def test_records_that_a_reader_still_needs_stay() -> None:
    """A payload that waits for its entry stays, and so does the last content, which is compared at the start (R10)."""
    waits, all_applied = snapshot({0: 7}, {0: 20}), snapshot({0: 30}, {0: 25})
    assert to_free([waits, all_applied], {0: 0}) == {0: 7}
    assert to_free([all_applied, all_applied], {0: 0}) == {0: 25}


def test_nothing_is_freed_twice_or_unread() -> None:
    """A partition that begins there already is left out, and so is one without a content that took effect."""
    some = snapshot({0: 30, 1: 8}, {0: 25})
    assert to_free([some, some], {0: 25, 1: 0}) == {}
    assert to_free([some, snapshot({0: 30}, {})], {0: 0}) == {}


def trim(directory: NotaryDirectory, *flags: object) -> int:
    return cli.main(["trim", "--config", str(directory.config), "--archive", "a", "--verified", "v", *map(str, flags)])


@pytest.mark.seconds
def test_an_embedded_log_is_refused(own_directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """An embedded log keeps its payloads. The folder that the command made is removed."""
    assert trim(own_directory) == 2
    assert "only a log on Kafka can be trimmed" in capsys.readouterr().err
    assert not (own_directory.path / "trim").exists()


@pytest.mark.seconds
def test_a_folder_with_other_files_stays(own_directory: NotaryDirectory) -> None:
    """`--work` may name any folder, here the notary's own: only the command's own files are removed from it."""
    (own_directory.path / "index" / "worker-1").mkdir(parents=True)
    before = sorted(own_directory.path.iterdir())
    (own_directory.path / INDEX).mkdir()
    (own_directory.path / INDEX / "CURRENT").write_text("left by a run that was killed")
    assert trim(own_directory, "--plan", "--work", own_directory.path) == 2
    assert sorted(own_directory.path.iterdir()) == before
    assert (own_directory.path / "index" / "worker-1").exists()


@pytest.mark.seconds
def test_the_folder_of_another_trim_stays(own_directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that another one keeps out removes nothing of it."""
    work = own_directory.path / "trim"
    (work / INDEX).mkdir(parents=True)
    (work / INDEX / "CURRENT").write_text("the index of the first")
    with alone_in(work, "busy"):
        assert trim(own_directory) == 2
        assert "another process trims" in capsys.readouterr().err
        assert (work / INDEX / "CURRENT").exists()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/x/y", "file:///x/y"),
        ("/x/y/", "local:///x//y"),
        ("s3://bucket/of", "s3a://bucket//of/"),
        ("gs://bucket", "gcs://bucket/"),
    ],
)
def test_a_store_has_one_name(tmp_path: Path, one: str, other: str) -> None:
    """Two names of one store do not count as two stores."""
    assert _where(one, tmp_path) == _where(other, tmp_path)
