"""Digests of partitions, to compare two copies: count, offsets, and SHA-256 over offsets, append times, keys and values."""

import struct
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from spark_join.log.log import Place

RECORD: Final = ("offset", "append_time_ms", "key", "value")
_NONE: Final = -1
_HEAD = struct.Struct(">qqii")
_FOUND = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("offset_first", pa.int64()),
        ("offset_last", pa.int64()),
        ("digest", pa.binary()),
    ]
)


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


def digests(records: DataFrame) -> dict[Place, Digest]:
    """Returns the digest of each partition of the records of `kafka.read_records`; partitions without records are left out."""

    def digested(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        digester, place = Digester(), None
        for batch in batches:
            if batch.num_rows:
                place = batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()
                digester.add(batch)
        if place is not None:
            found = digester.digest()
            row = {"topic": place[0], "partition": place[1], **msgspec.structs.asdict(found)}
            yield pa.RecordBatch.from_pylist([row], _FOUND)

    rows = records.mapInArrow(digested, from_arrow_schema(_FOUND)).collect()
    return {(row.topic, row.partition): Digest(row.records, row.offset_first, row.offset_last, bytes(row.digest)) for row in rows}
