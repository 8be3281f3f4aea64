"""Both topics as Parquet files, one folder a partition. (docs/spark.md, The archive.)

    <archive>/ordering/partition=0/*.parquet
    <archive>/payload/partition=<n>/*.parquet

| column | type |
|---|---|
| offset | i64, rising |
| append_time_ms | i64 |
| key | binary or null |
| value | binary or null |
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

_COLUMNS = "offset bigint, append_time_ms bigint, key binary, value binary, partition int"


def read_topic(session: SparkSession, archive: Path, topic: str) -> DataFrame:
    """The archived records of `ordering` or `payload`: partition, offset, append_time_ms, key, value."""
    return session.read.schema(_COLUMNS).option("basePath", str(archive / topic)).parquet(str(archive / topic))
