"""Tests that the replay follows the contract: its worked example to the byte, and rules with logs of a few records.

`test_joiner.py` and `tests/spark/test_effects.py` compare it with two other implementations on random logs.
"""

import json
from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.log import ORDERING, Record
from tests.checkers.records import FORMAT_VERSION, NO_LOG_ID, View, key_of, verified
from tests.checkers.replay import Replayed, Seen, Why, replay
from tests.checkers.requests import requests_of
from tests.checkers.signed_log import NOTARY, ORIGIN, T0, SignedLog, payload_of, private_key, public, state
from tests.checkers.tree import leaf_of

VECTORS = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())
EXAMPLE = VECTORS["log"]
PARTITIONS = 2
DAY_MS = 86_400_000


def worked_log() -> dict[int, list[Record]]:
    """Returns the log of the worked example."""
    order = [
        Record(ORDERING, offset, record["append_time"], None, bytes.fromhex(record["value_hex"]))
        for offset, record in enumerate(EXAMPLE["ordering"])
    ]
    by_partition: dict[int, list[Record]] = {ORDERING: order, 0: [], 1: []}
    for record in EXAMPLE["payload"]:
        records = by_partition[record["partition"]]
        key, value = bytes.fromhex(record["key_hex"]), bytes.fromhex(record["value_hex"])
        records.append(Record(record["partition"], len(records), EXAMPLE["ordering"][0]["append_time"], key, value))
    return by_partition


def why_not(replayed: Replayed, record: Record) -> Why | None:
    """Returns the reason for which that ordering record took no effect."""
    return next(applied.why_not for applied in replayed.records if applied.offset == record.offset)


def decided(replayed: Replayed) -> list[str]:
    """Returns the reasons of all decisions."""
    return [decision["reason"] or "committed" for decision in replayed.decisions]


# ---- worked examples ----


def test_worked_example_of_a_log() -> None:
    """After each record of the worked example, `seen`, the history and the effect are those in the document."""
    replayed = replay(worked_log())
    assert replayed.ended_by == "end"
    assert replayed.log_id.hex() == EXAMPLE["log_id"]
    found = [(applied.why_not is None, applied.seen_after, applied.history_after.hex()) for applied in replayed.records]
    assert found == [(record["takes_effect"], record["seen_after"], record["history_after"]) for record in EXAMPLE["ordering"]]


def test_worked_example_says_why() -> None:
    """Each record that takes no effect has its reason, and the view of each correctly signed record is the log's own."""
    replayed = replay(worked_log())
    assert [applied.why_not for applied in replayed.records if applied.why_not] == [Why.BAD_SIGNATURE, Why.CHECKPOINT, Why.CONDITION]
    assert [applied.view for applied in replayed.records] == [
        None,  # genesis
        Seen.OWN,
        Seen.OWN,
        Seen.OWN,
        None,  # key
        None,  # its view is not compared: it has no valid signature
        Seen.OWN,
        Seen.OWN,
        None,
        None,
        None,
    ]


def test_worked_example_of_contents() -> None:
    """The payload, the fill and the later payload, of four records under the batches' keys, are the contents, and decide as they should."""
    replayed = replay(worked_log())
    assert [(batch.sequence, batch.content_offset, batch.signed_fill) for batch in replayed.batches] == [
        (1, 1, False),
        (2, 2, True),
        (4, 4, False),
    ]
    ids = [request["transaction_id"] for request in VECTORS["requests"]]
    assert [decision["transaction_id"] for decision in replayed.decisions] == ids
    assert (replayed.name, replayed.partitions) == (VECTORS["notary"], 3)
    assert [key.hex() for key in replayed.keys] == EXAMPLE["notary_keys_hex"]
    assert [(state.name, state.fenced, state.retired) for state in replayed.incarnations] == [("w1", True, True)]
    assert [(checkpoint.size, checkpoint.counted) for checkpoint in replayed.checkpoints] == [(0, True)]


def test_worked_example_of_ids() -> None:
    """The replay's reading of a payload gives the transaction ids of the worked example."""
    submission = {"party": "O=A", "signature": "", "requests": [each["request"] for each in VECTORS["requests"]]}
    found = requests_of(json.dumps([submission]).encode(), VECTORS["notary"])
    assert found is not None
    assert [id_ for id_, _ in found] == [each["transaction_id"] for each in VECTORS["requests"]]


def test_worked_example_of_leaves() -> None:
    """Leaves and root are those of the worked example."""
    leaves = [leaf_of(each["decision"]) for each in VECTORS["decisions"]]
    assert [leaf.hex() for leaf in leaves] == [each["leaf_hex"] for each in VECTORS["decisions"]]
    replayed = replay({})
    replayed.leaves.extend(leaves)
    assert replayed.root(3).hex() == VECTORS["root_of_the_three_leaves"]


def test_every_byte_of_the_worked_example_matters() -> None:
    """A change of any byte of an ordering record changes the history after it, or invalidates its signature."""
    by_partition = worked_log()
    for number, applied in enumerate(replay(by_partition).records):
        value = by_partition[ORDERING][number].value
        assert value is not None
        if number == 0 or applied.why_not:
            continue
        for at in range(0, len(value), 7):
            flipped = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
            record = Record(ORDERING, number, applied.offset, None, flipped)
            found = replay({**by_partition, ORDERING: [*by_partition[ORDERING][:number], record]}).records[-1]
            assert found.why_not in (Why.BAD_SIGNATURE, Why.MALFORMED)


@given(st.none() | st.binary(max_size=300) | st.builds(lambda kind, rest: bytes([1, kind]) + rest, st.integers(0, 12), st.binary()))
def test_any_bytes_are_skipped(value: bytes | None) -> None:
    """Any bytes in either topic are skipped: the result is the same as without them."""
    log = SignedLog(PARTITIONS)
    log.register()
    log.put(ORDERING, None, value)
    log.put(0, key_of(1, 1), value)
    log.put(0, value, b"")
    log.batch(1, 1, "a")
    replayed = log.replayed()
    assert (replayed.seen, decided(replayed)) == (3, ["committed"])
    assert replayed.records[2].why_not in (Why.MALFORMED, Why.BAD_SIGNATURE)


# ---- genesis ----


def test_genesis_says_whose_log_it_is() -> None:
    """The notary's name, origin, first key and partitions come from the first record."""
    log = SignedLog(3)
    replayed = log.replayed()
    assert replayed.genesis is not None
    assert (replayed.name, replayed.genesis.origin, replayed.partitions, replayed.keys) == (NOTARY, ORIGIN, 3, [public(log.key)])
    assert (replayed.seen, replayed.history) == (1, log.log_id)


def _unsigned_genesis(log: SignedLog) -> bytes:
    genesis = log.by_partition[ORDERING][0].value
    assert genesis is not None
    return genesis[:-1] + bytes([genesis[-1] ^ 1])


@pytest.mark.parametrize("first", [lambda log: b"garbage", lambda log: log.signed(8, pack(">I", 5)), _unsigned_genesis])
def test_log_without_genesis_is_nobodys(first: Callable[[SignedLog], bytes]) -> None:
    """A log whose first record is not a signed genesis has no result, whatever comes after."""
    log = SignedLog(PARTITIONS)
    log.register()
    log.batch(1, 1, "a")
    log.by_partition[ORDERING].insert(0, Record(ORDERING, -1, T0, None, first(log)))
    replayed = replay(log.by_partition)
    assert (replayed.ended_by, replayed.seen, replayed.decisions, replayed.records) == ("no-genesis", 0, [], [])


# ---- signatures ----


def test_record_without_a_good_signature_changes_nothing() -> None:
    """Records signed by another key or for another log are skipped, as are the owner's records signed by the notary and the reverse."""
    log, other = SignedLog(PARTITIONS), SignedLog(PARTITIONS, "another ")
    log.register()
    log.payload(1, 1, "a")
    skipped = [
        log.entry(1, 1, "a", by=private_key("thief")),
        log.entry(1, 1, "a", by=log.owner),
        log.put(ORDERING, None, other.register().value),
        log.write(8, pack(">I", 9), by=log.key),
        log.write(9, pack(">Q", 1), by=log.key),
        log.write(5, pack(">H", 65535), by=log.key),
    ]
    replayed = log.replayed()
    assert [why_not(replayed, record) for record in skipped] == [Why.BAD_SIGNATURE] * len(skipped)
    assert (replayed.seen, replayed.ended_by, replayed.partitions) == (2, "end", PARTITIONS)
    log.entry(1, 1, "a")
    assert decided(log.replayed()) == ["committed"]


def test_points_of_small_order_sign_nothing() -> None:
    """OpenSSL accepts the neutral point as a key that has signed every message; the replay does not."""
    neutral = (1).to_bytes(32, "little")
    assert not verified(neutral, neutral + bytes(32), b"message")


# ---- entries (R2, R3) ----


def test_entry_counts_once_and_in_order() -> None:
    """A copy, an earlier sequence, a sequence of 0, and an incarnation that has not registered are skipped (R2)."""
    log = SignedLog(PARTITIONS)
    log.register()
    log.batch(1, 2, "a")
    log.again(log.by_partition[ORDERING][-1])
    for incarnation, sequence in ((1, 1), (1, 0), (2, 1), (0, 1)):
        log.batch(incarnation, sequence, "b")
    replayed = log.replayed()
    assert [applied.why_not for applied in replayed.records[3:]] == [Why.CONDITION] * 5
    assert (replayed.seen, len(replayed.decisions)) == (3, 1)


def test_first_good_content_wins() -> None:
    """The first record under a batch's key in its partition that has the entry's hash, or is a fill for it, is the content (R3)."""
    log = SignedLog(PARTITIONS)
    log.register()
    log.payload(1, 1, "a", partition=1)  # another partition
    log.put(0, key_of(1, 1), None)
    log.payload(1, 1, "other bytes")
    log.fill(1, 1, "other bytes")
    log.fill(1, 1, "a", by=private_key("thief"))
    payload = log.payload(1, 1, "a")
    log.fill(1, 1, "a")
    log.entry(1, 1, "a")
    assert [(batch.content_offset, batch.signed_fill) for batch in log.replayed().batches] == [(payload.offset, False)]


BAD_FILLS: dict[str, Callable[[SignedLog, bytes], bytes]] = {
    "another partition": lambda log, value: log.fill_value(1, 1, value, partition=1),
    "another batch": lambda log, value: log.fill_value(1, 2, value),
    "another hash": lambda log, value: log.fill_value(1, 1, value + b" "),
    "another log": lambda log, value: log.fill_value(1, 1, value, log_id=bytes(32)),
    "by the owner": lambda log, value: log.fill_value(1, 1, value, by=log.owner),
    "begins with another hash": lambda log, value: bytes(32) + log.fill_value(1, 1, value)[32:],
    "a byte longer": lambda log, value: log.fill_value(1, 1, value) + b"\0",
}


@pytest.mark.parametrize("bad", BAD_FILLS.values(), ids=BAD_FILLS)
def test_fill_for_something_else_is_skipped(bad: Callable[[SignedLog, bytes], bytes]) -> None:
    """A fill for another partition, batch, hash or log, by another key or of another length leaves the hole open."""
    log = SignedLog(PARTITIONS)
    log.register()
    log.entry(1, 1, "a")
    log.put(0, key_of(1, 1), bad(log, payload_of("a")))
    assert log.replayed().ended_by == "hole"
    log.payload(1, 1, "a")
    assert decided(log.replayed()) == ["committed"]


def test_spent_states_conflict() -> None:
    """Two transactions with one input: the first is committed, the second names it."""
    log = SignedLog(PARTITIONS)
    log.register()
    log.batch(1, 1, "a")
    other = json.loads(payload_of("a"))
    other[0]["requests"][0]["content_hash"] = "11" * 32
    value = json.dumps(other).encode()
    log.payload(1, 2, value=value, partition=1)
    log.entry(1, 2, value=value, partition=1)
    log.batch(1, 3, "a")
    replayed = log.replayed()
    assert decided(replayed) == ["committed", "input-conflict"]
    assert [batch.positions for batch in replayed.batches] == [(0,), (1,), (0,)]
    assert set(replayed.consumed) == {state("a")}


# ---- incarnations (R5) ----


def test_register_names_an_incarnation() -> None:
    """A register record ends the earlier incarnation of its worker name; a second one with the same nonce has no effect."""
    log = SignedLog(PARTITIONS)
    log.register("w1")
    log.register("w2")
    again = log.again(log.by_partition[ORDERING][-1])
    log.register("w1")
    replayed = log.replayed()
    assert why_not(replayed, again) == Why.CONDITION
    assert [(state.name, state.fenced, state.fenced_by) for state in replayed.incarnations] == [
        ("w1", True, 3),
        ("w2", False, 0),
        ("w1", False, 0),
    ]


# ---- keys ----


def test_fill_is_signed_by_the_key_at_its_entrys_place() -> None:
    """A fill signed with the former key is valid for an entry before the key record, and one with the new key is not."""
    log = SignedLog(PARTITIONS)
    log.register()
    log.entry(1, 1, "a")
    log.by_partition[0].append(log.fill(1, 1, "a"))
    view = log.view()
    log.by_partition[0].clear()
    body = log.key_body(private_key("second"))
    log.write(7, body)
    log.fill(1, 1, "a", by=private_key("second"))
    assert log.replayed().ended_by == "hole"
    log.fill(1, 1, "a")
    replayed = log.replayed()
    assert (replayed.seen, replayed.histories[3]) == (4, view.history)
    assert replayed.keys == [public(log.key), public(private_key("second"))]


def test_key_record_needs_the_new_keys_signature() -> None:
    """A key record whose new key has not signed, or has endorsed another predecessor, is skipped."""
    log = SignedLog(PARTITIONS)
    new = private_key("second")
    bodies = [log.key_body(new, by=log.owner), log.key_body(new, by=log.key), log.key_body(new, follows=public(log.owner))]
    skipped = [log.write(7, body) for body in bodies]
    replayed = log.replayed()
    assert [why_not(replayed, record) for record in skipped] == [Why.BAD_SIGNATURE] * 3
    assert replayed.keys == [public(log.key)]


# ---- partitions, versions ----


def test_version_is_activated_when_all_voters_read_it() -> None:
    """An activation takes no effect while a worker that has been active within a day of log time cannot read the version."""
    log = SignedLog(PARTITIONS)
    log.register("w1", at=T0)
    log.register("w2", reads=FORMAT_VERSION + 1, at=T0)
    early = log.activate(FORMAT_VERSION + 1)
    log.payload(2, 1, "a")
    log.entry(2, 1, "a", at=T0 + DAY_MS)
    still = log.activate(FORMAT_VERSION + 1)
    log.payload(2, 2, "b")
    log.entry(2, 2, "b", at=T0 + DAY_MS + 1)
    assert [why_not(log.replayed(), record) for record in (early, still)] == [Why.CONDITION] * 2
    log.activate(FORMAT_VERSION + 1)
    assert log.replayed().ended_by == "activate"


def test_version_that_is_not_active_is_malformed() -> None:
    """A correctly signed record in a version that is not active is skipped."""
    log = SignedLog(PARTITIONS)
    record = log.put(ORDERING, None, log.signed(8, pack(">I", 9), version=2))
    assert why_not(log.replayed(), record) == Why.MALFORMED


# ---- views, history, settle (R10) ----


def test_views_never_decide_what_counts() -> None:
    """Entries, registrations and fences count whatever their views are, and the replay records how each view compares with its history."""
    log = SignedLog(PARTITIONS)
    old = log.view()
    foreign = View(1, b"\x66" * 32)
    log.register("w1", view=foreign)
    log.register("w2", view=View(99, old.history))
    log.payload(1, 1, "a")
    log.entry(1, 1, "a", view=View(0, old.history))
    log.payload(1, 2, "b")
    log.entry(1, 2, "b", view=old)
    log.fence(2, 0, view=foreign)
    replayed = log.replayed()
    assert [applied.view for applied in replayed.records] == [
        None,
        Seen.FOREIGN,
        Seen.FOREIGN,
        Seen.NOT_COMPARABLE,
        Seen.OWN,
        Seen.FOREIGN,
    ]
    assert (replayed.seen, len(replayed.decisions)) == (6, 2)
    assert [state.fenced for state in replayed.incarnations] == [False, True]


def test_checkpoints_count_while_their_incarnation_goes_on() -> None:
    """A checkpoint counts if its incarnation has registered and has not ended, and its view is the log's own. It never takes effect."""
    log = SignedLog(PARTITIONS)
    log.register("w1")
    log.checkpoint(1, 0)
    log.checkpoint(2, 0)
    log.checkpoint(1, 0, view=View(1, b"\x66" * 32))
    log.checkpoint(1, 0, view=View(0, log.log_id))
    log.checkpoint(1, 0, view=log.view(1))
    log.register("w1")
    log.checkpoint(1, 0)
    replayed = log.replayed()
    assert [root.counted for root in replayed.checkpoints] == [True, False, False, False, True, False]
    assert [applied.why_not for applied in replayed.records if applied.why_not] == [
        Why.CHECKPOINT,
        Why.CONDITION,
        Why.OTHER_VIEW,
        Why.OTHER_VIEW,
        Why.CHECKPOINT,
        Why.CONDITION,
    ]
    assert replayed.seen == 3


def test_settle_takes_effect_in_its_own_history() -> None:
    """A settle record of another history, or ahead of this one, is skipped."""
    log = SignedLog(PARTITIONS)
    log.register("w1")
    skipped = [log.settle(View(1, b"\x66" * 32)), log.settle(View(9, log.log_id)), log.settle(View(0, log.log_id))]
    good = log.settle(log.view(1))
    replayed = log.replayed()
    assert [why_not(replayed, record) for record in skipped] == [Why.OTHER_VIEW] * 3
    assert (why_not(replayed, good), replayed.settled, replayed.seen) == (None, 1, 3)


def test_copied_settle_takes_no_effect() -> None:
    """A settle record takes effect only if it has seen more than the last one that did, so copies do not count again."""
    log = SignedLog(PARTITIONS)
    log.register("w1")
    first = log.settle()
    skipped = [log.again(first), log.settle(log.view(1)), log.settle(log.view(2))]
    log.settle(log.view(3))
    skipped.append(log.again(first))
    replayed = log.replayed()
    assert [why_not(replayed, record) for record in skipped] == [Why.CONDITION] * 4
    assert (replayed.settled, replayed.seen) == (3, 4)


# ---- complete logs ----


def long_log() -> SignedLog:
    """Returns a log with a record of every kind, in an order in which all take effect."""
    log = SignedLog(PARTITIONS)
    log.register("w1")
    log.register("w2")
    log.batch(1, 1, "a")
    log.entry(2, 1, "b", partition=1)
    log.fill(2, 1, "b", partition=1)
    log.checkpoint(1, 1)
    log.fence(2, 1)
    log.partitions(3)
    log.rotate("second")
    log.batch(1, 2, "c", partition=2)
    log.settle()
    log.register("w3")
    log.retire(3)
    return log


def test_copies_change_nothing() -> None:
    """A mirror that appends every record twice, at once or all again at the end, has the same history and decisions."""
    log = long_log()
    right = log.replayed()
    assert right.seen == len(right.records) - 1  # all but the checkpoint
    twice = [record for record in log.by_partition[ORDERING] for _ in range(2)]
    for order in (twice, [*log.by_partition[ORDERING], *log.by_partition[ORDERING]]):
        by_partition = {partition: [*records, *records] for partition, records in log.by_partition.items()}
        other = replay({**by_partition, ORDERING: order})
        assert (other.histories, other.decisions) == (right.histories, right.decisions)


def test_record_that_is_left_out_is_found() -> None:
    """A record that took effect and is left out shows later, by a foreign view or by the signature of an unknown key."""
    log = long_log()
    log.register("w4")
    right = log.replayed()
    order = log.by_partition[ORDERING]
    for number in range(1, len(order) - 1):
        if right.records[number].why_not is None:
            found = replay({**log.by_partition, ORDERING: order[:number] + order[number + 1 :]}).records[number:]
            assert any(applied.view == Seen.FOREIGN or applied.why_not == Why.BAD_SIGNATURE for applied in found)


def test_content_that_is_lost_and_filled_is_found() -> None:
    """A payload that is lost and then filled leaves another history: the mark distinguishes a payload from a fill."""
    log = long_log()
    filled = {**log.by_partition, 0: [Record(0, 0, T0, key_of(1, 1), log.fill_value(1, 1, payload_of("a"), by=private_key("notary")))]}
    replayed = replay(filled)
    assert [batch.signed_fill for batch in replayed.batches] == [True, True, False]
    assert {applied.view for applied in replayed.records[4:]} == {Seen.FOREIGN, None}
    assert decided(replayed) == ["committed"]  # the later batch is decided as before


def test_replays_up_to_a_place() -> None:
    """The replay can stop at the offset that a worker has reached, with all payloads available."""
    log = SignedLog(PARTITIONS)
    log.register("w1")
    for sequence, label in enumerate("abc", 1):
        log.batch(1, sequence, label)
    replayed = replay(log.by_partition, offset_stop=4)
    assert (replayed.ended_by, replayed.offset_head, len(replayed.decisions), replayed.seen) == ("end", 4, 2, 4)


def test_hole_ends_the_replay() -> None:
    """Records after an entry without content are not applied."""
    log = SignedLog(PARTITIONS)
    log.register("w1")
    hole = log.entry(1, 1, "a")
    log.register("w2")
    replayed = log.replayed()
    assert (replayed.ended_by, replayed.offset_head, replayed.seen) == ("hole", hole.offset, 2)


def test_empty_log_says_nothing() -> None:
    """An empty log has no history, and no reason to stop."""
    replayed = replay({})
    assert (replayed.ended_by, replayed.seen, replayed.history, replayed.log_id, replayed.name) == ("end", 0, b"", NO_LOG_ID, "")
