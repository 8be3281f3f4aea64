"""Finds the content of each entry (R3), the requests in it, and the position of each first occurrence (R7).

The content is the first record in the entry's partition, with the entry's key, that is either the value whose SHA-256 the entry names or a
valid fill for it. To find it, Spark moves only keys, hashes and fills between tasks. Each task decodes the values that it has read, so
Spark moves the decoded requests, never the values.

Nearly every request occurs once. To find repeated requests, Spark moves only ids. Only entries with a repetition are numbered row by row.
In all others the ordinal in the entry gives the position, and Spark does not move their requests.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import accumulate
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_join.constants import FILL_BYTES, HASH_BYTES, KEY_BYTES
from spark_join.engine.columns import before, frame_of, map_batches, part
from spark_join.engine.columns import sha256 as hash_of
from spark_join.identity import Identity
from spark_join.order.payloads import DecodedRequest, DecodedSubmission, Keys, PayloadDecoder, Signatures
from spark_join.order.salvage import Salvage

SEAL: Final = 2
"""The mark of an entry whose content is a seal."""

_REQUEST = "struct<id: binary, inputs: array<binary>, references: array<binary>, from_ms: bigint, until_ms: bigint>"
_FAULT = "struct<id: binary, party: string, fault: string>"
_SCHEMA = f"partition int, content_offset bigint, ids_digest binary, requests array<{_REQUEST}>, faults array<{_FAULT}>"


class Contents(msgspec.Struct, frozen=True):
    """The requests of the entries before the first hole, and the faults of these entries."""

    requests: DataFrame
    """Columns: offset, ordinal (within the entry), log_time_ms, id, inputs, references, from_ms, until_ms"""
    unreadable: DataFrame
    """Entries whose content has the right hash, but does not decode or has other ids. Columns: offset, found"""
    faults: DataFrame
    """Submissions that their party did not sign. Columns: offset, id (of the first request), party, fault"""


def keyed(payload: DataFrame, *, is_orphan: bool) -> DataFrame:
    """Returns partition, offset, append_time_ms, key, value_hash, fill and is_orphan of `payload` records.

    fill is the value if it has a fill's length, else null. is_orphan is true for the orphans of an earlier state.
    """
    fill = F.when(F.length("value") == FILL_BYTES, F.col("value"))
    value_hash = hash_of(F.col("value")).alias("value_hash")
    return payload.select(
        "partition", "offset", "append_time_ms", "key", value_hash, fill.alias("fill"), F.lit(is_orphan).alias("is_orphan")
    )


def with_locations(records: DataFrame, locations: DataFrame, identity: Identity) -> DataFrame:
    """Returns `records` (`ordering_records.SCHEMA`) with the place of the content of each entry that has a good signature.

    Adds `content_offset`, `content_append_time_ms`, and `mark` (1 for a payload, 0 for a fill); all three are null without such a content.
    `sealed` is true if a seal comes before it, or there is a seal alone: it counts if format version 2 is active there. `locations` are the
    payload records, from `keyed`.

    Entries with the same partition, key and payload hash have the same content, as long as the same key of the notary is in force.
    """
    # Anyone can append copies of an entry, and any values under its key. So the join has one row for equal entries, and a value meets only
    # entries that name its hash, or its fill's: N copies and N values make N rows.
    starts = F.array(*[F.lit(start).cast("bigint") for start, _ in identity.notary_keys])
    since = F.array_max(F.filter(starts, lambda start: start <= F.col("offset"))).alias("since")
    asked = F.struct("partition", F.concat("incarnation", "sequence").alias("key"), "payload_hash", since)
    marked = records.withColumn("_asked", F.when((F.col("kind") == "entry") & F.col("signed"), asked))
    distinct = marked.where(F.col("_asked").isNotNull()).select("_asked").distinct().select("_asked", "_asked.*")
    value_hash, filled = F.col("value_hash"), part(F.col("fill"), 0, HASH_BYTES)
    contents = locations.where(F.length("key") == KEY_BYTES).select(
        "partition",
        "key",
        F.explode(F.when(filled.isNull(), F.array(value_hash)).otherwise(F.array(value_hash, filled))).alias("payload_hash"),
        "value_hash",
        "fill",
        F.struct("offset", "append_time_ms").alias("location"),
    )
    near = distinct.join(contents, ["partition", "key", "payload_hash"])
    payloads = near.where(value_hash == F.col("payload_hash")).select("_asked", "location", F.lit(1).alias("mark"))
    nearby = near.where(filled == F.col("payload_hash")).select("_asked", "_asked.*", "fill", "location", F.lit(0).alias("mark"))
    fills = map_batches(nearby, partial(_good_fills, identity), nearby.schema).select("_asked", "location", "mark")
    is_seal = F.col("mark") == SEAL
    firsts = (
        payloads.union(fills)
        .groupBy("_asked")
        .agg(F.min(F.when(~is_seal, F.struct("location", "mark"))).alias("first"), F.min(F.when(is_seal, F.col("location"))).alias("seal"))
    )
    comes_first = F.coalesce(F.col("seal.offset") < F.col("first.location.offset"), F.col("seal").isNotNull())
    found = firsts.select(
        "_asked",
        F.col("first.location.offset").alias("content_offset"),
        F.col("first.location.append_time_ms").alias("content_append_time_ms"),
        F.col("first.mark").alias("mark"),
        comes_first.alias("sealed"),
    )
    return marked.join(found, "_asked", "left").drop("_asked")


def read_contents(entries: DataFrame, payload: DataFrame, notary_name: str, keys: Keys | None) -> DataFrame:
    """Returns the entries whose content is a payload: offset, log_time_ms, decodes, counts, requests, faults.

    decodes is false for a value that does not decode; counts is true for one that has exactly the ids of its entry. `keys` are the parties'
    (`payloads.read_keys`); with None no signature of a party is checked.
    """

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = PayloadDecoder(notary_name)
        signatures = None if keys is None else Signatures(notary_name, keys)
        for batch in batches:
            read = [reader.read(value) for value in batch.column("value").to_pylist()]
            yield pa.RecordBatch.from_arrays(
                [batch.column("partition"), batch.column("offset"), *_columns(read, signatures)],
                names=["partition", "content_offset", "ids_digest", "requests", "faults"],
            )

    values = payload.where((F.length("key") == KEY_BYTES) & F.col("value").isNotNull()).select("partition", "offset", "value")
    decoded = values.mapInArrow(decode, _SCHEMA)
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
    """Splits the result of `read_contents` into requests and faults. The caller should have materialized it: it is read three times."""
    counting = contents.where("counts")
    found = F.when(F.col("decodes"), "other transaction ids than the entry's").otherwise("a value that does not decode")
    return Contents(
        requests=counting.select("offset", "log_time_ms", F.posexplode("requests").alias("ordinal", "request")).select(
            "offset", "ordinal", "log_time_ms", "request.*"
        ),
        unreadable=contents.where(~F.col("counts")).select("offset", found.alias("found")),
        faults=counting.select("offset", F.explode("faults").alias("fault")).select("offset", "fault.*"),
    )


def _good_fills(identity: Identity, batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = zip(*(batch.column(name).to_pylist() for name in ("fill", "since", "partition", "key", "payload_hash")), strict=True)
    marks = pa.array([_mark(identity, *row) for row in rows], pa.int32())
    marked = batch.set_column(batch.schema.get_field_index("mark"), "mark", marks)
    return marked.filter(marks.is_valid())


def _mark(identity: Identity, value: bytes, offset: int, partition: int, key: bytes, payload_hash: bytes) -> int | None:
    """Returns the mark of an entry with this content: 0 for a good fill, `SEAL` for a good seal, None for neither."""
    if identity.is_fill(value, offset, partition, key, payload_hash):
        return 0
    return SEAL if identity.is_seal(value, offset, partition, key, payload_hash) else None


def _columns(read: list[list[DecodedSubmission] | None], signatures: Signatures | None) -> list[pa.Array]:
    """Returns the columns ids_digest, requests and faults for the values of one Arrow batch; None is a value that does not decode."""
    digests: list[bytes | None] = []
    requests: list[DecodedRequest] = []
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


def repetitions(requests: DataFrame, decided: DataFrame, items: DataFrame | None = None) -> DataFrame:
    """Returns offset and ordinal of the `requests` (`contents.Contents`) that repeat an earlier one.

    Their id occurs earlier in the order, in `decided`, the ids of the part before, or in the `items` of a salvage that is done by then
    (`salvage.restored`).
    """
    locations = requests.select("id", F.struct("offset", "ordinal").alias("location"))
    often = (
        locations.groupBy("id").agg(F.min("location").alias("first"), F.max("location").alias("last")).where(F.col("first") < F.col("last"))
    )
    later = locations.join(often, "id").where(F.col("location") > F.col("first")).select("location.*")
    if items is not None:
        salvaged = locations.join(items.where(F.col("id").isNotNull()).select("id", "done"), "id")
        later = later.union(salvaged.where(F.col("location.offset") > F.col("done")).select("location.*"))
    known = decided.join(requests.select("id"), "id", "left_semi")  # Spark broadcasts the right side if it is small
    return later.union(locations.join(known, "id", "left_semi").select("location.*")).distinct()


def entry_starts(requests: DataFrame, repeated: DataFrame, decided: int, salvages: Sequence[Salvage] = ()) -> DataFrame:
    """Returns offset, _start (the position of its first decision) and _once (nothing in it is repeated) of each entry.

    The steps of `salvages` have a row too: with its items a `done` takes positions as an entry does.
    """
    gone = repeated.groupBy("offset").agg(F.count("*").alias("_gone"))
    counts = requests.groupBy("offset").agg(F.count("*").alias("_requests")).join(gone, "offset", "left")
    counts = counts.select(
        "offset", (F.col("_requests") - F.coalesce("_gone", F.lit(0))).alias("_left"), F.col("_gone").isNull().alias("_once")
    )
    if salvages:
        rows = [(each.offset, each.items, True) for each in salvages]
        counts = counts.union(frame_of(requests.sparkSession, rows, "offset bigint, _left bigint, _once boolean"))
    entries = before(counts, "_earlier", F.col("_left"), "sum", "offset")
    return entries.select("offset", (F.coalesce("_earlier", F.lit(0)) + decided).alias("_start"), "_once")


def with_positions(requests: DataFrame, repeated: DataFrame, starts: DataFrame) -> DataFrame:
    """Returns `requests` without those in `repeated`, with `position`, in the order of offset and ordinal. `starts`: `entry_starts`."""
    unrepeated = requests.join(starts.where("_once"), "offset").withColumn("position", F.col("_start") + F.col("ordinal"))
    left = requests.join(starts.where(~F.col("_once")), "offset").join(repeated, ["offset", "ordinal"], "left_anti")
    within = F.row_number().over(Window.partitionBy("offset").orderBy("ordinal")) - 1
    return unrepeated.unionByName(left.withColumn("position", F.col("_start") + within)).drop("_start", "_once")
