"""Tests of the core: genesis, the right to write, and the records that change it (R10), one behaviour at a time."""

from hashlib import sha256

import pytest

from joiner import Joiner, RootSeen, VoteVoid
from joiner.applied import OWNER_NAME, VOTERS_MS
from joiner.ready import OWNER_INCARNATION
from ordering.errors import FatalCode
from ordering.log import ORDERING, Record
from ordering.records import Fence, Genesis, Key, Partitions, Register, Trim, View, batch_key, encode
from ordering.signatures import NO_LOG_ID, endorse_key, sign_fill, sign_record
from tests.checkers.replay import replay
from tests.joiner.history import KEY, NOTARY, OWNER, T0, History, Reading, kinds, named, own_batch, registered, requests, signing_key, value
from tests.joiner.salvaged import SalvageReader

SECOND, THIRD = signing_key("second"), signing_key("third")
OTHER = History(name="O=Another notary", salt=b"another notary's")


def _log(reading: Reading) -> tuple[object, ...]:
    log = reading.joiner.log_state
    assert log is not None
    return log.key, log.payload_partitions, log.formats, log.settled


# ---- genesis ----


@pytest.mark.parametrize(
    "first",
    [
        None,
        b"",
        encode(Register(bytes(16), View(0, bytes(32)), 1, "w1", "0")) + bytes(64),
        sign_record(Genesis(bytes(16), 2, KEY.public_key, OWNER.public_key, NOTARY, "o"), NO_LOG_ID, KEY),
        sign_record(Partitions(3), NO_LOG_ID, OWNER),
    ],
    ids=["nothing", "empty", "register", "not-signed-by-its-owner", "another-control-record"],
)
def test_a_topic_without_genesis_is_nobodys_log(first: bytes | None) -> None:
    """A reader stops before a first record that is not a genesis record signed by the owner that it names."""
    ready = Reading().step(Record(ORDERING, 0, T0, b"", first))
    assert ready.stop is not None
    assert ready.stop.code is FatalCode.NO_GENESIS
    assert not ready.advanced


def test_genesis_says_whose_log_it_is() -> None:
    """The notary's name, origin, keys and partitions come from the genesis record, and the history begins with the log id."""
    history, reading = History(), Reading()
    ready = reading.step(history.genesis)
    log = reading.joiner.log_state
    assert log is not None
    assert (log.notary_name, log.origin, log.owner_key, log.key) == (NOTARY, "notary.example/test", OWNER.public_key, KEY.public_key)
    assert (log.log_id, log.payload_partitions, log.formats) == (history.log_id, 2, (1,))
    assert ready.log_state == log
    assert reading.view == View(1, history.log_id)
    assert ready.offsets_next == {ORDERING: 1}


def test_genesis_counts_once() -> None:
    """A copy of the genesis record, and another one that the owner signed for this log, change nothing."""
    history, reading = registered()
    before = reading.view
    second = Genesis(bytes(16), 9, SECOND.public_key, OWNER.public_key, "O=Another", "o")
    ready = reading.step(history.put(ORDERING, None, history.genesis.value), history.owner(second))
    assert kinds(ready) == ["unsigned", "skipped"]
    assert reading.view == before
    assert _log(reading) == (KEY.public_key, 2, (1,), 0)


# ---- the right to write ----


def _forgeries() -> dict[str, bytes]:
    """Returns records that would take effect in `registered()` if their signatures were valid."""
    true = History()
    view = true.view
    records = {
        "entry": true.entry(1, 1, "a"),
        "register": true.register("w9"),
        "fence": true.fence(1, 0),
        "checkpoint": true.checkpoint(1, 0),
        "settle": true.settle(view),
        "activate": true.activate(2),
        "key": true.rotate(SECOND),
        "partitions": true.partitions(5),
        "retire": true.retire(1),
    }
    return {kind: (record.value or b"")[:-64] for kind, record in records.items()}


FORGERIES = _forgeries()


@pytest.mark.parametrize("kind", FORGERIES)
@pytest.mark.parametrize("signed", ["by nobody", "by another key", "by the other of the two", "in another log"])
def test_records_without_a_good_signature_change_nothing(kind: str, signed: str) -> None:
    """A record is skipped unless the right key signed it for this log: the notary's key in force, or the owner's for a control record."""
    history, reading = registered("w1", version=2)
    body = FORGERIES[kind]
    is_owners = kind in ("activate", "key", "partitions", "retire", "settle")
    message = b"notary/log/v1\n" + (OTHER.log_id if signed == "in another log" else history.log_id) + body
    key = {"by another key": SECOND, "by the other of the two": KEY if is_owners else OWNER, "in another log": OWNER if is_owners else KEY}
    signature = key[signed].sign(message) if signed in key else bytes(64)
    before, log = reading.view, _log(reading)
    ready = reading.step(history.put(ORDERING, None, body + signature), history.payload(1, 1, "a"))
    assert kinds(ready) == ["unsigned"]
    assert (reading.view, _log(reading), reading.batches, ready.stop, ready.evidence) == (before, log, [], None, None)
    assert (ready.registered, ready.fenced, ready.roots_seen, ready.incarnations) == ([], [], [], [])


def test_what_the_caller_says_of_signatures_is_compared_with_the_key_in_force() -> None:
    """A signature that was verified with the key before a rotation is not valid after it."""
    history, reading = registered()
    entry = history.entry(1, 1, "a")
    old = history.key
    rotation = history.rotate(SECOND)
    late = history.put(ORDERING, None, entry.value)
    del history.by_partition[ORDERING][-3:]
    rotation, late = history.put(ORDERING, None, rotation.value), history.put(ORDERING, None, late.value)
    found = {late.value or b"": old.public_key}
    ready = reading.joiner.step([rotation, late], 0, found)
    assert kinds(ready) == ["unsigned"]


def test_what_was_found_good_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose signature the caller has verified with the key in force is not verified a second time."""
    history, reading = registered()
    entry, payload = history.entry(1, 1, "a"), history.payload(1, 1, "a")
    monkeypatch.setattr("joiner.applied.record_is_signed", lambda *arguments: pytest.fail("verified again"))
    ready = reading.joiner.step([entry, payload], 0, {entry.value or b"": KEY.public_key})
    assert named(ready.batches) == [(1, 1, "1")]


def test_own_entries_need_no_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry with exactly the bytes that this worker has signed is not verified; other bytes under its batch's name are."""
    history = History()
    register = history.register()
    forged = history.put(ORDERING, None, FORGERIES["entry"] + bytes(64))
    entry, payload = history.entry(1, 1, "a", sent_at=T0), history.payload(1, 1, "a")
    assert (entry.value or b"")[:-64] == FORGERIES["entry"]
    own = {(1, 1): own_batch("a", entry)}
    reading = Reading(own=own)
    reading.step(history.genesis, register)
    assert reading.joiner.to_verify([forged, entry, payload], own) == [forged.value]
    assert kinds(reading.step(forged)) == ["unsigned"]
    monkeypatch.setattr("joiner.applied.record_is_signed", lambda *arguments: pytest.fail("verified"))
    assert named(reading.step(entry, payload).batches) == [(1, 1, "1")]


# ---- fills ----


def _fills(history: History) -> dict[str, bytes]:
    """Returns values that are no fill of batch (1, 1) in partition 0, whose entry is for "a"."""
    name, asked, other = batch_key(1, 1), sha256(value("a")).digest(), sha256(value("b")).digest()
    good = sign_fill(history.log_id, 0, name, asked, KEY)
    return {
        "without a signature": asked + bytes(64),
        "of the hash alone": asked,
        "of nothing": b"",
        "by another key": sign_fill(history.log_id, 0, name, asked, SECOND),
        "by the owner": sign_fill(history.log_id, 0, name, asked, OWNER),
        "of another log": sign_fill(OTHER.log_id, 0, name, asked, KEY),
        "for another hash": sign_fill(history.log_id, 0, name, other, KEY),
        "for another hash, swapped": asked + sign_fill(history.log_id, 0, name, other, KEY)[32:],
        "for another partition": sign_fill(history.log_id, 1, name, asked, KEY),
        "for another batch": sign_fill(history.log_id, 0, batch_key(1, 2), asked, KEY),
        "with a byte more": good + b"\0",
    }


@pytest.mark.parametrize("what", _fills(History()))
@pytest.mark.parametrize("order", ["fill, entry, payload", "entry, fill, payload", "fill, payload, entry"])
def test_what_is_no_fill_empties_nothing(what: str, order: str) -> None:
    """A fill without a signature by the key in force over this log, partition, batch and hash is skipped: the payload is the content."""
    history, reading = registered()
    records = {
        "fill": history.put(0, batch_key(1, 1), _fills(history)[what]),
        "entry": history.entry(1, 1, "a"),
        "payload": history.payload(1, 1, "a"),
    }
    for kind in order.split(", "):
        reading.step(records[kind])
    assert [batch.requests for batch in reading.batches] == [requests("a")]
    assert reading.joiner.buffered_records == 0


# ---- key ----


def test_a_key_record_that_the_new_key_does_not_endorse() -> None:
    """A new key is not put in force without its own endorsement of exactly this step, in this log."""
    history, reading = registered()
    endorsements = [
        bytes(64),
        endorse_key(THIRD, history.log_id, KEY.public_key).endorsement,
        endorse_key(SECOND, history.log_id, THIRD.public_key).endorsement,
        endorse_key(SECOND, OTHER.log_id, KEY.public_key).endorsement,
    ]
    ready = reading.step(*[history.owner(Key(SECOND.public_key, endorsement)) for endorsement in endorsements])
    assert kinds(ready) == ["skipped"] * 4
    assert _log(reading)[0] == KEY.public_key


def test_a_former_key_never_comes_back() -> None:
    """A former key comes back neither by a copy of an old key record nor by a new one of the owner."""
    history, reading = registered()
    first = history.rotate(SECOND)
    second = history.rotate(THIRD)
    copy = history.put(ORDERING, None, first.value)
    back = history.owner(endorse_key(KEY, history.log_id, THIRD.public_key))
    again = history.owner(endorse_key(SECOND, history.log_id, THIRD.public_key))
    same = history.owner(endorse_key(THIRD, history.log_id, THIRD.public_key))
    ready = reading.step(first, second, copy, back, again, same)
    assert kinds(ready) == ["skipped"] * 4
    assert _log(reading)[0] == THIRD.public_key
    assert reading.view.seen == 4


def test_two_rotations_at_once() -> None:
    """The first of two key records for the same step counts; the second one is not endorsed for the key that is in force by then."""
    history, reading = registered()
    first = history.owner(endorse_key(SECOND, history.log_id, KEY.public_key))
    second = history.owner(endorse_key(THIRD, history.log_id, KEY.public_key))
    assert kinds(reading.step(first, second)) == ["skipped"]
    assert _log(reading)[0] == SECOND.public_key


# ---- partitions ----


def test_payloads_of_a_partition_not_declared_yet() -> None:
    """A payload in a partition that Kafka has and the log has not declared yet is kept for the entry that will name it."""
    history, reading = registered()
    history.by_partition[2] = []
    reading.step(history.payload(1, 1, "a", partition=2))
    reading.step(history.partitions(3), history.entry(1, 1, "a", partition=2))
    assert named(reading.batches) == [(1, 1, "1")]
    assert reading.state.offsets_next[2] == 1


# ---- retire ----


def test_a_retire_record_ends_the_incarnation() -> None:
    """A retire record ends the incarnation, drops its buffered payloads, voids its vote and is reported as the owner's."""
    history, reading = registered("w1", "w2")
    reading.step(history.payload(1, 1, "a"))
    ready = reading.step(history.retire(1))
    (ended,) = ready.fenced
    assert (ended.state.incarnation, ended.state.fenced, ended.by, ended.retired) == (1, True, None, True)
    assert ready.roots_seen == [VoteVoid("w1", 0, ready.effects[-1].offset)]
    assert reading.joiner.buffered_records == 0
    (seen,) = reading.step(history.checkpoint(2, 0, view=reading.view)).roots_seen
    assert not isinstance(seen, VoteVoid)
    assert seen.voters == {"w2"}


def test_a_vote_is_void_at_its_place() -> None:
    """A voided vote is reported among the roots in log order, with the number of batches applied before it."""
    history, reading = registered("w1", "w2")
    view = reading.view
    records = [
        history.checkpoint(1, 5, view=view),
        history.entry(2, 1, "a"),
        history.retire(1),
        history.checkpoint(2, 5, view=view),
        history.payload(2, 1, "a"),
    ]
    ready = reading.step(*records)
    assert [(type(one).__name__, one.batches_before) for one in ready.roots_seen] == [("RootSeen", 0), ("VoteVoid", 1), ("RootSeen", 1)]


# ---- activate ----


def test_activate_is_passed_by_who_can_read_it() -> None:
    """A worker that can read the version continues; records of that version count after the activation, and are malformed before it."""
    history, reading = registered("w1", version=2)

    def trim(position: int) -> Record:
        return history.owner(Trim(history.key.public_key, history.view, position, bytes(32)))

    trims = [trim(1), history.activate(2), trim(2)]
    ready = reading.step(*trims)
    assert (ready.stop, kinds(ready)) == (None, ["malformed"])
    more = reading.step(history.entry(1, 1, "a"), history.payload(1, 1, "a"))
    assert reading.joiner.log_state is not None
    assert reading.joiner.log_state.trimmed == 2
    assert named(more.batches) == [(1, 1, "1")]
    assert _log(reading)[2] == (1, 2)
    assert reading.restarted().joiner.log_state == reading.joiner.log_state


def test_a_trim_takes_effect_whatever_its_root() -> None:
    """Its root is the owner's vote. A copy, another key and a foreign view have no effect."""
    history, reading = registered("w1", version=2)
    reading.step(history.activate(2), history.entry(1, 1, "a"), history.payload(1, 1, "a"))
    view, key, log_time_ms = history.view, history.key.public_key, reading.joiner.log_time_ms
    right, copy = [history.owner(Trim(key, view, 1, bytes([root]) * 32)) for root in (1, 2)]
    wrong_key = history.owner(Trim(SECOND.public_key, view, 2, bytes(32)))
    ready = reading.step(right, copy, wrong_key, history.entry(1, 2, "b"), history.payload(1, 2, "b"))
    assert kinds(ready) == ["skipped", "skipped"]
    vote = RootSeen(OWNER_NAME, OWNER_INCARNATION, 1, bytes([1]) * 32, log_time_ms, frozenset({"w1"}), 0, right.offset)
    assert ready.roots_seen == [vote]
    ready = reading.step(history.owner(Trim(key, View(view.seen, bytes(32)), 2, bytes(32))))
    assert (kinds(ready), ready.roots_seen, ready.evidence is not None) == ([], [], True)
    assert reading.joiner.log_state is not None
    assert reading.joiner.log_state.trimmed == 1


def test_a_reader_with_another_root_than_a_trim_keeps_the_others_history() -> None:
    """If it skipped the record, its root would not be compared with the others' any more. A wrong worker would answer for ever."""
    history = History(partitions=1)
    history.activate(2)
    history.register("w1", version=2)
    history.entry(1, 1, "a")
    history.payload(1, 1, "a")
    history.owner(Trim(history.key.public_key, history.view, 1, bytes(32)))
    reader, replayed = SalvageReader(history).read(), replay(history.by_partition)
    assert (reader.joiner.history.seen, reader.joiner.history.view.history) == (replayed.seen, replayed.history)
    assert (reader.anomalies, reader.index.position_next, reader.index.agreement.in_disagreement) == ([], 1, True)


def test_activate_does_not_ask_who_has_left() -> None:
    """A worker that was retired, or was silent for a day of log time, does not prevent an activation."""
    history, reading = registered("new", version=2)
    late = T0 + VOTERS_MS + 60_000
    reading.step(history.register("retired"), history.register("gone"), history.retire(2))
    reading.step(history.entry(1, 1, "a", at=late, sent_at=late), history.payload(1, 1, "a"))
    assert kinds(reading.step(history.activate(2))) == []
    assert _log(reading)[2] == (1, 2)


def test_a_command_reads_the_ordering_topic_alone() -> None:
    """A command that reads the ordering topic alone learns incarnations, keys and partitions, needs no content and compares no view."""
    history = History()
    joiner = Joiner(ordering_only=True)
    foreign = View(77, bytes(32))
    records = [
        history.genesis,
        history.register("w1", view=foreign),
        history.entry(1, 3, "a", view=foreign),
        history.ordering(Fence(1, foreign, 1, 3)),
        history.register("w2", view=foreign),
        history.rotate(SECOND),
        history.partitions(4),
    ]
    ready = joiner.step(records, 0)
    assert (ready.stop, ready.evidence, ready.anomalies, ready.batches) == (None, None, [], [])
    assert joiner.log_state is not None
    assert (joiner.log_state.key, joiner.log_state.payload_partitions) == (SECOND.public_key, 4)
    assert [(state.incarnation, state.sequence_last, state.fenced) for state in ready.incarnations] == [(1, 3, True), (2, 0, False)]
