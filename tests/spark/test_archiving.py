"""Tests archives that are interrupted, written twice at once, or of another log; and restores that are interrupted, or come too late."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ordering.log import ORDERING, Record
from spark_join.archiving import Archived, _last_record, archive
from spark_join.arguments import RANGE_RECORDS_MAX
from spark_join.engine.session import cause
from spark_join.engine.stages import OnStage
from spark_join.errors import CouldNotVerify
from spark_join.log.archive import read_archive, unlisted
from spark_join.log.client import Kafka
from spark_join.log.files import ArchivedFile, Digest, has_copies
from spark_join.log.kafka import Admin, read_log_offsets
from spark_join.log.reading import digests, read_kafka
from spark_join.log.restore import TOPIC_SETTINGS, Restored, _make_ready, restore
from tests.checkers.signed_log import SignedLog
from tests.spark.archived import archive as archive_of
from tests.spark.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]

GENESIS = SignedLog(1).by_partition[-1][0].value or b""
VALUES = {-1: [GENESIS, b"o2"], 0: [b"p1", b"p2", b"p3"]}


def _ignore(stage: str) -> None:
    pass


def _at(stage: str, act: Callable[[], object]) -> OnStage:
    def begun(name: str) -> None:
        if name == stage:
            act()

    return begun


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def kafka(kafka_broker: Broker, kafka_prefix: str) -> Kafka:
    """A log of five records."""
    kafka_broker.make(kafka_prefix)
    kafka_broker.append(kafka_prefix, VALUES)
    return Kafka(kafka_broker.bootstrap, kafka_prefix, {})


def _copy(kafka: Kafka) -> Kafka:
    return Kafka(kafka.bootstrap, f"{kafka.prefix}-copy", {})


def _there(spark: SparkSession, kafka: Kafka) -> dict[tuple[str, int], Digest]:
    return digests(spark, kafka, read_log_offsets(Admin(kafka), kafka))


def _archived(
    spark: SparkSession, kafka: Kafka, folder: Path, on_stage: OnStage = _ignore, range_records_max: int = RANGE_RECORDS_MAX
) -> list[Archived]:
    return list(archive(spark, kafka, folder, on_stage, range_records_max))


def _restored(
    spark: SparkSession, kafka: Kafka, folder: Path, on_stage: OnStage = _ignore, on_warning: Callable[[str], None] = _ignore, **how: Any
) -> Restored:
    return restore(spark, kafka, folder, on_stage, on_warning, **how)


def _names(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_what_a_crash_left_is_replaced(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    """Files and an unnamed range, as a kill leaves them, are neither read nor kept; an interrupted run leaves none."""
    with pytest.raises(KeyboardInterrupt):
        _archived(spark, kafka, tmp_path, _at("range 1", _interrupt))
    assert _names(tmp_path) == set()
    left = ("ordering/partition=0/00000001-x-0.parquet.new", "payload/partition=0/00000001-x-1.parquet.new", "ranges/00000001-x.tmp")
    for file in left:
        (tmp_path / file).write_bytes(b"half")
    assert _archived(spark, kafka, tmp_path) == [Archived(1, 5, {}, 0)]
    complete = _names(tmp_path)
    assert len(complete) == 3
    assert not complete & {*left}
    damaged, later = "payload/partition=0/00000001-x-1.parquet", "payload/partition=0/00000002-x-1.parquet"
    for file in (*left, damaged, later):  # a range is lost; another run may be writing it
        (tmp_path / file).write_bytes(b"half")
    assert _archived(spark, kafka, tmp_path) == []
    (moved,) = _names(tmp_path) - complete - {later}
    assert moved.endswith(f"/{damaged}")
    assert [bytes(row.value) for row in read_archive(spark, tmp_path).payload.orderBy("offset").collect()] == VALUES[0]


def test_last_file_that_was_replaced(tmp_path: Path) -> None:
    """If another Parquet file is in the place of the last one, the message names the file and both hashes."""
    path = "ordering/partition=0/00000001-x-0.parquet"
    (tmp_path / path).parent.mkdir(parents=True)
    pq.write_table(pa.table({"offset": [1], "value": [b"x"]}), tmp_path / path)
    listed = ArchivedFile(path, "ordering", 0, 0, 2, 2, "ab" * 32)
    with pytest.raises(CouldNotVerify, match=f"{path}: its range lists SHA-256 {'ab' * 32}, the file has "):
        _last_record(tmp_path, listed)


def test_a_parquet_file_of_somebody_else_has_no_copies(tmp_path: Path) -> None:
    """It is moved aside, whatever the types of its columns."""
    for values in ([b"x"], ["x"], [1.5]):
        pq.write_table(pa.table({"offset": [1], "append_time_ms": values, "key": values, "value": values}), tmp_path / "x.parquet")
        assert not has_copies(tmp_path / "x.parquet", [])


def test_files_of_a_lost_range_are_kept(spark: SparkSession, kafka: Kafka, kafka_broker: Broker, tmp_path: Path) -> None:
    """If a range is lost and archived again, files whose records the log no longer has are moved aside; copies are removed."""
    _archived(spark, kafka, tmp_path)
    kafka_broker.append(kafka.prefix, {-1: [b"o3"], 0: [b"p4"]})
    _archived(spark, kafka, tmp_path)
    (ordering,) = tmp_path.glob("ordering/partition=0/00000002-*")
    (payload,) = tmp_path.glob("payload/partition=0/00000002-*")
    rows = pq.ParquetFile(ordering).read()
    pq.write_table(rows.set_column(3, rows.schema.field(3), [[b"another o3"]]), ordering)
    (tmp_path / "ranges/00000002.json").unlink()
    assert _archived(spark, kafka, tmp_path) == [Archived(2, 2, {}, 0)]
    moved = f"aside/ordering/partition=0/{ordering.name}"
    assert f"no range lists 1 of the files in {tmp_path}, {moved} first" in str(unlisted(tmp_path))
    assert pq.ParquetFile(tmp_path / moved).read()["value"].to_pylist() == [b"another o3"]
    assert not payload.exists()
    assert read_archive(spark, tmp_path).ordering.count() == 3


@pytest.mark.nightly
def test_first_archive_of_a_long_log(spark: SparkSession, kafka: Kafka, kafka_broker: Broker, tmp_path: Path) -> None:
    """A long log is archived in ranges, payloads of a minute first; a later run goes on from the last complete range to the log's end."""
    stages: list[str] = []
    ranges = archive(spark, kafka, tmp_path, _at("range 2", _interrupt), 2)
    assert next(ranges) == Archived(1, 1, {}, 4)
    with pytest.raises(KeyboardInterrupt):
        next(ranges)
    assert read_archive(spark, tmp_path).log_end_offsets == {("ordering", 0): 0, ("payload", 0): 1}
    assert len(_names(tmp_path)) == 2
    kafka_broker.append(kafka.prefix, {0: [b"p4"]})
    found = _archived(spark, kafka, tmp_path, stages.append, range_records_max=2)
    assert found == [Archived(2, 1, {}, 4), Archived(3, 2, {}, 2), Archived(4, 1, {}, 1), Archived(5, 1, {}, 0)]
    assert [stage for stage in stages if "range" in stage][::2] == [f"records of range {number}" for number in (2, 3, 4, 5)]
    log = read_archive(spark, tmp_path)
    assert [bytes(row.value) for row in log.payload.orderBy("offset").collect()] == [*VALUES[0], b"p4"]
    assert [bytes(row.value) for row in log.ordering.orderBy("offset").collect()] == VALUES[-1]
    assert _archived(spark, kafka, tmp_path) == []


def test_ranges_are_of_one_time(spark: SparkSession, kafka: Kafka, kafka_broker: Broker, tmp_path: Path) -> None:
    """Each range of a log that grew for long has the payloads of its time and of one minute more; the last one has the rest."""
    Admin(kafka).change(kafka.payload, {"message.timestamp.type": "CreateTime"})
    now_ms = int(time.time() * 1_000)
    kafka_broker.append(kafka.prefix, {0: [b"p4"]}, at_ms=now_ms - 600_000)
    kafka_broker.append(kafka.prefix, {0: [b"p5", b"p6", b"p7"], -1: [b"o3", b"o4"]}, at_ms=now_ms + 600_000)
    ranges = archive(spark, kafka, tmp_path, _ignore, 6)
    assert next(ranges) == Archived(1, 5, {}, 6)
    assert read_archive(spark, tmp_path).log_end_offsets == {("ordering", 0): 1, ("payload", 0): 4}
    assert list(ranges) == [Archived(2, 1, {}, 5), Archived(3, 1, {}, 4), Archived(4, 4, {}, 0)]


def test_a_partition_that_is_added_while_archiving(spark: SparkSession, kafka: Kafka, kafka_broker: Broker, tmp_path: Path) -> None:
    """A partition that did not exist when the run began is left to the next run."""
    Admin(kafka).change(kafka.payload, {"message.timestamp.type": "CreateTime"})

    def widen() -> None:
        kafka_broker.widen(kafka.prefix, 2)
        kafka_broker.append(kafka.prefix, {1: [b"new"]}, at_ms=int(time.time() * 1_000) + 600_000)

    added = _archived(spark, kafka, tmp_path, _at("genesis record", widen), range_records_max=4)
    assert sum(each.records for each in added) == 5
    assert _archived(spark, kafka, tmp_path) == [Archived(len(added) + 1, 1, {}, 0)]
    assert read_archive(spark, tmp_path).log_end_offsets == {("ordering", 0): 2, ("payload", 0): 3, ("payload", 1): 1}


def test_range_that_is_there_keeps_its_files(spark: SparkSession, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure after a range has its name removes no file that it lists."""

    def fail(folder: Path) -> None:
        raise OSError("the disk does not sync")

    monkeypatch.setattr("spark_join.archiving.sync_folder", fail)
    with pytest.raises(OSError, match="does not sync"):
        _archived(spark, kafka, tmp_path)
    assert read_archive(spark, tmp_path).payload.count() == 3
    assert _archived(spark, kafka, tmp_path) == []


def test_files_that_the_driver_does_not_see(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    """A file of the executors that the driver does not see, or sees differently, makes no range: they do not share the folder."""

    def elsewhere(file: Path) -> None:
        file.rename(tmp_path.parent / file.name)

    def cut(file: Path) -> None:
        file.write_bytes(file.read_bytes()[:-1])

    for harm, found in ((elsewhere, r" cannot be read"), (cut, r": .* the file has [0-9a-f]{64}")):

        def harmed(harm: Callable[[Path], None] = harm) -> None:
            (file,) = tmp_path.glob("payload/partition=0/*.parquet")
            harm(file)

        message = rf"/payload/partition=0/00000001-\S+\.parquet{found}.*: all executors and the driver must reach the archive"
        with pytest.raises(CouldNotVerify, match=message):
            _archived(spark, kafka, tmp_path, _at("range 1", harmed))
        assert _names(tmp_path) == set()
    assert _archived(spark, kafka, tmp_path) == [Archived(1, 5, {}, 0)]


def test_of_two_runs_at_once_one_keeps_its_files(spark: SparkSession, kafka: Kafka, kafka_broker: Broker, tmp_path: Path) -> None:
    """The run whose range is first keeps its files if two run at once; the other reports that and removes its own."""

    def overtake() -> None:
        kafka_broker.append(kafka.prefix, {0: [b"p4"]})
        assert _archived(spark, kafka, tmp_path) == [Archived(1, 6, {}, 0)]

    with pytest.raises(CouldNotVerify, match=r"somebody else has archived .*/ranges/00000001\.json meanwhile.* start again"):
        _archived(spark, kafka, tmp_path, _at("range 1", overtake))
    assert len(_names(tmp_path)) == 3
    assert read_archive(spark, tmp_path).payload.count() == 4
    assert _archived(spark, kafka, tmp_path) == []


def test_what_goes_while_it_is_read(spark: SparkSession, kafka: Kafka, kafka_broker: Broker, tmp_path: Path) -> None:
    """Records that are deleted after the ends were found fail the run, which reports that and leaves nothing."""
    with pytest.raises((PySparkException, Py4JJavaError)) as failed:
        _archived(spark, kafka, tmp_path, _at("records of range 1", lambda: kafka_broker.delete(kafka.prefix, 0, 2)))
    assert cause(failed.value).endswith(f"{kafka.payload} partition 0 cannot be read at offset 0: [Error 1] OffsetOutOfRangeError")
    assert _names(tmp_path) == set()


def test_archive_of_another_log(spark: SparkSession, kafka: Kafka, kafka_broker: Broker, tmp_path: Path) -> None:
    """An archive grows only by its own log: not by another notary's, a shorter one, one with another past, or one without genesis."""
    _archived(spark, kafka, tmp_path)
    before = _names(tmp_path)

    def refused(prefix: str, message: str) -> None:
        with pytest.raises(CouldNotVerify, match=message):
            _archived(spark, Kafka(kafka.bootstrap, prefix, {}), tmp_path)
        assert _names(tmp_path) == before

    other, wide = f"{kafka.prefix}-other", f"{kafka.prefix}-wide"
    wide_archive, new_archive = (tmp_path.with_name(f"{tmp_path.name}-{name}") for name in ("wide", "new"))
    kafka_broker.make(wide, 2)
    kafka_broker.append(wide, {-1: VALUES[-1]})
    _archived(spark, Kafka(kafka.bootstrap, wide, {}), wide_archive)
    kafka_broker.make(other)
    with pytest.raises(CouldNotVerify, match=r"with 2 payload partitions, and .* has 1: it is another log"):
        _archived(spark, Kafka(kafka.bootstrap, other, {}), wide_archive)
    kafka_broker.append(other, {0: VALUES[0]})
    for values, message in (([], "it has no record at offset 0"), ([b"o1"], "its first record is malformed")):
        kafka_broker.append(other, {-1: values})
        with pytest.raises(CouldNotVerify, match=f"does not begin with a genesis record: {message}"):
            _archived(spark, Kafka(kafka.bootstrap, other, {}), new_archive)
    refused(other, r"-other\.ordering partition 0 ends at offset 1, and it is archived up to 2: it lost its end, or is another log")
    kafka_broker.append(other, {-1: [b"o2"]})
    refused(other, r"offset 1 of .*-other\.ordering partition 0 is not the record that is archived")
    kafka_broker.append(kafka.prefix, {0: [b"p4", b"p5"]})
    kafka_broker.delete(kafka.prefix, 0, 2)
    assert _archived(spark, kafka, tmp_path) == [Archived(2, 2, {}, 0)]
    before = _names(tmp_path)
    kafka_broker.delete(kafka.prefix, 0, 5)
    refused(kafka.prefix, r"payload partition 0 begins at offset 5, and offset 4 would show")
    with pytest.raises(CouldNotVerify, match=r"payload partition 0 begins at offset 5: the records before are deleted"):
        read_kafka(spark, kafka)
    with pytest.raises(CouldNotVerify, match=r"begins at offset 5, and offset 0 would show"):
        _archived(spark, kafka, new_archive)


@pytest.mark.nightly
def test_restore_goes_on(spark: SparkSession, kafka: Kafka, kafka_broker: Broker, tmp_path: Path) -> None:
    """A restore that was interrupted is finished only on request; a finished one is recognized.

    A restore never writes to a log that is in use.
    """
    _archived(spark, kafka, tmp_path)
    copy = _copy(kafka)
    with pytest.raises(KeyboardInterrupt):
        _restored(spark, copy, tmp_path, _at("what is there now", _interrupt))
    with pytest.raises(CouldNotVerify, match=r"has records, and .*\.ordering is open as a restore leaves it .* --continue"):
        _restored(spark, copy, tmp_path)
    kafka_broker.append(kafka.prefix, {0: [b"p4"]})
    _archived(spark, kafka, tmp_path)
    other = Kafka(kafka.bootstrap, f"{kafka.prefix}-other", {})
    kafka_broker.make(other.prefix)
    kafka_broker.append(other.prefix, {-1: VALUES[-1], 0: [*VALUES[0], b"p4"]})
    _archived(spark, other, tmp_path / "other")
    before = _there(spark, copy)
    with pytest.raises(
        CouldNotVerify, match=r"-copy\.\w+ partition 0 holds .* is no interrupted restore of this archive, and nothing is appended to it"
    ):
        _restored(spark, copy, tmp_path / "other", go_on=True)
    assert _there(spark, copy) == before
    restored = _restored(spark, copy, tmp_path, go_on=True)
    assert (restored.records, restored.appended) == ({"ordering": 2, "payload": 4}, 1)
    assert _there(spark, copy) == _there(spark, kafka)
    Admin(copy).change(copy.payload, {"message.timestamp.type": "CreateTime"})
    assert _restored(spark, copy, tmp_path, go_on=True) == msgspec.structs.replace(restored, appended=0)
    assert Admin(copy).setting(copy.payload, "message.timestamp.type") == "LogAppendTime"
    in_use = r"-copy\.ordering exists and has records: nothing is written to a log that is in use"
    with pytest.raises(CouldNotVerify, match=in_use):
        _restored(spark, copy, tmp_path)
    with pytest.raises(
        CouldNotVerify, match=r"-copy\.\w+ partition 0 holds .* is no interrupted restore of this archive, and nothing is appended to it"
    ):
        _restored(spark, copy, tmp_path / "other", go_on=True)
    assert _there(spark, copy) == _there(spark, kafka)
    kafka_broker.append(copy.prefix, {0: [b"p5"]})
    with pytest.raises(CouldNotVerify, match=in_use):
        _restored(spark, copy, tmp_path, go_on=True)


def test_restore_up_to_an_offset(spark: SparkSession, kafka: Kafka, kafka_broker: Broker, tmp_path: Path) -> None:
    """The ordering records from the offset on are left out, and all payloads restored; `--continue` knows the result."""
    _archived(spark, kafka, tmp_path)
    copy, before = _copy(kafka), _there(spark, kafka)
    kafka_broker.append(kafka.prefix, {-1: [b"o3", b"o4"], 0: [b"p4"]})
    _archived(spark, kafka, tmp_path)
    for until in (0, 4):
        with pytest.raises(CouldNotVerify, match=rf"--until {until} should be 1 to 3: the archive has the ordering records up to offset 3"):
            _restored(spark, copy, tmp_path, until=until)
    assert _restored(spark, copy, tmp_path, until=2).records == {"ordering": 2, "payload": 4}
    there = _there(spark, copy)
    assert there["ordering", 0] == before["ordering", 0]
    assert there["payload", 0] == _there(spark, kafka)["payload", 0]
    assert _restored(spark, copy, tmp_path, go_on=True, until=2).appended == 0
    with pytest.raises(CouldNotVerify, match="nothing is written to a log that is in use"):
        _restored(spark, copy, tmp_path, go_on=True)


@pytest.mark.parametrize(("ordering", "found"), [([], "no ordering record"), ([Record(-1, 0, 5, None, GENESIS)], "one ordering record")])
def test_restore_up_to_an_offset_of_nothing(spark: SparkSession, tmp_path: Path, ordering: list[Record], found: str) -> None:
    """An archive with less than two ordering records has none to leave out; no broker is asked."""
    archive_of({ORDERING: ordering, 0: [Record(0, 0, 5, None, b"p1")]}, tmp_path)
    nobody = Kafka("127.0.0.1:1", "copy", {})
    with pytest.raises(
        CouldNotVerify, match=f"{tmp_path} has {found}, so --until 1 has none to leave out behind the first: restore without"
    ):
        _restored(spark, nobody, tmp_path, until=1)


def test_restore_of_an_archive_without_its_end(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    """Without its last range an archive is restored only if the operator gives up the records in that range's files."""
    _archived(spark, kafka, tmp_path, range_records_max=3)
    last = max((tmp_path / "ranges").glob("*.json"))
    last.unlink()
    copy, warnings = _copy(kafka), list[str]()
    found = rf"no range lists 1 of the files in {tmp_path}, ordering/partition=0/{last.stem}-\S+\.parquet first"
    with pytest.raises(CouldNotVerify, match=rf"{found}.* with --without-unlisted"):
        _restored(spark, copy, tmp_path)
    assert Admin(copy).partitions(copy.ordering) is None
    restored = _restored(spark, copy, tmp_path, _ignore, warnings.append, without_unlisted=True)
    assert restored.records["ordering"] < len(VALUES[-1])
    assert re.match(found, warnings[0])


@pytest.mark.parametrize(("brokers", "replicas", "in_sync"), [(1, 1, "1"), (2, 2, "2"), (5, 3, "2")])
@pytest.mark.parametrize("there", [[], ["ordering"]])
def test_topics_keep_what_is_restored(there: list[str], brokers: int, replicas: int, in_sync: str) -> None:
    """Brokers delete by append time, so topics keep old records before the first is sent. A record is on two disks, if there are two."""
    changes = dict[str, Any]()
    admin: Any = SimpleNamespace(
        brokers=lambda: brokers,
        partitions=lambda topic: 1 if topic in there else None,
        create=lambda topics, replicas, settings: changes.update(dict.fromkeys(topics, (replicas, settings))),
        change=lambda topic, settings: changes.update({topic: settings}),
    )
    missing = {"ordering", "payload"} - {*there}
    assert _make_ready(admin, {"ordering": 1, "payload": 4}) == dict.fromkeys(missing, replicas)
    wanted = {**TOPIC_SETTINGS, "message.timestamp.type": "CreateTime"}
    for topic in there:
        assert wanted.items() <= changes.pop(topic).items()
    assert changes.keys() == missing
    for made, settings in changes.values():
        assert made == replicas
        assert {**wanted, "min.insync.replicas": in_sync}.items() <= settings.items()


def test_restored_topic_that_is_flushed(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    """On request the ordering topic has the setting of `notary init --flush-messages`, also if the restore is finished already."""
    _archived(spark, kafka, tmp_path)
    first, second = (Kafka(kafka.bootstrap, f"{kafka.prefix}-{name}", {}) for name in ("first", "second"))
    _restored(spark, first, tmp_path, flush_messages=True)
    _restored(spark, second, tmp_path)
    admin = Admin(kafka)
    unset = admin.setting(second.ordering, "flush.messages")
    assert _restored(spark, second, tmp_path, go_on=True, flush_messages=True).appended == 0
    for copy in (first, second):
        assert (admin.setting(copy.ordering, "flush.messages"), admin.setting(copy.payload, "flush.messages")) == ("1", unset)
        assert admin.setting(copy.ordering, "message.timestamp.type") == "LogAppendTime"
    assert unset != "1"


def test_somebody_else_writes_while_restoring(spark: SparkSession, kafka: Kafka, kafka_broker: Broker, tmp_path: Path) -> None:
    """Records that are not the archive's are found when everything is read back, and no worker starts on these topics.

    A topic with too few replicas is reported before anything is appended.
    """
    _archived(spark, kafka, tmp_path)
    copy = _copy(kafka)
    kafka_broker.make(copy.prefix)  # empty topics may exist

    warnings: list[str] = []

    def strange() -> None:
        few = "1 replicas instead of 3: the loss of a disk loses the log"
        assert warnings == [f"topic {topic} has {few}" for topic in (copy.ordering, copy.payload)]
        kafka_broker.append(copy.prefix, {0: [b"p1"]})

    with pytest.raises(CouldNotVerify, match=r"payload partition 0 holds .*: somebody else has written to it"):
        _restored(spark, copy, tmp_path, _at("records", strange), warnings.append)
    assert Admin(copy).setting(copy.ordering, "message.timestamp.type") == "CreateTime"
    with pytest.raises(CouldNotVerify, match=r"--continue, or delete both topics and start again. But a mirror is open too: do neither"):
        _restored(spark, copy, tmp_path)


def test_offsets_without_records_are_reported(spark: SparkSession, kafka: Kafka, kafka_broker: Broker, tmp_path: Path) -> None:
    """Offsets of transaction markers are reported when archived, even in a range without records; a restore on demand closes such gaps."""
    _archived(spark, kafka, tmp_path)
    kafka_broker.append(kafka.prefix, {0: [b"p4"]}, transactional_id=kafka.prefix)
    assert read_kafka(spark, kafka, {("payload", 0): 4}).payload.count() == 0
    few = read_kafka(spark, kafka, task_records_max=1)
    assert [frame.rdd.getNumPartitions() for frame in (few.ordering, few.payload)] == [2, 5]  # of which one reads the marker
    assert [bytes(row.value) for row in few.payload.orderBy("offset").collect()] == [*VALUES[0], b"p4"]
    assert [bytes(row.value) for row in few.ordering.orderBy("offset").collect()] == VALUES[-1]
    assert read_kafka(spark, kafka).ordering.rdd.getNumPartitions() == 1
    assert _archived(spark, kafka, tmp_path, range_records_max=1) == [Archived(2, 1, {}, 1), Archived(3, 0, {"payload 0": 1}, 0)]
    kafka_broker.append(kafka.prefix, {0: [b"p5"]})
    assert [row.offset for row in read_kafka(spark, kafka).payload.orderBy("offset").collect()] == [0, 1, 2, 3, 5]
    assert _archived(spark, kafka, tmp_path) == [Archived(4, 1, {}, 0)]
    copy = _copy(kafka)
    with pytest.raises(CouldNotVerify, match=r"has 5 records of payload partition 0 at 6 offsets: .* give --renumber"):
        _restored(spark, copy, tmp_path)
    assert Admin(copy).partitions(copy.payload) is None
    restored = _restored(spark, copy, tmp_path, renumber=True)
    assert (restored.appended, restored.replicas) == (7, {"ordering": 1, "payload": 1})
    read = read_kafka(spark, copy).payload.orderBy("offset").collect()
    assert [(row.offset, bytes(row.value)) for row in read] == list(enumerate([*VALUES[0], b"p4", b"p5"]))


def test_restore_up_to_an_offset_behind_a_gap(spark: SparkSession, kafka: Kafka, kafka_broker: Broker, tmp_path: Path) -> None:
    """`until` is an offset of the archive, also where the restored records get others."""
    kafka_broker.append(kafka.prefix, {-1: [b"o2"]}, transactional_id=kafka.prefix)
    while read_log_offsets(Admin(kafka), kafka)["ordering", 0].offset_end < 4:
        time.sleep(0.05)  # the broker writes the transaction's marker later
    kafka_broker.append(kafka.prefix, {-1: [b"o4", b"o5"]})
    _archived(spark, kafka, tmp_path)
    values = {0: GENESIS, 1: b"o2", 2: b"o2", 4: b"o4", 5: b"o5"}
    for until in (3, 4, 5):
        copy = Kafka(kafka.bootstrap, f"{kafka.prefix}-{until}", {})
        _restored(spark, copy, tmp_path, until=until, renumber=True)
        read = read_kafka(spark, copy).ordering.orderBy("offset").collect()
        wanted = [value for offset, value in values.items() if offset < until]
        assert [(row.offset, bytes(row.value)) for row in read] == list(enumerate(wanted))
