"""Which of the requests that contend for states are committed: the lexicographically first independent set, in rounds (R7).

Request by request it is simple: whoever meets a state that an earlier one consumed is rejected, and else consumes its inputs. In parallel:

1. In each round those are accepted that touch nothing which an earlier undecided request consumes; then those are rejected that touch what
   an accepted one consumed. Both are certain, and the first of the undecided is always among them.
2. Contention among real clients is over after a few rounds. A chain, in which each request contends with the next one only, would take half
   as many rounds as it has requests. So after `ROUNDS_MAX` the rest falls into connected components, and each of these is finished one
   request after the other, in one task. It has to fit into that task's memory: about 300 bytes a state.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_join.constants import INPUT
from spark_join.engine.stages import Stages

ROUNDS_MAX = 6


def rejected(touches: DataFrame, stages: Stages, rounds_max: int = ROUNDS_MAX) -> DataFrame:
    """The positions that a conflict rejects, of requests that would be committed without one.

    `touches` has position, state and kind (0 input, 1 reference) of all these requests, each state once a request; states that nobody else
    touches may be left out.
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
    """The touches with the verdict on their request: `accepted`, `rejected`, or neither."""
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
    """The touches with the component of their request, named by its lowest position.

    Edges lead from each request to the first that consumes a state which it touches. They are drawn together by turns of large-star and
    small-star (Kiveris et al., Connected Components in MapReduce and Beyond, 2014) until each leads to the lowest of its component; the
    number of turns grows with the logarithm of the longest way. Before the first turn each partition does so with what it has.
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
    """The edges of one partition, as many that lead to the lowest of their components."""
    towards: dict[int, int] = {}

    def lowest(position: int) -> int:
        while (next_one := towards.get(position, position)) != position:
            towards[position] = towards.get(next_one, next_one)  # so that ways get shorter each time they are gone
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
    """One component, in order. Touches in, rejected positions out."""
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
