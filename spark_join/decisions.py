"""Decides every request again (R7, docs/formats.md, Decision): outcome, reason and conflicts, from the requests and their order alone.

Most requests contend with no other. So one pass finds the contended states: states that one request consumes and a later one touches. Only
requests that touch such a state go through rounds, which find the rejected ones. Each state that a request touches and that an earlier
committed request consumed is then a conflict. A request that touches a state consumed before all these requests is rejected and
consumes nothing.

The committed requests among the contending ones are the lexicographically first independent set. Sequentially this is simple: a request is
rejected if it touches a state that an earlier one consumed; else it consumes its inputs. In parallel:

1. Each round first accepts the requests that touch no state that an earlier undecided request would consume. It then rejects the requests
   that touch a state that an accepted request consumed. Both are final, and each round decides at least the first undecided request.
2. Contention among real clients ends after a few rounds. But a chain, in which each request contends only with the next, would take half
   as many rounds as it has requests. So after `ROUNDS_MAX` the rest is split into connected components, and one task finishes each of them,
   request by request. A component has to fit into the memory of its task: about 300 bytes a state.
"""

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_join.constants import COMMITTED, INPUT, INPUT_CONFLICT, OUTSIDE_TIME_WINDOW, REFERENCE, REFERENCE_CONFLICT
from spark_join.engine.columns import sha256
from spark_join.engine.stages import Stages

ROUNDS_MAX = 6


def decide(
    requests: DataFrame,
    consumed: DataFrame,
    stages: Stages,
    rounds_max: int = ROUNDS_MAX,
    *,
    claimed: DataFrame | None = None,
    reserved: bool = False,
) -> DataFrame:
    """Returns position, id, log_time_ms, outcome and conflicts (state, kind, consumed_by; ascending) of the `requests` of `join`.

    `consumed` (state, consumed_by) lists the states that earlier decisions consumed. `claimed` (state, consumed_by, position) lists states
    that are not free from a position on, since a salvage restored a decision there. `reserved`: a state in either list may be free for the
    transaction whose id has the hash `consumed_by` (R11).
    """
    touches = _touches(requests)
    names = ("position", "state", "kind", "consumed_by")
    met = touches.join(consumed, "state").select(*names)
    if claimed is not None:
        since = touches.join(claimed.withColumnRenamed("position", "since"), "state")
        met = met.union(since.where(F.col("position") > F.col("since")).select(*names))
    if reserved:
        own = requests.select("position", sha256(F.col("id")).alias("own"))
        met = met.join(own, "position").where(F.col("consumed_by") != F.col("own")).select(*names)
    gone = stages.keep("states consumed before", met)
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
        .agg(F.sort_array(F.collect_set(F.struct("state", "kind", "consumed_by"))).alias("met"))
    )
    placed = requests.select("position", "id", "log_time_ms", _in_window().alias("in_window")).join(conflicts, "position", "left")
    outcome = (
        F.when(_any_of(INPUT), INPUT_CONFLICT)
        .when(_any_of(REFERENCE), REFERENCE_CONFLICT)
        .when(~F.col("in_window"), OUTSIDE_TIME_WINDOW)
        .otherwise(COMMITTED)
    )
    # An input conflict lists inputs only. Without one, all conflicts are of references.
    listed = F.coalesce(F.when(_any_of(INPUT), _of(INPUT)).otherwise(_of(REFERENCE)), F.array().cast(_CONFLICTS))
    return placed.select("position", "id", "log_time_ms", outcome.alias("outcome"), listed.alias("conflicts"))


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
    """Returns the touches of contended states; for each state, those from the first request on that may consume it.

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


def rejected(touches: DataFrame, stages: Stages, rounds_max: int = ROUNDS_MAX) -> DataFrame:
    """Returns the positions of the requests that are rejected for a conflict, among requests that would be committed without one.

    `touches` has position, state and kind (0 input, 1 reference) of all these requests, each state at most once a request. States that
    only one request touches may be left out.
    """
    found: list[DataFrame] = []
    undecided = touches
    for number in range(1, rounds_max + 1):
        played = stages.keep(f"round {number}", _round(undecided))
        found.append(played.where("rejected").select("position").distinct())
        undecided = played.where(~F.col("accepted") & ~F.col("rejected")).select("position", "state", "kind")
        if undecided.isEmpty():
            break
    else:
        finished = _with_component(undecided, stages).groupBy("component").applyInArrow(_finish, "position bigint")
        found.append(stages.keep("components, one after the other", finished))
    return reduce(DataFrame.union, found)


def _round(undecided: DataFrame) -> DataFrame:
    """Returns the touches with the result of the round for their request: `accepted`, `rejected`, or neither."""
    by_state, by_request = Window.partitionBy("state"), Window.partitionBy("position")
    consumer = F.min(F.when(F.col("kind") == INPUT, F.col("position"))).over(by_state)
    blocked = F.max(F.coalesce(F.col("consumer") < F.col("position"), F.lit(False))).over(by_request)
    winner = F.min(F.when(F.col("accepted") & (F.col("kind") == INPUT), F.col("position"))).over(by_state)
    lost = F.max(F.coalesce(F.col("winner") < F.col("position"), F.lit(False))).over(by_request)
    return (
        undecided.withColumn("consumer", consumer)
        .withColumn("accepted", ~blocked)
        .withColumn("winner", winner)
        .withColumn("rejected", lost)
        .drop("consumer", "winner")
    )


def _with_component(undecided: DataFrame, stages: Stages) -> DataFrame:
    """Returns the touches with the component of their request, named by its lowest position.

    An edge leads from each request to the first one that consumes a state which it touches. Large-star and small-star steps (Kiveris et
    al., Connected Components in MapReduce and Beyond, 2014) contract the edges until each leads to the lowest position of its component.
    The number of steps grows with the logarithm of the longest path. Before the first step each partition contracts its own edges.
    """
    first = F.min(F.when(F.col("kind") == INPUT, F.col("position"))).over(Window.partitionBy("state"))
    edges = undecided.select("position", first.alias("first")).where(F.col("first").isNotNull() & (F.col("first") != F.col("position")))
    edges = edges.select(F.greatest("position", "first").alias("high"), F.least("position", "first").alias("low")).distinct()
    edges = edges.repartitionByRange("high").mapInArrow(_draw_together, "high bigint, low bigint")
    before: object = None
    turn = 0
    while True:
        turn += 1
        edges = stages.keep(f"components {turn}", _small_star(_large_star(edges)))
        (drawn,) = edges.agg(F.count("*"), F.sum(F.xxhash64("high", "low").cast("decimal(38,0)"))).collect()
        if drawn == before:
            break
        before = drawn
    named = undecided.join(edges.withColumnRenamed("high", "position"), "position", "left")
    return named.select("position", "state", "kind", F.coalesce("low", "position").alias("component"))


def _draw_together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Contracts the edges of one partition: each position then has one edge, to the lowest position of its component there."""
    towards: dict[int, int] = {}

    def lowest(position: int) -> int:
        while (next_one := towards.get(position, position)) != position:
            towards[position] = towards.get(next_one, next_one)  # path compression: later walks are shorter
            position = next_one
        return position

    for batch in batches:
        for high, low in zip(batch.column("high").to_pylist(), batch.column("low").to_pylist(), strict=True):
            one, other = lowest(high), lowest(low)
            if one != other:
                towards[max(one, other)] = min(one, other)
    highs = list(towards)
    columns = [pa.array(highs, pa.int64()), pa.array([lowest(high) for high in highs], pa.int64())]
    yield pa.RecordBatch.from_arrays(columns, names=["high", "low"])


def _large_star(edges: DataFrame) -> DataFrame:
    both = edges.select(F.col("high").alias("at"), F.col("low").alias("to")).union(edges.select("low", "high"))
    lowest = F.least("at", F.min("to").over(Window.partitionBy("at")))
    return both.withColumn("low", lowest).where(F.col("to") > F.col("at")).select(F.col("to").alias("high"), "low").distinct()


def _small_star(edges: DataFrame) -> DataFrame:
    lowest = F.min("low").over(Window.partitionBy("high"))
    linked = edges.withColumn("lowest", lowest)
    drawn = linked.select(F.explode(F.array("high", "low")).alias("high"), F.col("lowest").alias("low"))
    return drawn.where(F.col("high") != F.col("low")).distinct()


def _finish(component: pa.Table) -> pa.Table:
    """Decides one component in order: takes its touches, returns the rejected positions."""
    touches = component.sort_by("position")
    consumed: set[bytes] = set()
    lost: list[int] = []
    rows = zip(*(touches.column(name).to_pylist() for name in ("position", "state", "kind")), strict=True)
    for position, request in groupby(rows, itemgetter(0)):
        touched = [(state, kind) for _, state, kind in request]
        if consumed.isdisjoint([state for state, _ in touched]):
            consumed.update([state for state, kind in touched if kind == INPUT])
        else:
            lost.append(position)
    return pa.table({"position": pa.array(lost, pa.int64())})
