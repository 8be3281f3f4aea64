"""The notary's name, tried on payloads before it goes into an archive, which has it for ever."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_join.errors import CouldNotVerify
from spark_join.log.client import Bounds, Kafka
from spark_join.log.kafka import read_records
from spark_join.log.log import ORDERING, Place
from spark_join.order import contents, ordering_records
from spark_join.order.notary_name import other_name

ENTRIES_TRIED_MAX: Final = 1_000
PAYLOADS_TRIED_MAX: Final = 16
"""Of each partition; they belong to entries of about the same time."""


def refuse_other_name(session: SparkSession, kafka: Kafka, there: Mapping[Place, Bounds], notary_name: str) -> None:
    """Raise `CouldNotVerify` where some of the first contents in these bounds decode, and not one has its entry's ids.

    Which entries count is not looked at: under a wrong name none has its ids.
    """
    tried = {place: _first(bound, ENTRIES_TRIED_MAX if place == ORDERING else PAYLOADS_TRIED_MAX) for place, bound in there.items()}
    ordering = {place: bound for place, bound in tried.items() if place == ORDERING}
    payload = {place: bound for place, bound in tried.items() if place != ORDERING}
    if not all(any(bound.offset_first < bound.offset_end for bound in some.values()) for some in (ordering, payload)):
        return
    entries = ordering_records.parse(read_records(session, kafka, ordering)).where((F.col("kind") == "entry") & (F.col("count") > 0))
    values = read_records(session, kafka, payload).drop("topic")
    placed = contents.with_places(entries.withColumn("log_time_ms", F.lit(0)), values)
    read = contents.read_contents(placed, values, notary_name, None)
    (found,) = read.agg(F.count_if("counts").alias("right"), F.count_if(F.col("decodes") & ~F.col("counts")).alias("other")).collect()
    if found.other and not found.right:
        raise CouldNotVerify(f"nothing is archived: of the first ones {other_name(notary_name, found.other)}")


def _first(bound: Bounds, records_max: int) -> Bounds:
    return Bounds(bound.offset_first, min(bound.offset_end, bound.offset_first + records_max))
