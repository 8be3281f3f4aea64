"""Appends the fills and fences that the core proposes (R4, R5). Whether one takes effect, the log decides."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from joiner.core import Joiner
from joiner.ready import FillWanted, Ready
from joiner.sender import Sender
from ordering.errors import NotReady
from ordering.log import ORDERING, Log
from ordering.records import Fence, batch_key, encode

log = logging.getLogger("notary.driver")


class Proposals:
    """One worker's. `read_next` says how far it has read each stream; it may wait up to `wait_s` for that, looking every `look_s`."""

    def __init__(
        self,
        log_: Log,
        joiner: Joiner,
        sender: Sender[Any],
        read_next: Callable[[], Mapping[int, int]],
        now_s: Callable[[], float],
        wait_s: float,
        look_s: float,
    ) -> None:
        self._log = log_
        self._joiner = joiner
        self._sender = sender
        self._read_next = read_next
        self._now_s = now_s
        self._wait_s, self._look_s = wait_s, look_s
        self._under_way: set[int] = set()  # streams to which a fill or fence of ours is on its way

    def append(self, ready: Ready, tasks: asyncio.TaskGroup) -> None:
        """Start what the step proposed. One append under way for each stream is enough; what is left out now is proposed again."""
        leaders = self._log.leaders() if ready.fills else {}
        for partition in {fill.partition for fill in ready.fills}:
            # Where there is no leader an append would hang until it times out, and take our life with it.
            if partition in leaders and partition not in self._under_way:
                self._under_way.add(partition)
                tasks.create_task(self._fill(partition, [fill for fill in ready.fills if fill.partition == partition]), name="fill")
        fences = [fence for fence in ready.fences if fence.incarnation != self._sender.incarnation]
        if fences and ORDERING not in self._under_way:
            self._under_way.add(ORDERING)
            tasks.create_task(self._fence(fences), name="fence")

    async def _fill(self, partition: int, fills: list[FillWanted]) -> None:
        """Fill what is still a hole once this worker has read up to the partition's present end: before that it may just be behind."""
        try:
            bound = (await self._log.bounds()).get(partition)
            if bound is None:
                return
            offset_end = bound.offset_end
            give_up_s = self._now_s() + self._wait_s
            while self._read_next()[partition] < offset_end and self._now_s() < give_up_s:  # noqa: ASYNC110 - reading goes on in a task
                await asyncio.sleep(self._look_s)
            if self._read_next()[partition] >= offset_end:
                holes = [fill for fill in fills if self._joiner.is_hole(fill)]
                if holes:
                    log.info("filling holes=%d partition=%d", len(holes), partition)
                for fill in holes:
                    await self._sender.append_aside(partition, batch_key(fill.incarnation, fill.sequence), None)
        except NotReady as problem:
            log.info("cannot fill now: %s", problem)
        finally:
            self._under_way.discard(partition)

    async def _fence(self, fences: list[Fence]) -> None:
        try:
            log.info("fencing silent lives=%d", len(fences))
            for fence in fences:
                await self._sender.append_aside(ORDERING, None, encode(fence))
        finally:
            self._under_way.discard(ORDERING)
