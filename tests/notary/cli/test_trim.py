"""`notary trim`: the offsets that it frees. `tests/spark/test_archive_trimmed.py` runs it on a broker."""

import pytest

from joiner import JoinerState, Mark
from notary import cli
from notary.cli.trim import Snapshot, to_free
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


@pytest.mark.seconds
def test_an_embedded_log_is_refused(own_directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """An embedded log keeps its payloads."""
    path = str(own_directory.path)
    assert cli.main(["trim", "--config", str(own_directory.config), "--archive", path, "--verified", path]) == 2
    assert "only a log on Kafka can be trimmed" in capsys.readouterr().err
