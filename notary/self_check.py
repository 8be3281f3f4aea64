"""Detects that this worker, or another, has gone wrong (R9): compares roots through the log, and audits the worker's own rows.

Neither influences a decision. Comparing costs one record of 50 bytes, by one worker, every `checkpoint_interval_ms` of log time. Auditing
reads one tile's decisions a second, again and again over the index. So the audit finds a change in an old row that no client reads.
"""

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Sequence

import msgspec

from joiner import Driver, Sender
from notary.agreement import turn_comes_ms
from notary.decision import Decision
from notary.index import Index
from notary.index.scrub import EXIT_CORRUPT, EXIT_SOUND
from notary.tree import TILE_WIDTH
from ordering.errors import Fatal
from ordering.settings import Fixed, Positive, Seconds

logger = logging.getLogger("notary.self_check")

ROUND_TICKS_MAX = 86_400
AUDIT_TURN_US = 1_000
"""The time of an audit in one turn of the loop, as `Index` estimates it."""


class SelfCheckSettings(msgspec.Struct, frozen=True):
    """The intervals at which roots are compared and rows audited."""

    checkpoint_interval_ms: Positive = 5_000  # of log time
    audit_interval_ms: Positive = 1_000
    scrub_interval_ms: Positive = 43_200_000  # between two rounds of reading the complete index from its disk
    quiet_ms: Fixed[int] = 10_000  # without a new decision for this time, a checkpoint is due even if log time does not advance
    look_ms: Fixed[int] = 200
    write_again_ms: Fixed[int] = 5_000
    vote_again_ms: Fixed[int] = 30_000

    audit_s = Seconds("audit_interval_ms")
    scrub_s = Seconds("scrub_interval_ms")
    quiet_s = Seconds("quiet_ms")
    check_s = Seconds("look_ms")
    write_again_s = Seconds("write_again_ms")
    vote_again_s = Seconds("vote_again_ms")


class SelfCheck:
    """One worker's part in comparing roots, and its audit of itself."""

    def __init__(
        self,
        worker_name: str,
        driver: Driver[Decision],
        sender: Sender[Decision],
        index: Index,
        settings: SelfCheckSettings,
        now_s: Callable[[], float],
    ) -> None:
        self._worker_name = worker_name
        self._driver = driver
        self._sender = sender
        self._index = index
        self._settings = settings
        self._now_s = now_s
        self._grown: tuple[int, float] = (0, now_s())  # the tree's size, and the time when it reached this size
        self._written: tuple[int, float] | None = None  # tree size and time: a checkpoint in flight is not written twice
        self._reported = False  # whether the open root disagreement is in the log
        self._failed: asyncio.Queue[Fatal] = asyncio.Queue(1)
        self.audited_tiles = 0
        self.scrubs = 0
        """Counts the readings of the complete index from its disk."""

    def serving_suspended(self) -> str | None:
        """Returns the reason why no answer from this index may be given now; None while answers may."""
        agreement = self._index.agreement
        if self._index.broken is not None:
            return "a step could not be written into this worker's index"
        if agreement.quarantined:
            return f"this worker's index is quarantined: {agreement.quarantined}"
        if (disagreement := agreement.disagreement) is not None:
            return (
                f"workers have different roots, and no root has most of their votes: {disagreement.rendered()}."
                " Nothing is answered until one root has most votes"
            )
        return None

    def fail(self, problem: Fatal) -> None:
        """Make `run` end with an error that a call met while it read the index."""
        if not self._failed.full():
            self._failed.put_nowait(problem)

    async def run(self) -> None:
        """Compare and audit until cancelled. Raises `Quarantined`, and the error that `fail` was called with."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._until_failed(), name="failed")
            tasks.create_task(self._compare(), name="compare roots")
            tasks.create_task(self._audit(), name="audit")
            tasks.create_task(self._scrub(), name="scrub")

    async def _until_failed(self) -> None:
        raise await self._failed.get()

    async def _compare(self) -> None:
        while True:
            self._report_disagreement()
            if (record := self.due()) is not None:
                self._written = (record[0], self._now_s())
                await self._sender.append_checkpoint(*record)
            await asyncio.sleep(self._settings.check_s)

    def due(self) -> tuple[int, bytes] | None:
        """Returns the tree size and root that this worker should write now: its vote in a root disagreement, or a checkpoint in its turn.

        Log time determines turns. In a log that has fallen quiet it does not advance, so there this worker's own clock determines turns:
        otherwise the last decisions would never be compared. A checkpoint decides nothing, so a clock may influence it.
        """
        incarnation, agreement, tree = self._sender.incarnation, self._index.agreement, self._index.tree
        if incarnation is None or agreement.quarantined:
            return None
        if (disagreement := agreement.disagreement) is not None:
            # Repeat the vote from time to time: it may have been lost, and each vote renews the set of voters.
            size, again_s = disagreement.size, self._settings.vote_again_s if self._worker_name in disagreement.roots else 0.0
        else:
            size, again_s, log_time_ms = tree.size, 0.0, self._index.log_time_ms
            # An incarnation that was silent for `worker_timeout_ms` of log time has no turn any more.
            senders = self._driver.joiner.incarnations.active_since(log_time_ms - self._driver.joiner.limits.worker_timeout_ms)
            turn_ms = turn_comes_ms(agreement, incarnation, senders, self._settings.checkpoint_interval_ms)
            if size != self._grown[0]:
                self._grown = (size, self._now_s())
            if size <= agreement.size_last or turn_ms is None or (log_time_ms < turn_ms and not self._is_quiet(incarnation, senders)):
                return None
        if (
            self._written is not None
            and self._written[0] == size
            and self._now_s() - self._written[1] < max(again_s, self._settings.write_again_s)
        ):
            return None
        return size, tree.root_at(size)

    def _is_quiet(self, incarnation: int, senders: Sequence[int]) -> bool:
        """Returns True if the log has been quiet until this incarnation's turn: each sender waits `quiet_s` longer than the one before."""
        turn = 1 + sorted(senders).index(incarnation)
        return self._now_s() - self._grown[1] >= self._settings.quiet_s * turn

    def _report_disagreement(self) -> None:
        is_open = self._index.agreement.in_disagreement
        if is_open and not self._reported:
            logger.error("roots differ: %s", self.serving_suspended())
        elif self._reported and not is_open:
            logger.warning("the root disagreement is settled: most workers have this worker's root")
        self._reported = is_open

    async def _audit(self) -> None:
        # Begin at a place that varies: a worker that restarts often would never reach the end from tile 0.
        tile = int(self._now_s()) % (self._index.position_next // TILE_WIDTH + 1)
        while True:
            tiles = -(-self._index.position_next // TILE_WIDTH)
            # At any size, a round takes no more than a day of seconds.
            for _ in range(min(tiles, tiles // ROUND_TICKS_MAX + 1)):
                tile = tile + 1 if tile + 1 < tiles else 0
                spent_us = 0
                for piece_us in self._index.audit(tile):
                    spent_us += piece_us
                    if spent_us >= AUDIT_TURN_US:
                        spent_us = 0
                        await asyncio.sleep(0)
                self.audited_tiles += 1
                await asyncio.sleep(0)
            await asyncio.sleep(self._settings.audit_s)

    async def _scrub(self) -> None:
        """Have a separate process read every row from the disk, again and again. Raises `Quarantined` for a row that cannot be read."""
        while True:
            await asyncio.sleep(self._settings.scrub_s)
            code, stdout, stderr = await output_of("notary.index.scrub", str(self._index.directory))
            if code == EXIT_CORRUPT and stdout:
                raise self._index.quarantine(stdout)
            if code != EXIT_SOUND:
                logger.warning("the index could not be scrubbed: its process ended with code=%s: %s", code, stdout or stderr)
            else:
                self.scrubs += 1


async def output_of(module: str, *arguments: str) -> tuple[int | None, str, str]:
    """Run a module as a separate process. Returns (exit code, stdout, stderr); the code is None if no process could be started.

    If the caller is cancelled, the process is ended first.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", module, *arguments), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
    except OSError as problem:  # too many processes, or no memory for one more
        return None, "", f"no process can be started now: {problem}"
    try:
        stdout, stderr = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return process.returncode, stdout.decode(errors="replace").strip(), (stderr or b"").decode(errors="replace").strip()
