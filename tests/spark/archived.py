"""Logs of the other tests, as the archive holds them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.checkers.replay import ORDERING, LogRecord

_SCHEMA = pa.schema([("offset", pa.int64()), ("append_time_ms", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])


def archive(streams: Mapping[int, Sequence[LogRecord]], folder: Path) -> Path:
    """Write the log into `folder`, each partition in two files where it has as many records."""
    for stream, records in streams.items():
        place = folder / ("ordering/partition=0" if stream == ORDERING else f"payload/partition={stream}")
        place.mkdir(parents=True)
        half = len(records) // 2
        for number, some in enumerate((records[:half], records[half:])):
            columns = [[getattr(record, name) for record in some] for name in _SCHEMA.names]
            pq.write_table(pa.table(columns, schema=_SCHEMA), place / f"{number}.parquet", compression="zstd")
    return folder
