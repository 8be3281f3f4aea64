"""Tests of the joiner's core, one behaviour at a time. `history` writes the logs; the test passes every record to the joiner.

`tests/scenarios` has more of them, with the complete output.
"""

import time
from hashlib import sha256

import pytest

import payload.codec
import payload.submission
from joiner import JoinerLimits, core, payloads
from ordering.log import ORDERING
from ordering.records import batch_key
from payload import Request
from tests.joiner.history import T0, History, Reading, named, registered, requests, rest, value


@pytest.mark.parametrize("key", [None, b"", bytes(15), bytes(17)])
def test_a_malformed_payload_key_is_skipped(key: bytes | None) -> None:
    """A payload record with a malformed key is skipped with an anomaly, and is not read again."""
    history, reading = registered()
    ready = reading.step(history.put(1, key, value("a")), history.register("w2"))
    assert [(anomaly.kind, anomaly.partition, anomaly.offset) for anomaly in ready.anomalies] == [("malformed", 1, 0)]
    assert ready.offsets_next[1] == 0
    assert reading.joiner.buffered_records == 0


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
