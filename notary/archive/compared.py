"""Comparisons of segments with each other and with an archive: segments of two histories, or forged ones, are never added to it.

| compared | with |
|---|---|
| all records of a segment that reaches beyond the archive | the same offsets in the archive and in all other such segments |
| the last record of each part that the archive has completely | the archive's record, by its fingerprint (`fetch`: late parts) |
| the last record of each part that another segment overlaps | the log, by a new process that streams; two of one offset with each other |
| the ordering records of a segment that a former key signed | the `key` record that replaced this key: they end before it |

A difference is an error that names both sides: the log lost its end between them, or one of them is forged.
"""

import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from joiner import LogState
from joiner.history import fingerprint_of
from notary.archive.archived import ArchivedLog
from notary.archive.segment import Segment
from ordering.errors import ConfigurationError, CorruptRecord
from ordering.log import Record, describe
from ordering.records import Key, decode
from ordering.signatures import decode_genesis, log_id_of, record_is_signed

THE_ARCHIVE: Final = "the archive"


def compare_lasts(segments: Sequence[Segment], archived: ArchivedLog, since: Mapping[int, int] | None = None) -> None:
    """Compare the last record of each part that the archive has completely with the archive. Raises `ConfigurationError`.

    It reads no file of a segment. If the log lost its end between the two, all records after that place differ, the last one too.
    `since`: leave out the parts that end at or before these offsets, except the last part of each topic-partition.
    """
    ends = archived.ends
    parts = [(segment.name, part) for segment in segments for part in segment.parts if part.offset_end <= ends.get(part.partition, 0)]
    last: dict[int, int] = {}
    for _, part in parts:
        last[part.partition] = max(part.offset_end, last.get(part.partition, 0))
    wanted: dict[int, dict[int, list[tuple[str, str]]]] = {}
    for name, part in parts:
        if since is None or part.offset_end > since.get(part.partition, part.offset_end) or part.offset_end == last[part.partition]:
            wanted.setdefault(part.partition, {}).setdefault(part.offset_last, []).append((name, part.fingerprint))
    for partition, lasts in wanted.items():
        records = archived.records(partition, min(lasts))
        while lasts and (some := next(records, None)) is not None:
            for record in some:
                for name, fingerprint in lasts.pop(record.offset, ()):
                    if fingerprint_of(record).hex() != fingerprint:
                        raise difference(THE_ARCHIVE, name, record.offset, partition)
        if lasts:
            offset, (first, *_) = min(lasts.items())
            raise difference(THE_ARCHIVE, first[0], offset, partition)


def overlapped(segments: Sequence[Segment]) -> dict[int, list[tuple[int, bytes]]]:
    """Returns, by topic-partition and rising, offset and fingerprint of the last record of each part that reaches into another one. Pure.

    The other part has a record at that offset too, and its manifest does not say which. Raises `ConfigurationError` for two parts that end
    with different records of one offset.
    """
    lasts: dict[int, dict[int, tuple[int, str, str]]] = {}
    for segment in segments:
        for part in segment.parts:
            of_partition = lasts.setdefault(part.partition, {})
            first, fingerprint, name = of_partition.get(part.offset_last, (part.offset_first, part.fingerprint, segment.name))
            if fingerprint != part.fingerprint:
                raise difference(f"the segment {name}", segment.name, part.offset_last, part.partition)
            of_partition[part.offset_last] = min(first, part.offset_first), fingerprint, name
    found: dict[int, list[tuple[int, bytes]]] = {}
    for partition, of_partition in lasts.items():
        lowest = sys.maxsize
        for offset, (first, fingerprint, _) in sorted(of_partition.items(), reverse=True):
            if lowest <= offset:
                found.setdefault(partition, []).append((offset, bytes.fromhex(fingerprint)))
            lowest = min(lowest, first)
    return {partition: of_partition[::-1] for partition, of_partition in found.items()}


def difference(before: str, segment: str, offset: int, partition: int) -> ConfigurationError:
    """Returns the error for two sources that have different records at one offset."""
    return ConfigurationError(
        f"{before} and the segment {segment} differ at offset {offset} of {describe(partition)}: the log lost its end between them, or one"
        " of them is forged. Keep all segments, and move those of one of the two histories to another place"
    )


class KnownRecords:
    """The records of a topic-partition that later segments may have too: a fingerprint and a source by offset."""

    def __init__(self, floors: Sequence[int]) -> None:
        """`floors`: the first offset of each part to come, in order."""
        lowest = [*accumulate(reversed(floors), min)][::-1]
        self._floors = deque([*lowest[1:], sys.maxsize])
        self._offsets: list[int] = []
        self._known: dict[int, tuple[bytes, str]] = {}

    def add(self, records: Sequence[Record], source: str) -> None:
        """Add records after those that are known."""
        self._offsets += [record.offset for record in records]
        self._known |= {record.offset: (fingerprint_of(record), source) for record in records}

    def compare(self, records: Sequence[Record], offset_first: int, offset_end: int, partition: int, segment: str, before: str) -> None:
        """Compare a segment's records with those known from `offset_first` up to `offset_end`, exclusive. Raises `ConfigurationError`.

        `before` is the source of an offset that no known record has.
        """
        known = self._offsets[bisect_left(self._offsets, offset_first) : bisect_left(self._offsets, offset_end)]
        found = {record.offset: fingerprint_of(record) for record in records if record.offset < offset_end}
        for offset in sorted({*known, *found}):
            fingerprint, source = self._known.get(offset, (None, before))
            if found.get(offset) != fingerprint:
                raise difference(source, segment, offset, partition)

    def part_is_done(self) -> None:
        """Forget the records that no part to come can have."""
        count = bisect_left(self._offsets, self._floors.popleft())
        for offset in self._offsets[:count]:
            del self._known[offset]
        del self._offsets[:count]


class Rotations:
    """The `key` records among ordering records, and so the offset at which each former key was replaced (R10)."""

    def __init__(self) -> None:
        self._state: LogState | None = None
        self.replaced: dict[bytes, int] = {}
        """By former key: the offset of the record that replaced it."""

    def read(self, record: Record) -> None:
        """Read the next ordering record. Without the genesis record, which names the owner, no `key` record counts."""
        try:
            if record.offset == 0 and record.value is not None:
                self._state = LogState.begin(decode_genesis(record.value), log_id_of(record.value))
            state, found = self._state, decode(record.value)
        except CorruptRecord:
            return
        if state is None or record.value is None or not isinstance(found, Key):
            return
        if record_is_signed(record.value, state.log_id, state.owner_key) and (after := state.with_key(found, 0)) is not None:
            self.replaced[state.key] = record.offset
            self._state = after
