"""What is kept of a partition's last record, to know it again: its offset and a SHA-256, over

    i64 offset ‖ i64 append time ‖ i64 length of the key ‖ key ‖ i64 length of the value ‖ value

with a length of -1 where there is none. All numbers are big-endian.
"""

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_join.engine.octets import u64
from spark_join.log.log import Log, Place
from spark_join.state.state import LastRecord


def last_records(log: Log, offsets: Mapping[Place, int]) -> dict[Place, LastRecord]:
    """Of the records of `log` at these `offsets`, one for each partition; nothing of those that are not there."""
    if not offsets:
        return {}
    octets = F.concat(u64(F.col("offset")), u64(F.col("append_time_ms")), *_told("key"), *_told("value"))
    rows = log.at(offsets).select("topic", "partition", "offset", F.sha2(octets, 256).alias("sha256")).collect()
    return {(row.topic, row.partition): LastRecord(row.offset, row.sha256) for row in rows}


def _told(name: str) -> tuple[Column, Column]:
    length = F.coalesce(F.length(name), F.lit(-1)).cast("bigint")
    return u64(length), F.coalesce(name, F.lit(b""))
