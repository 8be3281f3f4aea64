"""How long calls wait, each for its own time at most; all who wait can be cut short together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any


class Patience:
    """Those who wait for one kind of thing. One event loop."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        self.is_over = False
        """Whether it was cut short."""

    @contextlib.asynccontextmanager
    async def at_most(self, seconds: float) -> AsyncIterator[None]:
        """`asyncio.timeout`: `TimeoutError` when what is inside takes longer, or is cut short."""
        async with asyncio.timeout(seconds) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    async def wait(self, awaited: asyncio.Future[Any], seconds: float) -> bool:
        """Whether `awaited` is done after so many seconds at most. It goes on all the same; cheaper than a task cancelled by a timeout."""
        if awaited.done():
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake(_: object = None) -> None:
            if not waiter.done():
                waiter.set_result(None)

        awaited.add_done_callback(wake)
        timer = loop.call_later(seconds, wake)
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            timer.cancel()
            awaited.remove_done_callback(wake)
        return awaited.done()

    def cut_short(self) -> None:
        """End all waiting that there is now."""
        self.is_over = True
        now_s = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now_s)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
