"""`ArchiveSchedule`: decides when a worker has its process `notary archive stream` seal segments.

The turn follows from the log. Among the incarnations active in log time, the one that registered first sends a command every `every_s`. The
next one sends one every five times `every_s`, the one after it every nine times. Their commands seal nothing while another worker seals. So
when the first worker ends, another takes its place without an election (docs/decisions/archive-writer.md).
"""

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from typing import Final

import msgspec

from joiner import Driver, Sender
from notary.archive.settings import SealCommand, Sealed
from notary.config import Config
from notary.decision import Decision

logger = logging.getLogger("notary.archive")

TURNS: Final = 4
"""The time between two commands grows by this many intervals for each worker whose turn is earlier."""
LEFT_FOR: Final = 2
"""A worker whose last segment is younger than this many intervals counts as the writer."""
ANSWER_S_MAX: Final = 600.0
"""The deadline of a command. In a long log the first command seals many segments; after the deadline the next one continues."""


class ArchiveSchedule:
    """One worker's part in the continuous archive."""

    def __init__(
        self, config: Config, driver: Driver[Decision], sender: Sender[Decision], is_ready: Callable[[], bool], now_s: Callable[[], float]
    ) -> None:
        self._config, self._driver, self._sender, self._is_ready, self._now_s = config, driver, sender, is_ready, now_s
        self.every_s = config.archive.every_s if config.archive.url else 0
        self.segments = 0
        """Counts the segments sealed by commands of this process."""
        self.failures = 0
        """Counts the commands that failed."""
        self._all_sealed_s = now_s()

    @property
    def behind_s(self) -> float:
        """The time since the last command after which everything that this worker had applied was sealed."""
        return max(0.0, self._now_s() - self._all_sealed_s) if self.every_s else 0.0

    def turn(self) -> int:
        """Returns the number of active workers whose turn is before this worker's."""
        incarnations, own = self._driver.joiner.incarnations, self._sender.incarnation
        since_ms = self._driver.joiner.log_time_ms - self._driver.joiner.limits.worker_timeout_ms
        return len([each for each in incarnations.active_since(since_ms) if own is None or each < own])

    async def run(self) -> None:
        """Have segments sealed until cancelled; return at once if none are configured."""
        if not self.every_s:
            return
        while True:
            try:
                await self._command(await self._started())
            except (OSError, ValueError, TimeoutError) as problem:
                self._failed(problem)
            await asyncio.sleep(self.every_s)

    def _failed(self, problem: object) -> None:
        self.failures += 1
        logger.warning("the archive does not go on, trying again: %s", problem)

    async def _started(self) -> Process:
        flags = ("--config", self._config.file, "--name", self._config.worker.name)
        command = (sys.executable, "-P", "-m", "notary", "archive", "stream", *flags)
        return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)

    async def _command(self, process: Process) -> None:
        """Send commands to `process` until it ends, or reports a problem after which it does not go on. Raises `ValueError` with it."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            while True:
                turn = self.turn()
                await asyncio.sleep(self.every_s * (1 + TURNS * turn))
                state = self._driver.joiner.log_state
                if not self._is_ready() or state is None:
                    continue
                sent_s = self._now_s()
                leave_ms = LEFT_FOR * 1_000 * self.every_s if turn else 0
                command = SealCommand(self._driver.joiner.offset_head, state.key.hex(), leave_ms, state.payload_partitions)
                process.stdin.write(msgspec.json.encode(command) + b"\n")
                async with asyncio.timeout(ANSWER_S_MAX):
                    with contextlib.suppress(ConnectionError):  # the process ended: its last line has the reason
                        await process.stdin.drain()
                    line = await process.stdout.readline()
                answer = msgspec.json.decode(line, type=Sealed) if line else Sealed(problem="its process ended")
                self.segments += answer.segments
                if answer.skipped:  # the process has no log of its own
                    logger.warning("the sealing process skipped manifests: %s", answer.skipped)
                if answer.gap:
                    logger.warning("the segments have a gap: %s", answer.gap)
                if answer.problem and not answer.goes_on:
                    raise ValueError(answer.problem)
                if answer.problem:
                    self._failed(answer.problem)
                elif not answer.skipped_turn:
                    self._all_sealed_s = sent_s
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
