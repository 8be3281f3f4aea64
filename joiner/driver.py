"""The thin asyncio shell around the core: poll -> step -> apply -> answer (R8), and the watchdog.

    reader.poll() -> Joiner.step() -> Applier.apply()  durable from here on -> Sender.resolve() -> answers leave

There is no `await` between a step and the application of its effects. A crash before `apply` returns leaves the index as it was: the
records are read again. A crash after it leaves decisions that nobody was told: a retry gets the same ones (R7).

The watchdog asks the log for its bounds every second. That tells whether the log can be reached, how far reading lags, whether a reader
stands still while the end moves (it is then made anew), and whether the log lost records that this index has applied (then the worker stops).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from joiner.core import FillWanted, Joiner, Ready
from joiner.sender import Sender
from ordering.errors import Fatal, NotReady
from ordering.log import ORDERING, Bounds, Log, Reader, Record
from ordering.records import Fence, batch_key, encode

log = logging.getLogger("notary.driver")

Decision = TypeVar("Decision")
D_co = TypeVar("D_co", covariant=True)

RUNBOOK = "docs/runbook.md"
CONTRADICTIONS_MAX = 5


class Applier(Protocol[D_co]):
    """What decides and keeps: the index."""

    def apply(self, ready: Ready) -> Sequence[Sequence[D_co]]:
        """Decide the step's batches and make it durable, all or nothing; the decisions, a sequence for each batch."""
        ...


class DriverSettings(msgspec.Struct, frozen=True):
    """How often the shell looks around."""

    poll_ms: int = 50
    watch_s: float = 1.0
    stall_s: float = 10.0
    unreachable_s: float = 3.0
    clock_alarm_ms: int = 60_000


class Driver(Generic[Decision]):
    """One worker's reading of the log."""

    def __init__(
        self,
        log_: Log,
        joiner: Joiner,
        applier: Applier[Decision],
        sender: Sender[Decision],
        settings: DriverSettings,
        clock_ms: Callable[[], int],
        observe: Callable[[Ready], None] = lambda ready: None,
    ) -> None:
        self._log = log_
        self.joiner = joiner
        self._applier = applier
        self._sender = sender
        self._settings = settings
        self._clock_ms = clock_ms
        self._observe = observe
        self._paused: frozenset[int] = frozenset()
        self._remake_reader = False
        self._proposing = False
        self._reached_at_s = time.monotonic()
        self._unreachable = "the log has not been asked yet"
        self.readers_remade = 0
        self.lag_records = 0
        """Records of the log, over all streams, that have not been handed to the joiner, as of the watchdog's last look."""
        self.clock_skew_ms = 0
        """How far the log's append times are from this worker's clock, as of the last record read at the end of the log."""

    def not_ready(self) -> str | None:
        """Why this worker's answers could not be fresh now; None when they can."""
        if self._unreachable and time.monotonic() - self._reached_at_s > self._settings.unreachable_s:
            return f"the log cannot be reached: {self._unreachable}"
        return None

    async def run(self) -> None:
        """Read, apply, answer, until cancelled. Raises `Fatal` when going on could contradict what was answered."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(tasks), name="read")
            tasks.create_task(self._watch(), name="watch")
            tasks.create_task(self._sender.run(), name="send")

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            try:
                reader = await self._log.open_reader(self.joiner.read_next())
            except NotReady as problem:
                log.info("no reader yet: %s", problem)
                await asyncio.sleep(self._settings.watch_s)
                continue
            try:
                reader.pause(self._paused)
                await self._read_with(reader, tasks)
            except NotReady as problem:
                log.warning("reader lost, making another: %s", problem)
                await asyncio.sleep(self._settings.watch_s)
            finally:
                await reader.close()

    async def _read_with(self, reader: Reader, tasks: asyncio.TaskGroup) -> None:
        self._remake_reader = False
        while not self._remake_reader:
            records = await reader.poll(self._settings.poll_ms)
            ready = self._step(records, tasks)
            while ready.more:
                await asyncio.sleep(0)  # a long replay leaves the loop to the others
                ready = self._step((), tasks)
            if ready.paused != self._paused:
                self._paused = ready.paused
                reader.pause(ready.paused)
            if records:
                await asyncio.sleep(0)
        log.warning("the reader stood still while the log went on: making another")
        self.readers_remade += 1

    def _step(self, records: Sequence[Record], tasks: asyncio.TaskGroup) -> Ready:
        ready = self.joiner.step(records, time.monotonic_ns() // 1_000_000)
        if ready.advanced:
            outcomes = self._applier.apply(ready)
            # A crash here: decided and durable, but nobody was told. A retry gets the same decisions.
            self._sender.resolve(ready, outcomes)
        self._observe(ready)
        for notice in ready.notices:
            log.warning("%s stream=%d offset=%d: %s", notice.kind, notice.stream, notice.offset, notice.text)
        if ready.stop:
            raise Fatal(ready.stop)
        if (ready.fills or ready.fences) and not self._proposing:
            self._proposing = True
            tasks.create_task(self._append_proposals(ready.fills, ready.fences), name="propose")
        if self.lag_records == 0:
            for record in records:
                if record.stream == ORDERING:
                    self._look_at_clock(record.append_time_ms)
        return ready

    async def _append_proposals(self, fills: list[FillWanted], fences: list[Fence]) -> None:
        """R4, R5: a fill only where this worker has read to the end of the partition: before that it may just be behind."""
        try:
            bounds = await self._log.bounds()
            read_next = self.joiner.read_next()
            appends = [
                self._sender.append_aside(fill.partition, batch_key(fill.incarnation, fill.sequence), None)
                for fill in fills
                if bounds[fill.partition].offset_end <= read_next[fill.partition]
            ]
            appends += [
                self._sender.append_aside(ORDERING, None, encode(fence))
                for fence in fences
                if fence.incarnation != self._sender.incarnation
            ]
            if appends:
                log.info("filling holes=%d fencing lives=%d", len(appends) - len(fences), len(fences))
            await asyncio.gather(*appends)
        except NotReady as problem:
            log.info("cannot fill or fence now: %s", problem)
        finally:
            self._proposing = False

    async def _watch(self) -> None:
        seen: Mapping[int, int] = {}
        moved_at_s: dict[int, float] = {}
        contradicted = 0
        while True:
            # Taken before the log is asked: what is read meanwhile must not look like more than the log holds.
            read_next = self.joiner.read_next()
            try:
                bounds = await self._log.bounds()
            except NotReady as problem:
                self._unreachable = str(problem)
            else:
                self._reached_at_s, self._unreachable = time.monotonic(), ""
                try:
                    check_bounds(read_next, bounds)
                    contradicted = 0
                except Fatal:
                    # A leader elected just now may answer with an end that it is about to raise: it must say so again.
                    contradicted += 1
                    if contradicted >= CONTRADICTIONS_MAX:
                        raise
                self.lag_records = sum(max(0, bounds[stream].offset_end - offset) for stream, offset in read_next.items())
                for stream, offset in read_next.items():
                    behind = offset < bounds[stream].offset_end and stream not in self._paused
                    if not behind or seen.get(stream) != offset:
                        moved_at_s[stream] = self._reached_at_s
                    elif self._reached_at_s - moved_at_s[stream] > self._settings.stall_s:
                        self._remake_reader = True
                        moved_at_s[stream] = self._reached_at_s
                seen = read_next
            await asyncio.sleep(self._settings.watch_s)

    def _look_at_clock(self, append_time_ms: int) -> None:
        """R6: log time far from this worker's clock is an alarm, never a different decision."""
        skew_ms = append_time_ms - self._clock_ms()
        alarm_ms = self._settings.clock_alarm_ms
        if abs(skew_ms) > alarm_ms >= abs(self.clock_skew_ms):
            log.error("clock alarm: the log's append time is %d ms from this worker's clock: check both clocks", skew_ms)
        self.clock_skew_ms = skew_ms


def check_bounds(read_next: Mapping[int, int], bounds: Mapping[int, Bounds]) -> None:
    """R8: the log must still hold what is to be read, and must not end before what was applied. Raises `Fatal`."""
    for stream, offset in read_next.items():
        bound = bounds[stream]
        where = "the ordering topic" if stream == ORDERING else f"payload partition {stream}"
        if offset > bound.offset_end:
            raise Fatal(
                f"the index is ahead of its log: it has read {where} up to offset {offset}, and the log ends at {bound.offset_end}."
                f" The log was cut or is another one: see {RUNBOOK}, 'The index is ahead of its log'"
            )
        if offset < bound.offset_first:
            raise Fatal(
                f"the log lost records that this index needs: {where} begins at offset {bound.offset_first}, needed from {offset}."
                f" See {RUNBOOK}, 'Records are missing from the log'"
            )
