"""Decides which of the requests that contend for states are committed: the lexicographically first independent set, in rounds (R7).

One request after the other it is simple: a request is rejected if it touches a state that an earlier one consumed; else it consumes its
inputs. In parallel:

1. Each round first accepts the requests that touch nothing which an earlier undecided request would consume. It then rejects the requests
   that touch a state which an accepted one consumed. Both are final, and each round decides at least the first undecided request.
2. Contention among real clients ends after a few rounds. But a chain, in which each request contends only with the next, would take half
   as many rounds as it has requests. So after `ROUNDS_MAX` the rest is split into connected components, and one task finishes each of them,
   request by request. A component has to fit into the memory of its task: about 300 bytes a state.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_join.constants import INPUT
from spark_join.engine.stages import Stages

ROUNDS_MAX = 6


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
    together = found[0]
    for each in found[1:]:
        together = together.union(each)
    return together


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

    An edge leads from each request to the first one that consumes a state which it touches. Turns of large-star and small-star (Kiveris et
    al., Connected Components in MapReduce and Beyond, 2014) contract the edges until each leads to the lowest position of its component.
    The number of turns grows with the logarithm of the longest path. Before the first turn each partition contracts its own edges.
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
    states: list[bytes] = []
    inputs: list[bytes] = []
    positions = touches.column("position").to_pylist()
    columns = zip(positions, [*positions[1:], None], touches.column("state").to_pylist(), touches.column("kind").to_pylist(), strict=True)
    for position, position_next, state, kind in columns:
        states.append(state)
        if kind == INPUT:
            inputs.append(state)
        if position != position_next:
            if consumed.isdisjoint(states):
                consumed.update(inputs)
            else:
                lost.append(position)
            states, inputs = [], []
    return pa.table({"position": pa.array(lost, pa.int64())})
