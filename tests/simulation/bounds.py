"""The bounds on a worker's memory: the records that it may buffer, their bytes (R5), and the fencing of silent incarnations."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from joiner import Joiner
from joiner.buffer import RECORD_OVERHEAD_BYTES
from ordering.log import ORDERING, Record
from tests.checkers import memory
from tests.checkers.replay import Replayed, by_key, replay
from tests.checkers.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


def kept(simulation: "Simulation") -> list[Violation]:
    """Returns the violations: each running worker may buffer only records that may still count, as far as it has read.

    It must also be ready to read all of those again after a restart.
    """
    found: list[Violation] = []
    everything = frozenset(range(len(simulation.losses.damages)))
    complete = replay(simulation.cluster.by_partition)
    to_heads: dict[int, Replayed] = {}
    for process in simulation.processes():
        worker = process.worker
        if worker is None or worker.index.broken or worker.index.agreement.quarantined:
            continue
        if everything and (process.met != everything or worker.driver.suspicion() or process.was_paused_since(simulation.loop.time())):
            continue  # it has not noticed the loss of what it read, or could not yet
        if everything and process.interrupted:
            continue  # it is about to notice
        joiner = worker.driver.joiner
        if joiner.payloads.dropped:
            continue  # records that were dropped for want of memory will be read again
        offsets_next = worker.index.joiner_state().offsets_next
        head = offsets_next[ORDERING]
        if head not in to_heads:
            to_heads[head] = replay(simulation.cluster.by_partition, offset_stop=head)
        found += memory.violations(
            simulation.cluster.by_partition,
            to_heads[head],
            read_next=joiner.read_next(),
            offsets_next=offsets_next,
            buffered_records=joiner.buffered_records,
            name=process.name,
            complete=complete,
        )
    return found


def silent_incarnations(simulation: "Simulation") -> list[int]:
    """The incarnations that another worker must fence: silent beyond the timeout, with a payload that waits for their entry (R5).

    The other worker must have that payload in memory: where memory is full of payloads that may still count, the rest is read on demand,
    or was dropped and takes no memory.
    """
    replayed = replay(simulation.cluster.by_partition)
    silent_since_ms = replayed.log_time - simulation.plan.worker_timeout_ms
    waiting: dict[int, set[tuple[int, int]]] = {}
    for process in simulation.processes():
        if process.worker is not None and process.worker.sender.incarnation is not None:
            joiner = process.worker.driver.joiner
            read = joiner.read_next() | {partition: dropped.offset for partition, dropped in joiner.payloads.dropped.items()}
            waiting[process.worker.sender.incarnation] = {
                name
                for partition in range(replayed.partitions)
                for name in by_key(simulation.cluster.by_partition[partition][: read.get(partition, 0)])
            }
    return [
        state.incarnation
        for state in replayed.incarnations
        if not state.fenced
        and state.active_at < silent_since_ms
        and any(
            incarnation == state.incarnation and sequence > state.sequence_last
            for reader, names in waiting.items()
            if reader != state.incarnation  # a worker does not fence itself
            for incarnation, sequence in names
        )
    ]


class BufferBound:
    """The limit on the bytes that one process buffers, checked at each of its polls.

    One poll may exceed it. From then on only the partition that the head waits for is read, which is never paused. After an interruption
    the joiner receives several polls together.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = self._allowed = bytes_max

    def polled(self, joiner: Joiner, records: Sequence[Record], *, looked: bool) -> str:
        """Check a poll; `joiner` is in the state in which it asked for these records. Returns the violation, empty for none.

        `looked`: the log was compared since the last interruption.
        """
        size = joiner.buffered_bytes
        if size > self._allowed:
            return f"{size} bytes buffered, {self._allowed} allowed"
        payloads = [record for record in records if record.partition != ORDERING]
        at_least = max(size, self._bytes_max) if looked else max(self._allowed, self._bytes_max)
        self._allowed = at_least + sum([RECORD_OVERHEAD_BYTES + len(record.value or b"") for record in payloads])
        awaited = None if joiner.hole is None else joiner.hole.partition
        if looked and size > self._bytes_max and any(record.partition != awaited for record in payloads):
            return f"{size} bytes buffered, {self._bytes_max} allowed, and partitions besides {awaited} are read on"
        return ""
