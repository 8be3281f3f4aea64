"""`EmbeddedLog`: one process, one RocksDB store in a directory, fsynced before it acknowledges. The default to start with.

It survives a crash of its process and of its machine, but not the loss of its disk. It trusts the disk to keep data once fsync has
returned, and RocksDB's checksums to detect a disk that does not.

Appends are committed in groups: while one group is being fsynced, the next one gathers. So a slow disk costs latency, not throughput. The
fsync runs in the log's only thread; everything else runs on the event loop.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
from rocksdict import Rdict, ReadOptions, WriteBatch

from ordering.clock import clock_ms
from ordering.durable import make_directory
from ordering.errors import ConfigurationError, Fatal, FatalCode, NotReady, OutcomeUnknown
from ordering.local_reader import LocalLog, size
from ordering.log import ORDERING, Record, describe
from ordering.settings import PAYLOAD_PARTITIONS_DEFAULT
from ordering.store import (
    KEY,
    STORE_FORMAT_VERSION,
    Meta,
    create_store,
    decode_row,
    encode_row,
    end_in,
    is_store,
    open_store,
    read_meta,
    write_meta,
)

logger = logging.getLogger(__name__)

RECORD_BYTES_MAX: Final = 8 * 1024 * 1024
"""The maximum size of a record's key and value together, as in a Kafka topic (`max.message.bytes`)."""


class _Pending(msgspec.Struct):
    """One append that waits for its fsync."""

    partition: int
    row_key: bytes
    row: bytes
    durable: asyncio.Future[None]


class EmbeddedLog(LocalLog):
    """A `Log` in a local directory, for one process at a time. Created by `create`, opened by `open`."""

    shown = "the embedded log"

    def __init__(self, store: Rdict, meta: Meta, clock_ms: Callable[[], int]) -> None:
        """Called by `open` only."""
        super().__init__(meta.payload_partitions, meta.identity)
        self._store = store
        self._meta = meta
        self._clock_ms = clock_ms
        # The next offset to assign, and the first offset that readers may not see yet: records in between wait for their fsync.
        self._offsets_next = {partition: end_in(store, partition) for partition in range(ORDERING, meta.payload_partitions)}
        self._ends_visible = dict(self._offsets_next)
        self._pending: list[_Pending] = []
        self._committer: asyncio.Task[None] | None = None
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedded-log")
        self._failure: str | None = None

    @staticmethod
    def create(directory: Path | str, payload_partitions: int = PAYLOAD_PARTITIONS_DEFAULT) -> str:
        """Create a new, empty log and return its identity.

        Raises `ConfigurationError` if the directory is not empty, or the log cannot be written; a partly written log is left there.
        """
        path = Path(directory)
        if payload_partitions < 1:
            raise ConfigurationError(f"a log has at least one payload partition, not {payload_partitions}")
        if is_store(path):
            raise ConfigurationError(f"{path} holds a log already: open it, or name another directory")
        meta = Meta(STORE_FORMAT_VERSION, payload_partitions, f"embedded:{uuid.uuid4()}")
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise ConfigurationError(f"{path} is not an empty directory: name another one for the new log")
            make_directory(path)  # RocksDB syncs what is in it
            create_store(path, meta)
        except OSError as problem:
            raise ConfigurationError(f"cannot make a log in {path}: {problem.strerror or problem}") from problem
        return meta.identity

    @classmethod
    def open(cls, directory: Path | str, clock_ms: Callable[[], int] = clock_ms) -> "EmbeddedLog":
        """Open an existing log; blocks while RocksDB replays its write-ahead log.

        Raises `ConfigurationError` when there is no log, another process has it open, or its format is newer than this software; `Fatal`
        when the store is damaged.
        """
        path = Path(directory)
        if not is_store(path):
            raise ConfigurationError(
                f"there is no log in {path}: `notary init` makes one; or name the right directory in the configuration"
            )
        store, torn = open_store(path)
        if torn is not None:
            logger.warning("a last write that a crash interrupted is dropped, it was never acknowledged log=%s found=%s", path, torn)
        try:
            meta = read_meta(store, path)
            # A crash may have left the recovered records only in the operating system's cache. Make them durable before a reader sees one:
            # otherwise a later crash of the machine could lose them.
            store.flush(True)
            return cls(store, meta, clock_ms)
        except BaseException:
            store.close()
            raise

    def add_payload_partitions(self, count: int) -> None:
        """Durably extend the log to `count` payload partitions, if it has fewer. For a command, while no worker runs."""
        self.check_open()
        if count <= self.payload_partitions:
            return
        self._meta = msgspec.structs.replace(self._meta, payload_partitions=count)
        write_meta(self._store, self._meta)
        self._payload_partitions = count
        # A crash here leaves partitions that no record declares, so no worker uses them.
        for partition in range(count):
            self._offsets_next.setdefault(partition, 0)
            self._ends_visible.setdefault(partition, 0)

    async def open_writer(self) -> "EmbeddedWriter":
        """Returns a new writer. Raises `NotReady` after close, `Fatal` after the disk failed."""
        self.check_open()
        return EmbeddedWriter(self)

    async def close(self) -> None:
        """Wait for the fsync under way, fail the appends queued behind it with `OutcomeUnknown`, and release the lock of the directory."""
        if self._closed:
            return
        self._closed = True
        self._fail_pending("the log was closed")
        self.arrivals.notify()
        if self._committer is not None:
            await asyncio.wait([self._committer])
        self._disk.shutdown()
        try:
            self._store.close()
        except Exception:  # rocksdict raises nothing more specific
            if self._failure is None:  # otherwise it repeats the error of the failed write
                raise

    def check_open(self) -> None:
        """Raise `NotReady` after close, `Fatal` after the disk failed."""
        super().check_open()
        if self._failure is not None:
            raise Fatal(
                FatalCode.LOG_UNWRITABLE,
                f"the embedded log cannot be used any more: {self._failure}; free or replace the disk, then restart",
            )

    def end(self, partition: int) -> int:
        """As `LocalLog` describes it."""
        return self._ends_visible[partition]

    def read(self, partition: int, offset_next: int, bytes_max: int, records_max: int) -> list[Record]:
        """As `LocalLog` describes it."""
        count = min(self._ends_visible[partition] - offset_next, records_max)
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(KEY.pack(partition + 1, offset_next + count))
        bounds.set_readahead_size(1024 * 1024)
        rows = self._store.items(from_key=KEY.pack(partition + 1, offset_next), read_opt=bounds)
        taken: list[Record] = []
        for offset in range(offset_next, offset_next + count):
            key, row = next(rows, (b"", b""))
            if key != KEY.pack(partition + 1, offset):
                raise Fatal(FatalCode.LOG_DAMAGED, f"{describe(partition)} lacks the record at offset {offset}: restore it")
            record = decode_row(partition, offset, row)
            taken.append(record)
            bytes_max -= size(record)
            if bytes_max <= 0:
                break
        return taken

    def put(self, partition: int, key: bytes | None, value: bytes | None) -> asyncio.Future[None]:
        """Assign a record its offset and append time now; the future completes when it is durable, or holds `OutcomeUnknown`."""
        self.check_open()
        if partition not in self._offsets_next:
            raise self._has_no(partition)
        offset = self._offsets_next[partition]
        self._offsets_next[partition] = offset + 1
        durable = asyncio.get_running_loop().create_future()
        row = encode_row(self._clock_ms(), key, value)
        self._pending.append(_Pending(partition, KEY.pack(partition + 1, offset), row, durable))
        if self._committer is None or self._committer.done():
            self._committer = asyncio.create_task(self._commit(), name="embedded-log-committer")
        return durable

    async def _commit(self) -> None:
        """Commit one group after another until no append waits."""
        loop = asyncio.get_running_loop()
        while self._pending and self._failure is None:
            group, self._pending = self._pending, []
            try:
                await loop.run_in_executor(self._disk, self._write, group)
            except Exception as problem:  # rocksdict raises nothing more specific
                # The content of the disk is unknown now, and a second fsync may "succeed" without having written anything. So there is no
                # second attempt, and no reader sees a record of this group before a restart has read the disk.
                self._failure = f"the store could not be written: {problem}"
                for pending in group:
                    _fail(pending.durable, self._failure)
                self._fail_pending(self._failure)
                self.arrivals.notify()
                return
            # A crash here leaves records without an acknowledgement, which the next open makes visible. The contract allows that.
            for pending in group:
                self._ends_visible[pending.partition] += 1
                if not pending.durable.done():
                    pending.durable.set_result(None)
            self.arrivals.notify()

    def _write(self, group: list[_Pending]) -> None:
        """Make a group durable; runs in the log's thread. `write` holds the GIL but is short, `flush_wal` is long and releases it."""
        batch = WriteBatch(raw_mode=True)
        for pending in group:
            batch.put(pending.row_key, pending.row)
        # A crash between the two lines keeps all of the group or nothing: it is one write batch, and none of it was acknowledged.
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

    async def append(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Returns after the fsync. Raises `OutcomeUnknown` if the fsync failed, or the writer or the log is closed."""
        assert key is not None or value is not None, "a record has a key or a value"
        assert len(key or b"") + len(value or b"") <= RECORD_BYTES_MAX, "the caller limits the size of a record"
        if self._broken is not None:
            raise OutcomeUnknown(f"this writer cannot be used any more, open another: {self._broken}")
        try:
            await self._log.put(partition, key, value)
        except (OutcomeUnknown, NotReady) as problem:
            self._broken = str(problem)
            raise OutcomeUnknown(self._broken) from problem

    async def close(self) -> None:
        """Mark the writer closed. Appends under way still wait for their fsync, which is short."""
        self._broken = "it was closed"


def _fail(durable: asyncio.Future[None], why: str) -> None:
    if not durable.done():
        durable.set_exception(OutcomeUnknown(why))
        # A cancelled caller never retrieves the exception; retrieve it here, so that asyncio does not log it.
        durable.exception()
