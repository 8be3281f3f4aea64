"""The store of the embedded log: its rows, byte for byte, and RocksDB's options.

| key | value |
|---|---|
| u32 partition + 1 (0: ordering), u64 offset | i64 append time in ms, i32 length of key (-1: none), u8 has a value, key, value |
| `ff ff ff ff` `meta` | JSON: format version, payload partitions, identity |

Keys are big-endian, so that a scan follows the order of a partition. Offsets are dense from 0. Values of 1 KB and more go to blob files, so
that compactions of the keys do not write them again.
"""

import errno
import os
from pathlib import Path
from struct import Struct, error
from typing import Final

import msgspec
from rocksdict import DBCompressionType, DBRecoveryMode, Options, Rdict, RdictIter

from ordering.errors import ConfigurationError, CorruptRecord, Fatal, FatalCode
from ordering.log import Record, describe
from ordering.torn import only_last_write_torn

STORE_FORMAT_VERSION: Final = 1
"""The format of the store, as in the table above; a newer one is not opened."""

_NO_SPACE: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
"""Parts of RocksDB's errors when the disk is full, or this user's quota on it."""
OPEN_FILES: Final = os.strerror(errno.EMFILE)
"""A part of the errors of RocksDB and Python for a process, or a machine, that has as many open files as it may have."""

_LOCK = "/LOCK: "
KEY: Final = Struct(">IQ")
_VALUE_HEAD = Struct(">qiB")
META_KEY: Final = b"\xff\xff\xff\xffmeta"


class Version(msgspec.Struct):
    """The one field that the meta row has in every format."""

    format_version: int


class Meta(Version):
    """The meta row of this format."""

    payload_partitions: int
    identity: str


def options(create: bool) -> Options:
    """Returns RocksDB's options; each one that differs from its default is explained below."""
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_error_if_exists(create)
    # A failed checksum anywhere stops the opening: RocksDB's own default (point in time) would silently drop every record behind it.
    # `open_store` handles a last write that a crash interrupted. A file that lost its end opens without it, since nothing in the file shows
    # the loss. An index that had read further shows it (R8).
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


def is_store(path: Path) -> bool:
    """Returns True if RocksDB has a store here; checked first, because rocksdict creates the directory. Raises `ConfigurationError`."""
    try:
        return (path / "CURRENT").is_file()
    except OSError as problem:
        raise ConfigurationError(f"cannot look for a log in {path}: {problem.strerror}") from problem


def create_store(path: Path, meta: Meta) -> None:
    """Create a store in an empty directory, with its meta row. Raises `ConfigurationError`.

    A crash before that row is durable leaves a store without one, which `read_meta` refuses: nothing was acknowledged yet.
    """
    try:
        store = Rdict(str(path), options(create=True))
        try:
            write_meta(store, meta)
        finally:
            store.close()
    except Exception as problem:  # rocksdict raises nothing more specific
        raise ConfigurationError(f"cannot make a log in {path}: {problem}") from problem


def write_meta(store: Rdict, meta: Meta) -> None:
    """Write the meta row, durably."""
    store.put(META_KEY, msgspec.json.encode(meta))
    store.flush_wal(True)


def has_no_space(problem: BaseException) -> bool:
    """Returns True for an error of RocksDB on a full disk, or over a quota: that is no damage."""
    return any(text in str(problem) for text in _NO_SPACE)


def open_store(path: Path) -> tuple[Rdict, str | None]:
    """Returns the store, and RocksDB's error about a last write that a crash interrupted, or None.

    Such a write was never acknowledged and is dropped. Raises `ConfigurationError` when another process has the store open, or this one
    may not open its files, `Fatal` when it is damaged or its disk is full.
    """
    settings = options(create=False)
    try:
        try:
            return Rdict(str(path), settings), None
        except Exception as problem:  # rocksdict raises nothing more specific, so only its text can be checked
            if _LOCK in str(problem) or not only_last_write_torn(path):
                raise
            # Recover up to the damage, which is the end. A crash from here on leaves the same file, and perhaps an empty one after it.
            settings.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
            return Rdict(str(path), settings), str(problem)
    except Exception as problem:
        if has_no_space(problem):  # recovery writes too; an older copy would lack acknowledged records
            what = f"the log in {path} cannot be opened: {problem}; free or replace the disk, then restart"
            raise Fatal(FatalCode.DISK_FULL, what) from problem
        if OPEN_FILES in str(problem):
            what = f"the log in {path} cannot be opened: {problem}; raise this process's limit of open files (`ulimit -n`, `LimitNOFILE=`)"
            raise ConfigurationError(what) from problem
        if _LOCK in str(problem):
            raise ConfigurationError(f"the log in {path} is open elsewhere: one process only; stop the other one first") from problem
        raise Fatal(FatalCode.LOG_DAMAGED, f"the log in {path} cannot be opened: {problem}; restore it from a copy") from problem


def read_meta(store: Rdict, path: Path) -> Meta:
    """Returns the meta row. Raises `ConfigurationError` for a newer format or an interrupted creation, `Fatal` for a damaged row."""
    row = store.get(META_KEY)
    if row is None:
        raise ConfigurationError(f"{path} was not created to its end, and is empty: remove it, then create the log again")
    try:
        # Decode only the version first: a newer format may have changed everything else.
        if (version := msgspec.json.decode(row, type=Version).format_version) > STORE_FORMAT_VERSION:
            raise ConfigurationError(
                f"the log in {path} has store format {version}, this software reads up to {STORE_FORMAT_VERSION}: upgrade it"
            )
        return msgspec.json.decode(row, type=Meta)
    except msgspec.DecodeError as problem:
        raise Fatal(
            FatalCode.LOG_DAMAGED, f"the meta row of the log in {path} does not decode: {problem}; restore it from a copy"
        ) from problem


def end_in(store: Rdict, partition: int) -> int:
    """Returns the offset after the last record of a partition. Raises `Fatal` when it cannot be read."""
    rows = store.iter()
    rows.seek_for_prev(KEY.pack(partition + 1, 2**64 - 1))
    if not rows.valid():
        _check(rows)
        return 0
    number, offset = KEY.unpack(rows.key())
    return int(offset) + 1 if number == partition + 1 else 0


def _check(rows: RdictIter) -> None:
    """Raise `Fatal` if the iterator met damage: it then ends as if there were no more rows, and only its status differs."""
    try:
        rows.status()
    except Exception as problem:  # rocksdict raises nothing more specific
        raise Fatal(FatalCode.LOG_DAMAGED, f"the embedded log cannot be read: {problem}; restore it from a copy") from problem


def encode_row(append_time_ms: int, key: bytes | None, value: bytes | None) -> bytes:
    """Returns the value of a record's row."""
    head = _VALUE_HEAD.pack(append_time_ms, -1 if key is None else len(key), value is not None)
    return b"".join((head, key or b"", value or b""))


def decode_row(partition: int, offset: int, row: bytes) -> Record:
    """Returns the record of a row. Raises `CorruptRecord` if the row is too short to be one."""
    try:
        append_time_ms, key_length, has_value = _VALUE_HEAD.unpack_from(row)
    except error as problem:
        raise CorruptRecord(f"row {offset} of {describe(partition)} has {len(row)} bytes") from problem
    at = _VALUE_HEAD.size + max(key_length, 0)
    key = None if key_length < 0 else row[_VALUE_HEAD.size : at]
    return Record(partition, offset, append_time_ms, key, row[at:] if has_value else None)
