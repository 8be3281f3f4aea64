"""Logs of the other tests, as the archive holds them."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from spark_join.archive import ARCHIVE_VERSION, ArchivedFile, Range
from tests.checkers.replay import ORDERING, LogRecord
from tests.joiner.history import NOTARY

_SCHEMA = pa.schema([("offset", pa.int64()), ("append_time_ms", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])


def archive(streams: Mapping[int, Sequence[LogRecord]], folder: Path, notary: str = NOTARY) -> Path:
    """Write the log into `folder`, as two ranges."""
    (folder / "ranges").mkdir(parents=True)
    for number in (1, 2):
        files = []
        for stream, records in streams.items():
            half = len(records) // 2
            of_range = records[:half] if number == 1 else records[half:]
            cut, end = (records[half].offset, records[-1].offset + 1) if records else (0, 0)
            start, end = (0, cut) if number == 1 else (cut, end)
            topic, partition = ("ordering", 0) if stream == ORDERING else ("payload", stream)
            path = f"{topic}/partition={partition}/{number:08}.parquet"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            columns = [[getattr(record, name) for record in of_range] for name in _SCHEMA.names]
            pq.write_table(pa.table(columns, schema=_SCHEMA), folder / path, compression="zstd")
            digest = sha256((folder / path).read_bytes()).hexdigest()
            files.append(ArchivedFile(path, topic, partition, start, end, len(of_range), digest))  # type: ignore[arg-type]
        written = Range(ARCHIVE_VERSION, notary, len(streams) - 1, files)
        (folder / f"ranges/{number:08}.json").write_bytes(msgspec.json.encode(written))
    return folder
