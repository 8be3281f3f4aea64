"""Looks at the log: does it still hold what this worker's index was made from? (R10)

Two kinds of looks, both by reading records again and comparing their fingerprints:

- After an interruption, before anything more is applied: in every topic-partition the record with the highest offset that took effect, and
  in the ordering topic those before it that a copy might stand in for. `Recheck` does it with the reader that goes on reading behind them.
- When a foreign view was met: every record that took effect since somebody last had our history, with its content. `examine` does that
  with a reader of its own.

A single look may mislead: a client that knows of an election late asks a leader that is none any more, and what comes back is older than
what was read. So the driver applies nothing from the first mismatch on, and stops only when it lasts.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from joiner.history import NO_CONTENT, NONE_SKIPPED, Effect, Mark, fingerprint_of, passed_over
from joiner.ready import Kept
from ordering.errors import NotReady
from ordering.log import ORDERING, Bounds, Log, Reader, Record
from ordering.stream import describe

RUNBOOK: Final = "docs/runbook.md"
EXAMINE_S_MAX: Final = 60.0
POLL_MS: Final = 1_000


class Sought:
    """Finds a record that took effect among those that are read again, and what was skipped before it."""

    def __init__(self, offset: int, fingerprint: bytes, skipped_first: int = NONE_SKIPPED, skipped_hash: bytes = b"") -> None:
        self.offset = offset
        self.offset_first = offset if skipped_first == NONE_SKIPPED else skipped_first
        """The offset of the first record that was skipped before it; its own where none was."""
        self._wanted = fingerprint, skipped_hash
        self._skipped_hash = b""

    def found(self, record: Record) -> bool | None:
        """True: this is the record; None: it lies further on; False: another one is in its place, or in that of one skipped before it."""
        if record.offset < self.offset:
            if record.offset >= self.offset_first:
                self._skipped_hash = passed_over(self._skipped_hash, record)
            return None
        return record.offset == self.offset and self._wanted == (fingerprint_of(record), self._skipped_hash)


def sought(effects: Sequence[Effect], marks: Mapping[int, Mark], *, contents: bool) -> dict[int, deque[Sought]]:
    """Returns what to find in each topic-partition, in the order of offsets: marks, and effects with their contents or without."""
    places = {stream: {mark.offset: Sought(mark.offset, mark.fingerprint)} for stream, mark in marks.items()}
    for effect in effects:
        found = Sought(effect.offset, effect.fingerprint, effect.skipped_first, effect.skipped_hash)
        places.setdefault(ORDERING, {})[effect.offset] = found
        if contents and effect.partition != NO_CONTENT:
            content = Sought(effect.content_offset, effect.content_fingerprint)
            places.setdefault(effect.partition, {})[effect.content_offset] = content
    return {stream: deque(of_stream[offset] for offset in sorted(of_stream)) for stream, of_stream in places.items()}


class Recheck:
    """Holds what a new reader returns until the marks were found among it. `marks`: per topic-partition the record to be found.

    `run`: the effects of the ordering topic that have to be found with its mark (`History.last_run`).

    `kept`: per payload partition what was read before and need not be read again; it is handed on first, once the partition's mark was
    found. `may_count` says of a record whether it may still be asked for: one forged payload that nobody asks for makes reading begin far
    before the mark, and what lies between must not fill the memory.

    A payload partition without a leader cannot be asked and gives nothing to apply: the others need not wait for it. What it gives later
    begins with its mark, or is another log's.
    """

    def __init__(
        self,
        marks: Mapping[int, Mark],
        run: Sequence[Effect] = (),
        kept: Mapping[int, Kept] | None = None,
        may_count: Callable[[Record], bool] = lambda record: True,
    ) -> None:
        self._wanted = sought(run, marks, contents=False)
        self._kept = {} if kept is None else {partition: kept[partition] for partition in kept.keys() & marks.keys()}
        self._may_count = may_count
        self._held: list[Record] = [record for partition in self._kept for record in self._kept[partition].records]
        self.done = False
        """Whether the marks of all topic-partitions that have a leader were found."""
        self.lost = ""
        """The mark that the log does not hold any more; empty while none is missing."""

    @property
    def kept(self) -> dict[int, Kept]:
        """The records that were not handed on: the next `Recheck` takes them over."""
        return {partition: kept for partition, kept in self._kept.items() if partition in self._wanted}

    @property
    def offsets_first(self) -> dict[int, int]:
        """Where to begin to read, in each topic-partition that has something to be found."""
        return {stream: expected[0].offset_first for stream, expected in self._wanted.items()}

    @property
    def waits_for(self) -> frozenset[int]:
        """The topic-partitions whose marks have not been found yet."""
        return frozenset(self._wanted)

    def take(self, records: Sequence[Record], led: Container[int]) -> list[Record]:
        """Returns the records that may be handed to the joiner now. `led`: the topic-partitions that have a leader."""
        if not self._wanted and self.done:
            return list(records)
        for record in records:
            expected = self._wanted.get(record.stream)
            found = None if expected is None else expected[0].found(record)
            if expected is None or found is None:
                # Ordering records before the mark were judged: a flood of skipped ones among them must not fill the memory.
                if (expected is None or record.stream != ORDERING) and self._may_count(record):
                    self._held.append(record)
                continue
            if not found:
                self.lost = self.lost or another(record.stream, expected[0])
                return []
            expected.popleft()
            if not expected:
                self._held.append(record)  # so that the joiner knows how far reading got
                del self._wanted[record.stream]
        self.done = self.done or not any(stream in led for stream in self._wanted)
        if not self.done:
            return []
        ready = [record for record in self._held if record.stream not in self._wanted]
        self._held = [record for record in self._held if record.stream in self._wanted]
        return ready


def contradiction(read_next: Mapping[int, int], marks: Mapping[int, Mark], bounds: Mapping[int, Bounds]) -> str:
    """Returns how the log's bounds contradict what was read or took effect; empty when they do not."""
    for stream, bound in bounds.items():
        mark = marks.get(stream)
        reached = max(read_next.get(stream, 0), 0 if mark is None else mark.offset + 1)
        if reached > bound.offset_end:
            return (
                f"the index is ahead of its log: it has read {describe(stream)} up to offset {reached}, and the log ends at"
                f" {bound.offset_end}. The log was cut or is another one: see {RUNBOOK}, 'The index is ahead of its log'"
            )
        if read_next.get(stream, 0) < bound.offset_first:
            return (
                f"the log lost records that this index needs: {describe(stream)} begins at offset {bound.offset_first}, needed from"
                f" {read_next.get(stream, 0)}. See {RUNBOOK}, 'Records are missing from the log'"
            )
    return ""


async def examine(log: Log, effects: Sequence[Effect], marks: Mapping[int, Mark], *, contents: bool = True) -> str:
    """Read all these effects again, with their contents or without, and the marks; return what is missing, empty when nothing is.

    Raises `NotReady` when the log does not give them, and what opening a reader or polling raises.
    """
    wanted = sought(effects, marks, contents=contents)
    if not wanted:
        return ""
    bounds = await log.bounds()
    for stream, expected in wanted.items():
        bound = bounds.get(stream)
        if bound is None:
            raise NotReady(f"{describe(stream)} has no leader now, and has to be compared with the index")
        if expected[0].offset_first < bound.offset_first:
            return another(stream, expected[0])
        if expected[-1].offset >= bound.offset_end:
            return another(stream, expected[-1])
    reader = await log.open_reader({stream: expected[0].offset_first for stream, expected in wanted.items()})
    try:
        return await _read_again(reader, wanted, set(range(ORDERING, log.payload_partitions)))
    finally:
        await reader.close()


async def _read_again(reader: Reader, wanted: dict[int, deque[Sought]], streams: set[int]) -> str:
    while wanted:
        reader.pause(streams - wanted.keys())
        try:
            async with asyncio.timeout(EXAMINE_S_MAX):
                while not (records := await reader.poll(POLL_MS)):
                    pass
        except TimeoutError:
            raise NotReady(f"the log did not give {describe(min(wanted))} again within {EXAMINE_S_MAX:g} s") from None
        for record in records:
            expected = wanted.get(record.stream)
            if expected is None or (found := expected[0].found(record)) is None:
                continue
            if not found:
                return another(record.stream, expected[0])
            expected.popleft()
            if not expected:
                del wanted[record.stream]
    return ""


def another(stream: int, lost: Sought) -> str:
    """The message for a record that took effect and that the log does not hold any more, or not behind what was skipped before it."""
    skipped = lost.offset_first < lost.offset
    before = f", or one from {lost.offset_first} on is not the one that was skipped before it" if skipped else ""
    return (
        f"record {lost.offset} of {describe(stream)} is not the one that this index has applied{before}: the log was cut and has grown"
        f" again, or is another one. See {RUNBOOK}, 'The index is ahead of its log'"
    )
