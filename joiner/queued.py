"""The ordering records that are read and not applied yet, from the head on. Pure."""

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from joiner.history import NO_CONTENT, NONE_SKIPPED, Effect, extend_skipped, fingerprint_of, last_of_one_time
from joiner.snapshot import QueuedRecord
from ordering.errors import CorruptRecord
from ordering.ids import TRANSACTION_ID_BYTES
from ordering.log import Record
from ordering.records import OrderingRecord


class Queued(msgspec.Struct, gc=False):
    """An ordering record that is not applied yet; `record` is an error if it did not decode."""

    source: Record
    arrived_ms: int
    record: OrderingRecord | CorruptRecord
    signed_by: bytes = b""
    """The key under which its signature was verified; empty before that."""
    compared: bool = False
    own_view: bool = False
    """True if the record's view is our own history."""
    has_content: bool = False
    """True if the content of this entry was found when it was not the head. It may not count any more once the entry is the head.

    It only saves work, so no snapshot has it.
    """

    @property
    def offset(self) -> int:
        """Its offset in the ordering topic."""
        return self.source.offset

    def snapshot(self) -> QueuedRecord:
        """Returns a copy as a value."""
        record = None if isinstance(self.record, CorruptRecord) else self.record
        return QueuedRecord(self.source, self.arrived_ms, record, self.signed_by, self.compared, self.own_view)

    @classmethod
    def restored(cls, queued: QueuedRecord) -> "Queued":
        """Returns the record of a snapshot."""
        record = CorruptRecord("it is decoded again at the head") if queued.record is None else queued.record
        return cls(queued.source, queued.arrived_ms, record, queued.signed_by, queued.compared, queued.own_view)


class OrderingQueue:
    """The queue. Its first record is the head."""

    def __init__(self) -> None:
        self._records: deque[Queued] = deque()
        self.ids = 0
        """Its weight: one for each record, and one for each 32 bytes of it, the size of a transaction id.

        So a flood of records without ids is bounded too.
        """

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Queued]:
        return iter(self._records)

    @property
    def head(self) -> Queued | None:
        """The first record; None for an empty queue."""
        return self._records[0] if self._records else None

    def append(self, queued: Queued) -> None:
        """Append a record that was read."""
        self._records.append(queued)
        self.ids += _weight(queued.source)

    def pop_head(self) -> None:
        """Remove the head, which was applied."""
        self.ids -= _weight(self._records.popleft().source)

    def restore(self, records: Iterable[Queued]) -> None:
        """Replace the content by these records."""
        self._records = deque(records)
        self.ids = sum([_weight(queued.source) for queued in self._records])

    def last_run(self, applied_run: list[Effect], since_effect: tuple[int, bytes]) -> list[Effect]:
        """Returns the last records that share an append time, and the one before, as effects (`History.last_run`); none for an empty queue.

        If the log still has these records, it has all records in the queue. `applied_run` and `since_effect` are those of the records
        before the head.
        """
        if not self._records:
            return []
        *run, last = last_of_one_time(queued.source for queued in reversed(self._records))
        applied: list[Effect] = []
        skipped = NONE_SKIPPED, b""
        if len(run) + 1 == len(self._records):
            applied, skipped = applied_run, since_effect
        for record in run:
            skipped = skipping(*skipped, record)
        return [*applied, Effect(0, b"", last.offset, last.append_time_ms, fingerprint_of(last), NO_CONTENT, 0, b"", *skipped)]


def skipping(first: int, skipped_hash: bytes, record: Record) -> tuple[int, bytes]:
    """Returns the first offset and the running hash of the skipped records, extended by one more ordering record."""
    return (record.offset if first == NONE_SKIPPED else first), extend_skipped(skipped_hash, record)


def _weight(source: Record) -> int:
    return 1 + (len(source.key or b"") + len(source.value or b"")) // TRANSACTION_ID_BYTES
