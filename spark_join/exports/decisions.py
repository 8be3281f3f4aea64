"""Decisions of exports that differ from the log's: finds them, names the type of each violation, and renders its text."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_join.constants import COMMITTED
from spark_join.exports.rows import differing, up_to, within
from spark_join.exports.telling import tell_conflicts, tell_hex, tell_outcome, tell_state
from spark_join.violations import violations


def wrong_decisions(found: DataFrame, decisions: DataFrame, sizes: DataFrame) -> DataFrame:
    """Returns the decisions of the exports that differ, by id, with the columns of `rows.differing`.

    `found` is `Exports.decisions`, `decisions` come from `decide`, and `sizes` is that of `rows.up_to`.
    """
    row = F.struct("position", "log_time_ms", "outcome", "conflicts")
    expected = up_to(decisions, sizes).select("source", "id", row.alias("expected"))
    return differing(within(found, sizes).select("source", "id", row.alias("found")), expected, "id")


def placed(wrong: DataFrame, found: DataFrame) -> DataFrame:
    """Returns `wrong` with `standing`: the lowest id that the export has at the row's position.

    Extra rows at the position of a missing decision are left out: the missing row reports them.
    """
    standing = found.groupBy("source", "position").agg(F.min("id").alias("standing"))
    at = wrong.withColumn("position", F.coalesce("expected.position", "found.position"))
    missing = at.where(F.col("found").isNull()).select("source", "position", F.lit(True).alias("instead"))
    extra = F.col("expected").isNull() | F.col("twice")
    known = at.withColumn("place", F.when(extra, F.col("found.position"))).join(
        missing.withColumnRenamed("position", "place"), ["source", "place"], "left"
    )
    return known.where(F.col("instead").isNull()).drop("instead", "place").join(standing, ["source", "position"], "left")


def double_spends(wrong: DataFrame, found: DataFrame, requests: DataFrame) -> DataFrame:
    """Returns source, id and other: decisions that are committed in the export and rejected in the log.

    other (position, id, state) is a second decision that is committed in the export, with a state that both consume.
    """
    overruled = wrong.where(_is_committed("found") & F.col("expected").isNotNull() & ~_is_committed("expected")).select("source", "id")
    inputs = requests.select("id", F.explode("inputs").alias("state"))
    theirs = overruled.join(inputs, "id")
    committed = found.where(F.col("outcome") == COMMITTED).select("source", "id", "position")
    consumers = inputs.join(theirs.select("state").distinct(), "state", "left_semi").join(committed, "id")
    # The first and the last that consume a state are enough: if two or more do, at least one of the ends is another decision.
    at = F.struct("position", "id")
    ends = consumers.groupBy("source", "state").agg(F.min(at).alias("first"), F.max(at).alias("last"))
    other = F.when(F.col("first.id") != F.col("id"), F.col("first")).when(F.col("last.id") != F.col("id"), F.col("last"))
    met = theirs.join(ends, ["source", "state"]).withColumn("other", other).where(F.col("other").isNotNull())
    return met.groupBy("source", "id").agg(F.min(F.struct("other.position", "other.id", "state")).alias("other"))


def told(placed_: DataFrame, double: DataFrame) -> DataFrame:
    """Returns violations (`violations.VIOLATION`) for the rows of `placed` and `double_spends`, each with its most specific type."""
    known = placed_.join(double, ["source", "id"], "left")
    return violations(
        known,
        _type(),
        position=F.col("position"),
        id_=tell_hex(F.col("id")),
        found=_found(),
        expected=_expected(),
        source=F.col("source"),
    )


def _type() -> Column:
    found, expected = F.col("found"), F.col("expected")
    return (
        F.when(_alone(), F.when(found.isNull() & _elsewhere(), "index-mismatch").otherwise("position-gap"))
        .when(F.col("other").isNotNull(), "double-spend")
        .when(_is_committed("found") != _is_committed("expected"), "wrong-outcome")
        .when(found["outcome"] != expected["outcome"], "wrong-reason")
        .when(found["conflicts"] != expected["conflicts"], "wrong-conflicts")
        .when((found["position"] != expected["position"]) & ~_elsewhere(), "position-gap")
        .otherwise("index-mismatch")
    )


def _found() -> Column:
    found, expected, other = F.col("found"), F.col("expected"), F.col("other")
    at = F.concat(F.lit("position "), found["position"].cast("string"))
    second = F.concat(
        F.lit("committed, and it consumes "),
        tell_state(other["state"]),
        F.lit(" as "),
        tell_hex(other["id"]),
        F.lit(" does, committed at position "),
        other["position"].cast("string"),
    )
    return (
        F.when(found.isNull(), F.when(_elsewhere(), tell_hex(F.col("standing"))).otherwise(F.lit("no decision")))
        .when(_alone(), F.when(F.col("twice"), F.concat(F.lit("there again, at "), at)).otherwise(at))
        .when(other.isNotNull(), second)
        .when(found["outcome"] != expected["outcome"], tell_outcome("found"))
        .when(found["conflicts"] != expected["conflicts"], tell_conflicts("found"))
        .when(found["position"] != expected["position"], at)
        .otherwise(F.concat(F.lit("log time "), found["log_time_ms"].cast("string")))
    )


def _expected() -> Column:
    found, expected = F.col("found"), F.col("expected")
    return (
        F.when(found.isNull(), tell_hex(F.col("id")))
        .when(_alone(), F.when(F.col("twice"), F.lit("each decision once")).otherwise(F.lit("no such decision up to there")))
        .when(found["outcome"] != expected["outcome"], tell_outcome("expected"))
        .when(found["conflicts"] != expected["conflicts"], tell_conflicts("expected"))
        .when(found["position"] != expected["position"], F.concat(F.lit("position "), expected["position"].cast("string")))
        .otherwise(F.concat(F.lit("log time "), expected["log_time_ms"].cast("string")))
    )


def _alone() -> Column:
    """Returns a column that is true if the row has no counterpart: it is missing, unexpected, or a duplicate."""
    return F.col("found").isNull() | F.col("expected").isNull() | F.col("twice")


def _elsewhere() -> Column:
    """Returns a column that is true if the export has another decision at the row's position."""
    return F.col("standing").isNotNull() & (F.col("standing") != F.col("id"))


def _is_committed(side: str) -> Column:
    return F.col(f"{side}.outcome") == COMMITTED
