"""The identity of a log, read from its genesis record and its `key` records (R10)."""

from collections.abc import Callable, Iterable, Iterator

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join.constants import FORMAT_VERSION
from spark_join.engine.octets import part
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.log.log import ORDERING, Log
from spark_join.order.identity import Identity, identity_of
from spark_join.order.ordering_records import read

_KEY_HEAD = bytes((FORMAT_VERSION, 7))


def identity_at_start(log: Log) -> Identity:
    """Returns the identity that the first ordering record defines. Raises `CouldNotVerify` if that is no genesis record."""
    row = log.at({ORDERING: 0}).select("value").head() if log.offsets_end[ORDERING] else None
    return refuse_no_genesis(None if row is None or row.value is None else bytes(row.value))


def refuse_no_genesis(value: bytes | None) -> Identity:
    """Returns the identity that a first record with this value defines; `value` is None if there is no record.

    Raises `CouldNotVerify` if it is no genesis record.
    """
    fields = read(value)
    found = identity_of(value, fields) if value is not None and fields["kind"] == "genesis" else None
    if found is None:
        because = "it has no record at offset 0" if value is None else f"its first record is {_other(fields['kind'])}"
        raise CouldNotVerify(
            f"the ordering topic does not begin with a genesis record: {because}. This is nobody's log, or its beginning is gone: name the"
            " right topics (--prefix) or archive"
        )
    return found


def with_rotations(identity: Identity, ordering: DataFrame, stages: Stages) -> Identity:
    """Returns `identity` with all keys that `key` records of `ordering` put in force.

    One query finds the distinct records that the owner has signed, which are few. Then each rotation takes one more query for its offset:
    that of the first copy after the rotation before it.
    """
    found = ordering.where(part(F.col("value"), 0, 2) == F.lit(_KEY_HEAD)).select("offset", "value")
    records = stages.keep("key records", found.mapInArrow(_signed(identity), "offset bigint, value binary"))
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


def _signed(identity: Identity) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def kept(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
            is_good = [read(value)["kind"] == "key" and identity.has_signed("key", offset, value) for offset, value in rows]
            yield batch.filter(pa.array(is_good, pa.bool_()))

    return kept


def _other(kind: str) -> str:
    """Describes a first record that is no genesis record, as a phrase."""
    return {"malformed": "malformed", "genesis": "a genesis record without its owner's signature"}.get(kind, f"of kind {kind}")
