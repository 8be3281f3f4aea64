"""Consumed states of exports: finds those that are missing, duplicated, unexpected, or consumed by another transaction.

A state that differs only because its decision differs is not reported too. It must be an input of that decision, and the export must have
it as that decision would leave it: consumed by it, at its position, if the export has it as committed; else not consumed.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join.constants import COMMITTED
from spark_join.exports.rows import differing, up_to, within
from spark_join.exports.telling import tell_consumed, tell_hex
from spark_join.violations import violations


def wrong_states(found: DataFrame, requests: DataFrame, decisions: DataFrame, wrong_decisions: DataFrame, sizes: DataFrame) -> DataFrame:
    """Returns violations (`violations.VIOLATION`) for the states of the exports.

    `found` is `Exports.states` and `requests` is `Joined.requests`; `decisions` come from `decide`, `wrong_decisions` from
    `decisions.wrong_decisions`; `sizes` is that of `rows.up_to`.
    """
    committed = decisions.where(F.col("outcome") == COMMITTED).select("position")
    consumed = requests.join(committed, "position").select("id", "position", F.explode("inputs").alias("state"))
    row = F.struct("id", "position")
    expected = up_to(consumed, sizes).select("source", "state", row.alias("expected"))
    wrong = differing(within(found, sizes).select("source", "state", row.alias("found")), expected, "state")
    told = _without_what_follows(wrong, wrong_decisions, requests)
    return violations(
        told,
        F.lit("index-mismatch"),
        position=F.coalesce("expected.position", "found.position"),
        id_=tell_hex(F.coalesce("expected.id", "found.id")),
        found=tell_consumed("found", F.col("twice")),
        expected=tell_consumed("expected", F.lit(False)),
        source=F.col("source"),
    )


def _without_what_follows(wrong: DataFrame, wrong_decisions: DataFrame, requests: DataFrame) -> DataFrame:
    """Returns the wrong states that no wrong decision explains."""
    found, expected = F.col("found"), F.col("expected")
    named = wrong.select("*", found["id"].alias("id"), found["position"].alias("position"))
    unexplained = named.join(_claimed(wrong_decisions, requests), ["source", "state", "id", "position"], "left_anti")
    not_committed = wrong_decisions.where(found.isNull() | (found["outcome"] != COMMITTED)).select("source", "id").distinct()
    let_go = unexplained.withColumn("id", F.when(found.isNull(), expected["id"]))
    return let_go.join(not_committed, ["source", "id"], "left_anti").drop("id", "position")


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
