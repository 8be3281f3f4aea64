"""Decides every request again (R7, docs/formats.md, Decision): outcome, reason and conflicts, from the requests and their order alone.

Most requests contend with no other. So one pass finds the contended states: states that one request consumes and a later one touches. Only
requests that touch such a state go through `rounds`, which finds the committed ones. Each state that a request touches and that an earlier
committed request consumed is then a conflict. A request that touches a state consumed before all these requests (`State`) is rejected and
consumes nothing.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_join.constants import COMMITTED, INPUT, INPUT_CONFLICT, OUTSIDE_TIME_WINDOW, REFERENCE, REFERENCE_CONFLICT
from spark_join.decisions.rounds import ROUNDS_MAX, rejected
from spark_join.engine.octets import sha256
from spark_join.engine.stages import Stages


def decide(requests: DataFrame, consumed: DataFrame, stages: Stages, rounds_max: int = ROUNDS_MAX) -> DataFrame:
    """Returns position, id, log_time_ms, outcome and conflicts (state, kind, consumed_by; ascending) of the `requests` of `join`.

    `consumed` (state, consumed_by) lists the states that earlier decisions consumed.
    """
    touches = _touches(requests)
    gone = stages.keep("states consumed before", touches.join(consumed, "state").select("position", "state", "kind", "consumed_by"))
    too_late = gone.select("position", F.lit(True).alias("too_late")).distinct()
    touches = touches.join(too_late, "position", "left").withColumn("may_consume", F.col("may_consume") & F.col("too_late").isNull())
    contended = stages.keep("contended states", _contended(touches.drop("too_late")))
    losers = rejected(contended.where("may_consume").select("position", "state", "kind"), stages, rounds_max)
    consumers = (
        contended.where(F.col("may_consume") & (F.col("kind") == INPUT))
        .join(losers, "position", "left_anti")
        .select("state", F.col("position").alias("consumer"))
    )
    ids = requests.select(F.col("position").alias("consumer"), sha256(F.col("id")).alias("consumed_by"))
    conflicts = (
        contended.join(consumers, "state")
        .where(F.col("consumer") < F.col("position"))
        .join(ids, "consumer")
        .select("position", "state", "kind", "consumed_by")
        .union(gone)
        .groupBy("position")
        .agg(F.sort_array(F.collect_list(F.struct("state", "kind", "consumed_by"))).alias("met"))
    )
    judged = requests.select("position", "id", "log_time_ms", _in_window().alias("in_window")).join(conflicts, "position", "left")
    outcome = (
        F.when(_any_of(INPUT), INPUT_CONFLICT)
        .when(_any_of(REFERENCE), REFERENCE_CONFLICT)
        .when(~F.col("in_window"), OUTSIDE_TIME_WINDOW)
        .otherwise(COMMITTED)
    )
    # An input conflict lists inputs only. Without one, all conflicts are of references.
    listed = F.coalesce(F.when(_any_of(INPUT), _of(INPUT)).otherwise(_of(REFERENCE)), F.array().cast(_CONFLICTS))
    return judged.select("position", "id", "log_time_ms", outcome.alias("outcome"), listed.alias("conflicts"))


_CONFLICTS = "array<struct<state: binary, kind: int, consumed_by: binary>>"


def _touches(requests: DataFrame) -> DataFrame:
    """Returns position, state and kind of each state that a request touches, and may_consume.

    may_consume is true if only a conflict can prevent the request from consuming. A state that is both an input and a reference of one
    request counts as an input.
    """
    touched = F.concat(_each(F.col("inputs"), INPUT), _each(F.array_except("references", "inputs"), REFERENCE))
    touches = requests.select("position", (_in_window() & (F.size("inputs") > 0)).alias("may_consume"), F.explode(touched).alias("touch"))
    return touches.select("position", "touch.state", "touch.kind", "may_consume")


def _contended(touches: DataFrame) -> DataFrame:
    """Returns the touches of contended states, each from the first request that may consume the state on.

    A state is contended if a request may consume it and a later one touches it.
    """
    # Spark moves and counts hashes of 8 bytes first, not states of 36 bytes. The second pass drops states that only share a hash.
    hashed = touches.withColumn("hash", F.xxhash64("state"))
    near = hashed.join(_touched_later(hashed, "hash").select("hash"), "hash", "left_semi")
    return near.join(_touched_later(near, "state"), "state").where(F.col("position") >= F.col("first")).drop("first", "hash")


def _touched_later(touches: DataFrame, by: str) -> DataFrame:
    """Returns each contended state, or hash, with `first`, the lowest position of a request that may consume it."""
    consumer = F.when(F.col("may_consume") & (F.col("kind") == INPUT), F.col("position"))
    states = touches.groupBy(by).agg(F.min(consumer).alias("first"), F.max("position").alias("last"))
    return states.where(F.col("first") < F.col("last")).drop("last")


def _each(states: Column, kind: int) -> Column:
    return F.transform(states, lambda state: F.struct(state.alias("state"), F.lit(kind).alias("kind")))


def _of(kind: int) -> Column:
    return F.filter("met", lambda conflict: conflict["kind"] == kind)


def _any_of(kind: int) -> Column:
    return F.coalesce(F.exists("met", lambda conflict: conflict["kind"] == kind), F.lit(False))


def _in_window() -> Column:
    return (F.col("from_ms") <= F.col("log_time_ms")) & (F.col("log_time_ms") < F.col("until_ms"))
