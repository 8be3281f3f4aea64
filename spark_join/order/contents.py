"""What each entry that counts asks for: the first record of its key in its partition (R3), as requests.

Values are decoded where they were read, so that nothing larger than what is decided is moved between tasks. Only keys and offsets are moved
to find out which record is the first of its key.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import accumulate

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join.constants import KEY_BYTES
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
    """offset, found: entries whose content is there, and does not decode or has other ids; it counted as a fill. faults: how many of its
    submissions their parties did not sign; null where it does not decode, or asks nothing"""
    faults: DataFrame
    """offset, id (of the submission's first request), party, fault: submissions that the party did not sign"""


def keyed(payload: DataFrame, *, is_orphan: bool) -> DataFrame:
    """partition, offset, append_time_ms and key of `payload` records, and is_orphan, whether they are those of an earlier state."""
    return payload.select("partition", "offset", "append_time_ms", "key", F.lit(is_orphan).alias("is_orphan"))


def with_places(entries: DataFrame, places: DataFrame) -> DataFrame:
    """`entries` with `content_offset` and `content_append_time_ms`, where and when the content of each came; null for a hole.

    `places` are the payload records as `keyed` gives them.
    """
    contents = places.where(F.length("key") == KEY_BYTES).groupBy("partition", "key")
    firsts = contents.agg(F.min("offset").alias("content_offset"), F.min_by("append_time_ms", "offset").alias("content_append_time_ms"))
    named = entries.withColumn("key", F.concat("incarnation", "sequence"))
    return named.join(firsts, ["partition", "key"], "left").drop("key")


def read_contents(entries: DataFrame, payload: DataFrame, notary_name: str, keys: Keys | None) -> DataFrame:
    """The entries with what their contents say: `ids_digest`, `requests` and `faults`; all null for a fill.

    `keys` are the parties' (`signatures.read_keys`); None for signatures that are not checked.
    """
    values = payload.where((F.length("key") == KEY_BYTES) & F.col("value").isNotNull()).select("partition", "offset", "value")
    decoded = values.mapInArrow(_decoder(notary_name, keys), _SCHEMA)
    with_value = decoded.withColumn("has_value", F.lit(True))
    asked = entries.withColumnRenamed("ids_digest", "asked")
    return asked.join(with_value, ["partition", "content_offset"], "left").select(
        "offset",
        "log_time_ms",
        F.coalesce("has_value", F.lit(False)).alias("has_value"),
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
        unreadable=contents.where(F.col("has_value") & ~F.col("counts")).select(
            "offset", found.alias("found"), F.when(F.size("requests") > 0, F.size("faults")).alias("faults")
        ),
        faults=counting.select("offset", F.explode("faults").alias("fault")).select("offset", "fault.*"),
    )


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
