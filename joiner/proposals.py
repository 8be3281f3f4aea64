"""Appends the fills and fences that the core proposes (R4, R5). The log decides whether one takes effect.

A worker has *passed* a hole if it signed a later record whose view has more records than precede the hole. Then the content existed, and
the log has lost it (R10). So before a worker fills a hole, it reads the ordering topic to its present end, and *then* the partition to its
present end. If another worker has passed the hole, this one stops and names the entry. The same bytes, put back, repair the log. If no copy
of them is left, the owner settles the history up to the hole: what others had seen after it is given up, and workers fill the holes.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from joiner.control import LogState
from joiner.core import Joiner
from joiner.read_ahead import Passing, ReadAhead
from joiner.ready import FenceWanted, FillWanted, Ready
from joiner.recheck import RUNBOOK, examine
from joiner.sender import Sender
from ordering.errors import Fatal, FatalCode, NotReady, OutOfRange
from ordering.log import ORDERING, Log

logger = logging.getLogger("notary.driver")


class Proposals:
    """One worker's proposals. `read_next` returns its read positions; a fill waits up to `wait_s` for them, polling every `check_s`."""

    def __init__(
        self,
        log: Log,
        joiner: Joiner,
        sender: Sender[Any],
        read_next: Callable[[], Mapping[int, int]],
        now_s: Callable[[], float],
        wait_s: float,
        check_s: float,
        lost_s: float,
        contradicted: Callable[[str, float], None],
    ) -> None:
        """`lost_s`: the time for which content must be missing before the worker stops, since a lagging broker may not have all records.

        `contradicted` is called with the reason, and the time when the comparison began, if the log is not the one that was applied.
        """
        self._log = log
        self._joiner = joiner
        self._sender = sender
        self._read_next = read_next
        self._now_s = now_s
        self._wait_s, self._check_s = wait_s, check_s
        self._lost_s = lost_s
        self._contradicted = contradicted
        self._lost_since: tuple[int, float] | None = None  # the head, and the time when its content was first found lost
        self._ahead: tuple[tuple[int, int], ReadAhead] | None = None  # by (records seen, ordering offset) of the hole at the head
        self._reading_ahead = asyncio.Lock()  # fills of several partitions need the same progress
        self._under_way: set[int] = set()  # topic-partitions to which a fill or fence of ours is in flight

    def append(self, ready: Ready, tasks: asyncio.TaskGroup) -> None:
        """Start the appends that the step proposed, at most one at a time for each partition. The joiner proposes the others again."""
        leaders = self._log.leaders() if ready.fills else {}
        for partition in {fill.partition for fill in ready.fills}:
            # Without a leader an append would hang until it times out, and end our incarnation.
            if partition in leaders and partition not in self._under_way:
                self._under_way.add(partition)
                tasks.create_task(self._fill(partition, [fill for fill in ready.fills if fill.partition == partition]), name="fill")
        fences = [fence for fence in ready.fences if fence.incarnation != self._sender.incarnation]
        if fences and ORDERING not in self._under_way:
            self._under_way.add(ORDERING)
            tasks.create_task(self._fence(fences), name="fence")

    async def _fill(self, partition: int, fills: list[FillWanted]) -> None:
        """Read the partition to its present end, then fill the holes that remain, unless a worker has passed one."""
        joiner = self._joiner
        try:
            log_state, seen, head = joiner.log_state, joiner.history.seen, joiner.hole_offset
            assert log_state is not None
            marks = {each: mark for each, mark in joiner.marks.items() if each in (ORDERING, partition)}
            began_s = self._now_s()
            if lost := await examine(self._log, joiner.history.last_run, marks, contents=False):
                self._contradicted(lost, began_s)
                return
            if head is None:
                return
            # Start after the entry: the entry's own view may be foreign, which proves nothing about its content.
            passing = await self._passing(log_state, head)
            offsets = (await self._log.offsets()).get(partition)
            if offsets is None:
                return
            if not await self._is_read(partition, offsets.log_end) or joiner.history.seen != seen:
                return
            holes = [fill for fill in fills if joiner.is_hole(fill)]
            if not holes:
                return
            if passing is not None:
                # A worker has passed some hole, here or further on. That is certain only for the hole at the head.
                await self._stop_at_loss(log_state, head, partition)
                return
            self._lost_since = None
            logger.info("filling holes=%d partition=%d", len(holes), partition)
            for fill in holes:
                await self._sender.append_fill(fill)
        except (NotReady, OutOfRange) as problem:
            logger.info("cannot fill now: %s", problem)
        finally:
            self._under_way.discard(partition)

    async def _is_read(self, partition: int, log_end: int) -> bool:
        """Wait until the partition is read up to that offset. Returns False if that takes longer than `wait_s`."""
        give_up_s = self._now_s() + self._wait_s
        while self._read_next()[partition] < log_end and self._now_s() < give_up_s:  # noqa: ASYNC110 - another task reads
            await asyncio.sleep(self._check_s)
        return self._read_next()[partition] >= log_end

    async def _passing(self, log_state: LogState, head: int) -> Passing | None:
        """Returns the record that shows that the hole was passed. The next attempt for the same hole reads only what was appended since."""
        hole = self._joiner.history.seen, head
        async with self._reading_ahead:
            if self._ahead is None or self._ahead[0] != hole or not await self._ahead[1].still_holds(self._log):
                self._ahead = hole, ReadAhead(log_state, head + 1, self._joiner.history)
            ahead = self._ahead[1]
            await ahead.read(self._log)
            return ahead.passing

    async def _stop_at_loss(self, log_state: LogState, head: int, partition: int) -> None:
        """Raise `Fatal` if the content of the hole at the head is still missing after `lost_s`."""
        hole, seen = self._joiner.hole, self._joiner.history.seen
        if hole is None or hole.partition != partition:
            return
        now_s = self._now_s()
        if self._lost_since is None or self._lost_since[0] != head:
            self._lost_since = (head, now_s)
            logger.warning(
                "the payload of an entry seems to be lost, stopping if that lasts: ordering_offset=%d limit_s=%g", head, self._lost_s
            )
        if now_s - self._lost_since[1] < self._lost_s:
            return
        # Look again: the process may have been paused, and meanwhile the log may have lost the entry too, or got the content back.
        passing = await self._passing(log_state, head)
        request_began_s = self._now_s()
        ends = {each: offsets.log_end for each, offsets in (await self._log.offsets()).items()}
        if passing is None or ends[ORDERING] <= passing.offset or self._now_s() - request_began_s > self._lost_s / 2:
            return
        if partition not in ends or not await self._is_read(partition, ends[partition]) or self._joiner.hole is not hole:
            return
        raise Fatal(
            FatalCode.CONTENT_LOST,
            f"content is lost: the payload of batch ({hole.incarnation}, {hole.sequence}), {len(hole.transaction_ids)} requests, is not in"
            f" payload partition {partition}, and ordering record {passing.offset} shows that it was there: its writer had seen"
            f" {passing.seen} records, and there are {seen} before this batch. Its entry is ordering record {self._joiner.hole_offset}."
            " Put the same bytes back from an archive, then start again; nothing was decided wrongly."
            f" See {RUNBOOK}, 'Content is lost'",
        )

    async def _fence(self, fences: list[FenceWanted]) -> None:
        try:
            logger.info("fencing silent incarnations=%d", len(fences))
            for fence in fences:
                await self._sender.append_fence(fence)
        finally:
            self._under_way.discard(ORDERING)
