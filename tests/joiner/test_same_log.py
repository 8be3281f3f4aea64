"""What a worker holds against its log before it reads on: bounds, and the last ordering record that its index has applied (R8, R9)."""

import pytest

from joiner.driver import check_same_log
from ordering.errors import Fatal
from ordering.log import ORDERING, Record
from ordering.memory import MemoryLog


async def _log(*values: bytes) -> MemoryLog:
    """A log whose ordering stream says these values, a millisecond apart."""
    times = iter(range(1_000, 2_000))
    log = MemoryLog(2, lambda: next(times))
    writer = await log.open_writer()
    for value in values:
        await writer.append(ORDERING, None, value)
    await writer.close()
    return log


async def _last(log: MemoryLog) -> Record:
    reader = await log.open_reader({})
    records = await reader.poll(1_000)
    await reader.close()
    return records[-1]


async def test_the_same_log() -> None:
    """A log that still holds the last record applied, and more behind it, is read on."""
    applied = await _log(b"one", b"two")
    grown = await _log(b"one", b"two", b"three")
    await check_same_log(grown, {ORDERING: 2, 0: 0, 1: 0}, (await _last(applied)).digest())


async def test_cut_and_grown_again() -> None:
    """A log that was cut and has grown past the index's offsets with other records is refused, though its bounds look right."""
    applied = await _log(b"one", b"two")
    regrown = await _log(b"one", b"another two", b"three")
    with pytest.raises(Fatal, match=r"ordering record 1 is not the one .* has applied"):
        await check_same_log(regrown, {ORDERING: 2, 0: 0, 1: 0}, (await _last(applied)).digest())


async def test_same_words_at_another_time() -> None:
    """A record with the same bytes that the log took at another time is another record: log time would differ."""
    applied = await _last(await _log(b"one"))
    later = Record(applied.stream, applied.offset, applied.append_time_ms + 1, applied.key, applied.value)
    with pytest.raises(Fatal, match="ordering record 0"):
        await check_same_log(await _log(b"one"), {ORDERING: 1, 0: 0, 1: 0}, later.digest())


async def test_cut() -> None:
    """A log that ends before what the index has applied is refused by its bounds."""
    with pytest.raises(Fatal, match="ahead of its log"):
        await check_same_log(await _log(b"one"), {ORDERING: 2, 0: 0, 1: 0}, b"")


async def test_nothing_applied() -> None:
    """A new index takes any log."""
    await check_same_log(await _log(), {ORDERING: 0, 0: 0, 1: 0}, None)
