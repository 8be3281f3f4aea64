"""The joiner's core: applies ordering records at the head and joins each entry with its content (R2 to R5, R10). Pure.

`step` takes records as they were read: any interleaving of the topic-partitions, with the records of each in their order. It also takes the
time of a monotonic clock. It returns `Ready`: the batches joined, the state to persist with them, and proposals for records to append. All
steps together emit batches that are a function of the log: neither the clock nor the division of records into steps changes them.

The rules of this file (to *apply* a record is to decide whether it counts, and to count or skip it):
- The head is the first ordering record that is not applied yet. It is applied atomically, so that the persisted state never
  has half a record.
- A record is checked in this order: its encoding, its signature, its view, the rule of its kind. A record that fails is skipped and
  reported.
- Only for checkpoint, settle, salvage and trim records does the view decide whether they count. A foreign view in any record stops the core
  before that record, until the driver has compared our history with the log and called `examined`.
- A *hole* is an entry that counts and whose content has not been read. Nothing after it is applied.
- The clock decides only when to *propose* a fill or a fence. The log decides whether it takes effect.
"""

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from hashlib import sha256
from itertools import islice

import msgspec

from joiner.buffer import Buffer, Buffered
from joiner.control import LogState, SalvageTree
from joiner.dropped import Awaited, Dropped
from joiner.evidence import Evidence, Suspicions
from joiner.history import (
    NO_CONTENT,
    NONE_SKIPPED,
    Comparison,
    Effect,
    History,
    Mark,
    extend_skipped,
    extended,
    fingerprint,
    fingerprint_of,
    last_of_one_time,
)
from joiner.incarnations import Incarnations, IncarnationState
from joiner.ready import (
    Anomaly,
    Fenced,
    FenceWanted,
    FillWanted,
    JoinerState,
    Kept,
    OrderedBatch,
    Own,
    OwnBatch,
    Ready,
    RootSeen,
    VoteVoid,
)
from joiner.settings import JoinerLimits
from joiner.snapshot import JoinerSnapshot, QueuedRecord
from ordering.errors import CorruptRecord, Fatal, FatalCode
from ordering.ids import TRANSACTION_ID_BYTES, TransactionId
from ordering.log import ORDERING, Record
from ordering.records import (
    ACTIVE_AT_START,
    FORMAT_VERSION,
    SALVAGE_FORMAT,
    Activate,
    Checkpoint,
    Entry,
    Fence,
    Genesis,
    Key,
    OrderingRecord,
    Partitions,
    Register,
    Retire,
    SalvageBegin,
    SalvageDone,
    SalvageItems,
    SalvageRecord,
    Settle,
    Trim,
    View,
    batch_key,
    decode,
    decode_batch_key,
)
from ordering.salvage import Decided, Item
from ordering.signatures import FILL_BYTES, decode_genesis, is_fill, is_seal, log_id_of, record_is_signed
from payload import Request, decode_requests, decode_requests_in_pieces

VOTERS_MS = 86_400_000
"""The log time for which a worker stays a voter after its last activity, a register record or a counted entry (R9).

All workers use the same value.
"""

SENT_AT_AHEAD_MAX_MS = 60_000
"""The most by which an append time may push log time ahead of the sender's clock (R6, docs/formats.md)."""

NEXT_BATCHES = 64
"""The number of batches after the last one counted that an incarnation may have in memory above the limit: more than are ever in flight."""

FILL_SCANS = 8
"""The number of scans per hole_timeout for further holes, while the head is an old hole."""

NO_OWN: Own = {}

_R2 = "its incarnation is not registered, is over, or has reached this sequence"
OWNER_NAME = "the owner"
"""The writer of a salvage or trim record, in suspicions."""
SALVAGE_OPEN = "the owner restores lost decisions, and that salvage has not ended yet"

_WORKER_RECORDS = (Entry, Register, Fence, Checkpoint)


class _Queued(msgspec.Struct, gc=False):
    """An ordering record that is not applied yet; `record` is an error if it did not decode."""

    source: Record
    arrived_ms: int
    record: OrderingRecord | CorruptRecord
    signed_by: bytes = b""
    """The key under which its signature was verified; empty before that."""
    compared: bool = False
    own_view: bool = False
    """True if the record's view is our own history."""

    @property
    def offset(self) -> int:
        return self.source.offset

    def snapshot(self) -> QueuedRecord:
        record = None if isinstance(self.record, CorruptRecord) else self.record
        return QueuedRecord(self.source, self.arrived_ms, record, self.signed_by, self.compared, self.own_view)

    @classmethod
    def restored(cls, queued: QueuedRecord) -> "_Queued":
        record = CorruptRecord("it is decoded again at the head") if queued.record is None else queued.record
        return cls(queued.source, queued.arrived_ms, record, queued.signed_by, queued.compared, queued.own_view)


class Joiner:
    """One pass over the log, from `state` on."""

    def __init__(
        self,
        state: JoinerState | None = None,
        limits: JoinerLimits | None = None,
        worker_name: str = "",
        format_version: int = FORMAT_VERSION,
        *,
        tree: SalvageTree | None = None,
        ordering_only: bool = False,
    ) -> None:
        """`worker_name`: the reader's own name. `format_version`: the highest version that it reads. `tree`: the decisions of all steps so
        far.

        `ordering_only`: read only the ordering topic, for commands that need only incarnations, keys and partitions. Without contents the
        history is not the log's history, so no view is compared.
        """
        state = state or JoinerState()
        self.incarnations = Incarnations(state.incarnations)
        self.history = History(state.effects)
        self.suspicions = Suspicions(state.agreed, state.suspicions)
        self.marks: dict[int, Mark] = dict(state.marks)
        self.log_state: LogState | None = state.log_state
        self._tree = tree
        self._items: list[Item] = list(state.items)
        self._worker_name = worker_name
        self._ordering_only = ordering_only
        self._format_version = format_version
        self.limits = limits or JoinerLimits()
        self._fence_bytes_min = min(self.limits.fence_bytes_min, self.limits.buffer_bytes_max // 4)
        self._log_time_ms = state.log_time_ms
        self._offset_head = state.offsets_next.get(ORDERING, 0)
        # The next offset of each topic-partition that has not been passed to `step` yet.
        self._read_next = dict(state.offsets_next)
        self._queue: deque[_Queued] = deque()
        # The weight of the queue: about its transaction ids, and its bytes, so that a flood of records without ids is bounded too.
        self._queue_ids = 0
        self._buffer = Buffer()
        # Per payload partition: the records dropped for lack of memory.
        self._dropped: dict[int, Dropped] = {}
        # The content for which a partition must be read again. It is not dropped then, so every time that is read again moves the head.
        self._awaited: Awaited | None = None
        # True from `forget_unapplied` until a record takes effect: meanwhile nothing is read again only because memory is free.
        self._read_again = False
        self._hole: Entry | None = None
        # The partition and offset of the first record with the hole's key that was skipped because it is not the hole's content.
        self._skipped: tuple[int, int] | None = None
        # The ordering records skipped since the last one that took effect: the first one's offset, and the running hash over them.
        self._since_effect = NONE_SKIPPED, b""
        # The next time to scan for holes to fill: at first, a hole_timeout after a hole became the head. Negative if that was in this step.
        self._fills_due_ms = 0
        self._fill_proposed_ms: dict[tuple[int, int], int] = {}
        # Per silent incarnation with an orphan here: its last counted sequence, and the time when it was first found silent or when a fence
        # was last proposed.
        self._silent: dict[int, tuple[int, int]] = {}
        self._buffer_full = False
        self._queue_full = False
        # The content of the large batch at the head, and its requests, from `prepare` until the next step.
        self._prepared: tuple[bytes, tuple[Request, ...]] | None = None

    @property
    def hole(self) -> Entry | None:
        """The entry at the head that waits for its content; None when there is none."""
        return self._hole

    @property
    def hole_offset(self) -> int | None:
        """The ordering offset of the entry at the head that waits for its content; None when there is none."""
        return None if self._hole is None or not self._queue else self._queue[0].offset

    @property
    def offset_head(self) -> int:
        """The offset after the last ordering record applied."""
        return self._offset_head

    @property
    def queued_ids(self) -> int:
        """The weight of the queue: one for each record, and one for each 32 bytes of it, the size of a transaction id."""
        return self._queue_ids

    @property
    def queued_records(self) -> int:
        """The number of ordering records in the queue, including the head."""
        return len(self._queue)

    @property
    def queue_run(self) -> list[Effect]:
        """The last ordering records in the queue that share an append time, and the one before, as effects (`History.last_run`).

        If the log still has these records, it has all records in the queue. Empty for an empty queue.
        """
        if not self._queue:
            return []
        *run, last = last_of_one_time(queued.source for queued in reversed(self._queue))
        applied: list[Effect] = []
        skipped = NONE_SKIPPED, b""
        if len(run) + 1 == len(self._queue):
            applied, skipped = self.history.last_run, self._since_effect
        for record in run:
            skipped = _skipping(*skipped, record)
        return [*applied, Effect(0, b"", last.offset, last.append_time_ms, fingerprint_of(last), NO_CONTENT, 0, b"", *skipped)]

    def is_buffered(self, partition: int) -> bool:
        """Returns True if payload records of that partition wait for their entries."""
        return self._buffer.offset_earliest(partition) is not None

    def buffered_run(self, partition: int) -> list[Record]:
        """Returns the partition's last payload records that wait for entries and share an append time, and the one before (`last_run`)."""
        return self._buffer.last_run(partition)

    @property
    def buffered_bytes(self) -> int:
        """The cost of the payload records whose entries have not been applied."""
        return self._buffer.size_bytes

    @property
    def buffered_records(self) -> int:
        """The number of payload records whose entries have not been applied."""
        return self._buffer.records

    @property
    def unregistered(self) -> tuple[int, int]:
        """The number and cost of the payload records of unregistered incarnations: nothing drops them before they register (R5)."""
        # Records of ended incarnations are not kept. So the others are those of the incarnations that are in force, which are few.
        sizes = [self._buffer.size_of(incarnation) for incarnation in self.incarnations.unfenced()]
        return (
            self._buffer.records - sum([records for records, _ in sizes]),
            self._buffer.size_bytes - sum([size_bytes for _, size_bytes in sizes]),
        )

    def is_hole(self, fill: FillWanted) -> bool:
        """Returns True if the content that the fill would replace is still needed and not read."""
        if not self.incarnations.counts(fill.incarnation, fill.sequence):
            return False
        return self._content(fill.partition, fill.incarnation, fill.sequence, fill.payload_hash) is None

    @property
    def log_time_ms(self) -> int:
        """Log time at the head."""
        return self._log_time_ms

    def read_next(self) -> dict[int, int]:
        """Returns the next offset to read of each topic-partition: a new reader starts there."""
        return dict(self._read_next)

    def forget_unapplied(self) -> dict[int, Kept]:
        """Return to the state after a restart (R8, R10): records that did not take effect must be passed in again, from `read_next` on.

        Returns, per payload partition, the buffered records before the mark. (The mark is the joined content with the highest offset.)
        These records need not be read again: if the log still has the mark, it has the records before it. Without this
        exception, one payload without an entry would force the worker to read all later records again at each interruption.
        """
        kept: dict[int, Kept] = {}
        for partition, mark in self.marks.items():
            if partition == ORDERING:
                continue
            records = self._buffer.records_of(partition)
            # A record without a value is not the content of the entry at the head. But if the log loses that entry, the record may be the
            # content of another entry with the same batch name. So it must be read again.
            let_go = [record.offset for record in records if record.value is None]
            if self._skipped is not None and self._skipped[0] == partition:
                let_go.append(self._skipped[1])
            dropped = self._dropped.get(partition)
            if dropped is not None and self._is_wanted_again(dropped, partition):
                let_go.append(dropped.offset)
                dropped = None
            offset_next = min([self._read_next.get(partition, 0), mark.offset + 1, *let_go])
            if dropped is not None and dropped.offset >= offset_next:
                dropped = None  # all of them are read again anyway
            kept[partition] = Kept(offset_next, [record for record in records if record.offset < offset_next], dropped)
        self._read_next = self._offsets_next()
        for partition, of_partition in kept.items():
            self._read_next[partition] = min(self._read_next.get(partition, 0), of_partition.offset_next)
        self._offset_head = self._read_next[ORDERING]
        self._queue.clear()
        self._queue_ids = 0
        self._buffer.restore(())
        self._prepared = None
        self._dropped.clear()
        self._read_again = True
        self._hole, self._skipped, self._fills_due_ms = None, None, 0
        self._since_effect = NONE_SKIPPED, b""
        self._fill_proposed_ms.clear()
        self._silent.clear()
        return kept

    def snapshot(self) -> JoinerSnapshot:
        """Returns the complete state, between two steps."""
        assert not self.incarnations.changed
        agreed, suspicions, examined = self.suspicions.snapshot()
        return JoinerSnapshot(
            log_state=self.log_state,
            log_time_ms=self._log_time_ms,
            offset_head=self._offset_head,
            read_next=tuple(sorted(self._read_next.items())),
            incarnations=self.incarnations.snapshot(),
            effects=self.history.snapshot(),
            items=tuple(self._items),
            since_effect=self._since_effect,
            marks=tuple(sorted(self.marks.items())),
            agreed=agreed,
            suspicions=suspicions,
            live=self.suspicions.live,
            examined=examined,
            queue=tuple([queued.snapshot() for queued in self._queue]),
            has_hole=self._hole is not None,
            skipped=self._skipped,
            fills_due_ms=self._fills_due_ms,
            fills_proposed_ms=tuple(sorted(self._fill_proposed_ms.items())),
            silent=tuple(sorted(self._silent.items())),
            buffer=self._buffer.snapshot(),
            buffer_full=self._buffer_full,
            queue_full=self._queue_full,
            dropped=tuple([(partition, dropped.snapshot()) for partition, dropped in sorted(self._dropped.items())]),
            awaited=self._awaited,
            read_again=self._read_again,
        )

    def restore(self, snapshot: JoinerSnapshot) -> None:
        """Replace the state by `snapshot`. Limits, worker name and format version stay the same."""
        self.log_state = snapshot.log_state
        self._log_time_ms, self._offset_head = snapshot.log_time_ms, snapshot.offset_head
        self._read_next = dict(snapshot.read_next)
        self.incarnations.restore(snapshot.incarnations)
        self.history.restore(snapshot.effects)
        self._items = list(snapshot.items)
        self._since_effect = snapshot.since_effect
        self.marks = dict(snapshot.marks)
        self.suspicions.restore(snapshot.agreed, snapshot.suspicions, snapshot.examined, live=snapshot.live)
        self._queue = deque([_Queued.restored(queued) for queued in snapshot.queue])
        self._queue_ids = sum([_weight(queued.source) for queued in self._queue])
        head = self._queue[0].record if snapshot.has_hole else None
        assert head is None or isinstance(head, Entry)
        self._hole, self._skipped = head, snapshot.skipped
        self._fills_due_ms, self._fill_proposed_ms = snapshot.fills_due_ms, dict(snapshot.fills_proposed_ms)
        self._silent = dict(snapshot.silent)
        self._buffer.restore(snapshot.buffer)
        self._buffer_full, self._queue_full = snapshot.buffer_full, snapshot.queue_full
        self._dropped = {partition: Dropped.restored(records) for partition, records in snapshot.dropped}
        self._awaited, self._read_again = snapshot.awaited, snapshot.read_again
        self._prepared = None  # only a cache

    def examined(self, evidence: Evidence) -> None:
        """Record that our history was compared with the log because of a foreign view, and the log has all of it."""
        self.suspicions.examined(evidence.view)

    def may_count(self, record: Record) -> bool:
        """Returns True if an entry may still name this payload record; always True for an ordering record."""
        if record.partition == ORDERING:
            return True
        try:
            return record.value is not None and not self.incarnations.is_past(*decode_batch_key(record.key))
        except CorruptRecord:
            return False

    def to_verify(self, records: Sequence[Record], own: Own = NO_OWN) -> list[bytes]:
        """Returns the values whose signatures `step` will verify: of all ordering records except those that this worker sent itself."""
        sent = {batch.entry_value for batch in own.values()}
        return [record.value for record in records if record.partition == ORDERING and record.value and record.value not in sent]

    def prepare(self, own: Own = NO_OWN) -> Generator[None, None, tuple[Request, ...]]:
        """Decode the large batch at the head in pieces. Returns its requests; none when there is no such batch. `own`: as for `step`.

        This only saves time: otherwise the next step would decode the same bytes with the same result.
        """
        self._prepared = None
        log, head = self.log_state, self._queue[0] if self._queue else None
        if log is None or head is None or not self._is_large(head):
            return ()
        entry = head.record
        assert isinstance(entry, Entry)
        if not self.incarnations.counts(entry.incarnation, entry.sequence) or not self._is_signed(head, entry, log):
            return ()
        sent = own.get((entry.incarnation, entry.sequence))
        content = self._content(entry.partition, entry.incarnation, entry.sequence, entry.payload_hash, sent)
        if content is None or content.value is None:
            return ()
        if sent is not None and sent.value == content.value:
            return sent.requests
        try:
            requests = yield from decode_requests_in_pieces(content.value, log.notary_name)
        except CorruptRecord:
            return ()
        self._prepared = content.value, requests
        return requests

    def step(self, records: Sequence[Record], now_ms: int, signed_by: Mapping[bytes, bytes] | None = None, own: Own = NO_OWN) -> Ready:
        """Take records and the time; return the effects.

        `signed_by` maps an ordering record's value to the key under which its signature was verified. Any other signature is verified when
        its record is applied. `own` maps names to batches that this worker sent and that are not decided: they are not verified or decoded
        again. Both arguments may be left out, since they only save time. Neither is kept after the step.
        """
        ready = Ready({}, self._log_time_ms)
        for record in records:
            # A new reader may repeat records that were passed in already.
            if record.offset < self._read_next.get(record.partition, 0):
                continue
            self._read_next[record.partition] = record.offset + 1
            if record.partition == ORDERING:
                self._take_ordering(record, now_ms, signed_by or {}, own)
            else:
                self._take_payload(record, ready)
        self._apply(ready, own, at_once=not records)
        self._prepared = None
        self._propose_fills(ready, now_ms)
        self._propose_fences(ready, now_ms)
        ready.incarnations = list(self.incarnations.changed.values())
        self.incarnations.changed.clear()
        ready.log_time_ms = self._log_time_ms
        ready.agreed, ready.suspicions = self.suspicions.agreed, self.suspicions.open
        if ready.advanced:
            ready.offsets_next = self._offsets_next()
        if ready.effects:  # a skipped record moves the head too, and is read again each time
            self._read_again = False
        if not self._queue and not self._read_again and any(map(self._is_wanted_again, self._dropped.values(), self._dropped)):
            ready.read_again = True
        ready.paused = self._paused()
        return ready

    # ---- taking records in ----

    def _take_ordering(self, record: Record, now_ms: int, signed_by: Mapping[bytes, bytes], own: Own) -> None:
        queued = _Queued(record, now_ms, self._decode(record.value), signed_by.get(record.value or b"", b""))
        if isinstance(queued.record, Entry):
            sent = own.get((queued.record.incarnation, queued.record.sequence))
            if sent is not None and sent.entry_value == record.value:
                queued.signed_by = sent.signed_by
        self._queue_ids += _weight(record)
        self._queue.append(queued)

    def _decode(self, value: bytes | None) -> OrderingRecord | CorruptRecord:
        try:
            return decode(value, ACTIVE_AT_START if self.log_state is None else self.log_state.formats)
        except CorruptRecord as problem:
            return CorruptRecord(str(problem))  # without the frames that the caught one references

    def _take_payload(self, record: Record, ready: Ready) -> None:
        try:
            incarnation, sequence = decode_batch_key(record.key)
        except CorruptRecord as problem:
            ready.anomalies.append(Anomaly("malformed", record.partition, record.offset, str(problem)))
            return
        # Keep records of an unknown incarnation: its register record may come later in the ordering topic (R5).
        if record.value is None or self.incarnations.is_past(incarnation, sequence):
            return
        hole = self._hole
        if hole is not None and (hole.partition, hole.incarnation, hole.sequence) == (record.partition, incarnation, sequence):
            # The entry is known, so do not keep a record that is not its content: a flood of records with this key costs no memory.
            if not self._is_content(record.value, record.partition, incarnation, sequence, hole.payload_hash):
                self._skipped = self._skipped or (record.partition, record.offset)
                ready.anomalies.append(
                    Anomaly("skipped", record.partition, record.offset, f"no content of batch ({incarnation}, {sequence})")
                )
                return
        elif not (self.may_hold(record, self._buffer.size_bytes) or self.is_awaited(record)):
            # Above the limit only the partition of the hole at the head is still read. Records of other batches in it, and those that were
            # fetched already, must not exhaust the memory.
            self._dropped[record.partition] = dropped = self.drop(self._dropped.get(record.partition), record)
            if hole is not None and hole.partition == record.partition:
                # The filter may report the hole's own name from now on. None of its contents was dropped: the first one is kept above.
                dropped.awaited = self._awaited_by(hole)
            return
        self._buffer.add(record.partition, incarnation, sequence, Buffered(record.offset, record.append_time_ms, record.value))

    # ---- applying ----

    def _apply(self, ready: Ready, own: Own, *, at_once: bool) -> None:
        """Apply records at the head until none is left, one must wait, or the step is full.

        A large batch is applied only at the beginning of a step without records (`at_once`), after `prepare`.
        """
        hole_before, self._hole = self._hole, None
        states = requests = 0
        while self._queue:
            if ready.more or requests >= self.limits.step_requests_max or states >= self.limits.step_states_max:
                ready.more = True
                self._hole = None
                break
            head = self._queue[0]
            if not (at_once and not ready.advanced) and self._is_large(head):
                ready.more = True
                self._hole = hole_before if hole_before is head.record else None
                break
            batches_before, seen_before = len(ready.batches), self.history.seen
            if not self._apply_head(head, ready, own):
                break
            if self.history.seen == seen_before:
                self._since_effect = _skipping(*self._since_effect, head.source)
            for batch in ready.batches[batches_before:]:
                requests += len(batch.requests)
                states += sum([len(request.inputs) + len(request.references) for request in batch.requests])
            requests += len(ready.batches) == batches_before  # any other record counts as one request: a flood must not block the loop
            self._queue.popleft()
            self._queue_ids -= _weight(head.source)
            self._offset_head = head.offset + 1
            ready.advanced = True
        if self._hole is not hole_before:
            self._skipped, self._fills_due_ms = None, -1

    def _apply_head(self, head: _Queued, ready: Ready, own: Own) -> bool:
        """Apply the record at the head. Returns False if it stays there: for a hole, a view to examine, or a reason to stop."""
        if self.log_state is None:
            return self._apply_genesis(head, ready)
        if isinstance(head.record, CorruptRecord):
            head.record = self._decode(head.source.value)  # a format version may have become active since it was read
        record = head.record
        if isinstance(record, CorruptRecord):
            ready.anomalies.append(Anomaly("malformed", ORDERING, head.offset, str(record)))
            return True
        if not self._is_signed(head, record, self.log_state):
            text = f"a record of kind {type(record).__name__.lower()} has no signature of the key in force"
            ready.anomalies.append(Anomaly("unsigned", ORDERING, head.offset, text))
            return True
        if isinstance(record, (SalvageBegin, SalvageItems, SalvageDone, Trim)):
            return self._apply_salvage_or_trim(head, record, self.log_state, ready)
        if isinstance(record, Settle):
            return self._apply_settle(head, record, self.log_state, ready)
        if self.log_state.sealed and isinstance(record, _WORKER_RECORDS):
            ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, f"no record of a worker counts: {SALVAGE_OPEN}"))
            return True
        if isinstance(record, _WORKER_RECORDS) and not head.compared:
            head.own_view = self._compare(head, record, ready)
            head.compared = ready.evidence is None
        if ready.evidence is not None:
            return False
        match record:
            case Entry():
                return self._apply_entry(head, record, self.log_state, ready, own.get((record.incarnation, record.sequence)))
            case Register():
                self._apply_register(head, record, ready)
            case Fence():
                self._apply_end(head, self.incarnations.fence(record.incarnation, record.sequence_last), record.incarnation, ready)
            case Checkpoint():
                self._apply_checkpoint(head, record, ready)
            case Retire():
                ended = self.incarnations.retire(record.incarnation)
                if ended is not None:
                    ready.roots_seen.append(VoteVoid(ended.name, len(ready.batches), head.offset))
                self._apply_end(head, ended, record.incarnation, ready, retired=True)
            case Activate():
                return self._apply_activate(head, record, self.log_state, ready)
            case Key():
                changed = self.log_state.with_key(record, self.history.seen + 1)
                if changed is not None and self.log_state.salvage is not None:
                    self._drop_items(ready)
                self._change_log(head, changed, "a key record does not count: its key was in force before", ready)
            case Partitions():
                why_not = f"a partitions record does not count: {record.payload_partitions} is not more than the log has"
                self._change_log(head, self.log_state.with_partitions(record.payload_partitions), why_not, ready)
            case Genesis():
                ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, "a genesis record counts only at the start of the topic"))
        return True

    def _apply_genesis(self, head: _Queued, ready: Ready) -> bool:
        try:
            genesis = decode_genesis(head.source.value)
        except CorruptRecord as problem:
            ready.stop = Fatal(
                FatalCode.NO_GENESIS,
                f"the ordering topic does not begin with a genesis record, so it has no owner: record {head.offset}: {problem}."
                " Create a log with `notary init`, or name the right topics",
            )
            return False
        assert head.source.value is not None
        log_id = log_id_of(head.source.value)
        self.log_state = ready.log_state = LogState.begin(genesis, log_id)
        self._take_effect(head, ready, first=log_id)
        return True

    def _is_signed(self, head: _Queued, record: OrderingRecord, log: LogState) -> bool:
        key = log.key if isinstance(record, _WORKER_RECORDS) else log.owner_key
        if head.signed_by != key:
            assert head.source.value is not None
            if not record_is_signed(head.source.value, log.log_id, key):
                return False
            head.signed_by = key
        return True

    def _compare(self, head: _Queued, record: Entry | Register | Fence | Checkpoint, ready: Ready) -> bool:
        """Returns True if the record's view is our own history. A foreign view that is not examined yet becomes `ready.evidence`."""
        if self._ordering_only:
            return False
        comparison = self.history.compare(record.view)
        if comparison is Comparison.TOO_OLD:
            return False
        writer = self._writer(record)
        if comparison is Comparison.OWN:
            self.suspicions.own(record.view, writer, self._worker_name)
            return True
        self._examines(head, record.view, writer, ready)
        return False

    def _examines(self, head: _Queued, view: View, writer: str, ready: Ready) -> bool:
        """Returns True if a foreign view must be examined before its record is applied. Reports one that was examined already."""
        seen = self.history.seen
        if not self.suspicions.is_examined(view):
            ready.evidence = Evidence(head.offset, view, writer, seen)
            return True
        self.suspicions.foreign(writer, seen)
        text = f"worker {writer!r} had another history after {view.seen} records than this worker, which has {seen} records in effect there"
        ready.anomalies.append(Anomaly("foreign-view", ORDERING, head.offset, text))
        return False

    def _writer(self, record: Entry | Register | Fence | Checkpoint) -> str:
        if isinstance(record, Register):
            return record.name
        state = self.incarnations.get(record.writer if isinstance(record, Fence) else record.incarnation)
        return "" if state is None else state.name

    def _apply_entry(self, head: _Queued, entry: Entry, log: LogState, ready: Ready, own: OwnBatch | None) -> bool:
        incarnation, sequence = entry.incarnation, entry.sequence
        if not self.incarnations.counts(incarnation, sequence):
            ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, f"entry ({incarnation}, {sequence}) does not count: {_R2}"))
            return True
        if entry.partition >= log.payload_partitions:
            text = f"entry ({incarnation}, {sequence}) names payload partition {entry.partition}, the log has {log.payload_partitions}"
            ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, text))
            return True
        if self._ordering_only:
            self._log_time_ms = max(self._log_time_ms, min(head.source.append_time_ms, entry.sent_at_ms + SENT_AT_AHEAD_MAX_MS))
            self.incarnations.count(incarnation, sequence, self._log_time_ms)
            self._take_effect(head, ready)
            return True
        content = self._content(entry.partition, incarnation, sequence, entry.payload_hash, own)
        if self._may_be_dropped(entry, content):
            self._awaited = self._awaited_by(entry)
            ready.read_again = True
            return False
        if content is None:
            self._buffer.empty(entry.partition, incarnation, sequence)
            self._hole = entry
            return False
        if self._is_seal(content.value or b"", log, entry.partition, batch_key(incarnation, sequence), entry.payload_hash):
            self.log_state = ready.log_state = msgspec.structs.replace(log, sealed=True, salvage=None)
            self.incarnations.use_up(incarnation, sequence)
            self._take_effect(head, ready, content=(entry, content, sha256(content.value or b"").digest()), mark=2)
            self._drop_through(incarnation, sequence, ready, expected=1)
            return True
        is_own = own is not None and own.value == content.value
        value_hash = own.payload_hash if own is not None and is_own else sha256(content.value or b"").digest()
        filled = value_hash != entry.payload_hash
        self._log_time_ms = max(self._log_time_ms, min(head.source.append_time_ms, entry.sent_at_ms + SENT_AT_AHEAD_MAX_MS))
        requests: tuple[Request, ...] = ()
        if not filled:
            requests = own.requests if own is not None and is_own else self._requests(entry, content, log, ready)
        self.incarnations.count(incarnation, sequence, self._log_time_ms)
        self._take_effect(head, ready, content=(entry, content, value_hash), mark=int(not filled))
        self._drop_through(incarnation, sequence, ready, expected=1)
        batch = OrderedBatch(
            head.offset, incarnation, sequence, self._log_time_ms, filled, requests, head.source.append_time_ms, entry.sent_at_ms
        )
        ready.batches.append(batch)
        return True

    def _is_large(self, head: _Queued) -> bool:
        """Returns True if the record at the head is an entry, and a payload record with its key is a large batch."""
        entry = head.record
        if not isinstance(entry, Entry):
            return False
        found = self._buffer.get(entry.partition, entry.incarnation, entry.sequence)
        return any(candidate.value is not None and len(candidate.value) >= self.limits.large_bytes for candidate in found)

    def may_hold(self, record: Record, size_bytes: int) -> bool:
        """Returns True if this payload record may be held in memory beside others that cost `size_bytes`.

        Reading pauses at the limit, and records fetched by then may take as much again. The next batches of incarnations in force may take
        half as much more: else a flood under any other names would force a worker to read these batches twice.
        """
        limit = self.limits.buffer_bytes_max
        if size_bytes <= 2 * limit:
            return True
        incarnation, sequence = decode_batch_key(record.key)
        state = self.incarnations.get(incarnation)
        is_next = state is not None and state.sequence_last < sequence <= state.sequence_last + NEXT_BATCHES
        return is_next and size_bytes <= 3 * limit

    def is_awaited(self, record: Record) -> bool:
        """Returns True for the first content of the entry at the head for which the log is read again: it is never dropped."""
        awaited = self._awaited
        if awaited is None or awaited.seen != self.history.seen or awaited.partition != record.partition or record.value is None:
            return False
        name = awaited.incarnation, awaited.sequence
        return (
            decode_batch_key(record.key) == name
            and self._content(record.partition, *name, awaited.payload_hash) is None
            and self._is_content(record.value, record.partition, *name, awaited.payload_hash)
        )

    def drop(self, dropped: Dropped | None, record: Record) -> Dropped:
        """Add a payload record to its partition's dropped ones; `dropped` is None for the first one. Returns them.

        `record` is not the first one for which `is_awaited` is True.
        """
        if dropped is None:
            dropped = Dropped(record.offset)
            dropped.awaited = self._awaited
        elif dropped.awaited != self._awaited:
            dropped.awaited = None  # this record may be a content of the entry named there
        dropped.add(record.offset, *decode_batch_key(record.key))
        return dropped

    def restore_dropped(self, dropped: Mapping[int, Dropped]) -> None:
        """Take over the records that `Recheck` dropped, by partition, before the other records of these partitions are passed in."""
        assert not dropped.keys() & self._dropped.keys()
        self._dropped |= dropped
        if self._hole is not None and self._hole.partition in dropped:
            self._hole = None  # its content may be among them: `_apply` finds out, before a later content takes its place

    def _awaited_by(self, entry: Entry) -> Awaited:
        return Awaited(self.history.seen, entry.partition, entry.incarnation, entry.sequence, entry.payload_hash)

    def _may_be_dropped(self, entry: Entry, content: Buffered | None) -> bool:
        """Returns True if the entry's first content may have been dropped for lack of memory: a later content must not replace it (R3)."""
        dropped = self._dropped.get(entry.partition)
        if dropped is None or dropped.awaited == self._awaited_by(entry) or (content is not None and content.offset < dropped.offset):
            return False
        return dropped.may_have(entry.incarnation, entry.sequence)

    def _is_wanted_again(self, dropped: Dropped, partition: int) -> bool:
        """Returns True if dropped records of that partition must be read again: the head may wait for one, or memory is free."""
        awaited = self._awaited
        if awaited is not None and (awaited.seen, awaited.partition) == (self.history.seen, partition) and dropped.awaited != awaited:
            return True
        return self._buffer.size_bytes <= self.limits.buffer_bytes_max

    def _content(
        self, partition: int, incarnation: int, sequence: int, payload_hash: bytes, own: OwnBatch | None = None
    ) -> Buffered | None:
        """Returns a batch's content (R3), the first record with its key in its partition that qualifies; None while none was read."""
        for candidate in self._buffer.get(partition, incarnation, sequence):
            if candidate.value is None:
                continue
            if own is not None and own.payload_hash == payload_hash and own.value == candidate.value:
                return candidate
            if self._is_content(candidate.value, partition, incarnation, sequence, payload_hash):
                return candidate
        return None

    def _is_content(self, value: bytes, partition: int, incarnation: int, sequence: int, payload_hash: bytes) -> bool:
        """Returns True for the value whose hash the entry names, a fill by the key in force at the entry's offset, or a seal."""
        if sha256(value).digest() == payload_hash:
            return True
        log, key = self.log_state, batch_key(incarnation, sequence)
        if log is None or len(value) != FILL_BYTES:
            return False
        return is_fill(value, log.log_id, partition, key, payload_hash, log.key) or self._is_seal(value, log, partition, key, payload_hash)

    @staticmethod
    def _is_seal(value: bytes, log: LogState, partition: int, key: bytes, payload_hash: bytes) -> bool:
        """Returns True for a seal that counts at the head of the log."""
        return SALVAGE_FORMAT in log.formats and is_seal(value, log.log_id, partition, key, payload_hash, log.key, log.owner_key)

    def _requests(self, entry: Entry, content: Buffered, log: LogState, ready: Ready) -> tuple[Request, ...]:
        """Returns the batch's requests; none for a payload that does not decode or has other ids: only a broken worker writes one (R3)."""
        try:
            value = content.value or b""
            if self._prepared is not None and self._prepared[0] == value:
                requests = self._prepared[1]
            else:
                requests = decode_requests(value, log.notary_name)
            if not _same_ids(requests, entry.transaction_ids):
                raise CorruptRecord("its transaction ids are not those of the entry")
        except CorruptRecord as problem:
            text = f"payload ({entry.incarnation}, {entry.sequence}) decides nothing: {problem}"
            ready.anomalies.append(Anomaly("bad-content", entry.partition, content.offset, text))
            return ()
        return requests

    def _apply_register(self, head: _Queued, record: Register, ready: Ready) -> None:
        at_ms = max(self._log_time_ms, head.source.append_time_ms)
        registered = self.incarnations.register(record.nonce, record.name, at_ms, record.format_version)
        if registered is None:
            ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, "a register record came twice"))
            return
        state, fenced = registered
        self._take_effect(head, ready)
        ready.registered.append(state)
        if fenced is not None:
            ready.fenced.append(Fenced(fenced, state))
            self._drop_through(fenced.incarnation, None, ready)

    def _apply_end(self, head: _Queued, ended: IncarnationState | None, incarnation: int, ready: Ready, *, retired: bool = False) -> None:
        """Apply a fence or retire record. `ended`: the incarnation that it ended; None for a record that does not count."""
        if ended is None:
            what, why = ("retire", "it is over") if retired else ("fence", "it is over, or has sent more")
            text = f"{what} of incarnation {incarnation} does not count: {why}"
            ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, text))
            return
        self._take_effect(head, ready)
        ready.fenced.append(Fenced(ended, None, retired))
        self._drop_through(incarnation, None, ready)

    def _apply_checkpoint(self, head: _Queued, record: Checkpoint, ready: Ready) -> None:
        writer = self.incarnations.get(record.incarnation)
        if writer is None or writer.fenced or not head.own_view:
            why = "its view is not this worker's history" if writer is not None and not writer.fenced else "that incarnation is over"
            text = f"a checkpoint of incarnation {record.incarnation} is not compared: {why}"
            ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, text))
            return
        voters = self._voters()
        before = len(ready.batches)
        ready.roots_seen.append(
            RootSeen(writer.name, writer.incarnation, record.tree_size, record.root, self._log_time_ms, voters, before, head.offset)
        )

    def _voters(self) -> frozenset[str]:
        return self.incarnations.names_since(self._log_time_ms - VOTERS_MS)

    def _apply_activate(self, head: _Queued, record: Activate, log: LogState, ready: Ready) -> bool:
        version = record.format_version
        incarnations = [self.incarnations.named(name) for name in self._voters()]
        behind = [state.name for state in incarnations if state is not None and state.format_version < version]
        if not behind and log.with_format(version) is not None and version > self._format_version:
            ready.stop = Fatal(
                FatalCode.FORMAT_TOO_NEW,
                f"ordering record {head.offset} activates format version {version} and this software reads"
                f" {self._format_version}: install a newer version and start again; nothing is lost",
            )
            return False
        cannot = f"{', '.join([repr(name) for name in sorted(behind)[:10]])} cannot read it"
        why_not = f"activate {version} does not count: {cannot if behind else 'that version is active already'}"
        self._change_log(head, None if behind else log.with_format(version), why_not, ready)
        return True

    def _apply_settle(self, head: _Queued, record: Settle, log: LogState, ready: Ready) -> bool:
        if self._ordering_only:
            return True  # the payload topic also determines whether it takes effect
        settled = log.with_settled(record)
        comparison = None if settled is None else self.history.compare(record.view)
        if comparison is Comparison.FOREIGN:
            ready.stop = Fatal(
                FatalCode.HISTORY_DIFFERS,
                f"ordering record {head.offset} settles a history of {record.view.seen} records that is not this index's: the owner has"
                " chosen another history. Keep this index as evidence, and let this worker replay the log;"
                " see docs/runbook.md, 'A worker has seen another history'",
            )
            return False
        if comparison is not Comparison.OWN:
            settled = None
        self._change_log(head, settled, "a settle record does not count: it names no newer history of this log, or another key", ready)
        if settled is not None:
            self.suspicions.settle(record.view.seen)
        return True

    def _apply_salvage_or_trim(self, head: _Queued, record: SalvageRecord | Trim, log: LogState, ready: Ready) -> bool:
        """Apply a record whose condition depends on the reader's tree. So it is the only one of its step (R11)."""
        if self._ordering_only and isinstance(record, Trim):
            # Accept it unchecked: it changes nothing else, and after a trim the payload topic cannot be read from its start.
            self._change_log(head, log.with_trim(record, None), "a trim record does not count: an earlier one has its position", ready)
            return True
        if self._ordering_only:
            ready.stop = Fatal(
                FatalCode.SALVAGED,
                f"ordering record {head.offset} belongs to a salvage: the payload topic also determines what takes effect there",
            )
            return False
        if ready.advanced:
            ready.more = True
            return False
        if record.key != log.key:
            text = "a salvage or trim record names another key than the one in force"
            ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, text))
            ready.more = True
            return True
        comparison = self.history.compare(record.view)
        if comparison is Comparison.FOREIGN and self._examines(head, record.view, OWNER_NAME, ready):
            return False
        if isinstance(record, Trim):
            trimmed = log.with_trim(record, self._tree) if comparison is Comparison.OWN else None
            self._change_log(head, trimmed, "a trim record does not count: its view, position or root is not this log's", ready)
        else:
            changed = log.with_salvage(record, self.history.seen, self._tree, self._items) if record.view == self.history.view else None
            self._change_log(head, changed, "a salvage record does not count: no such step is due", ready)
            if changed is not None:
                self._salvage(record, ready)
        ready.more = True
        return True

    def _salvage(self, record: SalvageRecord, ready: Ready) -> None:
        """Carry out a step of a salvage that took effect."""
        match record:
            case SalvageBegin():
                assert not self._items  # the key record before it has dropped the items of another attempt
            case SalvageItems():
                ready.items = record
                self._items += record.items
            case SalvageDone():
                ready.salvaged = tuple(self._items)
                self._log_time_ms = max([self._log_time_ms, *[item.log_time_ms for item in self._items if isinstance(item, Decided)]])
                self._drop_items(ready)
                self.suspicions.settle(self.history.seen)

    def _drop_items(self, ready: Ready) -> None:
        self._items.clear()
        ready.items_dropped = True

    def _change_log(self, head: _Queued, changed: LogState | None, why_not: str, ready: Ready) -> None:
        if changed is None:
            ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, why_not))
            return
        self.log_state = ready.log_state = changed
        self._take_effect(head, ready)

    def _take_effect(
        self,
        head: _Queued,
        ready: Ready,
        *,
        content: tuple[Entry, Buffered, bytes] | None = None,
        mark: int = 0,
        first: bytes | None = None,
    ) -> None:
        """Append the record at the head to the history, as it takes effect. `first` is the history after genesis: the log id."""
        source = head.source
        value_hash = sha256(source.value or b"").digest()
        history = first or extended(self.history.view.history, source.append_time_ms, value_hash, mark=mark)
        print_ = fingerprint(source, value_hash)
        skipped_first, skipped_hash = self._since_effect
        self._since_effect = NONE_SKIPPED, b""
        effect = Effect(
            self.history.seen + 1,
            history,
            source.offset,
            source.append_time_ms,
            print_,
            skipped_first=skipped_first,
            skipped_hash=skipped_hash,
        )
        self._mark(ORDERING, Mark(source.offset, print_), ready)
        if content is not None:
            entry, found, found_hash = content
            key = batch_key(entry.incarnation, entry.sequence)
            record = Record(entry.partition, found.offset, found.append_time_ms, key, None)
            content_print = fingerprint(record, found_hash)
            effect = msgspec.structs.replace(
                effect, partition=entry.partition, content_offset=found.offset, content_fingerprint=content_print
            )
            # Contents are not joined in the order of their offsets. The mark is the content with the highest offset.
            before = self.marks.get(entry.partition)
            if before is None or before.offset < found.offset:
                self._mark(entry.partition, Mark(found.offset, content_print), ready)
        assert (effect.partition == NO_CONTENT) == (content is None)
        self.history.append(effect)
        ready.effects.append(effect)

    def _mark(self, partition: int, mark: Mark, ready: Ready) -> None:
        self.marks[partition] = ready.marks[partition] = mark

    def _drop_through(self, incarnation: int, sequence: int | None, ready: Ready, expected: int = 0) -> None:
        dropped = self._buffer.drop_through(incarnation, sequence) - expected
        if dropped > 0:
            text = f"{dropped} payloads of incarnation {incarnation} are dropped: their entries will never count"
            ready.anomalies.append(Anomaly("orphan-dropped", ORDERING, self._offset_head, text))

    # ---- proposing ----

    def _propose_fills(self, ready: Ready, now_ms: int) -> None:
        """Propose fills for the hole at the head once it is old enough, and for later holes that are old enough (R4)."""
        if self._hole is None:
            return
        limits = self.limits
        if self._fills_due_ms < 0:
            self._fills_due_ms = now_ms + limits.hole_timeout_ms
        if now_ms < self._fills_due_ms:
            return
        # Half a million records may wait here, and a step may come every millisecond. So not every step scans, and a scan covers only the
        # first records. Every hole still gets its turn: the head comes first, and all move up when it is filled.
        self._fills_due_ms = now_ms + limits.hole_timeout_ms // FILL_SCANS
        oldest_ms = now_ms - limits.hole_timeout_ms
        # A proposal is repeated only after another timeout: one fill in flight is enough.
        self._fill_proposed_ms = {key: at for key, at in self._fill_proposed_ms.items() if at > oldest_ms}
        for queued in islice(self._queue, limits.fill_scan_records_max):
            if queued.arrived_ms > oldest_ms or len(ready.fills) >= limits.fills_proposed_max:
                break
            if (fill := self._fill_for(queued)) is not None:
                self._fill_proposed_ms[fill.incarnation, fill.sequence] = now_ms
                ready.fills.append(fill)

    def _fill_for(self, queued: _Queued) -> FillWanted | None:
        entry, log = queued.record, self.log_state
        if log is None or not isinstance(entry, Entry) or entry.partition >= log.payload_partitions:
            return None
        key = (entry.incarnation, entry.sequence)
        if key in self._fill_proposed_ms or not self.incarnations.counts(*key) or not self._is_signed(queued, entry, log):
            return None
        fill = FillWanted(entry.partition, *key, entry.payload_hash)
        return fill if self.is_hole(fill) else None

    def _propose_fences(self, ready: Ready, now_ms: int) -> None:
        """Propose fences for incarnations with payloads here that have been silent while log time advanced by worker_timeout (R5).

        Anyone who may write to the topic can forge a payload of an idle worker. So nothing is proposed while payloads need little memory,
        and a restart need not read much again because of them.
        """
        if (
            self.log_state is None
            or self.log_state.sealed
            or not (self._buffer.size_bytes >= self._fence_bytes_min or any(map(self._is_held_back, self._read_next.keys() - {ORDERING})))
        ):
            self._silent.clear()
            return
        silent_since_ms = self._log_time_ms - self.limits.worker_timeout_ms
        silent: dict[int, tuple[int, int]] = {}
        for incarnation in self.incarnations.unfenced():
            state = self.incarnations.get(incarnation)
            if state is None or state.active_at_ms >= silent_since_ms or not self._buffer.size_of(incarnation)[0]:
                continue
            # Log time does not advance while no worker sends. So after a quiet night, the first entry makes every other incarnation look
            # silent. An incarnation whose payload was read just before its entry has hole_timeout to show that it is not silent.
            sequence_last, since_ms = self._silent.get(incarnation, (-1, now_ms))
            if sequence_last != state.sequence_last:
                since_ms = now_ms
            elif now_ms - since_ms >= self.limits.hole_timeout_ms:
                since_ms = now_ms
                ready.fences.append(FenceWanted(incarnation, state.sequence_last))
            silent[incarnation] = (state.sequence_last, since_ms)
        self._silent = silent

    def _is_held_back(self, partition: int) -> bool:
        earliest = self._buffer.offset_earliest(partition)
        return earliest is not None and self._read_next[partition] - earliest > self.limits.held_back_max

    # ---- offsets to resume at ----

    def _offsets_next(self) -> dict[int, int]:
        """Returns the offsets that a restart must resume at (R8, R10).

        In the ordering topic, it is the offset after the last record that took effect: if the log loses its end, other records may replace
        those skipped after it. In a payload partition, it is the offset after the mark, or of an earlier payload that an entry may still
        name.
        """
        last = self.history.last
        offsets = {ORDERING: 0 if last is None else last.offset + 1}
        for partition in self._read_next.keys() - {ORDERING}:
            mark = self.marks.get(partition)
            earliest = self._buffer.offset_earliest(partition)
            # After `forget_unapplied` the read position may be before the mark: records in between are not buffered, and may be needed.
            wanted = [self._read_next[partition], 0 if mark is None else mark.offset + 1]
            if earliest is not None:
                wanted.append(earliest)
            if partition in self._dropped:
                wanted.append(self._dropped[partition].offset)
            offsets[partition] = min(wanted)
        return offsets

    def _paused(self) -> frozenset[int]:
        """Returns the topic-partitions to pause now, so that memory stays bounded; never the partition of the hole at the head."""
        limits = self.limits
        self._buffer_full = self._buffer.size_bytes > (limits.buffer_bytes_max * 3 // 4 if self._buffer_full else limits.buffer_bytes_max)
        self._queue_full = self._queue_ids > (limits.queue_ids_max * 3 // 4 if self._queue_full else limits.queue_ids_max)
        paused: set[int] = set()
        if self._buffer_full:
            paused.update(self._read_next.keys() - {ORDERING})
            if self.log_state is not None:
                paused.update(range(self.log_state.payload_partitions))
            if self._hole is not None:
                paused.discard(self._hole.partition)
        if self._queue_full:
            paused.add(ORDERING)
        return frozenset(paused)


def _skipping(first: int, skipped_hash: bytes, record: Record) -> tuple[int, bytes]:
    """Returns the first offset and the running hash of the skipped records, extended by one more ordering record."""
    return (record.offset if first == NONE_SKIPPED else first), extend_skipped(skipped_hash, record)


def _weight(source: Record) -> int:
    """Returns the weight of a queued record: one, and one for each 32 bytes. So it counts transaction ids, and bounds malformed records."""
    return 1 + len(source.value or b"") // TRANSACTION_ID_BYTES


def _same_ids(requests: tuple[Request, ...], ids: tuple[TransactionId, ...]) -> bool:
    return len(requests) == len(ids) and all(request.transaction_id == id_ for request, id_ in zip(requests, ids, strict=True))


__all__ = ["VOTERS_MS", "Joiner", "View"]
