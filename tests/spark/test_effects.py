"""Tests ordering records one by one: which take effect, the history, and foreign views. No Spark is needed."""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from notary.decision import Decision, Outcome
from ordering.records import SalvageDone, SalvageItems, Settle
from ordering.records import View as OrderingView
from spark_join.identity import Identity, identity_of
from spark_join.order.effects import AppliedRecord, Effects, carry_of
from spark_join.order.ordering_records import SCHEMA, Fields, read
from tests.checkers.random_logs import DAY_MS, random_log
from tests.checkers.records import View
from tests.checkers.replay import ORDERING, Applied, RecordsByPartition, Replayed, Seen, Why, replay
from tests.checkers.signed_log import T0, SignedLog
from tests.checkers.test_replay import worked_log
from tests.joiner.history import History
from tests.joiner.salvaged import Owner, item_of, named_again
from tests.model.real import salvaged_log

pytestmark = pytest.mark.seconds

VECTORS = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())["log"]


def _row(identity: Identity, offset: int, at_ms: int, value: bytes) -> Fields:
    fields = read(value)
    signed = identity.has_signed(fields["kind"], offset, value)
    head = {"offset": offset, "append_time_ms": at_ms, "signed": signed, "value_hash": sha256(value).digest(), "mark": None, "sealed": None}
    return dict.fromkeys(SCHEMA.names) | fields | head


def _identity(values: Sequence[bytes | None]) -> Identity:
    """Returns the identity of the log with these ordering records, with its rotations."""
    genesis, *others = values
    assert genesis is not None
    found = identity_of(genesis, read(genesis))
    assert found is not None
    for offset, value in enumerate(others, 1):
        fields = read(value)
        if fields["kind"] == "key" and found.has_signed("key", offset, value) and found.endorsed(fields):
            found = Identity(found.log_id, found.notary_name, found.owner_key, (*found.notary_keys, (offset + 1, fields["public_key"])))
    return found


def _rows(by_partition: RecordsByPartition) -> tuple[Identity, list[Fields]]:
    """Returns the ordering records of a log, with the marks of the entries."""
    identity = _identity([record.value for record in by_partition[ORDERING]])
    rows = []
    for record in by_partition[ORDERING]:
        row = _row(identity, record.offset, record.append_time_ms, record.value or b"")
        if row["kind"] == "entry":
            row["mark"], row["sealed"] = _mark(by_partition, identity, row)
        rows.append(row)
    return identity, rows


def _mark(by_partition: RecordsByPartition, identity: Identity, row: Fields) -> tuple[int | None, bool]:
    """Returns the mark of an entry's first payload or fill, and whether a seal comes before it."""
    key, partition = row["incarnation"] + row["sequence"], row["partition"]
    sealed = False
    for record in by_partition.get(partition, []):
        if record.key == key and record.value is not None:
            if sha256(record.value).digest() == row["payload_hash"]:
                return 1, sealed
            if identity.is_fill(record.value, row["offset"], partition, key, row["payload_hash"]):
                return 0, sealed
            sealed = sealed or identity.is_seal(record.value, row["offset"], partition, key, row["payload_hash"])
    return None, sealed


def _applied(log: RecordsByPartition | SignedLog, until: int | None = None) -> tuple[Effects, list[AppliedRecord]]:
    """Applies the first `until` ordering records of a log, or all; returns the state after them, and the outcome of each."""
    identity, rows = _rows(log.by_partition if isinstance(log, SignedLog) else log)
    effects = Effects(identity, b"")
    return effects, [effects.apply(row) for row in rows[:until]]


def test_vectors_in_two_runs() -> None:
    """For any cut of a log, the second run continues from the first one's carry, to the same history."""
    identity, rows = _rows(worked_log())
    for cut in range(len(rows) + 1):
        first = Effects(identity, b"")
        early = [first.apply(row) for row in rows[:cut]]
        second = Effects(identity, first.encoded())
        late = [second.apply(row) for row in rows[cut:]]
        complete = Effects(identity, b"")
        assert early + late == [complete.apply(row) for row in rows]
        assert second.encoded() == complete.encoded()


def _effect_of(applied: Applied) -> tuple[object, ...]:
    """Returns the replay's outcome of a record. A checkpoint never takes effect, so the replay has a reason for each."""
    view = {Seen.OWN: "own", Seen.FOREIGN: "foreign", None: None}.get(applied.view, "old")
    return (applied.why_not is None, applied.why_not in (None, Why.CHECKPOINT), view)


def _found(verdict: AppliedRecord) -> tuple[object, ...]:
    return (verdict.effect, verdict.skipped is None, verdict.view)


def _carried(effects: Effects) -> tuple[object, ...]:
    carry = effects.carry
    incarnations = [
        (each.nonce, each.name.decode(), int.from_bytes(each.reached, "big"), each.over, each.active_at_ms) for each in carry.incarnations
    ]
    return (carry.seen, effects.history, carry.partitions, carry.log_time_ms, carry.settled, incarnations)


def _expected(replayed: Replayed) -> tuple[object, ...]:
    incarnations = [(each.nonce, each.name, each.sequence_last, each.fenced, each.active_at) for each in replayed.incarnations]
    return (replayed.seen, replayed.history, replayed.partitions, replayed.log_time, replayed.settled, incarnations)


@pytest.mark.parametrize("seed", range(100))
def test_random_logs_have_the_effects_of_the_replay(seed: int) -> None:
    """For any log, each record's effect, skip reason, comparison and view are the replay's, up to the first hole."""
    log = random_log(seed, 25)
    replayed = log.replayed()
    identity, rows = _rows(log.by_partition)
    effects = Effects(identity, b"")
    applied = [effects.apply(row) for row in rows[: len(replayed.records)]]
    assert [_found(each) for each in applied] == [_effect_of(each) for each in replayed.records]
    assert _carried(effects) == _expected(replayed)
    later = [effects.apply(row) for row in rows[len(replayed.records) :]]
    if replayed.ended_by == "hole":
        assert effects.at_hole is not None
        assert later[0].effect
        assert _carried(Effects(identity, effects.at_hole)) == _expected(replayed)
        assert "foreign" not in [each.view for each in later if each.expected and "at most" in each.expected]


@pytest.mark.parametrize("first", range(1, 61, 20))
def test_salvages_have_the_effects_of_the_replay(first: int) -> None:
    """In the model's histories of disasters and salvages each record's effect, view and history are the replay's (R11)."""
    for seed in range(first, first + 20):
        by_partition = salvaged_log(seed, false_roots=False)
        replayed = replay(by_partition)
        effects, applied = _applied(by_partition, len(replayed.records))
        assert [_found(each) for each in applied] == [_effect_of(each) for each in replayed.records], seed
        assert _carried(effects) == _expected(replayed), seed
        assert (effects.carry.sealed, effects.carry.trimmed) == (replayed.sealed, replayed.trimmed), seed
        assert sum(each.salvaged or 0 for each in applied) == replayed.salvaged, seed


def test_a_sealed_entry_uses_up_its_sequence() -> None:
    """A later entry with the name of a sealed one is skipped, also if its payload was in the log before the seal; no time passes."""
    by_partition = named_again().by_partition
    replayed = replay(by_partition)
    effects, applied = _applied(by_partition)
    assert [_found(each) for each in applied] == [_effect_of(each) for each in replayed.records]
    assert _carried(effects) == _expected(replayed)
    assert (applied[3].is_sealed, applied[-1].skipped, effects.carry.log_time_ms) == (True, "sequence", 0)


def test_a_seal_is_no_content_in_format_1() -> None:
    """The entry has its payload, also behind the seal."""
    history = History(partitions=1)
    history.register()
    history.entry(1, 1, "first")
    history.seal(1, 1)
    history.payload(1, 1, "first")
    replayed = replay(history.by_partition)
    effects, applied = _applied(history.by_partition)
    assert _carried(effects) == _expected(replayed)
    assert (applied[-1].is_sealed, effects.carry.sealed, len(replayed.decisions)) == (False, False, 1)


def test_odd_salvages_have_the_effects_of_the_replay() -> None:
    """A key record drops the items before it; times of items may fall; a begin after a hole and a settle record without a key count not."""
    history = History()
    history.activate(2)
    history.register(version=2)
    owner = Owner(history)
    owner.key()
    begun = owner.begin()
    late, early = [item_of(Decision(at, bytes([at]) * 32, Outcome.COMMITTED, T0 - at)) for at in (0, 1)]
    owner.items(late)
    history.put(ORDERING, None, begun.value)
    owner.key("second")
    dropped = replay(history.by_partition)
    view, key = OrderingView(dropped.seen, dropped.history), history.key.public_key
    owner.append(SalvageItems(key, view, 1, (early,)))
    owner.append(SalvageDone(key, view, 1, dropped.root(0)))
    owner.begin()
    owner.items(late)
    owner.items(early)
    owner.done(late, early)
    history.register("w2", version=2)
    owner.append(Settle(owner.reader().joiner.history.view, b""))
    owner.key("third")
    history.entry(2, 1, "on its way")
    owner.begin()
    replayed = replay(history.by_partition)
    effects, applied = _applied(history.by_partition)
    complete = len(replayed.records)
    assert [_found(each) for each in applied[:complete]] == [_effect_of(each) for each in replayed.records]
    assert [each.skipped for each in applied if each.skipped] == ["view", "salvage", "salvage", "key", "view"]
    assert (replayed.salvaged, replayed.log_time, replayed.ended_by) == (2, T0, "hole")
    assert carry_of(effects.encoded()).log_time_ms == T0


def test_random_logs_meet_everything() -> None:
    """The random logs have every kind in effect, every reason to skip, every view, fills, and holes."""
    effects_met, skips, views, marks, ends = set(), set(), set(), set(), set()
    for seed in range(100):
        log = random_log(seed, 25)
        identity, rows = _rows(log.by_partition)
        effects = Effects(identity, b"")
        for row in rows:
            verdict = effects.apply(row)
            skips.add(verdict.skipped)
            views.add(verdict.view)
            if verdict.effect:
                effects_met.add(row["kind"])
                marks.add(row["mark"])
        ends.add(effects.at_hole is None)
    assert effects_met >= {"entry", "register", "fence", "genesis", "key", "partitions", "retire", "settle"}
    reasons = {"malformed", "signature", "incarnation", "sequence", "partition", "nonce", "version", "genesis", "key", "view"}
    assert skips == {None, *reasons}
    assert views == {None, "own", "foreign", "beyond"}
    assert (marks, ends) == ({None, 0, 1}, {True, False})


@pytest.mark.parametrize(("silent_ms", "effect"), [(DAY_MS, False), (DAY_MS + 1, True)])
def test_activation_waits_for_all_voters(silent_ms: int, effect: bool) -> None:
    """An incarnation that cannot read a version prevents its activation until it has been silent for more than a day, in the replay too."""
    log = SignedLog()
    log.register("old", reads=1, at=T0)
    log.register("new", reads=2, at=T0)
    log.batch(2, 1, "a", at=T0 + silent_ms)
    log.activate(2)
    assert _applied(log)[1][-1].effect == (log.replayed().records[-1].why_not is None) == effect


def test_retired_incarnation_has_no_say() -> None:
    """A retired incarnation is no voter from then on, and its name may register again."""
    log = SignedLog()
    log.register("old", reads=1)
    log.register("new", reads=2)
    log.activate(2)
    log.retire(1)
    log.activate(2)
    log.register("old", reads=2)
    assert [each.effect for each in _applied(log)[1]] == [True, True, True, False, True, True, True]


def test_views_that_are_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view within the kept history is compared, in a later run too; an older one shows nothing, and settles nothing."""
    monkeypatch.setattr("spark_join.order.effects.VIEWS_KEPT", 3)
    log = SignedLog()
    for name in "abcd":
        log.register(name)
    for seen in (3, 2):
        log.checkpoint(1, 0, view=log.view(seen))
        log.settle(log.view(seen))
    log.checkpoint(1, 0, view=View(3, bytes(32)))
    effects, found = _applied(log)
    assert [(each.view, each.effect) for each in found[5:]] == [
        ("own", False),
        ("own", True),
        ("old", False),
        ("old", False),
        ("old", False),
    ]
    log.checkpoint(1, 0, view=log.view(4))
    log.checkpoint(1, 0, view=View(5, bytes(32)))
    identity, rows = _rows(log.by_partition)
    later = Effects(identity, effects.encoded())
    assert [later.apply(row).view for row in rows[-2:]] == ["own", "foreign"]


def test_writers_of_foreign_views() -> None:
    """A foreign view is reported with its writer, for any record type, and with the number of records in effect there."""
    log = SignedLog()
    log.register("w1")
    foreign = View(1, bytes(32))
    log.register("w2", "second", view=foreign)
    log.register("w2", "second", view=foreign)  # a copy: its nonce is known
    log.fence(1, 99, writer=2, view=foreign)
    log.entry(7, 1, "a", view=foreign)  # of an incarnation that has not registered here
    log.settle(foreign)
    log.settle()
    _, found = _applied(log)
    assert [(each.foreign_writer and int.from_bytes(each.foreign_writer, "big"), each.seen_here) for each in found] == [
        (None, None),
        (None, None),
        (2, 2),
        (2, 3),
        (2, 3),
        (7, 3),
        (None, 3),
        (None, None),
    ]
    assert [each.view for each in found[2:]] == ["foreign"] * 5 + ["own"]


def test_settle_record_names_the_end_of_its_history() -> None:
    """A settle record in effect has the offset of the last record in its history; a later run does not know an offset of an earlier one."""
    log = SignedLog()
    log.register("w1")
    log.put(ORDERING, None, b"malformed")
    log.register("w2")
    log.register("w3")
    log.settle(log.view(3))
    assert [each.settled_last for each in _applied(log)[1]] == [None, None, None, None, None, 3]
    first, _ = _applied(log, 4)
    identity, rows = _rows(log.by_partition)
    later = Effects(identity, first.encoded())
    last = [later.apply(row) for row in rows[4:]][-1]
    assert (last.effect, last.settled_last) == (True, None)


def test_the_last_settle_record_is_carried() -> None:
    """The carry has the place of the last settle record that took effect, not that of a copy, nor that of one behind the hole."""
    log = SignedLog()
    log.register("w1")
    settled = log.settle()
    log.again(settled)
    carry = _applied(log)[0].carry
    assert (carry.settled, carry.settled_offset) == (2, settled.offset)
    view = log.view()
    log.entry(1, 1, "on its way")
    log.settle(view)
    effects, found = _applied(log)
    assert [each.effect for each in found][-2:] == [True, True]
    carry = carry_of(effects.encoded())
    assert (carry.settled, carry.settled_offset) == (2, settled.offset)
