"""The longest turn of an event loop, on both kinds of loop."""

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from notary import loop_watch
from notary.loop_watch import LoopWatch


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_long_turn_is_seen_for_a_while(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A long turn is measured, less the time until the timer was due, and forgotten after two windows without another."""
    monkeypatch.setattr(loop_watch, "WINDOW_CHECKS", 1_000_000)

    async def hold() -> None:
        watch = LoopWatch()
        watch.start()
        await asyncio.sleep(0)
        time.sleep(1.0)  # noqa: ASYNC251 - it is what the watch is for
        while not watch.longest_s:  # noqa: ASYNC110 - the timer says when
            await asyncio.sleep(0.01)
        assert watch.longest_s > 1.0 - 2 * loop_watch.CHECK_S
        monkeypatch.setattr(loop_watch, "WINDOW_CHECKS", watch._checks + 1)
        while watch.longest_s > 1.0 - 2 * loop_watch.CHECK_S:
            monkeypatch.setattr(loop_watch, "WINDOW_CHECKS", watch._checks + 1)
            await asyncio.sleep(0.01)

    run(hold())
