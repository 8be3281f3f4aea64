"""The times at which fills for holes and fences of silent incarnations are proposed (R4, R5)."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from joiner import Joiner, JoinerLimits
from joiner.due import FILL_SCANS
from joiner.ready import FenceWanted, FillWanted
from ordering.records import batch_key
from tests.joiner.history import T0, named, registered

HOLE_MS = JoinerLimits().hole_timeout_ms


# ---- fills (R4) ----


def _scans(limits: JoinerLimits, entries: int) -> Iterator[tuple[int, list[FillWanted]]]:
    """Yields (time, proposals) of steps a millisecond apart, from the first proposal on, with this many holes that stay."""
    history, reading = registered(limits=limits)
    reading.step(*[history.entry(1, sequence, partition=sequence % 2) for sequence in range(1, entries + 1)], now=0)
    for now in range(limits.hole_timeout_ms, 4 * limits.hole_timeout_ms):
        yield now, reading.step(now=now).fills


def test_holes_are_looked_for_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few waiting records are examined in a hole_timeout, however many wait behind an old hole and however many steps come."""
    looked_at = 0

    def counted(self: Joiner, fill: FillWanted) -> bool:
        nonlocal looked_at
        looked_at += 1
        return True

    monkeypatch.setattr(Joiner, "is_hole", counted)
    limits = JoinerLimits(hole_timeout_ms=100, fill_scan_records_max=50, fills_proposed_max=1000)
    assert max(len(fills) for _, fills in _scans(limits, 5_000)) == 50
    # Each is proposed once in a timeout, so it is examined once.
    assert looked_at <= 3 * 50
    looked_at = 0
    monkeypatch.setattr(Joiner, "is_hole", lambda self, fill: counted(self, fill) and False)
    list(_scans(limits, 5_000))
    assert looked_at <= 3 * (FILL_SCANS + 1) * 50


def test_every_hole_gets_its_turn() -> None:
    """If there are more holes than are proposed at once, each is proposed within a hole_timeout, the earliest first, and none twice."""
    limits = JoinerLimits(hole_timeout_ms=100, fills_proposed_max=10)
    proposed = [(now, fill) for now, fills in _scans(limits, 60) for fill in fills]
    first = [fill for now, fill in proposed if now < 200]
    assert [fill.sequence for fill in first] == list(range(1, 61))
    for sequence in range(1, 61):
        times = [now for now, fill in proposed if fill.sequence == sequence]
        assert all(later - now >= 100 for now, later in pairwise(times))
        assert len(times) >= 2


def test_holes_beyond_the_scan_move_up() -> None:
    """Holes beyond the scan are proposed once those before them are filled."""
    limits = JoinerLimits(hole_timeout_ms=100, fill_scan_records_max=3, fills_proposed_max=2)
    history, reading = registered(limits=limits)
    reading.step(*[history.entry(1, sequence) for sequence in range(1, 21)], now=0)
    for now in range(0, 100_000, 10):
        ready = reading.step(now=now)
        reading.step(*[history.fill(fill.incarnation, fill.sequence) for fill in ready.fills], now=now)
    assert named(reading.batches) == [(1, sequence, "filled") for sequence in range(1, 21)]


def test_hole_closed_in_time() -> None:
    """A hole whose content comes in the step that would have proposed it is not proposed."""
    history, reading = registered()
    reading.step(history.entry(1, 1, "a"), now=0)
    assert reading.step(history.payload(1, 1, "a"), now=HOLE_MS).fills == []


# ---- fences (R5) ----


def test_a_fence_is_proposed_after_silent_log_time() -> None:
    """An incarnation with an orphan here is proposed for a fence after worker_timeout of silent log time, and again only after a while."""
    limits = JoinerLimits(worker_timeout_ms=1000, fence_bytes_min=0)
    history, reading = registered("w1", "w2", limits=limits)
    reading.step(history.entry(1, 1, "x", at=T0), history.payload(1, 1, "x"), history.payload(1, 5, "orphan"), now=0)
    assert reading.step(now=10**9).fences == []
    reading.step(history.entry(2, 1, "b", at=T0 + 1000), history.payload(2, 1, "b"), now=10**9)
    assert reading.step(now=2 * 10**9).fences == []
    assert reading.step(history.entry(2, 2, "c", at=T0 + 1001), history.payload(2, 2, "c"), now=3 * 10**9).fences == []
    assert reading.step(now=3 * 10**9 + HOLE_MS).fences == [FenceWanted(1, 1)]
    assert reading.step(now=3 * 10**9 + 2 * HOLE_MS - 1).fences == []
    assert reading.step(now=3 * 10**9 + 2 * HOLE_MS).fences == [FenceWanted(1, 1)]


def test_no_fence_while_memory_is_free() -> None:
    """A payload of an idle incarnation leads to no fence while payloads need little memory: anyone who may write can forge it."""
    limits = JoinerLimits(worker_timeout_ms=1000, buffer_bytes_max=8_000)
    history, reading = registered("busy", "idle", limits=limits)
    reading.step(history.put(0, batch_key(2, 1 << 60), b"forged"), now=0)
    reading.step(history.entry(1, 1, "a", at=T0 + 5000), history.payload(1, 1, "a"), now=10)
    assert reading.step(now=10 + HOLE_MS).fences == []
    reading.step(history.put(1, batch_key(9, 1), b"forged" * 300), now=10 + HOLE_MS)
    assert reading.step(now=10 + 2 * HOLE_MS).fences == [FenceWanted(2, 0)]


def test_a_fence_ends_what_holds_a_restart_back() -> None:
    """The payload of an incarnation that never returns leads to a fence once a restart would read many later payloads again."""
    history, reading = registered("busy", "gone", limits=JoinerLimits(worker_timeout_ms=1000, reread_records_max=2))
    reading.step(history.payload(2, 1, "b"), history.entry(1, 1, "a", at=T0 + 5000), history.payload(1, 1, "a"), now=0)
    assert reading.step(now=HOLE_MS).fences == []
    reading.step(history.payload(1, 2, "c"), history.entry(1, 2, "c", at=T0 + 5001), now=HOLE_MS)
    assert reading.step(now=2 * HOLE_MS).fences == [FenceWanted(2, 0)]
