"""Identifies the last record of a partition, so that a later run recognizes it, by its offset and the SHA-256 over

    i64 offset ‖ i64 append time ‖ i64 length of the key ‖ key ‖ i64 length of the value ‖ value

with length -1 for a missing key or value. All numbers are big-endian.
"""

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_join.engine.octets import u64
from spark_join.log.log import Log, Place
from spark_join.state.state import LastRecord


def last_records(log: Log, offsets: Mapping[Place, int]) -> dict[Place, LastRecord]:
    """Returns the `LastRecord` of the records of `log` at these `offsets`, one a partition; missing records are left out."""
    if not offsets:
        return {}
    octets = F.concat(u64(F.col("offset")), u64(F.col("append_time_ms")), *_told("key"), *_told("value"))
    rows = log.at(offsets).select("topic", "partition", "offset", F.sha2(octets, 256).alias("sha256")).collect()
    return {(row.topic, row.partition): LastRecord(row.offset, row.sha256) for row in rows}


def _told(name: str) -> tuple[Column, Column]:
    length = F.coalesce(F.length(name), F.lit(-1)).cast("bigint")
    return u64(length), F.coalesce(name, F.lit(b""))
