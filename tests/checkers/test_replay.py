"""Tests that the replay follows the contract: its worked example to the byte, signatures, and logs that lose or repeat records.

`test_joiner.py` and `tests/spark/test_effects.py` compare each rule with two other implementations on random logs.
"""

import json
from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joiner import Joiner
from ordering.log import ORDERING, Record
from tests.checkers.records import NO_LOG_ID, View, key_of, verified
from tests.checkers.replay import Replayed, Seen, Why, replay
from tests.checkers.requests import requests_of
from tests.checkers.signed_log import T0, SignedLog, payload_of, private_key
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


def test_points_of_small_order_sign_nothing() -> None:
    """OpenSSL accepts the neutral point as a key that has signed every message; the replay does not."""
    neutral = (1).to_bytes(32, "little")
    assert not verified(neutral, neutral + bytes(32), b"message")


# ---- fills ----


def _by_a_later_key(log: SignedLog, value: bytes) -> bytes:
    new = private_key("second")
    log.write(7, log.key_body(new))
    return log.fill_value(1, 1, value, by=new)


BAD_FILLS: dict[str, Callable[[SignedLog, bytes], bytes]] = {
    "another partition": lambda log, value: log.fill_value(1, 1, value, partition=1),
    "another batch": lambda log, value: log.fill_value(1, 2, value),
    "another hash": lambda log, value: log.fill_value(1, 1, value + b" "),
    "another log": lambda log, value: log.fill_value(1, 1, value, log_id=bytes(32)),
    "by the owner": lambda log, value: log.fill_value(1, 1, value, by=log.owner),
    "begins with another hash": lambda log, value: bytes(32) + log.fill_value(1, 1, value)[32:],
    "a byte longer": lambda log, value: log.fill_value(1, 1, value) + b"\0",
    "by a later key": _by_a_later_key,
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


# ---- what no random log has ----


def test_version_that_is_not_active_is_malformed() -> None:
    """A correctly signed record in a version that is not active is skipped."""
    log = SignedLog(PARTITIONS)
    record = log.put(ORDERING, None, log.signed(12, bytes(112), version=2))
    assert why_not(log.replayed(), record) == Why.MALFORMED


def test_view_of_no_record_is_not_comparable() -> None:
    """A view that covers no record at all is neither the log's own nor foreign: H(0) does not exist."""
    log = SignedLog(PARTITIONS)
    log.register(view=View(0, log.log_id))
    assert log.replayed().records[-1].view == Seen.NOT_COMPARABLE


def test_a_view_that_is_too_old_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay compares views of the last records only, as a worker does. An older one is not foreign, and its checkpoint is no vote."""
    monkeypatch.setattr("tests.checkers.replay.VIEWS_KEPT", 3)
    monkeypatch.setattr("joiner.history.HISTORY_KEPT", 3)
    log = SignedLog(PARTITIONS)
    for name in "abcd":
        log.register(name)
    roots = [log.checkpoint(1, 0, view=log.view(seen)) for seen in (5, 3, 2)]
    log.checkpoint(1, 0, view=View(2, bytes(32)))
    replayed = log.replayed()
    assert [applied.view for applied in replayed.records[5:]] == [Seen.OWN, Seen.OWN, Seen.NOT_COMPARABLE, Seen.NOT_COMPARABLE]
    assert [checkpoint.counted for checkpoint in replayed.checkpoints] == [True, True, False, False]
    joined = Joiner().step([record for records in log.by_partition.values() for record in records], 0)
    assert [root.offset for root in joined.roots_seen] == [record.offset for record in roots[:2]]


def test_no_window_has_the_last_log_time() -> None:
    """An open end is the number 2^63 - 1, as workers compare it: at this log time every request is outside its window."""
    log = SignedLog(PARTITIONS)
    log.register()
    log.batch(1, 1, "a", at=2**63 - 2)
    log.batch(1, 2, "b", at=2**63 - 1)
    assert decided(log.replayed()) == ["committed", "outside-time-window"]


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


def test_empty_log_says_nothing() -> None:
    """An empty log has no history, and no reason to stop."""
    replayed = replay({})
    assert (replayed.ended_by, replayed.seen, replayed.history, replayed.log_id, replayed.name) == ("end", 0, b"", NO_LOG_ID, "")
