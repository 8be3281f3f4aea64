"""Tests that leaves and roots computed in parallel are those of RFC 6962."""

from hashlib import sha256

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_join import tree as in_spark
from spark_join.tree import leaves
from tests.checkers.precedence import hashed
from tests.checkers.records import OUTCOMES
from tests.checkers.tree import Tree, leaf_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("as_large"), pytest.mark.timeout(900)]

DECISIONS = (
    "position bigint, id binary, log_time_ms bigint, outcome int, conflicts array<struct<state: binary, kind: int, consumed_by: binary>>"
)
REASONS = tuple(OUTCOMES)


def _id(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def test_leaves_are_right_for_every_outcome(spark: SparkSession) -> None:
    """Leaves are right for every outcome, positions and times of all lengths, no conflict, one and many."""
    rows, expected = [], []
    for number, position in enumerate((0, 1, 255, 2**32, 2**63 - 1)):
        for outcome, count in ((0, 0), (1, 1), (1, 300), (2, 2), (3, 0)):
            kind = int(outcome == 2)
            states = sorted([_id(n) + (n * 2**24 % 2**32).to_bytes(4, "big") for n in range(count)])
            time = (-(2**53), -1, 0, 1_760_000_000_000, 2**53)[number]
            rows.append((position, _id(number), time, outcome, [(state, kind, sha256(_id(9)).digest()) for state in states]))
            conflicts = [
                {
                    "state": f"{state[:32].hex()}:{int.from_bytes(state[32:], 'big')}",
                    "kind": ("input", "reference")[kind],
                    "consumed_by": hashed(_id(9).hex()),
                }
                for state in states
            ]
            decision = {"position": position, "transaction_id": _id(number).hex(), "log_time": time, "reason": REASONS[outcome]}
            expected.append(leaf_of({**decision, "conflicts": conflicts}))
    found = [bytes(row.leaf) for row in leaves(spark.createDataFrame(rows, DECISIONS)).collect()]
    assert sorted(found) == sorted(expected)


CHUNK_BITS = 3
"""The base-2 logarithm of the chunk size: chunks of 8 leaves."""


def _hashes(spark: SparkSession, written: list[bytes]) -> DataFrame:
    return in_spark.hashed(spark.createDataFrame(list(enumerate(written)), "position bigint, leaf binary"))


def _sizes(spark: SparkSession, *sizes: int) -> DataFrame:
    return spark.createDataFrame([(size,) for size in sizes], "size bigint")


def _roots(parts: DataFrame) -> list[tuple[int, bytes]]:
    return sorted([(row["size"], bytes(row.root)) for row in in_spark.roots(parts, CHUNK_BITS).collect()])


@pytest.mark.parametrize("decided", [0, 1, 8, 45, 64])
def test_roots_at_every_size(spark: SparkSession, decided: int) -> None:
    """Roots are right at all sizes, at those that end a chunk, and at the last one, which was not requested."""
    written = [b"%d" % position * 7 for position in range(decided)]
    hashes = _hashes(spark, written)
    found = _roots(in_spark.parts(hashes.limit(0), hashes, _sizes(spark, *range(decided)), 0, decided, CHUNK_BITS))
    assert found == [(size, Tree(written).root(size)) for size in range(decided + 1)]


def test_roots_at_some_sizes(spark: SparkSession) -> None:
    """Full chunks without a requested size still count."""
    written = [b"%d" % position for position in range(75)]
    hashes = _hashes(spark, written)
    found = _roots(in_spark.parts(hashes.limit(0), hashes, _sizes(spark, 41), 0, 75, CHUNK_BITS))
    assert dict(found)[41] == Tree(written).root(41)
    assert found[-1] == (75, Tree(written).root(75))


@pytest.mark.parametrize(
    ("first", "decided", "sizes"),
    [
        (43, 75, (2, 16, 44, 74)),
        (48, 75, (45, 48)),
        *[
            pytest.param(*of, marks=pytest.mark.nightly)
            for of in ((43, 75, (41, 43)), (48, 75, ()), (43, 43, (43,)), (64, 64, (17,)), (43, 47, ()))
        ],
    ],
)
def test_roots_of_a_tree_that_grew(spark: SparkSession, first: int, decided: int, sizes: tuple[int, ...]) -> None:
    """A tree that grew from the hashes and full chunks of a smaller one has the right roots before, at and behind the old size."""
    written = [b"%d" % position for position in range(decided)]
    hashes, none = _hashes(spark, written), _sizes(spark)
    earlier, added = hashes.where(f"position < {first}"), hashes.where(f"position >= {first}")
    before = in_spark.full_chunks(in_spark.parts(earlier.limit(0), earlier, none, 0, first, CHUNK_BITS), 0, CHUNK_BITS)
    parts = in_spark.parts(earlier, added, _sizes(spark, *sizes), first, decided, CHUNK_BITS)
    found = dict(_roots(before.union(parts).distinct()))
    assert {size: found[size] for size in (*sizes, decided)} == {size: Tree(written).root(size) for size in (*sizes, decided)}
    at_once = in_spark.full_chunks(in_spark.parts(earlier.limit(0), hashes, none, 0, decided, CHUNK_BITS), 0, CHUNK_BITS)
    chunks = before.union(in_spark.full_chunks(parts, first, CHUNK_BITS))
    assert sorted(chunks.collect()) == sorted(at_once.collect())
    assert in_spark.root_of(chunks, hashes, decided, CHUNK_BITS) == Tree(written).root(decided)


def test_no_root_of_a_tree_with_gaps(spark: SparkSession) -> None:
    """If chunks or leaves are missing or duplicated there is no root; an empty tree has one."""
    hashes = _hashes(spark, [b"%d" % position for position in range(11)])
    chunk = spark.createDataFrame([(8, bytes(32))], "size bigint, hash binary")
    assert in_spark.root_of(chunk, hashes, 11, CHUNK_BITS) is not None
    for chunks, leaves_ in (
        (chunk.limit(0), hashes),
        (chunk.union(chunk), hashes),
        (chunk, hashes.where("position <> 9")),
        (chunk, hashes.union(hashes.where("position = 9"))),
    ):
        assert in_spark.root_of(chunks, leaves_, 11, CHUNK_BITS) is None
    assert in_spark.root_of(chunk.limit(0), hashes.limit(0), 0, CHUNK_BITS) == Tree([]).root(0)
