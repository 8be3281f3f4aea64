"""Tests the end of Kafka clients, with work that does not end when it should."""

import asyncio

import pytest

from ordering.endings import _within


async def test_a_close_that_hangs_can_be_cancelled() -> None:
    """A task that is cancelled while it closes a client ends: otherwise a worker with a fatal error would never exit."""
    resists = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            resists.set()
            await asyncio.Event().wait()

    closing = asyncio.create_task(_within(work(), 0.01))
    await resists.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
