"""The Parquet files of an archive, and digests of their records.

The task that reads the records of a partition writes them, one row group after the other, and reads them back. A digest compares two copies
of a partition: count, offsets, and SHA-256 over offsets, append times, keys and values.
"""

import errno
import struct
from collections.abc import Iterable
from hashlib import file_digest, sha256
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_join.engine.files import sync_file, sync_folder
from spark_join.log import TopicPartition
from spark_join.log.kafka import OffsetRange

SCHEMA: Final = pa.schema([("offset", pa.int64()), ("append_time_ms", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
"""The columns of an archived record."""
RECORD: Final = tuple(SCHEMA.names)
UNFINISHED: Final = ".new"
"""The end of the name of a file while it is written: only such files are removed without a look at their records."""
_NONE: Final = -1
_HEAD = struct.Struct(">qqii")
_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ArchivedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One Parquet file: a partition's records from `offset_first` up to `offset_end`, exclusive."""

    path: Annotated[str, msgspec.Meta(pattern=r"^[a-z]+/partition=[0-9]+/\w[\w.-]*\.parquet$")]
    """Relative to the archive's folder."""
    topic: Literal["ordering", "payload"]
    partition: _Offset
    offset_first: _Offset
    offset_end: _Offset
    records: _Offset
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic-partition of its records."""
        return self.topic, self.partition


class Digest(msgspec.Struct, frozen=True):
    """The digest of a run of records; both offsets are None if the run is empty."""

    records: int
    offset_first: int | None
    offset_last: int | None
    digest: bytes


class Digester:
    """Computes the digest of records in order; how they are split into batches makes no difference."""

    def __init__(self) -> None:
        self._records = 0
        self._first: int | None = None
        self._last: int | None = None
        self._hash = sha256()

    def add(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Add records with the columns of `RECORD`."""
        for record in zip(*(batch.column(name).to_pylist() for name in RECORD), strict=True):
            self.add_one(*record)

    def add_one(self, offset: int, append_time_ms: int, key: bytes | None, value: bytes | None) -> None:
        """Add one record; times are in ms since 1970."""
        sizes = (_NONE if octets is None else len(octets) for octets in (key, value))
        self._hash.update(_HEAD.pack(offset, append_time_ms, *sizes))
        self._hash.update(key or b"")
        self._hash.update(value or b"")
        self._records += 1
        self._first = offset if self._first is None else self._first
        self._last = offset

    def digest(self) -> Digest:
        """Returns the digest of all records so far."""
        return Digest(self._records, self._first, self._last, self._hash.digest())


def digest_of(batches: Iterable[pa.RecordBatch | pa.Table]) -> Digest:
    """Returns the digest of the records of these batches."""
    digester = Digester()
    for batch in batches:
        digester.add(batch)
    return digester.digest()


def open_regular(file: Path) -> BufferedReader:
    """Opens a regular file to read it. Raises `OSError`; also for a pipe, which would be waited for."""
    if file.exists() and not file.is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no regular file", str(file))
    return open(file, "rb")


def fault_of_file(folder: Path, listed: ArchivedFile) -> str | None:
    """Returns a sentence about a file that differs from its range in bytes, columns or records; None if it does not."""
    file = folder / listed.path
    try:
        with open_regular(file) as opened:
            found = file_digest(opened, "sha256").hexdigest()
    except OSError as problem:
        return f"{file} cannot be read ({problem.strerror}), and its range lists it"
    if found != listed.sha256:
        return f"{file}: its range lists SHA-256 {listed.sha256}, the file has {found}"
    try:
        with pq.ParquetFile(file) as parquet:
            if parquet.schema_arrow != SCHEMA:
                return f"{file} has other columns than an archive's: {', '.join(parquet.schema_arrow.names)}"
            number, last, rising = 0, listed.offset_first - 1, True
            for batch in parquet.iter_batches(columns=["offset", "append_time_ms"]):
                if batch.column(1).null_count:
                    return f"{file} has records without an append time"
                for offset in batch.column(0).to_pylist():
                    rising = rising and offset is not None and last < offset < listed.offset_end
                    number, last = number + 1, offset
    except (OSError, ValueError) as problem:
        return f"{file} is no Parquet: {problem}"
    if number != listed.records or not rising:
        expected = f"its range says {listed.records} at offsets that rise from {listed.offset_first} up to {listed.offset_end}"
        return f"{file} holds {number} records{'' if rising else ' at other offsets'}, and {expected}"
    return None


def has_copies(file: Path, copies: Iterable[tuple[Path, int, int]]) -> bool:
    """Returns True if other files have all records of a file; False for one that cannot be read, or has other columns than an archive's.

    `copies` are files with their first and last offset, exclusive, in the order of their offsets.
    """
    try:
        with pq.ParquetFile(file) as parquet:
            if parquet.schema_arrow != SCHEMA:
                return False
        found = _read_back(file)
    except (OSError, ValueError):
        return False
    digester = Digester()
    if found.offset_first is not None and found.offset_last is not None:
        for copy, offset_first, offset_end in copies:
            if offset_end <= found.offset_first or found.offset_last < offset_first:
                continue
            with pq.ParquetFile(copy) as parquet:
                for group in range(parquet.num_row_groups):
                    offset = pc.field("offset")
                    within = (offset >= found.offset_first) & (offset <= found.offset_last)
                    digester.add(parquet.read_row_group(group).filter(within))
    return found == digester.digest()


def write_file(
    folder: Path, name: str, topic_partition: TopicPartition, offset_range: OffsetRange, batches: Iterable[pa.RecordBatch]
) -> ArchivedFile:
    """Write the file of a partition's records in this range, and read it back. Raises `OSError`, also if it reads back otherwise."""
    topic, partition = topic_partition
    path = f"{topic}/partition={partition}/{name}.parquet"
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    read = Digester()
    unfinished = folder / f"{path}{UNFINISHED}"
    with open(unfinished, "xb") as file:
        # No dictionaries, since all keys and values differ. Only statistics of offsets and times: those of values would fill the footer.
        with pq.ParquetWriter(file, SCHEMA, compression="zstd", use_dictionary=False, write_statistics=list(RECORD[:2])) as writer:
            for batch in batches:
                read.add(batch)
                writer.write_batch(batch.select(RECORD).cast(SCHEMA))
        sync_file(file)
    unfinished.rename(folder / path)
    for named in (folder / path).parents[:3]:
        sync_folder(named)
    found = _read_back(folder / path)
    if found != read.digest():
        raise OSError(f"{folder / path} was written with {read.digest()} and reads back as {found}: do not trust this disk")
    with open(folder / path, "rb") as file:
        written_sha256 = file_digest(file, "sha256").hexdigest()
    offsets = offset_range.offset_first, offset_range.offset_end
    return ArchivedFile(path, topic, partition, *offsets, found.records, written_sha256)  # type: ignore[arg-type]


def _read_back(file: Path) -> Digest:
    with pq.ParquetFile(file) as parquet:
        return digest_of(parquet.read_row_group(group) for group in range(parquet.num_row_groups))
