"""First occurrences (R7) and their positions: what is to be decided, in its order."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_join.running import before


def first_occurrences(requests: DataFrame, decided: DataFrame) -> DataFrame:
    """`requests` (`contents.Contents`) without those whose id stands earlier in the order, or in `decided`, of what came before them."""
    repeated = decided.join(requests.select("id"), "id", "left_semi")  # of the two sides Spark sends round the right one, if it is small
    earliest = (
        requests.join(repeated, "id", "left_anti")
        .groupBy("id")
        .agg(F.min(F.struct("offset", "ordinal")).alias("_first"))
        .select("id", "_first.offset", "_first.ordinal")
    )
    return requests.join(earliest, ["id", "offset", "ordinal"], "left_semi")


def with_positions(firsts: DataFrame, decided: int) -> DataFrame:
    """The first occurrences with `position`: from `decided` on, in the order of offset and ordinal."""
    entries = before(firsts.groupBy("offset").agg(F.count("*").alias("_requests")), "_earlier", F.col("_requests"), "sum", "offset")
    within = F.row_number().over(Window.partitionBy("offset").orderBy("ordinal")) - 1
    earlier = entries.select("offset", (F.coalesce("_earlier", F.lit(0)) + decided).alias("_earlier"))
    return (
        firsts.withColumn("_within", within)
        .join(earlier, "offset")
        .withColumn("position", F.col("_earlier") + F.col("_within"))
        .drop("_earlier", "_within")
    )
