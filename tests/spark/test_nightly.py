"""A log verified in parts, each from the state that the one before it kept, comes to what it comes to as a whole."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from ordering.log import ORDERING, Record
from ordering.records import Checkpoint, Entry, batch_key
from payload import decode_submission, encode_batch
from spark_join.archive import read_archive
from spark_join.join import rest_of
from spark_join.kept import read_state, write_state
from spark_join.stages import Stages
from spark_join.state import start
from spark_join.verify import Verified, verify
from tests.asking.party import Party, spend, state
from tests.checkers.honest import PARTITIONS
from tests.checkers.judge import hashed
from tests.checkers.replay import LogRecord, Replayed, replay
from tests.joiner.history import NOTARY, History
from tests.spark.archived import Ends, archive, ends_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PARTY = Party(NOTARY)
TABLES = ("ids", "consumed", "hashes", "chunks", "lives", "orphans")
Streams = Mapping[int, Sequence[LogRecord]]


def _run(spark: SparkSession, folder: Path, streams: Streams, ends: Sequence[Ends], earlier: Path | None = None) -> Verified:
    """One run over what the ranges that end at `ends` hold. A report and the state go to `folder`."""
    known = start(spark) if earlier is None else read_state(spark, earlier)
    log = rest_of(read_archive(spark, archive(streams, folder / "archive", ends=ends), known.since), known)
    verified = verify(spark, log, known, {PARTY.name: PARTY.public_pem.decode()}, Stages(spark, folder / "stages"))
    kept = write_state(spark, folder, verified.after(), earlier)
    (folder / "report.json").write_bytes(msgspec.json.encode({"violations": {}, "state_sha256": kept}))
    return verified


def _rows(spark: SparkSession, folder: Path) -> dict[str, list[Any]]:
    """All tables of the state there, in an order of their own."""
    known = read_state(spark, folder)
    return {table: _in_order(getattr(known, table).collect()) for table in TABLES}


def _in_order(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return sorted([tuple([bytes(value) if isinstance(value, bytearray) else value for value in row]) for row in rows], key=repr)


def _number(octets: bytes) -> int:
    return int.from_bytes(octets, "big")


def _hold(rows: dict[str, list[Any]], streams: Streams) -> Replayed:
    """The state is what the log says record by record. (No chunk is full.)"""
    replayed = replay(streams, NOTARY, PARTITIONS)
    assert rows["ids"] == _in_order([(bytes.fromhex(each["transaction_id"]),) for each in replayed.decisions])
    consumed = {ref: hashed(id_) for ref, (id_, _) in replayed.consumed.items()}
    found = {f"{state_[:32].hex()}:{_number(state_[32:])}": by.hex() for state_, by in rows["consumed"]}
    assert (found, len(rows["consumed"])) == (consumed, len(consumed))
    assert rows["hashes"] == _in_order([(at, sha256(b"\x00" + leaf).digest()) for at, leaf in enumerate(replayed.leaves)])
    assert rows["chunks"] == []
    lives = sorted(rows["lives"], key=lambda life: int(life[2]))
    assert [(nonce, name.decode(), end is not None) for nonce, name, _, end, _ in lives] == [
        (life.nonce, life.name, life.fenced) for life in replayed.lives
    ]
    assert [None if reached is None else _number(reached) for *_, reached in lives] == [
        None if life.fenced else life.sequence_last for life in replayed.lives
    ]
    assert rows["orphans"] == _in_order(_orphans(streams, replayed))
    return replayed


def _orphans(streams: Streams, replayed: Replayed) -> list[tuple[Any, ...]]:
    found = []
    for partition in range(PARTITIONS):
        first: dict[bytes, LogRecord] = {}
        for record in streams[partition]:
            if record.key is not None and len(record.key) == 16:
                first.setdefault(record.key, record)
        for key, record in first.items():
            incarnation, sequence = _number(key[:8]), _number(key[8:])
            life = replayed.lives[incarnation - 1] if 1 <= incarnation <= len(replayed.lives) else None
            if life is None or (not life.fenced and sequence > life.sequence_last):
                found.append((record.offset, record.append_time_ms, key, record.value, partition))
    return found


class Writer:
    """Writes a log of signed requests."""

    def __init__(self) -> None:
        self.log = History(PARTITIONS)
        self.sequences: dict[int, int] = {}

    @property
    def replayed(self) -> Replayed:
        return replay(self.log.streams, NOTARY, PARTITIONS)

    @property
    def ends(self) -> Ends:
        return ends_of(self.log.streams)

    def send(self, incarnation: int, partition: int, *requests: dict[str, Any], party: Party = PARTY) -> "tuple[_Append, _Append, _Append]":
        """What appends the entry, the payload and a fill of the life's next batch."""
        sent = decode_submission(party.submission(*requests).body, NOTARY)
        sequence = self.sequences[incarnation] = self.sequences.get(incarnation, 0) + 1
        ids = tuple([each.transaction_id for each in sent.requests])
        key, value = batch_key(incarnation, sequence), encode_batch([sent.encoded])
        at = self.log.streams[ORDERING][-1].append_time_ms
        return (
            lambda: self.log.ordering(Entry(incarnation, sequence, at, partition, ids)),
            lambda: self.log.put(partition, key, value),
            lambda: self.log.put(partition, key, None),
        )

    def batch(self, incarnation: int, partition: int, *requests: dict[str, Any], party: Party = PARTY) -> Record:
        """Append both; the entry."""
        entry, payload, _ = self.send(incarnation, partition, *requests, party=party)
        payload()
        return entry()

    def checkpoint(self, incarnation: int, size: int) -> Record:
        return self.log.ordering(Checkpoint(incarnation, size, self.replayed.root(size)))


_Append = Callable[[], Record]


def _three_nights() -> tuple[Writer, list[Ends], list[tuple[str, int | None, int]]]:
    """Whatever a cut may part, and what is wrong with the third part: (type, position, offset)."""
    writer = Writer()
    log, ends = writer.log, []
    for number in (1, 2, 3):
        log.register(f"w{number}", f"nonce {number}")
    writer.batch(1, 0, spend(state("x"), state("y")))
    writer.batch(2, 1, spend(state("z")), spend(state("z"), content="too late"))
    writer.checkpoint(1, 3)
    writer.batch(1, 2, spend(state("v"), time_window={"from": None, "until": 5}))
    entry_2, payload_2, _ = writer.send(2, 1, spend(state("its payload came the night before")))
    payload_2()
    payload_2()
    entry_5, payload_5, _ = writer.send(5, 0, spend(state("its life begins the night after")))
    payload_5()
    entry_3, payload_3, fill_3 = writer.send(3, 0, spend(state("filled")))
    entry_3()
    entry_1, payload_1, _ = writer.send(1, 1, spend(state("on its way")))
    entry_1()
    writer.batch(2, 2, spend(references=[state("x")]))
    log.register("w3", "nonce 4")  # behind a hole when the first night ends
    ends.append(writer.ends)

    fill_3()
    payload_3()
    payload_1()
    writer.batch(1, 0, spend(state("x"), state("y")))  # decided already
    writer.batch(1, 1, spend(state("y"), state("free")), spend(state("free")), spend(state("free"), content="too late"))
    log.register("w9", "nonce 1")  # no life begins, as that nonce is known
    entry_2()  # passed: the next one has counted
    writer.checkpoint(2, 2)
    log.fence(1, 2)  # not the last one
    log.fence(2, 3)
    writer.batch(2, 1, spend(state("of a life that has ended")))
    log.register("w5", "nonce 5")
    entry_5()
    late, payload_late, _ = writer.send(
        1, 2, spend(state("z"), content="the night after"), spend(references=[state("free")], content="as well")
    )
    payload_late()
    ends.append(writer.ends)

    late()
    writer.batch(3, 1, spend(state("of one who has a successor")))
    log.fence(1, 6)
    writer.batch(1, 1, spend(state("fenced")))
    writer.batch(5, 2, spend(state("free"), content="once more"), spend(state("new")))
    writer.checkpoint(4, 5)
    decided = len(writer.replayed.decisions)
    forged = writer.batch(4, 0, spend(state("forged")), party=Party(NOTARY, PARTY.name))
    wrong = log.ordering(Checkpoint(4, 3, bytes(32)))
    ends.append(writer.ends)
    return writer, ends, [("bad-signature", decided, forged.offset), ("root-mismatch", 3, wrong.offset)]


def _cut(streams: Streams, ends: Ends) -> dict[int, Sequence[LogRecord]]:
    return {stream: records[: ends[stream]] for stream, records in streams.items()}


def test_three_nights_are_the_whole(spark: SparkSession, tmp_path: Path) -> None:
    """Decisions, roots, violations and the state are those of one run over everything, whatever the cuts part."""
    writer, ends, planted = _three_nights()
    streams = writer.log.streams
    nights = []
    earlier = None
    for number in range(len(ends)):
        folder = tmp_path / f"night {number}"
        nights.append(_run(spark, folder, streams, ends[: number + 1], earlier))
        earlier = folder
    whole = _run(spark, tmp_path / "whole", streams, ends)
    assert _rows(spark, tmp_path / "night 2") == _rows(spark, tmp_path / "whole")
    assert _rows(spark, tmp_path / "night 0")["orphans"] == _in_order(
        _orphans(_cut(streams, ends[0]), replay(_cut(streams, ends[0]), NOTARY, PARTITIONS))
    )
    decisions = [row for night in nights for row in night.decisions.orderBy("position").collect()]
    assert decisions == whole.decisions.orderBy("position").collect()
    assert [night.root for night in nights] == [writer.replayed.root(night.decided) for night in nights]
    assert nights[0].offset_hole is not None
    assert [sorted(night.violations.collect()) for night in nights[:2]] == [[], []]
    assert sorted(nights[2].violations.collect()) == sorted(whole.violations.collect())
    assert sorted([(row.type, row.position, row.offset) for row in whole.violations.collect()]) == planted
    assert sum(night.roots_compared for night in nights) == whole.roots_compared
    _hold(_rows(spark, tmp_path / "whole"), streams)
