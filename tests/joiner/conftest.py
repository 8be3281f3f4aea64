"""Fixtures: a log that injects faults on demand, and workers that use it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.joiner.faulty import FaultyLog, Start, Worker


@pytest.fixture
async def log() -> AsyncIterator[FaultyLog]:
    opened = FaultyLog()
    yield opened
    await opened.close()


@pytest.fixture
async def start(log: FaultyLog, tmp_path: Path) -> AsyncIterator[Start]:
    """Returns a function that starts workers on the log, each with an index under its name; all stop at the end, and leave nothing open."""
    started: list[Worker] = []

    def start(name: str = "w1", **settings: Any) -> Worker:
        started.append(Worker(log, tmp_path / name, name, **settings))
        return started[-1]

    async with asyncio.timeout(60):
        yield start
    for worker in started:
        await worker.stop()
    assert not log.opened
