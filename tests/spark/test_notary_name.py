"""A wrong name of the notary is not taken for a log in which everything is wrong, nor the other way round."""

from collections.abc import Collection, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ordering.records import batch_key
from payload import decode_submission, encode_batch
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.log.archive import read_archive
from spark_join.order.contents import read_contents, split, with_places
from spark_join.order.notary_name import refuse_no_name, refuse_other_name
from spark_join.state.state import start
from spark_join.verify import verify
from tests.asking.party import Party, spend, state
from tests.joiner.history import NOTARY
from tests.spark.archived import archive
from tests.spark.nights import PARTY, three_nights

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TYPO = f"{NOTARY}."
GARBAGE, SIGNED, FORGED, EMPTY = range(4)


def _content(*parties: Party) -> bytes:
    return encode_batch([decode_submission(party.submission(spend(state("x"))).body, NOTARY).encoded for party in parties])


def _unreadable(spark: SparkSession, notary_name: str) -> dict[int, Sequence[object]]:
    """Entries with these contents, none of which has the entry's ids, by their offset."""
    contents = {
        GARBAGE: b"garbage",
        SIGNED: _content(PARTY),
        FORGED: _content(Party(NOTARY, PARTY.name)),
        EMPTY: _content(),
    }
    keys = {PARTY.name: PARTY.public_pem.decode()}
    entries = spark.createDataFrame(
        [(at, bytes(batch_key(1, at)[:8]), bytes(batch_key(1, at)[8:]), 0, 5, sha256(b"its own").digest()) for at in contents],
        "offset bigint, incarnation binary, sequence binary, partition int, log_time_ms bigint, ids_digest binary",
    )
    payload = spark.createDataFrame(
        [(0, at, 5, batch_key(1, at), value) for at, value in contents.items()],
        "partition int, offset bigint, append_time_ms bigint, key binary, value binary",
    )
    found = split(read_contents(with_places(entries, payload), payload, notary_name, keys)).unreadable
    return {row.offset: tuple(row) for row in found.collect()}


def _hold(spark: SparkSession, rows: dict[int, Sequence[object]], of: Collection[int], *, signatures: bool) -> str:
    """What is said of a log that has these contents."""
    frame = spark.createDataFrame([rows[at] for at in of], "offset bigint, found string, faults int")
    try:
        refuse_other_name(frame, TYPO, signatures=signatures)
    except CouldNotVerify as problem:
        return str(problem)
    return ""


def test_name_is_told_from_violations(spark: SparkSession) -> None:
    """Contents that decode, none with its entry's ids, may be the name's fault; not where one is signed for that name."""
    right, wrong = _unreadable(spark, NOTARY), _unreadable(spark, TYPO)
    assert [right[at][2] for at in (GARBAGE, SIGNED, FORGED, EMPTY)] == [None, 0, 1, None]
    for rows, of, signatures, said in (
        (right, [GARBAGE, EMPTY], True, ""),  # under any name
        (right, [GARBAGE, SIGNED, FORGED], True, ""),
        (right, [SIGNED], False, "1 contents can be read"),
        (right, [GARBAGE, FORGED], True, "no signature is right under it either"),
        (wrong, [GARBAGE, SIGNED, FORGED, EMPTY], True, "2 contents can be read, and not one has the transaction ids of its entry"),
        (wrong, [FORGED], False, "give --parties"),
    ):
        told = _hold(spark, rows, of, signatures=signatures)
        assert said in told
        assert bool(told) == bool(said)
        assert not told or f"{TYPO!r}: that is not whose log this is" in told


def test_nothing_is_said_under_a_wrong_name(spark: SparkSession, tmp_path: Path) -> None:
    """A log as it should be, whose archive has another name."""
    folder = archive(three_nights()[0].log.streams, tmp_path / "archive", TYPO)
    with pytest.raises(CouldNotVerify, match=r"not one has the transaction ids .*--notary, to the letter .* is to be made again"):
        verify(spark, read_archive(spark, folder), start(spark), None, Stages(spark, tmp_path / "stages"))


@pytest.mark.parametrize("name", ["", "x" * 256, "\udcff"])
def test_no_name(name: str) -> None:
    """What cannot be a notary's name is said to be none."""
    with pytest.raises(CouldNotVerify, match=r"is no notary's name, which has 1 to 255 bytes"):
        refuse_no_name(name)
