"""The thin asyncio shell around the core: poll -> step -> apply -> answer (R8), and the watchdog.

    reader.poll() -> Joiner.step() -> Applier.apply()  durable from here on -> Sender.resolve() -> answers leave

There is no `await` between a step and the application of its effects. A crash before `apply` returns leaves the index as it was: the
records are read again. A crash after that leaves decisions that no client has received: a retry gets the same decisions (R7).

**After an interruption nothing is applied before the log has been checked** (R10). An interruption is a start, a reader that failed or
reports that it was interrupted, or a process that did not run for a while. Then records that were read but took no effect are discarded. A
new reader begins at the last records that took effect. Its records are held back until those last records are found again (`Recheck`).

A reader does not detect interruptions of a topic-partition that it has paused. A partition is paused while too many of its records wait.
Meanwhile `_watch_unread` checks that the log still has these records. Nothing is applied if the last check is over two seconds old.

The watchdog requests the log's start and end offsets every second. It measures the lag. It detects an unreachable log, a stalled reader
(which is then replaced), and a log that ends before records that took effect. It also detects that this worker has caught up: only then
does the worker register.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Generic, Protocol, TypeVar

from joiner.applied import SALVAGE_OPEN
from joiner.core import Joiner
from joiner.evidence import Evidence
from joiner.log_clock import LogClock
from joiner.log_trust import INTERRUPTED, LogTrust
from joiner.proposals import Proposals
from joiner.ready import Ready
from joiner.recheck import Recheck, contradiction, examine, find_again, sought, to_find_again
from joiner.sender import Sender
from joiner.settings import DriverSettings
from joiner.stalled import Stalls
from ordering.clock import uptime_s
from ordering.errors import Fatal, FatalCode, NotReady, OutOfRange
from ordering.log import ORDERING, Log, Reader, Record, describe
from ordering.signatures import record_is_signed
from payload import Request

logger = logging.getLogger("notary.driver")

Decision = TypeVar("Decision")
D_co = TypeVar("D_co", covariant=True)

ANOMALIES_LOGGED_MAX = 10
VERIFY_AT_ONCE = 256
"""The number of records in a chunk: a thread verifies the signatures of one chunk while the chunk before it is applied."""
VERIFY_HERE_MAX = 2
"""This many signatures or fewer are verified in the calling thread: a handover to another thread costs as much."""
LOST_WAITING = "the log has lost records that this worker has read and not applied"
UNREAD_CHECKS = 8
"""Paused topic-partitions are looked at this many times in `interrupted_after_s`, and checked once half of that time has passed."""
CHECK_AGAIN_S = 10.0
"""The shortest time between two checks of the log because of badly signed records."""


class Applier(Protocol[D_co]):
    """Decides batches and persists the results: the index."""

    def prepare(self, requests: Sequence[Request]) -> Iterator[None]:
        """Read, in pieces, the rows that `apply` will need if these requests are the next step's only batch."""
        ...

    def apply(self, ready: Ready) -> Sequence[Sequence[D_co]]:
        """Decide the step's batches and make them durable, all or nothing; returns the decisions, a sequence for each batch."""
        ...


class Driver(Generic[Decision]):
    """One worker's consumer side: it reads the log and applies it."""

    def __init__(
        self,
        log: Log,
        joiner: Joiner,
        applier: Applier[Decision],
        sender: Sender[Decision],
        settings: DriverSettings,
        clock_ms: Callable[[], int],
        observers: Iterable[Callable[[Ready], None]] = (),
        now_s: Callable[[], float] = uptime_s,
        executor: Executor | None = None,
    ) -> None:
        """`observers` are called after each step, once it is durable. `clock_ms` is the wall clock, and `now_s` never runs
        backwards. Signatures are verified in `executor`, if there is one.
        """
        self._log = log
        self.joiner = joiner
        self._applier = applier
        self._sender = sender
        self._settings = settings
        self.observers = list(observers)
        self._now_s = now_s
        self._executor = executor
        self._reader: Reader | None = None
        self._recheck = Recheck({})
        self._paused: frozenset[int] = frozenset()
        self._new_reader_why = ""
        """The reason why another reader must replace the present one; empty while there is none."""
        self._in_hand = False
        """True while polled records are not passed to the joiner yet."""
        self.trust = LogTrust(settings.contradiction_s)
        self.log_clock = LogClock(settings, clock_ms)
        self.stalls = Stalls(settings, now_s())
        self._compared_since_s = now_s()
        """The time when the present comparison of the log with the index began, plus the time for which it waited for records."""
        self._ends_to_reach: dict[int, int] | None = None
        """The log end offsets up to which this worker must read before it is live; None before the watchdog's first check."""
        self._check_wanted = False
        self._checked_at_s = now_s() - CHECK_AGAIN_S
        self._proposals = Proposals(
            log, joiner, sender, self._read_next, now_s, settings.watch_s, settings.poll_s, settings.contradiction_s, self._contradicted
        )
        self._polls = self._polls_seen = self._interruptions_seen = 0
        self._ran_at_s = now_s()
        self._seen_at_s: dict[int, float] = {}  # per topic-partition: the time when it was last read or checked
        self._reached_at_s = self._polled_at_s = now_s()
        self._unreachable = "no request was sent to the log yet"
        self._no_reader = ""
        self.readers_remade = 0
        self.interruptions = 0
        """Counts the checks of the log after interruptions."""
        self.caught_up_offset: int | None = None
        """The ordering offset up to which the log was applied when this process first caught up without a suspicion; None before."""
        self.lag_records = 0
        """The number of records of the log, over all topic-partitions, not passed to the joiner yet, at the watchdog's last check."""
        sender.may_not_append = self.may_not_append

    @property
    def unreachable(self) -> str:
        """The error of the last request to the log, for the operator; empty when it succeeded."""
        return self._unreachable

    @property
    def uncompared(self) -> frozenset[int]:
        """The topic-partitions not compared with the index since reading was interrupted; for long, only those without a leader."""
        return self._recheck.waits_for

    @property
    def poll_age_s(self) -> float:
        """The seconds since the log was last polled without an error."""
        return self._now_s() - self._polled_at_s

    def not_ready(self) -> str | None:
        """Returns the reason why this worker's answers might not be fresh now; None when they are."""
        unreachable_s = self._settings.unreachable_s
        if self._unreachable and self._now_s() - self._reached_at_s > unreachable_s:
            return f"the log has not answered for more than {unreachable_s:g} s"
        if (why := self.suspicion() or self._clock_suspicion()) is not None:
            return why
        if self.poll_age_s > unreachable_s:
            why = self._no_reader or "the reader returns nothing"
            return f"nothing could be read from the log for more than {unreachable_s:g} s: {why}"
        return self.stalls.not_ready()

    def suspicion(self) -> str | None:
        """Returns the reason why serving is suspended: the log may differ from the log of this index (R10). None if serving is allowed."""
        if why := self.trust.suspicion:
            return f"{why}; the log cannot be read now: {self._no_reader}" if self._no_reader else why
        reader = self._reader
        if reader is not None and reader.interruptions != self._interruptions_seen:
            return INTERRUPTED
        if reader is not None and self._now_s() - self._ran_at_s > self._settings.interrupted_after_s:
            return "this process did not run for a while: the log must be compared with this worker's index first"
        log_state = self.joiner.log_state
        if log_state is not None and log_state.sealed:
            return f"nothing is answered: {SALVAGE_OPEN}"
        return self.joiner.suspicions.describe() or None

    def _clock_suspicion(self) -> str | None:
        last = self.joiner.history.last
        return self.log_clock.suspicion(None if last is None else max(self.joiner.log_time_ms, last.append_time_ms))

    def may_not_append(self) -> str | None:
        """Returns the reason why this worker appends nothing but fills now; None when it may append (R10)."""
        if not self.joiner.suspicions.live:
            return "this worker has not read the log to its end yet"
        return self.suspicion() or self._clock_suspicion()

    async def run(self) -> None:
        """Read, apply and answer until cancelled. Raises `Fatal` when continuing could contradict earlier answers."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(tasks), name="watch")
            tasks.create_task(self._watch_unread(), name="watch-unread")
            tasks.create_task(self._read(tasks), name="read")
            tasks.create_task(self._sender.run(), name="send")

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            try:
                await self._log.has_partitions(0 if self.joiner.log_state is None else self.joiner.log_state.payload_partitions)
                reader = await self._log.open_reader(self._begin_comparison())
            except NotReady as problem:
                self._no_reader = str(problem)
                logger.info("the log cannot be read yet, trying again: %s", problem)
                await asyncio.sleep(self._settings.watch_s)
                continue
            why, wait_s = "", 0.0
            try:
                self._reader, self._interruptions_seen = reader, reader.interruptions
                why = await self._read_with(reader, tasks)
            except NotReady as problem:
                why = self._no_reader = str(problem)
                wait_s = self._settings.watch_s
            except OutOfRange as problem:
                # The broker that does not have an offset may lag behind: check again, and stop only if the error lasts.
                why = str(problem)
                wait_s = self._settings.watch_s
                self._contradicted(why, self._now_s() if self._recheck.done else self._compared_since_s)
            finally:
                # Set this before any other task runs: nothing may be answered until the log was checked. A reader that failed may have lost
                # records before its position.
                self.trust.suspend()
                self._reader = None
                await reader.close()
            logger.warning("restarting the reader: %s", why)
            await asyncio.sleep(wait_s)

    def _begin_comparison(self) -> dict[int, int]:
        """Begin a comparison of the log with the index. Returns the next reader's first offsets.

        These are the offsets of the last records that took effect, or of earlier ones that are still needed.
        """
        # If a partition's mark was not found before this interruption, the joiner got none of its records: `Recheck` still keeps them.
        kept = self.joiner.forget_unapplied() | self._recheck.kept
        self._recheck = Recheck(self.joiner.marks, self.joiner.history.last_run, kept, self.joiner)
        self._paused = frozenset()
        self._compared_since_s = self._now_s()
        self._new_reader_why, self._in_hand = "", False
        offsets = self.joiner.read_next() | {partition: of_partition.offset_next for partition, of_partition in kept.items()}
        return offsets | {partition: min(first, offsets.get(partition, first)) for partition, first in self._recheck.offsets_first.items()}

    async def _read_with(self, reader: Reader, tasks: asyncio.TaskGroup) -> str:
        """Read with this reader until a new one is needed; returns the reason."""
        self._ran_at_s = self._now_s()
        while True:
            partitions, paused = frozenset(range(ORDERING, self._log.payload_partitions)), self._paused
            if self._recheck.waits_for and not self._recheck.done:
                paused = partitions - self._recheck.waits_for
                reader.pause(paused)
            poll_began_s = self._now_s()
            records = await reader.poll(self._settings.poll_ms)
            self._polls += 1
            self._in_hand = bool(records)
            self._polled_at_s, self._no_reader = self._now_s(), ""
            if not records:
                self._compared_since_s += self._polled_at_s - poll_began_s
            self._seen_at_s |= dict.fromkeys(partitions - paused, self._polled_at_s)
            if why := self._interruption(reader):
                return why
            if self._recheck.waits_for or not self._recheck.done:
                was_done = self._recheck.done
                # Once the log has contradicted the index, also wait for partitions without a leader.
                led = range(ORDERING, self._log.payload_partitions) if self.trust.refuted else {ORDERING, *self._log.leaders()}
                records = self._recheck.take(records, led)
                if self._recheck.lost:
                    self._contradicted(self._recheck.lost, self._compared_since_s)
                    await asyncio.sleep(self._settings.watch_s)
                    return self._recheck.lost
                if not self._recheck.done:
                    continue
                self.joiner.restore_dropped(self._recheck.take_dropped())
                if not was_done and await self._lost_while_held(records):
                    return LOST_WAITING
                self._in_hand = bool(records)
                if not was_done:
                    reader.pause(self._paused)
                    self._agreed()
            if why := await self._apply(records, reader, tasks):
                return why
            self._in_hand = False
            self._catch_up()
            if records:
                await asyncio.sleep(0)
            if why := self._interruption(reader):
                return why

    async def _lost_while_held(self, records: Sequence[Record]) -> bool:
        """Read held-back records again if the comparison of another topic-partition took long. Returns True if one is lost.

        The topic-partitions of these records were paused meanwhile, so the reader detects no interruption there. If reading the records
        again takes long too, all of them are read once more. (With slow brokers, a new comparison would end here again each time.)
        """
        limit_s = self._settings.interrupted_after_s
        since_s = self._now_s() - limit_s
        while old := [record for record in records if self._seen_at_s.get(record.partition, since_s) < since_s]:
            began_s = self._now_s()
            if await find_again(self._log, to_find_again(old)):
                return True
            self._seen_at_s |= dict.fromkeys({record.partition for record in old}, began_s)
            if self._new_reader_why or self._now_s() - began_s <= limit_s:
                break
            self._ran_at_s = since_s = self._now_s()  # all records will have been seen after this
        return False

    def _interruption(self, reader: Reader) -> str:
        """Returns the reason why the log must be checked before more records of this reader are applied; empty if there is none."""
        now_s, limit_s = self._now_s(), self._settings.interrupted_after_s
        stopped_s, self._ran_at_s = now_s - self._ran_at_s, now_s
        why = ""
        if reader.interruptions != self._interruptions_seen:
            why = "reading was interrupted"
        elif stopped_s > limit_s:
            why = f"this process did not run for {stopped_s:.0f} s"
        elif unread := self._unread(limit_s):
            why = f"{describe(unread[0])} was not read for more than {limit_s:g} s, and may have lost records that wait here"
        self.interruptions += bool(why)
        if not why and self._new_reader_why:  # set by another task: the log may have lost the rest of what was polled
            self.readers_remade += 1
            return self._new_reader_why
        return why

    async def _apply(self, records: Sequence[Record], reader: Reader, tasks: asyncio.TaskGroup) -> str:
        """Pass records to the joiner and carry out the effects. Returns the reason why a new reader is needed; empty if none is."""
        chunks = [records[at : at + VERIFY_AT_ONCE] for at in range(0, len(records), VERIFY_AT_ONCE)] or [records]
        verifying = self._verify(chunks[0])
        for number, chunk in enumerate(chunks):
            signed_by = await verifying if isinstance(verifying, asyncio.Future) else verifying
            if number:
                await asyncio.sleep(0)  # yields to the other tasks: a poll may have thousands of records
            if number + 1 < len(chunks):
                verifying = self._verify(chunks[number + 1])
            # Time has passed since they were polled: the process may have been paused while signatures were verified.
            if why := self._interruption(reader):
                return why
            ready = self._step(chunk, tasks, signed_by)
            while ready.more or ready.evidence is not None:
                await asyncio.sleep(0)  # yields to the other tasks during a long replay
                if ready.evidence is not None and (why := await self._examine(ready.evidence)):
                    return why
                if why := await self._prepare(reader):
                    return why
                ready = self._step((), tasks)
            # A topic-partition that is not compared yet is read until its mark is found, also while memory is full.
            if (paused := (ready.paused | self._undeclared()) - self._recheck.waits_for) != self._paused:
                self._paused = paused
                reader.pause(paused)
            log_state = self.joiner.log_state
            if ready.read_again:
                return "payload records were dropped for lack of memory, and are read again"
            if log_state is not None and log_state.payload_partitions > self._log.payload_partitions:
                return f"the log has {log_state.payload_partitions} payload partitions now"
        return ""

    async def _prepare(self, reader: Reader) -> str:
        """Decode a large batch at the head and look up its rows, in pieces, so that other tasks can run in between.

        Returns the reason why a new reader is needed; empty if none is. All pieces together may take longer than `interrupted_after_s`.
        """
        pieces = self.joiner.prepare(self._sender.unresolved)
        requests: Sequence[Request] | None = None
        while requests is None:
            try:
                next(pieces)
            except StopIteration as done:
                requests = done.value
            if why := await self._yield(reader):
                return why
        for _ in self._applier.prepare(requests):
            if why := await self._yield(reader):
                return why
        return ""

    async def _yield(self, reader: Reader) -> str:
        """Let the other tasks run. Returns the same as `_interruption` after that."""
        await asyncio.sleep(0)
        return self._interruption(reader)

    def _undeclared(self) -> frozenset[int]:
        """Returns the payload partitions that exist but that no entry may name yet. They are read once a control record declares them."""
        log_state = self.joiner.log_state
        declared = 0 if log_state is None else log_state.payload_partitions
        return frozenset(range(declared, self._log.payload_partitions))

    def _verify(self, records: Sequence[Record]) -> "asyncio.Future[dict[bytes, bytes]] | dict[bytes, bytes]":
        """Verify signatures, in a thread if there are enough. Returns the key in force for each value that is signed with it."""
        log_state = self.joiner.log_state
        if (
            log_state is None
            or len(values := self.joiner.to_verify(records, self._sender.unresolved)) <= VERIFY_HERE_MAX
            or self._executor is None
        ):
            return {}
        return asyncio.get_running_loop().run_in_executor(self._executor, _signed, values, log_state.log_id, log_state.key)

    async def _examine(self, evidence: Evidence) -> str:
        """Compare our history with the log because of a foreign view: all effects since another worker's view last agreed (R10)."""
        joiner = self.joiner
        logger.warning(
            "a record shows another history offset=%d writer=%s seen=%d seen_here=%d: comparing this worker's history with the log",
            evidence.offset,
            evidence.writer,
            evidence.view.seen,
            evidence.seen_here,
        )
        agreed = joiner.suspicions.agreed
        # A reader that still replays stays suspected after any comparison, until another worker or the owner clears it. So only a live
        # reader stops here.
        if joiner.suspicions.live and agreed < joiner.history.seen_first > 1:
            raise Fatal(
                FatalCode.HISTORY_DIFFERS,
                f"ordering record {evidence.offset} of worker {evidence.writer!r} shows another history than this index has, and no other"
                f" worker agreed with this index in the last {joiner.history.seen - joiner.history.seen_first} records: keep this index as"
                " evidence, and see docs/runbook.md, 'A worker has seen another history'",
            )
        # From here on serving stays suspended until this comparison succeeds, even if a new reader finds the marks.
        self.trust.examine(evidence)
        began_s = self._now_s()
        lost = await examine(self._log, joiner.history.since(agreed), joiner.marks)
        if lost:
            self._contradicted(lost, began_s)
            return lost
        joiner.examined(evidence)
        self.trust.examining = None
        self._agreed()
        return ""

    def _step(self, records: Sequence[Record], tasks: asyncio.TaskGroup, signed_by: Mapping[bytes, bytes] | None = None) -> Ready:
        ready = self.joiner.step(records, int(self._now_s() * 1_000), signed_by, self._sender.unresolved)
        if ready.advanced:
            outcomes = self._applier.apply(ready)
            # A crash here: decided and durable, but not answered. A retry gets the same decisions.
            self._sender.resolve(ready, outcomes)
        for observe in self.observers:
            observe(ready)
        for anomaly in ready.anomalies[:ANOMALIES_LOGGED_MAX]:
            logger.warning("log anomaly kind=%s partition=%d offset=%d: %s", anomaly.kind, anomaly.partition, anomaly.offset, anomaly.text)
        if len(ready.anomalies) > ANOMALIES_LOGGED_MAX:
            logger.warning(
                "more log anomalies in the same step, counted in the metrics only: %d", len(ready.anomalies) - ANOMALIES_LOGGED_MAX
            )
        self._check_wanted |= any(anomaly.kind == "unsigned" for anomaly in ready.anomalies)
        if ready.stop is not None:
            raise ready.stop
        examining = self.trust.examining
        if examining is not None and ready.evidence is None and self.joiner.offset_head > examining.offset:
            # The log has another record in its place now, and that one shows our own history.
            self.trust.examining = None
            self._agreed()
        self._proposals.append(ready, tasks)
        for batch in ready.batches:
            if batch.incarnation == self._sender.incarnation and self.log_clock.check(batch):
                logger.error(
                    "clock alarm: the log's append time is %d ms from this worker's clock: check both clocks", self.log_clock.skew_ms
                )
        return ready

    async def _watch(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._check_log()
            if self._check_wanted and self._now_s() - self._checked_at_s >= CHECK_AGAIN_S and not self.trust.suspicion:
                self._check_wanted, self._checked_at_s = False, self._now_s()
                tasks.create_task(self._check_again(), name="check-again")
            self._sender.wake()
            await asyncio.sleep(self._settings.watch_s)

    async def _check_log(self) -> None:
        # Take these values before the request: records read during it must not look as if they were beyond the log's end.
        read_next, head_next, acknowledged = self._read_next(), self._head_next(), self._sender.acknowledged()
        marks, began_s = dict(self.joiner.marks), self._now_s()
        try:
            log_offsets = await self._log.offsets()
        except NotReady as problem:
            self._unreachable = str(problem)
            self.trust.unreachable()
            self._detect_stalls(read_next, head_next, {})
            return
        self._reached_at_s, self._unreachable = self._now_s(), ""
        next_is_deleted = any(read_next.get(partition, 0) < offsets.log_start for partition, offsets in log_offsets.items())
        self.trust.offsets_checked(next_is_deleted=next_is_deleted)
        if why := contradiction(read_next, marks, log_offsets):
            # No request takes `contradiction_s`: if this one did, the process was paused, and a contradiction from before does not count.
            now_s = self._now_s()
            self._contradicted(why, began_s if now_s - began_s < self._settings.contradiction_s else now_s)
            return
        # Partitions may have been added during the request.
        ends = {partition: offsets.log_end for partition, offsets in log_offsets.items() if partition in read_next}
        examining = self.trust.examining
        if examining is not None and ends[ORDERING] <= examining.offset:
            self.trust.examining = None
            self._new_reader_why = self._new_reader_why or "the log no longer has the record that showed another history"
        if self._ends_to_reach is None or any(end < self._ends_to_reach.get(partition, 0) for partition, end in ends.items()):
            # Lower the ends if the log has been truncated since: do not wait for records that are gone.
            self._ends_to_reach = ends
        self._catch_up()
        self._sender.expect(acknowledged, ends[ORDERING])
        self.lag_records = sum([max(0, end - read_next.get(partition, 0)) for partition, end in ends.items()])
        self._detect_stalls(read_next, head_next, ends)

    def _catch_up(self) -> None:
        """Mark this worker live once it has applied all records up to the first known log end and is not suspected (R10)."""
        suspicions = self.joiner.suspicions
        if suspicions.live or self._ends_to_reach is None or self.trust.suspicion or suspicions.open or self.joiner.log_state is None:
            return
        read_next = self._read_next()
        # A paused partition waits for memory, and the head does not need it. So records of unknown incarnations cannot delay a worker.
        wanted = {partition: end for partition, end in self._ends_to_reach.items() if partition not in self._paused}
        behind = [partition for partition, end in wanted.items() if read_next.get(partition, 0) < end]
        if not behind and self._head_next() >= self._ends_to_reach[ORDERING]:
            suspicions.live = True
            self.caught_up_offset = self.joiner.offset_head
            logger.info("caught up with the log offset=%d seen=%d", self.caught_up_offset, self.joiner.history.seen)
            self._sender.wake()

    async def _check_again(self) -> None:
        """Check the log because of badly signed records: this worker may have missed a key rotation. Serving continues meanwhile."""
        began_s = self._now_s()
        try:
            lost = await examine(self._log, self.joiner.history.last_run, self.joiner.marks, contents=False)
        except (NotReady, Fatal) as problem:
            logger.info("the log cannot be examined now, trying again: %s", problem)
            self._check_wanted = True
            return
        if lost:
            self._contradicted(lost, began_s)

    async def _watch_unread(self) -> None:
        """Check paused topic-partitions often (R10): the reader detects no interruption there, and waiting records may be lost."""
        while True:
            await asyncio.sleep(self._settings.interrupted_after_s / UNREAD_CHECKS)
            if unread := self._unread(self._settings.interrupted_after_s / 2):
                await self._check_unread(unread)

    def _unread(self, seconds: float) -> list[int]:
        """Returns the topic-partitions with waiting records that were neither read nor checked for `seconds`.

        A payload partition without a leader is left out: it cannot be checked, and must not delay the others.
        """
        since_s = self._now_s() - seconds
        old = [partition for partition in self._paused if self._seen_at_s.get(partition, since_s) < since_s]
        leaders = self._log.leaders() if old else {}
        return [
            partition
            for partition in old
            if (self.joiner.queued_records if partition == ORDERING else partition in leaders and self.joiner.is_buffered(partition))
        ]

    async def _check_unread(self, unread: list[int]) -> None:
        began_s = self._now_s()
        run = self.joiner.queue_run if ORDERING in unread else []
        payloads = [record for partition in unread if partition != ORDERING for record in self.joiner.buffered_run(partition)]
        try:
            lost = await find_again(self._log, sought(run, {}, contents=False) | to_find_again(payloads))
        except (NotReady, OutOfRange) as problem:
            logger.debug("the log cannot be examined now, trying again: %s", problem)
            return
        if lost:
            self._new_reader_why = self._new_reader_why or LOST_WAITING
        for partition in unread:
            self._seen_at_s[partition] = float("-inf") if lost else max(began_s, self._seen_at_s.get(partition, began_s))

    def _detect_stalls(self, read_next: Mapping[int, int], head_next: int, ends: Mapping[int, int]) -> None:
        # A reader that was not polled is not stalled: during a replay, records may take long to apply.
        was_polled, self._polls_seen = self._polls > self._polls_seen, self._polls
        reader, done, uncompared = self._reader, self._recheck.done, self._recheck.waits_for
        at = dict(read_next)
        if reader is not None:
            # `Recheck` holds back the records of a topic-partition that is not compared yet, so only the reader advances.
            at |= {partition: reader.offset_next(partition) for partition in uncompared}
        read = {partition for partition in ends if partition not in self._paused and (done or partition in uncompared)}
        wanted = {partition: ends[partition] for partition in read if was_polled}
        self._new_reader_why = self.stalls.update(at, wanted, head_next, ends.get(ORDERING), self._now_s()) or self._new_reader_why

    def _agreed(self) -> None:
        """Resume serving, since the log is the one that this index was made from.

        It does not resume while a foreign view must be examined, or after another task has requested a new reader, which compares again.
        """
        if not self._new_reader_why and self.trust.agreed():
            self._catch_up()

    def _contradicted(self, why: str, began_s: float) -> None:
        """Apply and admit nothing until a new reader has found that the log agrees. Raises `Fatal` as `LogTrust.contradicted` does."""
        self._new_reader_why = self._new_reader_why or why
        if self.trust.contradicted(why, began_s, self._now_s()):
            limit_s = self._settings.contradiction_s
            logger.warning("the log contradicts the index, stopping if that lasts: limit_s=%g: %s", limit_s, why)

    def _read_next(self) -> dict[int, int]:
        """Returns the next offset to read of each topic-partition.

        It may be beyond the last record: a partition may end with a transaction marker, which the reader does not return. If markers were
        not counted as read, this worker would never fill a hole there, and the reader would look stalled.
        """
        read_next = dict.fromkeys(range(ORDERING, self._log.payload_partitions), 0) | self.joiner.read_next()
        reader, recheck = self._reader, self._recheck
        # Do not count polled records as read before the joiner has them: otherwise this worker could become live before a foreign view
        # among them raises a suspicion.
        if reader is not None and recheck.done and not self._in_hand:
            for partition in read_next.keys() - recheck.waits_for:
                read_next[partition] = max(read_next[partition], reader.offset_next(partition))
        return read_next

    def _head_next(self) -> int:
        """Returns the offset of the head, or the read position when no ordering record waits."""
        return self.joiner.offset_head if self.joiner.queued_records else self._read_next()[ORDERING]


def _signed(values: Sequence[bytes], log_id: bytes, key: bytes) -> dict[bytes, bytes]:
    return {value: key for value in values if record_is_signed(value, log_id, key)}
