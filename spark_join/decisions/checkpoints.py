"""Every checkpoint record against the root of its size (R9).

A checkpoint says which root so many decisions have. Among workers it counts while its life has begun and has not ended; whether it is true
is another question. A worker whose life has ended, and which has not read that yet, goes on deciding. What it has decided follows from the
part of the order that it has read, as everyone's does, so its roots are right too, and all are compared.

Only behind a hole there may be checkpoints of more decisions than there are here: who wrote them had the content.
"""

from collections.abc import Collection, Iterator

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_join.decisions import tree
from spark_join.engine.octets import part, u64, unsigned

Violation = tuple[str, int | None, int, None, str, str]
"""A `root-mismatch`: type, size, offset, no id, found, expected."""


class Counts(msgspec.Struct, frozen=True):
    """How many checkpoint records there are."""

    compared: int
    not_compared: int
    """Behind a hole, of more decisions than there are here"""
    passed_over: int
    """Of all these, those of lives that had not begun or had ended"""


class Compared(msgspec.Struct, frozen=True):
    """What came of the roots."""

    root: bytes
    """Over all decisions"""
    wrong: list[Violation]
    roots: dict[int, bytes]
    """Of the sizes that were asked for besides"""


def counts_of(checkpoints: DataFrame, decided: int, offset_hole: int | None) -> Counts:
    """`checkpoints` as `judged.Order` has them, those behind a hole too."""
    is_behind = F.lit(False) if offset_hole is None else F.col("offset") > offset_hole
    (found,) = checkpoints.agg(
        F.count("*").alias("all"),
        F.count_if(is_behind & _is_of_more(decided)).alias("not_compared"),
        F.count_if(~F.col("counted")).alias("passed_over"),
    ).collect()
    return Counts(found["all"] - found.not_compared, found.not_compared, found.passed_over)


def of_at_most(checkpoints: DataFrame, decided: int) -> DataFrame:
    """offset, size and root of the checkpoints of sizes that there are."""
    told = checkpoints.where(~_is_of_more(decided))
    return told.select("offset", unsigned(part(F.col("tree_size"), 1, 7)).alias("size"), "root")


def compare_roots(
    roots: Iterator[tree.Root], checkpoints: DataFrame, decided: int, offset_hole: int | None, sizes: Collection[int]
) -> Compared:
    """Hold each checkpoint against the root of its size. Both are run through in the order of their sizes.

    `sizes`: of which the roots are wanted besides; few of them.
    """
    too_large = checkpoints.where(_is_of_more(decided))
    if offset_hole is not None:
        too_large = too_large.where(F.col("offset") < offset_hole)
    wrong: list[Violation] = [
        ("root-mismatch", None, row.offset, None, f"a root of {row.tree_size} decisions", f"a root of at most {decided} decisions")
        for row in too_large.select("offset", F.conv(F.hex("tree_size"), 16, 10).alias("tree_size")).collect()
    ]
    waiting = of_at_most(checkpoints, decided).orderBy("size", "offset").toLocalIterator()
    checkpoint = next(waiting, None)
    last = tree.ROOT_OF_NOTHING
    wanted: dict[int, bytes] = {}
    for each in roots:
        last = each.root
        if each.size in sizes:
            wanted[each.size] = each.root
        while checkpoint is not None and checkpoint["size"] == each.size:
            if bytes(checkpoint.root) != each.root:
                found = bytes(checkpoint.root).hex()
                wrong.append(("root-mismatch", each.size, checkpoint.offset, None, found, each.root.hex()))
            checkpoint = next(waiting, None)
    assert checkpoint is None, "there is a root for each size that was asked for"
    return Compared(last, wrong, wanted)


def _is_of_more(decided: int) -> Column:
    return F.col("tree_size") > u64(F.lit(decided).cast("bigint"))
