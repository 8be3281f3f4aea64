"""Payload records that were read before their entries were judged (R3, R5, R8).

Holds, per payload partition, the *first* record of each batch key; later ones of the same key in the same partition never matter. A
record leaves when its entry takes it, or when its life is past its sequence or fenced. The offset to read again from is, per partition,
that of the earliest record still here: a restart then sees every first record that may still count.
"""

from collections import OrderedDict
from heapq import heappop, heappush

import msgspec

RECORD_OVERHEAD_BYTES = 200
"""What one buffered record costs besides its value, so that a flood of fills is bounded too."""


class Buffered(msgspec.Struct, frozen=True, gc=False):
    """The first record of a key in its partition; `value` is None for a fill."""

    offset: int
    value: bytes | None


class Buffer:
    """The buffered records of all payload partitions. `size_bytes` counts what they hold."""

    def __init__(self, partitions: int) -> None:
        self._partitions: list[OrderedDict[tuple[int, int], Buffered]] = [OrderedDict() for _ in range(partitions)]
        # Per life a heap of the (sequence, partition) of what it has here, each record exactly once; and what that costs.
        self._by_life: dict[int, list[tuple[int, int]]] = {}
        self._bytes_by_life: dict[int, int] = {}
        self.size_bytes = 0
        self.records = 0

    def add(self, partition: int, incarnation: int, sequence: int, record: Buffered) -> bool:
        """Keep the record if it is the first of its key in its partition; whether it is."""
        records = self._partitions[partition]
        key = (incarnation, sequence)
        if key in records:
            return False
        records[key] = record
        heappush(self._by_life.setdefault(incarnation, []), (sequence, partition))
        cost = _cost(record)
        self.records += 1
        self.size_bytes += cost
        self._bytes_by_life[incarnation] = self._bytes_by_life.get(incarnation, 0) + cost
        return True

    def get(self, partition: int, incarnation: int, sequence: int) -> Buffered | None:
        """The first record of that key in that partition, as far as it was read."""
        return self._partitions[partition].get((incarnation, sequence))

    def drop_through(self, incarnation: int, sequence: int | None) -> int:
        """Drop what that life has here up to that sequence (all for None), in every partition; how many records went."""
        waiting = self._by_life.get(incarnation)
        dropped = 0
        while waiting and (sequence is None or waiting[0][0] <= sequence):
            this, partition = heappop(waiting)
            cost = _cost(self._partitions[partition].pop((incarnation, this)))
            self.records -= 1
            self.size_bytes -= cost
            self._bytes_by_life[incarnation] -= cost
            dropped += 1
        if waiting is not None and not waiting:
            del self._by_life[incarnation], self._bytes_by_life[incarnation]
        return dropped

    def incarnations(self) -> list[int]:
        """The lives that have anything here."""
        return list(self._by_life)

    def size_of(self, incarnation: int) -> tuple[int, int]:
        """How many records that life has here, and what they cost."""
        return len(self._by_life.get(incarnation, ())), self._bytes_by_life.get(incarnation, 0)

    def offset_earliest(self, partition: int) -> int | None:
        """The offset of the earliest record here of that partition, None for none."""
        records = self._partitions[partition]
        return next(iter(records.values())).offset if records else None


def _cost(record: Buffered) -> int:
    return RECORD_OVERHEAD_BYTES + (len(record.value) if record.value is not None else 0)
