"""The joiner's core: judge ordering records at the head, join each entry with its content (R2 to R5). Pure.

`step` takes records as they were read, in any interleaving of the streams that keeps each stream's order, and the time of a clock that
never runs backwards. It returns `Ready`: what was joined, what to persist with it, and what the worker might append. The batches that
all steps emit together are a function of the log: neither the clock nor how the records were split over steps changes them.

The rules of this file:
- The head is the first ordering record not yet judged. It is judged when it can be finished; until then nothing of it is counted, so that
  what is persisted never holds half a record.
- An entry that counts and whose content was not seen is a *hole*. Nothing behind it is judged.
- The clock decides one thing: when to *propose* a fill or a fence. Whether one takes effect is decided by the log.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from joiner.buffer import Buffer, Buffered
from joiner.lives import Lives
from joiner.ready import Fenced, FillWanted, JoinerLimits, JoinerState, Notice, OrderedBatch, OwnBatch, Ready, RootSeen
from ordering.errors import CorruptRecord
from ordering.ids import TransactionId
from ordering.log import ORDERING, Record
from ordering.records import (
    FORMAT_VERSION,
    Activate,
    Checkpoint,
    Entry,
    Fence,
    OrderingRecord,
    Register,
    decode,
    decode_batch_key,
)
from payload import Request, decode_requests

ELECTORATE_MS = 86_400_000
"""How long ago by log time a worker may have shown itself and still has a vote when roots differ (R9). The same for all workers."""

SENT_AT_AHEAD_MAX_MS = 60_000
"""How far the broker's append time may be ahead of the sender's clock before it is held back (R6, docs/formats.md)."""

FILL_SCANS = 8
"""How often in a hole_timeout, while the head is an old hole, the records behind it are looked through for others."""


class _Queued(msgspec.Struct, frozen=True, gc=False):
    """An ordering record not yet judged; `record` is an error where it did not decode."""

    offset: int
    append_time_ms: int
    arrived_ms: int
    record: OrderingRecord | CorruptRecord
    source: Record


class Joiner:
    """The state of one reading of the log, from `state` on."""

    def __init__(
        self,
        notary_name: str,
        payload_partitions: int,
        state: JoinerState,
        limits: JoinerLimits | None = None,
        own: Mapping[tuple[int, int], OwnBatch] | None = None,
    ) -> None:
        self.lives = Lives(state.lives)
        self._notary_name = notary_name
        self._partitions = payload_partitions
        self._limits = limits or JoinerLimits()
        self._own = own if own is not None else {}
        self._log_time_ms = state.log_time_ms
        self._offset_head = state.offsets_next[ORDERING]
        # Where reading stands: the next offset of every stream that has not been handed in yet.
        self._read_next = dict(state.offsets_next)
        self._queue: deque[_Queued] = deque()
        # Transaction ids in the queue, and one a record, so that a flood of records without ids is bounded too.
        self._queue_ids = 0
        self._buffer = Buffer(payload_partitions)
        self._hole: Entry | None = None
        # When to look for fills: a hole_timeout after a hole came to the head. Negative: it came in this step.
        self._fills_due_ms = 0
        self._fill_proposed_ms: dict[tuple[int, int], int] = {}
        # Per silent life with an orphan here: its last sequence counted, and when it was first seen so or last proposed.
        self._silent: dict[int, tuple[int, int]] = {}
        self._buffer_full = False
        self._queue_full = False

    @property
    def hole(self) -> Entry | None:
        """The entry at the head that waits for its content."""
        return self._hole

    @property
    def offset_head(self) -> int:
        """The offset after the last ordering record judged."""
        return self._offset_head

    @property
    def queued_ids(self) -> int:
        """Transaction ids, and one for each record, that wait behind the head."""
        return self._queue_ids

    @property
    def queued_records(self) -> int:
        """How many ordering records wait, the head among them."""
        return len(self._queue)

    @property
    def buffered_bytes(self) -> int:
        """What the payloads cost whose entries have not been judged."""
        return self._buffer.size_bytes

    @property
    def buffered_records(self) -> int:
        """How many payloads' entries have not been judged."""
        return self._buffer.records

    @property
    def unregistered(self) -> tuple[int, int]:
        """Of these payloads those whose lives have not registered, in number and cost: nothing drops them before that (R5)."""
        sizes = [self._buffer.size_of(incarnation) for incarnation in self._buffer.incarnations() if self.lives.get(incarnation) is None]
        return sum([records for records, _ in sizes]), sum([size_bytes for _, size_bytes in sizes])

    def is_hole(self, fill: FillWanted) -> bool:
        """Whether that content is still wanted and still not seen."""
        key = (fill.incarnation, fill.sequence)
        return self.lives.counts(*key) and self._buffer.get(fill.partition, *key) is None

    def read_next(self) -> dict[int, int]:
        """Per stream the offset that the next record handed in should have at least: where a remade reader starts."""
        return dict(self._read_next)

    def forget_unjudged(self) -> None:
        """Be as after a restart (R8): what was read and not judged has to be handed in again, from `read_next` on."""
        self._read_next = self._offsets_next()
        self._queue.clear()
        self._queue_ids = 0
        self._buffer = Buffer(self._partitions)
        self._hole, self._fills_due_ms = None, 0
        self._fill_proposed_ms.clear()
        self._silent.clear()

    def step(self, records: Sequence[Record], now_ms: int) -> Ready:
        """Take records and the time; say what follows."""
        ready = Ready({}, self._log_time_ms)
        for record in records:
            # A reader that was remade may repeat what was handed in already.
            if record.offset < self._read_next[record.stream]:
                continue
            self._read_next[record.stream] = record.offset + 1
            if record.stream == ORDERING:
                self._take_ordering(record, now_ms)
            else:
                self._take_payload(record, ready)
        self._judge(ready)
        self._propose_fills(ready, now_ms)
        self._propose_fences(ready, now_ms)
        ready.lives = list(self.lives.changed.values())
        self.lives.changed.clear()
        ready.log_time_ms = self._log_time_ms
        if ready.advanced:
            ready.offsets_next = self._offsets_next()
        ready.paused = self._paused()
        return ready

    def _take_ordering(self, record: Record, now_ms: int) -> None:
        decoded: OrderingRecord | CorruptRecord
        try:
            decoded = decode(record.value)
        except CorruptRecord as problem:
            decoded = CorruptRecord(str(problem))  # without the frames that the one caught holds on to
        self._queue_ids += _weight(decoded)
        self._queue.append(_Queued(record.offset, record.append_time_ms, now_ms, decoded, record))

    def _take_payload(self, record: Record, ready: Ready) -> None:
        try:
            incarnation, sequence = decode_batch_key(record.key)
        except CorruptRecord as problem:
            ready.notices.append(Notice("malformed", record.stream, record.offset, str(problem)))
            return
        # A life not seen yet is kept: its register record may lie ahead in the ordering topic (R5).
        if not self.lives.is_past(incarnation, sequence):
            self._buffer.add(record.stream, incarnation, sequence, Buffered(record.offset, record.value))

    def _judge(self, ready: Ready) -> None:
        """Judge records at the head until there is none, one is a hole, or the step is full."""
        requests = states = 0
        hole: Entry | None = None
        while self._queue:
            if requests >= self._limits.step_requests_max or states >= self._limits.step_states_max:
                ready.more = True
                break
            head = self._queue[0]
            record = head.record
            if isinstance(record, Entry):
                batch = self._judge_entry(head, record, ready)
                if isinstance(batch, Entry):
                    hole = batch
                    break
                if batch is not None:
                    ready.batches.append(batch)
                    requests += len(batch.requests)
                    states += sum([len(request.inputs) + len(request.references) for request in batch.requests])
            elif isinstance(record, Activate) and record.format_version > FORMAT_VERSION:
                ready.stop = (
                    f"ordering record {head.offset} activates format version {record.format_version} and this software reads"
                    f" {FORMAT_VERSION}: install a newer version and start again; nothing is lost"
                )
                break
            else:
                self._judge_control(head, record, ready)
                requests += 1  # a flood of these must not hold the loop either
            self._queue.popleft()
            self._queue_ids -= _weight(record)
            self._offset_head = head.offset + 1
            ready.advanced = True
            ready.judged = head.source
        if hole is not self._hole:
            self._hole = hole
            self._fills_due_ms = -1

    def _judge_entry(self, head: _Queued, entry: Entry, ready: Ready) -> OrderedBatch | Entry | None:
        """The batch; the entry itself while it is a hole; None when it does not count."""
        incarnation, sequence = entry.incarnation, entry.sequence
        if not self.lives.counts(incarnation, sequence):
            ready.notices.append(Notice("skipped", ORDERING, head.offset, f"entry ({incarnation}, {sequence}) does not count"))
            return None
        if entry.partition >= self._partitions:
            # The number of partitions is fixed for the life of a log, so every worker says the same. One that counts more would wait
            # for content where we skip, and could decide otherwise: an alarm. Not a stop, because anyone who may write can forge this.
            text = (
                f"entry ({incarnation}, {sequence}) names payload partition {entry.partition}, and this worker counts {self._partitions}"
                " of them, from 0: it is forged, or its worker counts more than this one."
                " See docs/runbook.md, 'The number of partitions is wrong'"
            )
            ready.notices.append(Notice("wrong-partition", ORDERING, head.offset, text))
            return None
        content = self._buffer.get(entry.partition, incarnation, sequence)
        if content is None:
            return entry
        self._log_time_ms = max(self._log_time_ms, min(head.append_time_ms, entry.sent_at_ms + SENT_AT_AHEAD_MAX_MS))
        requests = self._requests(entry, content, ready)
        self.lives.count(incarnation, sequence, self._log_time_ms)
        self._drop_through(incarnation, sequence, ready, expected=1)
        return OrderedBatch(
            head.offset,
            incarnation,
            sequence,
            self._log_time_ms,
            requests is None,
            requests or (),
            head.append_time_ms,
            entry.sent_at_ms,
        )

    def _requests(self, entry: Entry, content: Buffered, ready: Ready) -> tuple[Request, ...] | None:
        """The batch's requests; None for a fill, and for what counts as one (R3)."""
        if content.value is None:
            return None
        own = self._own.get((entry.incarnation, entry.sequence))
        try:
            if own is not None and own.value == content.value:
                requests = own.requests
            else:
                requests = decode_requests(content.value, self._notary_name)
            if not _same_ids(requests, entry.transaction_ids):
                raise CorruptRecord("its transaction ids are not those of the entry")
        except CorruptRecord as problem:
            text = f"payload ({entry.incarnation}, {entry.sequence}) counts as a fill: {problem}"
            ready.notices.append(Notice("bad-content", entry.partition, content.offset, text))
            return None
        return requests

    def _judge_control(self, head: _Queued, record: OrderingRecord | CorruptRecord, ready: Ready) -> None:
        if isinstance(record, Register):
            registered = self.lives.register(record.nonce, record.name, max(self._log_time_ms, head.append_time_ms))
            if registered is None:
                ready.notices.append(Notice("skipped", ORDERING, head.offset, "a register record came twice"))
                return
            life, fenced = registered
            ready.registered.append(life)
            if fenced is not None:
                ready.fenced.append(Fenced(fenced, life))
                self._drop_through(fenced.incarnation, None, ready)
        elif isinstance(record, Fence):
            fenced = self.lives.fence(record.incarnation, record.sequence_last)
            if fenced is None:
                text = f"fence({record.incarnation}, {record.sequence_last}) does not count"
                ready.notices.append(Notice("skipped", ORDERING, head.offset, text))
                return
            ready.fenced.append(Fenced(fenced, None))
            self._drop_through(fenced.incarnation, None, ready)
        elif isinstance(record, Checkpoint):
            writer = self.lives.get(record.incarnation)
            if writer is None or writer.fenced:
                ready.notices.append(Notice("skipped", ORDERING, head.offset, f"a checkpoint of life {record.incarnation} does not count"))
                return
            electorate = self.lives.names_since(self._log_time_ms - ELECTORATE_MS)
            seen = RootSeen(
                writer.name, writer.incarnation, record.tree_size, record.root, self._log_time_ms, electorate, len(ready.batches)
            )
            ready.roots_seen.append(seen)
        elif isinstance(record, CorruptRecord):
            ready.notices.append(Notice("malformed", ORDERING, head.offset, str(record)))

    def _drop_through(self, incarnation: int, sequence: int | None, ready: Ready, expected: int = 0) -> None:
        dropped = self._buffer.drop_through(incarnation, sequence) - expected
        if dropped > 0:
            text = f"{dropped} payloads of life {incarnation} will never be asked for"
            ready.notices.append(Notice("orphan-dropped", ORDERING, self._offset_head, text))

    def _propose_fills(self, ready: Ready, now_ms: int) -> None:
        """R4: the hole at the head when it is old enough, and with it the holes behind it that are as old."""
        if self._hole is None:
            return
        limits = self._limits
        if self._fills_due_ms < 0:
            self._fills_due_ms = now_ms + limits.hole_timeout_ms
        if now_ms < self._fills_due_ms:
            return
        # Half a million records may wait here, and a step may come every millisecond: so only some are looked at, and not in each step.
        # Every hole gets its turn all the same: the one at the head comes first, and all move up when it is filled.
        self._fills_due_ms = now_ms + limits.hole_timeout_ms // FILL_SCANS
        oldest_ms = now_ms - limits.hole_timeout_ms
        # A proposal is repeated only after another timeout: one fill on its way is enough.
        self._fill_proposed_ms = {key: at for key, at in self._fill_proposed_ms.items() if at > oldest_ms}
        for queued in islice(self._queue, limits.fill_scan_records_max):
            if queued.arrived_ms > oldest_ms or len(ready.fills) >= limits.fills_proposed_max:
                break
            entry = queued.record
            if not isinstance(entry, Entry) or entry.partition >= self._partitions:
                continue
            key = (entry.incarnation, entry.sequence)
            fill = FillWanted(entry.partition, *key)
            if key not in self._fill_proposed_ms and self.is_hole(fill):
                self._fill_proposed_ms[key] = now_ms
                ready.fills.append(fill)

    def _propose_fences(self, ready: Ready, now_ms: int) -> None:
        """R5: lives that the order has left behind: log time ran on by worker_timeout without them, and payloads of theirs lie here."""
        silent_since_ms = self._log_time_ms - self._limits.worker_timeout_ms
        silent: dict[int, tuple[int, int]] = {}
        for incarnation in self._buffer.incarnations():
            life = self.lives.get(incarnation)
            if life is None or life.fenced or life.active_at_ms >= silent_since_ms:
                continue
            # Log time stands still while nobody sends, so the first entry after a quiet night makes every other life look silent:
            # one whose payload came just before its entry has hole_timeout to show that it is not.
            sequence_last, since_ms = self._silent.get(incarnation, (-1, now_ms))
            if sequence_last != life.sequence_last:
                since_ms = now_ms
            elif now_ms - since_ms >= self._limits.hole_timeout_ms:
                since_ms = now_ms
                ready.fences.append(Fence(incarnation, life.sequence_last))
            silent[incarnation] = (life.sequence_last, since_ms)
        self._silent = silent

    def _offsets_next(self) -> dict[int, int]:
        """R8: what a restart must see again: all from the head on, and each payload that an entry may yet ask for."""
        offsets = {ORDERING: self._offset_head}
        for partition in range(self._partitions):
            earliest = self._buffer.offset_earliest(partition)
            offsets[partition] = self._read_next[partition] if earliest is None else earliest
        return offsets

    def _paused(self) -> frozenset[int]:
        """What not to read for now, so that memory stays bounded. Where the head's content must come from is always read."""
        limits = self._limits
        self._buffer_full = self._buffer.size_bytes > (limits.buffer_bytes_max * 3 // 4 if self._buffer_full else limits.buffer_bytes_max)
        self._queue_full = self._queue_ids > (limits.queue_ids_max * 3 // 4 if self._queue_full else limits.queue_ids_max)
        paused: set[int] = set()
        if self._buffer_full:
            paused.update(range(self._partitions))
            if self._hole is not None:
                paused.discard(self._hole.partition)
        if self._queue_full:
            paused.add(ORDERING)
        return frozenset(paused)


def _weight(record: OrderingRecord | CorruptRecord) -> int:
    return 1 + (len(record.transaction_ids) if isinstance(record, Entry) else 0)


def _same_ids(requests: tuple[Request, ...], ids: tuple[TransactionId, ...]) -> bool:
    return len(requests) == len(ids) and all(request.transaction_id == id_ for request, id_ in zip(requests, ids, strict=True))
