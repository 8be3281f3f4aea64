"""A log as it was read, whether from brokers or from an archive."""

from collections.abc import Mapping
from typing import Final

import msgspec
from pyspark.sql import DataFrame

Place = tuple[str, int]
"""A topic, `ordering` or `payload`, and one of its partitions."""

ORDERING: Final[Place] = ("ordering", 0)


class Log(msgspec.Struct, frozen=True):
    """What is read: partition, offset, append_time_ms, key and value of each topic's records."""

    ordering: DataFrame
    payload: DataFrame
    notary_name: str
    payload_partitions: int
    offsets_end: Mapping[Place, int]
    """Behind the last record of each partition"""
