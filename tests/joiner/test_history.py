"""Tests of the running history, of views of it, and of the records kept for a comparison with the log (R10)."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from joiner import Effect, Joiner, Mark
from joiner import history as history_module
from joiner.history import NO_CONTENT, Comparison, fingerprint_of
from joiner.history import History as Effects
from ordering.log import ORDERING, Record
from ordering.records import View, batch_key
from tests.joiner.history import T0, History, Reading, named

VECTORS = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())["log"]


def _effects(count: int, first: int = 1) -> list[Effect]:
    return [Effect(seen, bytes([seen % 256]) * 32, seen, 0, b"") for seen in range(first, first + count)]


def test_the_vectors_record_by_record() -> None:
    """The history after each record of the worked example is the one that an independent program computed."""
    joiner = Joiner(worker_name="reader")
    offsets: dict[int, int] = {}
    for payload in VECTORS["payload"]:
        partition = payload["partition"]
        offsets[partition] = offsets.get(partition, -1) + 1
        key, value = bytes.fromhex(payload["key_hex"]), bytes.fromhex(payload["value_hex"])
        joiner.step([Record(partition, offsets[partition], 0, key, value)], 0)
    for offset, record in enumerate(VECTORS["ordering"]):
        value = bytes.fromhex(record["value_hex"])
        ready = joiner.step([Record(ORDERING, offset, record["append_time"], None, value)], 0)
        assert ready.advanced, record["what"]
        assert joiner.hole is None
        assert (len(ready.effects) == 1) is record["takes_effect"], record["what"]
        assert ready.evidence is None, record["what"]
        view = View(record["seen_after"], bytes.fromhex(record["history_after"]))
        assert joiner.history.view == view, record["what"]
        assert joiner.history.compare(view) is Comparison.OWN
    assert joiner.log_state is not None
    assert joiner.log_state.log_id.hex() == VECTORS["log_id"]


def _history_of(*, late_ms: int = 0, filled: bool = False, copies: bool = False) -> View:
    history, reading = History(), Reading()
    records = [history.genesis, history.register("w1"), history.entry(1, 1, "a", at=T0 + 5 + late_ms, sent_at=T0 + 5)]
    if copies:
        records += [history.put(ORDERING, None, record.value) for record in records]
    records.append(history.fill(1, 1) if filled else history.payload(1, 1, "a"))
    records.append(history.checkpoint(1, 1) if copies else history.put(ORDERING, None, b"garbage"))
    reading.step(*records)
    return reading.view


def test_what_belongs_to_the_history() -> None:
    """The history covers append times and whether there was content; it does not cover copies, checkpoints and skipped records."""
    view = _history_of()
    assert view.seen == 3
    assert _history_of(copies=True) == view
    assert _history_of(late_ms=1) != view
    assert _history_of(filled=True) != view


def test_content_that_decides_nothing_is_content() -> None:
    """The mark is set if the payload was joined, even if it does not decode: only a fill leaves it unset."""
    histories = []
    for content in (b"[not JSON", None):
        history, reading = History(), Reading()
        asked = sha256(b"[not JSON").digest()
        reading.step(history.genesis, history.register("w1"))
        entry = history.entry(1, 1, payload_hash=asked, at=T0 + 9)
        record = history.fill(1, 1) if content is None else history.put(0, batch_key(1, 1), content)
        reading.step(entry, record)
        assert reading.joiner.hole is None
        histories.append(reading.view)
    assert histories[0] != histories[1]
    assert [view.seen for view in histories] == [3, 3]


def test_a_view_is_own_foreign_or_older() -> None:
    """A view is the reader's own, foreign (a longer history, or another hash), or older than the kept history, which shows nothing."""
    effects = Effects(_effects(3, first=5))
    assert (effects.seen, effects.seen_first) == (7, 5)
    assert effects.view == View(7, bytes([7]) * 32)
    for seen in (5, 6, 7):
        assert effects.compare(View(seen, bytes([seen]) * 32)) is Comparison.OWN
        assert effects.compare(View(seen, bytes(32))) is Comparison.FOREIGN
    assert effects.compare(View(8, bytes([8]) * 32)) is Comparison.FOREIGN
    assert effects.compare(View(2**64 - 1, bytes(32))) is Comparison.FOREIGN
    assert effects.compare(View(4, bytes(32))) is Comparison.TOO_OLD
    assert effects.compare(View(0, bytes(32))) is Comparison.TOO_OLD


def test_only_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of kept effects is bounded; their ordinals continue."""
    monkeypatch.setattr(history_module, "HISTORY_KEPT", 4)
    effects = Effects(_effects(6))
    effects.append(_effects(1, first=7)[0])
    assert (effects.seen, effects.seen_first) == (7, 4)
    assert [effect.seen for effect in effects.since(0)] == [4, 5, 6, 7]
    assert [effect.seen for effect in effects.since(6)] == [6, 7]
    with pytest.raises(AssertionError):
        effects.append(_effects(1, first=9)[0])


def test_where_records_and_contents_stand() -> None:
    """The offset, time and fingerprint of each record that took effect are kept, and the same of its content."""
    history, reading = History(), Reading()
    records = [history.genesis, history.register("w1"), history.put(ORDERING, None, b"garbage")]
    junk, payload, entry = (
        history.payload(9, 9, "x", partition=1),
        history.payload(1, 1, "a", partition=1),
        history.entry(1, 1, "a", partition=1),
    )
    effects = reading.step(*records, junk, payload, entry).effects
    assert [(effect.seen, effect.offset, effect.append_time_ms) for effect in effects] == [
        (1, 0, T0),
        (2, 1, T0 + 1),
        (3, 3, entry.append_time_ms),
    ]
    assert [effect.fingerprint for effect in effects] == [fingerprint_of(record) for record in (*records[:2], entry)]
    assert [effect.partition for effect in effects] == [NO_CONTENT, NO_CONTENT, 1]
    assert (effects[2].content_offset, effects[2].content_fingerprint) == (1, fingerprint_of(payload))


def test_a_mark_is_the_furthest_record_that_took_effect() -> None:
    """The mark of a partition is the content with the highest offset, not the last one joined."""
    history, reading = History(), Reading()
    reading.step(history.genesis, history.register("w1"), history.register("w2"))
    first, second = history.payload(2, 1, "b"), history.payload(1, 1, "a")
    ready = reading.step(first, second, history.entry(1, 1, "a"), history.entry(2, 1, "b"))
    assert reading.joiner.marks[0] == Mark(second.offset, fingerprint_of(second))
    assert ready.offsets_next == {ORDERING: 5, 0: 2}
    assert reading.joiner.marks[ORDERING].offset == 4


def test_fingerprints_distinguish_records() -> None:
    """A fingerprint covers topic-partition, offset, append time, key and value, and their boundaries."""
    record = Record(0, 7, T0, b"key", b"value")
    others = [
        Record(1, 7, T0, b"key", b"value"),
        Record(0, 8, T0, b"key", b"value"),
        Record(0, 7, T0 + 1, b"key", b"value"),
        Record(0, 7, T0, b"kex", b"value"),
        Record(0, 7, T0, b"key", b"valuf"),
        Record(0, 7, T0, b"keyv", b"alue"),
        Record(0, 7, T0, None, b"value"),
        Record(0, 7, T0, b"key", None),
    ]
    assert len({fingerprint_of(one) for one in (record, *others)}) == 1 + len(others)


def test_reading_goes_on_behind_the_last_effect() -> None:
    """Skipped records behind the last one that took effect are read again: after a cut they may differ."""
    history, reading = History(), Reading()
    reading.step(history.genesis, history.register("w1"))
    ready = reading.step(history.put(ORDERING, None, b"garbage"), history.checkpoint(1, 0, view=reading.view))
    assert ready.advanced
    assert ready.offsets_next[ORDERING] == 2


def test_forgetting_is_a_restart() -> None:
    """After `forget_unapplied` the joiner reads the same records as a restarted one, with the same result as before."""
    history, reading = History(), Reading()
    reading.step(history.genesis, history.register("w1"), history.payload(1, 1, "a"), history.entry(1, 1, "a"))
    reading.step(history.entry(1, 2, "b"), history.payload(1, 3, "c", partition=1), history.register("w2"))
    assert reading.joiner.hole is not None
    reading.joiner.forget_unapplied()
    joiner = reading.joiner
    assert joiner.read_next() == {ORDERING: 3, 0: 1, 1: 0}
    assert (joiner.hole, joiner.queued_records, joiner.buffered_records, joiner.offset_head) == (None, 0, 0, 3)
    again = [record for partition, records in history.by_partition.items() for record in records[joiner.read_next().get(partition, 0) :]]
    reading.step(*again, history.payload(1, 2, "b"))
    assert [batch.sequence for batch in reading.batches] == [1, 2]
    assert reading.view.seen == 5


def test_a_step_after_forgetting_does_not_skip_what_was_not_read_again() -> None:
    """The offset persisted after `forget_unapplied` stays before the mark until the records there were read again."""
    history, reading = History(), Reading()
    reading.step(history.genesis, history.register("w1"), history.register("w2"))
    early, later = history.payload(2, 1, "b"), history.payload(1, 1, "a")
    reading.step(early, later, history.entry(1, 1, "a"))
    assert reading.state.offsets_next[0] == 0
    reading.joiner.forget_unapplied()
    ready = reading.step(history.register("w3"))
    assert ready.offsets_next[0] == 0
    again = reading.restarted()
    again.step(*history.by_partition[0][again.state.offsets_next[0] :], history.entry(2, 1, "b"))
    assert [batch.incarnation for batch in again.batches] == [2]


@pytest.mark.parametrize("interruptions", [1, 2])
def test_what_the_head_did_not_ask_for_is_read_again(interruptions: int) -> None:
    """After a cut of the ordering topic, an entry of the same name may name a payload that the earlier entry released: it is read again."""
    log, cut, reading = History(), History(), Reading()
    for one in (log, cut):
        # The payload is before the furthest joined content, so the mark alone does not make it read again.
        one.register("w1", "w1")
        one.register("w2", "w2")
        one.payload(1, 1, "a")
        one.payload(2, 1, "b")
        one.entry(2, 1, "b")
    assert log.by_partition == cut.by_partition
    log.entry(1, 1, "another")
    reading.step(*log.by_partition[0], *log.by_partition[ORDERING])
    assert reading.joiner.marks[0].offset == 1
    for interruption in range(interruptions):
        kept = reading.joiner.forget_unapplied()[0]
        assert kept.offset_next == 0
        if interruption + 1 < interruptions:
            # The entry comes first this time, so the payload is skipped when it is read, and never enters the buffer.
            reading.step(*kept.records, *log.by_partition[ORDERING][reading.joiner.read_next()[ORDERING] :])
            reading.step(*log.by_partition[0][:1])
            assert reading.joiner.buffered_records == 0
    assert reading.joiner.offset_head == 4
    cut.entry(1, 1, "a")
    reading.step(*kept.records, *cut.by_partition[ORDERING][4:], *cut.by_partition[0][kept.offset_next :])
    assert named(reading.batches) == [(2, 1, "1"), (1, 1, "1")]
