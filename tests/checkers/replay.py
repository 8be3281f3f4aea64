"""Replays a complete log by brute force. Imports nothing of the notary: it follows the contract's tables alone.

All records are in memory, so there is no buffer, no step and no waiting. The ordering records are applied one by one: layout, signature by
the key in force (R10), view, and the condition of their kind (R2, R5). Each content is looked up in all of its partition (R3), and decided
on plain dictionaries (R6, R7).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Protocol

from tests.checkers.precedence import expected_reason, hashed
from tests.checkers.records import (
    FORMAT_VERSION,
    LEAF,
    NAME_THE_KEY,
    NO_LOG_ID,
    OUTCOMES,
    SALVAGE_FORMAT,
    WORKERS,
    Activate,
    Begin,
    Done,
    Entry,
    Fence,
    Genesis,
    Item,
    Items,
    Key,
    Ordering,
    Partitions,
    Register,
    Retire,
    Root,
    Settle,
    Trim,
    View,
    batch_key,
    is_endorsed,
    is_fill,
    is_seal,
    is_signed,
    key_of,
    next_history,
    ordering_record,
    view_of,
)
from tests.checkers.requests import requests_of
from tests.checkers.tree import KINDS, LOST_PREFIX, Tree, leaf_of

ORDERING = -1
SENT_AT_AHEAD_MAX_MS = 60_000
VOTERS_MS = 86_400_000


class LogRecord(Protocol):
    """A record as a reader of the log returns it (`ordering.log.Record`)."""

    @property
    def offset(self) -> int: ...
    @property
    def append_time_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


RecordsByPartition = Mapping[int, Sequence[LogRecord]]
"""Records by topic-partition: -1 is the ordering topic, 0, 1, 2, ... are the payload partitions. A missing one is empty."""


VIEWS_KEPT = 1 << 16
"""A view that is this many records old proves nothing (docs/rules.md)."""


class Seen(StrEnum):
    """The result of comparing a record's view with the history of this replay at the record's place."""

    OWN = "own"
    FOREIGN = "foreign"
    """The view covers more records than had taken effect there, or has another hash."""
    NOT_COMPARABLE = "not-comparable"
    """The view is `VIEWS_KEPT` records old, or covers no record at all: H(0) does not exist."""


class Why(StrEnum):
    """The first reason that applies for which an ordering record takes no effect."""

    MALFORMED = "malformed"
    BAD_SIGNATURE = "bad-signature"
    OTHER_VIEW = "other-view"  # a settle record, or a checkpoint, with another history than this replay's
    CONDITION = "condition"  # that of its kind does not hold: a repeated record, an old sequence, a fenced incarnation, ...
    SALVAGE = "salvage"  # a worker's record between a seal or the begin of a salvage and its end: it is not even compared
    OTHER_KEY = "other-key"  # a salvage or trim record that names another key than the one in force: it is not even compared
    CHECKPOINT = "checkpoint"  # these never take effect; this one is compared


@dataclass(frozen=True, slots=True)
class Applied:
    """One ordering record, and its effect."""

    offset: int
    record: Ordering | None
    why_not: Why | None
    """None if it took effect."""
    view: Seen | None
    """None for records that have no view, and for malformed or wrongly signed ones."""
    seen_after: int
    history_after: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """An entry that took effect. If it was filled, or its payload does not decode, it decided nothing."""

    offset: int
    incarnation: int
    sequence: int
    log_time: int
    filled: bool
    """True if it decided nothing. `signed_fill` says whether a fill is the reason."""
    ids: tuple[str, ...]
    positions: tuple[int, ...]  # of the decision of each id, made here or before
    partition: int
    content_offset: int
    """The offset of its payload or fill in that partition."""
    signed_fill: bool


@dataclass(slots=True)
class Incarnation:
    """One incarnation of one worker."""

    incarnation: int
    name: str
    nonce: bytes = b""
    sequence_last: int = 0
    fenced: bool = False
    """True once it has ended: fenced by a peer or by its successor, or retired."""
    fenced_by: int = 0  # the incarnation of its successor's register record; 0 when a peer fenced it, or the owner retired it
    active_at: int = 0  # the log time at which it registered or last had an entry counted
    retired: bool = False
    format_version: int = 1
    """The highest format version that it reads, according to its register record."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A correctly signed checkpoint record.

    It counts if its incarnation has not ended by then, and its view is this replay's history, less than `VIEWS_KEPT` records old.
    """

    offset: int
    incarnation: int
    size: int
    root: bytes
    counted: bool


@dataclass
class Replayed:
    """The result of a replay."""

    decisions: list[dict[str, Any]] = field(default_factory=list)
    """The decisions by position, as the contract's JSON objects. A salvage leaves positions without one: these are left out."""
    consumed: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The consumed states by their text: (id of the transaction that consumed it, position of that transaction)."""
    batches: list[Batch] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    incarnations: list[Incarnation] = field(default_factory=list)
    """The incarnations, 1 first."""
    log_time: int = 0
    offset_head: int = 0
    """The offset after the last record that could be applied; next is a hole, an activation of an unknown version, or nothing."""
    ended_by: str = "end"
    """end | hole | activate | no-genesis"""
    leaves: list[bytes] = field(default_factory=list)
    """The leaves by position; empty where a salvage restored only the hash."""
    leaf_hashes: dict[int, bytes] = field(default_factory=dict)
    """The hashes of the leaves that nobody knows, by position."""
    reserved: dict[str, str] = field(default_factory=dict)
    """The states that a salvaged rejection shows as consumed, nobody knows by whom: the hash of the id that alone may consume it."""
    salvaged: int = 0
    """The number of positions that salvages restored."""
    sealed: bool = False
    """True from a sealed entry or the begin of a salvage on, until its end."""
    salvage: tuple[int, list[Item]] | None = None
    """The position and the items so far of an open salvage."""
    trimmed: int = 0
    """The position of the last trim record that took effect."""
    tree: Tree = field(init=False)

    genesis: Genesis | None = None
    log_id: bytes = NO_LOG_ID
    keys: list[bytes] = field(default_factory=list)
    """All public keys of the notary that have been in force; the last one is in force."""
    partitions: int = 0
    """The number of payload partitions declared so far."""
    versions: list[int] = field(default_factory=lambda: [1])
    """The format versions that are active."""
    settled: int = 0
    """The `seen` of the last settle record that took effect."""
    histories: list[bytes] = field(default_factory=lambda: [b""])
    """H(n) at index n; there is no H(0)."""
    records: list[Applied] = field(default_factory=list)
    """All ordering records, applied or skipped, in order."""

    def __post_init__(self) -> None:
        self.tree = Tree(self.leaves, self.leaf_hashes)

    @property
    def name(self) -> str:
        """The notary's name, empty before genesis."""
        return "" if self.genesis is None else self.genesis.name

    @property
    def size(self) -> int:
        """The number of positions that are taken."""
        return len(self.leaves)

    @property
    def seen(self) -> int:
        """The number of records that have taken effect."""
        return len(self.histories) - 1

    @property
    def history(self) -> bytes:
        """H(seen), empty before genesis."""
        return self.histories[-1]

    def root(self, size: int) -> bytes:
        """Returns the root of the tree of the first `size` decisions."""
        return self.tree.root(size)

    def passing(self) -> list[Batch]:
        """Returns the batches that count although an earlier one of their incarnation does not. No Kafka broker leaves such a log."""
        last: dict[int, int] = {}
        found = []
        for batch in self.batches:
            if batch.sequence > last.get(batch.incarnation, 0) + 1:
                found.append(batch)
            last[batch.incarnation] = batch.sequence
        return found

    def unfenced(self, incarnation: int) -> Incarnation | None:
        """Returns the incarnation if it has registered and has not ended, else None."""
        state = self.incarnations[incarnation - 1] if 1 <= incarnation <= len(self.incarnations) else None
        return None if state is None or state.fenced else state

    def compare(self, view: View) -> Seen:
        """Compare a view with the history so far."""
        if view.seen == 0 or self.seen - view.seen >= VIEWS_KEPT:
            return Seen.NOT_COMPARABLE
        return Seen.OWN if view.seen <= self.seen and self.histories[view.seen] == view.history else Seen.FOREIGN


def replay(by_partition: RecordsByPartition, offset_stop: int | None = None) -> Replayed:
    """Replay the complete log, or the ordering records before `offset_stop`."""
    run = _Replay(by_partition)
    for record in by_partition.get(ORDERING, ()):
        if offset_stop is not None and record.offset >= offset_stop:
            break
        if not run.apply(record):
            break
        run.replayed.offset_head = record.offset + 1
    return run.replayed


def by_key(partition: Iterable[LogRecord]) -> dict[tuple[int, int], list[LogRecord]]:
    """Returns the payload records with a value and a batch key, by (incarnation, sequence), in log order."""
    found: dict[tuple[int, int], list[LogRecord]] = {}
    for record in partition:
        key = batch_key(record.key)
        if key is not None and record.value is not None:
            found.setdefault(key, []).append(record)
    return found


class _Replay:
    """A log, and the state of its replay so far."""

    def __init__(self, by_partition: RecordsByPartition) -> None:
        self.replayed = Replayed()
        self._contents = {partition: by_key(payloads) for partition, payloads in by_partition.items() if partition != ORDERING}
        self._nonces: set[bytes] = set()
        self._consumer: dict[str, str] = {}
        """The hash of the id of the transaction that consumed a state, by the text of the state."""
        self._positions: dict[str, int] = {}
        """The positions by transaction id."""
        self._key_seen = 0
        """The ordinal of the last key record in effect."""

    def apply(self, record: LogRecord) -> bool:
        """Apply or skip the next ordering record. Returns False if the log cannot be applied beyond it; `ended_by` has the reason."""
        replayed = self.replayed
        decoded = ordering_record(record.value, replayed.versions)
        if replayed.genesis is None and not self._begin(decoded, record):
            replayed.ended_by = "no-genesis"
            return False
        view: Seen | None = None
        mark = 0
        if decoded is None or record.value is None:
            why: Why | None = Why.MALFORMED
        elif not self._is_signed(decoded, record.value):
            why = Why.BAD_SIGNATURE
        elif isinstance(decoded, (*WORKERS, Settle)) and replayed.sealed:
            why = Why.SALVAGE
        elif isinstance(decoded, (Settle, *NAME_THE_KEY)) and decoded.key != self._key_to_name(decoded):
            why = Why.OTHER_KEY
        else:
            seen_by = view_of(decoded)
            view = None if seen_by is None else replayed.compare(seen_by)
            if isinstance(decoded, Root):
                why = self._checkpoint(decoded, record.offset, view)
            elif isinstance(decoded, (Settle, *NAME_THE_KEY)) and not self._is_own(decoded, view):
                why = Why.OTHER_VIEW
            elif not self._condition(decoded):
                why = Why.CONDITION
            else:
                effect = self._effect(decoded, record)
                if effect is None:
                    return False
                why, mark = None, effect
                if not isinstance(decoded, Genesis):
                    replayed.histories.append(next_history(replayed.history, record.append_time_ms, record.value, mark))
        replayed.records.append(Applied(record.offset, decoded, why, view, replayed.seen, replayed.history))
        return True

    def _begin(self, decoded: Ordering | None, record: LogRecord) -> bool:
        """Accept the first record if it is a genesis record that the owner named in it has signed; returns False otherwise."""
        if not isinstance(decoded, Genesis) or record.value is None or not is_signed(record.value, NO_LOG_ID, decoded.owner_key):
            return False
        self.replayed.genesis = decoded
        return True

    def _is_signed(self, decoded: Ordering, value: bytes) -> bool:
        """Returns whether the right key for this record has signed it. A key record needs the new key's signature too."""
        replayed = self.replayed
        assert replayed.genesis is not None
        owner = replayed.genesis.owner_key
        if isinstance(decoded, Genesis):
            return is_signed(value, NO_LOG_ID, owner)
        if not is_signed(value, replayed.log_id, replayed.keys[-1] if isinstance(decoded, WORKERS) else owner):
            return False
        return not isinstance(decoded, Key) or is_endorsed(decoded, replayed.log_id, replayed.keys[-1])

    def _key_to_name(self, decoded: Settle | Begin | Items | Done | Trim) -> bytes:
        """Returns the key that an owner's record has to name here. A settle record names none before format version 2."""
        replayed = self.replayed
        return b"" if isinstance(decoded, Settle) and SALVAGE_FORMAT not in replayed.versions else replayed.keys[-1]

    def _checkpoint(self, decoded: Root, offset: int, view: Seen | None) -> Why:
        own = view == Seen.OWN
        counted = own and self.replayed.unfenced(decoded.incarnation) is not None
        self.replayed.checkpoints.append(Checkpoint(offset, decoded.incarnation, decoded.size, decoded.root, counted))
        if not own:
            return Why.OTHER_VIEW
        return Why.CHECKPOINT if counted else Why.CONDITION

    def _is_own(self, decoded: Settle | Begin | Items | Done | Trim, view: Seen | None) -> bool:
        """Returns whether the view lets an owner's record take effect: of a salvage it has to be exactly the history here."""
        replayed = self.replayed
        if isinstance(decoded, Settle | Trim):
            return view == Seen.OWN
        return decoded.view == (replayed.seen, replayed.history)

    def _condition(self, decoded: Ordering) -> bool:
        """Returns whether the record takes effect, by the last column of the contract's table."""
        replayed = self.replayed
        match decoded:
            case Entry():
                state = replayed.unfenced(decoded.incarnation)
                return state is not None and decoded.sequence > state.sequence_last and decoded.partition < replayed.partitions
            case Register():
                return decoded.nonce not in self._nonces
            case Fence():
                state = replayed.unfenced(decoded.incarnation)
                return state is not None and decoded.sequence_last == state.sequence_last
            case Activate():
                return decoded.version not in replayed.versions and all(state.format_version >= decoded.version for state in self._voters())
            case Genesis():
                return not replayed.keys
            case Key():
                return decoded.public_key not in replayed.keys
            case Partitions():
                return decoded.partitions > replayed.partitions
            case Retire():
                return replayed.unfenced(decoded.incarnation) is not None
            case Settle():
                # Otherwise a copy of a settle record would take effect again, since its view is still the reader's own history.
                return decoded.view.seen > replayed.settled
            case Begin():
                return self._key_seen == replayed.seen
            case Items():
                return replayed.salvage is not None and decoded.first == sum((replayed.salvage[0], len(replayed.salvage[1])))
            case Done():
                if replayed.salvage is None or replayed.salvage[0] != replayed.size:
                    return False
                return (decoded.size, decoded.root) == self._with_items(*replayed.salvage)
            case Trim():
                return decoded.position > replayed.trimmed
        return False

    def _with_items(self, first: int, items: Sequence[Item]) -> tuple[int, bytes]:
        """Returns the size and root of the tree with these items behind its leaves."""
        replayed = self.replayed
        known = {first + at: item.leaf_hash for at, item in enumerate(items) if item.leaf_hash}
        leaves = [*replayed.leaves, *[leaf_of_item(item, first + at) for at, item in enumerate(items)]]
        return len(leaves), Tree(leaves, {**replayed.leaf_hashes, **known}).root(len(leaves))

    def _effect(self, decoded: Ordering, record: LogRecord) -> int | None:
        """Apply the record's effect; returns its mark.

        Returns None if it must wait: an entry without content, or an activation of an unknown version.
        """
        replayed = self.replayed
        match decoded:
            case Entry():
                content = self._content(decoded)
                if content is None:
                    replayed.ended_by = "hole"
                    return None
                return self._join(decoded, record, content)
            case Register():
                self._register(decoded, record)
            case Fence():
                replayed.incarnations[decoded.incarnation - 1].fenced = True
            case Activate():
                if decoded.version > FORMAT_VERSION:
                    replayed.ended_by = "activate"
                    return None
                replayed.versions.append(decoded.version)
            case Genesis():
                assert record.value is not None
                replayed.log_id = sha256(record.value).digest()
                replayed.histories.append(replayed.log_id)
                replayed.keys.append(decoded.notary_key)
                replayed.partitions = decoded.partitions
            case Key():
                replayed.keys.append(decoded.public_key)
                replayed.salvage, self._key_seen = None, replayed.seen + 1
            case Partitions():
                replayed.partitions = decoded.partitions
            case Retire():
                state = replayed.incarnations[decoded.incarnation - 1]
                state.fenced = state.retired = True
            case Settle():
                replayed.settled = decoded.view.seen
            case Begin():
                replayed.sealed, replayed.salvage = True, (decoded.position, [])
            case Items():
                assert replayed.salvage is not None
                replayed.salvage[1].extend(decoded.items)
            case Done():
                assert replayed.salvage is not None
                for item in replayed.salvage[1]:
                    self._put(item)
                replayed.sealed, replayed.salvage, replayed.settled = False, None, decoded.view.seen
            case Trim():
                replayed.trimmed = decoded.position
        return 0

    def _put(self, item: Item) -> None:
        """Decide the next position as a salvage restores it."""
        replayed = self.replayed
        position = replayed.size
        replayed.salvaged += 1
        replayed.leaves.append(leaf_of_item(item, position))
        if item.leaf_hash:
            replayed.leaf_hashes[position] = item.leaf_hash
        if not item.leaf:
            return
        decision = decision_of(item)
        id_ = decision["transaction_id"]
        self._positions[id_] = position
        replayed.decisions.append(decision)
        replayed.log_time = max(replayed.log_time, decision["log_time"])
        for state in map(_text, item.inputs):
            self._consumer[state], replayed.consumed[state] = hashed(id_), (id_, position)
            replayed.reserved.pop(state, None)
        for conflict in decision["conflicts"]:
            if conflict["state"] not in self._consumer:
                self._consumer[conflict["state"]] = replayed.reserved[conflict["state"]] = conflict["consumed_by"]

    def _voters(self) -> Iterator[Incarnation]:
        """Returns the voters: the incarnations that have not ended and have been active within a day of log time (R9)."""
        since = self.replayed.log_time - VOTERS_MS
        return (state for state in self.replayed.incarnations if not state.fenced and state.active_at >= since)

    def _register(self, decoded: Register, record: LogRecord) -> None:
        replayed = self.replayed
        self._nonces.add(decoded.nonce)
        incarnation = len(replayed.incarnations) + 1
        for state in replayed.incarnations:
            if state.name == decoded.name and not state.fenced:
                state.fenced, state.fenced_by = True, incarnation
        active_at = max(replayed.log_time, record.append_time_ms)
        replayed.incarnations.append(
            Incarnation(incarnation, decoded.name, decoded.nonce, active_at=active_at, format_version=decoded.format_version)
        )

    def _content(self, entry: Entry) -> LogRecord | None:
        """Returns the first record in the entry's partition under its key that is the named payload or a signed fill for it (R3)."""
        replayed = self.replayed
        key = key_of(entry.incarnation, entry.sequence)
        for record in self._contents.get(entry.partition, {}).get((entry.incarnation, entry.sequence), ()):
            value = record.value
            assert value is not None
            if sha256(value).digest() == entry.payload_hash:
                return record
            if is_fill(value, replayed.log_id, entry.partition, key, entry.payload_hash, replayed.keys[-1]):
                return record
            if self._is_seal(entry, value):
                return record
        return None

    def _is_seal(self, entry: Entry, value: bytes) -> bool:
        replayed = self.replayed
        assert replayed.genesis is not None
        key = key_of(entry.incarnation, entry.sequence)
        owner_key = replayed.genesis.owner_key
        signed = is_seal(value, replayed.log_id, entry.partition, key, entry.payload_hash, replayed.keys[-1], owner_key)
        return signed and SALVAGE_FORMAT in replayed.versions

    def _join(self, entry: Entry, record: LogRecord, content: LogRecord) -> int:
        """Join the entry with its content; returns its mark, 1 for a payload, 0 for a fill, 2 for a seal."""
        replayed = self.replayed
        state = replayed.incarnations[entry.incarnation - 1]
        state.sequence_last = entry.sequence
        if self._is_seal(entry, content.value or b""):
            replayed.sealed, replayed.salvage = True, None
            return 2
        log_time = max(replayed.log_time, min(record.append_time_ms, entry.sent_at + SENT_AT_AHEAD_MAX_MS))
        replayed.log_time = state.active_at = log_time
        value = content.value
        assert value is not None
        mark = int(sha256(value).digest() == entry.payload_hash)
        requests = requests_of(value, replayed.name) if mark else None
        if requests is not None and tuple([id_ for id_, _ in requests]) != entry.ids:
            requests = None
        for id_, request in requests or ():
            if id_ not in self._positions:
                self._decide(id_, request)
        ids = tuple([id_ for id_, _ in requests or ()])
        positions = tuple([self._positions[id_] for id_ in ids])
        batch = Batch(
            record.offset,
            entry.incarnation,
            entry.sequence,
            log_time,
            requests is None,
            ids,
            positions,
            entry.partition,
            content.offset,
            signed_fill=not mark,
        )
        replayed.batches.append(batch)
        return mark

    def _decide(self, id_: str, request: Mapping[str, Any]) -> None:
        """Decide a transaction that has no decision yet (R7)."""
        replayed = self.replayed
        by = hashed(id_)
        consumer = self._consumer
        if by in replayed.reserved.values():  # what is reserved for a transaction is free for it alone
            consumer = {state: other for state, other in consumer.items() if other != by}
        reason, conflicts = expected_reason(request, consumer, replayed.log_time)
        position = self._positions[id_] = replayed.size
        if reason is None:
            for state in request.get("inputs", ()):
                self._consumer[state] = by
                replayed.consumed[state] = (id_, position)
                replayed.reserved.pop(state, None)
        decision = {
            "transaction_id": id_,
            "position": position,
            "outcome": "rejected" if reason else "committed",
            "reason": reason,
            "conflicts": conflicts,
            "log_time": replayed.log_time,
        }
        replayed.decisions.append(decision)
        replayed.leaves.append(leaf_of(decision))


def leaf_of_item(item: Item, position: int) -> bytes:
    """Returns the leaf of an item at that position; empty where only its hash is known."""
    return b"" if item.leaf_hash else item.leaf or LOST_PREFIX + position.to_bytes(8, "big")


def decision_of(item: Item) -> dict[str, Any]:
    """Returns the decision of an item, as the contract's JSON object."""
    _, position, id_, log_time, outcome, _, _ = LEAF.unpack(item.leaf)
    reasons, kinds = {number: reason for reason, number in OUTCOMES.items()}, {number: kind for kind, number in KINDS.items()}
    conflicts = [{"state": _text(state), "kind": kinds[kind], "consumed_by": by.hex()} for state, kind, by in item.conflicts]
    return {
        "transaction_id": id_.hex(),
        "position": position,
        "outcome": "rejected" if outcome else "committed",
        "reason": reasons[outcome],
        "conflicts": conflicts,
        "log_time": log_time,
    }


def _text(state: bytes) -> str:
    return f"{state[:32].hex()}:{int.from_bytes(state[32:], 'big')}"
