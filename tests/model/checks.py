"""The properties.

P1 a decision that a survivor holds is decided the same after the salvage.
P2 no receipt of a survivor is contradicted: its leaf stands at its position; an old checkpoint keeps its root unless a position below it
   is lost since it was signed (for keys of the kept log); no such position is used again.
P3 a state that a survivor knows as consumed is never consumed by another transaction.
P4 all workers, at any speed and from any snapshot, and an independent replay get the same leaves and roots.
P5 sources that disagree are refused: whatever was accepted is honoured whole (P1 to P3), and who agrees is never refused (L).
P6 trimming changes no decision, and what survives a disaster can still be read.
P7 what the old side writes to the new log counts nowhere. A failback is one failover more.
L the new side decides again.
"""

from typing import TYPE_CHECKING

from tests.model.log import COMMITTED, Missing
from tests.model.owner import base_of
from tests.model.plan import Index, Plan
from tests.model.reader import Reader, tag
from tests.model.replay import replay
from tests.model.traffic import Broken
from tests.model.tree import root

if TYPE_CHECKING:
    from tests.model.world import World


def check_held(world: "World", reader: Reader, planned: Plan) -> None:
    """P1, P2, P3 for all survivors that were accepted."""
    for one in world.held:
        if isinstance(one, Index):
            for position, item in enumerate(one.leaves):
                if position >= reader.size or reader.hashes[position] != item.leaf(position):
                    raise Broken(f"P1 {one.name}: position {position} is another")
                if item.decision is not None and reader.decided.get(item.decision.id) != item.decision:
                    raise Broken(f"P1 {one.name}: the decision at {position} is another")
            for state, consumer in one.spent:
                if reader.spent.get(state) != consumer:
                    raise Broken(f"P3 {one.name}: state {state} has another consumer")
            continue
        decision = one.decision
        if reader.decided.get(decision.id) != decision:
            raise Broken(f"P1 {one.name}: {decision} is {reader.decided.get(decision.id)}")
        if reader.leaves[decision.position].decision != decision:
            raise Broken(f"P2 {one.name}: position {decision.position} is another")
        for state in one.request.inputs if one.request and decision.outcome == COMMITTED else ():
            if reader.spent.get(state) != tag(decision.id):
                raise Broken(f"P3 {one.name}: state {state} has another consumer")
        for state, _, consumer in decision.conflicts:
            if reader.spent.get(state) != consumer:
                raise Broken(f"P3 {one.name}: state {state} has another consumer than the conflict shows")
        if reader.size < one.size:
            raise Broken(f"P2 {one.name}: positions below {one.size} are used again")
        same = root(reader.hashes[: one.size]) == one.root
        if not same and one.size <= planned.whole_to:
            raise Broken(f"P2 {one.name}: the root of {one.size} is another, and none was to be")
        since = any(item.is_lost and world.lost_in[n] > one.side for n, item in enumerate(reader.leaves[: one.size]))
        if not same and not since and one.key in reader.keys and one.key not in world.given_up:
            raise Broken(f"P2 {one.name}: the root of {one.size} is another, and nothing was lost since")


def check_end(world: "World") -> None:
    """All properties, when all is quiet."""
    world.ghosts = []
    world.wires = {place: wire for place, wire in world.wires.items() if False}
    world.lost_records = []
    _quiet(world)
    true = replay(world.log, world.broken)
    if not true.whole or true.sealed:
        raise Broken("L the log does not go on")
    for worker in world.workers:
        if worker.reader.hashes != true.leaves or worker.reader.decided != true.decisions or worker.reader.spent != true.consumed:
            raise Broken(f"P4 worker {worker.name} and the replay differ")
    for start in [*world.snapshots, Reader(world.broken)]:
        reader = start.persisted()
        try:
            reader.read(world.log)
        except Missing as problem:
            if start.size or not any(world.log.start):
                raise Broken("P6 a reader that needs nothing trimmed stops") from problem
            continue
        if reader.hashes != true.leaves:
            raise Broken("P4 a snapshot and the replay differ")
    believing = Reader(world.broken, has_tree=False)
    believing.read(world.log.copy(world.log.ends))
    if believing.view != base_of(world.log, world.snapshots, world.broken).view:
        raise Broken("P4 a reader without a tree has another history")
    times = [item.decision.time for item in true.items if item.decision is not None]
    if times != sorted(times):
        raise Broken("P1 log time goes back")
    consumers: dict[int, str] = {}
    for item in true.items:
        for state in item.inputs or ():
            if consumers.setdefault(state, item.decision.id if item.decision else "") != (item.decision.id if item.decision else ""):
                raise Broken(f"P3 state {state} was consumed twice")
    for offset, _ in true.writers:
        if offset >= world.since and world.made.get(world.log.order[offset][1]) != world.generation:
            raise Broken(f"P7 record {offset} of the old side counts")
    reader = base_of(world.log, world.snapshots, world.broken)
    check_held(world, reader, world.planned)
    for receipt in world.receipts:
        if true.decisions.get(receipt.decision.id) != receipt.decision or root(true.leaves[: receipt.size]) != receipt.root:
            raise Broken(f"P4 {receipt.name} of the new side is contradicted")


def _quiet(world: "World") -> None:
    """Let the new side go on without faults until it has decided something new."""
    before = max(worker.reader.size for worker in world.workers)
    for _ in range(600):
        world.clock[0] += 1
        while world.wires and world.draw.random() < 0.9:
            world.deliver()
        for worker in world.workers:
            worker.step()
        world.look_after()
        if all(worker.ready and worker.reader.size > before for worker in world.workers):
            break
    else:
        raise Broken(
            f"L the new side decides nothing: {[(w.stopped, w.reader.suspected, w.reader.sealed, w.reader.hole) for w in world.workers]}"
        )
    for _ in range(600):
        while world.wires:
            world.deliver()
        for worker in world.workers:
            worker.keys, keep = set(), worker.keys
            worker.step()
            worker.keys = keep
            if worker.reader.hole is not None and not worker._passed():
                worker.waited = 7
                worker.step()
        if not world.wires and all(worker.reader.at_end(world.log) and worker.reader.hole is None for worker in world.workers):
            return
    raise Broken("L the log does not come to rest")
