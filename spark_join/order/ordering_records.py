"""The records of the ordering topic as typed columns (docs/formats.md, Log records); `signed` is true if the right key has signed a record.

| kind | columns that are set |
|---|---|
| `entry` | incarnation, sequence, seen, history, sent_at_ms, partition, payload_hash, count, ids_digest |
| `register` | nonce, seen, history, format_version, name |
| `fence` | writer, seen, history, incarnation, sequence |
| `checkpoint` | incarnation, seen, history, tree_size, root |
| `activate` | format_version |
| `partitions`, `retire` | partitions; incarnation |
| `settle` | seen, history; public_key, in format version 2 |
| `genesis` | partitions |
| `key` | public_key; `with_rotations` reads the rest |
| `salvage-begin` | public_key, seen, history, first: the position |
| `salvage-items` | public_key, seen, history, first, count, items_time_ms: the latest log time of its decisions |
| `salvage-done`, `trim` | public_key, seen, history, tree_size, root; a trim's position is its tree_size |
| `malformed` | none: a byte too few or too many, an unknown version or kind, text that is not UTF-8 |

Whether format version 2 is active depends on earlier records, which `effects` applies. A fence has the incarnation that it ends in
`incarnation`, and its writer's in `writer`. These two, `sequence`, `seen`, `first` and `tree_size` are the 8 bytes of a u64: they compare
as bytes, and Spark's longs cannot hold all of them. `ids_digest` is the SHA-256 of the concatenated transaction ids: with the ids
themselves, a row would grow with the number of requests.
"""

from functools import partial
from hashlib import sha256
from struct import Struct, error
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join.constants import ID_BYTES, NAME_BYTES_MAX, RECORD_FORMAT, SALVAGE_BYTES_MAX, SALVAGE_FORMAT, SIGNATURE_BYTES
from spark_join.engine.columns import map_batches, part
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.identity import Identity, identity_of
from spark_join.log import ORDERING, LogFrames
from spark_join.order.salvage import MalformedItem, read_items

Fields = dict[str, Any]
"""The columns of one record that are set, by name, including `kind`."""

_HEAD_BYTES: Final = 2
_FORMS: Final[dict[tuple[int, int], tuple[str, Struct, tuple[str, ...]]]] = {
    (RECORD_FORMAT, 1): (
        "entry",
        Struct(">8s8s8s32sqI32sI"),
        ("incarnation", "sequence", "seen", "history", "sent_at_ms", "partition", "payload_hash", "count"),
    ),
    (RECORD_FORMAT, 2): ("register", Struct(">16s8s32sH"), ("nonce", "seen", "history", "format_version")),
    (RECORD_FORMAT, 3): ("fence", Struct(">8s8s32s8s8s"), ("writer", "seen", "history", "incarnation", "sequence")),
    (RECORD_FORMAT, 4): ("checkpoint", Struct(">8s8s32s8s32s"), ("incarnation", "seen", "history", "tree_size", "root")),
    (RECORD_FORMAT, 5): ("activate", Struct(">H"), ("format_version",)),
    (RECORD_FORMAT, 6): ("genesis", Struct(">16sI32s32s"), ("salt", "partitions", "notary_key", "owner_key")),
    (RECORD_FORMAT, 7): ("key", Struct(">32s64s"), ("public_key", "endorsement")),
    (RECORD_FORMAT, 8): ("partitions", Struct(">I"), ("partitions",)),
    (RECORD_FORMAT, 9): ("retire", Struct(">8s"), ("incarnation",)),
    (RECORD_FORMAT, 10): ("settle", Struct(">8s32s"), ("seen", "history")),
    (SALVAGE_FORMAT, 10): ("settle", Struct(">32s8s32s"), ("public_key", "seen", "history")),
    (SALVAGE_FORMAT, 11): ("salvage", Struct(">32s8s32sB"), ("public_key", "seen", "history", "step")),
    (SALVAGE_FORMAT, 12): ("trim", Struct(">32s8s32s8s32s"), ("public_key", "seen", "history", "tree_size", "root")),
}
"""The form of a record, by format version and kind: its name, the fixed part of its body, and the columns of that part."""
_STEPS: Final[dict[int, tuple[str, Struct, tuple[str, ...]]]] = {
    0: ("salvage-begin", Struct(">8s"), ("first",)),
    1: ("salvage-items", Struct(">8sI"), ("first", "count")),
    2: ("salvage-done", Struct(">8s32s"), ("tree_size", "root")),
}
"""The same of the steps of a salvage, for the rest of its body."""
_TEXTS: Final = {"register": ("name", "software_version"), "genesis": ("notary_name", "origin")}
"""The texts after the fixed part: each is a u16 length and UTF-8."""
_U16 = Struct(">H")
_BINARY, _LONG = pa.binary(), pa.int64()
_COLUMNS: Final = {
    "kind": pa.string(),
    "incarnation": _BINARY,
    "writer": _BINARY,
    "sequence": _BINARY,
    "seen": _BINARY,
    "history": _BINARY,
    "sent_at_ms": _LONG,
    "partition": _LONG,
    "payload_hash": _BINARY,
    "count": _LONG,
    "ids_digest": _BINARY,
    "nonce": _BINARY,
    "name": _BINARY,
    "format_version": _LONG,
    "tree_size": _BINARY,
    "root": _BINARY,
    "partitions": _LONG,
    "public_key": _BINARY,
    "first": _BINARY,
    "items_time_ms": _LONG,
}
SCHEMA: Final = pa.schema(
    [
        ("offset", _LONG),
        ("append_time_ms", _LONG),
        ("signed", pa.bool_()),
        ("value_hash", _BINARY),
        *_COLUMNS.items(),
    ]
)
_KEY_HEAD = bytes((RECORD_FORMAT, 7))


def read(value: bytes | None, *, items: bool = True) -> Fields:
    """Decodes one record. Returns only the kind, `malformed`, if the record does not decode completely, to its last byte.

    Without `items` it does not decode the items of a salvage: a record may have a million of them.
    """
    if value is not None and len(value) >= _HEAD_BYTES + SIGNATURE_BYTES and (form := _FORMS.get((value[0], value[1]))) is not None:
        kind, fixed, names = form
        body = value[_HEAD_BYTES:-SIGNATURE_BYTES]
        try:
            fields = {"kind": kind, **dict(zip(names, fixed.unpack_from(body), strict=True))}
            rest = body[fixed.size :]
            if kind == "salvage" and len(value) <= SALVAGE_BYTES_MAX:
                return _step(fields, rest, items=items)
            if kind != "salvage" and _is_complete(fields, rest):
                return fields
        except (error, UnicodeDecodeError, OverflowError, MalformedItem):
            pass
    return {"kind": "malformed"}


def _step(fields: Fields, rest: bytes, *, items: bool) -> Fields:
    """Returns the fields of a step of a salvage. Raises `MalformedItem`, or an error of `struct`."""
    if (step := fields.pop("step")) not in _STEPS:
        raise MalformedItem
    kind, fixed, names = _STEPS[step]
    fields |= {"kind": kind, **dict(zip(names, fixed.unpack_from(rest), strict=True))}
    if kind == "salvage-items":
        times = (item["log_time_ms"] for item in read_items(rest) if item["id"] is not None) if items else ()
        fields["items_time_ms"] = max(times, default=None)
    elif len(rest) != fixed.size:
        raise MalformedItem
    return fields


def parse(ordering: DataFrame, identity: Identity) -> DataFrame:
    """Decodes the records of `ordering` (offset, append_time_ms, value) into the columns of `SCHEMA`."""
    return map_batches(ordering.select("offset", "append_time_ms", "value"), partial(_parsed, identity), SCHEMA)


def _parsed(identity: Identity, batch: pa.RecordBatch) -> pa.RecordBatch:
    offsets, times, values = (batch.column(name) for name in ("offset", "append_time_ms", "value"))
    records = [_read_signed(identity, *each) for each in zip(offsets.to_pylist(), values.to_pylist(), strict=True)]
    signed = pa.array([signed for _, signed in records], pa.bool_())
    hashes = pa.array([sha256(value or b"").digest() for value in values.to_pylist()], _BINARY)
    columns = [pa.array([fields.get(name) for fields, _ in records], type_) for name, type_ in _COLUMNS.items()]
    return pa.RecordBatch.from_arrays([offsets.cast(_LONG), times.cast(_LONG), signed, hashes, *columns], schema=SCHEMA)


def _read_signed(identity: Identity, offset: int, value: bytes | None) -> tuple[Fields, bool]:
    """Decodes one record. Returns its fields, and True if the right key has signed it.

    It decodes the items of a salvage after it has checked the owner's signature: only the owner can make a reader decode a million items.
    """
    fields = read(value, items=False)
    signed = identity.has_signed(fields["kind"], offset, value)
    if signed and fields["kind"] == "salvage-items":
        fields = read(value)
    return fields, signed and fields["kind"] != "malformed"


def _is_complete(fields: Fields, rest: bytes) -> bool:
    """Returns True if `rest` is exactly what should follow the fixed part; adds its fields. Raises if a text does not decode."""
    kind = fields["kind"]
    if kind == "entry":
        fields["ids_digest"] = sha256(rest).digest()
        return len(rest) == ID_BYTES * int(fields["count"])
    for name in _TEXTS.get(kind, ()):
        (length,) = _U16.unpack_from(rest)
        text, rest = rest[_U16.size : _U16.size + length], rest[_U16.size + length :]
        text.decode()
        if len(text) != length or (kind == "genesis" and not 0 < length <= NAME_BYTES_MAX):
            return False
        fields[name] = text
    may_not_be_zero = {"activate": "format_version", "genesis": "partitions"}.get(kind, "kind")
    return not rest and bool(fields[may_not_be_zero])


def identity_at_start(log: LogFrames) -> Identity:
    """Returns the identity that the first ordering record defines. Raises `CouldNotVerify` if that is no genesis record."""
    return refuse_no_genesis(log.at({ORDERING: 0}) if log.log_end_offsets[ORDERING] else None)


def refuse_no_genesis(first: DataFrame | None) -> Identity:
    """Returns the identity that the record at offset 0 of the ordering topic defines; `first` has that record, None in an empty topic.

    Raises `CouldNotVerify` if it is no genesis record.
    """
    row = None if first is None else first.select("value").head()
    value = None if row is None or row.value is None else bytes(row.value)
    fields = read(value)
    found = identity_of(value, fields) if value is not None and fields["kind"] == "genesis" else None
    if found is None:
        because = "it has no record at offset 0" if value is None else f"its first record is {_other(fields['kind'])}"
        raise CouldNotVerify(
            f"the ordering topic does not begin with a genesis record: {because}. This log has no owner, or its beginning is gone: name the"
            " right topics (--prefix) or archive"
        )
    return found


def with_rotations(identity: Identity, ordering: DataFrame, stages: Stages) -> Identity:
    """Returns `identity` with all keys that `key` records of `ordering` put in force.

    One query finds the distinct records that the owner has signed, which are few. Then each rotation takes one more query for its offset:
    that of the first copy after the rotation before it.
    """

    def signed(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
        is_good = [read(value)["kind"] == "key" and identity.has_signed("key", offset, value) for offset, value in rows]
        return batch.filter(pa.array(is_good, pa.bool_()))

    found = ordering.where(part(F.col("value"), 0, 2) == F.lit(_KEY_HEAD)).select("offset", "value")
    records = stages.keep("key records", map_batches(found, signed, "offset bigint, value binary"))
    values = [bytes(row.value) for row in records.select("value").distinct().collect()]
    while True:
        after, _ = identity.notary_keys[-1]
        next_ones = [value for value in values if identity.endorsed(read(value))]
        if not next_ones:
            return identity
        behind = records.where(F.col("value").isin(next_ones) & (F.col("offset") >= after))
        first = behind.orderBy("offset").head()
        if first is None:
            return identity
        public_key = read(bytes(first.value))["public_key"]
        identity = msgspec.structs.replace(identity, notary_keys=(*identity.notary_keys, (first.offset + 1, public_key)))


def _other(kind: str) -> str:
    """Describes a first record that is no genesis record, as a phrase."""
    return {"malformed": "malformed", "genesis": "a genesis record without its owner's signature"}.get(kind, f"of kind {kind}")
