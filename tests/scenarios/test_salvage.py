"""Tests a salvage in the readers (R11): the joiner with its index, on logs that lost their end."""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from joiner import Joiner, JoinerLimits
from joiner.applied import OWNER_NAME
from notary.decision import Conflict, Decision, Kind, Outcome
from notary.index.store import DECISIONS
from notary.tree import leaf_hash
from ordering.errors import Quarantined
from ordering.ids import StateRef
from ordering.log import ORDERING
from ordering.pieces import completed
from ordering.records import Settle, Trim, View
from ordering.salvage import Hashed, Item, Lost, lost_leaf
from tests.checkers.replay import replay
from tests.joiner.compared import restored
from tests.joiner.history import History, requests, signing_key
from tests.joiner.salvaged import Owner, SalvageReader, item_of, named_again


def history_and_survivor(*, cut: bool = True) -> tuple[History, SalvageReader]:
    """Returns a log with format version 2 and the decisions a, b, c, d, and a survivor; the log has lost c and d."""
    history = History()
    history.register("w1", version=2)
    history.activate(2)
    for sequence, label in enumerate("abcd", 1):
        history.entry(1, sequence, label)
        history.payload(1, sequence, label)
    survivor = SalvageReader(history).read()
    assert survivor.index.position_next == 4
    if cut:
        history.cut({ORDERING: 5, 0: 2})
    return history, survivor


def state_of(label: str) -> StateRef:
    return requests(label)[0].inputs[0]


def worker_goes_on(history: History, *labels: str) -> SalvageReader:
    """Register a worker with the key in force, and let it send a batch; returns a reader."""
    history.register("w2", version=2)
    incarnation = max(state.incarnation for state in SalvageReader(history).read().joiner.incarnations.snapshot())
    history.entry(incarnation, 1, *labels)
    history.payload(incarnation, 1, *labels)
    return SalvageReader(history).read()


def test_salvaged_decisions_are_decided_as_before() -> None:
    """All rows, the root and log time are those of the survivor. Retries get the same decision, and no state is spent twice."""
    history, survivor = history_and_survivor()
    owner = Owner(history)
    owner.salvage(survivor.item(2), survivor.item(3))
    reader = SalvageReader(history).read()
    assert reader.index.contents() == survivor.index.contents()
    assert reader.index.tree.root_at(4) == survivor.index.tree.root_at(4)
    assert reader.joiner.log_time_ms == survivor.joiner.log_time_ms
    after = worker_goes_on(history, "c", "e")
    id_c, id_e = [request.transaction_id for request in requests("c", "e")]
    assert after.index.decision(id_c) == survivor.index.decision(id_c)
    assert after.index.position(id_e) == 4


def test_nothing_counts_before_done_and_no_worker_between() -> None:
    """Between begin and done no item is decided and no worker's record takes effect, whatever key signed it."""
    history, survivor = history_and_survivor()
    owner = Owner(history)
    owner.key()
    before = SalvageReader(history).read().all()
    owner.begin()
    history.register("w2", version=2)
    history.entry(1, 9, "x")
    history.payload(1, 9, "x")
    history.checkpoint(1, 2, view=View(99, bytes(32)))
    owner.items(survivor.item(2), survivor.item(3))
    history.fence(1, 2)
    reader = SalvageReader(history).read()
    assert reader.all()[0] == before[0]
    assert reader.joiner.incarnations.snapshot() == SalvageReader(history).read().joiner.incarnations.snapshot()
    assert [state.fenced for state in reader.joiner.incarnations.snapshot()] == [False]
    assert reader.anomalies.count("skipped") == 4
    assert reader.joiner.suspicions.open == {}
    owner.done(survivor.item(2), survivor.item(3))
    assert SalvageReader(history).read().index.contents() == survivor.index.contents()


def test_a_sealed_entry_decides_nothing_and_ends_the_workers_part() -> None:
    """A seal by the owner is the content of an entry whose content is lost. Its sequence is used up; nothing behind it counts."""
    history, survivor = history_and_survivor(cut=False)
    history.cut({0: 2})
    assert SalvageReader(history).read().joiner.hole is not None
    history.seal(1, 3, key=signing_key("thief"))
    assert SalvageReader(history).read().joiner.hole is not None
    history.seal(1, 3)
    reader = SalvageReader(history).read()
    assert (reader.joiner.hole, reader.index.position_next) == (None, 2)
    before, state = [each.joiner.incarnations.get(1) for each in (survivor, reader)]
    assert before is not None
    assert state is not None
    assert (state.sequence_last, state.fenced) == (3, False)
    assert state.active_at_ms < before.active_at_ms
    log_state = reader.joiner.log_state
    assert log_state is not None
    assert log_state.sealed
    last = reader.joiner.history.last
    assert last is not None
    assert last.offset == 5  # the entry of c; that of d behind it is skipped
    Owner(history).salvage(survivor.item(2), survivor.item(3))
    assert SalvageReader(history).read().index.contents() == survivor.index.contents()


def test_a_payload_before_the_seal_still_counts() -> None:
    """The first good record is the content (R3), also beside a seal."""
    history, survivor = history_and_survivor(cut=False)
    history.payload(1, 3, "c")
    history.seal(1, 3)
    assert SalvageReader(history).read().all() == survivor.all()


def test_a_seal_counts_under_the_key_in_force_that_it_names() -> None:
    """A seal that names another key of the notary is of another side of a salvage, and is no content for the same batch."""
    history, _ = history_and_survivor(cut=False)
    history.cut({0: 2})
    history.seal(1, 3, in_force=signing_key("the next salvage's"))
    assert SalvageReader(history).read().joiner.hole is not None
    history.seal(1, 3)
    assert SalvageReader(history).read().joiner.hole is None


class _OrderingFirst(SalvageReader):
    """A reader that reads no payload before the ordering topic has a hole."""

    def step(self, at_once: int) -> bool:
        complete, waits = self.history, self.joiner.hole is None and 0 not in self.joiner.read_next()
        if waits:
            self.history = History(partitions=0)
            self.history.by_partition = {ORDERING: complete.by_partition[ORDERING]}
        goes_on = super().step(at_once)
        self.history = complete
        return goes_on or waits


def test_a_sealed_entry_uses_up_its_sequence() -> None:
    """A reader that had the payload of a later entry with a sealed name before the seal, and one that dropped it at the hole, agree."""
    history = named_again()
    early, late = SalvageReader(history).read(), _OrderingFirst(history).read()
    assert early.all() == late.all() == late.restarted().read().all()
    assert (early.joiner.hole, late.joiner.hole, early.batches, early.anomalies.count("skipped")) == (None, None, [], 1)
    replayed = replay(history.by_partition)
    assert (replayed.ended_by, replayed.size, replayed.history) == ("end", 0, early.joiner.history.view.history)


def test_an_old_seal_does_not_stop_the_new_side() -> None:
    """A seal outlives its entry, or somebody copies it: on the new side a batch with the same name and payload is decided all the same."""
    history = History()
    history.activate(2)
    history.register("w1", version=2)
    history.entry(1, 1, "a")
    seal = history.seal(1, 1)
    history.cut({ORDERING: 2})
    Owner(history).salvage()
    history.register("w2", version=2)
    history.entry(1, 1, "a")
    history.put(0, seal.key, seal.value)
    assert SalvageReader(history).read().joiner.hole is not None
    history.payload(1, 1, "a")
    reader = SalvageReader(history).read()
    assert (reader.joiner.hole, reader.index.position_next) == (None, 1)
    assert reader.joiner.log_state is not None
    assert not reader.joiner.log_state.sealed


def test_a_settle_record_behind_a_sealed_entry_stops_nobody() -> None:
    """One payload partition has lost its end. A settle record behind the sealed entry is of the lost history, and is skipped unseen."""
    history, survivor = history_and_survivor(cut=False)
    history.settle(survivor.joiner.history.view)
    history.cut({0: 2})
    history.seal(1, 3)
    reader = SalvageReader(history).read()
    assert reader.joiner.log_state is not None
    assert (reader.joiner.log_state.sealed, reader.anomalies) == (True, ["skipped", "skipped"])  # the entry of d, and the settle record
    Owner(history).salvage(survivor.item(2), survivor.item(3))
    assert worker_goes_on(history, "e").index.position_next == 5


def test_a_lost_settle_record_that_comes_back_does_not_stop_the_new_side() -> None:
    """A copy of a settle record that the log has lost names the key of the old side, so it is skipped unseen."""
    history, survivor = history_and_survivor(cut=False)
    for number in range(8):  # more records than the new side has: the last settled number does not show that the record is old
        history.register(f"w{number}", version=2)
    lost = history.settle(survivor.read().joiner.history.view)
    history.cut({ORDERING: 5, 0: 2})
    Owner(history).salvage(survivor.item(2), survivor.item(3))
    history.put(ORDERING, None, lost.value)
    reader = worker_goes_on(history, "e")
    assert (reader.index.position_next, reader.joiner.suspicions.open) == (5, {})


def test_a_settle_record_names_the_key_in_force_from_format_version_2_on() -> None:
    """Before, it names none. Records of the other form, or with another key, are skipped, and their views are not compared."""
    history = History()
    history.register("w1", version=2)
    other, foreign = signing_key("another").public_key, View(2, bytes(32))
    history.owner(Settle(history.view, history.key.public_key))
    history.owner(Settle(history.view))
    reader = SalvageReader(history).read()
    assert reader.anomalies == ["malformed"]
    history.activate(2)
    for record in (Settle(foreign), Settle(reader.joiner.history.view), Settle(foreign, other), Settle(reader.joiner.history.view, other)):
        history.owner(record)
    seen = reader.read().joiner.history.view.seen
    assert reader.anomalies == ["malformed", *["skipped"] * 4]
    history.owner(Settle(reader.joiner.history.view, history.key.public_key))
    assert reader.read().joiner.history.view.seen == seen + 1


def test_a_seal_counts_from_format_version_2_on() -> None:
    """A seal before format version 2 is active is no content, as for a reader that does not know it."""
    history = History()
    history.register("w1", version=2)
    history.entry(1, 1, "a")
    history.seal(1, 1)
    history.activate(2)
    assert SalvageReader(history).read().joiner.hole is not None


WRONG: dict[str, Callable[[Owner, SalvageReader], Any]] = {
    "begin without a key": lambda owner, survivor: owner.begin(),
    "begin after another record": lambda owner, survivor: (owner.key(), owner.history.partitions(3), owner.begin()),
    "begin for another key": lambda owner, survivor: (owner.key(), owner.begin(key=bytes(32))),
    "begin for an older view": lambda owner, survivor: (owner.key(), owner.begin(view=View(1, owner.history.log_id))),
    "items without begin": lambda owner, survivor: (owner.key(), owner.items(survivor.item(2))),
    "done without begin": lambda owner, survivor: (owner.key(), owner.done()),
    "a second begin": lambda owner, survivor: (owner.key(), owner.begin(), owner.begin()),
    "items behind a gap": lambda owner, survivor: (owner.key(), owner.begin(), owner.items(survivor.item(3), first=3)),
    "items for another key": lambda owner, survivor: (owner.key(), owner.begin(), owner.items(survivor.item(2), key=bytes(32))),
    "done of another root": lambda owner, survivor: (owner.key(), owner.begin(), owner.items(Lost()), owner.done(Lost(), root=bytes(32))),
    "done of another size": lambda owner, survivor: (owner.key(), owner.begin(), owner.items(Lost()), owner.done(Lost(), Lost())),
    "done of an item that the log lost": lambda owner, survivor: (
        owner.key(),
        owner.begin(),
        owner.items(Lost()),
        owner.done(Hashed(bytes(32))),
    ),
    "done behind a begin of a lower position": lambda owner, survivor: (
        owner.key(),
        owner.begin(position=1),
        owner.items(Lost(), first=1),
        owner.done(Lost(), tree_size=2),
    ),
    "done for an older view": lambda owner, survivor: (owner.key(), owner.begin(), owner.done(view=View(1, owner.history.log_id))),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_step_out_of_place_takes_no_effect(what: str) -> None:
    """A step that breaks one condition is skipped, and a salvage with another key afterwards takes effect."""
    history, survivor = history_and_survivor()
    owner = Owner(history)
    WRONG[what](owner, survivor)
    last = history.by_partition[ORDERING].pop()
    before = SalvageReader(history).read()
    history.by_partition[ORDERING].append(last)
    reader = SalvageReader(history).read()
    assert reader.all() == before.all()
    assert reader.anomalies == [*before.anomalies, "skipped"]
    Owner(history, "another").salvage(survivor.item(2), survivor.item(3))
    assert SalvageReader(history).read().index.contents() == survivor.index.contents()


def test_an_index_with_another_number_of_decisions_answers_nothing_after_a_salvage() -> None:
    """It takes `begin` as all others do, and skips `done`. If it skipped `begin`, it would answer in a history of its own."""
    history = History()
    history.register("w1", version=2)
    history.activate(2)
    wrong = worker_goes_on(history, "a", "b")
    wrong.disk.write([(DECISIONS, requests("a")[0].transaction_id, None)])
    history.entry(2, 2, "a")
    history.payload(2, 2, "a")
    right = SalvageReader(history).read()
    assert (wrong.restarted().read().index.position_next, right.index.position_next) == (3, 2)
    Owner(history).salvage()
    worker_goes_on(history, "c")
    wrong, right = wrong.restarted().read(), right.read()
    assert (right.batches[-1], right.anomalies, right.joiner.suspicions.open) == ((3, 1), [], {})
    assert right.joiner.log_state is not None
    assert not right.joiner.log_state.sealed
    assert wrong.joiner.log_state is not None
    assert wrong.joiner.log_state.sealed
    assert (wrong.batches, wrong.anomalies) == ([], ["skipped"] * 3)  # `done`, and both records of the worker
    replayed = replay(history.by_partition)
    assert (replayed.seen, replayed.history) == (right.joiner.history.seen, right.joiner.history.view.history)


@pytest.mark.parametrize("position", [2**64 - 2, 2**64 - 1])
def test_no_position_of_an_owner_ends_the_readers(position: int) -> None:
    """`begin` takes effect at any position, so its items may have the last one; another salvage repairs the log."""
    history, survivor = history_and_survivor()
    owner = Owner(history)
    owner.key()
    owner.begin(position=position)
    owner.items(Lost(), first=position)
    reader = SalvageReader(history).read().restarted().read()
    assert reader.joiner.log_state is not None
    assert reader.joiner.log_state.salvage == (position, min(position + 1, 2**64 - 1))
    replayed = replay(history.by_partition)
    assert (replayed.seen, replayed.history) == (reader.joiner.history.seen, reader.joiner.history.view.history)
    Owner(history, "again").salvage(survivor.item(2))
    assert SalvageReader(history).read().index.position_next == 3


def test_a_step_that_a_forger_signed_takes_no_effect() -> None:
    """Only the owner's signature counts."""
    history, _ = history_and_survivor()
    owner = Owner(history)
    owner.key()
    before = SalvageReader(history).read()
    record = owner.begin()
    history.by_partition[ORDERING].pop()
    value = record.value or b""
    history.put(ORDERING, None, value[:-1] + bytes([value[-1] ^ 1]))
    reader = SalvageReader(history).read()
    assert reader.all() == before.all()
    assert reader.anomalies[-1] == "unsigned"


def test_a_foreign_view_in_a_salvage_record_is_evidence() -> None:
    """A salvage record for a history that this reader does not have makes it suspect its own; the done of a salvage here ends that."""
    history, survivor = history_and_survivor()
    owner = Owner(history)
    owner.key()
    owner.begin(view=View(99, bytes(32)))
    reader = SalvageReader(history).read()
    assert list(reader.joiner.suspicions.open) == ["the owner"]
    owner = Owner(history, "another")
    owner.salvage(survivor.item(2), survivor.item(3))
    assert SalvageReader(history).read().joiner.suspicions.open == {}


def test_a_copy_of_a_lost_attempt_is_no_evidence() -> None:
    """A record of a lost attempt names a key that is in force no more: it is skipped, and nobody is suspected."""
    history, survivor = history_and_survivor()
    owner = Owner(history, "first")
    owner.key()
    owner.begin()
    lost = owner.items(survivor.item(2)).value
    history.cut({ORDERING: 5})
    history.key = signing_key("notary")
    Owner(history, "second").salvage(survivor.item(2), survivor.item(3))
    before = SalvageReader(history).read()
    history.put(ORDERING, None, lost)
    reader = SalvageReader(history).read()
    assert reader.all() == before.all()


def test_a_key_record_closes_an_open_salvage() -> None:
    """A key record drops the items; the steps of the next attempt alone count."""
    history, survivor = history_and_survivor()
    owner = Owner(history)
    owner.key()
    owner.begin()
    owner.items(Lost(), Lost())
    owner.key("another")
    assert SalvageReader(history).read().joiner.snapshot().items == ()
    owner.begin()
    owner.items(survivor.item(2), survivor.item(3))
    owner.done(survivor.item(2), survivor.item(3))
    assert SalvageReader(history).read().index.contents() == survivor.index.contents()


def full() -> History:
    """Returns a log with a seal, two attempts, all forms of items, and a worker that continues."""
    history, survivor = history_and_survivor(cut=False)
    history.cut({0: 2})
    history.seal(1, 3)
    owner = Owner(history)
    owner.key()
    owner.begin()
    owner.items(survivor.item(2))
    owner.key("another")
    owner.begin()
    rejected = Decision(6, sha256(b"r").digest(), Outcome.INPUT_CONFLICT, 9_000_000, (Conflict(state_of("z"), Kind.INPUT, bytes(32)),))
    items: list[Item] = [survivor.item(2), Hashed(b"h" * 32), Lost(), Lost(), item_of(rejected)]
    owner.items(*items[:2])
    owner.items(*items[2:])
    owner.done(*items)
    worker_goes_on(history, "e", "z")
    return history


def test_a_restart_anywhere_changes_nothing() -> None:
    """A reader that restarts after any record, and one that reads in other steps, end with the same rows and history."""
    history = full()
    complete = SalvageReader(history).read()
    count = len(history.by_partition[ORDERING])
    assert complete.index.position_next == 9
    for at_once in (1, 2, 1_000):
        assert SalvageReader(history).read(at_once).all() == complete.all()
    for end in range(1, count):
        part = history.by_partition[ORDERING][end:]
        del history.by_partition[ORDERING][end:]
        goes_on, restarts = SalvageReader(history).read(), SalvageReader(history).read()
        history.by_partition[ORDERING] += part
        assert goes_on.read().all() == complete.all(), end
        assert restarts.restarted().read().all() == complete.all(), end


def test_a_joiner_restored_in_a_salvage_goes_on() -> None:
    """A snapshot between begin and done has all items."""
    history = full()
    history.cut({ORDERING: len(history.by_partition[ORDERING]) - 3})
    reader = SalvageReader(history).read()
    assert len(reader.joiner.snapshot().items) == 5
    other = Joiner(None, JoinerLimits(step_requests_max=3), "reader", tree=reader.index.tree)
    assert restored(reader.joiner, other) == []


def test_positions_without_a_decision() -> None:
    """A position of a hash or of a lost leaf has no transaction; its leaf is empty or the lost leaf, and the audit accepts it."""
    history = full()
    index = SalvageReader(history).read().index
    assert [index.transaction_at(position) is None for position in range(7)] == [False] * 3 + [True] * 3 + [False]
    assert completed(index.leaves_in_pieces(3, 3)) == [b"", lost_leaf(4), lost_leaf(5)]
    assert index.tile(0, 0, 6)[3 * 32 :] == b"h" * 32 + leaf_hash(lost_leaf(4)) + leaf_hash(lost_leaf(5))


@pytest.mark.parametrize("row", [b"", b"\1" + b"x" * 32, b"\2", b"\3"])
def test_a_changed_row_of_a_position_is_found(row: bytes) -> None:
    """The audit finds a row of a salvaged position that a disk changed."""
    history = full()
    reader = SalvageReader(history).read()
    reader.disk.write([("positions", (3).to_bytes(8, "big"), row)])
    with pytest.raises(Quarantined):
        completed(reader.index.leaves_in_pieces(0, 7))


def test_an_index_that_ends_with_a_lost_leaf_opens() -> None:
    """An index whose last position nobody knows opens again."""
    history, survivor = history_and_survivor()
    Owner(history).salvage(survivor.item(2), Lost())
    reader = SalvageReader(history).read()
    assert reader.restarted().index.position_next == 4


def test_a_reserved_state_is_for_one_transaction() -> None:
    """A state that a rejection cites is a conflict for everybody but the transaction whose id has that hash."""
    for label, expected in (("z", Outcome.COMMITTED), ("other", Outcome.INPUT_CONFLICT)):
        history, _ = history_and_survivor()
        id_, state = requests("z")[0].transaction_id, state_of("z")
        by = sha256(id_ if label == "z" else b"another").digest()
        rejected = item_of(Decision(2, bytes(32), Outcome.INPUT_CONFLICT, 7, (Conflict(state, Kind.INPUT, by),)))
        Owner(history).salvage(rejected)
        index = SalvageReader(history).read().index
        consumed = index.consumed(state)
        assert consumed is not None
        assert (consumed.by_hash, consumed.position) == (by, None)
        index = worker_goes_on(history, "z").index
        decision = index.decision(id_)
        assert decision is not None
        assert decision.outcome is expected
        assert decision.conflicts == (() if label == "z" else (Conflict(state, Kind.INPUT, by),))
        consumed = index.consumed(state)
        assert consumed is not None
        assert consumed.position == (3 if label == "z" else None)


def test_a_consumer_that_is_salvaged_later_takes_its_reservation() -> None:
    """An item that consumes a state replaces the reservation that an item before it made; a consumed state is not reserved."""
    history, _ = history_and_survivor()
    by = sha256(requests("c")[0].transaction_id).digest()
    cites = (Conflict(state_of("a"), Kind.INPUT, bytes(32)), Conflict(state_of("c"), Kind.INPUT, by))
    rejected = Decision(2, bytes(32), Outcome.INPUT_CONFLICT, 7, tuple(sorted(cites, key=lambda conflict: conflict.state)))
    third = Decision(3, requests("c")[0].transaction_id, Outcome.COMMITTED, 8)
    Owner(history).salvage(item_of(rejected), item_of(third, [state_of("c")]))
    index = SalvageReader(history).read().index
    positions = [consumed.position for label in "ac" if (consumed := index.consumed(state_of(label))) is not None]
    assert positions == [0, 3]


def test_a_trim_takes_effect_for_a_higher_position() -> None:
    """A trim takes effect for a higher position, whatever its root. Its view may be an older part of the history."""
    history, survivor = history_and_survivor(cut=False)
    tree, view, key = survivor.index.tree, survivor.joiner.history.view, history.key.public_key
    trims = [(2, tree.root_at(2)), (2, tree.root_at(2)), (1, tree.root_at(1)), (4, bytes(32)), (3, tree.root_at(3))]
    for position, root in trims:
        history.owner(Trim(key, view, position, root))
    reader = SalvageReader(history).read()
    log_state = reader.joiner.log_state
    assert log_state is not None
    assert log_state.trimmed == 4
    assert reader.joiner.history.seen == survivor.joiner.history.seen + 2


@pytest.mark.parametrize("has_tree", [True, False])
def test_a_trim_of_a_lost_history_counts_for_nobody(*, has_tree: bool) -> None:
    """Where the log lost decisions, a copy of a trim that it lost is skipped, with the tree and without: its view is foreign."""
    history, survivor = history_and_survivor(cut=False)
    lost = history.owner(Trim(history.key.public_key, survivor.joiner.history.view, 2, survivor.index.tree.root_at(2)))
    assert _trimmed(history, has_tree=has_tree) == (2, {})
    history.cut({ORDERING: 5, 0: 2})
    history.put(ORDERING, None, lost.value)
    trimmed, suspicions = _trimmed(history, has_tree=has_tree)
    assert trimmed == 0
    assert list(suspicions) == [OWNER_NAME]


def test_a_trim_that_names_a_former_key_is_skipped_unseen() -> None:
    """A trim counts under the key that it names. Under another one it is no evidence, so a salvage ends what a lost trim can do."""
    history, survivor = history_and_survivor(cut=False)
    trim = Trim(history.key.public_key, survivor.joiner.history.view, 2, survivor.index.tree.root_at(2))
    history.cut({ORDERING: 5, 0: 2})
    Owner(history).salvage(survivor.item(2), survivor.item(3))
    history.owner(trim)
    history.owner(msgspec.structs.replace(trim, view=SalvageReader(history).read().joiner.history.view))
    assert _trimmed(history) == (0, {})


def _trimmed(history: History, *, has_tree: bool = True) -> tuple[int, Mapping[str, object]]:
    """Returns the position up to which a reader takes the log for trimmed, and its open suspicions."""
    if has_tree:
        joiner = SalvageReader(history).read().joiner
    else:
        joiner = Joiner()
        records = [record for of_partition in history.by_partition.values() for record in of_partition]
        ready = joiner.step(records, 0)
        while ready.more or ready.evidence is not None:
            if ready.evidence is not None:
                joiner.examined(ready.evidence)
            ready = joiner.step((), 0)
    assert joiner.log_state is not None
    return joiner.log_state.trimmed, joiner.suspicions.open


def test_a_command_that_reads_the_ordering_topic_alone_stops() -> None:
    """Without contents nobody knows what took effect around a salvage: such a reader stops there, with an error that says so."""
    history = full()
    ready = Joiner(ordering_only=True).step(history.by_partition[ORDERING], 0)
    assert ready.stop is not None
    assert ready.stop.code == "salvaged"
