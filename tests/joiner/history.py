"""An in-memory log for the joiner's tests: signed records, and requests that need only a label."""

import asyncio
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from joiner import (
    AdmittedSubmission,
    Batch,
    Effect,
    IncarnationState,
    Joiner,
    JoinerLimits,
    JoinerState,
    Mark,
    OrderedBatch,
    Pending,
    Ready,
    Sender,
    SubmissionQueue,
)
from joiner.recheck import Recheck
from ordering.errors import OutcomeUnknown, Overloaded
from ordering.log import ORDERING, Record
from ordering.records import (
    FORMAT_VERSION,
    SALVAGE_FORMAT,
    Activate,
    Checkpoint,
    Entry,
    Fence,
    Genesis,
    OrderingRecord,
    Partitions,
    Register,
    Retire,
    Settle,
    View,
    batch_key,
)
from ordering.signatures import NO_LOG_ID, SigningKey, endorse_key, log_id_of, sign_fill, sign_record, sign_seal
from payload import Request, Submission, decode_submission, encode_batch

NOTARY = "O=Notary,L=London,C=GB"
T0 = 1_000_000
"""The append time of the first record, in milliseconds; each later one is a millisecond later."""


PARTY = "O=A"


def submission(*labels: str, party: str = PARTY) -> Submission:
    """Returns a submission with one request per label; each consumes a state of its own."""
    asked = [{"inputs": [f"{_hex(label)}:0"], "content_hash": _hex("content of " + label)} for label in labels]
    return decode_submission(json.dumps({"party": party, "signature": "", "requests": asked}).encode(), NOTARY)


def new_rejected(
    queue: SubmissionQueue[Any], requests: int, size_bytes: int, party: str | None = None, *, ticketed: bool = False
) -> Overloaded | None:
    """Returns the queue's rejection of a verified new submission, which reserves capacity; None if there is enough."""
    return queue.rejection(requests, size_bytes, party, ticketed=ticketed, reserve=True)


def ask(sender: Sender[Any], *labels: str) -> "asyncio.Future[Sequence[Any]]":
    """Submit one request per label as `notary.gate` does; returns their decisions, or `OutcomeUnknown`. Raises `Overloaded`."""
    admitted = AdmittedSubmission.of(submission(*labels))
    rejection = new_rejected(sender.queue, len(admitted.requests), len(admitted.encoded), admitted.party)
    if rejection is not None and admitted not in sender.queue:
        raise rejection
    answer: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()

    def decided(decisions: Sequence[Any] | None) -> None:
        if decisions is not None and not answer.done():
            answer.set_result(decisions)
        elif not answer.done():
            answer.set_exception(OutcomeUnknown("given up"))

    sender.submit(admitted).waiters[decided] = None
    return answer


def requests(*labels: str) -> tuple[Request, ...]:
    return submission(*labels).requests if labels else ()


def value(*labels: str) -> bytes:
    """Returns the payload value of a batch with one submission of these requests; without labels it has no submission."""
    return encode_batch([submission(*labels).encoded] if labels else [])


def own_batch(label: str, entry: Record) -> Batch[object]:
    """Returns the batch of one request that a worker has sent with that entry."""
    batch: Batch[object] = Batch([Pending(AdmittedSubmission.of(submission(label)))])
    batch.entry_value, batch.signed_by = entry.value or b"", KEY.public_key
    return batch


def nonce(text: str) -> bytes:
    return sha256(text.encode()).digest()[:16]


def signing_key(name: str) -> SigningKey:
    return SigningKey(sha256(name.encode()).digest())


KEY, OWNER = signing_key("notary"), signing_key("owner")


class History:
    """Records by topic-partition. Every method appends one record and returns it, so that a test can pass it to the joiner.

    Ordering record 0 is the genesis record. By default every view covers the genesis record alone.
    """

    def __init__(self, partitions: int = 2, name: str = NOTARY, salt: bytes = bytes(16)) -> None:
        self.by_partition: dict[int, list[Record]] = {partition: [] for partition in range(ORDERING, partitions)}
        self._taken = 0
        self.key = KEY
        self._settles_with_key = False
        self._hashes: dict[tuple[int, int], bytes] = {}
        genesis = Genesis(salt, partitions, KEY.public_key, OWNER.public_key, name, "notary.example/test")
        first = self.put(ORDERING, None, sign_record(genesis, NO_LOG_ID, OWNER), at=T0)
        self._taken = 0
        self.log_id = log_id_of(first.value or b"")

    @property
    def genesis(self) -> Record:
        return self.by_partition[ORDERING][0]

    @property
    def view(self) -> View:
        return View(1, self.log_id)

    def put(self, partition: int, key: bytes | None, value: bytes | None, at: int | None = None) -> Record:
        self._taken += 1
        records = self.by_partition[partition]
        record = Record(partition, len(records), T0 + self._taken if at is None else at, key, value)
        records.append(record)
        return record

    def ordering(self, record: OrderingRecord, at: int | None = None, key: SigningKey | None = None) -> Record:
        """Append an ordering record, signed with the notary's present key unless `key` is given."""
        return self.put(ORDERING, None, sign_record(record, self.log_id, key or self.key), at)

    def owner(self, record: OrderingRecord, at: int | None = None) -> Record:
        return self.ordering(record, at, OWNER)

    def register(
        self, name: str = "w1", nonce_of: str | None = None, at: int | None = None, version: int = 1, view: View | None = None
    ) -> Record:
        return self.ordering(Register(nonce(nonce_of or f"{name} {self._taken}"), view or self.view, version, name, "0.1"), at)

    def entry(
        self,
        incarnation: int,
        sequence: int,
        *labels: str,
        partition: int = 0,
        at: int | None = None,
        sent_at: int | None = None,
        view: View | None = None,
        payload_hash: bytes | None = None,
        key: SigningKey | None = None,
    ) -> Record:
        ids = tuple([request.transaction_id for request in requests(*labels)])
        sent_at_ms = (T0 + self._taken if at is None else at) if sent_at is None else sent_at
        named = payload_hash or sha256(value(*labels)).digest()
        self._hashes[incarnation, sequence] = named
        return self.ordering(Entry(incarnation, sequence, view or self.view, sent_at_ms, partition, named, ids), at, key)

    def payload(self, incarnation: int, sequence: int, *labels: str, partition: int = 0) -> Record:
        return self.put(partition, batch_key(incarnation, sequence), value(*labels))

    def fill(self, incarnation: int, sequence: int, *labels: str, partition: int = 0, key: SigningKey | None = None) -> Record:
        """Append a fill for the entry written under that name before, or for one with these labels if there is none."""
        named = self._hashes.get((incarnation, sequence)) or sha256(value(*labels)).digest()
        batch = batch_key(incarnation, sequence)
        return self.put(partition, batch, sign_fill(self.log_id, partition, batch, named, key or self.key))

    def seal(self, incarnation: int, sequence: int, key: SigningKey = OWNER, in_force: SigningKey | None = None) -> Record:
        """Append a seal in payload partition 0, for the entry of that name written before; `in_force` is the notary's key that it names."""
        batch, named = batch_key(incarnation, sequence), self._hashes[incarnation, sequence]
        return self.put(0, batch, sign_seal(self.log_id, 0, batch, named, (in_force or self.key).public_key, key))

    def cut(self, ends: dict[int, int]) -> None:
        """Lose the end of these topic-partitions."""
        for partition, end in ends.items():
            del self.by_partition[partition][end:]

    def fence(self, incarnation: int, sequence_last: int, writer: int = 1) -> Record:
        return self.ordering(Fence(writer, self.view, incarnation, sequence_last))

    def checkpoint(self, incarnation: int, tree_size: int, root: bytes = bytes(32), view: View | None = None) -> Record:
        return self.ordering(Checkpoint(incarnation, view or self.view, tree_size, root))

    def activate(self, format_version: int) -> Record:
        self._settles_with_key |= format_version == SALVAGE_FORMAT
        return self.owner(Activate(format_version))

    def rotate(self, key: SigningKey) -> Record:
        """Append a key record; later records are signed with the new key."""
        record = self.owner(endorse_key(key, self.log_id, self.key.public_key))
        self.key = key
        return record

    def partitions(self, count: int) -> Record:
        self.by_partition |= {partition: [] for partition in range(count) if partition not in self.by_partition}
        return self.owner(Partitions(count))

    def retire(self, incarnation: int) -> Record:
        return self.owner(Retire(incarnation))

    def settle(self, view: View) -> Record:
        """Append a settle record, in the highest format version that was activated."""
        return self.owner(Settle(view, self.key.public_key if self._settles_with_key else b""))


class Reading:
    """One joiner, the batches that it has emitted, and the state that a worker would have persisted."""

    def __init__(
        self,
        limits: JoinerLimits | None = None,
        state: JoinerState | None = None,
        own: Mapping[tuple[int, int], Any] | None = None,
        name: str = "reader",
        format_version: int = FORMAT_VERSION,
    ) -> None:
        self._arguments = (limits, name, format_version)
        self.state = state or JoinerState()
        self._incarnations: dict[int, IncarnationState] = {state.incarnation: state for state in self.state.incarnations}
        self._effects: list[Effect] = list(self.state.effects)
        self._marks: dict[int, Mark] = dict(self.state.marks)
        self.joiner = Joiner(self.state, limits, name, format_version)
        self._own = own or {}
        self.batches: list[OrderedBatch] = []

    def step(self, *records: Record, now: int = 0) -> Ready:
        ready = self.joiner.step(records, now, None, self._own)
        self.batches += ready.batches
        if ready.advanced:
            self._incarnations |= {state.incarnation: state for state in ready.incarnations}
            self._effects += ready.effects
            self._marks |= ready.marks
            self.state = JoinerState(
                ready.offsets_next,
                ready.log_time_ms,
                tuple(self._incarnations.values()),
                ready.log_state or self.state.log_state,
                tuple(self._effects),
                dict(self._marks),
                ready.agreed,
                dict(ready.suspicions),
            )
        return ready

    @property
    def view(self) -> View:
        """The reader's view of the log."""
        return self.joiner.history.view

    def restarted(self) -> "Reading":
        """Returns the reader after a restart, with only the persisted state."""
        limits, name, format_version = self._arguments
        return Reading(limits, self.state, None, name, format_version)


def rest(history: History, state: JoinerState) -> list[Record]:
    """Returns the records that a reader reads after it starts from that state."""
    return [record for partition, records in history.by_partition.items() for record in records[state.offsets_next.get(partition, 0) :]]


class Continued:
    """A joiner after an interruption: it gets the records of a new reader through `Recheck`, as in `Driver._read_with`.

    `before`: the comparison that the interruption ended, if there was one.
    """

    def __init__(self, joiner: Joiner, before: Recheck | None = None) -> None:
        self._joiner = joiner
        kept = joiner.forget_unapplied() | ({} if before is None else before.kept)
        self.recheck = Recheck(joiner.marks, joiner.history.last_run, kept, joiner)
        first = joiner.read_next() | {partition: of_partition.offset_next for partition, of_partition in kept.items()}
        first |= {partition: min(offset, first.get(partition, offset)) for partition, offset in self.recheck.offsets_first.items()}
        self.offsets_first = first

    def take(self, records: Sequence[Record], led: Container[int]) -> list[Record]:
        """Returns the records that may be passed to the joiner now; it knows by then which records before them were dropped."""
        ready = self.recheck.take(records, led)
        assert not self.recheck.lost, self.recheck.lost
        self._joiner.restore_dropped(self.recheck.take_dropped())
        return ready

    def unread(self, history: History, partition: int) -> list[Record]:
        """Returns the records of that topic-partition from the offset at which reading began."""
        return history.by_partition[partition][self.offsets_first.get(partition, 0) :]


def compared_again(history: History, reading: Reading, portion: int = 1) -> tuple[int, dict[int, int]]:
    """Continue after an interruption, as the driver does, with polls of `portion` records.

    Returns the most bytes held back, and the offsets at which reading began.
    """
    continued = Continued(reading.joiner)
    held_bytes = continued.recheck.held_bytes
    for partition in history.by_partition:
        records = continued.unread(history, partition)
        for at in range(0, len(records), portion):
            ready = continued.take(records[at : at + portion], history.by_partition)
            held_bytes = max(held_bytes, continued.recheck.held_bytes)
            if ready:
                reading.step(*ready)
    assert continued.recheck.done
    return held_bytes, continued.offsets_first


def named(batches: Iterable[OrderedBatch]) -> list[tuple[int, int, str]]:
    """Returns (incarnation, sequence, "filled" or the number of requests) of each batch."""
    return [(b.incarnation, b.sequence, "filled" if b.filled else str(len(b.requests))) for b in batches]


def kinds(ready: Ready) -> list[str]:
    """Returns the kinds of a step's anomalies, in their order."""
    return [anomaly.kind for anomaly in ready.anomalies]


def _hex(label: str) -> str:
    return sha256(label.encode()).hexdigest()


def registered(*names: str, limits: JoinerLimits | None = None, version: int = 1) -> tuple[History, Reading]:
    """Returns a log with these workers (w1 by default) registered, and a reading of it; all know this format version."""
    history, reading = History(), Reading(limits=limits, format_version=version)
    reading.step(history.genesis)
    for name in names or ("w1",):
        reading.step(history.register(name, version=version))
    return history, reading
