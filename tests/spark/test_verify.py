"""Tests that Spark finds nothing wrong with honest logs, and exactly the violations of others."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.classic import dataframe

from ordering.log import ORDERING, Record
from spark_join.constants import OUTCOMES
from spark_join.errors import CouldNotVerify
from spark_join.exports import read_exports, refuse_behind_hole
from spark_join.order.join import Undecided
from spark_join.tree import Counts
from spark_join.verify import Skipped, Verified
from tests.checkers.records import Settle, View
from tests.checkers.replay import Replayed, Seen, Why, replay
from tests.checkers.signed_log import NOTARY, SignedLog, private_key
from tests.clients.party import Party, spend, state
from tests.simulation import simulate as simulation
from tests.simulation.deployment import deployment
from tests.simulation.simulation import Simulation
from tests.spark.conftest import verify_log
from tests.spark.exported import Rows, edited, export_of
from tests.spark.writing import Writer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def _verified(
    spark: SparkSession,
    folder: Path,
    by_partition: dict[int, list[Record]],
    party: Party,
    exports: Sequence[Path] = (),
    former: Sequence[Party] = (),
) -> Verified:
    """Verify a log. `former`: the party with the keys that it had before."""
    keys = [each.public_pem.decode() for each in (party, *former)]
    return verify_log(spark, folder, by_partition, {party.name: keys if former else keys[0]}, exports)


def _found(verified: Verified) -> list[tuple[str, int | None, int]]:
    rows = verified.violations.collect()
    return sorted([(row.type, row.position, row.offset) for row in rows], key=str)


def decisions_of(decisions: DataFrame) -> list[dict[str, Any]]:
    """Returns the decisions of `decide` as the contract's JSON objects, by position."""
    return [
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
        for row in decisions.orderBy("position").collect()
    ]


def _hold(verified: Verified, replayed: Replayed) -> None:
    """Check that every decision, member for member, and the root are the replay's."""
    assert decisions_of(verified.decisions) == replayed.decisions
    assert verified.root == replayed.root(len(replayed.decisions))


def honest() -> Writer:
    """Returns a log of honest workers: conflicts, repetitions, a fill, an orphan, fences, a rotation, checkpoints of several sizes."""
    writer = Writer()
    log, party = writer.log, writer.party
    log.register("w1")
    log.register("w2")
    writer.checkpoint(1)
    first = party.submission(spend(state("x"), state("y")))
    writer.append(1, [first])
    writer.batch(2, 1, spend(state("x"), state("fresh"), state("y"), content="double"), spend(state("z")))
    writer.batch(1, 2, spend(state("u"), references=[state("x"), state("z")]), spend(references=[state("nobody's")]))
    writer.checkpoint(2)
    writer.batch(1, 0, spend(state("v"), time_window={"from": None, "until": 5}), spend(state("v"), time_window={"from": 5, "until": None}))
    writer.append(2, [first], 1)
    writer.append(2, [party.submission(spend(state("filled")))], 2, fill=True)
    log.payload(1, 9, "orphan", partition=1)
    log.register("w2", "second incarnation")
    log.fence(1, 99)
    writer.checkpoint(2)  # its incarnation has ended
    log.rotate("the second key")
    writer.batch(3, 1, spend(state("u")), spend(state("u"), content="double"))
    writer.checkpoint(3)
    return writer


@pytest.fixture(scope="module")
def clean_log() -> Writer:
    """The honest log, written once; tests change copies of it."""
    return honest()


@pytest.fixture
def writer(clean_log: Writer) -> Writer:
    return deepcopy(clean_log)


@pytest.mark.nightly
def test_honest_log_is_clean(spark: SparkSession, tmp_path: Path, writer: Writer) -> None:
    """An honest log has no violation, each decision is the replay's, and the root of every checkpoint that counts was compared."""
    verified = _verified(spark, tmp_path, writer.log.by_partition, writer.party)
    assert _found(verified) == []
    _hold(verified, writer.replayed)
    assert verified.outcomes == {"committed": 5, "input-conflict": 2, "reference-conflict": 1, "outside-time-window": 1}
    assert (verified.checkpoints, verified.undecided, verified.notary_name) == (Counts(3, 0, skipped=1), None, NOTARY)
    records = writer.log.by_partition[ORDERING]
    assert verified.skipped == {
        "incarnation": Skipped(1, [record.value for record in records].index(_over(writer))),
        "sequence": Skipped(1, next(record.offset for record in records if record.value and record.value[1] == 3)),
    }


def _over(writer: Writer) -> bytes | None:
    """Returns the checkpoint of the incarnation that has ended."""
    return [record.value for record in writer.log.by_partition[ORDERING] if record.value and record.value[1] == 4][2]


DECIDED = 9
"""The number of decisions in that log"""
Planted = list[tuple[str, int | None, int | None]]
"""(type, position, ordering offset) of each planted violation."""


def _wrong_root(writer: Writer) -> Planted:
    return [("root-mismatch", 4, writer.checkpoint(3, 4, bytes(32)).offset)]


def _root_of_more_than_there_is(writer: Writer) -> Planted:
    return [("root-mismatch", None, writer.checkpoint(3, 2**64 - 1, bytes(32)).offset)]


def _root_before_its_decisions(writer: Writer) -> Planted:
    """Plant the right root of one decision more than the log has there, and then the batch with that decision."""
    sent, sequence = writer.party.submission(spend(state("soon"))), writer.sequence(3)
    value = writer.value([sent])

    def batch(log: SignedLog) -> None:
        log.payload(3, sequence, value=value)
        log.entry(3, sequence, value=value, ids=sent.ids, sent_at=-60_000)  # it moves no log time

    ahead = deepcopy(writer.log)
    batch(ahead)
    size = ahead.replayed().size
    early = writer.log.checkpoint(3, size, ahead.replayed().root(size))
    batch(writer.log)
    assert writer.replayed.leaves == ahead.replayed().leaves
    return [("root-mismatch", size, early.offset)]


def _unknown_party(writer: Writer) -> Planted:
    nobody = Party(NOTARY, name="O=Nobody").submission(spend(state("nobody")), spend(state("nobody 2")))
    return [("unknown-party", DECIDED, writer.append(3, [nobody]).offset)]


def _forged_repetition(writer: Writer) -> Planted:
    """Plant a forged submission that repeats the request at position 0 and adds a new one; only the first id is reported."""
    entry = writer.append(3, [Party(NOTARY).submission(spend(state("x"), state("y")), spend(state("new")))], 2)
    return [("bad-signature", 0, entry.offset)]


def _other_ids(writer: Writer) -> Planted:
    """Plant a batch that decides nothing, so nobody's signature is missing in it."""
    asked = Party(NOTARY).submission(spend(state("this")))
    return [("id-mismatch", None, writer.append(3, [asked], ids=["ab" * 32]).offset)]


def _unreadable(writer: Writer) -> Planted:
    return [("id-mismatch", None, writer.append(3, [], content=b"garbage").offset)]


def _other_history(writer: Writer) -> Planted:
    """Plant an entry that counts and a checkpoint that is not compared, both with a foreign view: one violation, for one incarnation."""
    foreign = View(writer.replayed.seen, bytes(32))
    entry, payload, _ = writer.send(3, 1, spend(state("of another history")), view=foreign)
    payload()
    first = entry()
    writer.log.checkpoint(3, 3, bytes(32), view=View(writer.replayed.seen + 1, bytes(32)))
    return [("foreign-view", None, first.offset)]


def _passed_over(writer: Writer) -> Planted:
    """Plant a batch of a worker that leaves out a sequence."""
    writer.sequence(3)
    return [("sequence-gap", None, writer.batch(3, 1, spend(state("far"))).offset)]


def _without(by_partition: dict[int, list[Record]], *gone: Record) -> dict[int, list[Record]]:
    return {partition: [each for each in records if each not in gone] for partition, records in by_partition.items()}


@pytest.mark.usefixtures("as_large")
def test_many_violations_are_all_found(spark: SparkSession, tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One log with violations of all types, and many of one, is reported completely: the driver gets no list of them.

    Decisions are the replay's up to a hole that a view has passed. Before it a batch is skipped, and an entry and a payload record are
    missing from between others: the writer after the missing entry had another history.
    """
    planted = [*_wrong_root(writer), *_root_of_more_than_there_is(writer), *_unknown_party(writer), *_other_ids(writer)]
    planted += [*_unreadable(writer), *_other_history(writer)]
    forged = writer.append(3, [writer.party.submission(spend(state("good"))), Party(NOTARY).submission(spend(state("forged")))], 2)
    planted.append(("bad-signature", DECIDED + 4, forged.offset))
    planted += [*_forged_repetition(writer), *_root_before_its_decisions(writer)]
    former = Party(NOTARY)  # the same party, with its former key
    writer.batch(3, 2, spend(state("of another key")), party=former)
    view = writer.log.view()
    for number in range(50):
        size = 2**63 + number if number % 2 else number % 7
        record = writer.log.checkpoint(3, size, bytes(32), view=view)
        planted.append(("root-mismatch", None if number % 2 else size, record.offset))
    log, ids = writer.log, [each["transaction_id"] for each in writer.replayed.decisions]
    passed_over = _passed_over(writer)
    log.register("w4")
    entry, after = (writer.batch(4, 2, spend(state(label))) for label in ("gone", "after it"))
    orphan, _ = [log.payload(9, sequence, "orphan", partition=0) for sequence in (9, 10)]
    hole = writer.batch(4, 1, spend(state("lost")))
    passed = writer.checkpoint(4)
    by_partition = _without(log.by_partition, entry, orphan, log.by_partition[1][-1])
    replayed = replay(by_partition)
    planted += [*passed_over, ("sequence-gap", None, entry.offset), ("sequence-gap", None, None), ("foreign-view", None, after.offset)]
    planted.append(("missing-payload", len(replayed.decisions), hole.offset))
    brought: list[int] = []
    collect = dataframe.DataFrame.collect

    def counted(frame: dataframe.DataFrame) -> list[Row]:
        rows = collect(frame)
        brought.append(len(rows))
        return rows

    with monkeypatch.context() as patched:
        patched.setattr(dataframe.DataFrame, "collect", counted)
        verified = _verified(spark, tmp_path, by_partition, writer.party, former=[former])
    assert max(brought) < 25, "what the driver gets does not grow with the log"
    assert _found(verified) == sorted(planted, key=str)
    _hold(verified, replayed)
    assert replayed.ended_by == "hole"
    unsigned = verified.violations.where("type in ('bad-signature', 'unknown-party')").collect()
    assert sorted([(row.position, row.id) for row in unsigned]) == [(at, ids[at]) for at in (0, DECIDED, DECIDED + 4)]
    reported = [row.found for row in verified.violations.where("type = 'sequence-gap'").orderBy("offset").collect()]
    assert reported == [
        f"offsets {orphan.offset} to {orphan.offset} of payload partition 0 are not there",
        "batch 11 of incarnation 3 counts next",
        f"offsets {entry.offset} to {entry.offset} of the ordering topic are not there",
    ]
    other, foreign = verified.violations.where("type = 'foreign-view'").orderBy("offset").collect()
    assert foreign.expected == f"a view of at most {log.replayed().seen - 3} records; the last that agreed is at offset {entry.offset - 1}"
    assert (other.records, foreign.offset_last) == (2, hole.offset)
    (lost,) = verified.violations.where("type = 'missing-payload'").collect()
    assert f"and the writer of ordering record {passed.offset} had its content" in lost.found


@pytest.mark.nightly
def test_records_without_a_good_signature(spark: SparkSession, tmp_path: Path, writer: Writer) -> None:
    """Records by a writer without the key change nothing: they are counted, with the place of the first, and are no violation."""
    log, forger = writer.log, private_key("forger")
    before = writer.replayed
    first = log.write(5, b"\xff\xff", by=forger)
    log.entry(3, 2, "forged", by=forger)
    log.entry(3, 2, "forged", by=private_key("notary"))  # with the former key
    log.payload(3, 2, "forged")
    log.put(1, log.by_partition[1][-1].key, None)
    log.write(4, bytes(88), by=forger)
    garbage = log.put(ORDERING, None, b"garbage")
    verified = _verified(spark, tmp_path, log.by_partition, writer.party)
    assert _found(verified) == []
    _hold(verified, before)
    assert verified.skipped["signature"] == Skipped(4, first.offset)
    assert verified.skipped["malformed"] == Skipped(1, garbage.offset)
    assert verified.checkpoints == Counts(3, 0, skipped=2)


@pytest.mark.nightly
def test_swapped_records_are_found(spark: SparkSession, tmp_path: Path, writer: Writer) -> None:
    """Two entries that were swapped are found: all offsets are there, and the next view behind them is foreign."""
    one, other = (writer.batch(3, partition, spend(state("swapped"), content=str(partition))) for partition in (0, 1))
    after = writer.batch(3, 2, spend(state("after")))
    by_partition = writer.log.by_partition
    by_partition[ORDERING][one.offset] = Record(ORDERING, one.offset, one.append_time_ms, None, other.value)
    by_partition[ORDERING][other.offset] = Record(ORDERING, other.offset, other.append_time_ms, None, one.value)
    verified = _verified(spark, tmp_path, by_partition, writer.party)
    assert {type_ for type_, *_ in _found(verified)} == {"foreign-view", "sequence-gap"}
    (foreign,) = verified.violations.where("type = 'foreign-view'").collect()
    assert (foreign.offset, foreign.offset_last) == (one.offset, after.offset)


def lose_an_entry(writer: Writer) -> int:
    """Remove a record from the log that two active incarnations know; returns the log end offset at that time."""
    log = writer.log
    log.register("w4", "third incarnation")
    lost = writer.batch(3, 0, spend(state("lost")))
    for number in range(3):
        writer.checkpoint(3)
        writer.batch(4, 1, spend(state(f"after the loss {number}")))
    rest = [record for record in log.by_partition[ORDERING] if record.offset != lost.offset]
    # As if the tail was lost and grew again: no offset is missing.
    log.by_partition[ORDERING] = [Record(ORDERING, at, each.append_time_ms, None, each.value) for at, each in enumerate(rest)]
    return len(rest)


@pytest.mark.nightly
def test_one_loss_is_a_violation_for_each_writer(spark: SparkSession, tmp_path: Path, writer: Writer) -> None:
    """Every record behind a loss has a foreign view: one row per incarnation has the first place, the last one, and their number."""
    end = lose_an_entry(writer)
    verified = _verified(spark, tmp_path, writer.log.by_partition, writer.party)
    rows = verified.violations.where("type = 'foreign-view'").orderBy("offset").collect()
    assert [(row.offset, row.offset_last, row.records) for row in rows] == [(end - 6, end - 2, 3), (end - 5, end - 1, 3)]
    assert [row.found.split("; ")[1] for row in rows] == [
        f"incarnation 3 wrote 3 such records, the last at offset {end - 2}",
        f"incarnation 4 wrote 3 such records, the last at offset {end - 1}",
    ]
    assert {row.expected.split("; ")[1] for row in rows} == {f"the last that agreed is at offset {end - 7}"}
    assert verified.settled.isEmpty()


@pytest.mark.nightly
def test_what_the_owner_settled_is_no_violation(spark: SparkSession, tmp_path: Path, writer: Writer) -> None:
    """Foreign views before a settle record whose history covers their places are settled; those after it are violations."""
    end, log = lose_an_entry(writer), writer.log
    log.settle()
    verified = _verified(spark, tmp_path / "settled", log.by_partition, writer.party)
    assert _found(verified) == []
    rows = verified.settled.orderBy("offset").collect()
    assert [(row.offset, row.offset_last, row.records) for row in rows] == [(end - 6, end - 2, 3), (end - 5, end - 1, 3)]
    late = log.checkpoint(4, 3, bytes(32), view=View(1, bytes(32)))
    verified = _verified(spark, tmp_path / "later", log.by_partition, writer.party)
    assert _found(verified) == [("foreign-view", None, late.offset)]
    assert [row.offset for row in verified.settled.orderBy("offset").collect()] == [end - 6, end - 5]


@pytest.mark.nightly
def test_other_append_time_is_found(spark: SparkSession, tmp_path: Path, writer: Writer) -> None:
    """A copy of a log without the original append times has another history."""
    at, record = next((at, each) for at, each in enumerate(writer.log.by_partition[ORDERING]) if each.value and each.value[1] == 1)
    changed = Record(ORDERING, record.offset, record.append_time_ms + 1, None, record.value)
    writer.log.by_partition[ORDERING][at] = changed
    found = _found(_verified(spark, tmp_path, writer.log.by_partition, writer.party))
    assert min([offset for _, _, offset in found if offset is not None]) == record.offset + 1
    assert {type_ for type_, *_ in found} == {"foreign-view"}


@pytest.mark.nightly
def test_a_passed_hole_is_a_loss(spark: SparkSession, tmp_path: Path, writer: Writer) -> None:
    """A hole that a view has passed is a loss. An index that has passed it too is compared up to there: it may have more, never less."""
    entry = writer.batch(3, 1, spend(state("lost")))
    writer.checkpoint(3)
    export = export_of(writer.replayed, tmp_path / "export", entry.offset + 2)
    writer.log.by_partition[1].pop()

    def shorten(written: dict[str, Any]) -> None:
        written.update(decisions=DECIDED - 1)
        written["tree"].update(size=DECIDED - 1, root=writer.replayed.root(DECIDED - 1).hex())

    def less(rows: Rows) -> None:
        rows[:] = [row for row in rows if row["position"] < DECIDED - 1]

    short = edited(export, tmp_path / "short", decisions=less, states=less, manifest=shorten)
    verified = _verified(spark, tmp_path, writer.log.by_partition, writer.party, exports=[export, short])
    assert _found(verified) == [("index-mismatch", DECIDED - 1, None), ("missing-payload", DECIDED, entry.offset)]
    assert {row.source for row in verified.violations.where("type = 'index-mismatch'").collect()} == {str(short)}
    assert verified.exports == {str(export): DECIDED + 1, str(short): DECIDED - 1}
    assert verified.checkpoints == Counts(3, 1, skipped=1)


@pytest.mark.nightly
def test_hole_at_the_end_is_no_violation(spark: SparkSession, tmp_path: Path, writer: Writer) -> None:
    """A payload that is still in flight is no violation: the log before it is verified, and the place where deciding stopped is reported.

    Roots of the decisions before it are compared wherever their checkpoints are, if their views cover only earlier records.
    """
    hole = writer.batch(3, 1, spend(state("on its way")))
    writer.log.by_partition[1].pop()
    writer.log.register("w9", at=hole.append_time_ms + 86_400_000)
    writer.batch(3, 2, spend(state("behind")), spend(state("it")))
    writer.checkpoint(3, DECIDED)
    wrong = writer.checkpoint(3, 4, bytes(32))
    export = export_of(writer.replayed, tmp_path / "export", hole.offset)
    verified = _verified(spark, tmp_path, writer.log.by_partition, writer.party, exports=[export])
    assert _found(verified) == [("root-mismatch", 4, wrong.offset)]
    because = "no payload of batch (3, 2) is in payload partition 1"
    assert (verified.decided, verified.undecided) == (DECIDED, Undecided(hole.offset, 2, requests=3, because=because))
    assert verified.checkpoints == Counts(5, 0, skipped=1)
    further = edited(export, tmp_path / "further", manifest=lambda written: written["offsets_next"].update(ordering=hole.offset + 1))
    with pytest.raises(CouldNotVerify, match=rf"the payload of offset {hole.offset} is not in what was read here: read the log after"):
        refuse_behind_hole(read_exports(spark, [further]), hole.offset)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [13, 48])
def test_log_of_a_simulation(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Real workers, crashes, and lost and forged records: the decisions are the replay's, and so are the violations.

    Single appends are lost here, which no broker does. Gaps in an incarnation are reported then.
    """
    simulations: list[Simulation] = []
    check = simulation.violations

    def keep(simulation: Simulation) -> list[str]:
        simulations.append(simulation)
        return check(simulation)

    monkeypatch.setattr(simulation, "violations", keep)
    assert not simulation.simulate(seed).problems
    by_partition = simulations[0].cluster.by_partition
    replayed = replay(by_partition)
    verified = _verified(spark, tmp_path, by_partition, deployment().party)
    _hold(verified, replayed)
    found = _found(verified)
    compared = [each for each in replayed.checkpoints if each.counted]
    wrong = [each.offset for each in compared if each.size > len(replayed.decisions) or each.root != replayed.root(each.size)]
    assert sorted([offset for type_, _, offset in found if type_ == "root-mismatch"]) == wrong
    foreign = [each.offset for each in replayed.records if each.view == Seen.FOREIGN]
    settled = verified.settled.collect()
    returned = [*verified.violations.where("type = 'foreign-view'").collect(), *settled]
    assert sum(each.records for each in returned) == len(foreign)
    assert sorted({*[each.offset for each in returned], *[each.offset_last for each in returned]} - set(foreign)) == []
    assert min([each.offset for each in returned], default=None) == min(foreign, default=None)
    assert max([each.offset_last for each in returned], default=None) == max(foreign, default=None)
    owner = [each.offset for each in replayed.records if isinstance(each.record, Settle)]
    assert all(each.offset_last < max(owner, default=-1) for each in settled), "only what lies before a settle record is settled"
    assert verified.checkpoints.compared == len(compared) > 0
    assert [offset for type_, _, offset in found if type_ == "sequence-gap"] == [batch.offset for batch in replayed.passing()]
    assert {type_ for type_, _, _ in found} <= {"root-mismatch", "foreign-view", "id-mismatch", "sequence-gap"}
    reasons = {"malformed": Why.MALFORMED, "signature": Why.BAD_SIGNATURE}
    skipped = {reason: sum([each.why_not == why for each in replayed.records]) for reason, why in reasons.items()}
    assert {reason: verified.skipped[reason].records for reason in reasons if reason in verified.skipped} == {
        reason: count for reason, count in skipped.items() if count
    }
