"""Exported indexes against the decisions of the log, row by row.

Each row of an export has a row that should be there: a decision's is found by its id, a state's by the state. What differs is told once,
by the most telling type, and what follows from it is not told again:

| what differs | type |
|---|---|
| committed instead of rejected, and a state that it consumes is consumed by another committed one of the export | `double-spend` |
| committed instead of rejected, or the other way round | `wrong-outcome` |
| rejected for another reason | `wrong-reason` |
| other conflicts | `wrong-conflicts` |
| a decision that is missing, there twice, or at a place where it leaves a gap | `position-gap` |
| another decision at its position; its log time; a consumed state; how many decisions there are; the root | `index-mismatch` |

A decision with two of these gets the upper one. What follows from a wrong outcome, place or id is not told besides: the states that the
transaction consumes. Nor is the root, which follows from any difference of a decision.
"""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_join.constants import COMMITTED
from spark_join.engine.stages import Stages
from spark_join.exports.read import Exports
from spark_join.exports.telling import tell_conflicts, tell_consumed, tell_hex, tell_outcome, tell_state
from spark_join.join import Joined

EXPORT_VIOLATION = "type string, position bigint, offset bigint, id string, found string, expected string, source string"


def compare(
    session: SparkSession, exports: Exports, joined: Joined, decisions: DataFrame, roots: Mapping[int, bytes], stages: Stages
) -> DataFrame:
    """The violations (`EXPORT_VIOLATION`). `decisions` as `decide` gives them; `roots` by size, for the size of each export's tree."""
    reached = _reached(exports, joined)
    sizes = session.createDataFrame(
        [(source, min(manifest.decisions, reached[source]), manifest.decisions) for source, manifest in exports.manifests.items()],
        "source string, size bigint, decisions bigint",
    )
    differing = stages.keep("decisions of the exports", _differing_decisions(exports.decisions, decisions, sizes))
    placed = stages.keep("places in the exports", _placed(differing, exports.decisions))
    double = stages.keep("double spends of the exports", _double_spends(differing, exports.decisions, joined.requests))
    of_states = stages.keep("states of the exports", _of_states(exports.states, joined.requests, decisions, differing, sizes))
    wrong = {row.source for row in differing.select("source").distinct().collect()}
    together = [
        _of_decisions(placed, double),
        of_states,
        session.createDataFrame(_of_sizes(exports, joined.offset_hole, reached, wrong, roots), EXPORT_VIOLATION),
    ]
    return reduce(DataFrame.unionByName, together)


def _differing(found: DataFrame, expected: DataFrame, key: str) -> DataFrame:
    """What is not the same in both, or there twice: source, key, found, expected (null where there is none), twice.

    `found` has source, key and the row as `found`; `expected` the same, each key of a source once.
    """
    times = F.count("*").over(Window.partitionBy("source", key))
    joined = found.withColumn("times", times).join(expected, ["source", key], "full")
    same = F.col("found").eqNullSafe(F.col("expected"))
    wrong = joined.where(~same | (F.col("times") > 1)).drop("times")
    # Of rows with one key the one that is as it should be is the first.
    ordinal = F.row_number().over(Window.partitionBy("source", key).orderBy(~same, "found.position"))
    return wrong.withColumn("twice", ordinal > 1).where(F.col("twice") | ~same)


def _differing_decisions(found: DataFrame, decisions: DataFrame, sizes: DataFrame) -> DataFrame:
    row = F.struct("position", "log_time_ms", "outcome", "conflicts")
    expected = _up_to(decisions, sizes).select("source", "id", row.alias("expected"))
    return _differing(_within(found, sizes).select("source", "id", row.alias("found")), expected, "id")


def _up_to(frame: DataFrame, sizes: DataFrame) -> DataFrame:
    """What each export should have of `frame`, which has `position`."""
    return frame.crossJoin(F.broadcast(sizes)).where(F.col("position") < F.col("size"))


def _within(found: DataFrame, sizes: DataFrame) -> DataFrame:
    """Of an index with more decisions than the log has, as far as it has read, only those that it should have."""
    sized = found.join(F.broadcast(sizes), "source")
    return sized.where((F.col("position") < F.col("size")) | (F.col("size") == F.col("decisions"))).drop("size", "decisions")


def _placed(differing: DataFrame, found: DataFrame) -> DataFrame:
    """`differing` without the rows that only stand where another is missing; with `standing`, the id that stands where the row should."""
    standing = found.groupBy("source", "position").agg(F.min("id").alias("standing"))
    at = differing.withColumn("position", F.coalesce("expected.position", "found.position"))
    missing = at.where(F.col("found").isNull()).select("source", "position", F.lit(True).alias("instead"))
    extra = F.col("expected").isNull() | F.col("twice")
    known = at.withColumn("place", F.when(extra, F.col("found.position"))).join(
        missing.withColumnRenamed("position", "place"), ["source", "place"], "left"
    )
    return known.where(F.col("instead").isNull()).drop("instead", "place").join(standing, ["source", "position"], "left")


def _double_spends(differing: DataFrame, found: DataFrame, requests: DataFrame) -> DataFrame:
    """Decisions that only the export calls committed, each with another that it calls so and that consumes the same: source, id, other."""
    overruled = differing.where(_is_committed("found") & F.col("expected").isNotNull() & ~_is_committed("expected")).select("source", "id")
    inputs = requests.select("id", F.explode("inputs").alias("state"))
    theirs = overruled.join(inputs, "id")
    committed = found.where(F.col("outcome") == COMMITTED).select("source", F.col("id").alias("other_id"), "position")
    of_others = inputs.join(theirs.select("state").distinct(), "state", "left_semi").withColumnRenamed("id", "other_id")
    met = theirs.join(of_others.join(committed, "other_id"), ["source", "state"]).where(F.col("other_id") != F.col("id"))
    first = F.min(F.struct(F.col("position"), F.col("other_id").alias("id"), F.col("state")))
    return met.groupBy("source", "id").agg(first.alias("other"))


def _of_decisions(placed: DataFrame, double: DataFrame) -> DataFrame:
    known = placed.join(double, ["source", "id"], "left")
    found, expected, other = F.col("found"), F.col("expected"), F.col("other")
    alone = found.isNull() | expected.isNull() | F.col("twice")
    committed = _is_committed("found") != _is_committed("expected")
    moved = found["position"] != expected["position"]
    elsewhere = F.col("standing").isNotNull() & (F.col("standing") != F.col("id"))
    type_ = (
        F.when(alone, F.when(found.isNull() & elsewhere, "index-mismatch").otherwise("position-gap"))
        .when(other.isNotNull(), "double-spend")
        .when(committed, "wrong-outcome")
        .when(found["outcome"] != expected["outcome"], "wrong-reason")
        .when(found["conflicts"] != expected["conflicts"], "wrong-conflicts")
        .when(moved & ~elsewhere, "position-gap")
        .otherwise("index-mismatch")
    )
    at = F.concat(F.lit("position "), found["position"].cast("string"))
    second = F.concat(
        F.lit("committed, and it consumes "),
        tell_state(other["state"]),
        F.lit(" as "),
        tell_hex(other["id"]),
        F.lit(" does, committed at position "),
        other["position"].cast("string"),
    )
    said_found = (
        F.when(found.isNull(), F.when(elsewhere, tell_hex(F.col("standing"))).otherwise(F.lit("no decision")))
        .when(alone, F.when(F.col("twice"), F.concat(F.lit("there again, at "), at)).otherwise(at))
        .when(other.isNotNull(), second)
        .when(found["outcome"] != expected["outcome"], tell_outcome("found"))
        .when(found["conflicts"] != expected["conflicts"], tell_conflicts("found"))
        .when(moved, at)
        .otherwise(F.concat(F.lit("log time "), found["log_time_ms"].cast("string")))
    )
    said_expected = (
        F.when(found.isNull(), tell_hex(F.col("id")))
        .when(alone, F.when(F.col("twice"), F.lit("each decision once")).otherwise(F.lit("no such decision up to there")))
        .when(found["outcome"] != expected["outcome"], tell_outcome("expected"))
        .when(found["conflicts"] != expected["conflicts"], tell_conflicts("expected"))
        .when(moved, F.concat(F.lit("position "), expected["position"].cast("string")))
        .otherwise(F.concat(F.lit("log time "), expected["log_time_ms"].cast("string")))
    )
    return known.select(
        type_.alias("type"),
        "position",
        F.lit(None).cast("bigint").alias("offset"),
        tell_hex(F.col("id")).alias("id"),
        said_found.alias("found"),
        said_expected.alias("expected"),
        "source",
    )


def _of_states(found: DataFrame, requests: DataFrame, decisions: DataFrame, differing: DataFrame, sizes: DataFrame) -> DataFrame:
    """Consumed states that are missing, there twice, too many or of another transaction."""
    committed = decisions.where(F.col("outcome") == COMMITTED).select("position")
    consumed = requests.join(committed, "position").select("id", "position", F.explode("inputs").alias("state"))
    row = F.struct("id", "position")
    expected = _up_to(consumed, sizes).select("source", "state", row.alias("expected"))
    wrong = _differing(_within(found, sizes).select("source", "state", row.alias("found")), expected, "state")
    follows = (
        F.col("found").isNull()
        | F.col("expected").isNull()
        | F.col("twice")
        | (F.col("found.position") != F.col("expected.position"))
        | (_is_committed("found") != _is_committed("expected"))
    )
    told = differing.where(follows).select("source", "id").distinct()
    for side in ("found", "expected"):
        ids = told.select("source", F.col("id").alias("told"))
        wrong = wrong.join(ids, (wrong["source"] == ids["source"]) & (wrong[f"{side}.id"] == ids["told"]), "left_anti")
    return wrong.select(
        F.lit("index-mismatch").alias("type"),
        F.coalesce("expected.position", "found.position").alias("position"),
        F.lit(None).cast("bigint").alias("offset"),
        tell_hex(F.coalesce("expected.id", "found.id")).alias("id"),
        tell_consumed("found", F.col("twice")).alias("found"),
        tell_consumed("expected", F.lit(False)).alias("expected"),
        "source",
    )


def _reached(exports: Exports, joined: Joined) -> dict[str, int]:
    """How many decisions the log has up to where each index has read."""
    counts = [F.count(F.when(F.col("offset") < manifest.offsets_next.ordering, 1)) for manifest in exports.manifests.values()]
    (counted,) = joined.requests.agg(*counts).collect()
    return dict(zip(exports.manifests, counted, strict=True))


def _of_sizes(
    exports: Exports, offset_hole: int | None, reached: Mapping[str, int], wrong: set[str], roots: Mapping[int, bytes]
) -> list[tuple[object, ...]]:
    """Exports with more or fewer decisions than the log has up to where they have read, or with another tree."""
    rows: list[tuple[object, ...]] = []
    for source, manifest in exports.manifests.items():
        size, root = manifest.tree.size, roots.get(manifest.tree.size)
        difference = None
        behind_a_hole = offset_hole is not None and manifest.offsets_next.ordering > offset_hole
        if manifest.decisions != reached[source] and not behind_a_hole:
            read = f"after reading the ordering topic up to offset {manifest.offsets_next.ordering}"
            difference = f"{manifest.decisions} decisions {read}", f"{reached[source]} decisions"
        elif size != manifest.decisions:
            difference = f"a tree of {size} decisions", f"a tree of {manifest.decisions} decisions"
        elif root is not None and manifest.tree.root != root.hex() and source not in wrong:
            difference = manifest.tree.root, root.hex()
        if difference is not None:
            rows.append(("index-mismatch", manifest.decisions, None, None, *difference, source))
    return rows


def _is_committed(side: str) -> Column:
    return F.col(f"{side}.outcome") == COMMITTED
