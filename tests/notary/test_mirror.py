"""Tests the copying of a log into a mirror, on brokers: the records that it has, and the place where it continues."""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from deploy.local import Cluster
from notary import mirror
from notary.mirror import LogMirror, OtherLog, _Copy
from ordering.connection import admin
from ordering.errors import ConfigurationError, NotReady, OutOfRange
from ordering.kafka import KafkaLog
from ordering.log import ORDERING, LogOffsets, Record
from ordering.topics import add_partitions, create_topics, free_records, topic_names
from tests.clients.load import until
from tests.kafka.foreign_batches import append, with_bad_header, with_later_offset, with_offset

pytestmark = pytest.mark.kafka

PARTITIONS = 3


class Logs:
    """A log and its mirror, on the same brokers."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap = bootstrap
        self.source, self.target = f"{prefix}-a", f"{prefix}-b"
        self.offsets_of = KafkaLog.offsets

    async def create(self) -> None:
        """Create the topics."""
        await create_topics(self.bootstrap, self.source, PARTITIONS)
        await create_topics(self.bootstrap, self.target, PARTITIONS, mirror=True)

    @asynccontextmanager
    async def opened(self, prefix: str) -> AsyncIterator[KafkaLog]:
        """Yields the log or the mirror."""
        log = await KafkaLog.open(self.bootstrap, prefix, mirror=prefix == self.target)
        try:
            yield log
        finally:
            await log.close()

    async def put(self, prefix: str, partition: int, *values: bytes) -> None:
        """Append records to the log or to the mirror."""
        async with self.opened(prefix) as log:
            writer = await log.open_writer()
            try:
                for value in values:
                    await writer.append(partition, b"key", value)
            finally:
                await writer.close()

    async def repeat(self, records: Sequence[Record], offset: int) -> None:
        """Append records to the mirror, which are in it already, as a request that arrives late."""
        async with self.opened(self.target) as log:
            writer = await log.open_writer()
            assert await writer.copy(records[0].partition, records, offset) == offset + len(records)
            await writer.close()

    async def read(self, prefix: str) -> dict[int, list[Record]]:
        """Returns all records of the log or of the mirror, as workers read them."""
        async with self.opened(prefix) as log:
            ends = {partition: offsets.log_end for partition, offsets in (await self.offsets_of(log)).items()}
            found: dict[int, list[Record]] = {partition: [] for partition in ends}
            reader = await log.open_reader(dict.fromkeys(ends, 0))
            while any(reader.offset_next(partition) < end for partition, end in ends.items()):
                for record in await reader.poll(100):
                    found[record.partition].append(record)
            await reader.close()
        return found

    @asynccontextmanager
    async def copying(self) -> AsyncIterator["asyncio.Task[None]"]:
        """Copies in the block; yields the task."""
        async with self.opened(self.source) as source, self.opened(self.target) as target:
            task = asyncio.create_task(LogMirror(source, target, partial(add_partitions, self.bootstrap, self.target)).run())
            try:
                yield task
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError, ConfigurationError):
                    await task

    async def until_last(self, task: "asyncio.Task[None]", partition: int, value: bytes) -> list[bytes | None]:
        """Wait until the last record of a topic-partition of the mirror has this value. Returns the values of all of them."""
        values: list[bytes | None] = []

        async def is_last() -> bool:
            assert not task.done(), task.exception()
            values[:] = [record.value for record in (await self.read(self.target))[partition]]
            return values[-1:] == [value]

        await until(is_last, 0.2)
        return values

    async def until_complete(self, task: "asyncio.Task[None]") -> None:
        """Wait until the mirror has the same records at the same offsets."""

        async def is_complete() -> bool:
            assert not task.done(), task.exception()
            return await self.read(self.target) == await self.read(self.source)

        await until(is_complete, 0.2)


async def no_partitions(count: int) -> None:
    """A mirror that needs no other partitions."""
    raise AssertionError


@pytest.fixture
async def logs(kafka_cluster: Cluster, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch) -> Logs:
    """An empty log and an empty mirror. After an interruption copying continues sooner."""
    monkeypatch.setattr(mirror, "AGAIN_S", 0.2)
    made = Logs(kafka_cluster.bootstrap, kafka_prefix)
    await made.create()
    return made


@pytest.mark.parametrize("copied_before", [True, False])
async def test_a_record_without_the_key_hides_no_other(logs: Logs, copied_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror gets the records behind one that claims another offset, or that has a bad header, also if it fetches all at once.

    Java's client, MirrorMaker's, loses those that come in the same fetch, for ever.
    """

    async def put() -> None:
        for change in (with_offset, with_later_offset, with_bad_header):
            await append(logs.bootstrap, f"{logs.source}.ordering", change, monkeypatch)
            await logs.put(logs.source, ORDERING, *[b"after %d" % number for number in range(6)])

    if not copied_before:
        await put()
    async with logs.copying() as task:
        if copied_before:
            await put()
        await logs.until_complete(task)
    assert len((await logs.read(logs.target))[ORDERING]) == 21


async def test_a_mirror_continues_behind_its_last_record(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mirror that has repeated some records, at its end, continues behind the place that its last record has in the log."""
    monkeypatch.setattr(mirror, "LOOK_BACK", 1)
    await logs.put(logs.source, 2, *[b"%d" % number for number in range(8)])
    await logs.put(logs.source, 1, b"at the same offset")
    async with logs.copying() as task:
        await logs.until_complete(task)
    first = (await logs.read(logs.target))[2]
    await logs.repeat(first[5:7] * 2, 8)
    await logs.put(logs.source, 2, b"later")
    async with logs.copying() as task:
        values = await logs.until_last(task, 2, b"later")
    # The last record before the stop was the seventh, so the eighth is copied again.
    assert values == [*[record.value for record in first], b"5", b"6", b"5", b"6", b"7", b"later"]
    assert "may lack records" not in caplog.text


async def test_equal_records_hide_no_other(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the mirror's last record is in the log twice, at the same time, the mirror continues behind the first one.

    The search begins behind that one.
    """
    monkeypatch.setattr(mirror, "LOOK_BACK", 1)
    async with logs.opened(logs.source) as log:
        writer = await log.open_writer()
        equal, between, last = [Record(ORDERING, 0, 1, b"key", value) for value in (b"equal", b"between", b"last")]
        await writer.copy(ORDERING, [equal, between, equal, last], 0)
        await writer.close()
    first = (await logs.read(logs.source))[ORDERING][0]
    for offset in range(3):
        await logs.repeat([first], offset)
    async with logs.copying() as task:
        values = await logs.until_last(task, ORDERING, b"last")
    assert values == [b"equal"] * 3 + [b"between", b"equal", b"last"]


@pytest.mark.parametrize("extended_before", [True, False])
async def test_a_mirror_gets_new_partitions(logs: Logs, extended_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that the log gets while it is copied is copied too, also if the mirror has had it before."""
    monkeypatch.setattr(mirror, "PARTITIONS_S", 0.2)
    if extended_before:
        await add_partitions(logs.bootstrap, logs.target, PARTITIONS + 1)
    async with logs.copying() as task:
        await logs.put(logs.source, 0, b"before")
        await logs.until_last(task, 0, b"before")
        await add_partitions(logs.bootstrap, logs.source, PARTITIONS + 1)

        async def is_in_the_new_one() -> bool:
            try:
                await logs.put(logs.source, PARTITIONS, b"in the new one")
            except ConfigurationError:  # a broker that does not know the partition yet has answered
                return False
            return True

        await until(is_in_the_new_one, 0.2)
        await logs.until_complete(task)
    assert (await logs.read(logs.target))[PARTITIONS][0].value == b"in the new one"


async def test_a_partition_without_a_leader_delays_no_other(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other topic-partitions are copied meanwhile; that one once it has a leader, from where it was."""
    monkeypatch.setattr(mirror, "PARTITIONS_S", 0.2)
    await logs.put(logs.source, 1, b"first")
    async with logs.copying() as task:
        await logs.until_complete(task)
    has_leader = False
    offsets = KafkaLog.offsets

    async def some_offsets(log: KafkaLog) -> Mapping[int, LogOffsets]:
        return {partition: of for partition, of in (await offsets(log)).items() if has_leader or partition != 1}

    with monkeypatch.context() as led:
        led.setattr(KafkaLog, "offsets", some_offsets)
        async with logs.copying() as task:
            await logs.put(logs.source, 1, b"later")
            await logs.put(logs.source, ORDERING, b"an entry")
            await logs.until_last(task, ORDERING, b"an entry")
            assert [record.value for record in (await logs.read(logs.target))[1]] == [b"first"]
            has_leader = True
            await logs.until_complete(task)


async def test_another_log_is_not_copied_behind_a_mirror(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the log does not have the mirror's last record, nothing is appended, and the process ends with the reason."""
    monkeypatch.setattr(mirror, "CONTRADICTED_S", 1.5)
    await logs.put(logs.source, ORDERING, b"a", b"b")
    await logs.put(logs.source, 0, b"a payload")
    await logs.put(logs.target, ORDERING, b"a", b"of another history")
    async with logs.copying() as task:
        with pytest.raises(ConfigurationError, match=r"does not have the mirror's last record of the ordering topic, at offset 1 there"):
            await task
    records = await logs.read(logs.target)
    assert (len(records[ORDERING]), records[0]) == (2, [])


async def test_a_mirror_with_a_gap_is_reported(logs: Logs, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody who may write to the mirror appended a copy of a later record: the process continues behind it, and says so."""
    await logs.put(logs.source, 1, *[b"%d" % number for number in range(30)])
    records = (await logs.read(logs.source))[1]
    await logs.repeat(records[:5], 0)
    await logs.repeat(records[20:21], 5)
    async with logs.copying() as task:
        await logs.until_last(task, 1, b"29")
    assert (await logs.read(logs.target))[1][-1] == msgspec.structs.replace(records[-1], offset=14)
    assert "may lack records of payload partition 1: its last one is at offset 5 there and at 20 in the log" in caplog.text


async def test_a_mirror_that_was_created_again_is_not_copied_on(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that were deleted and created again take the next record as their first one: the process does not go on behind that gap."""
    monkeypatch.setattr(mirror, "REPORT_S", 600.0)
    await logs.put(logs.source, 1, *[b"%d" % number for number in range(5)])
    async with logs.copying() as task:
        await logs.until_complete(task)
        async with admin(logs.bootstrap, "test", None, 30_000) as client:
            await client.delete_topics(list(topic_names(logs.target)))
            while set(topic_names(logs.target)) & set(await client.list_topics()):  # noqa: ASYNC110 - asked of a broker
                await asyncio.sleep(0.1)
        await create_topics(logs.bootstrap, logs.target, PARTITIONS, mirror=True)
        await logs.put(logs.source, 1, b"later")
        with pytest.raises(ConfigurationError, match="payload partition 1 of the mirror ended at offset 0, expected 5: it lost records"):
            await asyncio.wait_for(task, 30)


async def test_a_record_of_another_process_is_noticed(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If its copy gets another offset than expected, the process begins again behind the mirror's last record, before the next report."""
    monkeypatch.setattr(mirror, "REPORT_S", 600.0)
    await logs.put(logs.source, 1, b"first")
    async with logs.copying() as task:
        await logs.until_complete(task)
        await logs.repeat((await logs.read(logs.target))[1], 1)
        await logs.put(logs.source, 1, b"later")
        assert await logs.until_last(task, 1, b"later") == [b"first", b"first", b"later"]
        await logs.put(logs.source, 1, b"last")
        assert await logs.until_last(task, 1, b"last") == [b"first", b"first", b"later", b"last"]
    assert "a copy at offset 2, expected 1: another process appended a record" in caplog.text


async def test_two_processes_do_not_lose_a_record(logs: Logs) -> None:
    """If a second process copies too, every record is in the mirror at least once."""
    async with logs.copying() as one, logs.copying() as other:
        values = [b"%d" % number for number in range(40)]
        async with logs.opened(logs.source) as log:
            writer = await log.open_writer()
            for value in values:
                await writer.append(1, b"key", value)
                await asyncio.sleep(0.05)
            await writer.close()

        async def has_all() -> bool:
            assert not one.done()
            assert not other.done()
            return {record.value for record in (await logs.read(logs.target))[1]} == set(values)

        await until(has_all, 0.2)


async def test_the_lag_counts_a_partition_that_is_not_copied(
    logs: Logs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`lag_records` is the number of records that the mirror lacks (docs/command-line.md), also while a partition there has no leader."""
    caplog.set_level("INFO", "notary.mirror")
    monkeypatch.setattr(mirror, "REPORT_S", 0.2)
    offsets = KafkaLog.offsets

    async def led(log: KafkaLog) -> Mapping[int, LogOffsets]:
        is_target = log._partitions[1].topic.startswith(logs.target)
        return {partition: of for partition, of in (await offsets(log)).items() if not (is_target and partition == 1)}

    await logs.put(logs.source, 1, *[b"%d" % number for number in range(5)])
    monkeypatch.setattr(KafkaLog, "offsets", led)

    def reported() -> list[int]:
        return [int(lag) for lag in re.findall(r"lag_records=(\d+)", caplog.text)]

    async with logs.copying() as task:
        await until(lambda: task.done() or len(reported()) > 2, 0.1)
    assert not (await logs.read(logs.target)).get(1)
    assert reported()[-1] == 5
    assert "not_copied=payload partition 1" in caplog.text


async def _ten_records() -> Mapping[int, LogOffsets]:
    return {ORDERING: LogOffsets(0, 10)}


def _quiet(target: Any) -> tuple[LogMirror, Any]:
    """Returns the copying of a quiet log with ten records, all copied to this mirror, and its state."""
    source: Any = SimpleNamespace(offsets=_ten_records, payload_partitions=0)
    copy = SimpleNamespace(partitions={ORDERING}, reader=SimpleNamespace(offset_next=lambda partition: 10), ends={ORDERING: 10})
    return LogMirror(source, target, no_partitions), copy


async def test_a_mirror_that_does_not_answer_was_not_compared() -> None:
    """The log is quiet, and the mirror's brokers are gone."""

    async def gone() -> Mapping[int, LogOffsets]:
        raise NotReady("gone")

    target: Any = SimpleNamespace(offsets=gone)
    copying, copy = _quiet(target)
    with pytest.raises(NotReady):
        await copying._report(copy)
    assert copying.compared_ms == 0
    target.offsets = _ten_records
    await copying._report(copy)
    assert copying.compared_ms
    assert copying.lag_records == 0


async def test_the_lag_after_a_partition_lost_its_leader() -> None:
    """It counts the records of that partition that were not copied before. Another one may have been read further meanwhile."""

    async def offsets() -> Mapping[int, LogOffsets]:
        return {ORDERING: LogOffsets(0, 8), 0: LogOffsets(0, 10)}

    copying, copy = _quiet(SimpleNamespace(offsets=_ten_records))
    copying._source.offsets = offsets  # type: ignore[method-assign]
    copying._copied_to = {0: 6}
    await copying._report(copy)
    assert copying.lag_records == 3


async def test_a_mirror_that_lost_its_beginning_is_not_copied_on(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records were deleted in the mirror: no failover to it is possible. A process that copies says so, and one that is started."""
    monkeypatch.setattr(mirror, "REPORT_S", 0.2)
    await logs.put(logs.source, 1, *[b"%d" % number for number in range(5)])
    async with logs.copying() as task:
        await logs.until_complete(task)
        async with logs.opened(logs.target) as target:
            await free_records(logs.bootstrap, logs.target, target.payload_topic_id, {1: 3})
        with pytest.raises(ConfigurationError, match="before offset 3 were deleted in the mirror"):
            await asyncio.wait_for(task, 20)
    async with logs.copying() as task:
        with pytest.raises(ConfigurationError, match="before offset 3 were deleted in the mirror"):
            await asyncio.wait_for(task, 20)


@pytest.mark.parametrize("end", [8, 12])
async def test_another_end_of_the_mirror_is_noticed(end: int) -> None:
    """The mirror's brokers lost acknowledged records of a quiet partition, or another process wrote there: it is compared again."""

    async def others() -> Mapping[int, LogOffsets]:
        return {ORDERING: LogOffsets(0, end)}

    copying, copy = _quiet(SimpleNamespace(offsets=others))
    with pytest.raises(NotReady, match=rf"offsets 0 to {end}, expected 0 to 10"):
        await copying._report(copy)


async def test_the_time_of_a_contradiction_begins_anew_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas that were read before they had all records, hours of interruption apart, do not end a mirror."""
    monkeypatch.setattr(mirror, "CONTRADICTED_S", 0.1)
    monkeypatch.setattr(mirror, "AGAIN_S", 0.2)
    copying = LogMirror(SimpleNamespace(), SimpleNamespace(), no_partitions)  # type: ignore[arg-type]
    problems = iter((OtherLog("lacks it"), NotReady("gone"), OtherLog("lacks it"), NotReady("gone"), asyncio.CancelledError()))

    async def fails() -> None:
        raise next(problems)

    monkeypatch.setattr(copying, "_copy", fails)
    with pytest.raises(asyncio.CancelledError):
        await copying.run()
    problems = iter((OtherLog("lacks it"), OtherLog("lacks it")))
    with pytest.raises(ConfigurationError, match="lacks it"):
        await copying.run()


class Brokers:
    """A log or mirror with one payload partition, whose reader returns nothing."""

    payload_partitions = 1
    interruptions = 0

    def __init__(self, payloads: LogOffsets) -> None:
        self.payloads = payloads
        self.position = payloads.log_end
        self.clients_open = 0

    async def offsets(self) -> Mapping[int, LogOffsets]:
        return {ORDERING: LogOffsets(0, 0), 0: self.payloads}

    async def has_partitions(self, count: int) -> None:
        if count > 1:
            raise NotReady("has no more")

    async def open_reader(self, offsets_next: Mapping[int, int]) -> "Brokers":
        self.begin = offsets_next
        self.clients_open += 1
        return self

    async def open_writer(self) -> "Brokers":
        self.clients_open += 1
        return self

    async def close(self) -> None:
        self.clients_open -= 1

    async def poll(self, timeout_ms: int) -> list[Record]:
        await asyncio.sleep(0.01)
        return []

    def offset_next(self, partition: int) -> int:
        return 0 if partition == ORDERING else self.position

    def pause(self, partitions: Collection[int]) -> None:
        self.paused = partitions


def _between(source: Brokers, target: Brokers) -> Any:
    return LogMirror(source, target, no_partitions)  # type: ignore[arg-type]


async def test_a_contradiction_ends_once_the_records_were_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long afterwards begins another time. Offsets that the log lacks are one too."""
    monkeypatch.setattr(mirror, "CONTRADICTED_S", 0.1)
    monkeypatch.setattr(mirror, "AGAIN_S", 0.2)
    source, target = Brokers(LogOffsets(0, 0)), Brokers(LogOffsets(0, 0))
    copying = _between(source, target)
    problems = iter((OtherLog("lacks it"), None, asyncio.CancelledError()))

    async def find(*_: object) -> list[Record]:
        if problem := next(problems):
            raise problem
        return []

    async def copy_with(*_: object) -> None:
        raise OutOfRange("no records there")

    monkeypatch.setattr(copying, "_find", find)
    monkeypatch.setattr(copying, "_copy_with", copy_with)
    with pytest.raises(asyncio.CancelledError):
        await copying.run()
    assert (source.clients_open, target.clients_open) == (0, 0)


@pytest.mark.parametrize(("copied_to", "is_sought"), [(4, False), (3, True)])
async def test_a_partition_whose_records_were_all_freed(copied_to: int, is_sought: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror's last record is in the log no more. If it was the log's last one, copying continues; otherwise records are missing."""
    copying = _between(Brokers(LogOffsets(5, 5)), Brokers(LogOffsets(0, 5)))
    copying._copied_to = {0: copied_to}
    found: list[int] = []

    async def last_records(offsets: Mapping[int, LogOffsets]) -> dict[int, Record]:
        return {0: Record(0, 4, 1, b"key", b"value")}

    async def find(copy: Any, sought: dict[int, Record], from_later: set[int]) -> list[Record]:
        found.extend(sought)
        raise NotReady("enough")

    monkeypatch.setattr(copying, "_last_records", last_records)
    monkeypatch.setattr(copying, "_find", find)
    with pytest.raises(NotReady, match="enough"):
        await copying._copy()
    assert found == [0] * is_sought


@pytest.mark.parametrize(
    ("position", "offsets", "problem"),
    [
        (0, LogOffsets(0, 1), "do not return the last records of payload partition 0"),
        (20, LogOffsets(0, 20), "payload partition 0 of the mirror ends with 10 offsets without a record"),
    ],
)
async def test_a_mirror_without_its_last_record(position: int, offsets: LogOffsets, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its brokers do not return it, or only markers of transactions are where it should be."""
    monkeypatch.setattr(mirror, "READ_S_MAX", 0.05)
    target = Brokers(offsets)
    target.position = position
    with pytest.raises((NotReady, ConfigurationError), match=problem):
        await asyncio.wait_for(_between(target, target)._last_records({0: offsets}), 5)
    assert (target.begin, target.paused, target.clients_open) == ({0: max(0, offsets.log_end - 10)}, {ORDERING}, 0)


async def test_a_record_that_is_not_behind_the_begin_may_be_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's times may go back, so all records that were read may be earlier ones. Equal times after the first record do not matter.

    A search may take any time while it gets records.
    """
    monkeypatch.setattr(mirror, "READ_S_MAX", 0.05)
    log = Brokers(LogOffsets(0, 4))
    copy = _Copy(log, frozenset({ORDERING, 0}), frozenset({ORDERING, 0}), {}, {ORDERING: 0, 0: 4})
    records = [Record(0, offset, 4 + (offset > 1), b"key", b"%d" % offset) for offset in range(1, 4)]

    polls = iter((records, records, records[:1], [], records[1:]))

    async def poll(timeout_ms: int) -> list[Record]:
        if found := next(polls):
            await asyncio.sleep(0.1)
            log.position = found[-1].offset + 1
        return found

    log.poll = poll  # type: ignore[method-assign]
    copying = _between(log, log)
    missing = msgspec.structs.replace(records[2], value=b"another")
    for from_later, problem in ({0}, NotReady), (set[int](), OtherLog):
        with pytest.raises(problem):
            await copying._find(copy, {0: missing}, from_later)
    assert copying._look_back == {0: 100}
    assert await copying._find(copy, {0: records[2]}, {0}) == []
    assert (copying._copied_to, copying._look_back) == ({0: 3}, {})


async def test_payloads_are_appended_before_entries() -> None:
    """A mirror that is failed over between the two then has no entry without its content."""
    log = Brokers(LogOffsets(0, 2))
    copying = _between(log, log)
    copy = _Copy(log, frozenset({ORDERING, 0}), frozenset({ORDERING, 0}), {ORDERING: 0, 0: 0}, {})
    appended: list[Record] = []

    class Writer:
        async def copy(self, partition: int, records: Sequence[Record], offset: int) -> int:
            await asyncio.sleep(0.01)
            appended.extend(records)
            return offset + len(records)

    async def poll(timeout_ms: int) -> list[Record]:
        log.interruptions += 1
        return records

    log.poll = poll  # type: ignore[method-assign]
    records = [Record(partition, offset, 1, b"key", b"value") for partition, offset in ((ORDERING, 0), (0, 0), (0, 1))]
    with pytest.raises(NotReady, match="reading was interrupted"):  # then what was read may be of another log (R10)
        await copying._copy_with(copy, Writer(), records)
    assert [record.partition for record in appended] == [0, 0, ORDERING]
    assert (copying.copied, copying._copied_to, copy.ends) == (3, {ORDERING: 0, 0: 1}, {ORDERING: 1, 0: 2})


async def test_a_leader_that_is_lost_during_the_search_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the mirror's last record of one partition is awaited for ever, and the other partitions are not copied."""
    monkeypatch.setattr(mirror, "READ_S_MAX", 0.05)
    log = Brokers(LogOffsets(0, 0))
    copy = _Copy(log, frozenset({ORDERING, 0}), frozenset({ORDERING, 0}), {}, {ORDERING: 1, 0: 1})
    with pytest.raises(NotReady, match="payload partition 0"):
        await asyncio.wait_for(_between(log, log)._find(copy, {0: Record(0, 0, 1, b"key", b"value")}, set()), 5)
