"""What must hold when a simulation is over: the checkers, which share no code with the notary, on all that it left."""

from tests.checkers import receipts
from tests.checkers.replay import replay
from tests.simulation import bounds, excused
from tests.simulation.ends import namesakes_unnoticed
from tests.simulation.premises import NOTARY, premises
from tests.simulation.world import World


def violations(world: World) -> list[str]:
    """Everything that is not as it should be."""
    replayed = replay(world.cluster.streams, NOTARY, world.plan.partitions)
    if replayed.ended_by != "end" and not world.problems:
        return [f"the log is not decided to its end: {replayed.ended_by} at {replayed.offset_end}"]
    told = excused.told(world, replayed)
    found = excused.index_violations(world, replayed)
    found += told.history.violations(replayed.decisions, set(replayed.consumed))
    found += receipts.violations(premises().verifier_keys, told.receipts, replayed.tree)
    found += bounds.kept(world)
    looked_up = [decision for decision in told.looked_up if decision not in replayed.decisions[decision["position"] :][:1]]
    problems = world.problems + world.clients.problems + excused.wrong_roots(world, replayed) + namesakes_unnoticed(world, replayed)
    problems += [f"looked up {decision}: the log decides otherwise" for decision in looked_up]
    return problems + [str(violation) for violation in found]
