"""The log as applied so far, and the rules of each kind of record: when it takes effect, and its effects (R3, R5, R6, R10, R11). Pure.

To *apply* a record is to decide whether it counts, and to count or skip it:

- A record is checked in this order: its encoding, its signature, its view, the rule of its kind. A record that fails is skipped and
  reported.
- Only for checkpoint, settle, salvage and trim records does the view decide whether they count. A *foreign* view, one that differs from
  our own history, stops the core before its record. Then the driver compares our history with the log, and calls `examined`.
- A *hole* is an entry that counts and whose content has not been read. Nothing after it is applied.
"""

from hashlib import sha256

import msgspec

from joiner.buffer import Buffered
from joiner.control import LogState, SalvageTree
from joiner.evidence import Evidence, Suspicions
from joiner.history import NO_CONTENT, NONE_SKIPPED, Comparison, Effect, History, Mark, extended, fingerprint
from joiner.incarnations import Incarnations, IncarnationState
from joiner.payloads import Payloads, is_seal_at_head
from joiner.queued import Queued, skipping
from joiner.ready import (
    OWNER_INCARNATION,
    Anomaly,
    Fenced,
    JoinerState,
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
)
from ordering.salvage import Decided, Item
from ordering.signatures import decode_genesis, log_id_of, record_is_signed
from payload import Request, decode_requests

VOTERS_MS = 86_400_000
"""The log time for which a worker stays a voter after its last register record or counted entry (R9).

All workers use the same value.
"""

SENT_AT_AHEAD_MAX_MS = 60_000
"""The most by which an append time may push log time ahead of the sender's clock (R6, docs/formats.md)."""

OWNER_NAME = "the owner"
"""The writer of a salvage or trim record, in suspicions and votes."""
SALVAGE_OPEN = "the owner restores lost decisions, and that salvage has not ended yet"

_NOT_COUNTED = "its incarnation is not registered, is over, or has reached this sequence"
_WORKER_RECORDS = (Entry, Register, Fence, Checkpoint)


class Applied:
    """All that follows from the records applied so far. The payloads read ahead of them are in `payloads`."""

    def __init__(
        self,
        state: JoinerState,
        limits: JoinerLimits,
        worker_name: str,
        format_version: int,
        *,
        tree: SalvageTree | None,
        ordering_only: bool,
    ) -> None:
        """The arguments are those of `Joiner`."""
        self.incarnations = Incarnations(state.incarnations)
        self.history = History(state.effects)
        self.suspicions = Suspicions(state.agreed, state.suspicions)
        self.marks: dict[int, Mark] = dict(state.marks)
        self.log_state: LogState | None = state.log_state
        self.log_time_ms = state.log_time_ms
        self.items: list[Item] = list(state.items)
        """The items of the open salvage."""
        self.since_effect = NONE_SKIPPED, b""
        """The ordering records skipped since the last one that took effect: the first one's offset, and the running hash over them."""
        self.payloads = Payloads(limits, self.incarnations, self.history)
        self.hole: Entry | None = None
        """The entry at the head that waits for its content; None when there is none."""
        self.prepared: tuple[bytes, tuple[Request, ...]] | None = None
        """The content of the large batch at the head, and its requests, from `Joiner.prepare` until the next step."""
        self.ordering_only = ordering_only
        self._tree = tree
        self._worker_name = worker_name
        self._format_version = format_version

    def restore(self, snapshot: JoinerSnapshot) -> None:
        """Replace what follows from the records by that of a snapshot."""
        self.log_state, self.log_time_ms = snapshot.log_state, snapshot.log_time_ms
        self.incarnations.restore(snapshot.incarnations)
        self.history.restore(snapshot.effects)
        self.items = list(snapshot.items)
        self.since_effect = snapshot.since_effect
        self.marks = dict(snapshot.marks)
        self.suspicions.restore(snapshot.agreed, snapshot.suspicions, snapshot.examined, live=snapshot.live)
        self.prepared = None  # only a cache

    def decode(self, value: bytes | None) -> OrderingRecord | CorruptRecord:
        """Returns an ordering record as the active format versions read it."""
        try:
            return decode(value, ACTIVE_AT_START if self.log_state is None else self.log_state.formats)
        except CorruptRecord as problem:
            return CorruptRecord(str(problem))  # without the frames that the caught one references

    def apply(self, head: Queued, ready: Ready, own: Own) -> bool:
        """Apply the record at the head. Returns False if it stays there: for a hole, a view to examine, or a reason to stop."""
        seen = self.history.seen
        if not self._apply(head, ready, own):
            return False
        if self.history.seen == seen:
            self.since_effect = skipping(*self.since_effect, head.source)
        return True

    def _apply(self, head: Queued, ready: Ready, own: Own) -> bool:
        if self.log_state is None:
            return self._apply_genesis(head, ready)
        if isinstance(head.record, CorruptRecord):
            head.record = self.decode(head.source.value)  # a format version may have become active since it was read
        record = head.record
        if isinstance(record, CorruptRecord):
            _report("malformed", head, str(record), ready)
            return True
        if not self.is_signed(head, record, self.log_state):
            text = f"a record of kind {type(record).__name__.lower()} has no signature of the key in force"
            _report("unsigned", head, text, ready)
            return True
        if isinstance(record, (SalvageBegin, SalvageItems, SalvageDone)):
            return self._apply_salvage(head, record, self.log_state, ready)
        if isinstance(record, Trim):
            return self._apply_trim(head, record, self.log_state, ready)
        if isinstance(record, Settle):
            return self._apply_settle(head, record, self.log_state, ready)
        if self.log_state.sealed and isinstance(record, _WORKER_RECORDS):
            _report("skipped", head, f"no record of a worker counts: {SALVAGE_OPEN}", ready)
            return True
        if isinstance(record, _WORKER_RECORDS) and not head.compared:
            head.own_view = self._compare(head, record, ready)
            head.compared = ready.evidence is None
        if ready.evidence is not None:
            return False
        match record:
            case Entry():
                return self._apply_entry(head, record, self.log_state, ready, sent_batch(record, head.source, own))
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
                _report("skipped", head, "a genesis record counts only at the start of the topic", ready)
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

    def is_signed(self, head: Queued, record: OrderingRecord, log: LogState) -> bool:
        """Returns True if the record has the signature that its kind needs: of the notary's key in force, or of the owner."""
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
        _report("foreign-view", head, text, ready)
        return False

    def _writer(self, record: Entry | Register | Fence | Checkpoint) -> str:
        if isinstance(record, Register):
            return record.name
        state = self.incarnations.get(record.writer if isinstance(record, Fence) else record.incarnation)
        return "" if state is None else state.name

    def _apply_entry(self, head: Queued, entry: Entry, log: LogState, ready: Ready, own: OwnBatch | None) -> bool:
        incarnation, sequence = entry.incarnation, entry.sequence
        if not self.incarnations.counts(incarnation, sequence):
            _report("skipped", head, f"entry ({incarnation}, {sequence}) does not count: {_NOT_COUNTED}", ready)
            return True
        if entry.partition >= log.payload_partitions:
            text = f"entry ({incarnation}, {sequence}) names payload partition {entry.partition}, the log has {log.payload_partitions}"
            _report("skipped", head, text, ready)
            return True
        if self.ordering_only:
            self._advance_log_time(head, entry)
            self.incarnations.count(incarnation, sequence, self.log_time_ms)
            self._take_effect(head, ready)
            return True
        content = self.payloads.content(entry.partition, incarnation, sequence, entry.payload_hash, log, own)
        if self.payloads.may_be_dropped(entry, content):
            self.payloads.await_content(entry)
            ready.read_again = True
            return False
        if content is None:
            self.payloads.buffer.drop_values(entry.partition, incarnation, sequence)
            self.hole = entry
            return False
        if is_seal_at_head(content.value or b"", entry.partition, batch_key(incarnation, sequence), entry.payload_hash, log):
            self.log_state = ready.log_state = msgspec.structs.replace(log, sealed=True, salvage=None)
            self.incarnations.use_up(incarnation, sequence)
            self._take_effect(head, ready, content=(entry, content, sha256(content.value or b"").digest()), history_mark=2)
            self._drop_through(head, incarnation, sequence, ready, expected=1)
            return True
        is_own = own is not None and own.value == content.value
        value_hash = own.payload_hash if own is not None and is_own else sha256(content.value or b"").digest()
        filled = value_hash != entry.payload_hash
        self._advance_log_time(head, entry)
        requests: tuple[Request, ...] = ()
        if not filled:
            requests = own.requests if own is not None and is_own else self._requests(entry, content, log, ready)
        self.incarnations.count(incarnation, sequence, self.log_time_ms)
        self._take_effect(head, ready, content=(entry, content, value_hash), history_mark=int(not filled))
        self._drop_through(head, incarnation, sequence, ready, expected=1)
        batch = OrderedBatch(
            head.offset, incarnation, sequence, self.log_time_ms, filled, requests, head.source.append_time_ms, entry.sent_at_ms
        )
        ready.batches.append(batch)
        return True

    def _advance_log_time(self, head: Queued, entry: Entry) -> None:
        """Advance log time to an entry that takes effect: its append time, or just after the clock of its writer if earlier (R6)."""
        self.log_time_ms = max(self.log_time_ms, min(head.source.append_time_ms, entry.sent_at_ms + SENT_AT_AHEAD_MAX_MS))

    def _requests(self, entry: Entry, content: Buffered, log: LogState, ready: Ready) -> tuple[Request, ...]:
        """Returns the batch's requests; none for a payload that does not decode or has other ids: only a broken worker writes one (R3)."""
        try:
            value = content.value or b""
            if self.prepared is not None and self.prepared[0] == value:
                requests = self.prepared[1]
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
        at_ms = max(self.log_time_ms, head.source.append_time_ms)
        registered = self.incarnations.register(record.nonce, record.name, at_ms, record.format_version)
        if registered is None:
            _report("skipped", head, "a register record came twice", ready)
            return
        state, fenced = registered
        self._take_effect(head, ready)
        ready.registered.append(state)
        if fenced is not None:
            ready.fenced.append(Fenced(fenced, state))
            self._drop_through(head, fenced.incarnation, None, ready)

    def _apply_end(self, head: Queued, ended: IncarnationState | None, incarnation: int, ready: Ready, *, retired: bool = False) -> None:
        """Apply a fence or retire record. `ended`: the incarnation that it ended; None for a record that does not count."""
        if ended is None:
            what, why = ("retire", "it is over") if retired else ("fence", "it is over, or has sent more")
            text = f"{what} of incarnation {incarnation} does not count: {why}"
            _report("skipped", head, text, ready)
            return
        self._take_effect(head, ready)
        ready.fenced.append(Fenced(ended, None, retired))
        self._drop_through(head, incarnation, None, ready)

    def _apply_checkpoint(self, head: Queued, record: Checkpoint, ready: Ready) -> None:
        writer = self.incarnations.get(record.incarnation)
        if writer is None or writer.fenced or not head.own_view:
            why = "its view is not this worker's history" if writer is not None and not writer.fenced else "that incarnation is over"
            text = f"a checkpoint of incarnation {record.incarnation} is not compared: {why}"
            _report("skipped", head, text, ready)
            return
        voters = self._voters()
        before = len(ready.batches)
        ready.roots_seen.append(
            RootSeen(writer.name, writer.incarnation, record.tree_size, record.root, self.log_time_ms, voters, before, head.offset)
        )

    def _voters(self) -> frozenset[str]:
        return self.incarnations.names_since(self.log_time_ms - VOTERS_MS)

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
        changed = log.with_salvage(record, self.history.seen, self._tree, self.items) if is_exact else None
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
                RootSeen(OWNER_NAME, OWNER_INCARNATION, record.position, record.root, self.log_time_ms, voters, before, head.offset)
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
                assert not self.items  # the key record before it has dropped the items of another attempt
            case SalvageItems():
                ready.items = record
                self.items += record.items
            case SalvageDone():
                ready.salvaged = tuple(self.items)
                self.log_time_ms = max([self.log_time_ms, *[item.log_time_ms for item in self.items if isinstance(item, Decided)]])
                self._drop_items(ready)
                self.suspicions.settle(self.history.seen)

    def _drop_items(self, ready: Ready) -> None:
        self.items.clear()
        ready.items_dropped = True

    def _change_log_state(self, head: Queued, changed: LogState | None, why_not: str, ready: Ready) -> None:
        if changed is None:
            _report("skipped", head, why_not, ready)
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
        skipped_first, skipped_hash = self.since_effect
        self.since_effect = NONE_SKIPPED, b""
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

    def _drop_through(self, head: Queued, incarnation: int, sequence: int | None, ready: Ready, expected: int = 0) -> None:
        dropped = self.payloads.buffer.drop_through(incarnation, sequence) - expected
        if dropped > 0:
            text = f"{dropped} payloads of incarnation {incarnation} are dropped: their entries will never count"
            _report("orphan-dropped", head, text, ready)


def _report(kind: str, head: Queued, text: str, ready: Ready) -> None:
    ready.anomalies.append(Anomaly(kind, ORDERING, head.offset, text))


def sent_batch(entry: Entry, source: Record, own: Own) -> OwnBatch | None:
    """Returns the batch of this worker if the log has exactly the entry that it sent. A broken worker may write another of that name."""
    sent = own.get((entry.incarnation, entry.sequence))
    return sent if sent is not None and sent.entry_value == source.value else None
