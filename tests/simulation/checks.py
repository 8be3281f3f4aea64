"""What must hold when a simulation is over: the checkers, which share no code with the notary, on all that it left."""

from itertools import chain

from ordering.log import ORDERING
from tests.checkers import indexes, memory, receipts
from tests.checkers.replay import Replayed, replay
from tests.checkers.violation import Violation
from tests.simulation.faults import FORGED_ROOT
from tests.simulation.plan import FAULTS_S
from tests.simulation.premises import NOTARY, premises
from tests.simulation.world import World

MANY = 8


def violations(world: World) -> list[str]:
    """Everything that is not as it should be."""
    replayed = replay(world.cluster.streams, NOTARY, world.plan.partitions)
    if replayed.ended_by != "end" and not world.problems:
        return [f"the log is not decided to its end: {replayed.ended_by} at {replayed.offset_end}"]
    sound = [slot for slot in (*world.slots, *world.gone) if not slot.disk.altered]
    found = indexes.all_violations({slot.label: slot.disk.contents() for slot in sound}, replayed)
    found += world.history.violations(replayed.decisions, set(replayed.consumed))
    readings = world.clients.readings
    given = chain(world.history.receipts(), readings.receipts)
    found += receipts.violations(premises().verifier_keys, given, replayed.tree, readings.notes)
    read = [*readings.violations(replayed), *world.clients.hostile.found_in(chain(*world.cluster.streams.values()))]
    found += _memory(world)
    told = [decision for decision in world.clients.looked_up if decision not in replayed.decisions[decision["position"] :][:1]]
    # What workers wrote of their roots (R9): no index was ever changed in a way that a root shows, so every one is the log's.
    roots = [root for root in replayed.checkpoints if root.counted and root.root != FORGED_ROOT]
    wrong = [root for root in roots if root.size > len(replayed.decisions) or root.root != replayed.root(root.size)]
    world.counts["checkpoints"] = len(roots)
    world.problems += [f"checkpoint of life {root.incarnation} at {root.size} decisions has another root than the log" for root in wrong]
    world.counts.update(world.clients.calls.counts)
    world.counts.update(_load(world))
    problems = world.problems + world.clients.problems + read + [f"looked up {decision}: the log decides otherwise" for decision in told]
    return problems + [str(violation) for violation in found]


def _load(world: World) -> dict[str, int]:
    """How much came at once."""
    payloads = chain.from_iterable(records for stream, records in world.cluster.streams.items() if stream != ORDERING)
    sizes = [(record.value or b"").count(b'"party":') for record in payloads]
    return {
        "batches": len([size for size in sizes if size]),
        "batches of many": len([size for size in sizes if size >= MANY]),
        "crowds": int(world.plan.crowd),
        "long plans": int(world.plan.faults_s > FAULTS_S),
    }


def _memory(world: World) -> list[Violation]:
    """What each running worker keeps is what may still count, as far as it has read, and it would read that again."""
    found: list[Violation] = []
    to_heads: dict[int, Replayed] = {}
    for process in world.processes():
        if process.worker is None:
            continue
        joiner = process.worker.driver.joiner
        offsets_next = process.worker.index.joiner_state(world.plan.partitions).offsets_next
        head = offsets_next[ORDERING]
        if head not in to_heads:
            to_heads[head] = replay(world.cluster.streams, NOTARY, world.plan.partitions, offset_stop=head)
        found += memory.violations(
            world.cluster.streams,
            to_heads[head],
            read_next=joiner.read_next(),
            offsets_next=offsets_next,
            buffered_records=joiner.buffered_records,
            name=process.name,
        )
    return found
