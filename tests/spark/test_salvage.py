"""Spark decides logs with salvages as workers and the replay do (R11); it reports what an owner restores wrongly."""

import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from notary.decision import Conflict, Decision, Kind, Outcome
from ordering.log import ORDERING, Record
from ordering.records import Entry, Trim, View, batch_key
from ordering.salvage import Decided, Hashed, Lost
from payload import decode_submission, encode_batch
from spark_join.engine.stages import Stages
from spark_join.log import ORDERING as ORDERING_TOPIC
from spark_join.log.archive import read_archive
from spark_join.state import AppliedState, rest_of, start
from spark_join.verify import Verified, verify
from tests.checkers.replay import RecordsByPartition, Replayed, replay
from tests.joiner.history import NOTARY, T0, History
from tests.joiner.salvaged import Owner, SalvageReader, item_of
from tests.model.real import salvaged_log
from tests.spark.archived import archive
from tests.spark.broker import Broker
from tests.spark.test_verify import decisions_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def _history() -> History:
    """Returns a log of format version 2 with one incarnation."""
    history = History()
    history.activate(2)
    history.register(version=2)
    return history


def _verified(spark: SparkSession, folder: Path, by_partition: RecordsByPartition, state: AppliedState | None = None) -> Verified:
    log = read_archive(spark, archive(by_partition, folder / "archive"))
    state = state or start(spark)
    return verify(spark, rest_of(log, state), state, None, Stages(spark, folder / "stages"))


def _hold(found: Verified, replayed: Replayed, salvaged: int) -> None:
    """Check decisions, positions and root against the replay; no more is wrong than what a disaster leaves in a log."""
    assert (found.decided, found.root) == (replayed.size, replayed.root(replayed.size))
    assert sum(found.salvaged.values()) == salvaged
    expected = {decision["position"]: decision for decision in replayed.decisions}
    for decision in decisions_of(found.decisions):
        assert decision == expected[decision["position"]]
    violations = found.violations.collect()
    assert {row.type for row in violations} <= {"foreign-view", "sequence-gap", "missing-payload", "root-mismatch"}
    # The model's owner puts records with one thing wrong before the true ones: a root of zeros is one. Workers skip it.
    assert {row.found for row in violations if row.type == "root-mismatch"} <= {bytes(32).hex()}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [11, 72, 86])
def test_spark_decides_histories_of_disasters_as_the_replay(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Spark has the replay's decisions and root for the model's histories, with items of all forms, seals, trims, settles."""
    by_partition = salvaged_log(seed)
    replayed = replay(by_partition)
    _hold(_verified(spark, tmp_path, by_partition), replayed, replayed.salvaged)


def _clean() -> tuple[RecordsByPartition, RecordsByPartition]:
    """Returns a log that lost its end and was salvaged, without a trace of another history; and the same in the middle of the salvage."""
    history = _history()
    history.payload(1, 1, "a", "b")
    history.entry(1, 1, "a", "b")
    owner = Owner(history)
    first = owner.reader().item(0)
    history.cut({ORDERING: 3, 0: 0})
    owner.key()
    owner.begin()
    owner.items(first)
    middle = {partition: list(records) for partition, records in history.by_partition.items()}
    owner.items(Hashed(bytes(32)), Lost())
    owner.done(first, Hashed(bytes(32)), Lost())
    history.register("w2", version=2)
    history.payload(2, 1, "a", "c")
    history.entry(2, 1, "a", "c")
    return middle, history.by_partition


@pytest.mark.nightly
def test_a_night_in_the_middle_of_a_salvage(spark: SparkSession, tmp_path: Path) -> None:
    """A run that ends between the begin and the done of a salvage keeps a state before the begin; the next run restores all items."""
    middle, by_partition = _clean()
    early = _verified(spark, tmp_path / "monday", middle)
    _hold(early, replay(middle), 0)
    kept = early.after()
    assert kept.offsets_next[ORDERING_TOPIC] == 4
    late = _verified(spark, tmp_path / "tuesday", by_partition, kept)
    _hold(late, replay(by_partition), 3)
    assert late.violations.isEmpty()
    assert [decision["position"] for decision in decisions_of(late.decisions)] == [3]


@pytest.mark.nightly
def test_a_begin_at_another_position_seals_the_log(spark: SparkSession, tmp_path: Path) -> None:
    """No record of a worker counts behind it, for a reader without a tree too, until another salvage is done. It is reported."""
    history = _history()
    history.payload(1, 1, "a", "b")
    history.entry(1, 1, "a", "b")
    owner = Owner(history)
    owner.key()
    owner.begin(position=7)
    owner.items(Lost(), first=2)
    history.payload(1, 2, "c")
    history.entry(1, 2, "c")
    Owner(history, "another").salvage(Hashed(bytes(32)))
    history.register("w2", version=2)
    history.payload(2, 1, "c")
    history.entry(2, 1, "c")
    replayed = replay(history.by_partition)
    assert (replayed.size, SalvageReader(history).read().index.position_next) == (4, 4)
    found = _verified(spark, tmp_path, history.by_partition)
    assert (found.decided, found.root, found.salvaged["hashes"]) == (4, replayed.root(4), 1)
    assert [(row.type, row.found, row.expected) for row in found.violations.collect()] == [("salvage-mismatch", "position 7", "2")]


@pytest.mark.nightly
def test_offsets_without_records_before_a_failover(spark: SparkSession, tmp_path: Path) -> None:
    """Missing offsets before the last `done`, such as the markers of transactions leave, are no violation; those behind it are."""
    history = _history()

    def batch(incarnation: int, sequence: int, label: str) -> list[Record]:
        history.payload(incarnation, sequence, label, partition=0)
        history.entry(incarnation, sequence, label, partition=0)
        return [history.put(ORDERING, None, b"a marker"), history.put(0, None, b"a marker"), history.put(1, None, b"a marker")]

    gone = batch(1, 1, "a")
    Owner(history).salvage()
    history.register("w2", version=2)
    late = batch(2, 1, "b")
    batch(2, 2, "c")
    replayed = replay(history.by_partition)
    by_partition = {
        partition: [each for each in records if each not in (*gone, *late)] for partition, records in history.by_partition.items()
    }
    found = _verified(spark, tmp_path, by_partition)
    assert (found.decided, found.root, found.gaps_settled) == (3, replayed.root(3), 3)
    assert sorted(row.found for row in found.violations.collect()) == [
        f"offsets {late[0].offset} to {late[0].offset} of the ordering topic are not there",
        f"offsets {late[1].offset} to {late[1].offset} of payload partition 0 are not there",
    ]


@pytest.mark.nightly
@pytest.mark.kafka
def test_nights_of_a_salvaged_log(
    kafka_broker: Broker, kafka_prefix: str, tmp_path: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """A salvaged range is restored into a cluster and archived again; each night, in one session, goes on from the one before."""
    _, by_partition = _clean()
    where = ["--bootstrap", kafka_broker.bootstrap, "--prefix", kafka_prefix]
    assert command("restore", *where, "--archive", archive(by_partition, tmp_path / "given")) == 0
    nights = ["nightly", *where, "--archive", tmp_path / "archive", "--reports", tmp_path / "reports"]
    assert command(*nights) == 0
    (monday,) = (tmp_path / "reports").iterdir()
    report = json.loads((monday / "report.json").read_text())
    assert (report["decisions"], report["salvaged"]) == (4, {"decisions": 1, "hashes": 1, "lost": 1})
    assert report["root"] == replay(by_partition).root(4).hex()
    printed, _ = capsys.readouterr()
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [(line.get("range"), line.get("decisions")) for line in lines[-2:]] == [(1, None), (None, 4)]
    assert command(*nights) == 0
    (tuesday,) = [folder for folder in (tmp_path / "reports").iterdir() if folder != monday]
    report = json.loads((tuesday / "report.json").read_text())
    assert (report["decisions"], report["continued_from"]["report"]) == (4, str(monday / "report.json"))
    assert report["state_sha256"] is not None


def _request(label: str, *inputs: str, references: Sequence[str] = ()) -> tuple[bytes, bytes]:
    """Returns the id of a transaction, and the payload value of a batch with it alone; a state is the name of its transaction."""
    states = {
        name: [f"{sha256(each.encode()).hexdigest()}:0" for each in some] for name, some in (("inputs", inputs), ("references", references))
    }
    asked = {**{name: some for name, some in states.items() if some}, "content_hash": sha256(label.encode()).hexdigest()}
    signed = decode_submission(json.dumps({"party": "O=A", "signature": "", "requests": [asked]}).encode(), NOTARY)
    return signed.requests[0].transaction_id, encode_batch([signed.encoded])


def _cited(position: int, state: str, by: bytes) -> Decided:
    """Returns the item of a rejection for that state, which the transaction with the id `by` has consumed."""
    conflict = Conflict(sha256(state.encode()).digest() + bytes(4), Kind.INPUT, sha256(by).digest())
    return item_of(Decision(position, sha256(b"%d" % position).digest(), Outcome.INPUT_CONFLICT, 5, (conflict,)))


def _late_reservations() -> tuple[RecordsByPartition, History]:
    """Returns the first part of a log, and the log. It has salvages in a row that declare positions lost and reserve states,
    copies of their records, and late requests.
    """
    history = _history()
    late, second, kept = _request("late", "s", "t"), _request("second", "s"), _request("kept", "k")
    sequence = 0

    def batch(request: tuple[bytes, bytes]) -> None:
        nonlocal sequence
        sequence += 1
        id_, value = request
        history.put(0, batch_key(1, sequence), value)
        history.ordering(Entry(1, sequence, history.view, T0, 0, sha256(value).digest(), (id_,)))

    batch(_request("first", "a"))
    owner = Owner(history)
    committed = Decision(3, kept[0], Outcome.COMMITTED, 5)
    owner.salvage(Lost(), _cited(2, "s", late[0]), item_of(committed, [sha256(b"k").digest() + bytes(4)]))
    for record in history.by_partition[ORDERING][-4:]:
        history.put(ORDERING, None, record.value)
    owner.key("dropped")
    owner.begin()
    owner.items(Hashed(bytes(32)))
    owner.name = "another"
    owner.salvage(Lost(), _cited(5, "s", late[0]), _cited(6, "t", late[0]))
    for request in (second, _request("refers", references=["t"]), kept):
        batch(request)
    early = {partition: list(records) for partition, records in history.by_partition.items()}
    for request in (_request("third", "s"), late, _request("after", "t"), second, kept, _request("other", "b", references=["a"])):
        batch(request)
    batch(_request("new", "n", "m"))
    return early, history


def _wrong_salvages(history: History) -> list[tuple[str, int | None, int | None]]:
    """Append salvages of an owner who makes mistakes; returns type, position and offset of their violations.

    Items repeat a transaction of this part of the log and one of an earlier part. Others spend states that an item, a request of this part
    or the earlier part spends. Another salvage begins at another position.
    """
    decided = replay(history.by_partition).size

    def item(at: int, id_: bytes, *inputs: str) -> Decided:
        states = [sha256(each.encode()).digest() + bytes(4) for each in inputs]
        return item_of(Decision(decided + at, id_, Outcome.COMMITTED, 5), states)

    again, once_more = item(0, _request("new", "n", "m")[0], "n"), item(1, _request("first", "a")[0], "a")
    thieves = [item(2 + at, sha256(state.encode()).digest(), state) for at, state in enumerate("nmk")]
    owner = Owner(history, "careless")
    owner.salvage(again, once_more, *thieves)
    done = history.by_partition[ORDERING][-1].offset
    found = [("salvage-mismatch", decided + at, done) for at in range(5)]
    owner.key("careless again")
    return [*found, ("salvage-mismatch", decided + 5, owner.begin(position=99).offset)]


@pytest.mark.parametrize("nights", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_late_transaction_gets_what_salvages_reserved(spark: SparkSession, tmp_path: Path, nights: int) -> None:
    """A state that two salvages show as consumed is free for one late transaction alone, in the next run too; copies do not count.

    In the next run an owner makes mistakes: each is reported.
    """
    early, history = _late_reservations()
    reader = SalvageReader(history).read()
    honest = replay(history.by_partition)
    assert (reader.index.position_next, reader.index.tree.root_with([])) == (honest.size, honest.root(honest.size))
    reasons = [decision["reason"] for decision in honest.decisions[-5:]]
    assert reasons == ["input-conflict", None, "input-conflict", "reference-conflict", None]
    wrong = _wrong_salvages(history)
    assert replay(history.by_partition).salvaged == honest.salvaged + 5
    state = None
    for name, log, expected in [("monday", early, []), ("tuesday", history.by_partition, wrong)][-nights:]:
        found = _verified(spark, tmp_path / name, log, state)
        decided = replay(log)
        assert (found.decided, found.root) == (decided.size, decided.root(decided.size))
        assert sorted([(row.type, row.position, row.offset) for row in found.violations.collect()]) == sorted(expected)
        state = found.after()


def _found(verified: Verified) -> list[tuple[str, int | None, str]]:
    """Returns type, offset and text of each violation."""
    return sorted([(row.type, row.offset, row.found) for row in verified.violations.collect()], key=str)


def _wrong_roots(history: History) -> list[tuple[str, int | None, str]]:
    """Append a right trim, and wrong roots in the `done` of a salvage and in a trim; returns the violations.

    Copies and forged records have no effect.
    """
    replayed = replay(history.by_partition)
    view = View(replayed.seen, replayed.history)
    history.owner(Trim(history.key.public_key, view, 1, replayed.root(1)))
    owner = Owner(history, "careless")
    owner.key()
    owner.begin()
    owner.items(Lost())
    done = owner.done(Lost(), root=bytes(32))
    trim = history.owner(Trim(history.key.public_key, view, 2, bytes(32)))
    assert done.value is not None
    for value in (trim.value, done.value[:-64] + bytes(64)):
        history.put(ORDERING, None, value)
    return [("root-mismatch", each.offset, bytes(32).hex()) for each in (done, trim)]


def test_skipped_sequences_and_wrong_roots(spark: SparkSession, tmp_path: Path) -> None:
    """A sealed entry counts: batches 2 to 4 of its incarnation are missing before it. A seal behind the payload seals nothing.

    An offset that is missing before a sealed entry explains no number that is skipped behind it. Roots in salvages and trims are compared.
    """
    history = _history()
    history.register("w2", version=2)
    history.payload(1, 1, "a")
    history.entry(1, 1, "a")
    history.seal(1, 1)
    sealed = history.entry(1, 5, "lost")
    history.seal(1, 5)
    history.payload(1, 5, "lost")  # too late
    Owner(history).salvage()
    marker = history.put(ORDERING, None, b"a marker")
    history.entry(2, 1, "lost too")
    history.seal(2, 1)
    Owner(history, "another").salvage()
    history.payload(2, 3, "c")
    entry = history.entry(2, 3, "c")
    wrong = _wrong_roots(history)
    by_partition = {each: [record for record in some if record is not marker] for each, some in history.by_partition.items()}
    verified = _verified(spark, tmp_path, by_partition)
    assert (verified.gaps_settled, verified.decided) == (1, 3)
    skipped = [(sealed.offset, "batch 5 of incarnation 1 counts next"), (entry.offset, "batch 3 of incarnation 2 counts next")]
    assert _found(verified) == sorted([*[("sequence-gap", *each) for each in skipped], *wrong], key=str)


def test_a_trim_and_an_activation_behind_a_hole(spark: SparkSession, tmp_path: Path) -> None:
    """The root of the trim is of more decisions than there are before the hole, so it is not compared.

    No reader comes to the activation: all before the hole is verified.
    """
    history = History()
    history.activate(2)
    history.register(version=3)
    history.payload(1, 1, "a")
    history.entry(1, 1, "a")
    view = replay(history.by_partition)
    history.entry(1, 2, "b")
    payload = history.payload(1, 2, "b")
    root = replay(history.by_partition).root(2)
    history.owner(Trim(history.key.public_key, View(view.seen, view.history), 2, root))
    assert replay(history.by_partition).trimmed == 2
    history.activate(3)
    early = {each: [record for record in some if record is not payload] for each, some in history.by_partition.items()}
    assert replay(early).ended_by == "hole"
    verified = _verified(spark, tmp_path, early)
    assert (_found(verified), verified.decided, verified.undecided is None) == ([], 1, False)
