"""`counted_turns`: counts the turns of the event loop that other tasks get while a block runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Turns:
    """The number of turns so far."""

    count = 0


@contextlib.asynccontextmanager
async def counted_turns() -> AsyncIterator[Turns]:
    """Count the turns of another task for the length of a block."""
    turns = Turns()

    async def count() -> None:
        while True:
            turns.count += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        yield turns
    finally:
        counting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await counting
