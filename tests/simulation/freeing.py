"""The owner frees payloads that two snapshots do not need (`notary trim`). A new disk then begins with a snapshot, as an empty one cannot.

The lists of the cluster keep all records, for the checkers: they are the archive.
"""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from joiner.ready import JoinerState
from notary.cli.trim import to_free
from notary.index import Index, rows
from notary.index.store import META
from ordering.log import ORDERING
from ordering.records import SALVAGE_FORMAT, Trim, View
from tests.checkers.replay import replay
from tests.simulation.damage import contradicts
from tests.simulation.deployment import NOTARY
from tests.simulation.disk import SimulatedDisk, SimulatedStore
from tests.simulation.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


class Taken(msgspec.Struct, frozen=True):
    """A snapshot: a copy of an index, its number of decisions, and the state from which its reader resumes."""

    disk: SimulatedDisk
    decisions: int
    state: JoinerState


class Freeing:
    """The snapshots of one simulation, and the payloads that they make unneeded."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._snapshots: list[Taken] = []

    def take(self, machine: Machine) -> None:
        """Take a snapshot of a worker's index, unless a fault has changed a row there."""
        if not machine.disk.altered and (taken := _taken(machine.disk)) is not None:
            self._snapshots.append(taken)

    def free(self, draw: random.Random) -> int:
        """Declare the payloads that the last two snapshots do not need, and free them. Returns the number of freed records."""
        cluster, owner = self._simulation.cluster, self._simulation.owner
        replayed = replay(cluster.by_partition)
        two = self._snapshots[-2:]
        position = min([each.decisions for each in two], default=0)
        if len(two) < 2 or not position or SALVAGE_FORMAT not in replayed.versions or not cluster.takes(ORDERING):
            return 0
        if any(contradicts(each.disk, cluster) for each in two):
            return 0  # the command compares both with the log
        if position > replayed.trimmed:
            owner.write(Trim(replayed.keys[-1], View(replayed.seen, replayed.histories[-1]), position, replayed.root(position)))
            if replay(cluster.by_partition).trimmed != position:
                return 0
        firsts = {partition: cluster.starts.get(partition, 0) for partition in cluster.by_partition}
        wanted = to_free([each.state for each in two], firsts)
        if draw.random() < 0.2:
            wanted = dict(list(wanted.items())[:1])  # the command ends before it has freed all
        cluster.starts.update(wanted)
        return sum(offset - firsts[partition] for partition, offset in wanted.items())

    def lacks(self, disk: SimulatedDisk) -> bool:
        """Returns True if the log no longer has all payloads that a reader of this disk reads or compares."""
        starts, taken = self._simulation.cluster.starts, _taken(disk)
        return bool(starts) if taken is None else self._is_behind(taken)

    def _is_behind(self, taken: Taken) -> bool:
        return any(taken.state.needed_from(partition) < offset for partition, offset in self._simulation.cluster.starts.items())

    def new_disk(self, disk: SimulatedDisk) -> None:
        """Replace a disk: by an empty one, or, once payloads are freed, by one with the newest snapshot that fits the log.

        If there is none, because the log has lost its end, the archive brings the freed payloads back.
        """
        simulation = self._simulation
        disk.wipe()
        if not self.lacks(disk):
            return
        for one in reversed(self._snapshots):
            if not self._is_behind(one) and not contradicts(one.disk, simulation.cluster):
                disk.journal = [list(batch) for batch in one.disk.journal]
                disk.restore(len(disk.journal))
                simulation.count("disks that begin with a snapshot")
                return
        simulation.cluster.starts.clear()
        simulation.count("freed payloads put back")


def _taken(disk: SimulatedDisk) -> Taken | None:
    """Returns a snapshot of a disk; None if no record has taken effect there."""
    copy, index = copied(disk)
    state = index.joiner_state()
    return None if state.log_state is None else Taken(copy, index.position_next, state)


def copied(disk: SimulatedDisk) -> tuple[SimulatedDisk, Index]:
    """Returns a copy of a disk, and the index on it."""
    copy = SimulatedDisk("copy")
    copy.journal = [list(batch) for batch in disk.journal]
    copy._load()
    log_identity = dict(copy.contents()[META]).get(rows.LOG_KEY, b"").decode()
    return copy, Index.over(SimulatedStore(copy, lambda step: None), Path("copy"), notary_name=NOTARY, log_identity=log_identity)
