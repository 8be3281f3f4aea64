"""Tests of the joiner's core, one behaviour at a time. `history` writes the logs; the test passes every record to the joiner.

`tests/scenarios` has more of them, with the complete output.
"""

import time
from hashlib import sha256

import pytest

import payload.codec
import payload.submission
from joiner import JoinerLimits, core, payloads
from joiner.core import SENT_AT_AHEAD_MAX_MS, VOTERS_MS
from joiner.ready import RootSeen
from ordering.log import ORDERING
from ordering.records import batch_key
from payload import Request
from tests.joiner.history import T0, History, Reading, kinds, named, own_batch, registered, requests, rest, value

# ---- R2: which entries count ----


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


@pytest.mark.parametrize("key", [None, b"", bytes(15), bytes(17)])
def test_a_malformed_payload_key_is_skipped(key: bytes | None) -> None:
    """A payload record with a malformed key is skipped with an anomaly, and is not read again."""
    history, reading = registered()
    ready = reading.step(history.put(1, key, value("a")), history.register("w2"))
    assert [(anomaly.kind, anomaly.partition, anomaly.offset) for anomaly in ready.anomalies] == [("malformed", 1, 0)]
    assert ready.offsets_next[1] == 0
    assert reading.joiner.buffered_records == 0


# ---- R3: the first record in its partition that is the content ----


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


# ---- R5: incarnations, orphans ----


def test_unregistered_orphans_are_counted() -> None:
    """Payloads of incarnations that have not registered are counted separately, by number and cost, until these register."""
    history, reading = registered()
    reading.step(history.payload(1, 1, "a"), history.payload(2, 1, "b"), history.fill(2, 2, partition=1), history.payload(3, 1, "c"))
    records, size_bytes = reading.joiner.unregistered
    assert records == 3
    assert len(value("b")) + len(value("c")) < size_bytes < reading.joiner.buffered_bytes
    reading.step(history.register("w2"), history.register("w3"))
    assert reading.joiner.unregistered == (0, 0)
    assert reading.joiner.buffered_records == 4


def test_a_step_beside_many_unknown_incarnations() -> None:
    """A step takes as long beside payloads of many incarnations that never registered as beside a few."""

    def least_s(count: int) -> float:
        history, reading = registered()
        reading.step(*[history.put(0, batch_key(1_000 + number, 1), b"x") for number in range(count)])
        assert reading.joiner.unregistered[0] == count
        steps = []
        for _ in range(20):
            began_s = time.perf_counter()
            reading.step()
            reading.joiner.buffered_run(0)
            steps.append(time.perf_counter() - began_s)
        return min(steps)

    assert least_s(20_000) < 20 * least_s(100)


# ---- R6: log time ----


def test_log_time_is_held_back() -> None:
    """A broker's clock that jumps ahead moves log time at most a minute past the sender's clock. The sender's clock alone moves nothing."""
    history, reading = registered()
    for sequence, (at, sent_at) in enumerate([(T0, 2**63 - 1), (T0 + 10**9, T0), (T0 + 10**9, T0 + 1)], 1):
        reading.step(history.entry(1, sequence, at=at, sent_at=sent_at), history.fill(1, sequence))
    assert [batch.log_time_ms - T0 for batch in reading.batches] == [0, SENT_AT_AHEAD_MAX_MS, SENT_AT_AHEAD_MAX_MS + 1]
    assert SENT_AT_AHEAD_MAX_MS == 60_000


# ---- R8: offsets to resume from ----


def test_a_restart_after_any_step_emits_the_same_batches() -> None:
    """A joiner that starts from the state after any step emits the same batches from there on as the first joiner."""
    history = History()
    records = [
        history.genesis,
        history.register("w1"),
        history.payload(2, 1, "b", partition=1),
        history.payload(1, 1, "a"),
        history.entry(1, 1, "a"),
        history.register("w2"),
        history.entry(2, 1, "b", partition=1, at=T0 + 7000),
        history.entry(1, 3, "c"),
        history.entry(2, 2, "d"),
        history.fill(1, 3),
        history.payload(1, 3, "c"),
        history.fence(1, 3),
        history.entry(1, 4, "e"),
        history.payload(1, 4, "e"),
        history.payload(2, 2, "d"),
        history.register("w2"),
        history.payload(3, 1, "f"),
        history.entry(3, 1, "f", at=T0),
    ]
    complete = Reading()
    complete.step(*records)
    assert named(complete.batches) == [(1, 1, "1"), (2, 1, "1"), (1, 3, "filled"), (2, 2, "1"), (3, 1, "1")]
    reading = Reading()
    for record in records:
        reading.step(record)
        again = reading.restarted()
        again.step(*rest(history, reading.state))
        assert reading.batches + again.batches == complete.batches
        assert again.state.incarnations == complete.state.incarnations
        assert again.state.effects == complete.state.effects
        assert again.state.marks == complete.state.marks


def test_records_handed_in_twice() -> None:
    """Records that a new reader repeats are ignored."""
    history, reading = registered()
    entry, payload = history.entry(1, 1, "a"), history.payload(1, 1, "a")
    reading.step(entry, payload)
    ready = reading.step(*history.by_partition[ORDERING], *history.by_partition[0])
    assert not ready.advanced
    assert not ready.anomalies
    assert reading.joiner.read_next() == {ORDERING: 3, 0: 1}


# ---- limits ----


def test_full_buffer_pauses_all_but_the_head() -> None:
    """A full buffer pauses every payload partition except the one that the head waits for, and resumes them well below its limit."""
    history, reading = registered(limits=JoinerLimits(buffer_bytes_max=6000))
    orphan = [history.payload(1, sequence, "x" * 10, partition=1) for sequence in range(2, 9)]
    assert reading.step(*orphan).paused == {0, 1}
    assert reading.step(history.entry(1, 1, "a", partition=0)).paused == {1}
    ready = reading.step(history.payload(1, 1, "a"), history.entry(1, 2, "x" * 10, partition=1))
    assert ready.paused == {0, 1}
    assert reading.step(history.entry(1, 8, "x" * 10, partition=1)).paused == frozenset()


def test_a_step_ends_at_its_limit() -> None:
    """A step ends after the batch that reaches its limit and reports that there is more; a step without records continues."""
    history, reading = registered(limits=JoinerLimits(step_requests_max=2))
    records = [history.entry(1, sequence, f"{sequence}") for sequence in (1, 2, 3)]
    records += [history.payload(1, sequence, f"{sequence}") for sequence in (1, 2, 3)]
    ready = reading.step(*records)
    assert (len(ready.batches), ready.more, ready.offsets_next[ORDERING]) == (2, True, 4)
    ready = reading.step()
    assert (len(ready.batches), ready.more) == (1, False)


def test_step_bound_reached_exactly() -> None:
    """A step that reaches its bound with the last record has no more."""
    history, reading = registered(limits=JoinerLimits(step_requests_max=1))
    assert not reading.step(history.entry(1, 1, "a"), history.payload(1, 1, "a")).more


# ---- large batches ----

_LARGE = JoinerLimits(large_bytes=len(value("a", "b")))


def _prepared(reading: Reading) -> tuple[int, tuple[Request, ...]]:
    """Returns the number of pieces of the work before the next step, and its result."""
    pieces = reading.joiner.prepare()
    count = 0
    while True:
        try:
            next(pieces)
            count += 1
        except StopIteration as done:
            return count, done.value


@pytest.mark.parametrize("entry_first", [True, False])
def test_a_large_batch_has_a_step_of_its_own(entry_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records before it are applied first. It is decoded in pieces before its step, and comes out alone, with what follows it."""
    history, reading = registered(limits=_LARGE)
    small = [history.entry(1, 1, "s"), history.payload(1, 1, "s")]
    large = [history.entry(1, 2, "a", "b"), history.payload(1, 2, "a", "b")]
    after = [history.entry(1, 3, "t"), history.payload(1, 3, "t")]
    ready = reading.step(*small, *(large if entry_first else reversed(large)), *after)
    assert (named(ready.batches), ready.more) == ([(1, 1, "1")], True)
    monkeypatch.setattr(payload.submission, "STATES_A_PIECE", 1)
    monkeypatch.setattr(payload.codec, "STATES_A_PIECE", 1)
    pieces, found = _prepared(reading)
    assert pieces >= 2
    assert found == requests("a", "b")
    ready = reading.step()
    assert ready.batches[0].requests is found
    assert named(reading.batches) == [(1, 1, "1"), (1, 2, "2"), (1, 3, "1")]
    assert _prepared(reading) == (0, ())


def test_a_large_batch_is_applied_without_preparation_too() -> None:
    """A step without records applies it: `prepare` only saves that step time."""
    history, reading = registered(limits=_LARGE)
    assert reading.step(history.payload(1, 1, "a", "b"), history.entry(1, 1, "a", "b")).more
    assert named(reading.step().batches) == [(1, 1, "2")]


def test_what_is_not_its_content_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is decoded for an entry without a good signature, nor from a record that is not the entry's content."""
    history, reading = registered(limits=_LARGE)
    monkeypatch.setattr(core, "decode_requests_in_pieces", lambda *_: pytest.fail("decoded inside a step"))
    forged = history.payload(1, 1, "x", "y")
    assert reading.step(forged, history.entry(1, 1, "a", "b")).more
    assert _prepared(reading) == (0, ())
    ready = reading.step()
    assert (ready.batches, ready.more, reading.joiner.hole_offset) == ([], False, 2)


def test_a_hole_stays_one_while_its_large_content_waits() -> None:
    """An interruption before its step reads again what was skipped as another record's content: after a cut it may be the content."""
    history, reading = registered(limits=_LARGE)
    reading.step(history.payload(1, 1, "s"), history.entry(1, 1, "s"))
    reading.step(history.entry(1, 2, "a", "b"))
    skipped = history.payload(1, 2, "x")
    reading.step(skipped)
    assert reading.step(history.payload(1, 2, "a", "b")).more
    assert reading.joiner.hole is not None
    assert reading.joiner.forget_unapplied()[0].offset_next <= skipped.offset


# ---- checkpoints ----


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


def test_a_scan_hashes_each_payload_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the head is an old hole, a scan comes eight times in each `hole_timeout_ms`, and any number of payloads may wait behind it."""
    limits = JoinerLimits()
    history, reading = registered(limits=limits)
    records = [history.entry(1, 1, "missing", partition=1)]
    for sequence in range(2, 20):
        records += [history.entry(1, sequence, f"{sequence}"), history.payload(1, sequence, f"{sequence}")]
    reading.step(*records, now=0)
    hashed: list[bytes] = []
    monkeypatch.setattr(payloads, "sha256", lambda value: hashed.append(value) or sha256(value))
    for scan in range(3):
        ready = reading.step(now=limits.hole_timeout_ms + 1 + scan * (limits.hole_timeout_ms // 8 + 1))
        assert len(ready.fills) == (scan == 0)
    assert len(hashed) == 18
