"""A long log as an archive, generated without a notary: one incarnation of one worker, batches spread over the partitions, all committed.

The same seed gives the same archive. It is written a batch at a time, so it may be longer than memory.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from joiner.history import extended
from loadtest.bench.generate import NOTARY, payload_values
from ordering.log import ORDERING, Record
from ordering.records import FORMAT_VERSION, Entry, Genesis, Register, View, batch_key
from ordering.signatures import NO_LOG_ID, SigningKey, log_id_of, sign_record
from spark_join.log.archive import ARCHIVE_VERSION, ArchivedFile, Range

PARTITIONS: Final = 16
BATCH_BYTES_MAX = 512 << 10
"""The size of a payload record, as a worker gathers it under load."""
ROW_GROUP_RECORDS = 32
"""The number of such records in the archive's own 16 MiB."""
T0_MS = 1_760_000_000_000
"""The time at which the worker begins; a batch follows each millisecond."""
_FILE = "{topic}/partition={partition}/00000001.parquet"
_SCHEMA = pa.schema([("offset", pa.int64()), ("append_time_ms", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])


def records(seed: int, requests_min: int, submission_requests: int, inputs: int, *, signed: bool) -> Iterator[Record]:
    """Yields a genesis record, a registration, then the payload and entry of each batch, until there are enough requests.

    All ordering records are signed. Unsigned submissions have random bytes for signatures.
    """
    offsets = dict.fromkeys(range(ORDERING, PARTITIONS), 0)
    owner, key = (SigningKey(sha256(f"loadtest.bench {name}".encode()).digest()) for name in ("owner", "notary"))

    def record(stream: int, at_ms: int, batch: bytes | None, value: bytes) -> Record:
        offsets[stream] += 1
        return Record(stream, offsets[stream] - 1, at_ms, batch, value)

    genesis = Genesis(bytes(16), PARTITIONS, key.public_key, owner.public_key, NOTARY, "notary.example/bench")
    yield record(ORDERING, T0_MS, None, value := sign_record(genesis, NO_LOG_ID, owner))
    log_id = history = log_id_of(value)
    register = Register(bytes(16), View(1, history), FORMAT_VERSION, "filler", "bench")
    yield record(ORDERING, T0_MS, None, value := sign_record(register, log_id, key))
    history = extended(history, T0_MS, sha256(value).digest(), mark=False)
    requests = 0
    for sequence, made in enumerate(payload_values(seed, submission_requests, inputs, BATCH_BYTES_MAX, signed=signed), 1):
        partition, at_ms = sequence % PARTITIONS, T0_MS + sequence
        yield record(partition, at_ms, batch_key(1, sequence), made.value)
        entry = Entry(1, sequence, View(sequence + 1, history), at_ms, partition, sha256(made.value).digest(), made.ids)
        yield record(ORDERING, at_ms, None, value := sign_record(entry, log_id, key))
        history = extended(history, at_ms, sha256(value).digest(), mark=True)
        requests += len(made.ids)
        if requests >= requests_min:
            return


def write_archive(folder: Path, log: Iterator[Record]) -> None:
    """Write the log into `folder`, as one range (`spark_join.log.archive`)."""
    counts = dict.fromkeys(range(ORDERING, PARTITIONS), 0)
    paths = {stream: _FILE.format(topic=_topic(stream), partition=max(stream, 0)) for stream in counts}
    with ExitStack() as stack:
        writers: dict[int, pq.ParquetWriter] = {}
        waiting: dict[int, list[Record]] = {stream: [] for stream in paths}
        for stream, path in paths.items():
            (folder / path).parent.mkdir(parents=True)
            writers[stream] = stack.enter_context(
                pq.ParquetWriter(folder / path, _SCHEMA, compression="zstd", use_dictionary=False, write_statistics=["offset"])
            )
        for record in log:
            waiting[record.stream].append(record)
            counts[record.stream] += 1
            if len(waiting[record.stream]) == ROW_GROUP_RECORDS:
                _write(writers[record.stream], waiting[record.stream])
        for stream, left in waiting.items():
            _write(writers[stream], left)
    files = []
    for stream, path in paths.items():
        with open(folder / path, "rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        files.append(ArchivedFile(path, _topic(stream), max(stream, 0), 0, counts[stream], counts[stream], digest))  # type: ignore[arg-type]
    (folder / "ranges").mkdir()
    (folder / "ranges/00000001.json").write_bytes(msgspec.json.encode(Range(ARCHIVE_VERSION, PARTITIONS, files)))


def read_archive(folder: Path) -> Iterator[Record]:
    """Yields the records of such an archive, one topic-partition after another."""
    for stream in range(ORDERING, PARTITIONS):
        with pq.ParquetFile(folder / _FILE.format(topic=_topic(stream), partition=max(stream, 0))) as file:
            for batch in file.iter_batches(columns=_SCHEMA.names):
                for row in zip(*[column.to_pylist() for column in batch.columns], strict=True):
                    yield Record(stream, *row)


def _write(writer: pq.ParquetWriter, waiting: list[Record]) -> None:
    """Write the waiting records as a row group, and clear the list."""
    columns = [[getattr(record, name) for record in waiting] for name in _SCHEMA.names]
    writer.write_table(pa.table(columns, schema=_SCHEMA))
    waiting.clear()


def _topic(stream: int) -> str:
    return "ordering" if stream == ORDERING else "payload"
