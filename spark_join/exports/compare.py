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
| another decision at its position; its log time; a consumed state; the number of decisions; the root | `index-mismatch` |

A decision with two of these gets the upper one. The consequences of a difference are not reported too. These are the states that the
transaction consumes, as its wrong outcome, position or id leaves them (`states`), and the root, which any wrong decision changes.
"""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.engine.stages import Stages
from spark_join.exports.decisions import double_spends, placed, told, wrong_decisions
from spark_join.exports.read import Exports
from spark_join.exports.states import wrong_states
from spark_join.join import Joined
from spark_join.violations import VIOLATION


def compare(
    session: SparkSession, exports: Exports, joined: Joined, decisions: DataFrame, roots: Mapping[int, bytes], stages: Stages
) -> DataFrame:
    """Returns the violations (`violations.VIOLATION`). `decisions` come from `decide`; `roots`, by size, has that of each export's tree."""
    reached = _reached(exports, joined)
    sizes = session.createDataFrame(
        [(source, min(manifest.decisions, reached[source]), manifest.decisions) for source, manifest in exports.manifests.items()],
        "source string, size bigint, decisions bigint",
    )
    wrong = stages.keep("decisions of the exports", wrong_decisions(exports.decisions, decisions, sizes))
    in_place = stages.keep("places in the exports", placed(wrong, exports.decisions))
    double = stages.keep("double spends of the exports", double_spends(wrong, exports.decisions, joined.requests))
    of_states = stages.keep("states of the exports", wrong_states(exports.states, joined.requests, decisions, wrong, sizes))
    differ = {row.source for row in wrong.select("source").distinct().collect()}
    together = [
        told(in_place, double),
        of_states,
        session.createDataFrame(_of_sizes(exports, joined.offset_hole, reached, differ, roots), VIOLATION),
    ]
    return reduce(DataFrame.unionByName, together)


def _reached(exports: Exports, joined: Joined) -> dict[str, int]:
    """Returns the number of decisions that the log has up to where each index has read."""
    counts = [F.count(F.when(F.col("offset") < manifest.offsets_next.ordering, 1)) for manifest in exports.manifests.values()]
    (counted,) = joined.requests.agg(*counts).collect()
    return dict(zip(exports.manifests, counted, strict=True))


def _of_sizes(
    exports: Exports, offset_hole: int | None, reached: Mapping[str, int], differ: set[str], roots: Mapping[int, bytes]
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
        if difference is not None:
            rows.append(("index-mismatch", manifest.decisions, None, None, *difference, source, None, None))
    return rows
