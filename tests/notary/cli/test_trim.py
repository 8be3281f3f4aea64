"""`notary trim`: the offsets that it frees. `tests/spark/test_archive_trimmed.py` runs it on a broker."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from joiner import JoinerState, Mark
from notary.access import alone_in
from notary.archive.archived import ArchivedLog
from notary.cli.trim import INDEX, Snapshot, VerifiedRanges, VerifiedReport, _lacks, _where, to_free
from notary.snapshots.manifest import Manifest, SnapshotHistory
from notary.snapshots.take import stage_of
from ordering.errors import NotReady
from ordering.log import ORDERING, LogOffsets
from ordering.memory import MemoryLog
from spark_join.log.archive import first_ranges
from tests.notary.cli.command import Command
from tests.notary.process import NotaryDirectory


def state(offsets_next: dict[int, int], marks: dict[int, int]) -> JoinerState:
    """Returns the state of a snapshot that has read up to these offsets, and whose last content in each partition is at its mark."""
    return JoinerState(offsets_next, marks={each: Mark(offset, b"") for each, offset in marks.items()})


def test_the_smaller_offset_of_each_partition_counts() -> None:
    """Neither snapshot is behind in all partitions: each partition is freed up to the smaller of the two."""
    first = state({ORDERING: 90, 0: 50, 1: 20}, {ORDERING: 89, 0: 49, 1: 19})
    second = state({ORDERING: 80, 0: 40, 1: 30}, {ORDERING: 79, 0: 39, 1: 29})
    assert to_free([first, second], {ORDERING: 0, 0: 0, 1: 0}) == {0: 39, 1: 19}


def test_records_that_a_reader_still_needs_stay() -> None:
    """A payload that waits for its entry stays, and so does the last content, which is compared at the start (R10)."""
    waits, all_applied = state({0: 7}, {0: 20}), state({0: 30}, {0: 25})
    assert to_free([waits, all_applied], {0: 0}) == {0: 7}
    assert to_free([all_applied, all_applied], {0: 0}) == {0: 25}


def test_nothing_is_freed_twice_or_unread() -> None:
    """A partition that begins there already is left out, and so is one without a content that took effect."""
    some = state({0: 30, 1: 8}, {0: 25})
    assert to_free([some, some], {0: 25, 1: 0}) == {}
    assert to_free([some, state({0: 30}, {})], {0: 0}) == {}


async def test_a_partition_without_a_leader_has_lost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log answers without the offsets of that partition. Its records cannot be compared now."""
    log = MemoryLog(2)
    offsets = await log.offsets()

    async def led() -> Mapping[int, LogOffsets]:
        return {partition: of for partition, of in offsets.items() if partition != 1}

    monkeypatch.setattr(log, "offsets", led)
    snapshot = Snapshot("place", Manifest("n", "log", 1, "w", 0, 0, "", 0, SnapshotHistory(0, ""), {}, ()), state({1: 1}, {}))
    with pytest.raises(NotReady, match="payload partition 1 has no leader now"):
        await _lacks(log, snapshot)
    monkeypatch.undo()
    assert await _lacks(log, snapshot) == "payload partition 1 ends at offset 0, and the snapshot has read it up to 1"


def archived(folder: Path, ranges: int, payload_partitions: int = 1) -> ArchivedLog:
    """Returns an archive of that many empty ranges."""
    (folder / "ranges").mkdir(parents=True)
    content = {"archive_version": 2, "payload_partitions": payload_partitions, "files": []}
    for number in range(1, ranges + 1):
        (folder / "ranges" / f"{number:08}.json").write_text(json.dumps(content))
    return ArchivedLog(folder)


def test_a_report_is_about_its_archive(tmp_path: Path) -> None:
    """Spark's report counts for the archive whose ranges it names, also if more were added, and for no other."""
    archive = archived(tmp_path / "archive", 2)
    report = VerifiedReport("n", 0, "", {}, VerifiedRanges(1, archive.digest(1)))
    assert report.about(archive) == ""
    assert "the first 1 ranges of this one" in report.about(archived(tmp_path / "another", 2, 2))
    longer = VerifiedReport("n", 0, "", {}, VerifiedRanges(3, archived(tmp_path / "longer", 3).digest(3)))
    assert "about another archive" in longer.about(archive)
    for ranges in (0, -1):
        assert "about another archive" in VerifiedReport("n", 0, "", {}, VerifiedRanges(ranges, archive.digest(1))).about(archive)


def test_a_report_about_brokers_is_refused(tmp_path: Path) -> None:
    """A report that names no archive shows nothing about one: Spark may have read the brokers."""
    assert "names no archive" in VerifiedReport("n", 0, "", {}).about(archived(tmp_path, 1))


def test_spark_names_the_same_ranges(tmp_path: Path) -> None:
    """The independent verifier computes the same hash."""
    archive = archived(tmp_path, 2)
    assert (first_ranges(tmp_path).sha256, first_ranges(tmp_path, 1).sha256) == (archive.digest(2), archive.digest(1))


@pytest.fixture
def trim(own_directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `notary trim`."""
    return Command(capsys, "trim", "--archive", "a", "--verified", "v", config=own_directory.config)


@pytest.mark.seconds
def test_an_embedded_log_is_refused(own_directory: NotaryDirectory, trim: Command) -> None:
    """An embedded log keeps its payloads. The folder that the command made is removed."""
    assert "only a log on Kafka can be trimmed" in trim.refuses()
    assert not (own_directory.path / "trim").exists()


@pytest.mark.seconds
def test_a_folder_with_other_files_stays(own_directory: NotaryDirectory, trim: Command) -> None:
    """`--work` may name any folder, here the notary's own: only the command's own files are removed from it."""
    (own_directory.path / "index" / "worker-1").mkdir(parents=True)
    before = sorted(own_directory.path.iterdir())
    for left in (own_directory.path / INDEX, stage_of(own_directory.path / INDEX)):
        left.mkdir()
        (left / "CURRENT").write_text("left by a run that was killed")
    trim.refuses("--plan", "--work", own_directory.path)
    assert sorted(own_directory.path.iterdir()) == before
    assert (own_directory.path / "index" / "worker-1").exists()


@pytest.mark.seconds
def test_the_folder_of_another_trim_stays(own_directory: NotaryDirectory, trim: Command) -> None:
    """A command that another one keeps out removes nothing of it."""
    work = own_directory.path / "trim"
    (work / INDEX).mkdir(parents=True)
    (work / INDEX / "CURRENT").write_text("the index of the first")
    with alone_in(work, "busy"):
        assert "another process trims" in trim.refuses()
        assert (work / INDEX / "CURRENT").exists()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/x/y", "file:///x/y"),
        ("/x/y/", "local:///x//y"),
        ("s3://bucket/of", "s3a://bucket//of/"),
        ("gs://bucket", "gcs://bucket/"),
        ("abfs://container/of", "az://container/of"),
        ("sftp://host/of", "ssh://host/of/"),
    ],
)
def test_a_store_has_one_name(tmp_path: Path, one: str, other: str) -> None:
    """Two names of one store do not count as two stores."""
    assert _where(one, tmp_path) == _where(other, tmp_path)
