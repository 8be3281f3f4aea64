"""`EmbeddedLog`: one process, one RocksDB store in a directory, fsynced before it acknowledges. The default to start with.

What it survives: the crash of its process and of its machine; not the loss of its disk. It trusts the disk to keep what fsync
said it kept, and trusts RocksDB's checksums to notice when it did not.

| key | value |
|---|---|
| u32 stream + 1 (0: ordering), u64 offset | i64 append time in ms, i32 length of key (-1: none), u8 has a value, key, value |
| `ff ff ff ff` `meta` | JSON: format version, payload partitions, identity |

Keys are big-endian, so that a scan is in the order of a stream. Offsets are dense from 0. Values of 1 KB and more go to blob
files: they are written once and never again, however often the keys are compacted.

Appends are committed in groups: while one group is being fsynced, the next one gathers, so that a slow disk costs latency and
not throughput. The fsync runs in the log's one thread; all else runs on the event loop.
"""

import asyncio
import os
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec
from rocksdict import DBCompressionType, DBRecoveryMode, Options, Rdict, ReadOptions, WriteBatch

from ordering.errors import ConfigurationError, CorruptRecord, Fatal, NotReady, OutcomeUnknown
from ordering.log import ORDERING, Bounds, Record
from ordering.memory import clock_ms
from ordering.stream import Arrivals, LocalReader, describe, size

STORE_FORMAT_VERSION: Final = 1
"""The format of the store, as the table above tells it; a newer one is not opened."""

RECORD_BYTES_MAX: Final = 8 * 1024 * 1024
"""The longest record, as in a Kafka topic (`max.message.bytes`)."""

_KEY = Struct(">IQ")
_VALUE_HEAD = Struct(">qiB")
_META_KEY: Final = b"\xff\xff\xff\xffmeta"


class _Version(msgspec.Struct):
    format_version: int


class _Meta(_Version):
    payload_partitions: int
    identity: str


class _Pending(msgspec.Struct):
    """One append that waits for its fsync."""

    stream: int
    key: bytes
    value: bytes
    durable: asyncio.Future[None]


class EmbeddedLog:
    """A `Log` in a directory of this machine, for one process at a time. Made by `create`, used by `open`."""

    def __init__(self, store: Rdict, meta: _Meta, clock_ms: Callable[[], int]) -> None:
        """For `open` only."""
        self._store = store
        self._meta = meta
        self._clock_ms = clock_ms
        # The next offset to give away, and the first one that readers may not see yet: in between lies what awaits its fsync.
        self._offsets_next = {stream: _end_in(store, stream) for stream in range(ORDERING, meta.payload_partitions)}
        self._ends_visible = dict(self._offsets_next)
        self._arrivals = Arrivals()
        self._pending: list[_Pending] = []
        self._committer: asyncio.Task[None] | None = None
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedded-log")
        self._failure: str | None = None
        self._closed = False

    @staticmethod
    def create(directory: Path | str, payload_partitions: int = 16) -> str:
        """Make a new, empty log and return its identity. Raises `ConfigurationError` if the directory is not empty."""
        path = Path(directory)
        if payload_partitions < 1:
            raise ConfigurationError(f"a log has at least one payload partition, not {payload_partitions}")
        if _is_store(path):
            raise ConfigurationError(f"{path} holds a log already: open it, or name another directory")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigurationError(f"{path} is not an empty directory: name another one for the new log")
        path.mkdir(parents=True, exist_ok=True)
        meta = _Meta(STORE_FORMAT_VERSION, payload_partitions, f"embedded:{uuid.uuid4()}")
        store = Rdict(str(path), _options(create=True))
        try:
            # A crash before the meta row is durable leaves a store without one, which `open` refuses: nothing was promised yet.
            store.put(_META_KEY, msgspec.json.encode(meta))
            store.flush_wal(True)
        finally:
            store.close()
        # RocksDB syncs its own directory; that the directory itself is there, only its parent can say.
        _sync_directory(path.parent)
        return meta.identity

    @classmethod
    def open(cls, directory: Path | str, clock_ms: Callable[[], int] = clock_ms) -> "EmbeddedLog":
        """Open a log that exists; blocks while the tail that was not yet in tables is read back.

        Raises `ConfigurationError` when there is no log, another process has it open, or its format is newer than this
        software; `Fatal` when the store is damaged.
        """
        path = Path(directory)
        if not _is_store(path):
            raise ConfigurationError(f"there is no log in {path}: create one there first, or name the right directory")
        store = _open_store(path)
        try:
            meta = _read_meta(store, path)
            # Records that a crash left in the operating system's cache were read back just now. Before any reader sees one it
            # has to be durable, or a second crash, of the machine this time, would take it back.
            store.flush(True)
            return cls(store, meta, clock_ms)
        except BaseException:
            store.close()
            raise

    @property
    def payload_partitions(self) -> int:
        """How many payload partitions the log was created with."""
        return self._meta.payload_partitions

    @property
    def identity(self) -> str:
        """Made up when the log was created."""
        return self._meta.identity

    async def open_writer(self) -> "EmbeddedWriter":
        """Raises `NotReady` after close, `Fatal` after the disk failed."""
        self.check_open()
        return EmbeddedWriter(self)

    async def open_reader(self, offsets_next: Mapping[int, int]) -> LocalReader:
        """Raises `NotReady` after close, `Fatal` after the disk failed, `ConfigurationError` for an unknown partition."""
        self.check_open()
        return LocalReader(self, self._arrivals, offsets_next)

    async def bounds(self) -> Mapping[int, Bounds]:
        """Raises `NotReady` after close, `Fatal` after the disk failed."""
        self.check_open()
        return {stream: Bounds(0, end) for stream, end in self._ends_visible.items()}

    def leaders(self) -> Mapping[int, str | None]:
        """Every payload partition, in no data centre."""
        return dict.fromkeys(range(self.payload_partitions))

    async def close(self) -> None:
        """Wait for the fsync under way, fail the appends behind it with `OutcomeUnknown`, and let another process in."""
        if self._closed:
            return
        self._closed = True
        self._fail_pending("the log was closed")
        self._arrivals.notify()
        if self._committer is not None:
            await asyncio.wait([self._committer])
        self._disk.shutdown()
        self._store.close()

    def check_open(self) -> None:
        """Raises `NotReady` after close, `Fatal` after the disk failed."""
        if self._closed:
            raise NotReady("this log is closed")
        if self._failure is not None:
            raise Fatal(f"the embedded log cannot be used any more: {self._failure}; free or replace the disk, then restart")

    def end(self, stream: int) -> int:
        """The offset after the last durable record."""
        return self._ends_visible[stream]

    def read(self, stream: int, offset_next: int, bytes_max: int, records_max: int) -> list[Record]:
        """Durable records from `offset_next` on, up to the limits; at least one if there is one."""
        count = min(self._ends_visible[stream] - offset_next, records_max)
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(_KEY.pack(stream + 1, offset_next + count))
        bounds.set_readahead_size(1024 * 1024)
        rows = self._store.values(from_key=_KEY.pack(stream + 1, offset_next), read_opt=bounds)
        taken: list[Record] = []
        for offset, row in enumerate(rows, offset_next):
            record = _decode(stream, offset, row)
            taken.append(record)
            bytes_max -= size(record)
            if bytes_max <= 0:
                break
        else:
            if len(taken) != count:
                raise Fatal(f"{describe(stream)} lacks a record between offsets {offset_next} and {offset_next + count}: restore it")
        return taken

    def put(self, stream: int, key: bytes | None, value: bytes | None) -> asyncio.Future[None]:
        """Give a record its offset and append time, now; the future is done when it is durable, or holds `OutcomeUnknown`."""
        self.check_open()
        if stream not in self._offsets_next:
            raise ConfigurationError(f"this log has no {describe(stream)}, it has {self.payload_partitions}")
        offset = self._offsets_next[stream]
        self._offsets_next[stream] = offset + 1
        durable = asyncio.get_running_loop().create_future()
        row = _encode(self._clock_ms(), key, value)
        self._pending.append(_Pending(stream, _KEY.pack(stream + 1, offset), row, durable))
        if self._committer is None or self._committer.done():
            self._committer = asyncio.create_task(self._commit(), name="embedded-log-committer")
        return durable

    async def _commit(self) -> None:
        """Commit one group after the other, until nobody waits."""
        loop = asyncio.get_running_loop()
        while self._pending and self._failure is None:
            group, self._pending = self._pending, []
            try:
                await loop.run_in_executor(self._disk, self._write, group)
            except Exception as problem:  # rocksdict raises nothing more special
                # What the disk holds is unknown now, and an fsync that failed once may "succeed" the next time without having
                # written: so no second try, and no record of this group is shown to anybody before a restart has looked.
                self._failure = f"the store could not be written: {problem}"
                for pending in group:
                    _fail(pending.durable, self._failure)
                self._fail_pending(self._failure)
                self._arrivals.notify()
                return
            # A crash here leaves records that nobody was told of, and that the next open shows: allowed by the contract.
            for pending in group:
                self._ends_visible[pending.stream] += 1
                if not pending.durable.done():
                    pending.durable.set_result(None)
            self._arrivals.notify()

    def _write(self, group: list[_Pending]) -> None:
        """Make a group durable; in the log's thread. `write` holds the GIL but is short, `flush_wal` is long and does not."""
        batch = WriteBatch(raw_mode=True)
        for pending in group:
            batch.put(pending.key, pending.value)
        # A crash between the two lines may keep all of the group or nothing of it: it is one batch, and nobody was told.
        self._store.write(batch)
        self._store.flush_wal(True)

    def _fail_pending(self, why: str) -> None:
        pending, self._pending = self._pending, []
        for one in pending:
            _fail(one.durable, why)


class EmbeddedWriter:
    """A `Writer` into an `EmbeddedLog`."""

    def __init__(self, log: EmbeddedLog) -> None:
        self._log = log
        self._broken: str | None = None

    async def append(self, stream: int, key: bytes | None, value: bytes | None) -> None:
        """Returns after the fsync. Raises `OutcomeUnknown` if that failed, or the writer or the log is closed."""
        assert key is not None or value is not None, "a record has a key or a value"
        assert len(key or b"") + len(value or b"") <= RECORD_BYTES_MAX, "records are cut to size before they come here"
        if self._broken is not None:
            raise OutcomeUnknown(f"this writer cannot be used any more, open another: {self._broken}")
        try:
            await self._log.put(stream, key, value)
        except (OutcomeUnknown, NotReady) as problem:
            self._broken = str(problem)
            raise OutcomeUnknown(self._broken) from problem

    async def close(self) -> None:
        """Appends that wait for their fsync go on waiting; it is short, or it fails them."""
        self._broken = "it was closed"


def _options(create: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_error_if_exists(create)
    # A write that a crash cut short at the very end was never acknowledged and is dropped. Damage anywhere else in the
    # write-ahead log stops the opening: RocksDB's own default would quietly forget every record behind it.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    # Payloads are signed and hashed bytes, hardly worth compressing.
    options.set_compression_type(DBCompressionType.none())
    options.set_enable_blob_files(True)
    options.set_min_blob_size(1024)
    options.set_blob_file_size(256 * 1024 * 1024)
    options.set_write_buffer_size(64 * 1024 * 1024)
    options.set_keep_log_file_num(4)
    options.set_max_open_files(512)
    return options


def _is_store(path: Path) -> bool:
    return (path / "CURRENT").is_file()


def _open_store(path: Path) -> Rdict:
    try:
        return Rdict(str(path), _options(create=False))
    except Exception as problem:  # rocksdict raises nothing more special, so its text is all there is to go by
        if "LOCK" in str(problem):
            raise ConfigurationError(f"the log in {path} is open elsewhere: one process only; stop the other one first") from problem
        raise Fatal(f"the log in {path} cannot be opened: {problem}; restore it from a copy") from problem


def _read_meta(store: Rdict, path: Path) -> _Meta:
    row = store.get(_META_KEY)
    if row is None:
        raise ConfigurationError(f"{path} was not created to its end, and is empty: remove it, then create the log again")
    try:
        # The version alone first: a newer format may have changed all else.
        if (version := msgspec.json.decode(row, type=_Version).format_version) > STORE_FORMAT_VERSION:
            raise ConfigurationError(
                f"the log in {path} has store format {version}, this software reads up to {STORE_FORMAT_VERSION}: upgrade it"
            )
        return msgspec.json.decode(row, type=_Meta)
    except msgspec.DecodeError as problem:
        raise Fatal(f"the meta row of the log in {path} does not decode: {problem}; restore it from a copy") from problem


def _end_in(store: Rdict, stream: int) -> int:
    """The offset after the last record that the store has of a stream."""
    rows = store.iter()
    rows.seek_for_prev(_KEY.pack(stream + 1, 2**64 - 1))
    if not rows.valid():
        return 0
    number, offset = _KEY.unpack(rows.key())
    return int(offset) + 1 if number == stream + 1 else 0


def _encode(append_time_ms: int, key: bytes | None, value: bytes | None) -> bytes:
    head = _VALUE_HEAD.pack(append_time_ms, -1 if key is None else len(key), value is not None)
    return b"".join((head, key or b"", value or b""))


def _decode(stream: int, offset: int, row: bytes) -> Record:
    try:
        append_time_ms, key_length, has_value = _VALUE_HEAD.unpack_from(row)
    except Exception as problem:
        raise CorruptRecord(f"row {offset} of {describe(stream)} has {len(row)} bytes") from problem
    at = _VALUE_HEAD.size + max(key_length, 0)
    key = None if key_length < 0 else row[_VALUE_HEAD.size : at]
    return Record(stream, offset, append_time_ms, key, row[at:] if has_value else None)


def _fail(durable: asyncio.Future[None], why: str) -> None:
    if not durable.done():
        durable.set_exception(OutcomeUnknown(why))
        # Whoever was cancelled meanwhile does not look any more; that is no reason for asyncio to complain.
        durable.exception()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
