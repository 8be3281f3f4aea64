"""Checks that the log still holds the records that this worker's index was made from (R10).

There are two kinds of checks. Both read records again and compare their fingerprints:

- After an interruption, `Recheck` checks one record of every topic-partition before anything more is applied: the record with the highest
  offset that took effect. In the ordering topic it also checks those before it with the same append time. The same reader then continues.
- After a foreign view, `examine` checks every record that took effect since another worker's view last agreed with ours, with its content.
  It uses a reader of its own.

A single check may mislead: with old metadata a worker may fetch from a former leader, and get an older log than it has read before. So the
driver applies nothing after the first mismatch, and stops only if the mismatch lasts.
"""

import asyncio
from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import Final, Protocol

from joiner.buffer import cost_bytes
from joiner.dropped import Dropped
from joiner.history import NO_CONTENT, NONE_SKIPPED, Effect, Mark, extend_skipped, fingerprint_of, last_of_one_time
from joiner.ready import Kept
from ordering.errors import NotReady
from ordering.log import ORDERING, Log, LogOffsets, Reader, Record, describe

RUNBOOK: Final = "docs/runbook.md"
EXAMINE_S_MAX: Final = 60.0
POLL_MS: Final = 1_000


class Sought:
    """Matches records that are read again against one record that took effect and the records skipped before it."""

    def __init__(self, offset: int, fingerprint: bytes, skipped_first: int = NONE_SKIPPED, skipped_hash: bytes = b"") -> None:
        self.offset = offset
        self.offset_first = offset if skipped_first == NONE_SKIPPED else skipped_first
        """The offset of the first record that was skipped before it; its own offset if none was."""
        self._wanted = fingerprint, skipped_hash
        self._skipped_hash = b""

    def found(self, record: Record) -> bool | None:
        """Returns True if `record` is the record sought, and None if the record sought comes later.

        Returns False if another record has replaced it, or one of the records skipped before it.
        """
        if record.offset < self.offset:
            if record.offset >= self.offset_first:
                self._skipped_hash = extend_skipped(self._skipped_hash, record)
            return None
        return record.offset == self.offset and self._wanted == (fingerprint_of(record), self._skipped_hash)


def sought(effects: Sequence[Effect], marks: Mapping[int, Mark], *, contents: bool) -> dict[int, deque[Sought]]:
    """Returns the records to find in each topic-partition, by rising offset: those of the marks and effects, and contents if wanted."""
    by_offset = {partition: {mark.offset: Sought(mark.offset, mark.fingerprint)} for partition, mark in marks.items()}
    for effect in effects:
        record = Sought(effect.offset, effect.fingerprint, effect.skipped_first, effect.skipped_hash)
        by_offset.setdefault(ORDERING, {})[effect.offset] = record
        if contents and effect.partition != NO_CONTENT:
            content = Sought(effect.content_offset, effect.content_fingerprint)
            by_offset.setdefault(effect.partition, {})[effect.content_offset] = content
    return {partition: deque(of_partition[offset] for offset in sorted(of_partition)) for partition, of_partition in by_offset.items()}


class Memory(Protocol):
    """The joiner's limits on the payload records in memory (`Joiner`)."""

    def may_count(self, record: Record) -> bool:
        """Returns True if an entry may still name this payload record; always True for an ordering record."""
        ...

    def may_hold(self, record: Record, size_bytes: int) -> bool:
        """Returns True if this payload record may be held in memory beside others that cost `size_bytes`."""
        ...

    def is_awaited(self, record: Record) -> bool:
        """Returns True if the log is read again for this content; the first such record must be held."""
        ...

    def drop(self, dropped: Dropped | None, record: Record) -> Dropped:
        """Add a payload record to its partition's dropped ones, and return them."""
        ...


class Recheck:
    """Holds back the records of a new reader until the marks are found among them. `marks`: per topic-partition the record to find.

    `run`: the effects of the ordering topic to find together with its mark (`History.last_run`).

    `kept`: per payload partition, records read earlier that need not be read again. They are passed on first, once the partition's mark is
    found.

    `memory`: the limits on what is held; none if it is left out. A forged payload that no entry names can make reading start far before the
    mark, and the records in between must not exhaust the memory. So those that no entry can name are left out. Those above the limit are
    dropped and reported (`take_dropped`): the joiner has them read again if an entry names one.

    A payload partition without a leader cannot be read and gives nothing to apply, so the others do not wait for it. Once it has a leader,
    its mark is checked before its records are passed on.
    """

    def __init__(
        self,
        marks: Mapping[int, Mark],
        run: Sequence[Effect] = (),
        kept: Mapping[int, Kept] | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._wanted = sought(run, marks, contents=False)
        self._kept = {} if kept is None else {partition: kept[partition] for partition in kept.keys() & marks.keys()}
        self._memory = memory
        self._held: list[Record] = [record for partition in self._kept for record in self._kept[partition].records]
        self._held_bytes = sum([cost_bytes(record) for record in self._held])
        self._dropped = {partition: of_partition.dropped for partition, of_partition in self._kept.items() if of_partition.dropped}
        self._has_awaited = memory is not None and any(memory.is_awaited(record) for record in self._held)
        self.done = False
        """True once the marks of all topic-partitions with a leader were found."""
        self.lost = ""
        """A message about a mark that the log has lost; empty while none is missing."""

    @property
    def kept(self) -> dict[int, Kept]:
        """The records that were not passed on yet, for the next `Recheck`."""
        return {partition: kept for partition, kept in self._kept.items() if partition in self._wanted}

    @property
    def offsets_first(self) -> dict[int, int]:
        """The first offset to read, in each topic-partition that still has records to find."""
        return {partition: expected[0].offset_first for partition, expected in self._wanted.items()}

    @property
    def waits_for(self) -> frozenset[int]:
        """The topic-partitions whose marks have not been found yet."""
        return frozenset(self._wanted)

    @property
    def held_bytes(self) -> int:
        """The cost of the payload records that are held."""
        return self._held_bytes

    def take(self, records: Sequence[Record], led: Container[int]) -> list[Record]:
        """Returns the records that may be passed to the joiner now. `led`: the topic-partitions that have a leader.

        Pass what `take_dropped` returns to the joiner before these.
        """
        if not self._wanted and self.done:
            return list(records)
        for record in records:
            expected = self._wanted.get(record.partition)
            found = None if expected is None else expected[0].found(record)
            if expected is None or found is None:
                # Drop ordering records before the mark, which were applied already: a flood of skipped ones must not exhaust the memory.
                if record.partition != ORDERING:
                    self._hold(record)
                elif expected is None:
                    self._held.append(record)
                continue
            if not found:
                self.lost = self.lost or lost_text(record.partition, expected[0])
                return []
            expected.popleft()
            if not expected:
                self._held.append(record)  # so that the joiner knows its next offset
                del self._wanted[record.partition]
        self.done = self.done or not any(partition in led for partition in self._wanted)
        if not self.done:
            return []
        ready = [record for record in self._held if record.partition not in self._wanted]
        self._held = [record for record in self._held if record.partition in self._wanted]
        self._held_bytes = sum([cost_bytes(record) for record in self._held])
        return ready

    def take_dropped(self) -> dict[int, Dropped]:
        """Returns, by partition, what was dropped of the records that may be passed to the joiner now; each partition once."""
        ready = {partition: dropped for partition, dropped in self._dropped.items() if self.done and partition not in self._wanted}
        self._dropped = {partition: dropped for partition, dropped in self._dropped.items() if partition not in ready}
        return ready

    def _hold(self, record: Record) -> None:
        memory = self._memory
        if memory is not None:
            if not memory.may_count(record):
                return
            # A record that is passed on at once costs nothing here.
            is_passed_on = self.done and record.partition not in self._wanted
            if not is_passed_on and not self._has_awaited and memory.is_awaited(record):
                self._has_awaited = True
            elif not is_passed_on and not memory.may_hold(record, self._held_bytes):
                self._dropped[record.partition] = memory.drop(self._dropped.get(record.partition), record)
                return
        self._held.append(record)
        self._held_bytes += cost_bytes(record)


def to_find_again(records: Sequence[Record]) -> dict[int, deque[Sought]]:
    """Returns the records that `find_again` must find to show that the log has all of `records`.

    These are all records of the ordering topic, and the last ones of each payload partition: all with the last append time
    (`last_of_one_time`). If a broker's clock does not advance, a copy of the last record would otherwise hide the loss of one before it.
    """
    by_partition: dict[int, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.offset):
        by_partition.setdefault(record.partition, []).append(record)
    return {
        partition: deque(
            Sought(record.offset, fingerprint_of(record))
            for record in (of_partition if partition == ORDERING else last_of_one_time(reversed(of_partition)))
        )
        for partition, of_partition in by_partition.items()
    }


def contradiction(read_next: Mapping[int, int], marks: Mapping[int, Mark], log_offsets: Mapping[int, LogOffsets]) -> str:
    """Returns a message if the log's start or end offsets contradict the records read or applied; empty if they do not."""
    for partition, offsets in log_offsets.items():
        mark = marks.get(partition)
        reached = max(read_next.get(partition, 0), 0 if mark is None else mark.offset + 1)
        if reached > offsets.log_end:
            return (
                f"the index is ahead of its log: it has read {describe(partition)} up to offset {reached}, and the log ends at"
                f" {offsets.log_end}. The log was truncated, or it is another log: see {RUNBOOK}, 'The index is ahead of its log'"
            )
        if read_next.get(partition, 0) < offsets.log_start:
            return (
                f"the log lost records that this index needs: {describe(partition)} begins at offset {offsets.log_start}, needed from"
                f" {read_next.get(partition, 0)}. If `notary trim` freed them, move this index away, and restore a snapshot with"
                f" `[snapshots] url` or `notary snapshot restore`. Otherwise see {RUNBOOK}, 'Records are missing from the log'"
            )
    return ""


async def examine(log: Log, effects: Sequence[Effect], marks: Mapping[int, Mark], *, contents: bool = True) -> str:
    """Read the records of these effects and marks again, with or without contents. Returns a message about a missing one; empty if none is.

    Contents before a payload partition's log start offset are not compared: the owner has freed them (`notary trim`), so no reader can get
    other contents there. Raises `NotReady` when the log does not return the records in time, and the errors of opening a reader and
    polling.
    """
    return await find_again(log, sought(effects, marks, contents=contents), without_freed=True)


async def find_again(log: Log, wanted: dict[int, deque[Sought]], *, without_freed: bool = False) -> str:
    """Read these records again. Returns and raises the same as `examine`. `without_freed`: skip contents before a log start offset."""
    if not wanted:
        return ""
    log_offsets = await log.offsets()
    for partition, expected in list(wanted.items()):
        offsets = log_offsets.get(partition)
        if without_freed and partition != ORDERING and offsets is not None:
            while expected and expected[0].offset < offsets.log_start:
                expected.popleft()
        if not expected:
            del wanted[partition]
            continue
        if offsets is None:
            raise NotReady(f"{describe(partition)} has no leader now, so it cannot be compared with the index")
        if expected[0].offset_first < offsets.log_start:
            return lost_text(partition, expected[0])
        if expected[-1].offset >= offsets.log_end:
            return lost_text(partition, expected[-1])
    reader = await log.open_reader({partition: expected[0].offset_first for partition, expected in wanted.items()})
    try:
        return await _read_again(reader, wanted, set(range(ORDERING, log.payload_partitions)))
    finally:
        await reader.close()


async def _read_again(reader: Reader, wanted: dict[int, deque[Sought]], partitions: set[int]) -> str:
    while wanted:
        reader.pause(partitions - wanted.keys())
        try:
            async with asyncio.timeout(EXAMINE_S_MAX):
                while not (records := await reader.poll(POLL_MS)):
                    pass
        except TimeoutError:
            raise NotReady(f"the log did not return {describe(min(wanted))} again within {EXAMINE_S_MAX:g} s") from None
        for record in records:
            expected = wanted.get(record.partition)
            if expected is None or (found := expected[0].found(record)) is None:
                continue
            if not found:
                return lost_text(record.partition, expected[0])
            expected.popleft()
            if not expected:
                del wanted[record.partition]
    return ""


def lost_text(partition: int, lost: Sought) -> str:
    """Returns the message for an applied record that the log has lost, or whose skipped predecessors have changed."""
    skipped = lost.offset_first < lost.offset
    before = f", or a record from {lost.offset_first} on is not the one that was skipped before it" if skipped else ""
    return (
        f"record {lost.offset} of {describe(partition)} is not the one that this index has applied{before}: the log was truncated and has"
        f" grown again, or it is another log. See {RUNBOOK}, 'The index is ahead of its log'"
    )
