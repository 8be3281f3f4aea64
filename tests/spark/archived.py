"""Archives of the logs that other tests write."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from spark_join.log.archive import ARCHIVE_VERSION, Range
from spark_join.log.files import SCHEMA, ArchivedFile
from tests.checkers.replay import ORDERING, LogRecord

Ends = Mapping[int, int]
"""Log end offsets by topic-partition."""


def ends_of(by_partition: Mapping[int, Sequence[LogRecord]]) -> dict[int, int]:
    """Returns the log end offsets."""
    return {partition: len(records) for partition, records in by_partition.items()}


def archive(by_partition: Mapping[int, Sequence[LogRecord]], folder: Path, ends: Sequence[Ends] | None = None) -> Path:
    """Write the log into `folder`, as ranges up to these ends; as two ranges without `ends`."""
    (folder / "ranges").mkdir(parents=True)
    if ends is None:
        ends = [{partition: end // 2 for partition, end in ends_of(by_partition).items()}, ends_of(by_partition)]
    for number, (before, until) in enumerate(zip(({}, *ends), ends, strict=False), 1):
        files = []
        for partition, records in by_partition.items():
            of_range = records[before.get(partition, 0) : until.get(partition, 0)]
            start = _offset_behind(records, before.get(partition, 0))
            end = _offset_behind(records, until.get(partition, 0))
            topic, of_topic = ("ordering", 0) if partition == ORDERING else ("payload", partition)
            path = f"{topic}/partition={of_topic}/{number:08}.parquet"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            columns = [[getattr(record, name) for record in of_range] for name in SCHEMA.names]
            pq.write_table(pa.table(columns, schema=SCHEMA), folder / path, compression="zstd")
            digest = sha256((folder / path).read_bytes()).hexdigest()
            files.append(ArchivedFile(path, topic, of_topic, start, end, len(of_range), digest))  # type: ignore[arg-type]
        written = Range(ARCHIVE_VERSION, len(by_partition) - 1, files)
        (folder / f"ranges/{number:08}.json").write_bytes(msgspec.json.encode(written))
    return folder


def _offset_behind(records: Sequence[LogRecord], count: int) -> int:
    return records[count - 1].offset + 1 if count else 0
