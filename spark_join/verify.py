"""Verifies a log, from one state to the next: decides every request again, compares every root, and checks every signature."""

from collections import Counter
from collections.abc import Callable
from functools import partial, reduce

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from spark_join import tree
from spark_join.constants import COMMITTED, KEY_BYTES, OUTCOMES
from spark_join.decisions import decide
from spark_join.engine.columns import frame_of, part, sha256, u64
from spark_join.engine.stages import Stages
from spark_join.exports import Exports, refuse_ahead, refuse_behind_hole, refuse_others
from spark_join.exports.compare import compare
from spark_join.log import ORDERING, LogFrames, TopicPartition
from spark_join.order.anomalies import differences, sequence_gaps, settled_by_owner
from spark_join.order.effects import BEYOND, carry_of
from spark_join.order.join import Joined, Undecided, join
from spark_join.order.payloads import Keys
from spark_join.order.salvage import DECISION, HASH, LOST, claims, wrong_items
from spark_join.state import AppliedState, last_records
from spark_join.tree import Counts, compare_roots, compared_of, counts_of, sizes_of
from spark_join.violations import LOG, VIOLATION, render_hex, violations


class Skipped(msgspec.Struct, frozen=True):
    """Ordering records without effect, of one kind of reason."""

    records: int
    offset_first: int


class Verified(msgspec.Struct, frozen=True):
    """The result of one run."""

    notary_name: str
    log_id: bytes
    decided: int
    """The number of decisions of the complete log, the earlier part included"""
    outcomes: dict[str, int]
    """Numbers of decisions by outcome, or by reason for rejections. This and all members below are of this run only, except `root`"""
    salvaged: dict[str, int]
    """The numbers of positions that salvages restored, by form of their item"""
    root: bytes
    """The root over all decisions of the complete log"""
    checkpoints: Counts
    records: dict[str, int]
    """The number of ordering records, by kind"""
    skipped: dict[str, Skipped]
    """The ordering records without effect, by reason (`effects.AppliedRecord`)"""
    undecided: Undecided | None
    """The first hole, or None; nothing is decided from its ordering offset on"""
    decisions: DataFrame
    """Columns: position, id, log_time_ms, outcome, conflicts"""
    entries: DataFrame
    """The entries that take effect, up to the hole (`join.Joined`)"""
    violations: DataFrame
    """See `violations.VIOLATION`"""
    settled: DataFrame
    """Foreign views that the owner has settled, which are no violations: rows like those of `violations`"""
    exports: dict[str, int]
    """The number of decisions of each export"""
    after: Callable[[], AppliedState]
    """Returns the state from which a later run continues (`state_after`)"""
    gaps_settled: int = 0
    """The runs of missing offsets in a history that the owner has confirmed, which are no violations"""


def verify(
    session: SparkSession, log: LogFrames, state: AppliedState, keys: Keys | None, stages: Stages, exports: Exports | None = None
) -> Verified:
    """Verify `log`, which continues `state` (`join.rest_of`), and compare it with the exports, which need a log from its start.

    `keys` as in `contents.read_contents`. Raises `CouldNotVerify`.
    """
    joined = join(log, state, keys, stages)
    if exports is not None:
        refuse_others(exports, joined)
        refuse_ahead(exports, joined)
    items, reserved = joined.items, carry_of(joined.carry).salvaged
    claimed = None if items is None else claims(items).select("state", "consumed_by", "position")
    touched = joined.requests.select(F.explode(F.concat("inputs", "references")).alias("state"))
    consumed = state.among("consumed", touched, stages, "states")
    decisions = stages.keep("decisions", decide(joined.requests, consumed, stages, claimed=claimed, reserved=reserved))
    counts = {row.outcome: row["count"] for row in decisions.groupBy("outcome").count().collect()}
    salvaged = {} if items is None else {row.form: row["count"] for row in items.groupBy("form").count().collect()}
    decided = state.decided + sum(counts.values()) + sum(salvaged.values())
    checkpoints = stages.keep("checkpoints", compared_of(joined.records, joined.offset_hole))
    lost = _lost_payload(joined, decided)
    trees: set[int] = set()
    if exports is not None:
        if joined.offset_hole is not None and not lost:
            refuse_behind_hole(exports, joined.offset_hole)
        trees = {manifest.tree.size for manifest in exports.manifests.values()}
    leaf_hashes = tree.hashed(tree.leaves(decisions))
    places = joined.requests.select("position", "offset")
    if items is not None:
        leaf_hashes = leaf_hashes.union(items.select("position", "hash"))
        places = places.union(items.select("position", "offset"))
    hashes = stages.keep("leaf hashes", leaf_hashes)
    sizes = sizes_of(checkpoints, decided, trees)
    parts = stages.keep("parts of the tree", tree.parts(state.hashes, hashes, sizes, state.decided, decided))
    # A full chunk of the state in which a size ends is in both frames.
    mismatches, roots = compare_roots(checkpoints, state.chunks.union(parts).distinct(), places, decided, trees, stages)
    gone = settled_by_owner(joined.gone, joined.records)
    by_kind = joined.records.groupBy("kind", "skipped", "view")
    grouped = by_kind.agg(F.count("*").alias("records"), F.min("offset").alias("offset_first")).collect()
    gaps = sequence_gaps(joined.numbered, gone)
    views = stages.keep("foreign views", differences(joined.records, carry_of(joined.carry)))
    found = [
        mismatches,
        frame_of(session, lost + joined.wrong_begins, VIOLATION),
        violations(views.where(~F.col("settled")), F.lit("foreign-view")),
        violations(joined.unreadable, F.lit("id-mismatch"), expected=F.lit("the transactions that the entry names")),
        _unsigned(joined),
        violations(gaps, F.lit("sequence-gap")),
    ]
    if items is not None:
        known = state.among("consumed", claims(items).select("state"), stages, "salvaged states")
        ids = state.among("ids", items.where(F.col("id").isNotNull()).select("id"), stages, "salvaged ids")
        found.append(wrong_items(items, joined.requests, [known, _consumed(joined.requests, decisions)], ids))
    if exports is not None:
        found.append(compare(session, exports, joined, decisions, roots, stages))
    return Verified(
        joined.identity.notary_name,
        joined.identity.log_id,
        decided,
        {name: counts.get(outcome, 0) for outcome, name in OUTCOMES.items()},
        {form: salvaged.get(form, 0) for form in (DECISION, HASH, LOST)},
        roots[decided],
        counts_of(grouped),
        dict(sum([Counter({row.kind: row.records}) for row in grouped], Counter())),
        _skipped(grouped),
        joined.undecided,
        decisions,
        joined.entries,
        stages.keep("violations", reduce(DataFrame.unionByName, found)),
        violations(views.where("settled"), F.lit("foreign-view")),
        {} if exports is None else {source: manifest.decisions for source, manifest in exports.manifests.items()},
        partial(
            state_after,
            state,
            log,
            joined,
            stages,
            decided=decided,
            root=roots[decided],
            decisions=decisions,
            hashes=hashes,
            chunks=tree.full_chunks(parts, state.decided),
            signatures=keys is not None,
        ),
        0 if gone is None else gone.where("settled").count(),
    )


def _skipped(grouped: list[Row]) -> dict[str, Skipped]:
    reasons = sorted({row.skipped for row in grouped if row.skipped is not None})
    of = {reason: [row for row in grouped if row.skipped == reason] for reason in reasons}
    return {reason: Skipped(sum([row.records for row in rows]), min([row.offset_first for row in rows])) for reason, rows in of.items()}


def _lost_payload(joined: Joined, decided: int) -> list[tuple[object, ...]]:
    """Returns a violation for the hole if a later view shows that a worker has passed it (R10); else an empty list."""
    hole = joined.undecided
    if hole is None:
        return []
    passed = joined.records.where((F.col("offset") > hole.from_offset) & (F.col("view") == BEYOND))
    first = passed.agg(F.min("offset").alias("offset")).collect()[0].offset
    if first is None:
        return []
    found = f"{hole.because}, and the writer of ordering record {first} had its content; nothing behind it can be verified"
    return [("missing-payload", decided, hole.from_offset, None, found, "its payload, or a fill", LOG, None, None)]


def _unsigned(joined: Joined) -> DataFrame:
    """Returns violations for submissions in effect that their party did not sign, named by their first request.

    The position is null if an earlier state has decided that request.
    """
    # Usually there is none. Then Spark need not move the ids of all requests.
    known = joined.requests.limit(0) if joined.faults.isEmpty() else joined.requests
    return violations(
        joined.faults.join(known.select("id", "position"), "id", "left"),
        F.col("fault"),
        id=render_hex(F.col("id")),
        found=F.concat(F.lit("a submission in the name of "), "party"),
        expected=F.lit("a signature by the key of a known party"),
    )


def state_after(
    state: AppliedState,
    log: LogFrames,
    joined: Joined,
    stages: Stages,
    *,
    decided: int,
    root: bytes,
    decisions: DataFrame,
    hashes: DataFrame,
    chunks: DataFrame,
    signatures: bool,
) -> AppliedState:
    """Returns the state at the end of `log`, or at its first hole. Its growing tables have only the rows that are new since `state`.

    `decided` and `root` are of all decisions; `decisions` (`decisions.decide`), their leaf `hashes` and the full `chunks` are the new ones.
    """
    offset_next = log.log_end_offsets[ORDERING] if joined.offset_next is None else joined.offset_next
    # The next run reads `key` records after the hole again.
    known_keys = tuple([each for each in joined.identity.notary_keys if each[0] <= offset_next])
    ids, consumed = decisions.select("position", "id"), _consumed(joined.requests, decisions)
    if joined.items is not None:
        ids = ids.union(joined.items.select("position", "id"))
        consumed = consumed.union(claims(joined.items).select("state", "consumed_by"))
    return AppliedState(
        identity=msgspec.structs.replace(joined.identity, notary_keys=known_keys),
        offsets_next={**log.log_end_offsets, ORDERING: offset_next},
        last_records={**state.last_records, **last_records(log, _last_offsets(joined, offset_next))},
        carry=joined.carry,
        decided=decided,
        root=root,
        signatures_checked=state.signatures_checked and signatures,
        ids=ids.sort("position").select("id"),
        consumed=consumed,
        hashes=hashes.sort("position"),
        chunks=chunks,
        orphans=_orphans(joined, stages),
    )


def _consumed(requests: DataFrame, decisions: DataFrame) -> DataFrame:
    """Returns state and consumed_by of the states that `decisions` on `requests` consumed."""
    committed = decisions.where(F.col("outcome") == COMMITTED).select("position")
    # Sorted, the inputs of a transaction are neighbours, so zstd stores their common 32 bytes about once.
    consumers = requests.join(committed, "position", "left_semi").sort("position")
    return consumers.select(F.explode("inputs").alias("state"), sha256(F.col("id")).alias("consumed_by"))


def _last_offsets(joined: Joined, offset_next: int) -> dict[TopicPartition, int]:
    """Returns the offset of the last record of each partition; partitions without new records are left out."""
    applied = joined.records.where(F.col("offset") < offset_next).select(
        F.lit("ordering").alias("topic"), F.lit(0).alias("partition"), "offset"
    )
    read = joined.locations.where(~F.col("is_orphan")).select(F.lit("payload").alias("topic"), "partition", "offset")
    rows = applied.union(read).groupBy("topic", "partition").agg(F.max("offset").alias("offset")).collect()
    return {(row.topic, row.partition): row.offset for row in rows}


def _orphans(joined: Joined, stages: Stages) -> DataFrame:
    """Returns the payload records under each key that an entry may still name, the first record of each value.

    Such a key names an incarnation that has not begun, or one that has not ended and has not reached the key's sequence.
    """
    keyed = joined.locations.where(F.length("key") == KEY_BYTES).select(
        "partition",
        "offset",
        "key",
        "value_hash",
        part(F.col("key"), 0, 8).alias("incarnation"),
        part(F.col("key"), 8, 8).alias("sequence"),
    )
    begun = [(number, each.over, each.reached) for number, each in enumerate(carry_of(joined.carry).incarnations, 1)]
    schema = "number bigint, over boolean, reached binary"
    incarnations = frame_of(joined.locations.sparkSession, begun, schema).withColumn("incarnation", u64(F.col("number")))
    waits = F.col("over").isNull() | (~F.col("over") & (F.col("sequence") > F.col("reached")))
    waiting = keyed.join(incarnations, "incarnation", "left").where(waits & F.col("value_hash").isNotNull())
    firsts = waiting.groupBy("partition", "key", "value_hash").agg(F.min("offset").alias("offset")).drop("key", "value_hash")
    kept = stages.keep("orphans", firsts)
    (lowest,) = kept.agg(F.min("offset").alias("offset")).collect()
    # Spark skips files with lower offsets by their footers, so most values are not read again.
    return joined.payload.where(F.col("offset") >= F.lit(lowest.offset)).join(kept, ["partition", "offset"], "left_semi")
