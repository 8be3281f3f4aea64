"""Tests that deciding all requests at once gives the decisions that the notary makes one by one (R7)."""

import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from joiner.ready import OrderedBatch
from notary.decide import decide as one_by_one
from notary.wire import encode_decision
from ordering.ids import format_state
from payload import Request
from spark_join.constants import INPUT
from spark_join.decisions import decide, rejected
from spark_join.engine.stages import Stages
from spark_join.state import start
from tests.checkers.precedence import expected_reason, hashed
from tests.checkers.records import OUTCOMES
from tests.spark.test_verify import decisions_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("as_large"), pytest.mark.timeout(900)]

FEW = settings(
    max_examples=3, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
)
OPEN = (-(2**63), 2**63 - 1)
LOG_TIME_MS = 1_000
WINDOWS = [OPEN, OPEN, OPEN, OPEN, (LOG_TIME_MS, OPEN[1]), (OPEN[0], LOG_TIME_MS), (LOG_TIME_MS + 1, OPEN[1])]
SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("id", pa.binary()),
        ("log_time_ms", pa.int64()),
        ("inputs", pa.list_(pa.binary())),
        ("references", pa.list_(pa.binary())),
        ("from_ms", pa.int64()),
        ("until_ms", pa.int64()),
    ]
)
REASONS = tuple(OUTCOMES)

states = st.lists(st.integers(0, 5), max_size=3, unique=True)
asked = st.tuples(states, states, st.sampled_from(WINDOWS)).filter(lambda request: bool(request[0] or request[1] or request[2] != OPEN))
Asked = tuple[list[int], list[int], tuple[int, int]]


def _state(label: object) -> bytes:
    return sha256(repr(label).encode()).digest() + (2**32 - 1).to_bytes(4, "big")


def _requests(histories: list[list[Asked]]) -> list[Request]:
    """Returns the requests of several groups, each with states of its own, interleaved."""
    found = []
    for turn in range(max(map(len, histories), default=0)):
        for history, wanted in enumerate(histories):
            if turn < len(wanted):
                inputs, references, (from_ms, until_ms) = wanted[turn]
                spent, read = [tuple(sorted([_state((history, label)) for label in labels])) for labels in (inputs, references)]
                found.append(Request(sha256(b"%d %d" % (turn, history)).digest(), spent, read, from_ms, until_ms, bytes(32)))
    return found


def _frame(spark: SparkSession, requests: list[Request], first: int) -> DataFrame:
    rows = [
        (position, r.transaction_id, LOG_TIME_MS, list(r.inputs), list(r.references), r.from_ms, r.until_ms)
        for position, r in enumerate(requests[first:], first)
    ]
    return spark.createDataFrame(pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA))


def _decided(
    spark: SparkSession, requests: list[Request], rounds_max: int, first: int = 0, consumed: DataFrame | None = None
) -> list[dict[str, Any]]:
    """Returns the decisions of the requests from `first` on, after the earlier ones have consumed `consumed`."""
    consumed = start(spark).consumed if consumed is None else consumed
    with tempfile.TemporaryDirectory() as folder:
        return decisions_of(decide(_frame(spark, requests, first), consumed, Stages(spark, Path(folder)), rounds_max))


def _by_the_notary(requests: list[Request]) -> list[dict[str, object]]:
    batch = OrderedBatch(0, 1, 1, LOG_TIME_MS, False, tuple(requests))
    return [msgspec.json.decode(encode_decision(decision)) for decision, _ in one_by_one([batch], 0, {}, {}).new]


def _by_the_checker(requests: list[Request]) -> list[str | None]:
    consumer: dict[str, str] = {}
    reasons = []
    for request in requests:
        inputs, references = ([format_state(state) for state in some] for some in (request.inputs, request.references))
        window = {"from": request.from_ms, "until": request.until_ms}
        reason, _ = expected_reason({"inputs": inputs, "references": references, "time_window": window}, consumer, LOG_TIME_MS)
        if reason is None:
            consumer |= dict.fromkeys(inputs, hashed(request.transaction_id.hex()))
        reasons.append(reason)
    return reasons


@FEW
@given(st.lists(st.lists(asked, max_size=9), min_size=5, max_size=25), st.sampled_from([1, 2, 6]))
def test_decides_as_the_notary(spark: SparkSession, histories: list[list[Asked]], rounds_max: int) -> None:
    """Many small groups full of conflicts get the right outcomes, reasons and conflicts, for any number of rounds before components."""
    requests = _requests(histories)
    found = _decided(spark, requests, rounds_max)
    assert found == _by_the_notary(requests)
    assert [each["reason"] for each in found] == _by_the_checker(requests)


def test_each_way_to_conflict(spark: SparkSession) -> None:
    """The precedence of reasons, states that are input and reference, windows at their ends, and rejected requests that consume nothing."""
    history: list[Asked] = [
        ([0, 1], [], OPEN),  # committed
        ([1, 2], [0], OPEN),  # input-conflict on 1; 0 is not listed
        ([2], [], OPEN),  # committed: the rejected one before it consumed nothing
        ([3], [2, 0, 3], OPEN),  # reference-conflict on 0 and 2
        ([3], [3], OPEN),  # committed: reads what it consumes
        ([4], [], (LOG_TIME_MS + 1, OPEN[1])),  # outside its window
        ([4, 0], [], (OPEN[0], LOG_TIME_MS)),  # outside as well, but the conflict comes first
        ([4], [], (LOG_TIME_MS, LOG_TIME_MS + 1)),  # committed
        ([], [5], OPEN),  # committed
        ([5], [], OPEN),  # committed: a transaction that only referenced it is no conflict
        ([], [5, 4], OPEN),  # reference-conflict
        ([], [], (OPEN[0], LOG_TIME_MS)),  # outside its window
        ([6], [], OPEN),  # committed
        ([6, 7], [], OPEN),  # input-conflict on 6
        ([8], [7], OPEN),  # committed: the one before it was rejected
        ([7], [], OPEN),  # committed, in the same round as its reader
        ([7], [], OPEN),  # input-conflict
        ([9], [], OPEN),  # committed
        ([9, 10], [], OPEN),  # input-conflict on 9
        ([10], [], (OPEN[0], LOG_TIME_MS)),  # outside its window, between two requests that may consume it: it does not
        ([10], [], OPEN),  # committed
        ([10], [], OPEN),  # input-conflict
        ([11], [], OPEN),  # committed
        ([11, 12, 13], [], OPEN),  # input-conflict on 11
        ([12], [14], OPEN),  # committed: of those undecided after one round, as all that follow
        ([13], [14], OPEN),  # committed: the one before it only referenced 14
        ([14], [], OPEN),  # committed
        ([14], [], OPEN),  # input-conflict
        ([13], [], OPEN),  # input-conflict
    ]
    requests = _requests([history])
    found = _decided(spark, requests, 6)
    assert found == _by_the_notary(requests)
    assert _decided(spark, requests, 1) == found
    codes = [REASONS.index(each["reason"]) for each in found]
    assert codes == [0, 1, 0, 2, 0, 3, 1, 0, 0, 0, 2, 3, 0, 1, 0, 0, 1, 0, 1, 3, 0, 1, 0, 1, 0, 0, 0, 1, 1]


def test_goes_on_from_what_was_consumed(spark: SparkSession) -> None:
    """States that were consumed before all these requests conflict, alone and next to states that one of these consumes."""
    history: list[Asked] = [
        ([0, 1], [], OPEN),  # the earlier one
        ([2], [], OPEN),  # committed
        ([0, 2, 3], [1], OPEN),  # input-conflict on 0 and 2
        ([3], [0, 2], OPEN),  # reference-conflict on both
        ([3, 4], [], OPEN),  # committed: the two before it consumed nothing
        ([1], [], (OPEN[0], LOG_TIME_MS)),  # outside its window as well, but the conflict comes first
        ([], [1, 4], OPEN),  # reference-conflict on both
        ([5], [0], OPEN),  # reference-conflict
        ([5], [], OPEN),  # committed
    ]
    requests = _requests([history])
    before = requests[0]
    rows = [(state, sha256(before.transaction_id).digest()) for state in before.inputs]
    found = _decided(spark, requests, 6, 1, spark.createDataFrame(rows, "state binary, consumed_by binary"))
    assert found == _by_the_notary(requests)[1:]
    assert [REASONS.index(each["reason"]) for each in found] == [0, 1, 2, 0, 1, 2, 2, 0]


CHAIN = 100_000


@pytest.mark.nightly
def test_long_chain_ends(spark: SparkSession, tmp_path: Path) -> None:
    """100,000 requests, each in conflict with the one before and the one after it, are decided: every second one is committed."""
    links = spark.range(CHAIN).select(F.col("id").alias("position"), F.explode(F.array("id", F.col("id") + 1)).alias("link"))
    of_link = F.unhex(F.concat(F.sha2(F.col("link").cast("string"), 256), F.lit("00000000")))
    touches = links.select("position", of_link.alias("state"), F.lit(INPUT).alias("kind"))
    stages: list[str] = []
    lost = rejected(touches, Stages(spark, tmp_path, stages.append), rounds_max=1)
    (found,) = lost.agg(F.count("*"), F.count_distinct("position"), F.max("position"), F.bool_and(F.col("position") % 2 == 1)).collect()
    assert found == (CHAIN // 2, CHAIN // 2, CHAIN - 1, True)
    assert stages[-1] == "components, one after the other"
