"""When a worker makes a snapshot, and what it restores at its start. Both run as processes of their own, `notary snapshot …`.

Workers take turns without a lease. Each makes a snapshot once the newest one of the notary is older than `every_s` and a spread, which
follows from the worker's name and is a quarter of that at most. The worker with the least spread makes it, and the others find it. Two at
once would cost room and nothing else.
"""

import asyncio
import logging
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from notary.cli import EXIT_DONE, EXIT_NO
from notary.self_check import output_of
from notary.snapshots.take import is_empty
from ordering.clock import clock_ms
from ordering.settings import NotNegative

if TYPE_CHECKING:
    from notary.config import Config

logger = logging.getLogger("notary.snapshots")

SPREAD_SHARE: Final = 0.25
FIRST_S_MAX: Final = 600.0
RETRY_SHARE: Final = 0.05
RETRY_S_MAX: Final = 300.0
_COMMAND: Final = ("notary", "snapshot")


class SnapshotSettings(msgspec.Struct, frozen=True):
    """`[snapshots]`: the folder or URL that keeps them (empty: none), how often one is made (0: never), and how many are kept (0: all)."""

    url: str = ""
    every_s: NotNegative = 0
    keep: NotNegative = 7


class _Said(msgspec.Struct):
    """The members that matter here of what `notary snapshot create --json` prints."""

    made: bool
    made_at_ms: int
    snapshot: str


class SnapshotSchedule:
    """One worker's part in making snapshots."""

    def __init__(self, config: "Config", is_ready: Callable[[], bool], clock_ms: Callable[[], int] = clock_ms) -> None:
        """`clock_ms` is the wall clock: the time of a snapshot is compared with it."""
        self._config, self._is_ready, self._clock_ms = config, is_ready, clock_ms
        self.every_s = config.snapshots.every_s
        self.made = 0
        """Counts the snapshots that this process made."""
        self.failures = 0
        """Counts the attempts that failed."""
        self._newest_s = clock_ms() / 1000
        (first,) = sha256(config.worker.name.encode()).digest()[:1]
        self.spread = first / 255
        """This worker's place among all, 0 to 1."""

    @property
    def age_s(self) -> float:
        """The age of the notary's newest snapshot as far as this worker knows; before it has found one, the time since the start."""
        return max(0.0, self._clock_ms() / 1000 - self._newest_s) if self.every_s else 0.0

    async def run(self) -> None:
        """Make snapshots until cancelled; return at once where none are wanted."""
        if not self.every_s:
            return
        await asyncio.sleep(self.spread * min(SPREAD_SHARE * self.every_s, FIRST_S_MAX))
        while True:
            look_again_s = await self.look()
            await asyncio.sleep(look_again_s)

    async def look(self) -> float:
        """Make a snapshot if it is time. Returns in how many seconds to look again."""
        retry_s = min(RETRY_SHARE * self.every_s, RETRY_S_MAX)
        if not self._is_ready():
            return retry_s
        config, due_s = self._config, self.every_s * (1 + SPREAD_SHARE * self.spread)
        flags = [
            "--config",
            config.file,
            "--name",
            config.worker.name,
            "--if-older-s",
            f"{due_s:.3f}",
            "--keep",
            str(config.snapshots.keep),
        ]
        code, said, complained = await output_of(*_COMMAND, "create", *flags, "--json")
        if code != EXIT_DONE:
            self.failures += 1
            logger.warning("no snapshot was made: %s", complained)
            return retry_s
        found = msgspec.json.decode(said, type=_Said)
        self._newest_s = found.made_at_ms / 1000
        if found.made:
            self.made += 1
            logger.info("a snapshot was made name=%s", found.snapshot)
        return max(retry_s, self._newest_s + due_s - self._clock_ms() / 1000)


async def restore_at_start(config: "Config", log_identity: str, restoring: Callable[[], None]) -> None:
    """Restore the newest snapshot of this log if the worker has no index, and `[snapshots] url` says where they are.

    Without one that verifies the worker replays the log. `restoring` is called when there is something to be done.
    """
    if not config.snapshots.url or not is_empty(config.index_directory):
        return
    restoring()
    logger.info("there is no index: looking for a snapshot in %s", config.snapshots.url)
    flags = ["--config", config.file, "--name", config.worker.name, "--log", log_identity]
    code, said, complained = await output_of(*_COMMAND, "restore", *flags, "--json")
    if complained:
        logger.warning("%s", complained)
    if code == EXIT_DONE:
        logger.info("the index was restored from a snapshot: %s", said)
    else:
        logger.warning("%s: this worker replays the log", "no snapshot is there" if code == EXIT_NO else "no snapshot can be restored")
