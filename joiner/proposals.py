"""Appends the fills and fences that the core proposes (R4, R5). The log decides whether one takes effect.

A worker has *passed* a hole if it signed a later record whose view has more records than precede the hole. Then the content existed, and
the log has lost it (R10). So before a worker fills a hole, it reads the ordering topic to its present end, and *then* the partition to its
present end. If another worker has passed the hole, this one stops and names the entry. The same bytes, put back, repair the log. If no copy
of them is left, the owner settles the history up to the hole: what others had seen after it is given up, and workers fill the holes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any

import msgspec

from joiner.control import LogState
from joiner.core import Joiner
from joiner.history import NONE_SKIPPED, Comparison, History, extend_skipped, fingerprint_of
from joiner.ready import FenceWanted, FillWanted, Ready
from joiner.recheck import RUNBOOK, Sought, examine, find_again
from joiner.sender import Sender
from ordering.errors import CorruptRecord, Fatal, FatalCode, NotReady, OutOfRange
from ordering.log import ORDERING, Log, Record
from ordering.records import Activate, Key, OrderingRecord, Settle, decode
from ordering.signatures import record_is_signed

logger = logging.getLogger("notary.driver")

READ_AHEAD_S_MAX = 60.0
"""An attempt to read ahead ends after this time without progress."""
TAKEN_AT_ONCE = 32
"""The number of records after a hole that are verified in one turn of the event loop."""
_SEEN_AT = {1: 18, 2: 18, 3: 10, 4: 10}
"""The offset of `seen` in each kind of worker record: the transaction ids after it need not be decoded."""
_OWNER_KINDS = (5, 7, 10)
"""The kinds `activate`, `key` and `settle`, which the owner signs."""
_U64 = Struct(">Q")


class Passing(msgspec.Struct, frozen=True):
    """A record after the hole whose writer had seen more records than precede the hole."""

    offset: int
    seen: int


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


class ReadAhead:
    """The ordering topic from `offset` on, behind a hole, as far as it was read. A later call of `read` goes on from there.

    Anyone who may write can put any number of forged records there. Each costs a verification, so an attempt ends only without progress.
    """

    def __init__(self, log_state: LogState, offset: int, history: History) -> None:
        self.log_state = log_state
        """The log's state after the key and settle records on the way."""
        self.activated = log_state
        """The same, with the activate records on the way. Whether these count depends on the voters, which are not known here."""
        self.passing: Passing | None = None
        """The first well-signed record whose writer had seen more records than `history`.

        Records before an owner's `settle` for this history, or a part of it, are ignored.
        """
        self.offset_next = offset
        self._history, self._seen = history, history.seen
        # The last record, and a running hash over those before it that share its append time, and one more.
        self._last: Record | None = None
        self._run_first, self._run_hash = NONE_SKIPPED, b""

    async def read(self, log: Log) -> None:
        """Read to the topic's present end. Raises `NotReady` when that makes no progress."""
        log_end_offset = (await log.offsets())[ORDERING].log_end
        reader = await log.open_reader({ORDERING: self.offset_next})
        loop = asyncio.get_running_loop()
        try:
            reader.pause(range(log.payload_partitions))
            async with asyncio.timeout(READ_AHEAD_S_MAX) as deadline:
                while (before := reader.offset_next(ORDERING)) < log_end_offset:
                    for number, record in enumerate(await reader.poll(1_000), 1):
                        if record.partition == ORDERING:
                            self._take(record)
                        if not number % TAKEN_AT_ONCE:
                            await asyncio.sleep(0)
                    if reader.offset_next(ORDERING) > before:
                        deadline.reschedule(loop.time() + READ_AHEAD_S_MAX)
                        await asyncio.sleep(0)
        except TimeoutError:
            raise NotReady(f"the ordering topic could not be read on: no progress in {READ_AHEAD_S_MAX:g} s") from None
        finally:
            await reader.close()

    async def still_holds(self, log: Log) -> bool:
        """Returns True if the log still has the last records that were read, so that a later call of `read` may go on."""
        last = self._last
        if last is None:
            return True
        sought = Sought(last.offset, fingerprint_of(last), self._run_first, self._run_hash)
        return not await find_again(log, {ORDERING: deque([sought])})

    def _take(self, record: Record) -> None:
        if (last := self._last) is not None:
            if last.append_time_ms != record.append_time_ms:
                self._run_first, self._run_hash = last.offset, b""
            self._run_hash = extend_skipped(self._run_hash, last)
            if self._run_first == NONE_SKIPPED:
                self._run_first = last.offset
        self._last, self.offset_next = record, record.offset + 1
        value = record.value
        if value is None or len(value) < 2:
            return
        if value[1] in _OWNER_KINDS:
            control = _control_record(value, self.activated)
            if isinstance(control, Key):
                self.log_state = self.log_state.with_key(control, self._seen) or self.log_state
                self.activated = self.activated.with_key(control, self._seen) or self.activated
            elif isinstance(control, Activate):
                self.activated = self.activated.with_format(control.format_version) or self.activated
            elif isinstance(control, Settle) and self._history.compare(control.view) is Comparison.OWN:
                self._settle(control)
        elif self.passing is None and (at := _SEEN_AT.get(value[1])) is not None and len(value) >= at + _U64.size:
            (seen_there,) = _U64.unpack_from(value, at)
            if seen_there > self._seen and record_is_signed(value, self.log_state.log_id, self.log_state.key):
                self.passing = Passing(record.offset, seen_there)

    def _settle(self, record: Settle) -> None:
        """Count a settle record that is valid in `log_state` or in `activated`: the owner has confirmed this history.

        A copy of a record that counted before has no effect, since anybody may append it.
        """
        settled = self.log_state.with_settled(record) or self.activated.with_settled(record)
        if settled is not None:
            self.log_state = msgspec.structs.replace(self.log_state, settled=settled.settled)
            self.activated = msgspec.structs.replace(self.activated, settled=settled.settled)
            self.passing = None


async def read_ahead(log: Log, log_state: LogState, offset: int, history: History) -> tuple[Passing | None, LogState]:
    """Read the ordering topic from `offset`, behind a hole, to its present end. Returns what `ReadAhead` found. Raises `NotReady`.

    The state is `ReadAhead.activated`. If an activate record does not count after all, a `settle` of the new version has no effect.
    """
    ahead = ReadAhead(log_state, offset, history)
    await ahead.read(log)
    return ahead.passing, ahead.activated


def _control_record(value: bytes, log_state: LogState) -> OrderingRecord | None:
    """Returns the record if the owner has signed it; else None."""
    try:
        record = decode(value, log_state.formats)
    except CorruptRecord:
        return None
    return record if record_is_signed(value, log_state.log_id, log_state.owner_key) else None
