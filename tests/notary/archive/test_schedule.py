"""Whose turn it is to seal segments."""

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from joiner.incarnations import Incarnations
from notary.archive.schedule import ArchiveSchedule
from notary.archive.settings import ArchiveSettings, SealCommand, Sealed
from notary.config import Config


def schedule(incarnations: Incarnations, own: int | None, log_time_ms: int) -> ArchiveSchedule:
    """Returns the schedule of the worker with that incarnation."""
    limits = SimpleNamespace(worker_timeout_ms=30_000)
    driver: Any = SimpleNamespace(joiner=SimpleNamespace(incarnations=incarnations, limits=limits, log_time_ms=log_time_ms))
    sender: Any = SimpleNamespace(incarnation=own)
    config = Config("n", "o", archive=ArchiveSettings(url="segments", every_s=1))
    return ArchiveSchedule(config, driver, sender, lambda: True, lambda: 0.0)


def process_of(write: Callable[[bytes], None], *given: Sealed) -> Any:
    """Returns a process that passes each command to `write`, and gives these answers."""
    answers = asyncio.StreamReader()
    for answer in given:
        answers.feed_data(msgspec.json.encode(answer) + b"\n")

    async def done() -> None:
        pass

    return SimpleNamespace(stdin=SimpleNamespace(write=write, drain=done), stdout=answers, kill=lambda: None, wait=done)


@pytest.mark.parametrize(("own", "turn"), [(1, 0), (2, 1), (3, 2), (None, 3)])
def test_the_first_to_register_comes_first(own: int | None, turn: int) -> None:
    """Turns follow the order of the registrations; a worker that has not registered comes last."""
    incarnations = Incarnations()
    for name in ("w1", "w2", "w3"):
        incarnations.register(name.encode(), name, 0)
    assert schedule(incarnations, own, 10_000).turn() == turn


def test_silent_and_fenced_workers_have_no_turn() -> None:
    """A worker that log time has left behind, or whose incarnation is over, holds nobody up."""
    incarnations = Incarnations()
    for name in ("silent", "fenced", "w3"):
        incarnations.register(name.encode(), name, 0)
    incarnations.count(2, 1, 40_000)
    incarnations.count(3, 1, 40_000)
    assert schedule(incarnations, 3, 40_000).turn() == 1
    incarnations.fence(2, 1)
    assert schedule(incarnations, 3, 40_000).turn() == 0


async def test_skipped_manifests_and_gaps_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The process has no log of its own: the worker logs which manifests it skipped and what it could not read, and continues."""
    made = schedule(Incarnations(), None, 0)
    made.every_s = 0
    joiner: Any = made._driver.joiner
    joiner.log_state, joiner.offset_head = SimpleNamespace(key=b"k", payload_partitions=3), 1
    written: list[bytes] = []
    process = process_of(written.append, Sealed(1, skipped="2 files were skipped"), Sealed(1, gap="0 to 3"), Sealed(problem="the end"))
    with caplog.at_level(logging.WARNING, "notary.archive"), pytest.raises(ValueError, match="the end"):
        await made._command(process)
    messages = ["the sealing process skipped manifests: 2 files were skipped", "the segments have a gap: 0 to 3"]
    assert (caplog.messages, made.segments) == (messages, 2)
    assert msgspec.json.decode(written[0], type=SealCommand) == SealCommand(1, b"k".hex(), payload_partitions=3)


async def test_a_failure_that_passes_needs_no_new_process(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted and logged, and the next command is for the same process, which has read the manifests."""
    made = schedule(Incarnations(), None, 0)
    made.every_s = 0
    joiner: Any = made._driver.joiner
    joiner.log_state, joiner.offset_head = SimpleNamespace(key=b"k", payload_partitions=3), 1
    written: list[bytes] = []
    with caplog.at_level(logging.WARNING, "notary.archive"), pytest.raises(ValueError, match="the end"):
        await made._command(process_of(written.append, Sealed(problem="no leader", goes_on=True), Sealed(1), Sealed(problem="the end")))
    assert caplog.messages == ["the archive does not go on, trying again: no leader"]
    assert (made.failures, made.segments, len(written)) == (1, 1, 3)


async def test_a_later_worker_waits_for_longer_and_leaves_it_to_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second worker sends a command at five times the interval, for which a segment of the last two intervals is another's turn."""
    incarnations, slept, written, now_s = Incarnations(), list[float](), list[bytes](), 0.0
    for name in ("w1", "w2"):
        incarnations.register(name.encode(), name, 0)
    made = schedule(incarnations, 2, 10_000)
    made._now_s = lambda: now_s
    joiner: Any = made._driver.joiner
    joiner.log_state, joiner.offset_head = SimpleNamespace(key=b"k", payload_partitions=3), 1

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    def seal(command: bytes) -> None:
        nonlocal now_s
        written.append(command)
        now_s += 7

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(ValueError, match="the end"):
        await made._command(process_of(seal, Sealed(1), Sealed(skipped_turn=True), Sealed(problem="the end")))
    assert slept == [5, 5, 5]
    assert [msgspec.json.decode(command, type=SealCommand).leave_ms for command in written] == [2_000] * 3
    assert made.behind_s == 3 * 7, "only what was applied before the first command is sealed for certain"
