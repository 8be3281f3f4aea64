"""The payload records of one partition that were dropped for lack of memory (R3, R5). Pure.

A dropped record may be the first content of an entry that comes later. Then a content after it must not take its place: the worker reads
the partition again. So `Dropped` has the offset of the earliest dropped record and a summary of the batch names. The summary never misses a
name. Once it has many names, it may also report a name that was not dropped: then reading again shows that.
"""

from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from ordering.records import batch_key

NAMES_MAX = 1_000
"""The number of names that are kept as they are. More are kept in a Bloom filter."""
FILTER_BYTES = 1 << 20
"""The size of the filter. When a million names were dropped, it also reports about one in thirty of all other names."""
_HASHES = 3


class Awaited(msgspec.Struct, frozen=True, gc=False):
    """The content that an entry at the head waits for. `seen` records took effect before it: they determine the key that signs a fill."""

    seen: int
    partition: int
    incarnation: int
    sequence: int
    payload_hash: bytes


class DroppedRecords(msgspec.Struct, frozen=True):
    """A copy of `Dropped` as a value, for the snapshot of a joiner."""

    offset: int
    awaited: Awaited | None
    names: frozenset[tuple[int, int]]
    bits: bytes


class Dropped:
    """The dropped records of one partition."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        """The offset of the earliest one."""
        self.awaited: Awaited | None = None
        """The content that is known not to be among the dropped records; None if nothing is known."""
        self._names: set[tuple[int, int]] = set()
        self._bits = bytearray()
        """The filter; empty while `_names` has all names."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dropped) and self.snapshot() == other.snapshot()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, offset: int, incarnation: int, sequence: int) -> None:
        """Add a dropped record of that batch name. It may lie before those that were dropped earlier, in a comparison with the log."""
        self.offset = min(self.offset, offset)
        if not self._bits:
            self._names.add((incarnation, sequence))
            if len(self._names) <= NAMES_MAX:
                return
            self._bits = bytearray(FILTER_BYTES)
            for name in self._names:
                self._set(*name)
            self._names.clear()
        self._set(incarnation, sequence)

    def may_have(self, incarnation: int, sequence: int) -> bool:
        """Returns True if a record of that batch name was dropped; seldom also if none was."""
        if not self._bits:
            return (incarnation, sequence) in self._names
        return all(self._bits[at >> 3] & 1 << (at & 7) for at in _places(incarnation, sequence))

    def snapshot(self) -> DroppedRecords:
        """Returns a copy as a value."""
        return DroppedRecords(self.offset, self.awaited, frozenset(self._names), bytes(self._bits))

    @classmethod
    def restored(cls, records: DroppedRecords) -> "Dropped":
        """Returns the records of a snapshot."""
        dropped = cls(records.offset)
        dropped.awaited, dropped._names, dropped._bits = records.awaited, set(records.names), bytearray(records.bits)
        return dropped

    def _set(self, incarnation: int, sequence: int) -> None:
        for at in _places(incarnation, sequence):
            self._bits[at >> 3] |= 1 << (at & 7)


def _places(incarnation: int, sequence: int) -> Iterator[int]:
    digest = blake2b(batch_key(incarnation, sequence), digest_size=8 * _HASHES).digest()
    for at in range(0, len(digest), 8):
        yield int.from_bytes(digest[at : at + 8]) % (8 * FILTER_BYTES)
