"""The reasons for which a process may end by itself: each needs a cause at that time, on its disk, in the log, or in the log as shown.

The converse holds too: if two processes with the same worker name fence each other three times, one must stop.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from notary.index.store import DECISIONS, STATES
from ordering.errors import ConfigurationError, Fatal, FatalCode, Quarantined
from ordering.log import ORDERING
from ordering.records import View
from tests.checkers.records import Entry, Ordering, ordering_record
from tests.checkers.replay import replay
from tests.simulation.damage import contradicts
from tests.simulation.deployment import NOTARY, ORIGIN, OTHER_NOTARY
from tests.simulation.duplicate_names import INCARNATIONS_LOST_MAX, LASTED_S, READ_LATE_S, lost_quickly
from tests.simulation.machine import Machine
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

SUSPECTED_S = 10.0
"""The time in seconds for which the log must contradict a worker before it stops (docs/rules.md, R8)."""
LOOKS_S = 3.0
"""The maximum time in seconds between two looks at the log, and between a process's last look and its end."""
ARCHIVED = 0.8
"""The probability that an operator has an archive."""


def classify(simulation: "Simulation", machine: Machine, process: Process, problem: Exception) -> str:
    """Returns the name under which this end is counted, empty if nothing caused it. The operator follows the runbook."""
    text = str(problem)
    if isinstance(problem, Quarantined):
        # Roots reveal a changed consumed state; the audit, or a read, reveals a changed decision.
        family, counted = (STATES, "diverged indexes quarantined") if "its root is" in text else (DECISIONS, "altered indexes noticed")
        if family not in machine.disk.altered:
            return ""
        machine.needs_disk = True
        return counted
    if isinstance(problem, ConfigurationError) and process.misnamed:
        # The message must name both values.
        found = {"name": NOTARY, "origin": ORIGIN}[process.misnamed]
        return "misnamed workers refused" if repr(found) in text and repr(OTHER_NOTARY) in text else ""
    if not isinstance(problem, Fatal):
        return ""
    if problem.code in (FatalCode.DISK_FULL, FatalCode.INDEX_UNWRITABLE):
        return "full disks noticed" if machine.disk.full or machine.disk.full_until_s > simulation.loop.time() - LOOKS_S else ""
    if problem.code is FatalCode.DUPLICATE_WORKER_NAME:
        # A loss may have taken the registrations that the worker counted.
        return (
            "duplicate names noticed" if simulation.losses.damages or _lost(simulation, machine, process) >= INCARNATIONS_LOST_MAX else ""
        )
    if problem.code is FatalCode.RETIRED:
        return "retired workers stopped" if simulation.counts.get("retired incarnations") else ""
    if problem.code is FatalCode.KEY_MISSING:
        if any(from_s <= simulation.loop.time() <= until_s for from_s, until_s in simulation.shown_less):
            return "cut logs noticed"  # the log shows an earlier key
        if simulation.loop.time() <= simulation.owner.files_until_s + LOOKS_S:
            return "workers without the key in force"
        # Several workers may report this after one loss, and the owner needs to repair it once.
        again = "keys put in force again"
        return again if simulation.owner.repair() or simulation.counts.get(again) else ""
    if problem.code is FatalCode.CONTENT_LOST:
        return _content_is_lost(simulation, machine)
    if problem.code is FatalCode.HISTORY_DIFFERS:
        machine.needs_disk = True
        return "settled against" if simulation.counts.get("suspicions settled") else ""
    if problem.code is FatalCode.INDEX_AHEAD_OF_LOG:
        if simulation.freeing.lacks(machine.disk):
            machine.needs_disk = True
            return "freed payloads missed"
        if simulation.losses.damages and contradicts(machine.disk, simulation.cluster):
            machine.needs_disk = True
            return "regrown logs refused"
        return "cut logs noticed" if _shown_less_for_long(simulation) else ""
    return ""


def _content_is_lost(simulation: "Simulation", machine: Machine) -> str:
    """Check that a content is lost: the log ends at its hole, and there was a loss. The operator restores it, or the owner gives it up.

    This includes a cut of the ordering topic alone whose content never arrived: records in flight then look as if they were written behind
    the hole.
    """
    if _shown_less_for_long(simulation):
        return "cut logs noticed"
    by_partition = simulation.cluster.by_partition
    replayed = replay(by_partition)
    record = ordering_record(by_partition[ORDERING][replayed.offset_head].value) if replayed.ended_by == "hole" else None
    if not isinstance(record, Entry):
        # Another worker's operator has restored it meanwhile.
        return "lost contents noticed late" if simulation.losses.restored else ""
    if not simulation.losses.damages:
        return ""
    if simulation.draw.random() >= ARCHIVED or not simulation.losses.restore(record.partition):
        simulation.losses.give_up(View(replayed.seen, replayed.histories[-1]))
    return "lost contents noticed"


def duplicate_names_unnoticed(simulation: "Simulation") -> list[str]:
    """Returns a problem for each process that continues although its duplicates have fenced it too often; it has read the complete log."""
    if simulation.losses.damages:
        return []
    return [
        f"{process.name}: others of its name fenced {count} of its incarnations, and it continues"
        for machine in simulation.machines
        if (process := machine.running()) is not None
        if (count := _lost(simulation, machine, process, lasted_s=LASTED_S - READ_LATE_S, known=process.incarnations))
        >= INCARNATIONS_LOST_MAX
    ]


def _lost(simulation: "Simulation", machine: Machine, process: Process, **how: Any) -> int:
    return lost_quickly(effects(simulation), machine.name, process.identity, **how)


def effects(simulation: "Simulation") -> Sequence[tuple[float, Ordering]]:
    """Returns the ordering records that took effect, each with the time in seconds at which it landed."""
    landed_s = simulation.cluster.landed_s[ORDERING]
    replayed = replay(simulation.cluster.by_partition)
    return [(landed_s[one.offset], one.record) for one in replayed.records if one.why_not is None and one.record is not None]


def _shown_less_for_long(simulation: "Simulation") -> bool:
    """Returns whether the log showed less than it has, until now, for the time after which a worker stops. A loss counts too.

    While a topic-partition has no leader, or its reader lags, a worker cannot see that the log shows all again. So what contradicts it next
    counts as the same contradiction.
    """
    now_s, apart_s = simulation.loop.time(), SUSPECTED_S if simulation.plan.leaderless or simulation.plan.reader_lag_s else LOOKS_S
    began_s = ended_s = float("-inf")
    lost = [[damage.at_s, damage.at_s] for damage in simulation.losses.damages]
    for from_s, until_s in sorted(simulation.shown_less + lost):
        if from_s > ended_s + apart_s:
            began_s = from_s
        ended_s = max(ended_s, min(until_s, now_s))
    return ended_s >= now_s - LOOKS_S and ended_s - began_s >= SUSPECTED_S
