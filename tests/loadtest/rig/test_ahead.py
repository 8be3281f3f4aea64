"""Tests submissions that another process generates."""

import asyncio
import os
import signal
from itertools import islice

import pytest

from loadtest.rig.ahead import Ahead
from loadtest.rig.generate import submissions

pytestmark = pytest.mark.seconds


async def test_submissions_made_elsewhere_are_the_same() -> None:
    """Submissions from the other process are exactly those that this one would make."""
    async with Ahead.of(7, 3, 2, 20) as ahead:
        await ahead.filled()
        taken = [ahead.take() for _ in range(20)]
        assert taken == list(islice(submissions(7, 3, 2), 20))
        assert (ahead.take(), ahead.left) == (None, 0)


async def test_a_maker_that_ends_early_is_noticed() -> None:
    """The end of the process that makes submissions is noticed, so that nothing waits for more."""
    async with Ahead.of(7, 100, 2, 10_000_000) as ahead:
        await ahead.filled()
        os.kill(ahead.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while not ahead.problem:
                ahead.take()
                await ahead.more()
        assert "ended" in ahead.problem
