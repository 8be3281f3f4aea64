"""Verifies a log: decides every request again, compares every root, and checks every signature. Goes from one state to the next."""

from collections.abc import Callable
from functools import partial, reduce

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.constants import OUTCOMES
from spark_join.decisions import tree
from spark_join.decisions.checkpoints import Counts, compare_roots, compared_of, counts_of, sizes_of
from spark_join.decisions.decide import decide
from spark_join.engine.stages import Stages
from spark_join.exports.compare import compare
from spark_join.exports.read import Exports, refuse_ahead, refuse_behind_hole, refuse_others
from spark_join.join import Joined, Undecided, join
from spark_join.log.log import Log
from spark_join.order.effects import BEYOND, carry_of
from spark_join.order.gaps import sequence_gaps
from spark_join.order.signatures import Keys
from spark_join.order.views import differences
from spark_join.state.carry import Decided, state_after
from spark_join.state.state import State
from spark_join.violations import LOG, VIOLATION, violations


class Skipped(msgspec.Struct, frozen=True):
    """Ordering records without effect, of one kind of reason."""

    records: int
    offset_first: int


class Verified(msgspec.Struct, frozen=True):
    """The result of one run."""

    notary_name: str
    """The name in the genesis record"""
    decided: int
    """The number of decisions of the complete log, the earlier part included"""
    outcomes: dict[str, int]
    """Numbers of decisions by outcome, or by reason for rejections. This and all members below are of this run only, except `root`"""
    root: bytes
    """The root over all decisions of the complete log"""
    checkpoints: Counts
    records: dict[str, int]
    """The number of ordering records, by kind"""
    skipped: dict[str, Skipped]
    """The ordering records without effect, by reason (`effects.Verdict`)"""
    undecided: Undecided | None
    """The first hole, or None; nothing is decided from its ordering offset on"""
    decisions: DataFrame
    """Columns: position, id, log_time_ms, outcome, conflicts"""
    entries: DataFrame
    """See `join.Joined`"""
    violations: DataFrame
    """See `violations.VIOLATION`"""
    settled: DataFrame
    """Foreign views that the owner has settled, which are no violations: rows like those of `violations`"""
    exports: dict[str, int]
    """The number of decisions of each export"""
    after: Callable[[], State]
    """See `carry.state_after`"""


def verify(session: SparkSession, log: Log, state: State, keys: Keys | None, stages: Stages, exports: Exports | None = None) -> Verified:
    """Verify `log`, which continues `state` (`join.rest_of`), and compare it with the exports, which need a log from its start.

    `keys` as in `contents.read_contents`. Raises `CouldNotVerify`.
    """
    joined = join(log, state, keys, stages)
    if exports is not None:
        refuse_others(exports, joined)
        refuse_ahead(exports, joined)
    decisions = stages.keep("decisions", decide(joined.requests, state.consumed, stages))
    counts = {row.outcome: row["count"] for row in decisions.groupBy("outcome").count().collect()}
    decided = state.decided + sum(counts.values())
    checkpoints = stages.keep("checkpoints", compared_of(joined.records))
    lost = _lost_payload(joined, decided)
    trees: set[int] = set()
    if exports is not None:
        if joined.offset_hole is not None and not lost:
            refuse_behind_hole(exports, joined.offset_hole)
        trees = {manifest.tree.size for manifest in exports.manifests.values()}
    hashes = stages.keep("leaf hashes", tree.hashed(tree.leaves(decisions)))
    sizes = sizes_of(checkpoints, decided, trees)
    parts = stages.keep("parts of the tree", tree.parts(state.hashes, hashes, sizes, state.decided, decided))
    # A full chunk of the state in which a size ends is in both frames.
    compared = compare_roots(checkpoints, state.chunks.union(parts).distinct(), decided, trees, stages)
    gaps = sequence_gaps(joined.entries, joined.gone)
    views = stages.keep("foreign views", differences(joined.records, carry_of(joined.carry)))
    told = [
        compared.violations,
        session.createDataFrame(lost, VIOLATION),
        _foreign_views(views.where(~F.col("settled"))),
        _unreadable(joined),
        _unsigned(joined),
        violations(gaps, F.lit("sequence-gap"), offset=F.col("offset"), found=F.col("found"), expected=F.col("expected")),
    ]
    if exports is not None:
        told.append(compare(session, exports, joined, decisions, compared.roots, stages))
    return Verified(
        joined.identity.notary_name,
        decided,
        {name: counts.get(outcome, 0) for outcome, name in OUTCOMES.items()},
        compared.root,
        counts_of(joined.records),
        {row.kind: row["count"] for row in joined.records.groupBy("kind").count().collect()},
        _skipped(joined),
        joined.undecided,
        decisions,
        joined.entries,
        stages.keep("violations", reduce(DataFrame.unionByName, told)),
        _foreign_views(views.where("settled")),
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


def _skipped(joined: Joined) -> dict[str, Skipped]:
    without_effect = joined.records.where(F.col("skipped").isNotNull()).groupBy("skipped")
    rows = without_effect.agg(F.count("*").alias("records"), F.min("offset").alias("offset_first")).orderBy("skipped").collect()
    return {row.skipped: Skipped(row.records, row.offset_first) for row in rows}


def _lost_payload(joined: Joined, decided: int) -> list[tuple[object, ...]]:
    """Returns a violation for the hole if a view from behind it shows that a worker has passed it (R10); else an empty list."""
    hole = joined.undecided
    if hole is None:
        return []
    passed = joined.records.where((F.col("offset") > hole.from_offset) & (F.col("view") == BEYOND))
    first = passed.agg(F.min("offset").alias("offset")).collect()[0].offset
    if first is None:
        return []
    found = f"{hole.because}, and the writer of ordering record {first} had its content; nothing behind it can be verified"
    return [("missing-payload", decided, hole.from_offset, None, found, "its payload, or a fill", LOG, None, None)]


def _foreign_views(views: DataFrame) -> DataFrame:
    """Turns rows of `views.differences` into rows of `violations.VIOLATION`."""
    return violations(
        views,
        F.lit("foreign-view"),
        offset=F.col("offset"),
        found=F.col("found"),
        expected=F.col("expected"),
        offset_last=F.col("offset_last"),
        records=F.col("records"),
    )


def _unreadable(joined: Joined) -> DataFrame:
    """Returns violations for entries whose content decides nothing, since it does not decode or has other ids."""
    asked = F.lit("the transactions that the entry names")
    return violations(joined.unreadable, F.lit("id-mismatch"), offset=F.col("offset"), found=F.col("found"), expected=asked)


def _unsigned(joined: Joined) -> DataFrame:
    """Returns violations for submissions in effect that their party did not sign, named by their first request.

    The position is null if an earlier state has decided that request.
    """
    # Usually there is none. Then Spark need not move the ids of all requests.
    known = joined.requests.limit(0) if joined.faults.isEmpty() else joined.requests
    return violations(
        joined.faults.join(known.select("id", "position"), "id", "left"),
        F.col("fault"),
        position=F.col("position"),
        offset=F.col("offset"),
        id_=F.lower(F.hex("id")),
        found=F.concat(F.lit("a submission in the name of "), "party"),
        expected=F.lit("a signature by the key of a known party"),
    )
