"""Why a process may end by itself. Each end must have had its cause, at that time: on its disk, in the log, in what was shown of the log.

And the other way round: of two processes that share a name and ended each other's lives three times, one must have stopped.
"""

from typing import TYPE_CHECKING, Any

from notary.index.store import DECISIONS, STATES
from ordering.errors import Condemned
from ordering.log import ORDERING
from tests.simulation.loss import contradicts
from tests.simulation.namesakes import LASTED_S, LIVES_LOST_MAX, READ_LATE_S, lost_quickly
from tests.simulation.process import Process
from tests.simulation.slot import Slot

if TYPE_CHECKING:
    from tests.simulation.world import World

DOUBT_S = 10.0
"""How long a log must contradict a worker before it stops (docs/rules.md, R8)."""
LOOKS_S = 3.0
"""Between two looks at the log, and between its last look and the end of a process, less than this passes."""


def judge(world: "World", slot: Slot, process: Process, problem: Exception) -> str:
    """What this end counts as; empty when nothing caused it. The operator gives a new disk where only that helps."""
    text = str(problem)
    if isinstance(problem, Condemned):
        # Roots show a consumed state that was changed; the audit, and whoever reads it, a decision.
        family, counted = (STATES, "diverged indexes condemned") if "its root is" in text else (DECISIONS, "altered indexes noticed")
        if family not in slot.disk.altered:
            return ""
        slot.disk.wipe()
        return counted
    if "No space left" in text:
        return "full disks noticed" if slot.disk.full else ""
    if "two processes share a name" in text:
        return "namesakes noticed" if _lost(world, slot, process) >= LIVES_LOST_MAX else ""
    if "'The index is ahead of its log'" in text:
        if world.loss is not None and contradicts(slot.disk, world.cluster):
            slot.disk.wipe()
            return "regrown logs refused"
        if world.loss is not None and process.began_s <= world.loss.at_s and world.loss.may_end(slot.label, world.loop.time()):
            return "regrown logs noticed"
        return "cut logs noticed" if _shown_less_for_long(world) else ""
    return ""


def namesakes_unnoticed(world: "World") -> list[str]:
    """Processes that go on although others of their name have fenced their lives too often; who still runs has read all of the log."""
    return [
        f"{process.name}: others of its name fenced {count} of its lives, and it goes on"
        for slot in world.slots
        if (process := slot.running()) is not None
        if (count := _lost(world, slot, process, lasted_s=LASTED_S - READ_LATE_S, known=process.lives)) >= LIVES_LOST_MAX
    ]


def _lost(world: "World", slot: Slot, process: Process, **how: Any) -> int:
    return lost_quickly(world.cluster.streams[ORDERING], world.cluster.landed_s[ORDERING], slot.name, process.identity, **how)


def _shown_less_for_long(world: "World") -> bool:
    """Whether less of the log was shown, until now, for as long as a worker doubts it before it stops."""
    now_s = world.loop.time()
    began_s = ended_s = float("-inf")
    for from_s, until_s in sorted(world.shown_less):
        if from_s > ended_s + LOOKS_S:
            began_s = from_s
        ended_s = max(ended_s, min(until_s, now_s))
    return ended_s >= now_s - LOOKS_S and ended_s - began_s >= DOUBT_S
