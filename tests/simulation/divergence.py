"""One worker comes to decide otherwise (R9): a row of its consumed states is changed, or gone, and nothing shows it but its root.

What can be demanded, with at least three workers, of which one has such a row:

- If a decision of it came out otherwise, it is condemned, and nobody else is: the others go on. Its operator gives it a new disk.
- What it tells until then is excused: decisions from the first position on that it had not made when the row was changed, and receipts;
  what its process writes of its roots too. Nothing is excused of others, or of another time.
- A row that changed no decision need not be found.

A wrong decision may be the last one for long: then a checkpoint is written all the same, because the log has fallen quiet. So nothing is
asked at first.
"""

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec

from notary.index.store import DECISIONS, POSITIONS, STATES
from ordering.log import ORDERING, Record
from tests.checkers.records import Root, ordering_record
from tests.checkers.replay import Replayed
from tests.simulation.slot import Slot

if TYPE_CHECKING:
    from tests.simulation.world import World

SAME = ("transaction_id", "position", "log_time")
"""What a changed row of a consumed state does not change in a decision."""
FOUND_S = 150.0
"""Virtual seconds in which it is found: turns of ten seconds, one for each incarnation that sent something of late."""


class Divergence(msgspec.Struct):
    """A worker that may decide otherwise: from when to when, from which position on, and in which processes of its slot."""

    label: str
    from_s: float
    position_from: int
    process_first: int
    until_s: float = float("inf")
    process_end: int | None = None

    def excuses(self, name: str, at_s: float) -> bool:
        """Whether what a process of that slot told at that time may come from it."""
        return name == self.label and self.from_s <= at_s <= self.until_s

    def explains(self, decision: dict[str, Any], log: Replayed) -> bool:
        """Whether the decision may be another one than the log's: what is decided when is the same, and only how is not."""
        position: int = decision["position"]
        same = [one for one in log.decisions[position : position + 1] if all(one[member] == decision[member] for member in SAME)]
        return position >= self.position_from and bool(same)

    def wrote(self, nonce: bytes) -> bool:
        """Whether a life with that nonce is of one of its processes."""
        label, number = Slot.read_nonce(nonce)
        return label == self.label and self.process_first <= number and (self.process_end is None or number < self.process_end)


def strike(world: "World", draw: random.Random) -> str:
    """Change or take away a row of the consumed states of one worker; what was done, empty when there is no such row."""
    slot = draw.choice(world.slots[: world.plan.workers])
    position_from = len(slot.disk.families[POSITIONS])
    if slot.disk.altered or (state_of := slot.disk.alter(STATES, remove=draw.random() < 0.5)) is None:
        return ""
    world.divergences.append(Divergence(slot.label, world.loop.time(), position_from, max(0, slot.processes - 1)))
    world.say(slot.label, f"its row of the consumed state {state_of.hex()} is changed")
    return slot.label


def vote(world: "World", incarnation: int, size: int) -> Record | None:
    """The record in which that incarnation wrote its root at that size; None when there is none."""
    for record in world.cluster.streams[ORDERING]:
        said = ordering_record(record.value)
        if isinstance(said, Root) and (said.incarnation, said.size) == (incarnation, size):
            return record
    return None


def close(world: "World", slot: Slot) -> None:
    """A new process begins there: what was changed may be gone, with its disk or its last batches."""
    if STATES not in slot.disk.altered:
        for divergence in world.divergences:
            if divergence.label == slot.label and divergence.process_end is None:
                divergence.until_s, divergence.process_end = world.loop.time(), slot.processes


async def found_out(world: "World", seconds: float = FOUND_S) -> None:
    """Every index is found out that must be, though nothing is asked any more; a problem for each that is not."""
    deadline_s = world.loop.time() + seconds
    if wrong := _to_be_found(world):
        world.count("wrong decisions before quiet")
    while wrong and world.loop.time() < deadline_s:
        await asyncio.sleep(1.0)
        wrong = _to_be_found(world)
    for slot in wrong:
        world.problem(
            slot.label, f"rows of its {sorted(slot.disk.altered)} were changed, and {seconds:g} s after all healed nobody has seen it"
        )


def _to_be_found(world: "World") -> list[Slot]:
    return [slot for slot in world.slots if DECISIONS in slot.disk.altered or (STATES in slot.disk.altered and _differs(world, slot))]


def _differs(world: "World", slot: Slot) -> bool:
    """Whether another worker has decided something else."""
    own = slot.disk.families
    for other in world.slots:
        rows = other.disk.families
        for family in (DECISIONS, POSITIONS):
            if any(own[family][key] != rows[family][key] for key in own[family].keys() & rows[family].keys()):
                return True
    return False
