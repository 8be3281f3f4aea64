"""The simulated log: the brokers' records (`Cluster`), one process's access to them (`SimulatedLog`), and all faults in between.

The contract of `ordering.log` holds, and nothing beyond it. A topic-partition has one order, and a reader that reads a record again sees
the same record. But an append may be lost, late, repeated, or reported as failed although it was applied. A reader may lag by any amount,
different in each topic-partition, and may stall without an error. Leaders go away, and outdated brokers show less than they have.

Brokers may also lose the end of what they have acknowledged, and grow again (`Cluster.cut`): that breaks the contract, and rule R10 covers
it. A reader then sees an interruption at its first fetch of that topic-partition, as after every leader change and every reconnection.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Context
from typing import Protocol

import msgspec

from ordering.errors import ConfigurationError, NotReady, OutcomeUnknown, OutOfRange
from ordering.local_reader import check_partitions
from ordering.log import ORDERING, Leader, LogOffsets, Record, describe
from tests.simulation.plan import AppendFates, Plan

CHECK_AGAIN_S = 0.1
"""The interval, in seconds, at which an append that waits for a leader is tried again."""


class Host(Protocol):
    """The process on whose behalf the log acts."""

    name: str
    dead: bool
    cut_off: bool

    def step(self, where: str) -> None:
        """A point where the process may die. Raises when it does, or already has."""
        ...

    def polled(self, reader: "SimulatedReader", records: Sequence[Record]) -> None:
        """Note that a reader of the process is about to return these records."""
        ...

    def fetched(self, reader: "SimulatedReader", partition: int) -> None:
        """Note that a reader of the process has fetched from the present leader of that topic-partition, and will return the result."""
        ...


class Damage(msgspec.Struct, frozen=True):
    """One loss: the brokers lost the end of one topic-partition."""

    number: int
    partition: int
    epoch: int
    """The leader epoch of that topic-partition since the loss."""
    at_s: float
    before: Mapping[int, Sequence[Record]]
    """All topic-partitions as they were before the loss."""
    lost: Sequence[Record]


class Cluster:
    """All brokers as one: their records, the leaders, and their clock."""

    def __init__(self, plan: Plan, loop: asyncio.AbstractEventLoop, clock_ms: Callable[[], int], trace: Callable[[str, str], None]) -> None:
        self.plan = plan
        self.loop = loop
        self.clock_ms = clock_ms
        self.trace = trace
        self.by_partition: dict[int, list[Record]] = {partition: [] for partition in range(ORDERING, plan.partitions)}
        self.landed_s: dict[int, list[float]] = {partition: [] for partition in self.by_partition}
        self.epochs: dict[int, int] = dict.fromkeys(self.by_partition, 0)
        """Leader epochs: the number of times that a topic-partition may have changed without its readers' knowledge."""
        self.damages: list[Damage] = []
        self.starts: dict[int, int] = {}
        """The log start offsets of payload partitions whose first records were freed. The lists of records keep these."""
        self.forged: list[Record] = []
        """The records that a writer without the notary's keys has appended."""
        self.leaderless: set[int] = set()
        self.shown: dict[int, int] = {}
        """The topic-partitions of which an outdated broker shows only this many records; they accept no appends meanwhile."""
        self.away = False
        """True while all brokers are down."""
        self.generation = 0
        """The number of times that the brokers were recreated after a loss; earlier readers, writers and appends in flight are invalid."""
        self.fates: AppendFates = plan.fates
        self.lag_s = plan.reader_lag_s
        self.payload_s = plan.payload_s
        self.behind_s: dict[int, float] = {}
        """The minimum lag of all readers, in seconds, by topic-partition."""
        self.slow_entries_s: dict[str, float] = {}
        """The added delay of a host's ordering records, in seconds, by host name."""
        self.draw = random.Random(f"cluster {plan.seed}")
        self._waiting: list[asyncio.Future[None]] = []
        self.fates_met: Counter[str] = Counter()
        """The number of appends for each fate."""

    def takes(self, partition: int) -> bool:
        """Returns whether the topic-partition accepts an append now."""
        return not self.away and partition not in self.leaderless and partition not in self.shown

    def end(self, partition: int) -> int:
        """Returns the log end offset that readers see."""
        return self.shown.get(partition, len(self.by_partition[partition]))

    def land(self, partition: int, key: bytes | None, value: bytes | None, generation: int | None = None, *, forged: bool = False) -> None:
        """Append a record, or retry later while the topic-partition accepts none. Appends of an earlier generation are dropped."""
        generation = self.generation if generation is None else generation
        if generation != self.generation:
            return
        if not self.takes(partition):
            self.later(CHECK_AGAIN_S, lambda: self.land(partition, key, value, generation, forged=forged))
            return
        records = self.by_partition[partition]
        records.append(Record(partition, len(records), self.clock_ms(), key, value))
        self.landed_s[partition].append(self.loop.time())
        if forged:
            self.forged.append(records[-1])
        self.wake()

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Run this later on behalf of no host: a record in flight arrives even if its sender is paused."""
        self.loop.call_later(delay_s, act, context=Context())

    def add_partitions(self, count: int) -> None:
        """Increase the number of payload partitions to `count`."""
        for partition in range(len(self.by_partition) - 1, count):
            self.by_partition[partition], self.landed_s[partition], self.epochs[partition] = [], [], 0

    def elected(self, *by_partition: int) -> None:
        """Change the leader of these topic-partitions, or the connection to it."""
        for partition in by_partition:
            self.epochs[partition] += 1
        self.wake()

    def cut(self, partition: int, end: int) -> Damage:
        """Lose all records of a topic-partition from the offset `end` on, or from its log start offset; returns the loss."""
        end = max(end, self.starts.get(partition, 0))
        before = {each: list(records) for each, records in self.by_partition.items()}
        lost = self.by_partition[partition][end:]
        del self.by_partition[partition][end:], self.landed_s[partition][end:]
        self.epochs[partition] += 1
        damage = Damage(len(self.damages), partition, self.epochs[partition], self.loop.time(), before, lost)
        self.damages.append(damage)
        self.shown.pop(partition, None)
        return damage

    def wake(self) -> None:
        """Make every waiting reader look again."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def arrival(self, until_s: float) -> None:
        """Return at the next append, or at that time."""
        woken = self.loop.create_future()
        self._waiting.append(woken)
        timer = self.loop.call_at(until_s, lambda: woken.done() or woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()


class _Append(msgspec.Struct):
    key: bytes | None
    value: bytes | None
    due_s: float
    done: asyncio.Future[None]


class SimulatedWriter:
    """A `Writer`: its appends to one topic-partition land in the order of the calls, unless they fail."""

    def __init__(self, log: "SimulatedLog") -> None:
        self._log = log
        self._cluster = log.cluster
        self._queues: dict[int, deque[_Append]] = {partition: deque() for partition in log.cluster.by_partition}
        self._generation = log.cluster.generation
        self._closed = False

    async def append(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Append one record. Raises `OutcomeUnknown`."""
        assert key is not None or value is not None
        self._log.host.step(f"append to {partition}")
        if self._closed:
            raise OutcomeUnknown("this writer is closed")
        if self._generation != self._cluster.generation:
            raise OutcomeUnknown("the brokers do not know this producer")
        cluster, loop = self._cluster, self._cluster.loop
        if partition not in cluster.by_partition:
            raise ConfigurationError(f"there is no payload partition {partition}")
        self._queues.setdefault(partition, deque())
        takes_s = cluster.draw.expovariate(1 / cluster.fates.delay_s)
        if partition == ORDERING:
            takes_s += cluster.slow_entries_s.get(self._log.host.name, 0.0)
        elif (value or b"")[:1] == b"[":
            takes_s += cluster.payload_s  # a fill is small
        append = _Append(key, value, loop.time() + takes_s, loop.create_future())
        self._queues[partition].append(append)
        if len(self._queues[partition]) == 1:
            loop.call_at(append.due_s, self._pump, partition)
        timer = loop.call_later(cluster.plan.append_timeout_s, self._time_out, partition, append)
        try:
            await append.done
        finally:
            timer.cancel()
        self._log.host.step(f"appended to {partition}")

    async def close(self) -> None:
        """Close the writer. Appends in flight may still arrive."""
        self.abandon()

    def abandon(self) -> None:
        """Close the writer without waiting, as when its process dies. Appends in flight may still arrive."""
        self._closed = True
        for partition, queue in self._queues.items():
            while queue:
                append = queue.popleft()
                if self._cluster.draw.random() < 0.5:
                    self._late(partition, append)
                _fail(append, "the writer was closed")

    def _pump(self, partition: int) -> None:
        queue, cluster = self._queues[partition], self._cluster
        if self._generation != cluster.generation:
            while queue:
                _fail(queue.popleft(), "the brokers do not know this producer")
        if not queue:
            return
        if self._log.host.cut_off or not cluster.takes(partition):
            cluster.loop.call_later(CHECK_AGAIN_S, self._pump, partition)
            return
        self._arrive(partition, queue.popleft())
        if queue:
            cluster.loop.call_at(max(queue[0].due_s, cluster.loop.time()), self._pump, partition)

    def _arrive(self, partition: int, append: _Append) -> None:
        cluster, fates, draw = self._cluster, self._cluster.fates, self._cluster.draw
        fate = draw.random()
        for chance, what in (  # noqa: B007 - the one that the loop ends with
            (fates.lost, "lost"),
            (fates.applied_and_failed, "applied and failed"),
            (fates.late, "late"),
            (fates.repeated, "repeated"),
            (1.0, ""),
        ):
            if fate < chance:
                break
            fate -= chance
        if what:
            cluster.fates_met[f"appends {what}"] += 1
            cluster.trace(self._log.host.name, f"append to {partition} is {what}")
        if what == "late":
            self._late(partition, append)
        elif what != "lost":
            cluster.land(partition, append.key, append.value)
            if what == "repeated":
                self._late(partition, append)
        if what in ("", "repeated"):
            delay_s = draw.expovariate(1 / fates.delay_s)
            cluster.loop.call_later(delay_s, lambda: append.done.done() or append.done.set_result(None))
        elif draw.random() < 0.5:  # Otherwise the caller learns of it from the timeout.
            _fail(append, f"the append was {what}")

    def _late(self, partition: int, append: _Append) -> None:
        late_s = self._cluster.draw.choice([0.01, 1.0, 8.0])
        self._cluster.later(late_s, lambda: self._cluster.land(partition, append.key, append.value, self._generation))

    def _time_out(self, partition: int, append: _Append) -> None:
        queue = self._queues[partition]
        if append in queue and self._cluster.draw.random() < 0.5:
            queue.remove(append)
        _fail(append, "no acknowledgement in time")


def _fail(append: _Append, why: str) -> None:
    if not append.done.done():
        append.done.set_exception(OutcomeUnknown(why))
        append.done.exception()  # Retrieved, because the caller that waited may be gone.


class SimulatedReader:
    """A `Reader` whose lag differs between topic-partitions."""

    def __init__(self, log: "SimulatedLog", offsets_next: Mapping[int, int]) -> None:
        self._log = log
        self._cluster = log.cluster
        self._next = {partition: offsets_next.get(partition, 0) for partition in range(ORDERING, log.payload_partitions)}
        self._epochs: dict[int, int] = {}
        self._was_cut_off = False
        self.opened_s = log.cluster.loop.time()
        self.damages_before = len(log.cluster.damages)
        """The number of losses before it was opened."""
        self.interruptions = 0
        """The number of fetches after a possible change of the leader or of the connection."""
        self._lag_s = dict.fromkeys(self._next, 0.0)
        self._generation = log.cluster.generation
        self._paused: frozenset[int] = frozenset()
        self._closed = False
        self.stalled = False

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Returns the next records. Raises `NotReady` for a broken connection, `OutOfRange` for an offset after the log end offset."""
        cluster, host = self._cluster, self._log.host
        if self._closed:
            raise NotReady("this reader is closed")
        until_s = cluster.loop.time() + timeout_ms / 1000
        await asyncio.sleep(0)
        while True:
            host.step("poll")
            if cluster.away or self._generation != cluster.generation:
                raise NotReady("the brokers went away")
            records, soonest_s = self._take()
            if records or cluster.loop.time() >= until_s or self._closed:
                host.polled(self, records)
                return records
            if host.cut_off and cluster.draw.random() < 0.1:
                raise NotReady("the connection to the brokers broke")
            await cluster.arrival(min(until_s, soonest_s))

    def offset_next(self, partition: int) -> int:
        """Returns the offset after the last record returned."""
        return self._next[partition]

    def pause(self, partitions: Collection[int]) -> None:
        """Stop returning records from exactly these topic-partitions."""
        self._paused = frozenset(partitions)

    def is_paused(self, partition: int) -> bool:
        """Returns whether that topic-partition is paused."""
        return partition in self._paused

    async def close(self) -> None:
        """Close the reader; a poll that waits returns."""
        self._closed = True
        self._cluster.wake()

    def _take(self) -> tuple[list[Record], float]:
        """Returns the records that can be read now, and the time at which the next one can."""
        cluster, draw = self._cluster, self._cluster.draw
        soonest_s = float("inf")
        if self.stalled or self._log.host.cut_off:
            self._was_cut_off |= self._log.host.cut_off
            return [], soonest_s
        records: list[Record] = []
        partitions = [partition for partition in self._next if partition not in self._paused and partition not in cluster.leaderless]
        draw.shuffle(partitions)
        if self._was_cut_off and partitions:
            self._was_cut_off, self._epochs = False, {}
            self.interruptions += 1
        for partition in partitions:
            epoch = cluster.epochs[partition]
            self.interruptions += self._epochs.setdefault(partition, epoch) != epoch
            self._epochs[partition] = epoch
            self._log.host.fetched(self, partition)
            offset, end = self._next[partition], cluster.end(partition)
            if offset < (start := cluster.starts.get(partition, 0)):
                raise OutOfRange(f"{describe(partition)} should be read from offset {offset}, and begins at {start}")
            if offset > end:
                raise OutOfRange(f"{describe(partition)} should be read from offset {offset}, and ends at {end}")
            if offset == end:
                continue
            if draw.random() < 0.05:
                self._lag_s[partition] = draw.expovariate(1 / cluster.lag_s) * draw.choice([1, 1, 10]) if cluster.lag_s else 0.0
            landed_s, lag_s = cluster.landed_s[partition], max(self._lag_s[partition], cluster.behind_s.get(partition, 0.0))
            now_s = cluster.loop.time()
            stop = min(end, offset + draw.randint(1, cluster.plan.records_per_poll_max))
            while offset < stop and landed_s[offset] + lag_s <= now_s:
                records.append(cluster.by_partition[partition][offset])
                offset += 1
            if offset < stop:
                soonest_s = min(soonest_s, landed_s[offset] + lag_s)
            self._next[partition] = offset
        return records, soonest_s


class SimulatedLog:
    """A `Log`: one process's access to the cluster."""

    def __init__(self, cluster: Cluster, host: Host) -> None:
        self.cluster = cluster
        self.host = host
        self.writers: list[SimulatedWriter] = []
        self.readers: list[SimulatedReader] = []
        self._closed = False
        self._partitions = len(cluster.by_partition) - 1

    @property
    def payload_partitions(self) -> int:
        """The number of payload partitions when it was last looked up."""
        return self._partitions

    async def has_partitions(self, count: int) -> None:
        """Raises `NotReady` if there are fewer payload partitions than `count`."""
        if self._partitions < count:
            await self._reach("ask for partitions")
            self._partitions = len(self.cluster.by_partition) - 1
        check_partitions("the simulated log", self._partitions, count)

    @property
    def identity(self) -> str:
        """The identity of the log; there is only one."""
        return "simulated"

    async def open_writer(self) -> SimulatedWriter:
        """Open a writer. Raises `NotReady` while the process is cut off."""
        await self._reach("open a writer")
        self.writers = [SimulatedWriter(self)]
        return self.writers[0]

    async def open_reader(self, offsets_next: Mapping[int, int]) -> SimulatedReader:
        """Open a reader at these offsets. Raises `NotReady` while the process is cut off."""
        await self._reach("open a reader")
        if unknown := offsets_next.keys() - set(range(ORDERING, self._partitions)):
            raise ConfigurationError(f"there is no payload partition {min(unknown)}")
        self.readers.append(SimulatedReader(self, offsets_next))
        return self.readers[-1]

    async def offsets(self) -> Mapping[int, LogOffsets]:
        """Returns the log start and log end offset of each topic-partition that has a leader.

        Raises `NotReady` while the process is cut off, or the ordering topic has no leader.
        """
        await self._reach("ask for bounds")
        cluster = self.cluster
        if ORDERING in cluster.leaderless:
            raise NotReady("the ordering topic has no leader")
        known = range(ORDERING, self._partitions)
        ends = {partition: cluster.end(partition) for partition in known if partition not in cluster.leaderless}
        return {partition: LogOffsets(min(cluster.starts.get(partition, 0), end), end) for partition, end in ends.items()}

    def leaders(self) -> Mapping[int, Leader]:
        """Returns the payload partitions that accept appends."""
        return {partition: Leader() for partition in range(self._partitions) if self.cluster.takes(partition)}

    async def close(self) -> None:
        """Close the log and everything opened from it."""
        self._closed = True
        self.abandon()

    def abandon(self) -> None:
        """Abandon all open writers and readers without waiting."""
        for writer in self.writers:
            writer.abandon()
        self.writers, self.readers = [], []

    async def _reach(self, what: str) -> None:
        self.host.step(what)
        await asyncio.sleep(self.cluster.draw.expovariate(1 / self.cluster.fates.delay_s))
        self.host.step(what)
        if self._closed:
            raise NotReady("this log is closed")
        if self.host.cut_off or self.cluster.away:
            raise NotReady(f"the brokers cannot be reached to {what}")
