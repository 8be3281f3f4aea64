"""Compares exported indexes with the decisions of the log, row by row.

Each row of an export is compared with the expected row: of a decision by its id, of a state by the state. Each difference is reported once,
by the most specific type:

| difference | type |
|---|---|
| committed instead of rejected, and a state that it consumes is consumed by another committed one of the export | `double-spend` |
| committed instead of rejected, or the other way round | `wrong-outcome` |
| rejected for another reason | `wrong-reason` |
| other conflicts | `wrong-conflicts` |
| a decision that is missing, duplicated, or at another position, so that its own position has none | `position-gap` |
| another decision at its position; its log time, or the index's; a consumed state; the number of decisions; the root | `index-mismatch` |

A decision with two of these differences gets the upper type. Consequences of a difference are not reported again: the states that a wrong
outcome, position or id changes, and the root, which any wrong decision changes.
"""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_join.constants import COMMITTED
from spark_join.engine.columns import frame_of
from spark_join.engine.stages import Stages
from spark_join.exports import Exports
from spark_join.order.join import Joined
from spark_join.violations import VIOLATION, render_conflicts, render_consumed, render_hex, render_outcome, render_state, violations


def compare(
    session: SparkSession, exports: Exports, joined: Joined, decisions: DataFrame, roots: Mapping[int, bytes], stages: Stages
) -> DataFrame:
    """Returns the violations (`violations.VIOLATION`). `decisions` come from `decide`; `roots`, by size, has that of each export's tree."""
    requests = joined.requests
    if joined.items is not None:  # what a salvage restored is decided as well
        known = joined.items.where(F.col("id").isNotNull())
        decisions = decisions.union(known.select(*decisions.columns))
        names = ("position", "offset", "id", "inputs")
        requests = requests.select(*names).union(joined.items.select(*names))
    reached = _reached(exports, requests)
    sizes = frame_of(
        session,
        [(source, min(manifest.decisions, reached[source]), manifest.decisions) for source, manifest in exports.manifests.items()],
        "source string, size bigint, decisions bigint",
    )
    wrong = stages.keep("decisions of the exports", wrong_decisions(exports.decisions, decisions, sizes))
    located = stages.keep("places in the exports", placed(wrong, exports.decisions))
    double = stages.keep("double spends of the exports", double_spends(wrong, exports.decisions, requests))
    of_states = stages.keep("states of the exports", wrong_states(exports.states, requests, decisions, wrong, sizes))
    differ = {row.source for row in wrong.select("source").distinct().collect()}
    together = [
        decision_violations(located, double),
        of_states,
        frame_of(session, _of_sizes(exports, joined.offset_hole, reached, differ, roots, _log_times(exports, joined.records)), VIOLATION),
    ]
    return reduce(DataFrame.unionByName, together)


def _reached(exports: Exports, requests: DataFrame) -> dict[str, int]:
    """Returns the number of decisions that the log has up to where each index has read."""
    counts = [F.count(F.when(F.col("offset") < manifest.offsets_next.ordering, 1)) for manifest in exports.manifests.values()]
    (counted,) = requests.agg(*counts).collect()
    return dict(zip(exports.manifests, counted, strict=True))


def _log_times(exports: Exports, records: DataFrame) -> dict[str, int]:
    """Returns the log time where each index has read up to, in milliseconds."""
    at = F.struct("offset", "log_time_ms")
    timed = F.col("log_time_ms").isNotNull()
    lasts = [F.max(F.when(timed & (F.col("offset") < manifest.offsets_next.ordering), at)) for manifest in exports.manifests.values()]
    (found,) = records.agg(*lasts).collect()
    return {source: 0 if last is None else last.log_time_ms for source, last in zip(exports.manifests, found, strict=True)}


def _of_sizes(
    exports: Exports,
    offset_hole: int | None,
    reached: Mapping[str, int],
    differ: set[str],
    roots: Mapping[int, bytes],
    log_times_ms: Mapping[str, int],
) -> list[tuple[object, ...]]:
    """Returns rows of violations for exports with more or fewer decisions than the log has up to where they have read, or another tree.

    An export that has read past the hole may have more decisions, which cannot be verified, but no fewer.
    """
    rows: list[tuple[object, ...]] = []
    for source, manifest in exports.manifests.items():
        size, root = manifest.tree.size, roots.get(manifest.tree.size)
        difference = None
        behind_a_hole = offset_hole is not None and manifest.offsets_next.ordering > offset_hole
        if manifest.decisions < reached[source] or (manifest.decisions > reached[source] and not behind_a_hole):
            read = f"after reading the ordering topic up to offset {manifest.offsets_next.ordering}"
            difference = f"{manifest.decisions} decisions {read}", f"{reached[source]} decisions"
        elif size != manifest.decisions:
            difference = f"a tree of {size} decisions", f"a tree of {manifest.decisions} decisions"
        elif root is not None and manifest.tree.root != root.hex() and source not in differ:
            difference = manifest.tree.root, root.hex()
        elif manifest.log_time_ms != log_times_ms[source] and not behind_a_hole:
            difference = f"log time {manifest.log_time_ms} ms", f"log time {log_times_ms[source]} ms"
        if difference is not None:
            rows.append(("index-mismatch", manifest.decisions, None, None, *difference, source, None, None))
    return rows


def wrong_decisions(found: DataFrame, decisions: DataFrame, sizes: DataFrame) -> DataFrame:
    """Returns the decisions of the exports that differ, by id, with the columns of `differing`.

    `found` is `Exports.decisions`, `decisions` come from `decide`, and `sizes` is that of `up_to`.
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
    known = at.withColumn("location", F.when(extra, F.col("found.position"))).join(
        missing.withColumnRenamed("position", "location"), ["source", "location"], "left"
    )
    return known.where(F.col("instead").isNull()).drop("instead", "location").join(standing, ["source", "position"], "left")


def double_spends(wrong: DataFrame, found: DataFrame, requests: DataFrame) -> DataFrame:
    """Returns source, id and other: decisions that are committed in the export and rejected in the log.

    other (position, id, state) is a second decision that is committed in the export, with a state that both consume.
    """
    overruled = wrong.where(_is_committed("found") & F.col("expected").isNotNull() & ~_is_committed("expected")).select("source", "id")
    inputs = requests.select("id", F.explode("inputs").alias("state"))
    theirs = overruled.join(inputs, "id")
    committed = found.where(F.col("outcome") == COMMITTED).select("source", "id", "position")
    consumers = inputs.join(theirs.select("state").distinct(), "state", "left_semi").join(committed, "id")
    # The first and the last decision that consume a state are enough: if two or more do, at least one of these is another decision.
    at = F.struct("position", "id")
    ends = consumers.groupBy("source", "state").agg(F.min(at).alias("first"), F.max(at).alias("last"))
    other = F.when(F.col("first.id") != F.col("id"), F.col("first")).when(F.col("last.id") != F.col("id"), F.col("last"))
    met = theirs.join(ends, ["source", "state"]).withColumn("other", other).where(F.col("other").isNotNull())
    return met.groupBy("source", "id").agg(F.min(F.struct("other.position", "other.id", "state")).alias("other"))


def decision_violations(placed_: DataFrame, double: DataFrame) -> DataFrame:
    """Returns violations (`violations.VIOLATION`) for the rows of `placed` and `double_spends`, each with its most specific type."""
    known = placed_.join(double, ["source", "id"], "left").withColumn("difference", _difference())
    type_, found, expected = (F.col(f"difference.{name}") for name in ("type", "found", "expected"))
    return violations(known, type_, id=render_hex(F.col("id")), found=found, expected=expected)


def _difference() -> Column:
    """Returns the struct type, found and expected of the first difference that a row has."""
    found, expected, other = F.col("found"), F.col("expected"), F.col("other")
    id_, outcomes = render_hex(F.col("id")), (render_outcome("found"), render_outcome("expected"))
    at, at_expected = (F.format_string("position %s", side["position"]) for side in (found, expected))
    time, time_expected = (F.format_string("log time %s", side["log_time_ms"]) for side in (found, expected))
    second = F.format_string(
        "committed, and it consumes %s as %s does, committed at position %s",
        render_state(other["state"]),
        render_hex(other["id"]),
        other["position"],
    )
    moved = found["position"] != expected["position"]
    # The export has another decision at the row's position.
    elsewhere = F.col("standing").isNotNull() & (F.col("standing") != F.col("id"))
    differences = (
        (found.isNull() & elsewhere, "index-mismatch", render_hex(F.col("standing")), id_),
        (found.isNull(), "position-gap", F.lit("no decision"), id_),
        (F.col("twice"), "position-gap", F.concat(F.lit("there again, at "), at), F.lit("each decision once")),
        (expected.isNull(), "position-gap", at, F.lit("no such decision up to there")),
        (other.isNotNull(), "double-spend", second, outcomes[1]),
        (_is_committed("found") != _is_committed("expected"), "wrong-outcome", *outcomes),
        (found["outcome"] != expected["outcome"], "wrong-reason", *outcomes),
        (found["conflicts"] != expected["conflicts"], "wrong-conflicts", render_conflicts("found"), render_conflicts("expected")),
        (moved & ~elsewhere, "position-gap", at, at_expected),
        (moved, "index-mismatch", at, at_expected),
        (F.lit(True), "index-mismatch", time, time_expected),
    )
    return F.coalesce(
        *[
            F.when(applies, F.struct(F.lit(type_).alias("type"), there.alias("found"), wanted.alias("expected")))
            for applies, type_, there, wanted in differences
        ]
    )


def _is_committed(side: str) -> Column:
    return F.col(f"{side}.outcome") == COMMITTED


def wrong_states(found: DataFrame, requests: DataFrame, decisions: DataFrame, wrong_decisions: DataFrame, sizes: DataFrame) -> DataFrame:
    """Returns violations (`violations.VIOLATION`) for the states of the exports.

    `found` is `Exports.states` and `requests` is `Joined.requests`; `decisions` come from `decide`, `wrong_decisions` from
    `wrong_decisions`; `sizes` is that of `up_to`.
    """
    committed = decisions.where(F.col("outcome") == COMMITTED).select("position")
    consumed = requests.join(committed, "position").select("id", "position", F.explode("inputs").alias("state"))
    row = F.struct("id", "position")
    expected = up_to(consumed, sizes).select("source", "state", row.alias("expected"))
    wrong = differing(within(found, sizes).select("source", "state", row.alias("found")), expected, "state")
    unexplained = _without_what_follows(wrong, wrong_decisions, requests)
    return violations(
        unexplained,
        F.lit("index-mismatch"),
        position=F.coalesce("expected.position", "found.position"),
        id=render_hex(F.coalesce("expected.id", "found.id")),
        found=render_consumed("found", F.col("twice")),
        expected=render_consumed("expected", F.lit(False)),
    )


def _without_what_follows(wrong: DataFrame, wrong_decisions: DataFrame, requests: DataFrame) -> DataFrame:
    """Returns the wrong states that do not follow from a wrong decision."""
    found, expected = F.col("found"), F.col("expected")
    named = wrong.select("*", found["id"].alias("id"), found["position"].alias("position"))
    unexplained = named.join(_claimed(wrong_decisions, requests), ["source", "state", "id", "position"], "left_anti")
    not_committed = wrong_decisions.where(found.isNull() | (found["outcome"] != COMMITTED)).select("source", "id").distinct()
    named_again = unexplained.withColumn("id", F.when(found.isNull(), expected["id"]))
    return named_again.join(not_committed, ["source", "id"], "left_anti").drop("id", "position")


def _claimed(wrong_decisions: DataFrame, requests: DataFrame) -> DataFrame:
    """Returns source, state, id and position of the states that wrong decisions consume if the export has them as committed.

    The inputs of a transaction that is not in the log are unknown. It counts as consuming the inputs of the missing one at its position.
    """
    found, expected = F.col("found"), F.col("expected")
    committed = wrong_decisions.where(found["outcome"] == COMMITTED).withColumn("position", found["position"])
    own = committed.select("source", "id", "position", F.col("id").alias("asked_by"))
    missing = wrong_decisions.where(found.isNull()).select("source", expected["position"].alias("position"), F.col("id").alias("asked_by"))
    instead = committed.where(expected.isNull()).select("source", "id", "position").join(missing, ["source", "position"])
    asked = requests.select(F.col("id").alias("asked_by"), "inputs")
    claimed = own.unionByName(instead).join(asked, "asked_by")
    return claimed.select("source", F.explode("inputs").alias("state"), "id", "position").distinct()


def differing(found: DataFrame, expected: DataFrame, key: str) -> DataFrame:
    """Returns the rows that differ or are duplicated: source, key, found, expected (each null if there is no row), twice.

    `found` has source, key and the row as the struct `found`, which has a position. `expected` has the same with the struct `expected`,
    and each key of a source once.
    """
    times = F.count("*").over(Window.partitionBy("source", key))
    joined = found.withColumn("times", times).join(expected, ["source", key], "full")
    same = F.col("found").eqNullSafe(F.col("expected"))
    wrong = joined.where(~same | (F.col("times") > 1)).drop("times")
    # Among rows with the same key, one that equals the expected row comes first, so that only the others are reported.
    ordinal = F.row_number().over(Window.partitionBy("source", key).orderBy(~same, "found.position"))
    return wrong.withColumn("twice", ordinal > 1).where(F.col("twice") | ~same)


def up_to(frame: DataFrame, sizes: DataFrame) -> DataFrame:
    """Returns the rows of `frame`, which has `position`, that each export should have.

    `sizes` has source, size (the number of decisions that the export should have), and decisions (the number in its manifest).
    """
    return frame.crossJoin(F.broadcast(sizes)).where(F.col("position") < F.col("size"))


def within(found: DataFrame, sizes: DataFrame) -> DataFrame:
    """Returns the rows of `found` without the surplus of an index that has more decisions than the log has up to where it has read.

    `sizes` is that of `up_to`.
    """
    sized = found.join(F.broadcast(sizes), "source")
    return sized.where((F.col("position") < F.col("size")) | (F.col("size") == F.col("decisions"))).drop("size", "decisions")
