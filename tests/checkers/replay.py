"""What a complete log decides, by brute force. Imports nothing of the notary: the formats are read here, from the contract's tables.

Everything is at hand, so there is no buffer, no step and no waiting: the ordering records are judged one by one (R2, R5), each content is
looked up as the first of its key in its whole partition (R3), and decided on plain dictionaries (R6, R7).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.checkers.judge import hashed, judge
from tests.checkers.records import FORMAT_VERSION, Activate, Entry, Fence, Register, Root, batch_key, ordering_record
from tests.checkers.requests import requests_of
from tests.checkers.tree import Tree, leaf_of

ORDERING = -1
SENT_AT_AHEAD_MAX_MS = 60_000


class LogRecord(Protocol):
    """What a reader of the log returns (`ordering.log.Record`)."""

    @property
    def offset(self) -> int: ...
    @property
    def append_time_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


Streams = Mapping[int, Sequence[LogRecord]]
"""-1 is the ordering topic, 0, 1, 2, ... the payload partitions; one that is not there is empty."""


@dataclass(frozen=True, slots=True)
class Batch:
    """An entry that counted; a filled one asked nothing."""

    offset: int
    incarnation: int
    sequence: int
    log_time: int
    filled: bool
    ids: tuple[str, ...]
    positions: tuple[int, ...]  # of the decision of each id, made here or before


@dataclass(slots=True)
class Life:
    """One life of one worker."""

    incarnation: int
    name: str
    nonce: bytes = b""
    sequence_last: int = 0
    fenced: bool = False
    fenced_by: int = 0  # the incarnation of its successor's register record; 0 when a peer fenced it
    active_at: int = 0  # the log time at which it registered or last had an entry counted


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint record; it counts if its life was registered and not fenced there."""

    offset: int
    incarnation: int
    size: int
    root: bytes
    counted: bool


@dataclass
class Replayed:
    """What a log says."""

    decisions: list[dict[str, Any]] = field(default_factory=list)
    """By position, as the contract's JSON objects."""
    consumed: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By the text of the state: (id of the transaction that consumed it, its position)."""
    batches: list[Batch] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    """Life 1 first."""
    log_time: int = 0
    offset_end: int = 0
    """The offset after the last record that could be judged; next comes a hole, an activation of an unknown version, or nothing."""
    ended_by: str = "end"
    """end | hole | activate"""
    leaves: list[bytes] = field(default_factory=list)
    tree: Tree = field(init=False)

    def __post_init__(self) -> None:
        self.tree = Tree(self.leaves)

    def root(self, size: int) -> bytes:
        """The root of the tree of the first `size` decisions."""
        return self.tree.root(size)

    def passing(self) -> list[Batch]:
        """The batches that count though one before them in their life, at least, does not: no broker of Kafka leaves that."""
        last: dict[int, int] = {}
        found = []
        for batch in self.batches:
            if batch.sequence > last.get(batch.incarnation, 0) + 1:
                found.append(batch)
            last[batch.incarnation] = batch.sequence
        return found

    def life(self, incarnation: int) -> Life | None:
        """The life, if it has registered and is not fenced."""
        life = self.lives[incarnation - 1] if 1 <= incarnation <= len(self.lives) else None
        return None if life is None or life.fenced else life


def replay(streams: Streams, notary: str, partitions: int, offset_stop: int | None = None) -> Replayed:
    """The whole log, or its order before `offset_stop`."""
    contents = [first_contents(streams.get(partition, ())) for partition in range(partitions)]
    replayed = Replayed()
    nonces: set[bytes] = set()
    consumer: dict[str, str] = {}
    positions: dict[str, int] = {}
    for record in streams.get(ORDERING, ()):
        if offset_stop is not None and record.offset >= offset_stop:
            break
        said = ordering_record(record.value)
        if isinstance(said, Entry):
            life = replayed.life(said.incarnation)
            if life is not None and said.sequence > life.sequence_last and said.partition < partitions:
                key = said.incarnation, said.sequence
                if key not in contents[said.partition]:
                    replayed.ended_by = "hole"
                    return replayed
                life.sequence_last = said.sequence
                log_time = max(replayed.log_time, min(record.append_time_ms, said.sent_at + SENT_AT_AHEAD_MAX_MS))
                replayed.log_time = life.active_at = log_time
                _decide(replayed, record.offset, said, contents[said.partition][key].value, notary, consumer, positions)
        elif isinstance(said, Register):
            if said.nonce not in nonces:
                nonces.add(said.nonce)
                incarnation = len(replayed.lives) + 1
                for life in replayed.lives:
                    if life.name == said.name and not life.fenced:
                        life.fenced, life.fenced_by = True, incarnation
                active_at = max(replayed.log_time, record.append_time_ms)
                replayed.lives.append(Life(incarnation, said.name, said.nonce, active_at=active_at))
        elif isinstance(said, Fence):
            life = replayed.life(said.incarnation)
            if life is not None and life.sequence_last == said.sequence_last:
                life.fenced = True
        elif isinstance(said, Root):
            counted = replayed.life(said.incarnation) is not None
            replayed.checkpoints.append(Checkpoint(record.offset, said.incarnation, said.size, said.root, counted))
        elif isinstance(said, Activate) and said.version > FORMAT_VERSION:
            replayed.ended_by = "activate"
            return replayed
        replayed.offset_end = record.offset + 1
    return replayed


def first_contents(partition: Sequence[LogRecord]) -> dict[tuple[int, int], LogRecord]:
    """R3: by batch, the first record with its key."""
    first: dict[tuple[int, int], LogRecord] = {}
    for record in partition:
        key = batch_key(record.key)
        if key is not None:
            first.setdefault(key, record)
    return first


def _decide(
    replayed: Replayed, offset: int, entry: Entry, value: bytes | None, notary: str, consumer: dict[str, str], positions: dict[str, int]
) -> None:
    """R7, for each request of the batch in turn. `consumer`: hashes by state; `positions`: by transaction id."""
    requests = None if value is None else requests_of(value, notary)
    if requests is not None and tuple([id_ for id_, _ in requests]) != entry.ids:
        requests = None
    for id_, request in requests or ():
        if id_ in positions:
            continue
        reason, conflicts = judge(request, consumer, replayed.log_time)
        position = positions[id_] = len(replayed.decisions)
        if reason is None:
            by = hashed(id_)
            for state in request.get("inputs", ()):
                consumer[state] = by
                replayed.consumed[state] = (id_, position)
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
    ids = tuple([id_ for id_, _ in requests or ()])
    batch = Batch(
        offset, entry.incarnation, entry.sequence, replayed.log_time, requests is None, ids, tuple([positions[id_] for id_ in ids])
    )
    replayed.batches.append(batch)
