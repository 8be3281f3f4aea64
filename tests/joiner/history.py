"""What the joiner's tests write their histories with: a log in lists, and requests that need only a label."""

import json
from collections.abc import Iterable
from hashlib import sha256

from joiner import Joiner, JoinerLimits, JoinerState, Life, OrderedBatch, Ready
from ordering.log import ORDERING, Record
from ordering.records import Activate, Checkpoint, Entry, Fence, OrderingRecord, Register, batch_key, encode
from payload import Request, Submission, decode_submission, encode_batch

NOTARY = "O=Notary,L=London,C=GB"
T0 = 1_000_000
"""Append time of the first record; each later one is taken a millisecond later."""


def submission(*labels: str) -> Submission:
    """A submission with one request a label; each consumes a state of its own."""
    asked = [{"inputs": [f"{_hex(label)}:0"], "content_hash": _hex("content of " + label)} for label in labels]
    return decode_submission(json.dumps({"party": "O=A", "signature": "", "requests": asked}).encode(), NOTARY)


def requests(*labels: str) -> tuple[Request, ...]:
    return submission(*labels).requests if labels else ()


def value(*labels: str) -> bytes:
    """The payload value of a batch of one submission with those requests; of no submission without labels."""
    return encode_batch([submission(*labels).encoded] if labels else [])


def nonce(text: str) -> bytes:
    return sha256(text.encode()).digest()[:16]


class History:
    """Records in the order of their streams. Every method appends one record and returns it, ready to be handed in."""

    def __init__(self, partitions: int = 2) -> None:
        self.streams: dict[int, list[Record]] = {stream: [] for stream in range(ORDERING, partitions)}
        self._taken = 0

    def put(self, stream: int, key: bytes | None, value: bytes | None, at: int | None = None) -> Record:
        self._taken += 1
        records = self.streams[stream]
        record = Record(stream, len(records), T0 + self._taken if at is None else at, key, value)
        records.append(record)
        return record

    def ordering(self, record: OrderingRecord, at: int | None = None) -> Record:
        return self.put(ORDERING, None, encode(record), at)

    def register(self, name: str = "w1", nonce_of: str | None = None, at: int | None = None) -> Record:
        return self.ordering(Register(nonce(nonce_of or f"{name} {self._taken}"), 1, name, "0.1"), at)

    def entry(
        self,
        incarnation: int,
        sequence: int,
        *labels: str,
        partition: int = 0,
        at: int | None = None,
        sent_at: int | None = None,
    ) -> Record:
        ids = tuple([request.transaction_id for request in requests(*labels)])
        sent_at_ms = (T0 + self._taken if at is None else at) if sent_at is None else sent_at
        return self.ordering(Entry(incarnation, sequence, sent_at_ms, partition, ids), at)

    def payload(self, incarnation: int, sequence: int, *labels: str, partition: int = 0) -> Record:
        return self.put(partition, batch_key(incarnation, sequence), value(*labels))

    def fill(self, incarnation: int, sequence: int, partition: int = 0) -> Record:
        return self.put(partition, batch_key(incarnation, sequence), None)

    def fence(self, incarnation: int, sequence_last: int) -> Record:
        return self.ordering(Fence(incarnation, sequence_last))

    def checkpoint(self, incarnation: int, tree_size: int) -> Record:
        return self.ordering(Checkpoint(incarnation, tree_size, bytes(32)))

    def activate(self, format_version: int) -> Record:
        return self.ordering(Activate(format_version))


class Reading:
    """One joiner, what it said so far, and what a worker would have persisted of it."""

    def __init__(
        self,
        partitions: int = 2,
        limits: JoinerLimits | None = None,
        state: JoinerState | None = None,
        own: dict[tuple[int, int], object] | None = None,
    ) -> None:
        self._partitions = partitions
        self._limits = limits
        self.state = state or JoinerState(dict.fromkeys(range(ORDERING, partitions), 0))
        self._lives: dict[int, Life] = {life.incarnation: life for life in self.state.lives}
        self.joiner = Joiner(NOTARY, partitions, self.state, limits, own)  # type: ignore[arg-type]
        self.batches: list[OrderedBatch] = []

    def step(self, *records: Record, now: int = 0) -> Ready:
        ready = self.joiner.step(records, now)
        self.batches += ready.batches
        if ready.advanced:
            self._lives |= {life.incarnation: life for life in ready.lives}
            self.state = JoinerState(ready.offsets_next, ready.log_time_ms, tuple(self._lives.values()))
        return ready

    def restarted(self) -> "Reading":
        """The next process: only what was persisted is left."""
        return Reading(self._partitions, self._limits, self.state)


def rest(history: History, state: JoinerState) -> list[Record]:
    """What a reader that starts from that state reads."""
    return [record for stream, records in history.streams.items() for record in records[state.offsets_next[stream] :]]


def named(batches: Iterable[OrderedBatch]) -> list[tuple[int, int, str]]:
    """(incarnation, sequence, "filled" or the number of requests) of each."""
    return [(b.incarnation, b.sequence, "filled" if b.filled else str(len(b.requests))) for b in batches]


def _hex(label: str) -> str:
    return sha256(label.encode()).hexdigest()
