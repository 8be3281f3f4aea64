"""The Merkle tree over all decisions, and every checkpoint record compared with the root of its size (R9; docs/formats.md, Leaf and Tree;
RFC 6962, section 2.1).

Leaves are cut into chunks of 2^16. One task computes the hashes of a chunk: its root if it is full, and for each requested size that ends
in it, the root over the chunk's leaves up to that size. The size of a chunk is a power of two. So the tree of n leaves is a tree over the
roots of its full chunks and of the remaining leaves. The driver computes that top, from 32 bytes for each 65,536 decisions, and sends it to
all tasks that compute roots.

An `AppliedState` already has the roots of its full chunks. A run that continues from it hashes earlier leaves again only in the last,
partial chunk, and in chunks where a requested size ends.

In a checkpoint record a worker claims that the first `size` decisions have a certain root. The record is compared if its incarnation has
not ended and its view is the reader's own history (R10). Then the writer has read the same log, so both roots must be equal. Any other view
that can be compared is a `foreign-view`, whatever its root. After a hole the reader does not know the history, so a checkpoint there is
compared only if its view is from before the hole.
"""

from collections.abc import Callable, Collection, Iterable
from hashlib import sha256 as digest

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from spark_join.constants import LEAF_PREFIX, ROOT_OF_NOTHING
from spark_join.engine.columns import frame_of, map_batches, part, sha256, u64, unsigned
from spark_join.engine.stages import Stages
from spark_join.order.effects import BEYOND, OWN
from spark_join.violations import render_hex, violations

CHUNK_BITS = 16


def leaves(decisions: DataFrame) -> DataFrame:
    """Returns position and leaf (104 bytes) of the `decisions` of `decide`."""
    # Concatenate hex text: appending binary values one by one would copy all earlier ones for each conflict.
    conflicts = F.transform("conflicts", lambda met: F.hex(F.concat(met["state"], _octet(met["kind"]), met["consumed_by"])))
    return decisions.select(
        "position",
        F.concat(
            F.lit(LEAF_PREFIX),
            u64(F.col("position")),
            "id",
            u64(F.col("log_time_ms")),
            _octet(F.col("outcome")),
            part(u64(F.size("conflicts").cast("bigint")), 4, 4),
            sha256(F.unhex(F.array_join(conflicts, ""))),
        ).alias("leaf"),
    )


def hashed(leaves_: DataFrame) -> DataFrame:
    """Returns position and hash of the leaves that `leaves` returns."""
    return leaves_.select("position", sha256(F.concat(F.lit(b"\x00"), "leaf")).alias("hash"))


def parts(earlier: DataFrame, hashes: DataFrame, sizes: DataFrame, first: int, decided: int, chunk_bits: int = CHUNK_BITS) -> DataFrame:
    """Returns size and hash for each of `sizes`, each full chunk's end and `decided`.

    A hash is the root over the leaves of the chunk in which the size ends, up to the size.
    `hashes` come from `hashed`, for the positions `first` to `decided` - 1 without a gap; `earlier` has those before. `sizes` has a
    column `size`, distinct longs from 0 to `decided`. Chunks that only `earlier` fills and in which no size ends are left out.
    """
    # Each size becomes a row without a hash in the chunk of its last leaf.
    asked = sizes.where(F.col("size") > 0).select((F.col("size") - 1).alias("position"), F.lit(None).cast("binary").alias("hash"))
    if first:
        hashes = hashes.union(_again(earlier, asked.select("position"), first, chunk_bits))
    chunked = hashes.union(asked).withColumn("chunk", F.shiftright("position", chunk_bits))
    return chunked.groupBy("chunk").applyInArrow(_hasher(chunk_bits, decided), "size bigint, hash binary")


def _again(earlier: DataFrame, asked: DataFrame, first: int, chunk_bits: int) -> DataFrame:
    """Returns the `earlier` hashes of the last, partial chunk, and of chunks in which a size ends."""
    going_on = earlier.sparkSession.range(first >> chunk_bits << chunk_bits, first).select(F.col("id").alias("position")).limit(1)
    chunks = asked.where(F.col("position") < first).union(going_on).select(F.shiftright("position", chunk_bits).alias("chunk")).distinct()
    (lowest,) = chunks.agg(F.min("chunk").alias("chunk")).collect()
    if lowest.chunk is None:
        return earlier.limit(0)
    late = earlier.where(F.col("position") >= lowest.chunk << chunk_bits)  # Spark skips files by the positions in their footers
    return late.withColumn("chunk", F.shiftright("position", chunk_bits)).join(chunks, "chunk", "left_semi").drop("chunk")


def full_chunks(parts_: DataFrame, first: int, chunk_bits: int = CHUNK_BITS) -> DataFrame:
    """Returns the rows of `parts` that are roots of full chunks, except chunks that were full with `first` leaves."""
    return parts_.where((F.col("size") > first) & (F.col("size") % (1 << chunk_bits) == 0))


def roots(parts_: DataFrame, chunk_bits: int = CHUNK_BITS) -> DataFrame:
    """Returns size and root, for size 0 and for all sizes of `parts`, which has the end of each full chunk exactly once."""
    width = 1 << chunk_bits
    full = sorted([(row["size"], bytes(row.hash)) for row in parts_.where(F.col("size") % width == 0).collect()])
    assert [size for size, _ in full] == [width * number for number in range(1, len(full) + 1)], "a chunk is missing, or there twice"
    nothing = frame_of(parts_.sparkSession, [(0, ROOT_OF_NOTHING)], "size bigint, root binary")
    levels = _levels([hash_ for _, hash_ in full])

    def rooted(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes, ends = batch.column("size").to_pylist(), batch.column("hash").to_pylist()
        found = [_over_the_top(levels, size - 1 >> chunk_bits, end) for size, end in zip(sizes, ends, strict=True)]
        return pa.RecordBatch.from_arrays([batch.column("size"), pa.array(found, pa.binary())], names=["size", "root"])

    return map_batches(parts_, rooted, "size bigint, root binary").union(nothing)


def _levels(chunks: list[bytes]) -> list[list[bytes]]:
    """Returns the roots of full chunks, then of each two of them, each four, and so on."""
    levels = [chunks]
    while len(below := levels[-1]) > 1:
        levels.append([_node(below[at], below[at + 1]) for at in range(0, len(below) - 1, 2)])
    return levels


def root_of(chunks: DataFrame, hashes: DataFrame, decided: int, chunk_bits: int = CHUNK_BITS) -> bytes | None:
    """Returns the root over `decided` leaves, from full `chunks` (size, hash) and the `hashes` behind these.

    Returns None if one of them is missing or duplicated.
    """
    full_end = decided >> chunk_bits << chunk_bits
    of_chunks, late = chunks.sort("size").toArrow(), hashes.where(F.col("position") >= full_end).sort("position").toArrow()
    if of_chunks.column("size").to_pylist() != list(range(1 << chunk_bits, full_end + 1, 1 << chunk_bits)):
        return None
    if late.column("position").to_pylist() != list(range(full_end, decided)):
        return None
    if not decided:
        return ROOT_OF_NOTHING
    full = of_chunks.column("hash").to_pylist()
    behind: list[tuple[int, bytes]] = []
    for hash_ in late.column("hash").to_pylist():
        _append(behind, hash_)
    end = _bagged(behind) if behind else full.pop()
    return _over_the_top(_levels(full), len(full), end)


def _hasher(chunk_bits: int, decided: int) -> Callable[[pa.Table], pa.Table]:
    """Returns a function for `applyInArrow`, which takes the leaf hashes and sizes of one chunk.

    It returns each size in the chunk, and the chunk's end, with the root over the chunk's leaves up to it.
    """

    def hashed(rows: pa.Table) -> pa.Table:
        is_leaf = pc.is_valid(rows.column("hash"))
        leaf_rows = rows.filter(is_leaf).sort_by("position")
        hashes = leaf_rows.column("hash").to_pylist()
        positions = leaf_rows.column("position").to_pylist()
        start = positions[0] >> chunk_bits << chunk_bits
        end = min(start + (1 << chunk_bits), decided)
        if positions != list(range(start, end)):
            raise AssertionError(f"positions {start} to {end} are not all there, once")
        sizes = sorted({position + 1 for position in rows.filter(pc.invert(is_leaf)).column("position").to_pylist()} | {end})
        found = []
        subtrees: list[tuple[int, bytes]] = []
        done = start
        for size in sizes:
            for hash_ in hashes[done - start : size - start]:
                _append(subtrees, hash_)
            done = size
            found.append(_bagged(subtrees))
        return pa.table({"size": pa.array(sizes, pa.int64()), "hash": pa.array(found, pa.binary())})

    return hashed


def _append(subtrees: list[tuple[int, bytes]], hash_: bytes) -> None:
    """Add one node of height 0 (a leaf, or in `_over_the_top` a chunk) to a run of full subtrees (height, root), the largest first."""
    height = 0
    while subtrees and subtrees[-1][0] == height:
        hash_ = _node(subtrees.pop()[1], hash_)
        height += 1
    subtrees.append((height, hash_))


def _bagged(subtrees: list[tuple[int, bytes]]) -> bytes:
    """Returns the root over a run of full subtrees, at least one."""
    root = subtrees[-1][1]
    for _, left in reversed(subtrees[:-1]):
        root = _node(left, root)
    return root


def _over_the_top(levels: list[list[bytes]], chunks: int, end: bytes) -> bytes:
    """Returns the root over the first `chunks` full chunks and `end`, the root of the leaves after them (one chunk at most)."""
    subtrees = []
    start = 0
    for height in reversed(range(chunks.bit_length())):
        if chunks >> height & 1:
            subtrees.append((height, levels[height][start >> height]))
            start += 1 << height
    _append(subtrees, end)
    return _bagged(subtrees)


def _node(left: bytes, right: bytes) -> bytes:
    return digest(b"\x01" + left + right).digest()


def _octet(number: Column) -> Column:
    return F.unhex(F.lpad(F.hex(number), 2, "0"))


class Counts(msgspec.Struct, frozen=True):
    """The numbers of checkpoint records."""

    compared: int
    not_compared: int
    """Records with a view from after the hole"""
    skipped: int
    """Records whose incarnation had not begun or had ended, whose view is not the reader's own, or that have no good signature"""


def counts_of(grouped: Iterable[Row]) -> Counts:
    """Counts the checkpoints, those behind a hole included. `grouped`: numbers of records by kind, skipped and view."""
    found = [row for row in grouped if row.kind == "checkpoint"]
    compared, behind = (sum([row.records for row in found if row.skipped is None and row.view == view]) for view in (OWN, BEYOND))
    return Counts(compared, behind, sum([row.records for row in found if row.skipped is not None]))


def compared_of(records: DataFrame, offset_hole: int | None) -> DataFrame:
    """Returns offset, tree_size (8 bytes) and root of checkpoints that are to be compared, and of `done` and `trim` records in effect.

    A `trim` behind the hole is left out: it has the root of decisions from the hole on.
    """
    is_trim = (F.col("kind") == "trim") & (F.lit(offset_hole is None) | (F.col("offset") < F.lit(offset_hole)))
    owners = ((F.col("kind") == "salvage-done") | is_trim) & F.col("effect")
    is_compared = (F.col("kind") == "checkpoint") & F.col("skipped").isNull() & (F.col("view") == OWN)
    return records.where(is_compared | owners).select("offset", "tree_size", "root")


def sizes_of(checkpoints: DataFrame, decided: int, others: Collection[int]) -> DataFrame:
    """Returns the column size, for `parts`: the distinct sizes of the checkpoints and of `others`, a few; none above `decided`."""
    claimed = _sized(checkpoints, decided).select("size").where(F.col("size").isNotNull())
    wanted = [(size,) for size in others if size <= decided]
    return claimed.union(frame_of(checkpoints.sparkSession, wanted, "size bigint")).distinct()


def compare_roots(
    checkpoints: DataFrame, parts_: DataFrame, decisions: DataFrame, decided: int, others: Collection[int], stages: Stages
) -> tuple[DataFrame, dict[int, bytes]]:
    """Compares each checkpoint with the root of its size. Returns each `root-mismatch` (`violations.VIOLATION`), and roots by size.

    These are the root over all decisions, and those of `others` that are no larger. `checkpoints` come from `compared_of`, and `parts_`
    from `parts` for the sizes that `sizes_of` returns for them and for `others`. `decisions` has position and offset (of the ordering
    record) of the new ones: a checkpoint before the last decision that it covers is a mismatch, even with the right root.
    """
    roots_ = stages.keep("roots", roots(parts_))
    asked = roots_.where(F.col("size").isin(decided, *others)).collect()
    compared = _sized(checkpoints, decided).join(roots_.withColumnRenamed("root", "right"), "size", "left")
    lasts = decisions.select((F.col("position") + 1).alias("size"), F.col("offset").alias("decided_at"))
    # An inner join: Spark sends the checkpoints, which are few, to the decisions.
    early = _sized(checkpoints, decided).join(lasts, "size").where("decided_at > offset").select("offset", "decided_at")
    compared = compared.join(early, "offset", "left")
    too_large, too_early = F.col("size").isNull(), F.col("decided_at").isNotNull()
    of_size = F.format_string("a root of %s decisions", F.conv(F.hex("tree_size"), 16, 10))
    mismatches = violations(
        compared.where(~F.col("root").eqNullSafe(F.col("right")) | too_early),
        F.lit("root-mismatch"),
        position=F.col("size"),
        found=F.when(too_large | too_early, of_size).otherwise(render_hex(F.col("root"))),
        expected=F.when(too_large, F.lit(f"a root of at most {decided} decisions"))
        .when(too_early, F.format_string("a root of fewer decisions: the last of these is made at offset %s", "decided_at"))
        .otherwise(render_hex(F.col("right"))),
    )
    return mismatches, {row["size"]: bytes(row.root) for row in asked}


def _sized(checkpoints: DataFrame, decided: int) -> DataFrame:
    """Adds `size`, a long; null for a checkpoint of more decisions than there are, since that number may not fit into a long."""
    is_of_more = F.col("tree_size") > u64(F.lit(decided).cast("bigint"))
    return checkpoints.withColumn("size", F.when(~is_of_more, unsigned(part(F.col("tree_size"), 1, 7))))
