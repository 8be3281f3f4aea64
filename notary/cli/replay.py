"""`Replay`: reads a log for a command: the ordering topic alone, or both topics, up to the log end offsets found at the start.

It drives the joiner as a worker's driver does, but passes the joiner's results to `observe`, not to an index. It only reports views that
differ from the reader's own history, since there is no index to compare.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from joiner import Joiner, Ready
from notary.cli import ProgressLine
from ordering.errors import FatalCode, NotReady
from ordering.log import ORDERING, Log, Reader, Record, describe

POLL_MS: Final = 200
STALL_S_MAX: Final = 30.0

Observe = Callable[[Sequence[Record], Ready], None]
"""Receives the records just read, and the joiner's results, in the order of the log."""


class Replay:
    """One pass over a log. `joiner` may begin anywhere; it decides whether both topics are read."""

    def __init__(self, log: Log, joiner: Joiner, observe: Observe, name: str, *, needs_leaders: bool = False) -> None:
        """`needs_leaders`: a payload partition without a leader is an error, since its contents would look lost.

        `name` is the command's name, for the progress line.
        """
        self._needs_leaders = needs_leaders
        self._log = log
        self._joiner = joiner
        self._observe = observe
        self._reader: Reader | None = None
        self._partitions = 0  # the number when the reader was opened: the reader does not read partitions added later
        self._name = name
        self._progress = ProgressLine(time.monotonic())  # a short replay shows no progress line
        self.enough: Callable[[], bool] = lambda: False
        """Returns true if nothing more needs to be read; called after each step."""
        self.stop = ""
        """The reason why the joiner stopped at the head; empty while it goes on."""
        self.needs_contents = False
        """True if a joiner of the ordering topic alone stopped at a salvage, which depends on the payload topic (R11)."""

    async def read_to_end(self) -> None:
        """Read the log to its present end, through the joiner. A hole at the end, or a record that stops the joiner, stays at the head.

        Raises `NotReady` when the log returns no records for `STALL_S_MAX`, and the errors of opening a reader.
        """
        log_offsets = await self._log.offsets()
        if self._needs_leaders and (led := set(range(self._log.payload_partitions)) - log_offsets.keys()):
            raise NotReady(f"{describe(min(led))} has no leader, so its contents cannot be read: check that all brokers are up")
        ends = {
            partition: offsets.log_end
            for partition, offsets in log_offsets.items()
            if partition == ORDERING or not self._joiner.ordering_only
        }
        if self._reader is not None and self._log.payload_partitions > self._partitions:
            await self.close()  # partitions were added since, which the open reader does not read
        progress_at_s = time.monotonic()
        while not self.stop and not self.enough():
            if self._reader is None:
                self._partitions = self._log.payload_partitions
                self._reader = await self._log.open_reader(self._joiner.read_next())
                self._pause(frozenset())
            reader = self._reader
            before = self._at(ends)
            records = await reader.poll(POLL_MS)
            await self._step(records)
            if self._reader is not None and (self._is_done(ends) or (not records and self._waits_at_end(ends))):
                break
            if self._at(ends) != before or records:
                progress_at_s = time.monotonic()
            elif time.monotonic() - progress_at_s > STALL_S_MAX:
                raise NotReady(f"the log returned no record for {STALL_S_MAX:g} s, before its end: check that all its brokers are up")
            self._progress.show(f"{self._name}: {self._joiner.offset_head} of {ends[ORDERING]} ordering records read")
        self._progress.end()

    async def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            await self._reader.close()
            self._reader = None
        self._progress.end()

    async def _step(self, records: list[Record]) -> None:
        joiner = self._joiner
        now_ms = int(time.monotonic() * 1_000)
        ready = joiner.step(records, now_ms)
        self._observe(records, ready)
        while (ready.more or ready.evidence is not None) and ready.stop is None:
            if ready.evidence is not None:
                joiner.examined(ready.evidence)
            ready = joiner.step((), now_ms)
            self._observe((), ready)
        self.stop = str(ready.stop or "")
        self.needs_contents = ready.stop is not None and ready.stop.code is FatalCode.SALVAGED
        log_state = joiner.log_state
        if ready.read_again:
            joiner.forget_unapplied()
            await self.close()
        elif not joiner.ordering_only and log_state is not None and log_state.payload_partitions > self._partitions:
            await self._log.has_partitions(log_state.payload_partitions)
            await self.close()
        elif self._reader is not None:
            self._pause(ready.paused)

    def _pause(self, partitions: frozenset[int]) -> None:
        assert self._reader is not None
        self._reader.pause(range(self._partitions) if self._joiner.ordering_only else partitions)

    def _at(self, ends: Mapping[int, int]) -> tuple[int, ...]:
        reader = self._reader
        return () if reader is None else (self._joiner.offset_head, *[reader.offset_next(partition) for partition in ends])

    def _is_done(self, ends: Mapping[int, int]) -> bool:
        """Returns true if all records are read, and each is either applied or behind a hole that the log does not fill."""
        assert self._reader is not None
        read = all(self._reader.offset_next(partition) >= end for partition, end in ends.items())
        return read and (not self._joiner.queued_records or self._joiner.hole is not None)

    def _waits_at_end(self, ends: Mapping[int, int]) -> bool:
        """Returns true if the head is a hole whose partition is read to its end, while the byte budget pauses the other partitions."""
        assert self._reader is not None
        hole = self._joiner.hole
        return hole is not None and self._reader.offset_next(hole.partition) >= ends.get(hole.partition, 0)
