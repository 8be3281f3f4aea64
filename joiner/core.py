"""The joiner's core: applies ordering records at the head and joins each entry with its content (R2 to R5, R10). Pure.

`step` takes records as they were read: any interleaving of the topic-partitions, with the records of each in their order. It also takes the
time of a monotonic clock. It returns `Ready`: the batches joined, the state to persist with them, and proposals for records to append. All
steps together emit batches that are a function of the log: neither the clock nor the division of records into steps changes them.

The head is the first ordering record that is not applied yet. A record is applied completely or not at all, so that the persisted state
never has half of one; `applied` has the rule of each kind. The clock decides only when to *propose* a fill or a fence. The log decides
whether it takes effect.
"""

from collections.abc import Generator, Mapping, Sequence

from joiner.applied import Applied, sent_batch
from joiner.control import LogState, SalvageTree
from joiner.dropped import Dropped
from joiner.due import DueProposals
from joiner.evidence import Evidence
from joiner.history import NONE_SKIPPED, Effect, Mark
from joiner.payloads import is_content
from joiner.queued import OrderingQueue, Queued
from joiner.ready import Anomaly, FillWanted, JoinerState, Kept, Own, Ready
from joiner.settings import JoinerLimits
from joiner.snapshot import JoinerSnapshot
from ordering.errors import CorruptRecord
from ordering.log import ORDERING, Record
from ordering.records import FORMAT_VERSION, Entry, decode_batch_key
from payload import Request, decode_requests_in_pieces

NO_OWN: Own = {}


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
        self.limits = limits or JoinerLimits()
        self.ordering_only = ordering_only
        self.applied = Applied(state, self.limits, worker_name, format_version, tree=tree, ordering_only=ordering_only)
        self.incarnations, self.history, self.suspicions = self.applied.incarnations, self.applied.history, self.applied.suspicions
        self.payloads = self.applied.payloads
        self._due = DueProposals(self.limits)
        self._offset_head = state.offsets_next.get(ORDERING, 0)
        # The next offset of each topic-partition that has not been passed to `step` yet.
        self._read_next = dict(state.offsets_next)
        self._queue = OrderingQueue()
        # The partition and offset of the first record with the hole's key that was skipped because it is not the hole's content.
        self._skipped: tuple[int, int] | None = None
        self._buffer_full = False
        self._queue_full = False

    @property
    def log_state(self) -> LogState | None:
        """The log as its control records describe it; None before genesis."""
        return self.applied.log_state

    @property
    def marks(self) -> dict[int, Mark]:
        """Per topic-partition, the record with the highest offset that took effect."""
        return self.applied.marks

    @property
    def hole(self) -> Entry | None:
        """The entry at the head that waits for its content; None when there is none."""
        return self.applied.hole

    @property
    def hole_offset(self) -> int | None:
        """The ordering offset of the entry at the head that waits for its content; None when there is none."""
        return None if self.applied.hole is None or self._queue.head is None else self._queue.head.offset

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
        return self._queue.last_run(self.history.last_run, self.applied.since_effect)

    def is_buffered(self, partition: int) -> bool:
        """Returns True if payload records of that partition wait for their entries."""
        return self.payloads.buffer.holds(partition)

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
        return self.applied.log_time_ms

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
        self.applied.prepared = None
        self.applied.hole, self._skipped = None, None
        self.applied.since_effect = NONE_SKIPPED, b""
        return kept

    def snapshot(self) -> JoinerSnapshot:
        """Returns the complete state, between two steps."""
        assert not self.incarnations.changed
        agreed, suspicions, examined = self.suspicions.snapshot()
        return JoinerSnapshot(
            log_state=self.log_state,
            log_time_ms=self.applied.log_time_ms,
            offset_head=self._offset_head,
            read_next=tuple(sorted(self._read_next.items())),
            incarnations=self.incarnations.snapshot(),
            effects=self.history.snapshot(),
            items=tuple(self.applied.items),
            since_effect=self.applied.since_effect,
            marks=tuple(sorted(self.marks.items())),
            agreed=agreed,
            suspicions=suspicions,
            live=self.suspicions.live,
            examined=examined,
            queue=tuple([queued.snapshot() for queued in self._queue]),
            has_hole=self.applied.hole is not None,
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
        self.applied.restore(snapshot)
        self._offset_head = snapshot.offset_head
        self._read_next = dict(snapshot.read_next)
        self._queue.restore([Queued.restored(queued) for queued in snapshot.queue])
        head = self._queue.head.record if snapshot.has_hole and self._queue.head is not None else None
        assert head is None or isinstance(head, Entry)
        self.applied.hole, self._skipped = head, snapshot.skipped
        due, payloads = self._due, self.payloads
        due.fills_due_ms, due.fills_proposed_ms = snapshot.fills_due_ms, dict(snapshot.fills_proposed_ms)
        due.silent = dict(snapshot.silent)
        payloads.buffer.restore(snapshot.buffer)
        payloads.dropped = {partition: Dropped.restored(records) for partition, records in snapshot.dropped}
        payloads.awaited, payloads.is_rereading = snapshot.awaited, snapshot.is_rereading
        self._buffer_full, self._queue_full = snapshot.buffer_full, snapshot.queue_full

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
        if self.applied.hole is not None and self.applied.hole.partition in dropped:
            self.applied.hole = None  # its content may be among them: `_apply` finds out, before a later content takes its place

    def to_verify(self, records: Sequence[Record], own: Own = NO_OWN) -> list[bytes]:
        """Returns the values whose signatures `step` will verify: of all ordering records except those that this worker sent itself."""
        sent = {batch.entry_value for batch in own.values()}
        return [record.value for record in records if record.partition == ORDERING and record.value and record.value not in sent]

    def prepare(self, own: Own = NO_OWN) -> Generator[None, None, tuple[Request, ...]]:
        """Decode the large batch at the head in pieces. Returns its requests; none when there is no such batch. `own`: as for `step`.

        This only saves time: otherwise the next step would decode the same bytes with the same result.
        """
        self.applied.prepared = None
        log, head = self.log_state, self._queue.head
        if log is None or head is None or not self._is_large(head):
            return ()
        entry = head.record
        assert isinstance(entry, Entry)
        if not self.incarnations.counts(entry.incarnation, entry.sequence) or not self.applied.is_signed(head, entry, log):
            return ()
        sent = sent_batch(entry, head.source, own)
        content = self.payloads.content(entry.partition, entry.incarnation, entry.sequence, entry.payload_hash, log, sent)
        if content is None or content.value is None:
            return ()
        if sent is not None and sent.value == content.value:
            return sent.requests
        try:
            requests = yield from decode_requests_in_pieces(content.value, log.notary_name)
        except CorruptRecord:
            return ()
        self.applied.prepared = content.value, requests
        return requests

    def step(self, records: Sequence[Record], now_ms: int, signed_by: Mapping[bytes, bytes] | None = None, own: Own = NO_OWN) -> Ready:
        """Take records and the time; return the effects.

        `signed_by` maps an ordering record's value to the key under which its signature was verified. Any other signature is verified when
        its record is applied. `own` maps names to batches that this worker sent and that are not decided: they are not verified or decoded
        again. Both arguments may be left out, since they only save time. Neither is kept after the step.
        """
        ready = Ready({}, self.applied.log_time_ms)
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
        self.applied.prepared = None
        self._propose_fills(ready, now_ms)
        self._propose_fences(ready, now_ms)
        ready.incarnations = list(self.incarnations.changed.values())
        self.incarnations.changed.clear()
        ready.log_time_ms = self.applied.log_time_ms
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
        queued = Queued(record, now_ms, self.applied.decode(record.value), signed_by.get(record.value or b"", b""))
        if isinstance(queued.record, Entry) and (sent := sent_batch(queued.record, record, own)) is not None:
            queued.signed_by = sent.signed_by
        self._queue.append(queued)

    def _take_payload(self, record: Record, ready: Ready) -> None:
        try:
            incarnation, sequence = decode_batch_key(record.key)
        except CorruptRecord as problem:
            ready.anomalies.append(Anomaly("malformed", record.partition, record.offset, str(problem)))
            return
        # Keep records of an unknown incarnation: its register record may come later in the ordering topic (R5).
        if record.value is None or self.incarnations.is_past(incarnation, sequence):
            return
        hole = self.applied.hole
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
        hole_before, self.applied.hole = self.applied.hole, None
        states = requests = 0
        while (head := self._queue.head) is not None:
            if ready.more or requests >= self.limits.step_requests_max or states >= self.limits.step_states_max:
                ready.more = True
                self.applied.hole = None
                break
            if not (without_records and not ready.advanced) and self._is_large(head):
                ready.more = True
                self.applied.hole = hole_before if hole_before is head.record else None
                break
            batches_before = len(ready.batches)
            if not self.applied.apply(head, ready, own):
                break
            for batch in ready.batches[batches_before:]:
                requests += len(batch.requests)
                states += sum([len(request.inputs) + len(request.references) for request in batch.requests])
            requests += len(ready.batches) == batches_before  # any other record counts as one request: a flood must not block the loop
            self._queue.pop_head()
            self._offset_head = head.offset + 1
            ready.advanced = True
        if self.applied.hole is not hole_before:
            self._skipped = None
            self._due.head_changed()

    def _is_large(self, head: Queued) -> bool:
        """Returns True if the record at the head is an entry, and a payload record with its key is a large batch."""
        return isinstance(head.record, Entry) and self.payloads.is_large(head.record)

    # ---- proposing ----

    def _propose_fills(self, ready: Ready, now_ms: int) -> None:
        if self.applied.hole is not None:
            ready.fills.extend(self._due.fills(self._queue, now_ms, self._fill_for))

    def _fill_for(self, queued: Queued) -> FillWanted | None:
        entry, log = queued.record, self.log_state
        if log is None or not isinstance(entry, Entry) or entry.partition >= log.payload_partitions:
            return None
        key = (entry.incarnation, entry.sequence)
        if key in self._due.fills_proposed_ms or not self.incarnations.counts(*key) or not self.applied.is_signed(queued, entry, log):
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
        payloads = self.payloads
        costs_memory = payloads.buffer.size_bytes >= min(self.limits.fence_bytes_min, self.limits.buffer_bytes_max // 4)
        if self.log_state is None or self.log_state.sealed or not (costs_memory or payloads.delay_restart(self._read_next)):
            self._due.silent.clear()
            return
        ready.fences.extend(self._due.fences(self.incarnations, payloads, self.applied.log_time_ms, now_ms))

    # ---- offsets to resume at ----

    def _offsets_next(self) -> dict[int, int]:
        """Returns the offsets that a restart must resume at (R8, R10).

        In the ordering topic, it is the offset after the last record that took effect: if the log loses its end, other records may replace
        those skipped after it. In a payload partition, it is the offset after the mark, or of an earlier payload that an entry may still
        name.
        """
        last = self.history.last
        marks, needed = self.marks, self.payloads.offsets_needed()
        offsets = {}
        for partition, offset_next in self._read_next.items():
            mark = marks.get(partition)
            # After `forget_unapplied` the read position may be before the mark: records in between are not in memory, and may be needed.
            offset = min(offset_next, 0 if mark is None else mark.offset + 1)
            offsets[partition] = min(offset, needed.get(partition, offset))
        return offsets | {ORDERING: 0 if last is None else last.offset + 1}

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
            if self.applied.hole is not None:
                paused.discard(self.applied.hole.partition)
        if self._queue_full:
            paused.add(ORDERING)
        return frozenset(paused)
