"""Tests the fills of complete workers where another worker has passed a hole: nothing is filled, and the worker stops (R10)."""

import asyncio

import pytest

from joiner.read_ahead import ReadAhead
from ordering.errors import FatalCode
from ordering.log import Log
from ordering.records import Settle, View, batch_key
from tests.joiner.faulty import DRIVER, FaultyLog, Start, id_of
from tests.joiner.history import value


async def test_a_hole_that_somebody_has_passed_is_not_filled(start: Start, log: FaultyLog) -> None:
    """A worker that replays stops at a lost content with the entry's name, fills nothing, and continues when the bytes are restored."""
    log.register("w2")
    log.entry(1, 1, "lost", "too", partition=1)
    log.entry(1, 2, "b", partition=1, view=View(3, bytes(32)))
    ends = log.ends()
    worker = start()
    fatal = str(await worker.dies())
    assert "content is lost: the payload of batch (1, 1), 2 requests, is not in payload partition 1" in fatal
    assert "ordering record 3 shows that it was there: its writer had seen 3 records, and there are 2 before this batch" in fatal
    assert log.ends() == ends
    await worker.stop()
    log.put(1, batch_key(1, 1), value("lost", "too"))
    log.put(1, batch_key(1, 2), value("b"))
    again = start()
    await again.until(lambda: again.index.position_next == 3)


async def test_an_entry_that_the_log_loses_after_its_content(start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content has been missing for the limit. While the worker looks once more, the log loses the entry too: the worker continues."""
    log.register("w2")
    log.entry(1, 1, "lost", partition=1)
    log.entry(1, 2, "b", partition=1, view=View(3, bytes(32)))
    read, worker, cut = ReadAhead.read, start(), asyncio.Event()

    async def losing(ahead: ReadAhead, of: Log) -> None:
        await read(ahead, of)
        since = worker.driver._proposals._lost_since
        if since is not None and worker.driver._now_s() - since[1] >= DRIVER.contradiction_s and not cut.is_set():
            log.cut(2, 0, 0, 0)
            cut.set()

    monkeypatch.setattr(ReadAhead, "read", losing)
    await worker.until(cut.is_set)
    assert len(await worker.decided("a")) == 1


async def test_a_lost_content_that_the_owner_gives_up(start: Start, log: FaultyLog) -> None:
    """If no worker has the bytes, the owner settles the history up to the hole: it is filled, and so are those behind it."""
    log.register("w2")
    log.entry(1, 1, "lost", partition=1)
    log.entry(1, 2, "lost too", partition=1, view=View(3, bytes(32)))
    log.entry(1, 3, "lost as well", partition=2, view=View(4, bytes(32)))
    worker = start()
    assert (await worker.dies()).code is FatalCode.CONTENT_LOST
    view = worker.joiner.history.view
    await worker.stop()
    assert view.seen == 2
    log.put_signed(Settle(view))
    again = start()
    await again.until(lambda: again.joiner.offset_head == log.ends()[0])
    # The longer histories of others were foreign views: the owner also ends that suspicion, once the log shows the result.
    log.put_signed(Settle(again.joiner.history.view))
    assert len(await again.decided("a")) == 1
    assert [again.index.decision(id_of(label)) for label in ("lost", "lost too", "lost as well")] == [None] * 3
