"""What must hold when a simulation is over: the checkers, which share no code with the notary, on all that it left."""

from itertools import chain

from ordering.log import ORDERING
from tests.checkers import receipts
from tests.checkers.replay import replay
from tests.simulation import bounds, excused
from tests.simulation.ends import namesakes_unnoticed
from tests.simulation.plan import FAULTS_S
from tests.simulation.premises import NOTARY, premises
from tests.simulation.world import World

MANY = 8


def violations(world: World) -> list[str]:
    """Everything that is not as it should be."""
    replayed = replay(world.cluster.streams, NOTARY, world.plan.partitions)
    if replayed.ended_by != "end" and not world.problems:
        return [f"the log is not decided to its end: {replayed.ended_by} at {replayed.offset_end}"]
    told = excused.told(world, replayed)
    readings = world.clients.readings
    found = excused.index_violations(world, replayed)
    found += told.history.violations(replayed.decisions, set(replayed.consumed))
    found += receipts.violations(premises().verifier_keys, chain(told.receipts, readings.receipts), replayed.tree, readings.notes)
    found += bounds.kept(world)
    world.counts.update(world.clients.calls.counts)
    world.counts.update(_load(world))
    world.counts.update(world.cluster.fates_met)
    world.counts["holes filled"] = len([batch for batch in replayed.batches if batch.filled])
    world.counts["lives fenced by peers"] = len([life for life in replayed.lives if life.fenced and not life.fenced_by])
    looked_up = [decision for decision in told.looked_up if decision not in replayed.decisions[decision["position"] :][:1]]
    problems = world.problems + world.clients.problems + excused.wrong_roots(world, replayed) + namesakes_unnoticed(world)
    problems += [*readings.violations(replayed), *world.clients.hostile.found_in(chain(*world.cluster.streams.values()))]
    problems += [f"looked up {decision}: the log decides otherwise" for decision in looked_up]
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
