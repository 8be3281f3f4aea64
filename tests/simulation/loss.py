"""The log loses its end and grows again: all replicas lost their disks, or one that was behind was made the leader.

Acknowledged records are gone, and others take their offsets. No notary can make that good. What can be demanded of it:

- A worker whose index is ahead of the log, or holds another record at its last applied ordering offset, refuses, and goes on refusing;
  its operator gives it a new disk (the runbook's last resort: it replays what there is).
- A worker that has applied nothing of what was lost goes on, and makes of the new log what anybody makes of it: nothing that it had read
  and not applied may come in.
- So no two processes keep answering differently. What was told of the lost part before the loss is excused, and what a worker tells that
  had applied it until it notices, at the latest `NOTICED_S` after the brokers are back and everything heals; nothing else, and only what
  the lost log says.

- A process that waits for what it had sent, and the log had acknowledged, waits for ever, and says that it is not ready: its operator
  stops all that ran before the loss (the runbook's first step) once those that notice it by themselves have had the time to.

What is lost is a part of the order, and contents that nobody needs who has not applied that part. (A content that is lost while its entry
stays is decided as a hole by who reads it later. No look at the order shows that to who had applied it, or read past it; roots do.)
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from notary.index import rows
from notary.index.store import META
from ordering.log import ORDERING, Record
from tests.checkers.replay import Replayed, first_contents, replay
from tests.simulation.cluster import Cluster
from tests.simulation.disk import SimulatedDisk
from tests.simulation.premises import NOTARY

if TYPE_CHECKING:
    from tests.simulation.world import World

RECORDS = (1, 1, 2, 5, 15)
"""How many ordering records are lost: where it is one, the log is soon longer than before."""
AWAY_S = (0.0, 0.3, 2.0, 15.0)
NOTICED_S = 30.0
"""Two looks at the log, ten seconds of doubt, and the end of what was taken in."""
IN_THE_AIR_S = 1.0
"""An answer may be on its way to its client when the log is lost."""


class Loss:
    """One loss: what the log was, how much of its order was kept, and when."""

    def __init__(
        self, cluster: Cluster, outlived_by: Sequence[str], read_next: Mapping[str, Mapping[int, int]], ordering_kept: int
    ) -> None:
        """`outlived_by`: whose indexes have applied what was lost; `read_next`: how far each process had read."""
        self._partitions = cluster.plan.partitions
        self._faults_s = cluster.plan.faults_s
        self._streams: dict[int, list[Record]] = {stream: list(records) for stream, records in cluster.streams.items()}
        self._ordering_kept = ordering_kept
        self.outlived_by = frozenset(outlived_by)
        self._read_next = read_next
        self._ends: dict[int, int] = {}
        self.at_s = self.back_s = cluster.loop.time()

    @cached_property
    def before(self) -> Replayed:
        """What the log decided."""
        return replay(self._streams, NOTARY, self._partitions)

    @cached_property
    def kept(self) -> Replayed:
        """What it decides without its end."""
        return replay(self._streams, NOTARY, self._partitions, offset_stop=self._ordering_kept)

    def may_tell(self, name: str, at_s: float) -> bool:
        """Whether a process of that slot may have told, at that time, what is lost."""
        return at_s <= self.at_s + IN_THE_AIR_S or (name in self.outlived_by and at_s <= self._noticed_s)

    def keep(self, ends: Mapping[int, int]) -> None:
        """What there is left."""
        self._ends = dict(ends)

    def may_end(self, name: str, at_s: float) -> bool:
        """Whether a process of that slot may end at that time because it had read further than there is, applied or not."""
        ahead = any(offset > self._ends[stream] for stream, offset in self._read_next.get(name, {}).items())
        return ahead and at_s <= self._noticed_s

    @property
    def _noticed_s(self) -> float:
        return max(self.back_s, self._faults_s) + NOTICED_S

    def explains(self, decision: dict[str, Any]) -> bool:
        """Whether it is a decision that was lost."""
        position: int = decision["position"]
        return position >= len(self.kept.decisions) and decision in self.before.decisions[position : position + 1]


def strike(world: "World", draw: random.Random) -> Loss | None:
    """All brokers go down, and have lost the end when they come back; None when there is nothing to lose."""
    cluster = world.cluster
    length = len(cluster.streams[ORDERING])
    if not length:
        return None
    kept = length - min(length, draw.choice(RECORDS))
    slots = (*world.slots, *world.gone)
    read_next = {process.name: process.worker.driver.joiner.read_next() for process in world.processes() if process.worker is not None}
    loss = Loss(cluster, [slot.label for slot in slots if _head(slot.disk) > kept], read_next, kept)
    for stream, records in cluster.streams.items():
        if stream == ORDERING:
            end = kept
        else:
            named = {(batch.incarnation, batch.sequence) for batch in loss.kept.batches}
            ends = [record.offset + 1 for name, record in first_contents(records).items() if name in named]
            ends += [_offset_next(slot.disk, stream) for slot in slots if slot.label not in loss.outlived_by]
            end = draw.randint(max(ends, default=0), len(records)) if draw.random() < 0.7 else len(records)
        del records[end:], cluster.landed_s[stream][end:]
    loss.keep({stream: len(records) for stream, records in cluster.streams.items()})
    cluster.generation += 1
    cluster.shown.clear()
    cluster.away = True
    cluster.wake()
    return loss


async def stop_all(world: "World", loss: Loss) -> None:
    """The operator stops what has run since before the loss, when whoever notices it has done so."""
    await asyncio.sleep(max(loss.back_s, world.plan.faults_s) + NOTICED_S - world.loop.time())
    for slot in world.slots:
        process = slot.running()
        if process is not None and process.began_s <= loss.at_s:
            if process.worker is not None and contradicts(slot.disk, world.cluster):
                world.problem(process.name, f"it goes on {NOTICED_S:g} s after the log came back without what it has applied")
            world.say(process.name, "is told to end, for it ran before the loss")
            process.stop.set()


def contradicts(disk: SimulatedDisk, cluster: Cluster) -> bool:
    """Whether the last ordering record that this index has applied is not the one that the log has there."""
    head = _head(disk)
    records = cluster.streams[ORDERING]
    return head > len(records) or (head > 0 and disk.families[META][rows.JUDGED_KEY] != records[head - 1].digest())


def _head(disk: SimulatedDisk) -> int:
    return _offset_next(disk, ORDERING)


def _offset_next(disk: SimulatedDisk, stream: int) -> int:
    row = disk.families[META].get(rows.offset_key(stream))
    return 0 if row is None else int.from_bytes(row, "big")
