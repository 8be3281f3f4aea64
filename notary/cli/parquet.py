"""The Parquet files of `notary export` (docs/spark.md, Exported indexes).

Columns are written in row groups, so that memory is bounded for an index of any size. Files are hashed while they are written. Import this
module late: it needs pyarrow.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from notary.decision import Decision
from ordering.durable import sync, sync_directory
from ordering.ids import StateRef, TransactionId

GROUP_ROWS_MAX: Final = 1 << 16
GROUP_CONFLICTS_MAX: Final = 1 << 18
"""The number of conflicts at which a row group of decisions ends; one decision may list 10,000."""
FILE_BYTES_MAX: Final = 256 << 20
"""The size after which the next row group goes to a new file."""

_CONFLICT = pa.struct([("state", pa.binary(36)), ("kind", pa.int32()), ("consumed_by", pa.binary(32))])
_DECISIONS = pa.schema(
    [
        ("position", pa.int64()),
        ("id", pa.binary(32)),
        ("log_time_ms", pa.int64()),
        ("outcome", pa.int32()),
        ("conflicts", pa.list_(_CONFLICT)),
    ]
)
_STATES = pa.schema([("state", pa.binary(36)), ("id", pa.binary(32)), ("position", pa.int64())])


class ExportedFile(msgspec.Struct, frozen=True):
    """One file of an export; `path` is relative to the export's folder."""

    path: str
    rows: int
    sha256: str


def write_decisions(decisions: Iterable[Decision], folder: Path) -> Iterator[ExportedFile | int]:
    """Write `decisions/` in `folder`. Yields the number of rows after each row group, and each file once it is durable."""
    return _write((_decision_columns(group) for group in _groups(decisions)), _DECISIONS, folder, "decisions")


def write_states(states: Iterable[tuple[StateRef, TransactionId, int]], folder: Path) -> Iterator[ExportedFile | int]:
    """Write `states/` in `folder`. Yields the same as `write_decisions`."""
    columns = ([list(column) for column in zip(*group, strict=True)] for group in _groups(states))
    return _write(columns, _STATES, folder, "states")


def _groups(rows: Iterable[Any]) -> Iterator[list[Any]]:
    group: list[Any] = []
    conflicts = 0
    for row in rows:
        group.append(row)
        if isinstance(row, Decision):
            conflicts += len(row.conflicts)
        if len(group) == GROUP_ROWS_MAX or conflicts >= GROUP_CONFLICTS_MAX:
            yield group
            group, conflicts = [], 0
    if group:
        yield group


def _decision_columns(group: list[Decision]) -> list[list[Any]]:
    return [
        [decision.position for decision in group],
        [decision.transaction_id for decision in group],
        [decision.log_time_ms for decision in group],
        [int(decision.outcome) for decision in group],
        [[(c.state, int(c.kind), c.consumed_by) for c in decision.conflicts] for decision in group],
    ]


def _write(groups: Iterable[list[list[Any]]], schema: pa.Schema, folder: Path, name: str) -> Iterator[ExportedFile | int]:
    file: _File | None = None
    number = rows = 0
    for columns in groups:
        if file is None:
            number += 1
            file = _File(folder, f"{name}/{number:08}.parquet", schema)
        file.add(columns)
        rows += len(columns[0])
        yield rows
        if file.bytes >= FILE_BYTES_MAX:
            yield file.finish()
            file = None
    if file is not None:
        yield file.finish()
    sync_directory(folder / name)


class _File:
    """A Parquet file that is being written, and the sink to which pyarrow writes it."""

    closed = False

    def __init__(self, folder: Path, path: str, schema: pa.Schema) -> None:
        self.bytes = 0
        self._path = path
        self._rows = 0
        self._digest = sha256()
        self._out = (folder / path).open("xb")
        self._schema = schema
        self._writer = pq.ParquetWriter(self, schema, compression="zstd")

    def write(self, part: bytes) -> int:
        """Write and hash bytes from pyarrow. Returns their number."""
        self._digest.update(part)
        self.bytes += len(part)
        return self._out.write(part)

    def tell(self) -> int:
        """Returns the number of bytes written."""
        return self.bytes

    def flush(self) -> None:
        """Do nothing: `finish` makes the file durable."""

    def close(self) -> None:
        """Do nothing: pyarrow calls this before `finish` has synced the file."""

    def add(self, columns: list[list[Any]]) -> None:
        """Write one row group."""
        self._writer.write_table(pa.table(columns, schema=self._schema))
        self._rows += len(columns[0])

    def finish(self) -> ExportedFile:
        """Complete the file and sync it. Returns its description."""
        self._writer.close()
        sync(self._out)
        self._out.close()
        return ExportedFile(self._path, self._rows, self._digest.hexdigest())
