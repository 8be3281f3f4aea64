"""First occurrences (R7) and their positions: the requests to decide, in the global order.

Nearly every request occurs once. To find the others, Spark moves only ids. Only entries with a repetition are numbered row by row; in all
others the ordinal in the entry gives the position, and Spark does not move these requests.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_join.engine.running import before


def repetitions(requests: DataFrame, decided: DataFrame) -> DataFrame:
    """Returns offset and ordinal of the `requests` (`contents.Contents`) that repeat an earlier one.

    Their id occurs earlier in the order, or in `decided`, the ids of the part before.
    """
    places = requests.select("id", F.struct("offset", "ordinal").alias("place"))
    often = places.groupBy("id").agg(F.min("place").alias("first"), F.max("place").alias("last")).where(F.col("first") < F.col("last"))
    later = places.join(often, "id").where(F.col("place") > F.col("first")).select("place.*")
    known = decided.join(requests.select("id"), "id", "left_semi")  # Spark broadcasts the right side if it is small
    return later.union(places.join(known, "id", "left_semi").select("place.*")).distinct()


def with_positions(requests: DataFrame, repeated: DataFrame, decided: int) -> DataFrame:
    """Returns `requests` without those in `repeated`, with `position`: from `decided` on, in the order of offset and ordinal."""
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
