"""The thin asyncio shell around the core: poll -> step -> apply -> answer (R8), and the watchdog.

    reader.poll() -> Joiner.step() -> Applier.apply()  durable from here on -> Sender.resolve() -> answers leave

There is no `await` between a step and the application of its effects. A crash before `apply` returns leaves the index as it was: the
records are read again. A crash after it leaves decisions that nobody was told: a retry gets the same ones (R7).

The watchdog asks the log for its bounds every second. That tells whether the log can be reached, how far reading lags, what stands still
while the log goes on (a reader is then made anew), and whether this is still the log that the index was made from (`same_log`): before it
has said so once, nothing is read and nothing sent.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from joiner.core import Joiner
from joiner.proposals import Proposals
from joiner.ready import OrderedBatch, Ready
from joiner.same_log import Trust, another, contradiction, regrown
from joiner.sender import Sender
from joiner.standstill import Standstill
from ordering.errors import Fatal, NotReady
from ordering.log import ORDERING, Log, Reader, Record
from ordering.stream import describe

log = logging.getLogger("notary.driver")

Decision = TypeVar("Decision")
D_co = TypeVar("D_co", covariant=True)

NOTICES_LOGGED_MAX = 10
ALARMS = frozenset({"wrong-partition"})
"""Notices that say that workers may come to decide differently."""


class Applier(Protocol[D_co]):
    """What decides and keeps: the index."""

    def apply(self, ready: Ready) -> Sequence[Sequence[D_co]]:
        """Decide the step's batches and make it durable, all or nothing; the decisions, a sequence for each batch."""
        ...

    @property
    def judged_digest(self) -> bytes | None:
        """The digest of the last ordering record applied, None before the first."""
        ...


class DriverSettings(msgspec.Struct, frozen=True):
    """How often the shell looks around."""

    poll_ms: int = 50
    watch_s: float = 1.0
    stall_s: float = 10.0
    unreachable_s: float = 3.0
    contradiction_s: float = 10.0  # ten metadata ages (ordering/connection.py): by then other brokers were asked too
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
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock_ms` is the wall clock, `now_s` one that never runs backwards."""
        self._log = log_
        self.joiner = joiner
        self._applier = applier
        self._sender = sender
        self._settings = settings
        self._clock_ms = clock_ms
        self._observe = observe
        self._now_s = now_s
        self._trust = Trust(settings.contradiction_s)
        self._reader: Reader | None = None
        self._paused: frozenset[int] = frozenset()
        self._remake_reader = False
        self._afresh = True  # the next reader begins as after a restart: what was read before may be gone from the log
        self._proposals = Proposals(log_, joiner, sender, self._read_next, now_s, settings.watch_s, settings.poll_ms / 1000)
        self._polls = self._polls_seen = 0
        self._reached_at_s = self._polled_at_s = self._remade_at_s = now_s()
        self._unreachable = "the log has not been asked yet"
        self._no_reader = ""
        self._streams, self._head = Standstill(), Standstill()
        self.streams_still_s: Mapping[int, float] = {}
        """The streams that had records to read, and for how long they had given none, as of the watchdog's last look."""
        self.head_still_s = 0.0
        """How long the head had not moved although the log went on behind it, as of the watchdog's last look."""
        self.readers_remade = 0
        self.lag_records = 0
        """Records of the log, over all streams, that have not been handed to the joiner, as of the watchdog's last look."""
        self.clock_skew_ms = 0
        """How far at least the log's clock is ahead of this worker's (behind it: negative), as of our last entry read back."""

    @property
    def unreachable(self) -> str:
        """What asking the log failed with the last time, for the operator; empty when it answered."""
        return self._unreachable

    @property
    def poll_age_s(self) -> float:
        """How long ago the log was last polled without an error."""
        return self._now_s() - self._polled_at_s

    @property
    def stream_still_s(self) -> float:
        """The longest of `streams_still_s`; 0 for none."""
        return max(self.streams_still_s.values(), default=0.0)

    def not_ready(self) -> str | None:
        """Why this worker's answers could not be fresh now; None when they can."""
        settings = self._settings
        patience_s = settings.unreachable_s
        if self._unreachable and self._now_s() - self._reached_at_s > patience_s:
            return f"the log has not answered for more than {patience_s:g} s"
        if not self._trust:
            return self._trust.doubt
        if self.poll_age_s > patience_s:
            why = self._no_reader or "the reader has not come back with anything"
            return f"nothing could be read from the log for more than {patience_s:g} s: {why}"
        still = [stream for stream, seconds in self.streams_still_s.items() if seconds > patience_s]
        if still:
            return f"{describe(min(still))} has records that could not be read for more than {patience_s:g} s"
        if self.head_still_s > settings.stall_s:
            return f"the head of the order has not moved for more than {settings.stall_s:g} s, and the log goes on behind it"
        return None

    async def run(self) -> None:
        """Read, apply, answer, until cancelled. Raises `Fatal` when going on could contradict what was answered."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="watch")
            tasks.create_task(self._read(tasks), name="read")
            tasks.create_task(self._send(), name="send")

    async def _send(self) -> None:
        # To a log that is not ours, nothing; not even a register record.
        await self._trust.wait()
        await self._sender.run()

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._trust.wait()
            afresh, self._afresh = self._afresh, False
            try:
                reader = await self._log.open_reader(self._begin(afresh=afresh))
            except NotReady as problem:
                self._afresh |= afresh
                self._no_reader = str(problem)
                log.info("no reader yet: %s", problem)
                await asyncio.sleep(self._settings.watch_s)
                continue
            lost = ""
            try:
                reader.pause(self._paused)
                self._reader = reader
                await self._read_with(reader, tasks, afresh=afresh)
            except NotReady as problem:
                lost = self._no_reader = str(problem)
                self._afresh = True
                log.warning("reader lost, making another: %s", problem)
            finally:
                # At once: one that failed may stand behind records that it lost.
                self._reader = None
                await reader.close()
            if lost:
                await asyncio.sleep(self._settings.watch_s)

    def _begin(self, *, afresh: bool) -> dict[int, int]:
        """Where the next reader begins.

        While nobody read, the log may have lost its end and grown again. So, afresh, nothing is kept that was read and not applied, and the
        last record that was applied is read once more, before those behind it.
        """
        if not afresh:
            return self.joiner.read_next()
        self.joiner.forget_unjudged()
        offsets = self.joiner.read_next()
        return offsets if self._applier.judged_digest is None else {**offsets, ORDERING: offsets[ORDERING] - 1}

    async def _read_with(self, reader: Reader, tasks: asyncio.TaskGroup, *, afresh: bool) -> None:
        self._remake_reader = False
        # The first ordering record of a reader that began afresh is the last one applied, or this is another log.
        compared = self._applier.judged_digest if afresh else None
        while not self._remake_reader:
            try:
                records = await reader.poll(self._settings.poll_ms)
            except Fatal as problem:
                # An offset that the log does not have, says a broker that may be behind: the watch asks what the log says of itself.
                self._contradicted(str(problem))
                return
            if not self._trust or self._afresh:
                return  # what was read meanwhile may be another log's; it is read again
            if compared is not None and (first := next((record for record in records if record.stream == ORDERING), None)) is not None:
                if first.digest() != compared:
                    self._contradicted(another(first.offset))
                    return
                compared = None
            self._polls += 1
            self._polled_at_s, self._no_reader = self._now_s(), ""
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
        ready = self.joiner.step(records, int(self._now_s() * 1_000))
        if ready.advanced:
            outcomes = self._applier.apply(ready)
            # A crash here: decided and durable, but nobody was told. A retry gets the same decisions.
            self._sender.resolve(ready, outcomes)
        self._observe(ready)
        for notice in sorted(ready.notices, key=lambda notice: notice.kind not in ALARMS)[:NOTICES_LOGGED_MAX]:
            level = logging.ERROR if notice.kind in ALARMS else logging.WARNING
            log.log(level, "%s stream=%d offset=%d: %s", notice.kind, notice.stream, notice.offset, notice.text)
        if len(ready.notices) > NOTICES_LOGGED_MAX:
            log.warning("and more like these in the same step, counted in the metrics: %d", len(ready.notices) - NOTICES_LOGGED_MAX)
        if ready.stop:
            raise Fatal(ready.stop)
        self._proposals.append(ready, tasks)
        for batch in ready.batches:
            if batch.incarnation == self._sender.incarnation:
                self._look_at_clock(batch)
        return ready

    async def _watch(self) -> None:
        while True:
            await self._look_at_log()
            await asyncio.sleep(self._settings.watch_s)

    async def _look_at_log(self) -> None:
        # Taken before the log is asked: what is read meanwhile must not look like more than the log holds.
        read_next, head_next = self._read_next(), self._head_next()
        try:
            bounds = await self._log.bounds()
            self._reached_at_s, self._unreachable = self._now_s(), ""
            try:
                # What went wrong may have gone by: a log that was doubted is looked at closely before it is read again.
                why = contradiction(read_next, bounds) or ("" if self._trust else await self._regrown())
            except Fatal as problem:
                why = str(problem)
        except NotReady as problem:
            self._unreachable = str(problem)
            self._trust.interrupted()
            self._look_for_standstill(read_next, head_next, {})
            return
        if why:
            self._contradicted(why)
            return
        if not self._trust:
            log.info("the log is the one that this index was made from")
            self._trust.agreed()
        ends = {stream: bound.offset_end for stream, bound in bounds.items()}
        self.lag_records = sum([max(0, end - read_next[stream]) for stream, end in ends.items()])
        self._look_for_standstill(read_next, head_next, ends)

    def _look_for_standstill(self, read_next: Mapping[int, int], head_next: int, ends: Mapping[int, int]) -> None:
        now_s = self._now_s()
        head = self._head.look({ORDERING: head_next}, {stream: end for stream, end in ends.items() if stream == ORDERING}, now_s)
        self.head_still_s = head.get(ORDERING, 0.0)
        # A reader that was not asked does not stand still: a long replay applies what it has first.
        asked, self._polls_seen = self._polls > self._polls_seen, self._polls
        wanted = {stream: end for stream, end in ends.items() if asked and stream not in self._paused}
        self.streams_still_s = self._streams.look(read_next, wanted, now_s)
        if min(self.stream_still_s, now_s - self._remade_at_s) > self._settings.stall_s:
            self._remake_reader, self._remade_at_s = True, now_s

    async def _regrown(self) -> str:
        return await regrown(self._log, self.joiner.read_next(), self.joiner.offset_head - 1, self._applier.judged_digest)

    def _contradicted(self, why: str) -> None:
        """From here on nothing is read and nothing taken in, until the log agrees again or the worker stops."""
        self._afresh = True
        if self._trust.contradicted(why, self._now_s()):
            log.warning("in doubt, stopping if it lasts: limit_s=%g: %s", self._settings.contradiction_s, why)

    def _read_next(self) -> dict[int, int]:
        """Per stream how far reading got.

        Not only past the last record: a stream may end with a transaction's marker, which is nobody's record and is never handed in. Who
        waited for a record behind it would never fill a hole there, and would take the reader for one that stands still.
        """
        read_next = self.joiner.read_next()
        if self._reader is not None:
            return {stream: max(offset, self._reader.offset_next(stream)) for stream, offset in read_next.items()}
        return read_next

    def _head_next(self) -> int:
        """Where the head stands; where reading does when nothing waits to be judged."""
        return self.joiner.offset_head if self.joiner.queued_records else self._read_next()[ORDERING]

    def _look_at_clock(self, own: OrderedBatch) -> None:
        """R6: log time far from this worker's clock is an alarm, never a different decision.

        Only our own entries tell: they were appended after we sent them and before we read them, by our clock, however long that took.
        """
        skew_ms = max(0, own.append_time_ms - self._clock_ms()) or min(0, own.append_time_ms - own.sent_at_ms)
        alarm_ms = self._settings.clock_alarm_ms
        if abs(skew_ms) > alarm_ms >= abs(self.clock_skew_ms):
            log.error("clock alarm: the log's append time is %d ms from this worker's clock: check both clocks", skew_ms)
        self.clock_skew_ms = skew_ms
