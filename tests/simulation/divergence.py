"""A worker whose decisions come to differ (R9): a row of its consumed states is changed or deleted, and only its root shows it.

With at least three workers, of which one has such a row, the simulation demands this:

- If one of its decisions came out differently, it is quarantined, and no other worker is: the others go on. Its operator gives it a new
  disk.
- Its wrong answers until then are expected failures: receipts, and decisions from the first position on that it had not made when the row
  was changed. So are the roots that its process writes. Wrong answers of other workers, or at another time, are violations.
- A row that changed no decision need not be found.

A wrong decision may be the last decision for a long time. A worker must write a checkpoint then too, because the log is quiet. So the
clients send nothing at first.
"""

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec

from notary.index.store import DECISIONS, POSITIONS, STATES
from ordering.log import ORDERING, Record
from tests.checkers.records import Root, ordering_record
from tests.checkers.replay import Replayed
from tests.simulation.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

SAME = ("transaction_id", "position", "log_time")
"""The members of a decision that a changed row of a consumed state does not change."""
FOUND_S = 150.0
"""The virtual seconds within which it must be found: turns of ten seconds, one for each incarnation that was active of late."""


class Divergence(msgspec.Struct):
    """A worker whose decisions may differ: the period, the first position, and the processes of its machine."""

    label: str
    from_s: float
    position_from: int
    process_first: int
    until_s: float = float("inf")
    process_end: int | None = None

    def excuses(self, name: str, at_s: float) -> bool:
        """Returns whether this divergence may have caused an answer of a process of that machine at that time."""
        return name == self.label and self.from_s <= at_s <= self.until_s

    def explains(self, decision: dict[str, Any], log: Replayed) -> bool:
        """Returns whether the decision may differ from the log's: position, id and log time are the same, and only its outcome differs."""
        position: int = decision["position"]
        same = [one for one in log.decisions[position : position + 1] if all(one[member] == decision[member] for member in SAME)]
        return position >= self.position_from and bool(same)

    def wrote(self, nonce: bytes) -> bool:
        """Returns whether the incarnation with this nonce belongs to one of its processes."""
        label, number = Machine.read_nonce(nonce)
        return label == self.label and self.process_first <= number and (self.process_end is None or number < self.process_end)


def strike(simulation: "Simulation", draw: random.Random) -> str:
    """Change or delete a row of one worker's consumed states; returns the worker's label, empty if there is no row."""
    machine = draw.choice(simulation.machines[: simulation.plan.workers])
    position_from = len(machine.disk.families[POSITIONS])
    if machine.disk.altered or (state_of := machine.disk.alter(STATES, remove=draw.random() < 0.5)) is None:
        return ""
    simulation.divergences.append(Divergence(machine.label, simulation.loop.time(), position_from, max(0, machine.processes - 1)))
    simulation.trace(machine.label, f"its row of the consumed state {state_of.hex()} is changed")
    return machine.label


def vote(simulation: "Simulation", incarnation: int, size: int) -> Record | None:
    """Returns the record in which that incarnation wrote its root at that size, None if there is none."""
    for record in simulation.cluster.by_partition[ORDERING]:
        decoded = ordering_record(record.value)
        if isinstance(decoded, Root) and (decoded.incarnation, decoded.size) == (incarnation, size):
            return record
    return None


def close(simulation: "Simulation", machine: Machine) -> None:
    """End the divergence of a machine if a new process starts there and the changed row is gone, with its disk or its last batches."""
    if STATES not in machine.disk.altered:
        for divergence in simulation.divergences:
            if divergence.label == machine.label and divergence.process_end is None:
                divergence.until_s, divergence.process_end = simulation.loop.time(), machine.processes


async def found_out(simulation: "Simulation") -> None:
    """Wait until every wrong index is found, without further requests; records a problem for each that is not."""
    deadline_s = simulation.loop.time() + FOUND_S
    if wrong := _to_be_found(simulation):
        simulation.count("wrong decisions before quiet")
    while wrong and simulation.loop.time() < deadline_s:
        await asyncio.sleep(1.0)
        wrong = _to_be_found(simulation)
    for machine in wrong:
        simulation.problem(
            machine.label, f"rows of its {sorted(machine.disk.altered)} were changed, and {FOUND_S:g} s after all healed nobody has seen it"
        )


def _to_be_found(simulation: "Simulation") -> list[Machine]:
    return [
        machine
        for machine in simulation.machines
        if DECISIONS in machine.disk.altered or (STATES in machine.disk.altered and _differs(simulation, machine))
    ]


def _differs(simulation: "Simulation", machine: Machine) -> bool:
    """Returns whether another worker has decided differently."""
    own = machine.disk.families
    for other in simulation.machines:
        rows = other.disk.families
        for family in (DECISIONS, POSITIONS):
            if any(own[family][key] != rows[family][key] for key in own[family].keys() & rows[family].keys()):
                return True
    return False
