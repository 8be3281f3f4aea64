"""A log, verified: everything decided again, every root compared, every signature checked. State in, log, state out."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.constants import OUTCOMES
from spark_join.decisions import tree
from spark_join.decisions.decide import decide
from spark_join.engine.octets import part, u64, unsigned
from spark_join.engine.stages import Stages
from spark_join.exports.compare import compare
from spark_join.exports.read import Exports, refuse_ahead, refuse_behind_hole, refuse_others
from spark_join.join import Joined, Log, join
from spark_join.order.gaps import sequence_gaps
from spark_join.order.notary_name import refuse_other_name
from spark_join.state.carry import Decided, state_after
from spark_join.state.state import State

HOLE_MS_MAX = 600_000
"""A hole is filled within seconds by whoever runs. One behind which some life spoke for longer than this lost its payload."""

VIOLATION = "type string, position bigint, offset bigint, id string, found string, expected string"
"""What is wrong with the log, at which position or ordering offset, and what should be there."""
LOG = "log"
"""The `source` of what is wrong with the log; of what is wrong with an export it is that one's name."""


class Verified(msgspec.Struct, frozen=True):
    """What came of it."""

    decided: int
    """Of the whole log, what came before it too"""
    outcomes: dict[str, int]
    """Decisions by outcome, or by reason where they reject; those made here, as everything from here on"""
    root: bytes
    """Over all decisions of the whole log"""
    roots_compared: int
    checkpoints_passed_over: int
    """Of lives that had not begun or had ended"""
    records: dict[str, int]
    """Of the ordering topic, by kind."""
    offset_hole: int | None
    """Nothing is decided from that ordering offset on: its payload is not there"""
    decisions: DataFrame
    """position, id, log_time_ms, outcome, conflicts"""
    entries: DataFrame
    """See `join.Joined`"""
    violations: DataFrame
    """See `VIOLATION`, and source: `LOG` or an export"""
    exports: dict[str, int]
    """How many decisions each export has"""
    after: Callable[[], State]
    """See `carry.state_after`"""


def verify(
    session: SparkSession, log: Log, state: State, keys: Mapping[str, str] | None, stages: Stages, exports: Exports | None = None
) -> Verified:
    """Verify `log`, which goes on from `state` (`join.rest_of`), and compare it with the exports, which need a log from its beginning.

    `keys` as in `contents.read_contents`. Raises `CouldNotVerify`.
    """
    if exports is not None:
        refuse_others(exports, log)
    joined = join(log, state, keys, stages)
    if exports is not None:
        refuse_ahead(exports, joined)
    decisions = stages.keep("decisions", decide(joined.requests, state.consumed, stages))
    counts = {row.outcome: row["count"] for row in decisions.groupBy("outcome").count().collect()}
    decided = state.decided + sum(counts.values())
    if not decided:
        refuse_other_name(joined.unreadable, log.notary_name, signatures=keys is not None)
    checkpoints = joined.checkpoints
    if joined.offset_hole is not None:
        checkpoints = checkpoints.where(F.col("offset") < joined.offset_hole)
    checkpoints = stages.keep("checkpoints", checkpoints)
    lost = _lost_payload(joined, decided)
    trees: set[int] = set()
    if exports is not None:
        if joined.offset_hole is not None and not lost:
            refuse_behind_hole(exports, joined.offset_hole)
        trees = {manifest.tree.size for manifest in exports.manifests.values() if manifest.tree.size <= decided}
    hashes = stages.keep("leaf hashes", tree.hashed(tree.leaves(decisions)))
    counting = checkpoints.where("counted")
    sizes = (
        _of_at_most(counting, decided).select("size").union(session.createDataFrame([(size,) for size in trees], "size bigint")).distinct()
    )
    parts = stages.keep("parts of the tree", tree.parts(state.hashes, hashes, sizes, state.decided, decided))
    # A full chunk of the state's in which a size ends is in both.
    compared = _compare_roots(tree.roots(state.chunks.union(parts).distinct()), counting, decided, trees)
    violations = (
        session.createDataFrame(compared.wrong, VIOLATION)
        .union(session.createDataFrame(lost, VIOLATION))
        .union(
            _violations(
                joined.unreadable, F.lit("id-mismatch"), found=F.col("found"), expected=F.lit("the transactions that the entry names")
            )
        )
        .union(_unsigned(joined))
        .union(
            _violations(
                sequence_gaps(joined.entries, joined.records, log.payload, _edges(session, log, state)),
                F.lit("sequence-gap"),
                found=F.col("found"),
                expected=F.col("expected"),
            )
        )
    ).withColumn("source", F.lit(LOG))
    if exports is not None:
        violations = violations.unionByName(compare(session, exports, joined, decisions, compared.roots, stages))
    return Verified(
        decided,
        {name: counts.get(outcome, 0) for outcome, name in OUTCOMES.items()},
        compared.root,
        compared.checkpoints,
        checkpoints.where(~F.col("counted")).count(),
        {row.kind: row["count"] for row in joined.records.groupBy("kind").count().collect()},
        joined.offset_hole,
        decisions,
        joined.entries,
        stages.keep("violations", violations),
        {} if exports is None else {source: manifest.decisions for source, manifest in exports.manifests.items()},
        partial(
            state_after,
            state,
            log,
            joined,
            Decided(decided, compared.root, decisions, hashes, tree.full_chunks(parts, state.decided)),
            stages,
            signatures=keys is not None,
        ),
    )


def _edges(session: SparkSession, log: Log, state: State) -> DataFrame:
    """topic, partition and offset: just before the first record that should be there, and just behind the last."""
    edges = [(*place, state.offsets_next.get(place, 0) - 1) for place in log.offsets_end]
    return session.createDataFrame(
        edges + [(*place, end) for place, end in log.offsets_end.items()], "topic string, partition int, offset bigint"
    )


class _Compared(msgspec.Struct, frozen=True):
    root: bytes
    checkpoints: int
    wrong: list[tuple[object, ...]]
    roots: dict[int, bytes]
    """Of the sizes that were asked for besides"""


def _of_at_most(checkpoints: DataFrame, decided: int) -> DataFrame:
    """offset, size and root of the checkpoints of sizes that there are."""
    told = checkpoints.where(F.col("tree_size") <= u64(F.lit(decided).cast("bigint")))
    return told.select("offset", unsigned(part(F.col("tree_size"), 1, 7)).alias("size"), "root")


def _compare_roots(roots: Iterator[tree.Root], checkpoints: DataFrame, decided: int, sizes: Collection[int]) -> _Compared:
    """Hold each checkpoint against the root of its size (R9). Both are run through in the order of their sizes.

    `sizes`: of which the roots are wanted besides; few of them.
    """
    too_large = checkpoints.where(F.col("tree_size") > u64(F.lit(decided).cast("bigint")))
    wrong: list[tuple[object, ...]] = [
        ("root-mismatch", None, row.offset, None, f"a root of {row.tree_size} decisions", f"a root of at most {decided} decisions")
        for row in too_large.select("offset", F.conv(F.hex("tree_size"), 16, 10).alias("tree_size")).collect()
    ]
    waiting = _of_at_most(checkpoints, decided).orderBy("size", "offset").toLocalIterator()
    checkpoint = next(waiting, None)
    compared = len(wrong)
    last = tree.ROOT_OF_NOTHING
    wanted: dict[int, bytes] = {}
    for each in roots:
        last = each.root
        if each.size in sizes:
            wanted[each.size] = each.root
        while checkpoint is not None and checkpoint["size"] == each.size:
            compared += 1
            if bytes(checkpoint.root) != each.root:
                found = bytes(checkpoint.root).hex()
                wrong.append(("root-mismatch", each.size, checkpoint.offset, None, found, each.root.hex()))
            checkpoint = next(waiting, None)
    assert checkpoint is None, "there is a root for each size that was asked for"
    return _Compared(last, compared, wrong, wanted)


def _lost_payload(joined: Joined, decided: int) -> list[tuple[object, ...]]:
    """The hole at which deciding stopped, if workers are known to have passed it, or had time enough to fill it."""
    if joined.offset_hole is None:
        return []
    (entry,) = joined.records.where(F.col("offset") == joined.offset_hole).collect()
    behind = joined.checkpoints.where(F.col("counted") & (F.col("offset") > joined.offset_hole))
    passed = behind.where(F.col("tree_size") > u64(F.lit(decided).cast("bigint")))
    spoken = joined.records.where((F.col("offset") > joined.offset_hole) & F.col("kind").isin("entry", "checkpoint"))
    spans = spoken.groupBy("incarnation").agg((F.max("append_time_ms") - F.min("append_time_ms")).alias("span_ms"))
    stale = spans.where(F.col("span_ms") > HOLE_MS_MAX)
    if passed.isEmpty() and stale.isEmpty():
        return []
    incarnation, sequence = (int.from_bytes(octets, "big") for octets in (entry.incarnation, entry.sequence))
    found = f"no payload of batch ({incarnation}, {sequence}) in partition {entry.partition}; nothing behind it can be verified"
    return [("missing-payload", decided, joined.offset_hole, None, found, "its payload, or a fill")]


def _unsigned(joined: Joined) -> DataFrame:
    """Submissions that count and that their party did not sign; named by their first request, its position unless it is a repetition."""
    placed = joined.faults.join(joined.requests.select("offset", "ordinal", "position", "id"), ["offset", "ordinal"], "left")
    return _violations(
        placed,
        F.col("fault"),
        position=F.col("position"),
        id_=F.lower(F.hex("id")),
        found=F.concat(F.lit("a submission in the name of "), "party"),
        expected=F.lit("a signature by the key of a known party"),
    )


def _violations(
    frame: DataFrame, type_: Column, *, found: Column, expected: Column, position: Column | None = None, id_: Column | None = None
) -> DataFrame:
    """A row of `VIOLATION` for each row of `frame`, which has `offset`."""
    return frame.select(
        type_.alias("type"),
        (F.lit(None) if position is None else position).cast("bigint").alias("position"),
        "offset",
        (F.lit(None) if id_ is None else id_).cast("string").alias("id"),
        found.alias("found"),
        expected.alias("expected"),
    )
