"""Decides when a worker makes a snapshot, and which one it restores at its start. Both run as separate processes, `notary snapshot …`.

Workers take turns without a lease. Each makes a snapshot once the notary's newest one is older than `every_s` plus a spread. The spread
depends on the worker's name, and is at most a quarter of `every_s`. So the worker with the least spread makes the snapshot, and the others
find it. If two workers make one at once, that only wastes space.
"""

import asyncio
import logging
from collections.abc import Callable
from hashlib import sha256
from typing import Final

import msgspec

from notary.config import Config
from notary.exit_codes import EXIT_DONE, EXIT_NO
from notary.self_check import output_of
from notary.snapshots.make import remove_links
from notary.snapshots.take import is_empty, remove_stage
from ordering.clock import clock_ms

logger = logging.getLogger("notary.snapshots")

SPREAD_SHARE: Final = 0.25
FIRST_S_MAX: Final = 600.0
RETRY_SHARE: Final = 0.05
RETRY_S_MAX: Final = 300.0


class _Printed(msgspec.Struct):
    """The members of the output of `notary snapshot create --json` that are used here."""

    made: bool
    made_at_ms: int
    snapshot: str


class SnapshotSchedule:
    """One worker's part in making snapshots."""

    def __init__(self, config: Config, log_identity: str, is_ready: Callable[[], bool], clock_ms: Callable[[], int] = clock_ms) -> None:
        """Only snapshots of the log `log_identity` count. The time of a snapshot is compared with the wall clock `clock_ms`."""
        self._config, self._log_identity, self._is_ready, self._clock_ms = config, log_identity, is_ready, clock_ms
        self.every_s = config.snapshots.every_s
        self.made = 0
        """Counts the snapshots that this process made."""
        self.failures = 0
        """Counts the attempts that failed."""
        self._newest_s = clock_ms() / 1000
        (first,) = sha256(config.worker.name.encode()).digest()[:1]
        self.spread = first / 255
        """This worker's share of the longest spread, 0 to 1, from a hash of its name."""

    @property
    def age_s(self) -> float:
        """The age of the newest snapshot that this worker knows; before it knows one, the time since the worker's start."""
        return max(0.0, self._clock_ms() / 1000 - self._newest_s) if self.every_s else 0.0

    async def run(self) -> None:
        """Make snapshots until cancelled; return at once if none are configured."""
        if not self.every_s:
            return
        await asyncio.sleep(self.spread * min(SPREAD_SHARE * self.every_s, FIRST_S_MAX))
        while True:
            check_again_s = await self.check()
            await asyncio.sleep(check_again_s)

    async def check(self) -> float:
        """Make a snapshot if it is due. Returns the seconds until the next check."""
        retry_s = min(RETRY_SHARE * self.every_s, RETRY_S_MAX)
        if not self._is_ready():
            return retry_s
        config, due_s = self._config, self.every_s * (1 + SPREAD_SHARE * self.spread)
        when = ("--if-older-s", f"{due_s:.3f}", "--keep", str(config.snapshots.keep))
        code, stdout, stderr = await _run("create", config, self._log_identity, *when)
        if code != EXIT_DONE:
            self.failures += 1
            logger.warning("no snapshot was made: %s", stderr)
            return retry_s
        if stderr:
            logger.warning("the snapshot command reported: %s", stderr)  # for example that no old file could be removed
        try:
            found = msgspec.json.decode(stdout, type=_Printed)
        except msgspec.DecodeError:
            self.failures += 1
            logger.warning("the snapshot command printed no result: %s", stdout[:500])
            return retry_s
        self._newest_s = found.made_at_ms / 1000
        if found.made:
            self.made += 1
            logger.info("a snapshot was made name=%s", found.snapshot)
        return max(retry_s, self._newest_s + due_s - self._clock_ms() / 1000)


async def _run(action: str, config: Config, log_identity: str, *more: str) -> tuple[int | None, str, str]:
    """Run `notary snapshot`. Returns its exit code, stdout and stderr."""
    flags = ("--config", config.file, "--name", config.worker.name, "--log", log_identity, *more)
    return await output_of("notary", "snapshot", action, *flags, "--json")


async def restore_at_start(config: Config, log_identity: str, restoring: Callable[[], None]) -> None:
    """Restore the newest snapshot of this log if the worker has no index, and `[snapshots] url` is set.

    If no snapshot verifies, the worker replays the log. `restoring` is called before a search for snapshots. Files that a killed snapshot
    or restore left are removed in any case: without another one they would stay for ever.
    """
    for remove in (remove_links, remove_stage):
        await asyncio.to_thread(remove, config.index_directory)  # they may be as large as the index
    if not config.snapshots.url or not is_empty(config.index_directory):
        return
    restoring()
    logger.info("there is no index: looking for a snapshot in %s", config.snapshots.url)
    code, stdout, stderr = await _run("restore", config, log_identity)
    if stderr:
        logger.warning("the restore reported: %s", stderr)
    if code == EXIT_DONE:
        logger.info("the index was restored from a snapshot: %s", stdout)
    else:
        logger.warning("no snapshot %s: replaying the log", "found" if code == EXIT_NO else "can be restored")
