"""Payload records that were read before their entries were applied (R3, R5, R8).

The buffer keeps, per payload partition, the records of each batch key in the order of their offsets: the hash in the entry determines which
of them is the content, and the entry may come later. A record is dropped when its entry is applied, when its incarnation's last counted
sequence has passed it, or when that incarnation is fenced. Per partition, a restart resumes reading at the earliest record here: so every
record that may still count is read again.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import TypeAlias

import msgspec

from joiner.history import last_of_one_time
from ordering.log import Record
from ordering.records import batch_key

RECORD_OVERHEAD_BYTES = 800
"""The memory counted for a buffered record besides its value: as much as the first record of an incarnation takes.

So a flood of fills, or of short records under many names, is bounded too.
"""


class Buffered(msgspec.Struct, frozen=True, gc=False):
    """A record that may be the content of its batch: a payload, or a fill."""

    offset: int
    append_time_ms: int
    value: bytes | None
    """None if the record is known not to be the content."""


BufferedBatch: TypeAlias = tuple[int, int, tuple[Buffered, ...]]
"""(incarnation, sequence, the records with that key in the order of their offsets)."""


class Buffer:
    """The buffered records of all payload partitions. `size_bytes` is their total cost."""

    def __init__(self) -> None:
        self.restore(())

    def restore(self, partitions: Iterable[tuple[int, Iterable[BufferedBatch]]]) -> None:
        """Replace the content by these records, as `snapshot` returns them."""
        self._partitions: dict[int, dict[tuple[int, int], list[Buffered]]] = {}
        # Per partition: the keys of its records by offset, in that order. It finds the first and the last records without a sort.
        self._by_offset: dict[int, OrderedDict[int, tuple[int, int]]] = {}
        # Per incarnation: a heap of the (sequence, partition) pairs buffered here, each pair once; their cost; their number of records.
        self._by_incarnation: dict[int, list[tuple[int, int]]] = {}
        self._bytes_by_incarnation: dict[int, int] = {}
        self._records_by_incarnation: dict[int, int] = {}
        self.size_bytes = 0
        self.records = 0
        for partition, batches in partitions:
            self._partitions[partition], self._by_offset[partition] = {}, OrderedDict()
            for incarnation, sequence, records in batches:
                for record in records:
                    self.add(partition, incarnation, sequence, record)
            self._by_offset[partition] = OrderedDict(sorted(self._by_offset[partition].items()))

    def snapshot(self) -> tuple[tuple[int, tuple[BufferedBatch, ...]], ...]:
        """Returns the records by partition and key, the keys in the order of their first records."""
        return tuple(
            [
                (partition, tuple([(*key, tuple(records)) for key, records in of_partition.items()]))
                for partition, of_partition in sorted(self._partitions.items())
            ]
        )

    def add(self, partition: int, incarnation: int, sequence: int, record: Buffered) -> None:
        """Append the record to those with its key. Its offset is higher than all others of that partition."""
        key = incarnation, sequence
        records = self._partitions.setdefault(partition, {})
        of_key = records.get(key)
        if of_key is None:
            records[key] = [record]
            heappush(self._by_incarnation.setdefault(incarnation, []), (sequence, partition))
        else:
            of_key.append(record)
        self._by_offset.setdefault(partition, OrderedDict())[record.offset] = key
        self._count(incarnation, 1, cost_bytes(record))

    def get(self, partition: int, incarnation: int, sequence: int) -> Sequence[Buffered]:
        """Returns the records read so far with that key in that partition, in the order of their offsets."""
        of_partition = self._partitions.get(partition)
        return () if of_partition is None else of_partition.get((incarnation, sequence), ())

    def drop_values(self, partition: int, incarnation: int, sequence: int) -> None:
        """Drop the records with that key: none is the content. Keep only the first one's offset, from which a restart reads again."""
        of_partition = self._partitions.get(partition)
        of_key = [] if of_partition is None else of_partition.get((incarnation, sequence), [])
        if not of_key or (len(of_key) == 1 and of_key[0].value is None):
            return
        first = Buffered(of_key[0].offset, of_key[0].append_time_ms, None)
        for record in of_key[1:]:
            del self._by_offset[partition][record.offset]
        self._count(incarnation, 1 - len(of_key), cost_bytes(first) - sum([cost_bytes(record) for record in of_key]))
        of_key[:] = [first]

    def drop_through(self, incarnation: int, sequence: int | None) -> int:
        """Drop the incarnation's records up to `sequence` (all for None) in every partition. Returns the number of batches dropped."""
        heap = self._by_incarnation.get(incarnation)
        dropped = 0
        while heap and (sequence is None or heap[0][0] <= sequence):
            lowest, partition = heappop(heap)
            records = self._partitions[partition].pop((incarnation, lowest))
            for record in records:
                del self._by_offset[partition][record.offset]
            self._count(incarnation, -len(records), -sum([cost_bytes(record) for record in records]))
            dropped += 1
        if heap is not None and not heap:
            del self._by_incarnation[incarnation], self._bytes_by_incarnation[incarnation], self._records_by_incarnation[incarnation]
        return dropped

    def records_of(self, partition: int) -> list[Record]:
        """Returns the buffered records of that partition, in the order of their offsets, without the values that `drop_values` dropped."""
        return list(self._records(partition, self._by_offset.get(partition, OrderedDict())))

    def size_of(self, incarnation: int) -> tuple[int, int]:
        """Returns the number and cost of the records of that incarnation."""
        return self._records_by_incarnation.get(incarnation, 0), self._bytes_by_incarnation.get(incarnation, 0)

    def last_run(self, partition: int) -> list[Record]:
        """Returns the last records with values in that partition that share an append time, and the one before (`last_of_one_time`)."""
        latest_first = self._records(partition, reversed(self._by_offset.get(partition, OrderedDict())))
        return last_of_one_time(record for record in latest_first if record.value is not None)

    def holds(self, partition: int) -> bool:
        """Returns True if records of that partition are buffered."""
        return bool(self._by_offset.get(partition))

    def offsets_earliest(self) -> dict[int, int]:
        """Returns the offset of the earliest buffered record of each partition that has one."""
        return {partition: next(iter(offsets)) for partition, offsets in self._by_offset.items() if offsets}

    def _records(self, partition: int, offsets: Iterable[int]) -> Iterator[Record]:
        for offset in offsets:
            key = self._by_offset[partition][offset]
            of_key = self._partitions[partition][key]
            record = of_key[bisect_left(of_key, offset, key=_offset)]
            yield Record(partition, offset, record.append_time_ms, batch_key(*key), record.value)

    def _count(self, incarnation: int, records: int, size_bytes: int) -> None:
        self.records += records
        self.size_bytes += size_bytes
        self._records_by_incarnation[incarnation] = self._records_by_incarnation.get(incarnation, 0) + records
        self._bytes_by_incarnation[incarnation] = self._bytes_by_incarnation.get(incarnation, 0) + size_bytes


_offset = attrgetter("offset")


def cost_bytes(record: Record | Buffered) -> int:
    """Returns the cost of a buffered record."""
    return RECORD_OVERHEAD_BYTES + len(record.value or b"")
