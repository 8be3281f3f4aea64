"""Tests the reading of logs on a real broker, also those with records that claim other offsets."""

import asyncio
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition as KafkaPartition
from pyspark.sql import DataFrame, SparkSession

from spark_join import archiving
from spark_join.archiving import Archived, archive
from spark_join.errors import CouldNotVerify
from spark_join.log import LogFrames, reading
from spark_join.log.archive import read_archive
from spark_join.log.client import Kafka
from spark_join.log.kafka import OffsetRange
from spark_join.log.reading import read_kafka, read_records
from spark_join.log.restore import restore
from tests.checkers.signed_log import SignedLog
from tests.kafka.foreign_batches import append, varint, with_body, with_earlier_offset, with_later_offset, with_offset
from tests.spark.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600)]

GENESIS = SignedLog(1).by_partition[-1][0].value or b""


def values(records: DataFrame) -> list[tuple[int, bytes]]:
    """Returns offset and value of each record, in the order of offsets."""
    return [(row.offset, bytes(row.value)) for row in records.select("offset", "value").orderBy("offset").collect()]


class WrittenLog(NamedTuple):
    """Topics of a test, and the folder of their archive."""

    spark: SparkSession
    broker: Broker
    kafka: Kafka
    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def append(self, records: dict[int, list[bytes]]) -> None:
        """Append these values, by payload partition; -1 is the ordering topic."""
        self.broker.append(self.kafka.prefix, records)

    def append_changed(self, topic: str, change: Callable[[bytes], bytes]) -> None:
        """Append the record `junk` in a changed batch."""
        asyncio.run(append(self.kafka.bootstrap, topic, change, self.monkeypatch))

    def fill(self, change: Callable[[bytes], bytes]) -> list[bytes]:
        """Append ten records to both topics, one that is changed, and ten more; returns the values of each topic."""
        before, after = [[GENESIS, *(f"{number}".encode() for number in some)] for some in (range(9), range(10, 19))]
        self.append({-1: before, 0: before})
        for topic in (self.kafka.ordering, self.kafka.payload):
            self.append_changed(topic, change)
        self.append({-1: after, 0: after})
        return [*before, b"junk", *after]

    def archive(self, range_records: int = 1_000_000) -> Iterator[Archived]:
        """Archive the new records, range by range."""
        return archive(self.spark, self.kafka, self.folder, lambda stage: None, range_records)

    def archived(self) -> LogFrames:
        """Returns the log in the archive."""
        return read_archive(self.spark, self.folder)


@pytest.fixture
def log(spark: SparkSession, kafka_broker: Broker, kafka_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenLog:
    """Two topics without records."""
    kafka_broker.make(kafka_prefix)
    return WrittenLog(spark, kafka_broker, Kafka(kafka_broker.bootstrap, kafka_prefix, {}), tmp_path, monkeypatch)


def test_each_record_has_the_offset_of_the_broker(log: WrittenLog) -> None:
    """Records of somebody without the key are in both topics: no record behind them is hidden, neither from a run nor from an archive."""
    parts = [log.fill(change) for change in (with_offset, with_earlier_offset, with_later_offset)]
    written = [*enumerate(value for part in parts for value in part)]
    live = read_kafka(log.spark, log.kafka, task_records_max=8)
    assert values(live.ordering) == values(live.payload) == written
    for junk in [offset for offset, value in written if value == b"junk"]:
        assert values(read_kafka(log.spark, log.kafka, {("ordering", 0): junk + 2, ("payload", 0): junk}).ordering) == written[junk + 2 :]
        assert values(live.at({("payload", 0): junk})) == written[junk : junk + 1]
    (added,) = log.archive()
    assert (added.records, added.gaps) == (2 * len(written), {})
    assert values(log.archived().ordering) == values(log.archived().payload) == written
    assert list(log.archive()) == []
    assert len(list(log.folder.rglob("*.parquet"))) == 2


def _claiming(deltas: Sequence[int]) -> Callable[[bytes], bytes]:
    """Returns a function that replaces a batch by one with a record for each delta, which claims that offset from the batch's base."""

    def change(batch: bytes) -> bytes:
        body = b""
        for number, delta in enumerate(deltas):
            value = b"junk %d" % number
            record = b"\0" + varint(0) + varint(delta) + b"\x01" + varint(len(value)) + value + varint(0)
            body += varint(len(record)) + record
        made = bytearray(batch)
        struct.pack_into(">i", made, 23, len(deltas) - 1)
        struct.pack_into(">i", made, 57, len(deltas))
        return with_body(bytes(made), body)

    return change


def test_a_part_of_a_batch_hides_nothing_behind_it(log: WrittenLog) -> None:
    """Records of one batch claim the offsets behind it, and reading begins inside that batch: in a later run, and in a range."""
    log.append({-1: [GENESIS]})
    log.append_changed(log.kafka.ordering, _claiming([35 + number for number in range(40)]))
    honest = [b"honest %d" % number for number in range(7)]
    log.append({-1: honest})
    written = [*enumerate([GENESIS, *(b"junk %d" % number for number in range(40)), *honest])]
    assert values(read_kafka(log.spark, log.kafka, {("ordering", 0): 36, ("payload", 0): 0}).ordering) == written[36:]
    assert values(read_kafka(log.spark, log.kafka).at({("ordering", 0): 40})) == written[40:41]
    assert len([*log.archive(24)]) > 1
    assert values(log.archived().ordering) == written


@pytest.mark.parametrize(("change", "records"), [(with_offset, 2), (_claiming([1, 1]), 3)])
def test_an_archive_continues_behind_such_a_batch(log: WrittenLog, change: Callable[[bytes], bytes], records: int) -> None:
    """The last archived record claims another offset, or two records both claim the offset of the second one."""
    log.append({-1: [GENESIS]})
    log.append_changed(log.kafka.ordering, change)
    assert [each.records for each in log.archive()] == [records]
    log.append({-1: [b"more"]})
    assert [each.records for each in log.archive()] == [1]
    archived = values(log.archived().ordering)
    assert (archived[0], archived[-1], len(archived)) == ((0, GENESIS), (records, b"more"), records + 1)


def test_a_range_has_the_payloads_of_its_entries(log: WrittenLog) -> None:
    """Brokers look for a time among claimed offsets: records that claim early ones move no payload behind the range of its entry."""
    for number in range(4):
        time.sleep(0.05)
        log.append_changed(log.kafka.payload, with_earlier_offset)
        log.append({0: [f"{number}".encode()]})
        time.sleep(0.01)
        log.append({-1: [f"{number}".encode() if number else GENESIS]})
    log.monkeypatch.setattr(archiving, "PAYLOAD_LEAD_MS", 5)
    there: set[bytes] = set()
    ranges = 0
    for _ in log.archive(4):
        ranges += 1
        there = {value for _, value in values(log.archived().payload)}
        assert {value for _, value in values(log.archived().ordering)} - {GENESIS} <= there
    assert ranges > 2
    assert len(there) == 5


def test_a_restore_continues_in_its_own_topics(log: WrittenLog) -> None:
    """Topics that begin with the records of an archive are compared as brokers have them."""
    written = log.fill(with_later_offset)
    assert len([*log.archive()]) == 1
    done = restore(log.spark, log.kafka, log.folder, lambda stage: None, lambda text: None, go_on=True)
    assert (sum(done.records.values()), done.appended) == (2 * len(written), 0)


def test_what_cannot_be_read_is_reported(log: WrittenLog) -> None:
    """Offsets that the log does not have, and properties that aiokafka does not know, are reported, and nothing waits for ever."""
    log.append({-1: [b"a"]})
    with pytest.raises(CouldNotVerify, match=r"\.ordering partition 0 cannot be read at offset 7: .*OffsetOutOfRangeError"):
        list(reading._read(log.kafka, reading.TaskOffsets(("ordering", 0), 7, 9)))
    log.monkeypatch.setattr(reading, "READ_S_MAX", 1)
    with pytest.raises(CouldNotVerify, match=r"\.ordering partition 0 cannot be read at offset 1: for 1 s, the log ends here"):
        list(reading._read(log.kafka, reading.TaskOffsets(("ordering", 0), 0, 9)))
    with pytest.raises(CouldNotVerify, match=r"cannot connect with ssl\.engine\.factory\.class"):
        read_records(log.spark, Kafka("b:1", "p", {"ssl.engine.factory.class": "x"}), {("ordering", 0): OffsetRange(0, 1)})


def test_no_reading_creates_a_topic(kafka_broker: Broker, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is deleted between the reading of its offsets and of its records is reported, and stays deleted."""
    kafka = Kafka(kafka_broker.bootstrap, kafka_prefix, {})
    monkeypatch.setattr(reading, "READ_S_MAX", 1)
    with pytest.raises(CouldNotVerify, match=r"\.ordering partition 0 cannot be read at offset 0: for 1 s, it has no leader"):
        list(reading._read(kafka, reading.TaskOffsets(("ordering", 0), 0, 1)))
    assert kafka.ordering not in kafka_broker.topics()


class _Client:
    """A client whose leader answers with these topics, one after the other."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.cluster = SimpleNamespace(leader_for_partition=lambda partition: 0)

    async def send(self, leader: int, request: object) -> object:
        return SimpleNamespace(topics=self.answers.pop(0))

    async def force_metadata_update(self) -> None:
        """Do nothing."""


def _compressed(base: int, octets: int) -> bytes:
    """Returns a batch with one record of that many bytes, compressed."""
    record = b"\0" + varint(0) + varint(0) + b"\x01" + varint(octets) + bytes(octets) + varint(0)
    body = pa.compress(varint(len(record)) + record, "zstd", asbytes=True)
    after = struct.pack(">hiqqqhii", 4 | 8, 0, 1, 1, -1, -1, -1, 1) + body
    return bytes(struct.pack(">qiibI", base, len(after) + 9, 0, 2, calc_crc32c(after)) + after)


@pytest.mark.parametrize("answer", [[], [("t", [(0, -1, 1, 1, 0, [], b"")])]])
def test_an_answer_without_records_is_asked_for_again(answer: object) -> None:
    """A broker whose client has used up its quota answers without any topic, and one with an unknown error may answer the next time."""
    fetched = _compressed(0, 10)
    client: Any = _Client(answer, [("t", [(0, 0, 1, 1, 0, [], fetched)])])
    assert asyncio.run(reading._fetch(client, KafkaPartition("t", 0), 0)) == (fetched, 1)


def test_a_client_over_its_quota_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that answers at once, and never with a topic, is asked some times a second, until the deadline."""
    monkeypatch.setattr(reading, "READ_S_MAX", 1)
    client: Any = _Client(*[[]] * 20)
    with pytest.raises(TimeoutError, match="a quota of this client is used up"):
        asyncio.run(reading._fetch(client, KafkaPartition("t", 0), 0))
    assert client.answers


def test_memory_of_one_fetch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch of few bytes may have many batches that are large when they are decompressed."""
    fetched = b"".join([_compressed(number, 20 << 20) for number in range(4)])

    async def found(*_: object) -> tuple[bytes, int]:
        return fetched, 4

    async def connect(*_: object) -> None:
        pass

    monkeypatch.setattr(reading, "_fetch", found)
    monkeypatch.setattr(reading, "_connect", connect)
    pieces = list(reading._read(Kafka("b:1", "p", {}), reading.TaskOffsets(("payload", 0), 0, 4)))
    assert [(piece.num_rows, piece.nbytes < 21 << 20) for piece in pieces] == [(1, True)] * 4
