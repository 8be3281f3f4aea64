"""The content of each entry (R3), and the requests in it.

The content is the first record in the entry's partition, under its key, that is either the value whose SHA-256 the entry names or a good
signed fill for it. Only keys, hashes and fills are moved to find it. Values are decoded where they were read, so that nothing larger than
what is decided is moved between tasks.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import accumulate

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join.constants import FILL_BYTES, HASH_BYTES, KEY_BYTES
from spark_join.engine.octets import part
from spark_join.engine.octets import sha256 as hash_of
from spark_join.order.identity import Identity
from spark_join.order.payloads import Reader, Request, Submission
from spark_join.order.signatures import Keys, Signatures

_REQUEST = "struct<id: binary, inputs: array<binary>, references: array<binary>, from_ms: bigint, until_ms: bigint>"
_FAULT = "struct<id: binary, party: string, fault: string>"
_SCHEMA = f"partition int, content_offset bigint, ids_digest binary, requests array<{_REQUEST}>, faults array<{_FAULT}>"


class Contents(msgspec.Struct, frozen=True):
    """What the entries before the first hole ask, and what is wrong with them."""

    requests: DataFrame
    """offset, ordinal (within the entry), log_time_ms, id, inputs, references, from_ms, until_ms"""
    unreadable: DataFrame
    """offset, found: entries whose content has the right hash, and does not decode or has other ids"""
    faults: DataFrame
    """offset, id (of the submission's first request), party, fault: submissions that the party did not sign"""


def keyed(payload: DataFrame, *, is_orphan: bool) -> DataFrame:
    """partition, offset, append_time_ms, key, value_hash, fill (the value if it has a fill's length, else null) of `payload` records, and
    is_orphan: whether they are those of an earlier state."""
    fill = F.when(F.length("value") == FILL_BYTES, F.col("value"))
    value_hash = hash_of(F.col("value")).alias("value_hash")
    return payload.select(
        "partition", "offset", "append_time_ms", "key", value_hash, fill.alias("fill"), F.lit(is_orphan).alias("is_orphan")
    )


def with_places(records: DataFrame, places: DataFrame, identity: Identity) -> DataFrame:
    """`records` (`ordering_records.SCHEMA`) with what is found of the contents of well-signed entries, null where there is none:
    `content_offset`, `content_append_time_ms`, and `mark`, 1 for a payload, 0 for a fill.

    `places` are the payload records as `keyed` gives them.
    """
    entries = records.where((F.col("kind") == "entry") & F.col("signed")).select(
        F.col("offset").alias("entry_offset"), "partition", F.concat("incarnation", "sequence").alias("key"), "payload_hash"
    )
    contents = places.where(F.length("key") == KEY_BYTES).select(
        "partition", "key", F.struct("offset", "append_time_ms").alias("place"), "value_hash", "fill"
    )
    near = entries.join(contents, ["partition", "key"])
    payloads = near.where(F.col("value_hash") == F.col("payload_hash")).select("entry_offset", "place", F.lit(1).alias("mark"))
    named = near.where(part(F.col("fill"), 0, HASH_BYTES) == F.col("payload_hash"))
    asked = named.select("entry_offset", "partition", "key", "payload_hash", "fill", "place.offset", "place.append_time_ms")
    fills = asked.mapInArrow(_good_fills(identity), asked.schema).select(
        "entry_offset", F.struct("offset", "append_time_ms").alias("place"), F.lit(0).alias("mark")
    )
    firsts = payloads.union(fills).groupBy("entry_offset").agg(F.min(F.struct("place", "mark")).alias("first"))
    found = firsts.select(
        F.col("entry_offset").alias("offset"),
        F.col("first.place.offset").alias("content_offset"),
        F.col("first.place.append_time_ms").alias("content_append_time_ms"),
        F.col("first.mark").alias("mark"),
    )
    return records.join(found, "offset", "left")


def read_contents(entries: DataFrame, payload: DataFrame, notary_name: str, keys: Keys | None) -> DataFrame:
    """The entries whose content is a payload, with what that asks: `ids_digest`, `requests` and `faults`.

    `keys` are the parties' (`signatures.read_keys`); None for signatures that are not checked.
    """
    values = payload.where((F.length("key") == KEY_BYTES) & F.col("value").isNotNull()).select("partition", "offset", "value")
    decoded = values.mapInArrow(_decoder(notary_name, keys), _SCHEMA)
    asked = entries.where(F.col("mark") == 1).withColumnRenamed("ids_digest", "asked")
    return asked.join(decoded, ["partition", "content_offset"]).select(
        "offset",
        "log_time_ms",
        F.col("ids_digest").isNotNull().alias("decodes"),
        F.coalesce(F.col("ids_digest") == F.col("asked"), F.lit(False)).alias("counts"),
        "requests",
        "faults",
    )


def split(contents: DataFrame) -> Contents:
    """`contents` as `read_contents` gives them, to be read three times."""
    counting = contents.where("counts")
    found = F.when(F.col("decodes"), "other transaction ids than the entry's").otherwise("a value that does not decode")
    return Contents(
        requests=counting.select("offset", "log_time_ms", F.posexplode("requests").alias("ordinal", "request")).select(
            "offset", "ordinal", "log_time_ms", "request.*"
        ),
        unreadable=contents.where(~F.col("counts")).select("offset", found.alias("found")),
        faults=counting.select("offset", F.explode("faults").alias("fault")).select("offset", "fault.*"),
    )


def _good_fills(identity: Identity) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    names = ("fill", "entry_offset", "partition", "key", "payload_hash")

    def kept(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
            yield batch.filter(pa.array([identity.is_fill(*row) for row in rows], pa.bool_()))

    return kept


def _decoder(notary_name: str, keys: Keys | None) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = Reader(notary_name)
        signatures = None if keys is None else Signatures(notary_name, keys)
        for batch in batches:
            read = [reader.read(value) for value in batch.column("value").to_pylist()]
            yield pa.RecordBatch.from_arrays(
                [batch.column("partition"), batch.column("offset"), *_columns(read, signatures)],
                names=["partition", "content_offset", "ids_digest", "requests", "faults"],
            )

    return decode


def _columns(read: list[list[Submission] | None], signatures: Signatures | None) -> list[pa.Array]:
    """ids_digest, requests and faults of the values of one Arrow batch, None for one that does not decode."""
    digests: list[bytes | None] = []
    requests: list[Request] = []
    counts: list[int] = []
    faults: list[list[dict[str, object]]] = []
    for submissions in read:
        before = len(requests)
        found: list[dict[str, object]] = []
        for submission in submissions or ():
            fault = None if signatures is None else signatures.fault(submission)
            if fault is not None:
                found.append({"id": submission.requests[0].id, "party": submission.party, "fault": fault})
            requests += submission.requests
        digests.append(None if submissions is None else sha256(b"".join([request.id for request in requests[before:]])).digest())
        counts.append(len(requests) - before)
        faults.append(found)
    fault_type = pa.struct([("id", pa.binary()), ("party", pa.string()), ("fault", pa.string())])
    as_structs = pa.StructArray.from_arrays(
        [
            pa.array([request.id for request in requests], pa.binary()),
            _lists([request.inputs for request in requests]),
            _lists([request.references for request in requests]),
            pa.array([request.from_ms for request in requests], pa.int64()),
            pa.array([request.until_ms for request in requests], pa.int64()),
        ],
        names=["id", "inputs", "references", "from_ms", "until_ms"],
    )
    return [
        pa.array(digests, pa.binary()),
        pa.ListArray.from_arrays(_offsets(counts), as_structs),
        pa.array(faults, pa.list_(fault_type)),
    ]


def _lists(values: list[list[bytes]]) -> pa.Array:
    return pa.ListArray.from_arrays(_offsets(map(len, values)), pa.array([each for some in values for each in some], pa.binary()))


def _offsets(counts: Iterable[int]) -> pa.Array:
    return pa.array(accumulate(counts, initial=0), pa.int32())
