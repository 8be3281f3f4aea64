"""Of all histories: the joiner emits what the reference reads off the complete log, however it is read (R2 to R5, R8).

A history is drawn as tuples (see `reference`), encoded to records, and read by joiners that are restarted, crash between a step and its
persisting, get the streams in any portions, have any clock, and honour the pauses that they asked for.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joiner import FillWanted, Joiner, JoinerLimits, JoinerState, OrderedBatch, Ready
from notary.index.rows import life_key, life_of, life_row
from ordering.log import ORDERING, Record
from ordering.records import Activate, Checkpoint, Entry, Fence, Register, batch_key, encode
from tests.joiner.history import NOTARY, requests, value
from tests.properties.reference import joined

# Machines here are shared: how long an example takes says nothing.
SHARED = settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

PARTITIONS = 3
NAMES = ("w1", "w2", "w3")
GARBAGE = (None, b"", b"\x01", b"\x01\x01short", b"\x02\x01", b"\x01\x63", encode(Activate(1)), encode(Checkpoint(1, 3, bytes(32))))
BAD_CONTENT = (b"", b"[", b"{}", b"null", b'[{"party":""}]')

incarnations = st.integers(1, 4)
sequences = st.integers(1, 5)
partitions = st.integers(0, PARTITIONS - 1)
labels = st.lists(st.sampled_from("abc"), max_size=2, unique=True).map(tuple)
times = st.sampled_from([0, 1, 1000, 60_000, 10**6, 10**6 + 1, 10**6 + 60_000, 10**6 + 70_000, 10**9])
registers = st.tuples(st.just("register"), st.integers(0, 6), st.sampled_from(NAMES))
fences = st.tuples(st.just("fence"), incarnations, st.integers(0, 5))
contents = st.one_of(labels, labels, st.none(), st.just(("?",)))

# One thing that happens: a few ordering records and a few payload records, in that order within each stream.
control = st.one_of(registers, registers, fences, st.just(("other",))).map(lambda record: ([record], []))


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """What a worker, its retries, a mirror, a filler and a forger make of one batch."""
    name = draw(incarnations), draw(sequences)
    partition, ids = draw(partitions), draw(labels)
    entry = ("entry", *name, draw(times), draw(times), draw(st.sampled_from([partition] * 6 + [PARTITIONS])), ids)
    payload = (partition, (*name, ids))
    others = draw(st.lists(st.tuples(partitions, st.tuples(st.just(name[0]), st.just(name[1]), contents)), max_size=1))
    sent = draw(st.sampled_from([[payload]] * 5 + [[], [payload, payload], [(partition, (*name, None)), payload]]))
    return [entry] * draw(st.sampled_from([1, 1, 1, 1, 0, 2])), draw(st.permutations([*sent, *others]))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Any], list[list[Any]]]:
    """(ordering, payloads by partition), with the first lives registered more often than not."""
    events = draw(st.lists(st.one_of(batches(), batches(), batches(), control), max_size=14))
    ordering = [("register", n, name) for n, name in enumerate(NAMES[: draw(st.integers(0, 3))])]
    payloads: list[list[Any]] = [[] for _ in range(PARTITIONS)]
    for entries, contents_ in events:
        ordering += entries
        for partition, content in contents_:
            payloads[partition].append(content)
    # Streams are ordered each for itself; some are shuffled against the order of events.
    for stream in (ordering, *payloads):
        if stream and draw(st.integers(0, 4)) == 0:
            stream[:] = draw(st.permutations(stream))
    for garbage in draw(st.lists(partitions, max_size=2)):
        payloads[garbage].append(None)
    return ordering, payloads


@cache
def _value(labels_: tuple[str, ...]) -> bytes:
    return BAD_CONTENT[len(labels_)] if labels_ == ("?",) else value(*labels_)


@cache
def _ids(labels_: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple([request.transaction_id for request in requests(*labels_)])


class MemoryStreams:
    """The history as records; fills can be appended to it."""

    def __init__(self, ordering: list[Any], payloads: list[list[Any]]) -> None:
        self.ordering, self.payloads = ordering, payloads

    def end(self, stream: int) -> int:
        return len(self.ordering if stream == ORDERING else self.payloads[stream])

    def record(self, stream: int, offset: int) -> Record:
        if stream != ORDERING:
            content = self.payloads[stream][offset]
            if content is None:
                return Record(stream, offset, 0, (None, b"short")[offset % 2], b"garbage")
            incarnation, sequence, labels_ = content
            return Record(stream, offset, 0, batch_key(incarnation, sequence), None if labels_ is None else _value(labels_))
        at = 0
        match self.ordering[offset]:
            case ("register", nonce, name):
                data = encode(Register(bytes([nonce]) * 16, 1, name, "0"))
            case ("fence", incarnation, last):
                data = encode(Fence(incarnation, last))
            case ("entry", incarnation, sequence, sent_at, at, partition, labels_):
                data = encode(Entry(incarnation, sequence, sent_at, partition, _ids(labels_)))
            case _:
                return Record(ORDERING, offset, 5, None, GARBAGE[offset % len(GARBAGE)])
        return Record(ORDERING, offset, at, None, data)


class Worker:
    """A worker without IO: a joiner, a reader that honours its pauses, and what is durable."""

    def __init__(self, streams: MemoryStreams, limits: JoinerLimits) -> None:
        self.streams, self.limits = streams, limits
        self.batches: list[OrderedBatch] = []
        self._offsets = dict.fromkeys(range(ORDERING, PARTITIONS), 0)
        self._log_time = 0
        self._lives: dict[bytes, bytes] = {}
        self.start()

    def start(self) -> None:
        """A new process: what is durable, through the rows of the index."""
        lives = tuple([life_of(key, row) for key, row in sorted(self._lives.items())])
        self.joiner = Joiner(NOTARY, PARTITIONS, JoinerState(dict(self._offsets), self._log_time, lives), self.limits)
        self.read_next = dict(self._offsets)
        self.paused: frozenset[int] = frozenset()

    def unread(self, stream: int) -> int:
        return 0 if stream in self.paused else max(0, self.streams.end(stream) - self.read_next[stream])

    def read(self, portions: dict[int, int], now_ms: int, *, crash: bool = False) -> Ready:
        """One poll and its steps; a crash loses the last step before it was persisted."""
        records = []
        for stream, count in portions.items():
            for offset in range(self.read_next[stream], self.read_next[stream] + min(count, self.unread(stream))):
                records.append(self.streams.record(stream, offset))
                self.read_next[stream] = offset + 1
        ready = self.joiner.step(records, now_ms)
        if crash:
            self.start()
            return Ready({}, 0)
        self._persist(ready)
        while ready.more:
            ready = self.joiner.step((), now_ms)
            self._persist(ready)
        self.paused = ready.paused
        return ready

    def _persist(self, ready: Ready) -> None:
        if not ready.advanced:
            assert not ready.batches
            assert not ready.lives
            return
        self.batches += ready.batches
        self._offsets |= ready.offsets_next
        self._log_time = ready.log_time_ms
        self._lives |= {life_key(life.incarnation): life_row(life) for life in ready.lives}

    def read_all(self, now_ms: int) -> Ready:
        """Whole streams, until nothing is left that is not paused."""
        ready = self.read({}, now_ms)
        while any(self.unread(stream) for stream in self.read_next):
            ready = self.read(dict.fromkeys(self.read_next, 1000), now_ms)
        return ready

    def plain(self) -> list[tuple[Any, ...]]:
        return [
            (b.offset, b.incarnation, b.sequence, b.log_time_ms, b.filled, tuple([r.transaction_id for r in b.requests]))
            for b in self.batches
        ]


def _expected(ordering: list[Any], payloads: list[list[Any]]) -> list[tuple[Any, ...]]:
    found, _ = joined(ordering, payloads)
    return [(*batch[:4], batch[4] is None, _ids(batch[4] or ())) for batch in found]


# What happens next while reading: portions of streams, time that passes, and how the step ends.
polls = st.tuples(
    st.dictionaries(st.integers(ORDERING, PARTITIONS - 1), st.integers(1, 4), max_size=3),
    st.sampled_from([0, 1, 1500, 10**6]),
    st.sampled_from(["go on", "go on", "go on", "restart", "crash"]),
)
limits = st.builds(
    JoinerLimits,
    buffer_bytes_max=st.sampled_from([0, 300, 1000, 1 << 20]),
    queue_ids_max=st.sampled_from([0, 2, 1000]),
    step_requests_max=st.sampled_from([1, 2, 1000]),
    worker_timeout_ms=st.sampled_from([0, 30_000]),
)


def _follow(worker: Worker, schedule: list[Any]) -> int:
    now_ms = 0
    for portions, passed_ms, ending in schedule:
        now_ms += passed_ms
        worker.read(portions, now_ms, crash=ending == "crash")
        if ending == "restart":
            worker.start()
    return now_ms


@SHARED
@given(histories(), st.lists(st.tuples(limits, st.lists(polls, max_size=12)), min_size=1, max_size=3))
def test_any_reading_gives_the_reference(history: tuple[list[Any], list[list[Any]]], readings: list[Any]) -> None:
    """Any portions, interleaving, clock, limits, restarts and crashes: the batches are those of the complete log, up to its first hole."""
    expected = _expected(*history)
    for limits_, schedule in readings:
        worker = Worker(MemoryStreams(*history), limits_)
        worker.read_all(_follow(worker, schedule))
        assert worker.plain() == expected


def _fills(ready: Ready, worker: Worker) -> Iterator[FillWanted]:
    """R4: only those of partitions that the worker has read to their ends."""
    for fill in ready.fills:
        if worker.read_next[fill.partition] == worker.streams.end(fill.partition):
            yield fill


@SHARED
@given(histories(), limits, st.lists(polls, max_size=8), st.lists(st.booleans(), max_size=12))
def test_holes_are_filled(history: tuple[list[Any], list[list[Any]]], limits_: JoinerLimits, schedule: list[Any], late: list[bool]) -> None:
    """Appending the fills that are proposed, sometimes after the late payload, ends at a log without holes that all read alike."""
    ordering, payloads = [*history[0]], [[*stream] for stream in history[1]]
    streams = MemoryStreams(ordering, payloads)
    worker = Worker(streams, limits_)
    now_ms = _follow(worker, schedule)
    by_name = {record[1:3]: record[6] for record in ordering if record[0] == "entry"}
    for _ in range(len(ordering) + 1):
        worker.read_all(now_ms)
        if worker.joiner.hole is None:
            break
        now_ms += limits_.hole_timeout_ms
        fills = list(_fills(worker.read({}, now_ms), worker))
        assert fills, "a hole at the head, read to the end of its partition, is proposed for a fill after the timeout"
        for fill in fills:
            name = (fill.incarnation, fill.sequence)
            if late and late.pop():
                payloads[fill.partition].append((*name, by_name[name]))
            payloads[fill.partition].append((*name, None))
    assert worker.joiner.hole is None
    assert worker.read_next[ORDERING] == len(ordering)
    assert joined(ordering, payloads)[1] == len(ordering)
    assert worker.plain() == _expected(ordering, payloads)
    again = Worker(streams, JoinerLimits())
    again.read_all(0)
    assert again.plain() == worker.plain()
    assert again._lives == worker._lives


@SHARED
@given(histories(), st.lists(polls, max_size=8))
def test_what_is_buffered_may_still_count(history: tuple[list[Any], list[list[Any]]], schedule: list[Any]) -> None:
    """Memory: nothing stays buffered of a fenced life, nor of a sequence that is passed; the paused streams never hold the head's."""
    worker = Worker(MemoryStreams(*history), JoinerLimits(buffer_bytes_max=500, queue_ids_max=2))
    worker.read_all(_follow(worker, schedule))
    lives = worker.joiner.lives
    for incarnation in worker.joiner._buffer.incarnations():
        for sequence, _ in worker.joiner._buffer._by_life[incarnation]:
            assert not lives.is_past(incarnation, sequence)
    hole = worker.joiner.hole
    if hole is not None:
        assert hole.partition not in worker.paused
    else:
        assert ORDERING not in worker.paused
