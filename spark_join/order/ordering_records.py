"""The records of the ordering topic as typed columns (docs/formats.md, Ordering records).

| kind | columns that are set |
|---|---|
| `entry` | incarnation, sequence, sent_at_ms, partition, count, ids_digest |
| `register` | nonce, name |
| `fence` | incarnation, sequence |
| `checkpoint` | incarnation, tree_size, root |
| `activate` | format_version |
| `malformed` | none: a byte too few or too many, a version that is not active, a kind that is none, text that is not UTF-8 |

`incarnation`, `sequence` and `tree_size` are the 8 bytes of a u64 (see `octets`); `ids_digest` is the SHA-256 of the
transaction ids, one after the other: of all columns they alone would grow with the requests.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_join.constants import FORMAT_VERSION, ID_BYTES
from spark_join.engine.octets import part, sha256, signed, unsigned

_HEAD_BYTES = 34
"""Of an entry, before its ids."""


def parse(ordering: DataFrame) -> DataFrame:
    """`ordering` has offset, append_time_ms and value; the result offset, append_time_ms, kind and the columns above."""
    value = F.col("value")
    length = F.length(value)
    count = unsigned(part(value, 30, 4))
    name_bytes = unsigned(part(value, 20, 2))
    name = part(value, 22, name_bytes)
    software_bytes = unsigned(part(value, 22 + name_bytes, 2))
    software = part(value, 24 + name_bytes, software_bytes)
    format_version = unsigned(part(value, 2, 2))
    well_formed = {
        "entry": length == _HEAD_BYTES + ID_BYTES * count,
        "register": (length == 24 + name_bytes + software_bytes) & _is_text(name) & _is_text(software),
        "fence": length == 18,
        "checkpoint": length == 50,
        "activate": (length == 4) & (format_version > 0),
    }
    kind = F.lit("malformed")
    for number, (what, condition) in enumerate(well_formed.items(), 1):
        said = part(value, 0, 2) == F.lit(bytes((FORMAT_VERSION, number)))
        kind = F.when(said & F.coalesce(condition, F.lit(False)), what).otherwise(kind)

    def of(column: Column, *kinds: str) -> Column:
        return F.when(F.col("kind").isin(*kinds), column).otherwise(F.lit(None))

    return ordering.withColumn("kind", kind).select(
        "offset",
        "append_time_ms",
        "kind",
        of(part(value, 2, 8), "entry", "fence", "checkpoint").alias("incarnation"),
        of(part(value, 10, 8), "entry", "fence").alias("sequence"),
        of(signed(part(value, 18, 8)), "entry").alias("sent_at_ms"),
        of(unsigned(part(value, 26, 4)), "entry").alias("partition"),
        of(count, "entry").alias("count"),
        of(sha256(part(value, _HEAD_BYTES, length)), "entry").alias("ids_digest"),
        of(part(value, 2, 16), "register").alias("nonce"),
        of(name, "register").alias("name"),
        of(part(value, 10, 8), "checkpoint").alias("tree_size"),
        of(part(value, 18, 32), "checkpoint").alias("root"),
        of(format_version, "activate").alias("format_version"),
    )


def _is_text(octets: Column) -> Column:
    return F.is_valid_utf8(octets.cast("string"))
