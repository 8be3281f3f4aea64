"""What Spark says of whole logs: clean of honest ones, and of others exactly what is wrong with them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from ordering.log import ORDERING, Record
from ordering.records import Checkpoint, Entry, batch_key, decode
from spark_join.constants import OUTCOMES
from spark_join.decisions.checkpoints import Counts
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.exports.read import read_exports, refuse_behind_hole
from spark_join.join import Undecided
from spark_join.log.archive import read_archive
from spark_join.state.state import start
from spark_join.verify import Verified, verify
from tests.asking.party import Party, spend, state
from tests.checkers.honest import PARTITIONS, Honest
from tests.checkers.replay import Replayed, replay
from tests.joiner.history import NOTARY, History
from tests.simulation import simulate as simulation
from tests.simulation.premises import NOTARY as SIMULATED
from tests.simulation.premises import premises
from tests.simulation.world import World
from tests.spark.archived import archive
from tests.spark.collecting import brought_to_the_driver
from tests.spark.exported import Rows, edited, exported

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def _verified(
    spark: SparkSession,
    folder: Path,
    streams: dict[int, list[Record]],
    party: Party,
    notary: str = NOTARY,
    exports: Sequence[Path] = (),
    former: Sequence[Party] = (),
) -> Verified:
    """`former`: the party with keys that it had before."""
    log = read_archive(spark, archive(streams, folder / "archive", notary))
    compared = read_exports(spark, exports) if exports else None
    keys = [each.public_pem.decode() for each in (party, *former)]
    return verify(spark, log, start(spark), {party.name: keys if former else keys[0]}, Stages(spark, folder / "stages"), compared)


def _found(verified: Verified) -> list[tuple[str, int | None, int]]:
    rows = verified.violations.collect()
    return sorted([(row.type, row.position, row.offset) for row in rows], key=str)


def _hold(verified: Verified, replayed: Replayed) -> None:
    """Every decision is the replay's, member for member, and so is the root."""
    found = [
        {
            "transaction_id": bytes(row.id).hex(),
            "position": row.position,
            "outcome": "rejected" if row.outcome else "committed",
            "reason": OUTCOMES[row.outcome] if row.outcome else None,
            "conflicts": [
                {
                    "state": f"{bytes(met.state[:32]).hex()}:{int.from_bytes(met.state[32:], 'big')}",
                    "kind": ("input", "reference")[met.kind],
                    "consumed_by": bytes(met.consumed_by).hex(),
                }
                for met in row.conflicts
            ],
            "log_time": row.log_time_ms,
        }
        for row in verified.decisions.orderBy("position").collect()
    ]
    assert found == replayed.decisions
    assert verified.root == replayed.root(len(replayed.decisions))


def _honest(folder: Path) -> Honest:
    """What an honest notary may leave: conflicts, repetitions, a fill, an orphan, fences, checkpoints of several sizes."""
    notary = Honest(folder / "index")
    log = notary.log
    log.register("w1")
    log.register("w2")
    _checkpoint(log, 1)
    first = notary.send(spend(state("x"), state("y")))
    notary.send(spend(state("x"), state("fresh"), state("y"), content="double"), spend(state("z")), incarnation=2, partition=1)
    notary.send(spend(state("u"), references=[state("x"), state("z")]), spend(references=[state("nobody's")]), partition=2)
    _checkpoint(log, 2)
    notary.send(spend(state("v"), time_window={"from": None, "until": 5}), spend(state("v"), time_window={"from": 5, "until": None}))
    notary.append(2, [first], 1)
    notary.append(2, [notary.party.submission(spend(state("filled")))], 2, None)
    log.payload(1, 9, "orphan", partition=1)
    log.register("w2", "second life")
    log.fence(1, 99)
    _checkpoint(log, 2)  # its life has ended
    notary.send(spend(state("u")), spend(state("u"), content="double"), incarnation=3, partition=1)
    _checkpoint(log, 3)
    return notary


def _checkpoint(log: History, incarnation: int) -> None:
    replayed = replay(log.streams, NOTARY, PARTITIONS)
    size = len(replayed.decisions)
    log.ordering(Checkpoint(incarnation, size, replayed.root(size)))


def test_honest_log_is_clean(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is flagged, each decision is the replay's, and the root at every checkpoint was compared."""
    notary = _honest(tmp_path)
    replayed = replay(notary.log.streams, NOTARY, PARTITIONS)
    verified = _verified(spark, tmp_path, notary.log.streams, notary.party)
    assert _found(verified) == []
    _hold(verified, replayed)
    assert verified.outcomes == {"committed": 5, "input-conflict": 2, "reference-conflict": 1, "outside-time-window": 1}
    assert (verified.checkpoints, verified.undecided) == (Counts(4, 0, passed_over=1), None)


DECIDED = 9
"""In that log."""
Planted = list[tuple[str, int | None, int]]
"""(type, position, ordering offset) of each violation that was planted."""


def _wrong_root(notary: Honest) -> Planted:
    record = notary.log.ordering(Checkpoint(3, 4, bytes(32)))
    return [("root-mismatch", 4, record.offset)]


def _root_of_more_than_there_is(notary: Honest) -> Planted:
    record = notary.log.ordering(Checkpoint(3, 2**64 - 1, bytes(32)))
    return [("root-mismatch", None, record.offset)]


def _wrong_roots_that_count_for_nothing(notary: Honest) -> Planted:
    """Of a life that has ended and of one that has not begun: nobody's vote, and a lie all the same."""
    ended, nobody = (notary.log.ordering(Checkpoint(life, size, bytes(32))) for life, size in ((2, 3), (9, 2**40)))
    return [("root-mismatch", 3, ended.offset), ("root-mismatch", None, nobody.offset)]


def _forged_signature(notary: Honest) -> Planted:
    forger = Party(NOTARY)
    notary.append(3, [notary.party.submission(spend(state("good"))), forger.submission(spend(state("forged")))], 2)
    return [("bad-signature", DECIDED + 1, notary.log.streams[ORDERING][-1].offset)]


def _unknown_party(notary: Honest) -> Planted:
    notary.append(3, [Party(NOTARY, name="O=Nobody").submission(spend(state("nobody")), spend(state("nobody 2")))], 0)
    return [("unknown-party", DECIDED, notary.log.streams[ORDERING][-1].offset)]


def _forged_repetition(notary: Honest) -> Planted:
    """It asks what was decided at position 0, and something new; only the name of the first is told."""
    notary.append(3, [Party(NOTARY).submission(spend(state("x"), state("y")), spend(state("new")))], 2)
    return [("bad-signature", 0, notary.log.streams[ORDERING][-1].offset)]


def _other_content(notary: Honest) -> Planted:
    other = notary.party.submission(spend(state("other")))
    notary.append(3, [notary.party.submission(spend(state("this")))], 0, b"[" + other.body + b"]")
    return [("id-mismatch", None, notary.log.streams[ORDERING][-1].offset)]


def _forged_ids(notary: Honest) -> Planted:
    """A second writer's entry comes before the worker's own, which does not count then."""
    notary.append(3, [notary.party.submission(spend(state("overtaken")))], 0)
    own = notary.log.streams[ORDERING].pop()
    entry = decode(own.value)
    assert isinstance(entry, Entry)
    forged = notary.log.ordering(msgspec.structs.replace(entry, transaction_ids=(bytes(32),)))
    notary.log.ordering(entry)
    return [("id-mismatch", None, forged.offset)]


def _passed_over(notary: Honest) -> Planted:
    """A second writer takes a life's sequence further."""
    notary._sequences[3] += 1
    notary.append(3, [notary.party.submission(spend(state("far")))], 1)
    return [("sequence-gap", None, notary.log.streams[ORDERING][-1].offset)]


@pytest.mark.parametrize("plant", [_wrong_root, _root_of_more_than_there_is, _forged_signature, _unknown_party, _other_content])
def test_planted_violation_is_found(spark: SparkSession, tmp_path: Path, plant: Callable[[Honest], Planted]) -> None:
    """Each kind by itself: the right type, the right place, and nothing else."""
    notary = _honest(tmp_path)
    planted = plant(notary)
    assert _found(_verified(spark, tmp_path, notary.log.streams, notary.party)) == planted


def test_many_violations_are_all_found(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kinds in one log, and many of one: the driver gets no list of them."""
    notary = _honest(tmp_path)
    planted = [*_wrong_roots_that_count_for_nothing(notary), *_wrong_root(notary), *_root_of_more_than_there_is(notary)]
    planted += [*_unknown_party(notary), *_other_content(notary)]
    notary.append(3, [Party(NOTARY).submission(spend(state("forged")))], 2)
    planted.append(("bad-signature", DECIDED + 2, notary.log.streams[ORDERING][-1].offset))
    planted += _forged_repetition(notary)
    former = Party(NOTARY)  # the same party, before its key was replaced
    notary.append(3, [former.submission(spend(state("of another key")))], 2)
    for number in range(50):
        record = notary.log.ordering(Checkpoint(3, 2**63 + number if number % 2 else number % 7, bytes(32)))
        planted.append(("root-mismatch", None if number % 2 else number % 7, record.offset))
    with brought_to_the_driver(monkeypatch) as rows:
        verified = _verified(spark, tmp_path, notary.log.streams, notary.party, former=[former])
    assert max(rows) < 25
    assert _found(verified) == sorted(planted, key=str)
    ids = [each["transaction_id"] for each in replay(notary.log.streams, NOTARY, PARTITIONS).decisions]
    unsigned = verified.violations.where("type in ('bad-signature', 'unknown-party')").collect()
    assert sorted([(row.position, row.id) for row in unsigned]) == [(at, ids[at]) for at in (0, DECIDED, DECIDED + 2)]


def test_what_is_gone_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """A batch of a life that is passed over, an entry and a payload record that are gone from between others, a forged entry: each once."""
    notary = _honest(tmp_path)
    planted = [*_forged_ids(notary), *_passed_over(notary)]
    # Of an entry that is gone its life tells too.
    for label in ("gone", "after it"):
        notary.append(3, [notary.party.submission(spend(state(label)))], 2)
    entry = notary.log.streams[ORDERING][-2]
    # Nobody misses this one; but of two records with one key another would be the first.
    orphan, _ = [notary.log.payload(9, sequence, "orphan", partition=0) for sequence in (9, 10)]
    planted += [("sequence-gap", None, entry.offset), ("sequence-gap", None, None)]
    streams = {stream: [each for each in records if each not in (entry, orphan)] for stream, records in notary.log.streams.items()}
    verified = _verified(spark, tmp_path, streams, notary.party)
    assert _found(verified) == sorted(planted, key=str)
    told = [row.found for row in verified.violations.where("type = 'sequence-gap'").orderBy("offset").collect()]
    assert told == [
        f"offsets {orphan.offset} to {orphan.offset} of payload partition 0 are not there",
        "batch 4 of life 3 counts next",
        f"offsets {entry.offset} to {entry.offset} of the ordering topic are not there",
    ]


def test_lost_payload(spark: SparkSession, tmp_path: Path) -> None:
    """What a checkpoint has passed is lost. An index that has passed it too is compared up to there: it may have more, and never less."""
    notary = _honest(tmp_path)
    notary.append(3, [notary.party.submission(spend(state("lost")))], 1)
    _checkpoint(notary.log, 3)
    export = exported(notary.index.directory, tmp_path / "export", notary.read)
    lost = notary.log.streams[1].pop()
    assert lost.key == batch_key(3, 2)

    def shorten(said: dict[str, Any]) -> None:
        said.update(decisions=DECIDED - 1)
        said["tree"].update(size=DECIDED - 1, root=replay(notary.log.streams, NOTARY, PARTITIONS).root(DECIDED - 1).hex())

    def less(rows: Rows) -> None:
        rows[:] = [row for row in rows if row["position"] < DECIDED - 1]

    short = edited(export, tmp_path / "short", decisions=less, states=less, manifest=shorten)
    verified = _verified(spark, tmp_path, notary.log.streams, notary.party, exports=[export, short])
    missing = ("missing-payload", DECIDED, notary.log.streams[ORDERING][-2].offset)
    assert _found(verified) == [("index-mismatch", DECIDED - 1, None), missing]
    assert {row.source for row in verified.violations.where("type = 'index-mismatch'").collect()} == {str(short)}
    assert verified.exports == {str(export): DECIDED + 1, str(short): DECIDED - 1}


def test_hole_at_the_end_is_no_violation(spark: SparkSession, tmp_path: Path) -> None:
    """A payload that is still on its way: what is before it is verified, and where deciding stopped is told; after a day of silence too."""
    notary = _honest(tmp_path)
    notary.append(3, [notary.party.submission(spend(state("on its way")))], 1)
    notary.log.streams[1].pop()
    hole = notary.log.streams[ORDERING][-1]
    notary.log.register("w9", at=hole.append_time_ms + 86_400_000)
    notary.append(3, [notary.party.submission(spend(state("behind")), spend(state("it")))], 2)
    export = exported(notary.index.directory, tmp_path / "export", notary.read)
    verified = _verified(spark, tmp_path, notary.log.streams, notary.party, exports=[export])
    assert _found(verified) == []
    because = "no payload of batch (3, 2) is in payload partition 1"
    assert (verified.decided, verified.undecided) == (DECIDED, Undecided(hole.offset, 2, requests=3, because=because))
    further = edited(export, tmp_path / "further", manifest=lambda said: said["offsets_next"].update(ordering=hole.offset + 1))
    with pytest.raises(CouldNotVerify, match=rf"the payload of offset {hole.offset} is not in what was read here: read the log after"):
        refuse_behind_hole(read_exports(spark, [further]), hole.offset)


def test_hole_that_nobody_filled(spark: SparkSession, tmp_path: Path) -> None:
    """Behind which a life goes on for more than ten minutes: it would have filled it, so there was a payload, and it is lost.

    Roots of what is decided before it are compared wherever they stand; of more than that only who had the content knows the root.
    """
    notary = _honest(tmp_path)
    notary.append(3, [notary.party.submission(spend(state("lost")))], 1)
    notary.log.streams[1].pop()
    hole = notary.log.streams[ORDERING][-1]
    right = replay(notary.log.streams, NOTARY, PARTITIONS).root(DECIDED)
    told = [(3, 4, bytes(32), 1_000), (3, DECIDED, right, 2_000), (2, 0, bytes(32), 3_000), (2, DECIDED + 1, bytes(32), 4_000)]
    told.append((3, DECIDED, right, 700_000))
    records = [notary.log.ordering(Checkpoint(*said), at=hole.append_time_ms + later_ms) for *said, later_ms in told]
    verified = _verified(spark, tmp_path, notary.log.streams, notary.party)
    wrong = [("root-mismatch", 0, records[2].offset), ("root-mismatch", 4, records[0].offset)]
    assert _found(verified) == [("missing-payload", DECIDED, hole.offset), *wrong]
    assert verified.checkpoints == Counts(8, 1, passed_over=3)


@pytest.mark.parametrize("seed", [7, 16])
def test_log_of_a_simulation(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Real workers, crashes, lost and forged records: the replay's decisions, and violations only where somebody forged.

    Single appends are lost here, which no broker does. Gaps in a life would be told.
    """
    worlds: list[World] = []
    check = simulation.violations

    def keep(world: World) -> list[str]:
        worlds.append(world)
        return check(world)

    monkeypatch.setattr(simulation, "violations", keep)
    assert not simulation.simulate(seed).problems
    streams, partitions = worlds[0].cluster.streams, worlds[0].plan.partitions
    replayed = replay(streams, SIMULATED, partitions)
    verified = _verified(spark, tmp_path, streams, premises().party, SIMULATED)
    _hold(verified, replayed)
    told = replayed.checkpoints
    wrong = [each.offset for each in told if each.size > len(replayed.decisions) or each.root != replayed.root(each.size)]
    assert sorted([offset for type_, _, offset in _found(verified) if type_ == "root-mismatch"]) == wrong
    assert verified.checkpoints == Counts(len(told), 0, sum([not each.counted for each in told]))
    assert len(told) > verified.checkpoints.passed_over
    assert [offset for type_, _, offset in _found(verified) if type_ == "sequence-gap"] == [batch.offset for batch in replayed.passing()]
    assert {type_ for type_, _, _ in _found(verified)} <= {"root-mismatch", "id-mismatch", "sequence-gap"}
