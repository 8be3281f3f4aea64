"""Every decision again (R7, docs/formats.md, Decision): outcome, reason and conflicts, from the requests and their order alone.

Most requests contend with nobody. So the states are looked through once for those that a request consumes and a later one touches; only
what touches such a state goes through `rounds`. Who is committed being known, each state that a request touches and an earlier one consumed
is a conflict. What touches a state that was consumed before all these requests (`State`) is rejected, and consumes nothing.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_join.constants import COMMITTED, INPUT, INPUT_CONFLICT, OUTSIDE_TIME_WINDOW, REFERENCE, REFERENCE_CONFLICT
from spark_join.decisions.rounds import ROUNDS_MAX, rejected
from spark_join.engine.octets import sha256
from spark_join.engine.stages import Stages


def decide(requests: DataFrame, consumed: DataFrame, stages: Stages, rounds_max: int = ROUNDS_MAX) -> DataFrame:
    """position, id, log_time_ms, outcome and conflicts (state, kind, consumed_by; ascending) of `requests`, as `join` gives these.

    `consumed` (state, consumed_by) is what all that came before them consumed.
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
    # An input conflict lists inputs only; there are references alone to list without one.
    listed = F.coalesce(F.when(_any_of(INPUT), _of(INPUT)).otherwise(_of(REFERENCE)), F.array().cast(_CONFLICTS))
    return judged.select("position", "id", "log_time_ms", outcome.alias("outcome"), listed.alias("conflicts"))


_CONFLICTS = "array<struct<state: binary, kind: int, consumed_by: binary>>"


def _touches(requests: DataFrame) -> DataFrame:
    """position, state and kind of what each request touches, and may_consume: whether only a conflict could keep it from consuming. A state
    that is input and reference of one is an input."""
    touched = F.concat(_each(F.col("inputs"), INPUT), _each(F.array_except("references", "inputs"), REFERENCE))
    touches = requests.select("position", (_in_window() & (F.size("inputs") > 0)).alias("may_consume"), F.explode(touched).alias("touch"))
    return touches.select("position", "touch.state", "touch.kind", "may_consume")


def _contended(touches: DataFrame) -> DataFrame:
    """What touches a state from the first request on that may consume it, where a later one touches it too."""
    # A state's hash is moved and counted in its stead: 8 bytes of 36. What two states that share one bring along is dropped after it.
    hashed = touches.withColumn("hash", F.xxhash64("state"))
    near = hashed.join(_touched_later(hashed, "hash").select("hash"), "hash", "left_semi")
    return near.join(_touched_later(near, "state"), "state").where(F.col("position") >= F.col("first")).drop("first", "hash")


def _touched_later(touches: DataFrame, by: str) -> DataFrame:
    """Each state, or hash, with the `first` that may consume it, where a later one touches it too."""
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
