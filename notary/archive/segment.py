"""`Segment`: the records of a log between two moments: a signed note (`notary/segment/v1`, one line of JSON) and a Parquet file.

The only module of this package that needs pyarrow (`kafka-notary[parquet]`).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Annotated, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.receipts.errors import NotVerified
from notary.receipts.note import VerifierKey, open_note, sign_note
from notary.snapshots.store import FILES, MANIFESTS, SnapshotStore
from ordering.durable import sync
from ordering.errors import ConfigurationError
from ordering.log import ORDERING, Record
from ordering.records import HASH_BYTES

HEAD: Final = "notary/segment/v1"
MANIFEST_BYTES_MAX: Final = 1 << 20
RECORD: Final = pa.schema([("offset", pa.int64()), ("append_time_ms", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
"""The columns of an archive's files (docs/spark.md)."""
BATCH_RECORDS: Final = 64
"""Records decoded from a row group at a time; a record may be several megabytes long."""
READERS: Final = 8
"""The manifests that are read at a time: each takes some round trips to a bucket, and a busy day has 17,000."""
PIECE: Final = 64
"""The manifests after which their segments are passed on: more are not in memory."""
UNLISTED: Final = "aside"
"""An archive's folder for files with records that no range has (docs/spark.md)."""
_SCHEMA: Final = RECORD.insert(0, pa.field("partition", pa.int32()))
_MALFORMED: Final = "malformed-segment"
# A former key may have signed a manifest, and a thief may have that key: these limits hold before anything is read or reserved for it.
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Partitions = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class SealedPart(msgspec.Struct, frozen=True):
    """One topic-partition of a segment: records from `offset_first` up to `offset_end`, exclusive; `-1` is the ordering topic."""

    partition: int
    offset_first: _Number
    offset_end: _Number
    offset_last: _Number
    """The offset of the last record."""
    fingerprint: _Hash
    """The fingerprint of that record (docs/formats.md, History and views), hex."""


class Segment(msgspec.Struct, frozen=True):
    """A segment: its log, the range of its records, and its file."""

    notary: str
    log: str
    """The log's identity, as an index stores it. It ends with the log id."""
    worker: str
    sealed_at_ms: _Number
    payload_partitions: _Partitions
    parts: tuple[SealedPart, ...]
    records: _Number
    file_bytes: _Number
    sha256: _Hash

    @property
    def name(self) -> str:
        """The manifest's name in its store."""
        first = min([part.offset_first for part in self.parts if part.partition < 0], default=0)
        return f"{first:016d}-{self.sealed_at_ms:014d}-{self.worker}.note"

    @property
    def log_id(self) -> bytes:
        """The SHA-256 of the genesis record."""
        return bytes.fromhex(self.log.rpartition(" ")[2])


class FoundSegment(Segment, frozen=True):
    """A segment of a store, whose manifest was verified."""

    signer: bytes
    """The public key that signed the manifest; of several the one that was in force last."""


def sign(segment: Segment, origin: str, key: Ed25519PrivateKey) -> str:
    """Returns the signed note of a segment."""
    return sign_note(f"{HEAD}\n{msgspec.json.encode(segment).decode()}\n", [(origin, key)])


def find(
    store: SnapshotStore,
    trusted: Sequence[VerifierKey],
    notary: str,
    known: frozenset[str] = frozenset(),
    skip: Callable[[str, NotVerified], None] | None = None,
) -> Iterator[FoundSegment]:
    """Yields the segments of a store that are not `known`, by their names.

    `trusted` has the keys in the order in which they came into force. Raises `NotVerified` for a manifest that none of them signed, or that
    does not decode. With `skip` it passes the name and the problem to it instead. `ConfigurationError`: the store lists a manifest and does
    not return it.
    """

    def read(name: str) -> FoundSegment | NotVerified | None:
        try:
            return _verified(name, _manifest(store, name), trusted, notary)
        except FileNotFoundError:
            return None  # pruned meanwhile
        except OSError as problem:
            raise ConfigurationError(f"the manifest {name} cannot be read: {problem.strerror or problem}") from None
        except NotVerified as problem:
            return problem

    names = sorted(store.sizes(MANIFESTS).keys() - known)
    with ThreadPoolExecutor(READERS) as readers:
        for at in range(0, len(names), PIECE):  # a caller may stop early, and nothing reads far ahead then
            piece = names[at : at + PIECE]
            for name, found in zip(piece, readers.map(read, piece), strict=True):
                if isinstance(found, NotVerified):
                    if skip is None:
                        raise found
                    skip(name, found)
                elif found is not None:
                    yield found


def _verified(name: str, note: str, trusted: Sequence[VerifierKey], notary: str) -> FoundSegment:
    """Returns the segment of a manifest. Raises `NotVerified`."""
    try:
        text, signers = open_note(note, trusted, _MALFORMED)
    except NotVerified as problem:
        raise NotVerified(problem.reason, f"the manifest {name}: {problem.what}") from None
    head, _, body = text.partition("\n")
    try:
        if head != HEAD:
            raise ValueError(f"it begins with {head!r}, not {HEAD}")
        segment = msgspec.json.decode(body, type=Segment)
        _check_parts(segment)
    except (ValueError, RecursionError) as problem:  # msgspec's errors are of the first type
        raise NotVerified(_MALFORMED, f"the manifest {name} does not decode: {problem}") from None
    if segment.name != name or segment.notary != notary:
        raise NotVerified(_MALFORMED, f"the manifest {name} is the one of {segment.name}, of notary {segment.notary!r}")
    return FoundSegment(**msgspec.structs.asdict(segment), signer=max(signers, key=trusted.index).public_key)


def _check_parts(segment: Segment) -> None:
    """Raise `ValueError` for parts or a log that no worker writes into a manifest."""
    partitions = [part.partition for part in segment.parts]
    if len(set(partitions)) != len(partitions) or not all(ORDERING <= each < segment.payload_partitions for each in partitions):
        raise ValueError(f"it has parts of the topic-partitions {partitions}, with {segment.payload_partitions} payload partitions")
    if wrong := [part for part in segment.parts if not 0 <= part.offset_first <= part.offset_last < part.offset_end]:
        raise ValueError(f"the offsets of a part do not rise: {wrong[0]}")
    if len(segment.log_id) != HASH_BYTES:
        raise ValueError(f"the log {segment.log!r} does not end with a log id")


def _manifest(store: SnapshotStore, name: str) -> str:
    """Reads a manifest, and stops at the most bytes that one may have: the store is not trusted, nor are the sizes that it lists."""
    content = bytearray()
    for chunk in store.chunks(MANIFESTS, name):
        content += chunk
        if len(content) > MANIFEST_BYTES_MAX:
            raise NotVerified(_MALFORMED, f"the manifest {name} has more than {MANIFEST_BYTES_MAX} bytes")
    return content.decode(errors="replace")


def write(records: Sequence[Record], file: Path) -> None:
    """Write records into a new file, and sync it."""
    columns = [[getattr(record, name) for record in records] for name in _SCHEMA.names]
    with file.open("xb") as out:
        pq.write_table(pa.table(columns, schema=_SCHEMA), out, compression="zstd", use_dictionary=False, write_statistics=False)
        sync(out)


def read(file: IO[bytes], segment: Segment) -> dict[int, list[Record]]:
    """Returns the records of a segment's open file, by topic-partition. Raises `NotVerified` if they do not fit the manifest.

    The caller has compared the file's hash.
    """
    try:
        table = pq.read_table(file)
        if other := other_columns(table.schema, _SCHEMA):
            raise ValueError(f"it has the columns {other}")
        if any(table[name].null_count for name in ("partition", "offset", "append_time_ms")):
            raise ValueError("a number is missing")
        records = [Record(*row) for row in zip(*[column.to_pylist() for column in table.columns], strict=True)]
    except (OSError, ValueError, TypeError, pa.ArrowException) as problem:
        raise NotVerified(_MALFORMED, f"the file {FILES}/{segment.sha256} of {segment.name} does not decode: {problem}") from None
    found: dict[int, list[Record]] = {part.partition: [] for part in segment.parts}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    for part in segment.parts:
        offsets = [record.offset for record in found[part.partition]]
        inside = bool(offsets) and part.offset_first <= offsets[0] and offsets[-1] == part.offset_last < part.offset_end
        if not inside or offsets != sorted(set(offsets)):
            raise NotVerified(_MALFORMED, f"the file of {segment.name} does not have the offsets that its manifest lists: {part}")
    if len(records) != segment.records or found.keys() != {part.partition for part in segment.parts}:
        raise NotVerified(_MALFORMED, f"the file of {segment.name} has {len(records)} records, and its manifest says {segment.records}")
    return found


def other_columns(found: pa.Schema, expected: pa.Schema) -> str:
    """Returns the names and types of a file's columns if they are not those expected; empty if they are."""
    if [(field.name, field.type) for field in found] == [(field.name, field.type) for field in expected]:
        return ""
    return ", ".join([f"{field.name} ({field.type})" for field in found])


def check_is_of(segment: Segment, log: str) -> None:
    """Raise `ConfigurationError` for a segment of another log."""
    if segment.log != log:
        raise ConfigurationError(
            f"the segment {segment.name} is of the log {segment.log}, and this is {log}: name another store with `[archive] url`"
        )
