"""The thin asyncio shell around the core: poll -> step -> apply -> answer (R8), and the watchdog.

    reader.poll() -> Joiner.step() -> Applier.apply()  durable from here on -> Sender.resolve() -> answers leave

There is no `await` between a step and the application of its effects. A crash before `apply` returns leaves the index as it was: the
records are read again. A crash after it leaves decisions that nobody was told: a retry gets the same ones (R7).

The watchdog asks the log for its bounds every second. That tells whether the log can be reached, how far reading lags, whether a reader
stands still while the end moves (it is then made anew), and whether the log lost records that this index has applied (the worker stops).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from joiner.core import Joiner
from joiner.ready import FillWanted, OrderedBatch, Ready
from joiner.sender import Sender
from ordering.errors import Fatal, NotReady
from ordering.log import ORDERING, Bounds, Log, Reader, Record
from ordering.records import Fence, batch_key, encode

log = logging.getLogger("notary.driver")

Decision = TypeVar("Decision")
D_co = TypeVar("D_co", covariant=True)

RUNBOOK = "docs/runbook.md"
CONTRADICTIONS_MAX = 5
REREAD_S_MAX = 20
NOTICES_LOGGED_MAX = 10


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
        self._proposing: set[int] = set()  # streams to which a fill or fence of ours is on its way
        self._polls = 0
        self._reached_at_s = time.monotonic()
        self._unreachable = "the log has not been asked yet"
        self.readers_remade = 0
        self.lag_records = 0
        """Records of the log, over all streams, that have not been handed to the joiner, as of the watchdog's last look."""
        self.clock_skew_ms = 0
        """How far at least the log's clock is ahead of this worker's (behind it: negative), as of our last entry read back."""

    @property
    def unreachable(self) -> str:
        """What asking the log failed with the last time, for the operator; empty when it answered."""
        return self._unreachable

    def not_ready(self) -> str | None:
        """Why this worker's answers could not be fresh now; None when they can."""
        if self._unreachable and time.monotonic() - self._reached_at_s > self._settings.unreachable_s:
            return f"the log has not answered for more than {self._settings.unreachable_s:g} s"
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
            self._polls += 1
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
        for notice in ready.notices[:NOTICES_LOGGED_MAX]:
            log.warning("%s stream=%d offset=%d: %s", notice.kind, notice.stream, notice.offset, notice.text)
        if len(ready.notices) > NOTICES_LOGGED_MAX:
            log.warning("and more like these in the same step, counted in the metrics: %d", len(ready.notices) - NOTICES_LOGGED_MAX)
        if ready.stop:
            raise Fatal(ready.stop)
        self._append_proposals(ready, tasks)
        for batch in ready.batches:
            if batch.incarnation == self._sender.incarnation:
                self._look_at_clock(batch)
        return ready

    def _append_proposals(self, ready: Ready, tasks: asyncio.TaskGroup) -> None:
        """R4, R5: one append under way for each partition is enough; what is left out now is proposed again."""
        leaders = self._log.leaders() if ready.fills else {}
        for partition in {fill.partition for fill in ready.fills}:
            # Where there is no leader an append would hang until it times out, and take our life with it.
            if partition in leaders and partition not in self._proposing:
                self._proposing.add(partition)
                tasks.create_task(self._fill(partition, [fill for fill in ready.fills if fill.partition == partition]), name="fill")
        fences = [fence for fence in ready.fences if fence.incarnation != self._sender.incarnation]
        if fences and ORDERING not in self._proposing:
            self._proposing.add(ORDERING)
            tasks.create_task(self._fence(fences), name="fence")

    async def _fill(self, partition: int, fills: list[FillWanted]) -> None:
        """Fill what is still a hole once this worker has read up to the partition's present end: before that it may just be behind."""
        try:
            bound = (await self._log.bounds()).get(partition)
            if bound is None:
                return
            offset_end = bound.offset_end
            give_up_s = time.monotonic() + self._settings.watch_s
            while self.joiner.read_next()[partition] < offset_end and time.monotonic() < give_up_s:  # noqa: ASYNC110 - reading goes on in a task
                await asyncio.sleep(self._settings.poll_ms / 1000)
            if self.joiner.read_next()[partition] >= offset_end:
                holes = [fill for fill in fills if self.joiner.is_hole(fill)]
                if holes:
                    log.info("filling holes=%d partition=%d", len(holes), partition)
                for fill in holes:
                    await self._sender.append_aside(partition, batch_key(fill.incarnation, fill.sequence), None)
        except NotReady as problem:
            log.info("cannot fill now: %s", problem)
        finally:
            self._proposing.discard(partition)

    async def _fence(self, fences: list[Fence]) -> None:
        try:
            log.info("fencing silent lives=%d", len(fences))
            for fence in fences:
                await self._sender.append_aside(ORDERING, None, encode(fence))
        finally:
            self._proposing.discard(ORDERING)

    async def _watch(self) -> None:
        seen: Mapping[int, int] = {}
        moved_at_s: dict[int, float] = {}
        contradicted = polls = 0
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
                self.lag_records = sum([max(0, bound.offset_end - read_next[stream]) for stream, bound in bounds.items()])
                # A reader that was not asked does not stand still: a long replay applies what it has first.
                asked, polls = self._polls > polls, self._polls
                for stream, bound in bounds.items():
                    offset = read_next[stream]
                    behind = asked and offset < bound.offset_end and stream not in self._paused
                    if not behind or seen.get(stream) != offset:
                        moved_at_s[stream] = self._reached_at_s
                    elif self._reached_at_s - moved_at_s.setdefault(stream, self._reached_at_s) > self._settings.stall_s:
                        self._remake_reader = True
                        moved_at_s[stream] = self._reached_at_s
                seen = read_next
            await asyncio.sleep(self._settings.watch_s)

    def _look_at_clock(self, own: OrderedBatch) -> None:
        """R6: log time far from this worker's clock is an alarm, never a different decision.

        Only our own entries tell: they were appended after we sent them and before we read them, by our clock, however long that took.
        """
        skew_ms = max(0, own.append_time_ms - self._clock_ms()) or min(0, own.append_time_ms - own.sent_at_ms)
        alarm_ms = self._settings.clock_alarm_ms
        if abs(skew_ms) > alarm_ms >= abs(self.clock_skew_ms):
            log.error("clock alarm: the log's append time is %d ms from this worker's clock: check both clocks", skew_ms)
        self.clock_skew_ms = skew_ms


async def check_same_log(log_: Log, offsets_next: Mapping[int, int], judged_digest: bytes | None) -> None:
    """R8, R9: before a worker reads on, hold what its index has applied against the log. Raises `Fatal`, or `NotReady`.

    A log that was cut shows in its bounds; one that was cut and has grown again shows in the last ordering record that was applied.
    """
    check_bounds(offsets_next, await log_.bounds())
    offset_last = offsets_next[ORDERING] - 1
    if judged_digest is None or offset_last < 0:
        return
    reader = await log_.open_reader({**offsets_next, ORDERING: offset_last})
    try:
        reader.pause([stream for stream in offsets_next if stream != ORDERING])
        async with asyncio.timeout(REREAD_S_MAX):
            while not (records := [record for record in await reader.poll(1_000) if record.stream == ORDERING]):
                pass
    except TimeoutError:
        raise NotReady(f"the log did not give ordering record {offset_last} again within {REREAD_S_MAX} s") from None
    finally:
        await reader.close()
    if records[0].offset != offset_last or records[0].digest() != judged_digest:
        raise Fatal(
            f"ordering record {offset_last} is not the one that this index has applied: the log was cut and has grown again, or is another"
            f" one. See {RUNBOOK}, 'The index is ahead of its log'"
        )


def check_bounds(read_next: Mapping[int, int], bounds: Mapping[int, Bounds]) -> None:
    """R8: the log must still hold what is to be read, and must not end before what was applied. Raises `Fatal`."""
    for stream, bound in bounds.items():
        offset = read_next[stream]
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
