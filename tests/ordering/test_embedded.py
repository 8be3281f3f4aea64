"""Tests `EmbeddedLog` beyond the contract: crashes, damage, and the errors at opening."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rocksdict import Options, Rdict

from ordering import store
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError, Fatal, FatalCode, OutcomeUnknown
from ordering.local_reader import POLL_BYTES_MAX, POLL_RECORDS_MAX
from ordering.log import ORDERING, LogOffsets, Record
from ordering.store import KEY, META_KEY, STORE_FORMAT_VERSION
from tests.open_files import errors_with_few_open_files
from tests.ordering.closing import closing
from tests.turns import counted_turns

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a log with two payload partitions."""
    EmbeddedLog.create(tmp_path / "log", 2)
    return tmp_path / "log"


@pytest.fixture
async def log(directory: Path) -> AsyncIterator[EmbeddedLog]:
    """That log, open until the end of the test."""
    async with closing(EmbeddedLog.open(directory)) as opened:
        yield opened


def child(directory: Path, code: str, **options: Any) -> "subprocess.Popen[str]":
    """Start another process that opens the log as `log` and runs `code`, the body of an async function."""
    script = (
        "import asyncio, resource, sys\n"
        "from ordering.embedded import EmbeddedLog\n"
        "from ordering.errors import *\n"
        "async def main():\n"
        "    log = EmbeddedLog.open(sys.argv[1])\n" + textwrap.indent(textwrap.dedent(code), "    ") + "\nasyncio.run(main())\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([sys.executable, "-c", script, str(directory)], stdout=subprocess.PIPE, text=True, env=environment, **options)


async def read_all(log: EmbeddedLog) -> list[Record]:
    reader = await log.open_reader({})
    records: list[Record] = []
    while more := await reader.poll(0):
        records += more
    return records


async def reopened(directory: Path) -> list[Record]:
    """Returns all records of a log, which is opened for this."""
    async with closing(EmbeddedLog.open(directory)) as log:
        return await read_all(log)


def opens_damaged(directory: Path) -> None:
    """Check that the log does not open, because it is damaged."""
    with pytest.raises(Fatal) as raised:
        EmbeddedLog.open(directory)
    assert raised.value.code is FatalCode.LOG_DAMAGED


@pytest.mark.seconds
async def test_kill_loses_nothing_acknowledged(directory: Path) -> None:
    """A process killed with -9 during appends leaves every acknowledged record, at dense offsets, in order."""
    acknowledged: set[int] = set()
    for _ in range(2):
        process = child(
            directory,
            """
            writer = await log.open_writer()
            async def append(number):
                await writer.append(number % 2, b"%d" % number, bytes(number % 5000))
                print(number)
            first = sum(offsets.log_end for offsets in (await log.offsets()).values())
            await asyncio.gather(*[append(number) for number in range(first, first + 20_000)])
            """,
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(500)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines(keepends=True)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        acknowledged |= {int(line) for line in lines if line.endswith("\n")}

        records = await reopened(directory)
        for partition in (0, 1):
            mine = [record for record in records if record.partition == partition]
            assert [record.offset for record in mine] == list(range(len(mine)))
        assert acknowledged <= {int(record.key or b"") for record in records}


async def test_goes_on_where_it_was(directory: Path) -> None:
    """A reopened log has the same identity, partitions and next offsets as when it was closed."""
    log = EmbeddedLog.open(directory)
    identity = log.identity
    for number in range(3):
        writer = await log.open_writer()
        await writer.append(1, b"key", b"%d" % number)
        await log.close()
        log = EmbeddedLog.open(directory)
    assert (log.identity, log.payload_partitions) == (identity, 2)
    assert (await log.offsets())[1] == LogOffsets(0, 3)
    assert [record.value for record in await read_all(log)] == [b"0", b"1", b"2"]
    await log.close()


def test_every_log_has_its_own_identity(tmp_path: Path) -> None:
    """Two logs never have the same identity."""
    assert EmbeddedLog.create(tmp_path / "a") != EmbeddedLog.create(tmp_path / "b")


@pytest.mark.seconds
async def test_second_process_is_refused(directory: Path) -> None:
    """While one process has the log open, another one gets an error that says so."""
    process = child(directory, "print('open'); sys.stdin.read(); await log.close()", stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    with pytest.raises(ConfigurationError, match="open elsewhere"):
        EmbeddedLog.open(directory)
    process.communicate("")
    log = EmbeddedLog.open(directory)
    with pytest.raises(ConfigurationError, match="open elsewhere"):
        EmbeddedLog.open(directory)
    await log.close()


def test_a_missing_store_is_not_created(tmp_path: Path) -> None:
    """Opening a missing store is an error, and creates nothing."""
    with pytest.raises(ConfigurationError, match=r"no log in .*notary init"):
        EmbeddedLog.open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_create_refuses_what_is_there(directory: Path, tmp_path: Path) -> None:
    """A log is never created over another one, nor among other files."""
    with pytest.raises(ConfigurationError, match="holds a log already"):
        EmbeddedLog.create(directory)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a").touch()
    with pytest.raises(ConfigurationError, match="not an empty directory"):
        EmbeddedLog.create(tmp_path / "files")
    with pytest.raises(ConfigurationError, match="at least one payload partition"):
        EmbeddedLog.create(tmp_path / "other", 0)


@pytest.mark.seconds
def test_a_log_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    """A file in the way, too long a name, a full disk: the error of the operating system or of RocksDB is reported with the path."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "log", tmp_path / ("x" * 300)):
        for use in (EmbeddedLog.create, EmbeddedLog.open):
            with pytest.raises(ConfigurationError, match="log in "):
                use(path)
    script = """
        import resource, sys
        from ordering.embedded import EmbeddedLog
        from ordering.errors import ConfigurationError
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, -1))
        try:
            EmbeddedLog.create(sys.argv[1])
        except ConfigurationError as problem:
            print(problem)
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "log")]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True).stdout
    assert f"cannot make a log in {tmp_path / 'log'}: " in printed


def change_meta(directory: Path, row: bytes | None) -> None:
    options = Options(raw_mode=True)
    store = Rdict(str(directory), options)
    if row is None:
        store.delete(META_KEY)
    else:
        store.put(META_KEY, row)
    store.close()


def test_newer_format_is_refused(directory: Path) -> None:
    """A store of a newer format, whatever else it has, is not opened, and the message says to upgrade."""
    change_meta(directory, msgspec.json.encode({"format_version": STORE_FORMAT_VERSION + 1, "shards": ["new"]}))
    with pytest.raises(ConfigurationError, match=r"format 2.*up to 1.*upgrade"):
        EmbeddedLog.open(directory)


def test_interrupted_creation_is_refused(directory: Path) -> None:
    """A store without its meta row never became a log: the message says to remove it."""
    change_meta(directory, None)
    with pytest.raises(ConfigurationError, match=r"not created to its end.*remove"):
        EmbeddedLog.open(directory)


def test_damaged_meta_is_fatal(directory: Path) -> None:
    """A meta row that does not decode stops the opening."""
    change_meta(directory, b"{}")
    opens_damaged(directory)


def crashed_with(directory: Path, count: int, length: int) -> Path:
    """Append `count` records in a process that is then killed; returns the write-ahead log file that holds them."""
    process = child(
        directory,
        f"""
        writer = await log.open_writer()
        for number in range({count}):
            await writer.append(0, b"%d" % number, b"v" * {length})
        print("done")
        sys.stdin.read()
        """,
        stdin=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    process.kill()
    process.communicate()
    return max(directory.glob("*.log"))


@pytest.mark.seconds
async def test_torn_tail_is_dropped(directory: Path) -> None:
    """A torn last write was never acknowledged: the log opens without it."""
    file = crashed_with(directory, count=3, length=500)
    os.truncate(file, file.stat().st_size - 100)
    async with closing(EmbeddedLog.open(directory)) as log:
        assert [record.key for record in await read_all(log)] == [b"0", b"1"]
        writer = await log.open_writer()
        await writer.append(0, b"next", None)
        assert (await read_all(log))[-1].offset == 2


def overwrite(file: Path, at: int, what: bytes) -> None:
    """Damage a file; a negative `at` counts from the end."""
    with file.open("r+b") as damaged:
        damaged.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        damaged.write(what)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("length", "at", "what"),
    [(500, -100, bytes(100)), (500, -510, bytes(510)), (10_000, -6_000, bytes(4_096)), (200_000, -100_000, bytes(4_096)), (500, -5, b"x")],
    ids=["end", "all", "page", "page-of-many-blocks", "byte"],
)
async def test_torn_write_of_full_length_is_dropped(
    directory: Path, length: int, at: int, what: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A last write of which a machine crash left only some pages was not acknowledged: it is dropped, and the drop is logged."""
    overwrite(crashed_with(directory, count=3, length=length), at, what)
    # A recovery that was itself interrupted leaves a next, empty file.
    (directory / "999998.log").touch()
    for _ in range(2):
        assert [record.key for record in await reopened(directory)] == [b"0", b"1"]
    assert len(caplog.records) == 1
    assert "a crash interrupted" in caplog.text
    async with closing(EmbeddedLog.open(directory)) as log:
        await (await log.open_writer()).append(0, b"next", bytes(length))
    assert [record.key for record in await reopened(directory)] == [b"0", b"1", b"next"]


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("count", "length", "at", "what"),
    [
        (20, 5_000, 30_000, b"\xff" * 16),
        (20, 5_000, 30_000, bytes(4_096)),
        (3, 100, 60, b"x"),
        (9, 10, -80, b"x"),
        (2, 200_000, 100_000, bytes(4_096)),
    ],
    ids=["bytes", "page", "first-of-few", "last-but-one", "page-of-many-blocks"],
)
def test_damage_in_the_middle_is_fatal(directory: Path, count: int, length: int, at: int, what: bytes) -> None:
    """Damage before the last write would lose acknowledged records, so the log does not open; it stays unchanged."""
    file = crashed_with(directory, count=count, length=length)
    overwrite(file, at, what)
    before = file.read_bytes()
    for _ in range(2):
        opens_damaged(directory)
    assert file.read_bytes() == before


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["log", "BLOCKS"])
def test_damage_elsewhere_is_fatal(tmp_path: Path, name: str) -> None:
    """A store whose write-ahead log is complete but whose other files are damaged does not open. RocksDB's error has its path."""
    directory = tmp_path / name
    EmbeddedLog.create(directory, 2)
    crashed_with(directory, count=3, length=500)
    overwrite(max(directory.glob("MANIFEST-*")), 20, b"\xff" * 16)
    opens_damaged(directory)


@pytest.mark.seconds
async def test_full_disk_breaks_the_log(directory: Path) -> None:
    """After a failed write its appends have an unknown outcome, the log is unusable, and every acknowledged record is there."""
    process = child(
        directory,
        """
        writer = await log.open_writer()
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        number = 0
        try:
            while True:
                await writer.append(0, b"%d" % number, bytes(10_000))
                number += 1
        except OutcomeUnknown as problem:
            print(number, problem)
        for call in (log.offsets, log.open_writer, lambda: log.open_reader({})):
            try:
                await call()
            except Fatal as problem:
                print("fatal", problem)
        try:
            await writer.append(0, b"again", None)
        except OutcomeUnknown:
            print("broken")
        await log.close()
        print("closed")
        """,
    )
    output, _ = process.communicate()
    first, *fatal, broken, closed = output.splitlines()
    assert closed == "closed"
    assert "could not be written" in first
    assert len(fatal) == 3
    assert all("cannot be used any more" in line for line in fatal)
    assert broken == "broken"
    acknowledged = int(first.split()[0])
    assert acknowledged > 0
    assert [record.key for record in await reopened(directory)][:acknowledged] == [b"%d" % number for number in range(acknowledged)]


@pytest.mark.parametrize("why", ["No space left on device", "Disk quota exceeded"])
def test_a_full_disk_is_no_damage(why: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log whose disk is full does not open, and nobody is advised to replace it by a copy, which would lack its last records."""

    def full(*_: object) -> None:
        raise Exception(f"IO error: {why}: While appending to file: {directory}/000017.sst: {why}")

    monkeypatch.setattr("ordering.store.Rdict", full)
    with pytest.raises(Fatal, match=rf"cannot be opened.*{why}.*free or replace the disk") as raised:
        EmbeddedLog.open(directory)
    assert raised.value.code is FatalCode.DISK_FULL
    assert "copy" not in str(raised.value)


def test_a_log_that_needs_more_open_files_is_not_damaged(directory: Path) -> None:
    """No message proposes to restore it from a copy, which would lack its last records, or to stop another process."""
    problems = [str(problem) for problem in errors_with_few_open_files(lambda: EmbeddedLog.open(directory), ConfigurationError)]
    assert problems
    assert [problem for problem in problems if "raise this process's limit" not in problem] == []


async def test_a_rotten_block_is_no_empty_partition(directory: Path) -> None:
    """Where RocksDB cannot read the last record of a partition, it shows none. New records would get the offsets of lost ones."""
    log = EmbeddedLog.open(directory)
    writer = await log.open_writer()
    for partition in (ORDERING, 0, 1):
        await writer.append(partition, b"key", None)
    await log.close()
    newest = max(directory.glob("*.sst"))
    overwrite(newest, 0, bytes(16))
    with pytest.raises(Fatal, match="the embedded log cannot be read") as raised:
        EmbeddedLog.open(directory)
    assert raised.value.code is FatalCode.LOG_DAMAGED


class HeldDisk:
    """A disk that holds a log's writes before their fsync until the test releases them, and counts the groups."""

    def __init__(self, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[int] = []
        self.reached = threading.Semaphore(0)
        self.may_go = threading.Semaphore(0)
        write = log._write

        def held(group: list[Any]) -> None:
            self.groups.append(len(group))
            self.reached.release()
            self.may_go.acquire()
            write(group)

        monkeypatch.setattr(log, "_write", held)

    async def until_reached(self) -> None:
        await asyncio.to_thread(self.reached.acquire)


async def test_an_append_returns_after_its_fsync(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB counts the syncs of its write-ahead log: a record that is only in the cache of the system is not acknowledged."""
    made = store.options(create=False)
    made.enable_statistics()
    monkeypatch.setattr(store, "options", lambda create: made)
    log = EmbeddedLog.open(directory)
    writer = await log.open_writer()
    for number in range(1, 4):
        await writer.append(0, b"key", None)
        assert f"rocksdb.wal.synced COUNT : {number}\n" in str(made.get_statistics())
    await log.close()


async def test_groups_what_waits(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """All appends that come during an fsync share the next one, and a record is readable only after its own."""
    disk = HeldDisk(log, monkeypatch)
    writer, reader = await log.open_writer(), await log.open_reader({})
    first = asyncio.create_task(writer.append(0, b"first", None))
    await disk.until_reached()
    others = [asyncio.create_task(writer.append(0, b"%d" % number, None)) for number in range(50)]
    await asyncio.sleep(0)
    assert await reader.poll(0) == []
    assert (await log.offsets())[0] == LogOffsets(0, 0)
    assert not first.done()
    disk.may_go.release()
    await first
    assert [record.key for record in await reader.poll(1)] == [b"first"]
    await disk.until_reached()
    disk.may_go.release()
    await asyncio.gather(*others)
    assert disk.groups == [1, 50]
    assert [record.key for record in await reader.poll(1)] == [b"%d" % number for number in range(50)]


async def test_close_waits_for_the_disk(directory: Path, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits for the fsync in progress, and fails the later appends."""
    disk = HeldDisk(log, monkeypatch)
    writer = await log.open_writer()
    first = asyncio.create_task(writer.append(0, b"first", None))
    await disk.until_reached()
    second = asyncio.create_task(writer.append(0, b"second", None))
    await asyncio.sleep(0)
    ending = asyncio.create_task(log.close())
    with pytest.raises(OutcomeUnknown, match="closed"):
        await second
    assert not ending.done()
    disk.may_go.release()
    await ending
    await first
    assert [record.key for record in await reopened(directory)] == [b"first"]


async def test_append_time_is_the_clock_at_the_append(directory: Path) -> None:
    """The log reads its clock once per append, in the order of the calls, and stores the result."""
    times = iter([1_000, 500, 2**40])
    log = EmbeddedLog.open(directory, clock_ms=lambda: next(times))
    writer = await log.open_writer()
    await asyncio.gather(*[writer.append(ORDERING, None, b"entry") for _ in range(3)])
    await log.close()
    assert [record.append_time_ms for record in await reopened(directory)] == [1_000, 500, 2**40]


async def test_a_poll_is_bounded(log: EmbeddedLog) -> None:
    """One poll returns at most about POLL_BYTES_MAX and at most POLL_RECORDS_MAX records, and no topic-partition starves."""
    writer = await log.open_writer()
    await asyncio.gather(*[writer.append(0, b"key", bytes(1024 * 1024)) for _ in range(20)])
    await asyncio.gather(*[writer.append(1, b"key", None) for _ in range(2 * POLL_RECORDS_MAX)])
    reader = await log.open_reader({})
    polls = [await reader.poll(0) for _ in range(5)]
    for records in polls:
        assert len(records) <= POLL_RECORDS_MAX
        assert sum(len(record.value or b"") for record in records) <= POLL_BYTES_MAX + 1024 * 1024
    assert {record.partition for records in polls[:2] for record in records} == {0, 1}


async def test_readers_give_others_their_turn(log: EmbeddedLog) -> None:
    """A replay that never waits still lets the rest of the event loop run between its polls."""
    writer = await log.open_writer()
    await asyncio.gather(*[writer.append(0, b"key", bytes(1024 * 1024)) for _ in range(30)])
    reader = await log.open_reader({})
    polls = 0
    async with counted_turns() as turns:
        while await reader.poll(0):
            polls += 1
    assert 1 < polls <= turns.count


async def test_a_lost_record_is_noticed_in_a_long_read(log: EmbeddedLog) -> None:
    """A poll that ends at its limit of bytes must not give the records behind a lost one its offset."""
    writer = await log.open_writer()
    for number in range(6):
        await writer.append(0, b"k", bytes([number]) * (3 << 20))
    log._store.delete(KEY.pack(1, 1))
    reader = await log.open_reader({})
    with pytest.raises(Fatal, match="lacks the record at offset 1"):
        await reader.poll(0)
