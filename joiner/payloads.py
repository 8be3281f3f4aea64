"""Payload records until their entries are applied, and the search for the content of an entry (R3, R5, R8). Pure.

Records wait in memory. Above a limit they are dropped, and their names are summarized. If the content of the entry at the head may be among
the dropped ones, the log is read again (`await_content`). A later content must not take the place of the first one. So no decision depends
on the memory of the worker that makes it.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from joiner.buffer import Buffer, Buffered
from joiner.control import LogState
from joiner.dropped import Awaited, Dropped
from joiner.history import History
from joiner.incarnations import Incarnations
from joiner.ready import Kept, OwnBatch
from joiner.settings import JoinerLimits
from ordering.errors import CorruptRecord
from ordering.log import Record
from ordering.records import SALVAGE_FORMAT, Entry, batch_key, decode_batch_key
from ordering.signatures import FILL_BYTES, is_fill, is_seal

NEXT_BATCHES = 64
"""The number of batches after the last one counted that an incarnation may have in memory above the limit: more than are ever in flight."""


class Payloads:
    """The payload records of one joiner, in memory or dropped. `log` in its methods is the state of the log at the head."""

    def __init__(self, limits: JoinerLimits, incarnations: Incarnations, history: History) -> None:
        """`incarnations` and `history` are the joiner's own."""
        self._limits, self._incarnations, self._history = limits, incarnations, history
        self.buffer = Buffer()
        self.dropped: dict[int, Dropped] = {}
        """By payload partition: the records dropped for lack of memory."""
        self.awaited: Awaited | None = None
        """The content for which its partition is read again. This content is never dropped, so each such reading moves the head."""
        self.is_rereading = False
        """True from `forget` until a record takes effect: until then, free memory alone does not start another reading."""

    # ---- records that were read ----

    def may_count(self, record: Record) -> bool:
        """Returns True if an entry may still name this payload record."""
        try:
            return record.value is not None and not self._incarnations.is_past(*decode_batch_key(record.key))
        except CorruptRecord:
            return False

    def take(self, record: Record, log: LogState | None, hole: Entry | None) -> None:
        """Hold or drop a payload record with a batch name. `hole`: the entry at the head that waits for its content."""
        if self.may_hold(record, self.buffer.size_bytes) or self.is_awaited(record, log):
            self.hold(record)
            return
        # Above the limit only the partition of the hole at the head is still read. Records of other batches in it, and those that were
        # fetched already, must not exhaust the memory.
        self.dropped[record.partition] = dropped = self.drop(self.dropped.get(record.partition), record)
        if hole is not None and hole.partition == record.partition:
            # The filter may report the hole's own name from now on. None of its contents was dropped: the joiner holds the first one.
            dropped.awaited = self._awaited_by(hole)

    def hold(self, record: Record) -> None:
        """Hold a payload record in memory."""
        self.buffer.add(record.partition, *decode_batch_key(record.key), Buffered(record.offset, record.append_time_ms, record.value))

    def may_hold(self, record: Record, size_bytes: int) -> bool:
        """Returns True if this payload record may be held in memory beside others that cost `size_bytes`.

        Reading pauses at the limit, and records fetched by then may take as much again. The next batches of registered incarnations may
        take half as much more: otherwise a flood under any other names would force a worker to read these batches twice.
        """
        limit = self._limits.buffer_bytes_max
        if size_bytes <= 2 * limit:
            return True
        incarnation, sequence = decode_batch_key(record.key)
        state = self._incarnations.get(incarnation)
        is_next = state is not None and state.sequence_last < sequence <= state.sequence_last + NEXT_BATCHES
        return is_next and size_bytes <= 3 * limit

    def drop(self, dropped: Dropped | None, record: Record) -> Dropped:
        """Add a payload record to its partition's dropped ones; `dropped` is None for the first one. Returns them.

        The first record for which `is_awaited` is True must not be passed.
        """
        if dropped is None:
            dropped = Dropped(record.offset)
            dropped.awaited = self.awaited
        elif dropped.awaited != self.awaited:
            dropped.awaited = None  # this record may be a content of the entry named there
        dropped.add(record.offset, *decode_batch_key(record.key))
        return dropped

    # ---- the content of an entry ----

    def content(
        self,
        partition: int,
        incarnation: int,
        sequence: int,
        payload_hash: bytes,
        log: LogState | None,
        own: OwnBatch | None = None,
    ) -> Buffered | None:
        """Returns a batch's content (R3), the first record with its key in its partition that qualifies; None while none was read."""
        for candidate in self.buffer.get(partition, incarnation, sequence):
            if candidate.value is None:
                continue
            if own is not None and own.payload_hash == payload_hash and own.value == candidate.value:
                return candidate
            if is_content(candidate.value, partition, incarnation, sequence, payload_hash, log):
                return candidate
        return None

    def is_large(self, entry: Entry) -> bool:
        """Returns True if a payload record with the key of the entry is a large batch."""
        found = self.buffer.get(entry.partition, entry.incarnation, entry.sequence)
        return any(candidate.value is not None and len(candidate.value) >= self._limits.large_bytes for candidate in found)

    # ---- dropped records ----

    def may_be_dropped(self, entry: Entry, content: Buffered | None) -> bool:
        """Returns True if the entry's first content may have been dropped for lack of memory: a later content must not replace it (R3)."""
        dropped = self.dropped.get(entry.partition)
        if dropped is None or dropped.awaited == self._awaited_by(entry) or (content is not None and content.offset < dropped.offset):
            return False
        return dropped.may_have(entry.incarnation, entry.sequence)

    def await_content(self, entry: Entry) -> None:
        """Hold the first content of the entry at the head when the log is read again."""
        self.awaited = self._awaited_by(entry)

    def is_awaited(self, record: Record, log: LogState | None) -> bool:
        """Returns True for the first content of the entry at the head for which the log is read again: it is never dropped."""
        awaited = self.awaited
        if awaited is None or awaited.seen != self._history.seen or awaited.partition != record.partition or record.value is None:
            return False
        name = awaited.incarnation, awaited.sequence
        return (
            decode_batch_key(record.key) == name
            and self.content(record.partition, *name, awaited.payload_hash, log) is None
            and is_content(record.value, record.partition, *name, awaited.payload_hash, log)
        )

    def wants_rereading(self) -> bool:
        """Returns True if dropped records of any partition must be read again."""
        return not self.is_rereading and any(self._must_reread(partition, dropped) for partition, dropped in self.dropped.items())

    def _awaited_by(self, entry: Entry) -> Awaited:
        return Awaited(self._history.seen, entry.partition, entry.incarnation, entry.sequence, entry.payload_hash)

    def _must_reread(self, partition: int, dropped: Dropped) -> bool:
        """Returns True if dropped records of that partition must be read again: the head may wait for one, or memory is free."""
        awaited = self.awaited
        if awaited is not None and (awaited.seen, awaited.partition) == (self._history.seen, partition) and dropped.awaited != awaited:
            return True
        return self.buffer.size_bytes <= self._limits.buffer_bytes_max

    # ---- reading on ----

    def offsets_needed(self) -> dict[int, int]:
        """Returns the offset of the earliest record of each partition that an entry may still name."""
        needed = self.buffer.offsets_earliest()
        for partition, dropped in self.dropped.items():
            needed[partition] = min(dropped.offset, needed.get(partition, dropped.offset))
        return needed

    def delay_restart(self, read_next: Mapping[int, int]) -> bool:
        """Returns True if the earliest record in memory lies far before the next to read, so that a restart would read far back."""
        earliest = self.buffer.offsets_earliest()
        return any(read_next.get(partition, offset) - offset > self._limits.reread_records_max for partition, offset in earliest.items())

    def kept(self, partition: int, offset_next: int, to_reread: Sequence[int]) -> Kept:
        """Returns the records of that partition that are kept while it is read again, from `offset_next` or an earlier offset on.

        `to_reread`: the offsets of records that must be read again.
        """
        records = self.buffer.records_of(partition)
        # A record without a value is not the content of the entry at the head. But if the log loses that entry, the record may be the
        # content of another entry with the same batch name. So it must be read again.
        to_reread = [record.offset for record in records if record.value is None] + [*to_reread]
        dropped = self.dropped.get(partition)
        if dropped is not None and self._must_reread(partition, dropped):
            to_reread.append(dropped.offset)
            dropped = None
        offset_next = min([offset_next, *to_reread])
        if dropped is not None and dropped.offset >= offset_next:
            dropped = None  # all of them are read again anyway
        return Kept(offset_next, [record for record in records if record.offset < offset_next], dropped)

    def forget(self) -> None:
        """Forget all records: they are passed in again."""
        self.buffer.restore(())
        self.dropped.clear()
        self.is_rereading = True

    def restore_dropped(self, dropped: Mapping[int, Dropped]) -> None:
        """Take over records that `Recheck` dropped, by partition, before the other records of these partitions are passed in."""
        assert not dropped.keys() & self.dropped.keys()
        self.dropped |= dropped

    def unregistered(self) -> tuple[int, int]:
        """Returns the number and cost of the records of unregistered incarnations: nothing drops them before they register (R5)."""
        # Records of fenced incarnations are not kept. So all other records are those of the unfenced incarnations, which are few.
        sizes = [self.buffer.size_of(incarnation) for incarnation in self._incarnations.unfenced()]
        return (
            self.buffer.records - sum([records for records, _ in sizes]),
            self.buffer.size_bytes - sum([size_bytes for _, size_bytes in sizes]),
        )


def is_content(value: bytes, partition: int, incarnation: int, sequence: int, payload_hash: bytes, log: LogState | None) -> bool:
    """Returns True for the value whose hash the entry names, a fill by the key in force at the entry's offset, or a seal."""
    if sha256(value).digest() == payload_hash:
        return True
    if log is None or len(value) != FILL_BYTES:
        return False
    key = batch_key(incarnation, sequence)
    return is_fill(value, log.log_id, partition, key, payload_hash, log.key) or is_seal_at_head(value, partition, key, payload_hash, log)


def is_seal_at_head(value: bytes, partition: int, key: bytes, payload_hash: bytes, log: LogState) -> bool:
    """Returns True for a seal that counts at the head of the log."""
    return SALVAGE_FORMAT in log.formats and is_seal(value, log.log_id, partition, key, payload_hash, log.key, log.owner_key)
