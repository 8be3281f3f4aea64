"""Tests the contract of `ordering.log` on every log, and on the simulator's: another backend is one more case of `log`."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError, Fatal, FatalCode, NotReady, OutcomeUnknown
from ordering.kafka import KafkaLog
from ordering.log import ORDERING, Log, LogOffsets, Reader, Record
from ordering.memory import MemoryLog
from ordering.topics import create_topics
from tests.ordering.closing import closing
from tests.simulation.calm import calm_log

PARTITIONS = 4
LONG_MS = 60_000
"""Longer than any test: a poll with this timeout that returns was woken."""


@pytest.fixture(params=["memory", "embedded", "simulated", pytest.param("kafka", marks=pytest.mark.kafka)])
async def log(request: pytest.FixtureRequest, tmp_path: Path, kafka_prefix: str) -> AsyncIterator[Log]:
    match request.param:
        case "memory":
            made: Log = MemoryLog(PARTITIONS)
        case "embedded":
            EmbeddedLog.create(tmp_path / "log", PARTITIONS)
            made = EmbeddedLog.open(tmp_path / "log")
        case "simulated":
            made = calm_log(PARTITIONS)
        case _:
            bootstrap = request.getfixturevalue("kafka_cluster").bootstrap
            await create_topics(bootstrap, kafka_prefix, PARTITIONS)
            made = await KafkaLog.open(bootstrap, kafka_prefix)
    async with closing(made):
        yield made


async def take(reader: Reader, count: int) -> list[Record]:
    """Poll until there are `count` records; returns them."""
    records: list[Record] = []
    while len(records) < count:
        records += await reader.poll(LONG_MS)
    assert len(records) == count
    return records


def of(records: list[Record], partition: int) -> list[Record]:
    return [record for record in records if record.partition == partition]


async def test_reads_what_was_appended_before_it(log: Log) -> None:
    """A later reader sees every acknowledged record, in the order of its topic-partition."""
    writer = await log.open_writer()
    for number in range(5):
        await writer.append(ORDERING, None, b"entry %d" % number)
        await writer.append(number % PARTITIONS, b"key", b"payload %d" % number)
    reader = await log.open_reader({})
    records = await take(reader, 10)
    assert [record.value for record in of(records, ORDERING)] == [b"entry %d" % number for number in range(5)]
    assert [record.offset for record in of(records, ORDERING)] == list(range(5))
    assert [record.value for record in of(records, 0)] == [b"payload 0", b"payload 4"]


async def test_wakes_a_reader_that_waits(log: Log) -> None:
    """A waiting poll returns when a record arrives, not when its time is over."""
    writer, reader = await log.open_writer(), await log.open_reader({})
    waiting = asyncio.create_task(take(reader, 2))
    await asyncio.gather(writer.append(ORDERING, None, b"entry"), writer.append(2, b"key", b"payload"))
    found = {(record.partition, record.key, record.value) for record in await waiting}
    assert found == {(ORDERING, None, b"entry"), (2, b"key", b"payload")}


async def test_a_poll_without_records_returns_nothing(log: Log) -> None:
    """A poll of a log without new records returns nothing when its time is over."""
    reader = await log.open_reader({})
    assert await reader.poll(1) == []
    assert await reader.poll(0) == []


async def test_reads_from_an_offset(log: Log) -> None:
    """A reader starts each topic-partition at the given offset, or at 0."""
    writer = await log.open_writer()
    for number in range(4):
        await writer.append(ORDERING, None, b"%d" % number)
        await writer.append(1, b"key", b"%d" % number)
    reader = await log.open_reader({ORDERING: 3, 2: 0})
    records = await take(reader, 5)
    assert [(record.offset, record.value) for record in of(records, ORDERING)] == [(3, b"3")]
    assert [record.offset for record in of(records, 1)] == [0, 1, 2, 3]


async def test_says_where_it_stands(log: Log) -> None:
    """A reader's offset is where it was opened, then behind the last record returned; it stays while paused and at the end."""
    writer = await log.open_writer()
    for number in range(4):
        await writer.append(1, b"key", b"%d" % number)
        await writer.append(2, b"key", b"%d" % number)
    reader = await log.open_reader({1: 1, 3: 0})
    assert [reader.offset_next(partition) for partition in (ORDERING, 1, 2, 3)] == [0, 1, 0, 0]
    reader.pause([2])
    await take(reader, 3)
    assert [reader.offset_next(partition) for partition in (ORDERING, 1, 2, 3)] == [0, 4, 0, 0]
    reader.pause([])
    await take(reader, 4)
    assert [reader.offset_next(partition) for partition in (ORDERING, 1, 2, 3)] == [0, 4, 4, 0]


async def test_starts_at_the_end(log: Log) -> None:
    """A reader may start at the end of a topic-partition, and gets the next records."""
    writer = await log.open_writer()
    await writer.append(ORDERING, None, b"old")
    reader = await log.open_reader({ORDERING: 1})
    await writer.append(ORDERING, None, b"new")
    assert [(record.offset, record.value) for record in await take(reader, 1)] == [(1, b"new")]


async def test_never_resets_an_offset_silently(log: Log) -> None:
    """An offset beyond the end means that the index knows more than the log: Fatal, with topic-partition and offset."""
    writer = await log.open_writer()
    await writer.append(1, b"key", b"value")
    reader = await log.open_reader({1: 7})
    with pytest.raises(Fatal, match=r"payload partition 1\b.*offset 7\b") as raised:
        await take(reader, 1)
    assert raised.value.code is FatalCode.INDEX_AHEAD_OF_LOG


async def test_every_reader_sees_the_same(log: Log) -> None:
    """Each later reader sees the same records as the first: offsets, bytes and append times."""
    writer = await log.open_writer()
    early = await log.open_reader({})
    await asyncio.gather(*[writer.append(number % PARTITIONS, b"%d" % number, b"x" * number) for number in range(40)])
    await writer.append(ORDERING, None, b"entry")
    late = await log.open_reader({})
    seen = [sorted(await take(reader, 41), key=lambda record: (record.partition, record.offset)) for reader in (early, late)]
    assert seen[0] == seen[1]


async def test_keeps_the_order_of_a_writer(log: Log) -> None:
    """Concurrent appends of one writer to one topic-partition land in the order of the calls, whatever their size."""
    writer = await log.open_writer()
    values = [b"%d:" % number + b"x" * (number * 7919 % 100_000) for number in range(200)]
    appends: list[asyncio.Task[None]] = []
    for number, value in enumerate(values):
        # Dozens in flight: later appends are called just when space becomes free for earlier ones that wait.
        if number >= 40:
            await appends[number - 40]
        appends.append(asyncio.create_task(writer.append(0, b"key", value)))
    await asyncio.gather(*appends)
    reader = await log.open_reader({})
    assert [record.value for record in await take(reader, 200)] == values


async def test_two_writers_share_a_partition(log: Log) -> None:
    """Two writers share a topic-partition: each one's order is kept, and no offset is given twice."""
    writers = [await log.open_writer(), await log.open_writer()]
    await asyncio.gather(*[writers[number % 2].append(ORDERING, b"%d" % (number % 2), b"%d" % (number // 2)) for number in range(60)])
    reader = await log.open_reader({})
    records = await take(reader, 60)
    assert [record.offset for record in records] == list(range(60))
    for name in (b"0", b"1"):
        assert [record.value for record in records if record.key == name] == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize(("key", "value"), [(b"key", None), (None, b"value"), (b"", b"value"), (b"key", b""), (b"", None)])
async def test_distinguishes_null_from_empty(log: Log, key: bytes | None, value: bytes | None) -> None:
    """A null key or value is read back as null, an empty one as empty."""
    writer, reader = await log.open_writer(), await log.open_reader({})
    await writer.append(1, key, value)
    (record,) = await take(reader, 1)
    assert (record.key, record.value) == (key, value)


async def test_a_large_record_is_complete(log: Log) -> None:
    """A record of several MiB is read back complete, and small ones around it keep their places."""
    writer, reader = await log.open_writer(), await log.open_reader({})
    large = bytes(range(256)) * 12 * 1024
    for value in (b"before", large, b"after"):
        await writer.append(3, b"key", value)
    assert [record.value for record in await take(reader, 3)] == [b"before", large, b"after"]


async def test_replays_more_than_one_poll_holds(log: Log) -> None:
    """Every record of a log that is larger than one poll is read once, from all topic-partitions."""
    writer = await log.open_writer()
    await asyncio.gather(*[writer.append(number % PARTITIONS, b"%d" % number, bytes(300_000)) for number in range(60)])
    await asyncio.gather(*[writer.append(ORDERING, None, b"%d" % number) for number in range(5_000)])
    reader = await log.open_reader({})
    records = await take(reader, 5_060)
    assert [record.value for record in of(records, ORDERING)] == [b"%d" % number for number in range(5_000)]
    for partition in range(PARTITIONS):
        assert [record.offset for record in of(records, partition)] == list(range(15))


async def test_a_paused_partition_is_read_later(log: Log) -> None:
    """A paused topic-partition returns nothing while others continue; afterwards it returns everything that was missed."""
    writer, reader = await log.open_writer(), await log.open_reader({})
    reader.pause([1, 2])
    for number in range(5):
        await writer.append(1, b"key", b"%d" % number)
        await writer.append(ORDERING, None, b"%d" % number)
        assert [record.partition for record in await take(reader, 1)] == [ORDERING]
    reader.pause([2])
    assert [(record.partition, record.offset) for record in await take(reader, 5)] == [(1, number) for number in range(5)]
    await writer.append(2, b"key", b"late")
    await writer.append(1, b"key", b"more")
    assert [(record.partition, record.value) for record in await take(reader, 1)] == [(1, b"more")]
    reader.pause([])
    assert [(record.partition, record.value) for record in await take(reader, 1)] == [(2, b"late")]


async def test_pause_drops_nothing_that_was_fetched(log: Log) -> None:
    """Pausing and resuming at any moment, with fetches in flight, neither loses nor repeats a record."""
    writer, reader = await log.open_writer(), await log.open_reader({})
    appending = asyncio.gather(*[writer.append(number % 2, b"key", b"%d" % number) for number in range(400)])
    records: list[Record] = []
    turn = 0
    while len(records) < 400:
        turn += 1
        reader.pause([[0], [], [1], []][turn % 4])
        records += await reader.poll(5)
    await appending
    for partition in (0, 1):
        assert [record.offset for record in of(records, partition)] == list(range(200))


async def test_bounds_include_an_acknowledged_record(log: Log) -> None:
    """`offsets` has every topic-partition, and includes an acknowledged record at once."""
    assert await log.offsets() == {partition: LogOffsets(0, 0) for partition in range(ORDERING, PARTITIONS)}
    writer = await log.open_writer()
    for _ in range(3):
        await writer.append(2, b"key", b"value")
    await writer.append(ORDERING, None, b"entry")
    log_offsets = await log.offsets()
    assert (log_offsets[2], log_offsets[ORDERING], log_offsets[0]) == (LogOffsets(0, 3), LogOffsets(0, 1), LogOffsets(0, 0))


async def test_every_partition_accepts_appends(log: Log) -> None:
    """In a healthy log every payload partition accepts appends."""
    assert log.leaders().keys() == set(range(PARTITIONS))
    assert log.payload_partitions == PARTITIONS


async def test_an_unknown_partition_is_a_configuration_error(log: Log) -> None:
    """An append to a partition that the log does not have is a configuration error, not a lost record."""
    writer = await log.open_writer()
    with pytest.raises(ConfigurationError, match="payload partition 4"):
        await writer.append(PARTITIONS, b"key", b"value")
    await writer.append(0, b"key", b"value")
    with pytest.raises(ConfigurationError, match="payload partition 9"):
        await log.open_reader({9: 0})


async def test_a_cancelled_append_leaves_its_writer_usable(log: Log) -> None:
    """A cancelled append leaves its writer usable; its record may be there, but not twice and not out of order."""
    writer, reader = await log.open_writer(), await log.open_reader({})
    appends = [asyncio.create_task(writer.append(ORDERING, None, b"%d" % number)) for number in range(20)]
    await asyncio.sleep(0)
    for append in appends[5:15]:
        append.cancel()
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    await writer.append(ORDERING, None, b"20")
    seen: list[int] = []
    while not seen or seen[-1] != 20:
        seen += [int(record.value or b"") for record in await reader.poll(LONG_MS)]
    assert seen == sorted(set(seen))
    assert {number for number, outcome in enumerate(outcomes) if outcome is None} <= set(seen)


async def test_a_closed_writer_accepts_nothing(log: Log) -> None:
    """A closed writer accepts no appends, and closing twice does no harm."""
    writer = await log.open_writer()
    await writer.append(ORDERING, None, b"kept")
    await writer.close()
    await writer.close()
    with pytest.raises(OutcomeUnknown, match="closed"):
        await writer.append(ORDERING, None, b"refused")
    assert (await log.offsets())[ORDERING].log_end == 1


async def test_closing_a_reader_ends_its_poll(log: Log) -> None:
    """Closing a reader ends a waiting poll, and later polls report that it is closed."""
    reader = await log.open_reader({})
    waiting = asyncio.create_task(reader.poll(LONG_MS))
    await asyncio.sleep(0)
    await reader.close()
    assert await waiting == []
    await reader.close()
    with pytest.raises(NotReady, match="closed"):
        await reader.poll(0)


async def test_a_closed_log_opens_nothing(log: Log) -> None:
    """A closed log opens nothing and reports that it is closed."""
    await log.close()
    await log.close()
    for call in (log.offsets, log.open_writer, lambda: log.open_reader({})):
        with pytest.raises(NotReady, match="closed"):
            await call()
