"""Payload records that were read before their entries were applied (R3, R5, R8).

The buffer keeps, per payload partition, the records of each batch key in the order of their offsets: the hash in the entry determines which
of them is the content, and the entry may come later. A record is dropped when its entry is applied, when its incarnation's last counted
sequence has passed it, or when that incarnation is fenced. Per partition, a restart resumes reading at the earliest record here: so every
record that may still count is read again.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import TypeAlias

import msgspec

from joiner.history import last_of_one_time
from ordering.log import Record
from ordering.records import batch_key

RECORD_OVERHEAD_BYTES = 200
"""The cost of one buffered record in addition to its value, so that a flood of fills is bounded too."""


class Buffered(msgspec.Struct, frozen=True, gc=False):
    """A record that may be the content of its batch: a payload, or a fill."""

    offset: int
    append_time_ms: int
    value: bytes | None
    """None if the record is known not to be the content."""


BufferedBatch: TypeAlias = tuple[int, int, tuple[Buffered, ...]]
"""(incarnation, sequence, the records with that key by offset)."""


class Buffer:
    """The buffered records of all payload partitions. `size_bytes` is their total cost."""

    def __init__(self) -> None:
        self.restore(())

    def restore(self, partitions: Iterable[tuple[int, Iterable[BufferedBatch]]]) -> None:
        """Replace the content by these records, as `snapshot` returns them."""
        self._partitions: dict[int, OrderedDict[tuple[int, int], list[Buffered]]] = {}
        # Per incarnation: a heap of the (sequence, partition) pairs buffered here, each pair once; their cost; their number of records.
        self._by_incarnation: dict[int, list[tuple[int, int]]] = {}
        self._bytes_by_incarnation: dict[int, int] = {}
        self._records_by_incarnation: dict[int, int] = {}
        self.size_bytes = 0
        self.records = 0
        for partition, batches in partitions:
            self._partitions[partition] = OrderedDict()
            for incarnation, sequence, records in batches:
                for record in records:
                    self.add(partition, incarnation, sequence, record)

    def snapshot(self) -> tuple[tuple[int, tuple[BufferedBatch, ...]], ...]:
        """Returns the records by partition and key, the keys in the order of their first records."""
        return tuple(
            [
                (partition, tuple([(*key, tuple(records)) for key, records in of_partition.items()]))
                for partition, of_partition in sorted(self._partitions.items())
            ]
        )

    def add(self, partition: int, incarnation: int, sequence: int, record: Buffered) -> None:
        """Append the record to those with its key."""
        records = self._partitions.setdefault(partition, OrderedDict())
        of_key = records.get((incarnation, sequence))
        if of_key is None:
            records[incarnation, sequence] = [record]
            heappush(self._by_incarnation.setdefault(incarnation, []), (sequence, partition))
        else:
            of_key.append(record)
        self._count(incarnation, 1, _cost(record))

    def get(self, partition: int, incarnation: int, sequence: int) -> Sequence[Buffered]:
        """Returns the records read so far with that key in that partition, in the order of their offsets."""
        of_partition = self._partitions.get(partition)
        return () if of_partition is None else of_partition.get((incarnation, sequence), ())

    def empty(self, partition: int, incarnation: int, sequence: int) -> None:
        """Release the values of these records, since none is the content. Their offsets stay, so that a restart reads them again."""
        of_partition = self._partitions.get(partition)
        of_key = [] if of_partition is None else of_partition.get((incarnation, sequence), [])
        for at, record in enumerate(of_key):
            if record.value is not None:
                self._count(incarnation, 0, -len(record.value))
                of_key[at] = Buffered(record.offset, record.append_time_ms, None)

    def drop_through(self, incarnation: int, sequence: int | None) -> int:
        """Drop the incarnation's records up to `sequence` (all for None) in every partition. Returns the number of batches dropped."""
        waiting = self._by_incarnation.get(incarnation)
        dropped = 0
        while waiting and (sequence is None or waiting[0][0] <= sequence):
            this, partition = heappop(waiting)
            records = self._partitions[partition].pop((incarnation, this))
            self._count(incarnation, -len(records), -sum([_cost(record) for record in records]))
            dropped += 1
        if waiting is not None and not waiting:
            del self._by_incarnation[incarnation], self._bytes_by_incarnation[incarnation], self._records_by_incarnation[incarnation]
        return dropped

    def records_of(self, partition: int) -> list[Record]:
        """Returns the buffered records of that partition, in the order of their offsets, without the values that `empty` released."""
        records = [
            Record(partition, record.offset, record.append_time_ms, batch_key(*key), record.value)
            for key, of_key in self._partitions.get(partition, OrderedDict()).items()
            for record in of_key
        ]
        return sorted(records, key=lambda record: record.offset)

    def incarnations(self) -> list[int]:
        """Returns the incarnations that have records here, in order."""
        return sorted(self._by_incarnation)

    def size_of(self, incarnation: int) -> tuple[int, int]:
        """Returns the number and cost of the records of that incarnation."""
        return self._records_by_incarnation.get(incarnation, 0), self._bytes_by_incarnation.get(incarnation, 0)

    def last_run(self, partition: int) -> list[Record]:
        """Returns the last records with values in that partition that share an append time, and the one before (`last_of_one_time`)."""
        waiting = [
            (record.offset, record, key)
            for key, of_key in self._partitions.get(partition, OrderedDict()).items()
            for record in of_key
            if record.value is not None
        ]
        waiting.sort(reverse=True)
        return last_of_one_time(Record(partition, at, one.append_time_ms, batch_key(*key), one.value) for at, one, key in waiting)

    def offset_earliest(self, partition: int) -> int | None:
        """Returns the offset of the earliest buffered record of that partition, None if there is none."""
        records = self._partitions.get(partition)
        return next(iter(records.values()))[0].offset if records else None

    def _count(self, incarnation: int, records: int, size_bytes: int) -> None:
        self.records += records
        self.size_bytes += size_bytes
        self._records_by_incarnation[incarnation] = self._records_by_incarnation.get(incarnation, 0) + records
        self._bytes_by_incarnation[incarnation] = self._bytes_by_incarnation.get(incarnation, 0) + size_bytes


def _cost(record: Buffered) -> int:
    return RECORD_OVERHEAD_BYTES + len(record.value or b"")
