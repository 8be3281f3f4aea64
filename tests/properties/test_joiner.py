"""Tests random histories: the joiner emits what the replay computes from the complete log, in any order of reading (R2 to R5, R8, R10).

A history is drawn as tuples, encoded to records, and read by joiners that are restarted, crash between a step and its persisting, get the
topic-partitions in any portions, have any clock, and keep the pauses that they requested.

Ordering: ("genesis",) | ("register", nonce, name, signer) | ("fence", incarnation, last, signer) | ("retire", incarnation, signer)
          | ("entry", incarnation, sequence, sent_at, at, partition, labels, named, signer) | ("key", new key, key that it follows, signer)
          | ("partitions", count, signer) | ("other",)
Payload, by partition: (incarnation, sequence, labels) | (incarnation, sequence, "fill", named, signer) | None for garbage
`labels` name the batch's requests, `named` the labels of the payload whose hash the entry or fill has; content that does not decode is
given as the label "?". Keys and signers are numbers, 0 the first key in force; the owner is "owner".
"""

from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joiner import Effect, FillWanted, Joiner, JoinerLimits, JoinerState, LogState, Mark, OrderedBatch, Ready
from joiner.history import HISTORY_KEPT
from notary.index import rows
from ordering.log import ORDERING, Record
from ordering.records import (
    Activate,
    Checkpoint,
    Entry,
    Fence,
    Genesis,
    OrderingRecord,
    Partitions,
    Register,
    Retire,
    View,
    batch_key,
    encode,
)
from ordering.signatures import NO_LOG_ID, endorse_key, log_id_of, sign_fill, sign_record
from tests.checkers.replay import Replayed, replay
from tests.examples import some
from tests.joiner.history import NOTARY, requests, signing_key, value

# No deadline: machines here are shared, so the duration of an example means nothing.
SHARED = settings(deadline=None, max_examples=some(250), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

PARTITIONS, PARTITIONS_MAX = 2, 3
NAMES = ("w1", "w2", "w3")
KEYS = [signing_key(f"notary {number}") for number in range(4)]
OWNER = signing_key("owner")
GENESIS = sign_record(Genesis(bytes(16), PARTITIONS, KEYS[0].public_key, OWNER.public_key, NOTARY, "n"), NO_LOG_ID, OWNER)
LOG_ID = log_id_of(GENESIS)
VIEWS = (View(1, LOG_ID), View(1, LOG_ID), View(0, bytes(32)), View(1, bytes(32)), View(3, b"?" * 32), View(2**63, bytes(32)))
"""Views to draw from, some of other histories; views decide nothing."""
CHECKPOINT = sign_record(Checkpoint(1, VIEWS[0], 3, bytes(32)), LOG_ID, KEYS[0])
ACTIVATE = sign_record(Activate(1), LOG_ID, OWNER)
GARBAGE = (None, b"", b"\x01", b"\x01\x01short", b"\x02\x01", b"\x01\x63" + bytes(80), encode(Activate(1)), ACTIVATE, CHECKPOINT, GENESIS)
BAD_CONTENT = (b"", b"[", b"{}", b"null", b'[{"party":""}]')

incarnations = st.integers(1, 4)
sequences = st.integers(1, 5)
partitions = st.integers(0, PARTITIONS_MAX - 1)
labels = st.lists(st.sampled_from("abc"), max_size=2, unique=True).map(tuple)
times = st.sampled_from([0, 1, 1000, 60_000, 10**6, 10**6 + 1, 10**6 + 60_000, 10**6 + 70_000, 10**9])
registers = st.tuples(st.just("register"), st.integers(0, 6), st.sampled_from(NAMES))
fences = st.tuples(st.just("fence"), incarnations, st.integers(0, 5))
owners = st.one_of(
    st.tuples(st.just("retire"), incarnations),
    st.tuples(st.just("key"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("key"), st.integers(0, 3), st.none()),
    st.tuples(st.just("partitions"), st.integers(0, 3)),
)
contents = st.one_of(labels, labels, st.just(("?",)))

# One event: a few ordering records and a few payload records, in that order within each topic-partition.
control: Any = st.one_of(registers, registers, fences, owners, st.just(("other",))).map(lambda record: ([record], []))


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """Draw the records of one batch by a worker, its retries, a mirror, a filler and a forger."""
    name = draw(incarnations), draw(sequences)
    partition, ids = draw(st.integers(0, PARTITIONS - 1)), draw(labels)
    named = draw(st.sampled_from([ids] * 6 + [("?",), ("c", "b")]))
    entry = ("entry", *name, draw(times), draw(times), draw(st.sampled_from([partition] * 6 + [PARTITIONS])), ids, named)
    payload = (partition, (*name, named))
    fill = (partition, (*name, "fill", draw(st.sampled_from([named] * 5 + [("a", "b", "c")])), draw(st.sampled_from([None] * 4 + [0, 1]))))
    others = draw(st.lists(st.tuples(partitions, st.tuples(st.just(name[0]), st.just(name[1]), contents)), max_size=1))
    sent: list[Any] = draw(st.sampled_from([[payload]] * 5 + [[], [payload, payload], [fill, payload], [fill]]))
    return [entry] * draw(st.sampled_from([1, 1, 1, 1, 0, 2])), draw(st.permutations([*sent, *others]))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Any], list[list[Any]]]:
    """Draw (ordering, payloads by partition), in most cases with the first incarnations registered."""
    events = draw(st.lists(st.one_of(batches(), batches(), batches(), control), max_size=14))
    ordering: list[Any] = [("register", n, name) for n, name in enumerate(NAMES[: draw(st.integers(0, 3))])]
    payloads: list[list[Any]] = [[] for _ in range(PARTITIONS_MAX)]
    for entries, contents_ in events:
        ordering += entries
        for partition, content in contents_:
            payloads[partition].append(content)
    # Each topic-partition has an order of its own; some are shuffled against the order of events.
    for partition in (ordering, *payloads):
        if partition and draw(st.integers(0, 4)) == 0:
            partition[:] = draw(st.permutations(partition))
    for garbage in draw(st.lists(partitions, max_size=2)):
        payloads[garbage].append(None)
    signed, key = _signed(ordering, draw(st.lists(st.integers(0, 30), max_size=2)))
    for partition in payloads:
        partition[:] = [(*record[:4], key) if record and record[2] == "fill" and record[4] is None else record for record in partition]
    return [("genesis",), *signed], payloads


def _signed(ordering: list[Any], forged: list[int]) -> tuple[list[Any], int]:
    """Returns the records with their signers (the key in force, or the owner; another for the forged ones), and the last key."""
    signed: list[Any] = []
    used = [0]
    for at, record in enumerate(ordering):
        if record[0] in ("retire", "partitions"):
            signed.append((*record, used[-1] if at in forged else "owner"))
        elif record[0] == "key":
            follows = used[-1] if record[2] is None else record[2]
            signed.append(("key", record[1], follows, "owner" if at not in forged else used[-1]))
            if record[1] not in used and follows == used[-1] and at not in forged:
                used.append(record[1])
        elif record[0] == "other":
            signed.append(record)
        else:
            signed.append((*record, (used[-1] + 1) % 4 if at in forged else used[-1]))
    return signed, used[-1]


@cache
def _value(labels_: tuple[str, ...]) -> bytes:
    return BAD_CONTENT[len(labels_)] if labels_ == ("?",) else value(*labels_)


@cache
def _hash(labels_: tuple[str, ...]) -> bytes:
    return sha256(_value(labels_)).digest()


@cache
def _ids(labels_: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple([request.transaction_id for request in requests(*labels_)])


@cache
def _sign(record: OrderingRecord, signer: int | str) -> bytes:
    return sign_record(record, LOG_ID, OWNER if signer == "owner" else KEYS[int(signer)])


@cache
def _fill(partition: int, name: tuple[int, int], named: tuple[str, ...], signer: int) -> bytes:
    return sign_fill(LOG_ID, partition, batch_key(*name), _hash(named), KEYS[signer])


class MemoryPartitions:
    """The history as records; fills can be appended to it."""

    def __init__(self, ordering: list[Any], payloads: list[list[Any]]) -> None:
        self.ordering, self.payloads = ordering, payloads

    def end(self, partition: int) -> int:
        return len(self.ordering if partition == ORDERING else self.payloads[partition])

    def record(self, partition: int, offset: int) -> Record:
        if partition != ORDERING:
            match self.payloads[partition][offset]:
                case None:
                    return Record(partition, offset, 0, (None, b"short")[offset % 2], b"garbage")
                case (incarnation, sequence, labels_):
                    return Record(partition, offset, 0, batch_key(incarnation, sequence), _value(labels_))
                case (incarnation, sequence, "fill", named, signer):
                    return Record(
                        partition, offset, 0, batch_key(incarnation, sequence), _fill(partition, (incarnation, sequence), named, signer)
                    )
        at = 0
        view = VIEWS[offset % len(VIEWS)]
        match self.ordering[offset]:
            case ("genesis",):
                data: bytes | None = GENESIS
            case ("register", nonce, name, signer):
                data = _sign(Register(bytes([nonce]) * 16, view, 1, name, "0"), signer)
            case ("fence", incarnation, last, signer):
                data = _sign(Fence(1, view, incarnation, last), signer)
            case ("retire", incarnation, signer):
                data = _sign(Retire(incarnation), signer)
            case ("key", new, follows, signer):
                data = _sign(endorse_key(KEYS[new], LOG_ID, KEYS[follows].public_key), signer)
            case ("partitions", count, signer):
                data = _sign(Partitions(count), signer)
            case ("entry", incarnation, sequence, sent_at, at, partition, labels_, named, signer):
                data = _sign(Entry(incarnation, sequence, view, sent_at, partition, _hash(named), _ids(labels_)), signer)
            case _:
                return Record(ORDERING, offset, 5, None, GARBAGE[offset % len(GARBAGE)])
        return Record(ORDERING, offset, at, None, data)

    def replayed(self) -> Replayed:
        """Returns the replay of the complete log."""
        partitions = range(ORDERING, PARTITIONS_MAX)
        return replay({partition: [self.record(partition, offset) for offset in range(self.end(partition))] for partition in partitions})


class Worker:
    """A worker without IO: a joiner, a reader that keeps its pauses, and the persisted state."""

    def __init__(self, by_partition: MemoryPartitions, limits: JoinerLimits) -> None:
        self.by_partition, self.limits = by_partition, limits
        self.batches: list[OrderedBatch] = []
        self._offsets: dict[int, int] = {}
        self._log_time = 0
        self.incarnations: dict[bytes, bytes] = {}
        self.effects: list[Effect] = []
        self._marks: dict[int, Mark] = {}
        self._log_state: LogState | None = None
        self._suspicions: tuple[int, dict[str, int]] = (0, {})
        self.start()

    def start(self) -> None:
        """Start a new process from the persisted state, through the rows of the index."""
        incarnations = tuple([rows.incarnation_of(key, row) for key, row in sorted(self.incarnations.items())])
        effects = [rows.effect_of(rows.effect_row(effect)) for effect in self.effects[-HISTORY_KEPT:]]
        marks = dict([rows.mark_of(rows.mark_key(partition), rows.mark_row(mark)) for partition, mark in self._marks.items()])
        state = JoinerState(
            {ORDERING: 0, **self._offsets}, self._log_time, incarnations, self._log_state, effects, marks, *self._suspicions
        )
        self.joiner = Joiner(state, self.limits)
        self._seek()

    def _seek(self) -> None:
        """Begin with a new reader, which has paused nothing yet, as the driver does."""
        self.paused: frozenset[int] = frozenset()
        self.read_next = dict.fromkeys(range(ORDERING, PARTITIONS_MAX), 0) | self.joiner.read_next()

    def unread(self, partition: int) -> int:
        return 0 if partition in self.paused else max(0, self.by_partition.end(partition) - self.read_next[partition])

    def read(self, portions: dict[int, int], now_ms: int, *, crash: bool = False) -> Ready:
        """Poll once and run its steps; a crash loses the last step before it was persisted."""
        records = []
        for partition, count in portions.items():
            for offset in range(self.read_next[partition], self.read_next[partition] + min(count, self.unread(partition))):
                records.append(self.by_partition.record(partition, offset))
                self.read_next[partition] = offset + 1
        ready = self.joiner.step(records, now_ms)
        if crash:
            self.start()
            return Ready({}, 0)
        self._persist(ready)
        while ready.more or ready.evidence is not None:
            if ready.evidence is not None:
                self.joiner.examined(ready.evidence)
            ready = self.joiner.step((), now_ms)
            self._persist(ready)
        assert ready.stop is None
        self.paused = ready.paused
        if ready.read_again:
            self.joiner.forget_unapplied()
            self._seek()
        return ready

    def _persist(self, ready: Ready) -> None:
        if not ready.advanced:
            assert not ready.batches
            assert not ready.incarnations
            assert not ready.effects
            return
        self.batches += ready.batches
        self._offsets |= ready.offsets_next
        self._log_time = ready.log_time_ms
        self.incarnations |= {rows.incarnation_key(state.incarnation): rows.incarnation_row(state) for state in ready.incarnations}
        self.effects += ready.effects
        self._marks |= ready.marks
        self._log_state = ready.log_state or self._log_state
        self._suspicions = (ready.agreed, dict(ready.suspicions))

    def read_all(self, now_ms: int) -> Ready:
        """Read all topic-partitions until nothing is left in those that are not paused."""
        ready = self.read({}, now_ms)
        while any(self.unread(partition) for partition in self.read_next):
            ready = self.read(dict.fromkeys(self.read_next, 1000), now_ms)
        return ready

    def check(self) -> None:
        """Check that everything that the log determines is equal to the replay."""
        replayed = self.by_partition.replayed()
        assert [
            (b.offset, b.incarnation, b.sequence, b.log_time_ms, b.filled, [r.transaction_id.hex() for r in b.requests])
            for b in self.batches
        ] == [(b.offset, b.incarnation, b.sequence, b.log_time, b.signed_fill, [*b.ids]) for b in replayed.batches]
        effects = [(each.offset, each.history_after) for each in replayed.records if each.why_not is None]
        assert [(effect.offset, effect.history) for effect in self.effects] == effects


# The next reads: portions of topic-partitions, time that passes, and the end of the step.
polls = st.tuples(
    st.dictionaries(st.integers(ORDERING, PARTITIONS_MAX - 1), st.integers(1, 4), max_size=3),
    st.sampled_from([0, 1, 1500, 10**6]),
    st.sampled_from(["go on", "go on", "go on", "restart", "forget", "crash"]),
)
limits = st.builds(
    JoinerLimits,
    buffer_bytes_max=st.sampled_from([0, 300, 1000, 1 << 20]),
    queue_ids_max=st.sampled_from([0, 2, 1000]),
    step_requests_max=st.sampled_from([1, 2, 1000]),
    worker_timeout_ms=st.sampled_from([0, 30_000]),
    fence_bytes_min=st.sampled_from([0, 32 << 20]),
)


def _follow(worker: Worker, schedule: list[Any]) -> int:
    now_ms = 0
    for portions, passed_ms, ending in schedule:
        now_ms += passed_ms
        worker.read(portions, now_ms, crash=ending == "crash")
        if ending == "restart":
            worker.start()
        elif ending == "forget":
            worker.joiner.forget_unapplied()
            worker._seek()
    return now_ms


@SHARED
@given(histories(), st.lists(st.tuples(limits, st.lists(polls, max_size=12)), min_size=1, max_size=3))
def test_any_reading_gives_the_replay(history: tuple[list[Any], list[list[Any]]], readings: list[Any]) -> None:
    """For any portions, interleaving, clock, limits, restarts and crashes, batches and history are the log's up to its first hole."""
    for limits_, schedule in readings:
        worker = Worker(MemoryPartitions(*history), limits_)
        worker.read_all(_follow(worker, schedule))
        worker.check()


def _fills(ready: Ready, worker: Worker) -> Iterator[FillWanted]:
    """Yields the proposed fills, only of partitions that the worker has read to their ends (R4)."""
    for fill in ready.fills:
        if worker.read_next[fill.partition] == worker.by_partition.end(fill.partition):
            yield fill


@SHARED
@given(histories(), limits, st.lists(polls, max_size=8), st.lists(st.booleans(), max_size=12))
def test_holes_are_filled(history: tuple[list[Any], list[list[Any]]], limits_: JoinerLimits, schedule: list[Any], late: list[bool]) -> None:
    """Appending the proposed fills, sometimes after the late payload, leads to a log without holes that all workers read alike."""
    ordering, payloads = [*history[0]], [[*partition] for partition in history[1]]
    by_partition = MemoryPartitions(ordering, payloads)
    worker = Worker(by_partition, limits_)
    now_ms = _follow(worker, schedule)
    by_hash = {_hash(record[7]): record[7] for record in ordering if record[0] == "entry"}
    for _ in range(len(ordering) + 1):
        worker.read_all(now_ms)
        if worker.joiner.hole is None:
            break
        now_ms += limits_.hole_timeout_ms
        fills = list(_fills(worker.read({}, now_ms), worker))
        assert fills, "a hole at the head, read to the end of its partition, is proposed for a fill after the timeout"
        log_state = worker.joiner.log_state
        assert log_state is not None
        key = next(number for number, key in enumerate(KEYS) if key.public_key == log_state.key)
        for fill in fills:
            name = (fill.incarnation, fill.sequence)
            if late and late.pop():
                payloads[fill.partition].append((*name, by_hash[fill.payload_hash]))
            payloads[fill.partition].append((*name, "fill", by_hash[fill.payload_hash], key))
    assert worker.joiner.hole is None
    assert worker.joiner.offset_head == len(ordering)
    assert by_partition.replayed().offset_head == len(ordering)
    worker.check()
    again = Worker(by_partition, JoinerLimits())
    again.read_all(0)
    again.check()
    assert again.incarnations == worker.incarnations
    assert again.joiner.marks == worker.joiner.marks


@SHARED
@given(histories(), st.lists(polls, max_size=8))
def test_what_is_buffered_may_still_count(history: tuple[list[Any], list[list[Any]]], schedule: list[Any]) -> None:
    """Payloads of an ended incarnation or a passed sequence do not stay buffered; the partition that the head needs is never paused."""
    worker = Worker(MemoryPartitions(*history), JoinerLimits(buffer_bytes_max=500, queue_ids_max=2))
    worker.read_all(_follow(worker, schedule))
    incarnations = worker.joiner.incarnations
    for incarnation, waiting in worker.joiner.payloads.buffer._by_incarnation.items():
        for sequence, _ in waiting:
            assert not incarnations.is_past(incarnation, sequence)
    hole = worker.joiner.hole
    if hole is not None:
        assert hole.partition not in worker.paused
    else:
        assert ORDERING not in worker.paused
