"""First occurrences (R7) and their positions: what is to be decided, in its order.

Nearly every request is asked once. So only ids are moved to find those that are not, and only the entries in which one stands are counted
through; in all others a request's place in its entry says its position, and nothing of it is moved.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_join.engine.running import before


def repetitions(requests: DataFrame, decided: DataFrame) -> DataFrame:
    """offset and ordinal of those of `requests` (`contents.Contents`) whose id stands earlier in the order, or in `decided`, of what came
    before them."""
    places = requests.select("id", F.struct("offset", "ordinal").alias("place"))
    often = places.groupBy("id").agg(F.min("place").alias("first"), F.max("place").alias("last")).where(F.col("first") < F.col("last"))
    later = places.join(often, "id").where(F.col("place") > F.col("first")).select("place.*")
    known = decided.join(requests.select("id"), "id", "left_semi")  # of the two sides Spark sends round the right one, if it is small
    return later.union(places.join(known, "id", "left_semi").select("place.*")).distinct()


def with_positions(requests: DataFrame, repeated: DataFrame, decided: int) -> DataFrame:
    """`requests` without those that are `repeated`, with `position`: from `decided` on, in the order of offset and ordinal."""
    gone = repeated.groupBy("offset").agg(F.count("*").alias("_gone"))
    counts = requests.groupBy("offset").agg(F.count("*").alias("_requests")).join(gone, "offset", "left")
    counts = counts.withColumn("_left", F.col("_requests") - F.coalesce("_gone", F.lit(0)))
    entries = before(counts, "_earlier", F.col("_left"), "sum", "offset")
    starts = entries.select("offset", (F.coalesce("_earlier", F.lit(0)) + decided).alias("_start"), F.col("_gone").isNull().alias("_whole"))
    placed = requests.join(starts, "offset")
    whole = placed.where("_whole").withColumn("position", F.col("_start") + F.col("ordinal"))
    left = placed.where(~F.col("_whole")).join(repeated, ["offset", "ordinal"], "left_anti")
    within = F.row_number().over(Window.partitionBy("offset").orderBy("ordinal")) - 1
    return whole.unionByName(left.withColumn("position", F.col("_start") + within)).drop("_start", "_whole")
