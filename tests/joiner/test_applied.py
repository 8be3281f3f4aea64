"""Tests of the rules for each kind of record, one behaviour at a time, through the joiner. `history` writes the logs.

The owner's records are in `test_control.py`, incarnations in `test_incarnations.py`.
"""

from hashlib import sha256

import pytest

from joiner.applied import SENT_AT_AHEAD_MAX_MS, VOTERS_MS
from joiner.ready import RootSeen
from ordering.log import ORDERING
from ordering.records import batch_key
from tests.joiner.history import T0, History, Reading, kinds, named, own_batch, registered, requests, value


@pytest.mark.parametrize(
    "garbage",
    [None, b"", b"\x01", b"\x02\x01 a version that is not active", b"\x01\x09 an unknown kind", b"\x01\x01 too short", b"\x01\x05\0\0"],
)
def test_a_malformed_ordering_record_is_skipped(garbage: bytes | None) -> None:
    """An ordering record that does not decode is skipped with an anomaly that has its offset."""
    history, reading = registered()
    ready = reading.step(history.put(ORDERING, b"key", garbage), history.entry(1, 1, "a"), history.payload(1, 1, "a"))
    assert [(anomaly.kind, anomaly.partition, anomaly.offset) for anomaly in ready.anomalies] == [("malformed", ORDERING, 2)]
    assert named(ready.batches) == [(1, 1, "1")]


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"{}", b"[", b"\xff", b'[{"party":"O=A"}]', value("b"), value("a", "b"), value("b", "a")[:-1], value()],
    ids=["empty", "null", "object", "cut", "not-utf8", "fields-missing", "other-id", "more-ids", "torn", "no-ids"],
)
def test_bad_content_decides_nothing(content: bytes) -> None:
    """A payload of the right hash that does not decode, or has other ids, decides nothing and causes an anomaly; it is no fill."""
    history, reading = registered()
    named_hash = sha256(content).digest()
    ready = reading.step(
        history.put(0, batch_key(1, 1), content), history.payload(1, 1, "a"), history.entry(1, 1, "a", payload_hash=named_hash)
    )
    assert named(ready.batches) == [(1, 1, "0")]
    assert [(anomaly.kind, anomaly.partition, anomaly.offset) for anomaly in ready.anomalies] == [("bad-content", 0, 0)]


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[", b"\xff", bytes(96), value("b"), value("a")[:-1], value("a") + b" "],
    ids=["empty", "null", "cut", "not-utf8", "zeros-for-a-fill", "other-id", "torn", "longer"],
)
@pytest.mark.parametrize("entry_first", [False, True], ids=["payload-first", "entry-first"])
def test_other_bytes_are_skipped(content: bytes, entry_first: bool) -> None:
    """Bytes under the key that are neither the payload nor a valid fill are skipped: the payload behind them is the content."""
    history, reading = registered()
    junk, payload, entry = history.put(0, batch_key(1, 1), content), history.payload(1, 1, "a"), history.entry(1, 1, "a")
    for record in (entry, junk, payload) if entry_first else (junk, payload, entry):
        reading.step(record)
    assert [batch.requests for batch in reading.batches] == [requests("a")]
    assert reading.joiner.buffered_records == 0


def test_ids_in_another_order() -> None:
    """The ids of the payload must be the entry's, in the same order."""
    history, reading = registered()
    other_order = sha256(value("b", "a")).digest()
    ready = reading.step(history.payload(1, 1, "b", "a"), history.entry(1, 1, "a", "b", payload_hash=other_order))
    assert named(reading.batches) == [(1, 1, "0")]
    assert kinds(ready) == ["bad-content"]


def test_own_batch_is_not_trusted_blindly() -> None:
    """A worker skips decoding its own batch only if the log holds exactly the bytes that it sent."""
    history = History()
    genesis, register, entry = history.genesis, history.register(), history.entry(1, 1, "a")
    own = own_batch("a", entry)
    reading = Reading(own=dict.fromkeys([(1, 1), (1, 2), (1, 3)], own))
    reading.step(genesis, register, entry, history.payload(1, 1, "a"))
    reading.step(history.entry(1, 2, "b"), history.payload(1, 2, "b"))
    # The same payload under an entry with other ids decides nothing: the other workers do not know what this one has sent.
    ready = reading.step(history.entry(1, 3, "b", payload_hash=own.payload_hash), history.payload(1, 3, "a"))
    assert reading.batches[0].requests is own.requests
    assert reading.batches[1].requests == requests("b")
    assert kinds(ready) == ["bad-content"]
    assert named(reading.batches)[2] == (1, 3, "0")


def test_log_time_is_held_back() -> None:
    """A broker's clock that jumps ahead moves log time at most a minute past the sender's clock. The sender's clock alone moves nothing."""
    history, reading = registered()
    for sequence, (at, sent_at) in enumerate([(T0, 2**63 - 1), (T0 + 10**9, T0), (T0 + 10**9, T0 + 1)], 1):
        reading.step(history.entry(1, sequence, at=at, sent_at=sent_at), history.fill(1, sequence))
    assert [batch.log_time_ms - T0 for batch in reading.batches] == [0, SENT_AT_AHEAD_MAX_MS, SENT_AT_AHEAD_MAX_MS + 1]
    assert SENT_AT_AHEAD_MAX_MS == 60_000


def test_roots_are_handed_on() -> None:
    """Roots are emitted by the step that applies their checkpoints, with the writer's name and the voters."""
    history, reading = registered()
    reading.step(history.entry(1, 1, "a"))
    assert reading.step(history.checkpoint(1, 5)).roots_seen == []
    (seen,) = reading.step(history.fill(1, 1)).roots_seen
    assert isinstance(seen, RootSeen)
    assert (seen.incarnation, seen.size, seen.name) == (1, 5, reading.joiner.incarnations.get(1).name)  # type: ignore[union-attr]
    assert seen.voters == {seen.name}


def test_voters_were_active_within_a_day_of_log_time() -> None:
    """The voters were active within a day of log time: one that left has no vote, a fenced one has none, one that only registered has."""
    history, reading = registered()
    reading.step(history.register("gone"), history.register("fenced"), history.fence(3, 0))
    late = T0 + VOTERS_MS + 60_000
    reading.step(history.register("new", at=late), history.entry(1, 1, "a", at=late), history.payload(1, 1, "a"))
    (seen,) = reading.step(history.checkpoint(1, 1)).roots_seen
    assert isinstance(seen, RootSeen)
    assert seen.voters == {seen.name, "new"}
