"""Tests the distinction between a torn last write and damage, on a real write-ahead log in which every byte is damaged in turn."""

from pathlib import Path

import pytest

from ordering.embedded import EmbeddedLog
from ordering.torn import only_last_write_torn


async def write_ahead_log(directory: Path, lengths: list[int]) -> tuple[bytes, int]:
    """Returns RocksDB's bytes for records of these lengths, and the offset of the last write."""
    EmbeddedLog.create(directory, 1)
    log = EmbeddedLog.open(directory)
    writer = await log.open_writer()
    file = max(directory.glob("*.log"))
    begins = 0
    for number, length in enumerate(lengths):
        begins = file.stat().st_size
        await writer.append(0, b"%d" % number, b"v" * length)
    data = file.read_bytes()
    await log.close()
    return data, begins


@pytest.mark.parametrize(
    ("lengths", "step"), [([10, 10, 10], 1), ([100], 1), ([40_000, 10, 70_000], 977), ([10, 40_000, 10], 977)], ids=lambda each: str(each)
)
async def test_a_changed_byte_is_torn_or_damaged(tmp_path: Path, lengths: list[int], step: int) -> None:
    """A changed byte in the last write is a torn write, one in any earlier write is damage; an unchanged file is neither."""
    data, begins = await write_ahead_log(tmp_path / "log", lengths)
    (tmp_path / "copy").mkdir()
    file = tmp_path / "copy" / "000001.log"
    file.write_bytes(data)
    assert not only_last_write_torn(tmp_path / "copy")
    unused = 0  # the unused end of a block, too short for a fragment, is not checked
    for at in [*range(0, len(data), step), *range(max(begins - 3, 0), min(begins + 40, len(data)))]:
        damaged = bytearray(data)
        damaged[at] ^= 0x5A
        file.write_bytes(damaged)
        torn = only_last_write_torn(tmp_path / "copy")
        if torn != (at >= begins):
            assert not torn
            assert at % (32 * 1024) > 32 * 1024 - 7
            unused += 1
    assert unused < 7


@pytest.mark.parametrize(("lengths", "step"), [([10, 10, 10], 1), ([40_000, 10, 70_000], 977)], ids=str)
async def test_a_file_of_any_length_is_torn_there(tmp_path: Path, lengths: list[int], step: int) -> None:
    """A file that ends within a write, with or without zeros up to its old length, is torn there, for any length."""
    data, begins = await write_ahead_log(tmp_path / "log", lengths)
    (tmp_path / "copy").mkdir()
    file = tmp_path / "copy" / "000001.log"
    for end in [*range(begins + 1, len(data), step)]:
        for rest in (b"", bytes(len(data) - end)):
            file.write_bytes(data[:end] + rest)
            assert only_last_write_torn(tmp_path / "copy"), end


async def test_files_follow_each_other(tmp_path: Path) -> None:
    """Files are read in the order of their numbers; a write in a later file turns a torn write into damage, an empty file does not."""
    data, begins = await write_ahead_log(tmp_path / "log", [10, 10])
    (tmp_path / "copy").mkdir()
    first, second = tmp_path / "copy" / "000009.log", tmp_path / "copy" / "000010.log"
    first.write_bytes(data[:begins] + bytes(len(data) - begins))
    second.touch()
    assert only_last_write_torn(tmp_path / "copy")
    second.write_bytes(data)
    assert not only_last_write_torn(tmp_path / "copy")
    first.write_bytes(data)
    second.write_bytes(data[:-1])
    assert only_last_write_torn(tmp_path / "copy")
