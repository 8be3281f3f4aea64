"""Leaves and roots in parallel are those of RFC 6962 one after the other."""

from hashlib import sha256

import pytest
from pyspark.sql import SparkSession

from spark_join.tree import leaves, roots
from tests.checkers.judge import hashed
from tests.checkers.tree import Tree, leaf_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DECISIONS = (
    "position bigint, id binary, log_time_ms bigint, outcome int, conflicts array<struct<state: binary, kind: int, consumed_by: binary>>"
)
REASONS = (None, "input-conflict", "reference-conflict", "outside-time-window")


def _id(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def test_leaves(spark: SparkSession) -> None:
    """Every outcome, positions and times of all lengths, no conflict, one and many."""
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


@pytest.mark.parametrize("decided", [0, 1, 8, 45, 64])
def test_roots_at_every_size(spark: SparkSession, decided: int) -> None:
    """Chunks of 8 leaves: all sizes, those that end a chunk, and the last one, which nobody asked for."""
    written = [b"%d" % position * 7 for position in range(decided)]
    frame = spark.createDataFrame(list(enumerate(written)), "position bigint, leaf binary")
    tree = Tree(written)
    asked = spark.range(decided).withColumnRenamed("id", "size")
    found = [(each.size, each.root) for each in roots(frame, asked, decided, chunk_bits=3)]
    assert found == [(size, tree.root(size)) for size in range(decided + 1)]


def test_roots_at_some_sizes(spark: SparkSession) -> None:
    """Full chunks in which no size is asked for count all the same."""
    written = [b"%d" % position for position in range(75)]
    frame = spark.createDataFrame(list(enumerate(written)), "position bigint, leaf binary")
    found = [(each.size, each.root) for each in roots(frame, spark.createDataFrame([(41,)], "size bigint"), 75, chunk_bits=3)]
    assert dict(found)[41] == Tree(written).root(41)
    assert found[-1] == (75, Tree(written).root(75))
