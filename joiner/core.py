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

from collections.abc import Generator, Mapping, Sequence
from hashlib import sha256

import msgspec

from joiner.buffer import Buffered
from joiner.control import LogState, SalvageTree
from joiner.dropped import Dropped
from joiner.due import DueProposals
from joiner.evidence import Evidence, Suspicions
from joiner.history import (
    NO_CONTENT,
    NONE_SKIPPED,
    Comparison,
    Effect,
    History,
    Mark,
    extended,
    fingerprint,
)
from joiner.incarnations import Incarnations, IncarnationState
from joiner.payloads import Payloads, is_content, is_seal_at_head
from joiner.queued import OrderingQueue, Queued, skipping
from joiner.ready import (
    OWNER_INCARNATION,
    Anomaly,
    Fenced,
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
from joiner.snapshot import JoinerSnapshot
from ordering.errors import CorruptRecord, Fatal, FatalCode
from ordering.log import ORDERING, Record
from ordering.records import (
    ACTIVE_AT_START,
    FORMAT_VERSION,
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
from ordering.signatures import decode_genesis, log_id_of, record_is_signed
from payload import Request, decode_requests, decode_requests_in_pieces

VOTERS_MS = 86_400_000
"""The log time for which a worker stays a voter after its last register record or counted entry (R9).

All workers use the same value.
"""

SENT_AT_AHEAD_MAX_MS = 60_000
"""The most by which an append time may push log time ahead of the sender's clock (R6, docs/formats.md)."""

NO_OWN: Own = {}

_NOT_COUNTED = "its incarnation is not registered, is over, or has reached this sequence"
OWNER_NAME = "the owner"
"""The writer of a salvage or trim record, in suspicions and votes."""
SALVAGE_OPEN = "the owner restores lost decisions, and that salvage has not ended yet"

_WORKER_RECORDS = (Entry, Register, Fence, Checkpoint)


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
        self.ordering_only = ordering_only
        self._format_version = format_version
        self.limits = limits or JoinerLimits()
        self.payloads = Payloads(self.limits, self.incarnations, self.history)
        self._due = DueProposals(self.limits)
        self._log_time_ms = state.log_time_ms
        self._offset_head = state.offsets_next.get(ORDERING, 0)
        # The next offset of each topic-partition that has not been passed to `step` yet.
        self._read_next = dict(state.offsets_next)
        self._queue = OrderingQueue()
        self._hole: Entry | None = None
        # The partition and offset of the first record with the hole's key that was skipped because it is not the hole's content.
        self._skipped: tuple[int, int] | None = None
        # The ordering records skipped since the last one that took effect: the first one's offset, and the running hash over them.
        self._since_effect = NONE_SKIPPED, b""
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
        return None if self._hole is None or self._queue.head is None else self._queue.head.offset

    @property
    def offset_head(self) -> int:
        """The offset after the last ordering record applied."""
        return self._offset_head

    @property
    def queued_ids(self) -> int:
        """The weight of the queue: one for each record, and one for each 32 bytes of it, the size of a transaction id."""
        return self._queue.ids

    @property
    def queued_records(self) -> int:
        """The number of ordering records in the queue, including the head."""
        return len(self._queue)

    @property
    def queue_run(self) -> list[Effect]:
        """The last ordering records in the queue that share an append time, and the one before, as effects (`History.last_run`).

        If the log still has these records, it has all records in the queue. Empty for an empty queue.
        """
        return self._queue.last_run(self.history.last_run, self._since_effect)

    def is_buffered(self, partition: int) -> bool:
        """Returns True if payload records of that partition wait for their entries."""
        return self.payloads.buffer.offset_earliest(partition) is not None

    def buffered_run(self, partition: int) -> list[Record]:
        """Returns the partition's last payload records that wait for entries and share an append time, and the one before (`last_run`)."""
        return self.payloads.buffer.last_run(partition)

    @property
    def buffered_bytes(self) -> int:
        """The cost of the payload records whose entries have not been applied."""
        return self.payloads.buffer.size_bytes

    @property
    def buffered_records(self) -> int:
        """The number of payload records whose entries have not been applied."""
        return self.payloads.buffer.records

    @property
    def unregistered(self) -> tuple[int, int]:
        """The number and cost of the payload records of unregistered incarnations: nothing drops them before they register (R5)."""
        return self.payloads.unregistered()

    def is_hole(self, fill: FillWanted) -> bool:
        """Returns True if the content that the fill would replace is still needed and not read."""
        if not self.incarnations.counts(fill.incarnation, fill.sequence):
            return False
        return self.payloads.content(fill.partition, fill.incarnation, fill.sequence, fill.payload_hash, self.log_state) is None

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
            to_reread = [self._skipped[1]] if self._skipped is not None and self._skipped[0] == partition else []
            offset_next = min(self._read_next.get(partition, 0), mark.offset + 1)
            kept[partition] = self.payloads.kept(partition, offset_next, to_reread)
        self._read_next = self._offsets_next()
        for partition, of_partition in kept.items():
            self._read_next[partition] = min(self._read_next.get(partition, 0), of_partition.offset_next)
        self._offset_head = self._read_next[ORDERING]
        self._queue.restore(())
        self.payloads.forget()
        self._due.forget()
        self._prepared = None
        self._hole, self._skipped = None, None
        self._since_effect = NONE_SKIPPED, b""
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
            fills_due_ms=self._due.fills_due_ms,
            fills_proposed_ms=tuple(sorted(self._due.fills_proposed_ms.items())),
            silent=tuple(sorted(self._due.silent.items())),
            buffer=self.payloads.buffer.snapshot(),
            buffer_full=self._buffer_full,
            queue_full=self._queue_full,
            dropped=tuple([(partition, dropped.snapshot()) for partition, dropped in sorted(self.payloads.dropped.items())]),
            awaited=self.payloads.awaited,
            is_rereading=self.payloads.is_rereading,
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
        self._queue.restore([Queued.restored(queued) for queued in snapshot.queue])
        head = self._queue.head.record if snapshot.has_hole and self._queue.head is not None else None
        assert head is None or isinstance(head, Entry)
        self._hole, self._skipped = head, snapshot.skipped
        due, payloads = self._due, self.payloads
        due.fills_due_ms, due.fills_proposed_ms = snapshot.fills_due_ms, dict(snapshot.fills_proposed_ms)
        due.silent = dict(snapshot.silent)
        payloads.buffer.restore(snapshot.buffer)
        payloads.dropped = {partition: Dropped.restored(records) for partition, records in snapshot.dropped}
        payloads.awaited, payloads.is_rereading = snapshot.awaited, snapshot.is_rereading
        self._buffer_full, self._queue_full = snapshot.buffer_full, snapshot.queue_full
        self._prepared = None  # only a cache

    def examined(self, evidence: Evidence) -> None:
        """Record that our history was compared with the log because of a foreign view, and the log has all of it."""
        self.suspicions.examined(evidence.view)

    def may_count(self, record: Record) -> bool:
        """Returns True if an entry may still name this payload record; always True for an ordering record."""
        return record.partition == ORDERING or self.payloads.may_count(record)

    def may_hold(self, record: Record, size_bytes: int) -> bool:
        """Returns True if this payload record may be held in memory beside others that cost `size_bytes` (`Payloads`)."""
        return self.payloads.may_hold(record, size_bytes)

    def is_awaited(self, record: Record) -> bool:
        """Returns True if the log is read again for this content (`Payloads`)."""
        return self.payloads.is_awaited(record, self.log_state)

    def drop(self, dropped: Dropped | None, record: Record) -> Dropped:
        """Add a payload record to its partition's dropped ones (`Payloads`)."""
        return self.payloads.drop(dropped, record)

    def restore_dropped(self, dropped: Mapping[int, Dropped]) -> None:
        """Take over records that `Recheck` dropped, by partition, before the other records of these partitions are passed in."""
        self.payloads.restore_dropped(dropped)
        if self._hole is not None and self._hole.partition in dropped:
            self._hole = None  # its content may be among them: `_apply` finds out, before a later content takes its place

    def to_verify(self, records: Sequence[Record], own: Own = NO_OWN) -> list[bytes]:
        """Returns the values whose signatures `step` will verify: of all ordering records except those that this worker sent itself."""
        sent = {batch.entry_value for batch in own.values()}
        return [record.value for record in records if record.partition == ORDERING and record.value and record.value not in sent]

    def prepare(self, own: Own = NO_OWN) -> Generator[None, None, tuple[Request, ...]]:
        """Decode the large batch at the head in pieces. Returns its requests; none when there is no such batch. `own`: as for `step`.

        This only saves time: otherwise the next step would decode the same bytes with the same result.
        """
        self._prepared = None
        log, head = self.log_state, self._queue.head
        if log is None or head is None or not self._is_large(head):
            return ()
        entry = head.record
        assert isinstance(entry, Entry)
        if not self.incarnations.counts(entry.incarnation, entry.sequence) or not self._is_signed(head, entry, log):
            return ()
        sent = _sent(entry, head.source, own)
        content = self.payloads.content(entry.partition, entry.incarnation, entry.sequence, entry.payload_hash, log, sent)
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
        self._apply(ready, own, without_records=not records)
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
            self.payloads.is_rereading = False
        if not self._queue and self.payloads.wants_rereading():
            ready.read_again = True
        ready.paused = self._paused()
        return ready

    # ---- taking records in ----

    def _take_ordering(self, record: Record, now_ms: int, signed_by: Mapping[bytes, bytes], own: Own) -> None:
        queued = Queued(record, now_ms, self._decode(record.value), signed_by.get(record.value or b"", b""))
        if isinstance(queued.record, Entry) and (sent := _sent(queued.record, record, own)) is not None:
            queued.signed_by = sent.signed_by
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
            if not is_content(record.value, record.partition, incarnation, sequence, hole.payload_hash, self.log_state):
                self._skipped = self._skipped or (record.partition, record.offset)
                ready.anomalies.append(
                    Anomaly("skipped", record.partition, record.offset, f"no content of batch ({incarnation}, {sequence})")
                )
                return
            self.payloads.hold(record)
        else:
            self.payloads.take(record, self.log_state, hole)

    # ---- applying ----

    def _apply(self, ready: Ready, own: Own, *, without_records: bool) -> None:
        """Apply records at the head until none is left, one must wait, or the step is full.

        `without_records`: the step takes no records. A large batch is applied only at the beginning of such a step, after `prepare`.
        """
        hole_before, self._hole = self._hole, None
        states = requests = 0
        while (head := self._queue.head) is not None:
            if ready.more or requests >= self.limits.step_requests_max or states >= self.limits.step_states_max:
                ready.more = True
                self._hole = None
                break
            if not (without_records and not ready.advanced) and self._is_large(head):
                ready.more = True
                self._hole = hole_before if hole_before is head.record else None
                break
            batches_before, seen_before = len(ready.batches), self.history.seen
            if not self._apply_head(head, ready, own):
                break
            if self.history.seen == seen_before:
                self._since_effect = skipping(*self._since_effect, head.source)
            for batch in ready.batches[batches_before:]:
                requests += len(batch.requests)
                states += sum([len(request.inputs) + len(request.references) for request in batch.requests])
            requests += len(ready.batches) == batches_before  # any other record counts as one request: a flood must not block the loop
            self._queue.pop_head()
            self._offset_head = head.offset + 1
            ready.advanced = True
        if self._hole is not hole_before:
            self._skipped = None
            self._due.head_changed()

    def _apply_head(self, head: Queued, ready: Ready, own: Own) -> bool:
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
        if isinstance(record, (SalvageBegin, SalvageItems, SalvageDone)):
            return self._apply_salvage(head, record, self.log_state, ready)
        if isinstance(record, Trim):
            return self._apply_trim(head, record, self.log_state, ready)
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
                return self._apply_entry(head, record, self.log_state, ready, _sent(record, head.source, own))
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
                self._change_log_state(head, changed, "a key record does not count: its key was in force before", ready)
            case Partitions():
                why_not = f"a partitions record does not count: {record.payload_partitions} is not more than the log has"
                self._change_log_state(head, self.log_state.with_partitions(record.payload_partitions), why_not, ready)
            case Genesis():
                ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, "a genesis record counts only at the start of the topic"))
        return True

    def _apply_genesis(self, head: Queued, ready: Ready) -> bool:
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
        self._take_effect(head, ready, log_id=log_id)
        return True

    def _is_signed(self, head: Queued, record: OrderingRecord, log: LogState) -> bool:
        key = log.key if isinstance(record, _WORKER_RECORDS) else log.owner_key
        if head.signed_by != key:
            assert head.source.value is not None
            if not record_is_signed(head.source.value, log.log_id, key):
                return False
            head.signed_by = key
        return True

    def _compare(self, head: Queued, record: Entry | Register | Fence | Checkpoint, ready: Ready) -> bool:
        """Returns True if the record's view is our own history. A foreign view that is not examined yet becomes `ready.evidence`."""
        if self.ordering_only:
            return False
        comparison = self.history.compare(record.view)
        if comparison is Comparison.TOO_OLD:
            return False
        writer = self._writer(record)
        if comparison is Comparison.OWN:
            self.suspicions.own(record.view, writer, self._worker_name)
            return True
        self._must_examine(head, record.view, writer, ready)
        return False

    def _must_examine(self, head: Queued, view: View, writer: str, ready: Ready) -> bool:
        """Returns True if a foreign view must be examined before its record is applied. Reports a view that was examined already."""
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

    def _apply_entry(self, head: Queued, entry: Entry, log: LogState, ready: Ready, own: OwnBatch | None) -> bool:
        incarnation, sequence = entry.incarnation, entry.sequence
        if not self.incarnations.counts(incarnation, sequence):
            ready.anomalies.append(
                Anomaly("skipped", ORDERING, head.offset, f"entry ({incarnation}, {sequence}) does not count: {_NOT_COUNTED}")
            )
            return True
        if entry.partition >= log.payload_partitions:
            text = f"entry ({incarnation}, {sequence}) names payload partition {entry.partition}, the log has {log.payload_partitions}"
            ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, text))
            return True
        if self.ordering_only:
            self._advance_log_time(head, entry)
            self.incarnations.count(incarnation, sequence, self._log_time_ms)
            self._take_effect(head, ready)
            return True
        content = self.payloads.content(entry.partition, incarnation, sequence, entry.payload_hash, log, own)
        if self.payloads.may_be_dropped(entry, content):
            self.payloads.await_content(entry)
            ready.read_again = True
            return False
        if content is None:
            self.payloads.buffer.drop_values(entry.partition, incarnation, sequence)
            self._hole = entry
            return False
        if is_seal_at_head(content.value or b"", entry.partition, batch_key(incarnation, sequence), entry.payload_hash, log):
            self.log_state = ready.log_state = msgspec.structs.replace(log, sealed=True, salvage=None)
            self.incarnations.use_up(incarnation, sequence)
            self._take_effect(head, ready, content=(entry, content, sha256(content.value or b"").digest()), history_mark=2)
            self._drop_through(incarnation, sequence, ready, expected=1)
            return True
        is_own = own is not None and own.value == content.value
        value_hash = own.payload_hash if own is not None and is_own else sha256(content.value or b"").digest()
        filled = value_hash != entry.payload_hash
        self._advance_log_time(head, entry)
        requests: tuple[Request, ...] = ()
        if not filled:
            requests = own.requests if own is not None and is_own else self._requests(entry, content, log, ready)
        self.incarnations.count(incarnation, sequence, self._log_time_ms)
        self._take_effect(head, ready, content=(entry, content, value_hash), history_mark=int(not filled))
        self._drop_through(incarnation, sequence, ready, expected=1)
        batch = OrderedBatch(
            head.offset, incarnation, sequence, self._log_time_ms, filled, requests, head.source.append_time_ms, entry.sent_at_ms
        )
        ready.batches.append(batch)
        return True

    def _advance_log_time(self, head: Queued, entry: Entry) -> None:
        """Advance log time to an entry that takes effect: its append time, or just after the clock of its writer if earlier (R6)."""
        self._log_time_ms = max(self._log_time_ms, min(head.source.append_time_ms, entry.sent_at_ms + SENT_AT_AHEAD_MAX_MS))

    def _is_large(self, head: Queued) -> bool:
        """Returns True if the record at the head is an entry, and a payload record with its key is a large batch."""
        return isinstance(head.record, Entry) and self.payloads.is_large(head.record)

    def _requests(self, entry: Entry, content: Buffered, log: LogState, ready: Ready) -> tuple[Request, ...]:
        """Returns the batch's requests; none for a payload that does not decode or has other ids: only a broken worker writes one (R3)."""
        try:
            value = content.value or b""
            if self._prepared is not None and self._prepared[0] == value:
                requests = self._prepared[1]
            else:
                requests = decode_requests(value, log.notary_name)
            if tuple([request.transaction_id for request in requests]) != entry.transaction_ids:
                raise CorruptRecord("its transaction ids are not those of the entry")
        except CorruptRecord as problem:
            text = f"payload ({entry.incarnation}, {entry.sequence}) decides nothing: {problem}"
            ready.anomalies.append(Anomaly("bad-content", entry.partition, content.offset, text))
            return ()
        return requests

    def _apply_register(self, head: Queued, record: Register, ready: Ready) -> None:
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

    def _apply_end(self, head: Queued, ended: IncarnationState | None, incarnation: int, ready: Ready, *, retired: bool = False) -> None:
        """Apply a fence or retire record. `ended`: the incarnation that it ended; None for a record that does not count."""
        if ended is None:
            what, why = ("retire", "it is over") if retired else ("fence", "it is over, or has sent more")
            text = f"{what} of incarnation {incarnation} does not count: {why}"
            ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, text))
            return
        self._take_effect(head, ready)
        ready.fenced.append(Fenced(ended, None, retired))
        self._drop_through(incarnation, None, ready)

    def _apply_checkpoint(self, head: Queued, record: Checkpoint, ready: Ready) -> None:
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

    def _apply_activate(self, head: Queued, record: Activate, log: LogState, ready: Ready) -> bool:
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
        self._change_log_state(head, None if behind else log.with_format(version), why_not, ready)
        return True

    def _apply_settle(self, head: Queued, record: Settle, log: LogState, ready: Ready) -> bool:
        if self.ordering_only:
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
        self._change_log_state(
            head, settled, "a settle record does not count: it names no newer history of this log, or another key", ready
        )
        if settled is not None:
            self.suspicions.settle(record.view.seen)
        return True

    def _apply_salvage(self, head: Queued, record: SalvageRecord, log: LogState, ready: Ready) -> bool:
        """Apply a record whose condition depends on the reader's tree. So it is the only one of its step (R11)."""
        if self.ordering_only:
            ready.stop = Fatal(
                FatalCode.SALVAGED,
                f"ordering record {head.offset} belongs to a salvage: the payload topic also determines what takes effect there",
            )
            return False
        if ready.advanced:
            ready.more = True
            return False
        if self._has_view_of_ours(head, record, log, ready) is None:
            return False
        is_exact = record.key == log.key and record.view == self.history.view
        changed = log.with_salvage(record, self.history.seen, self._tree, self._items) if is_exact else None
        why_not = "no such step is due"
        if is_exact and isinstance(record, SalvageDone) and log.salvage is not None:
            why_not = f"this index does not have {record.tree_size} decisions with the root {record.root.hex()}, with the salvage's items"
        self._change_log_state(head, changed, f"a salvage record does not count: {why_not}", ready)
        if changed is not None:
            self._salvage(record, ready)
        ready.more = True
        return True

    def _apply_trim(self, head: Queued, record: Trim, log: LogState, ready: Ready) -> bool:
        """Apply a trim record, and pass on its root as the owner's vote (R9)."""
        is_ours: bool | None = True
        if not self.ordering_only:  # such a reader believes it, since it changes only `trimmed`: the payload topic may begin later now
            is_ours = self._has_view_of_ours(head, record, log, ready)
        if is_ours is None:
            return False
        trimmed = log.with_trim(record) if is_ours else None
        if trimmed is not None:
            voters, before = self._voters(), len(ready.batches)
            ready.roots_seen.append(
                RootSeen(OWNER_NAME, OWNER_INCARNATION, record.position, record.root, self._log_time_ms, voters, before, head.offset)
            )
        self._change_log_state(head, trimmed, "a trim record does not count: its key, view or position is not this log's", ready)
        return True

    def _has_view_of_ours(self, head: Queued, record: SalvageRecord | Trim, log: LogState, ready: Ready) -> bool | None:
        """Returns whether an owner's record names the key in force and has a view of our history; None if its view must be examined."""
        if record.key != log.key:
            return False
        comparison = self.history.compare(record.view)
        if comparison is Comparison.FOREIGN and self._must_examine(head, record.view, OWNER_NAME, ready):
            return None
        return comparison is Comparison.OWN

    def _salvage(self, record: SalvageRecord, ready: Ready) -> None:
        """Carry out a step of a salvage after its record took effect."""
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

    def _change_log_state(self, head: Queued, changed: LogState | None, why_not: str, ready: Ready) -> None:
        if changed is None:
            ready.anomalies.append(Anomaly("skipped", ORDERING, head.offset, why_not))
            return
        self.log_state = ready.log_state = changed
        self._take_effect(head, ready)

    def _take_effect(
        self,
        head: Queued,
        ready: Ready,
        *,
        content: tuple[Entry, Buffered, bytes] | None = None,
        history_mark: int = 0,
        log_id: bytes | None = None,
    ) -> None:
        """Append the record at the head to the history, as it takes effect. `history_mark`: see `joiner.history`. `log_id`: for genesis."""
        source = head.source
        value_hash = sha256(source.value or b"").digest()
        history = log_id or extended(self.history.view.history, source.append_time_ms, value_hash, mark=history_mark)
        own_fingerprint = fingerprint(source, value_hash)
        skipped_first, skipped_hash = self._since_effect
        self._since_effect = NONE_SKIPPED, b""
        effect = Effect(
            self.history.seen + 1,
            history,
            source.offset,
            source.append_time_ms,
            own_fingerprint,
            skipped_first=skipped_first,
            skipped_hash=skipped_hash,
        )
        self._mark(ORDERING, Mark(source.offset, own_fingerprint), ready)
        if content is not None:
            entry, found, found_hash = content
            key = batch_key(entry.incarnation, entry.sequence)
            record = Record(entry.partition, found.offset, found.append_time_ms, key, None)
            content_fingerprint = fingerprint(record, found_hash)
            effect = msgspec.structs.replace(
                effect, partition=entry.partition, content_offset=found.offset, content_fingerprint=content_fingerprint
            )
            # Payloads are not joined in the order of their offsets. The mark is the content with the highest offset.
            before = self.marks.get(entry.partition)
            if before is None or before.offset < found.offset:
                self._mark(entry.partition, Mark(found.offset, content_fingerprint), ready)
        assert (effect.partition == NO_CONTENT) == (content is None)
        self.history.append(effect)
        ready.effects.append(effect)

    def _mark(self, partition: int, mark: Mark, ready: Ready) -> None:
        self.marks[partition] = ready.marks[partition] = mark

    def _drop_through(self, incarnation: int, sequence: int | None, ready: Ready, expected: int = 0) -> None:
        dropped = self.payloads.buffer.drop_through(incarnation, sequence) - expected
        if dropped > 0:
            text = f"{dropped} payloads of incarnation {incarnation} are dropped: their entries will never count"
            ready.anomalies.append(Anomaly("orphan-dropped", ORDERING, self._offset_head, text))

    # ---- proposing ----

    def _propose_fills(self, ready: Ready, now_ms: int) -> None:
        if self._hole is not None:
            ready.fills.extend(self._due.fills(self._queue, now_ms, self._fill_for))

    def _fill_for(self, queued: Queued) -> FillWanted | None:
        entry, log = queued.record, self.log_state
        if log is None or not isinstance(entry, Entry) or entry.partition >= log.payload_partitions:
            return None
        key = (entry.incarnation, entry.sequence)
        if key in self._due.fills_proposed_ms or not self.incarnations.counts(*key) or not self._is_signed(queued, entry, log):
            return None
        if queued.has_content and queued is not self._queue.head:
            return None  # a scan must not hash all payloads that wait
        fill = FillWanted(entry.partition, *key, entry.payload_hash)
        if self.is_hole(fill):
            return fill
        queued.has_content = True
        return None

    def _propose_fences(self, ready: Ready, now_ms: int) -> None:
        """Propose fences (R5) if payloads of silent incarnations cost something.

        Anyone who may write to the topic can forge a payload of an idle worker. So nothing is proposed while payloads need little memory,
        and a restart need not read much again because of them.
        """
        payloads, read_next = self.payloads, self._read_next
        costs_memory = payloads.buffer.size_bytes >= min(self.limits.fence_bytes_min, self.limits.buffer_bytes_max // 4)
        if (
            self.log_state is None
            or self.log_state.sealed
            or not (costs_memory or any(payloads.delays_restart(each, read_next[each]) for each in read_next if each != ORDERING))
        ):
            self._due.silent.clear()
            return
        ready.fences.extend(self._due.fences(self.incarnations, payloads, self._log_time_ms, now_ms))

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
            needed = self.payloads.offset_needed(partition)
            # After `forget_unapplied` the read position may be before the mark: records in between are not in memory, and may be needed.
            wanted = [self._read_next[partition], 0 if mark is None else mark.offset + 1]
            if needed is not None:
                wanted.append(needed)
            offsets[partition] = min(wanted)
        return offsets

    def _paused(self) -> frozenset[int]:
        """Returns the topic-partitions to pause now, so that memory stays bounded; never the partition of the hole at the head."""
        limits = self.limits
        size_bytes = self.payloads.buffer.size_bytes
        self._buffer_full = size_bytes > (limits.buffer_bytes_max * 3 // 4 if self._buffer_full else limits.buffer_bytes_max)
        self._queue_full = self._queue.ids > (limits.queue_ids_max * 3 // 4 if self._queue_full else limits.queue_ids_max)
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


def _sent(entry: Entry, source: Record, own: Own) -> OwnBatch | None:
    """Returns the batch of this worker if the log has exactly the entry that it sent. A broken worker may write another of that name."""
    sent = own.get((entry.incarnation, entry.sequence))
    return sent if sent is not None and sent.entry_value == source.value else None


__all__ = ["VOTERS_MS", "Joiner", "View"]
