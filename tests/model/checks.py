"""The properties.

P1 a decision that a survivor holds is decided the same after the salvage.
P2 no receipt of a survivor is contradicted: its leaf stands at its position; an old checkpoint keeps its root unless a position below it
   is lost since it was signed (for keys of the kept log); no such position is used again.
P3 a state that a survivor knows as consumed is never consumed by another transaction.
P4 all workers, at any speed and from any snapshot, get the same leaves and roots. (`real.py` has independent replays.)
P5 sources that disagree are refused: whatever was accepted is honoured completely (P1 to P3), and who agrees is never refused (L).
P6 trimming changes no decision, and what survives a disaster can still be read.
P7 what the old side writes to the new log counts nowhere. A failback is one failover more.
L the new side decides again.
"""

from typing import TYPE_CHECKING

from tests.model.log import COMMITTED, Missing
from tests.model.owner import base_of
from tests.model.plan import Index, Plan
from tests.model.reader import Reader, tag
from tests.model.traffic import Broken
from tests.model.tree import root

if TYPE_CHECKING:
    from tests.model.random_history import RandomHistory


def check_held(model: "RandomHistory", reader: Reader, planned: Plan) -> None:
    """P1, P2, P3 for all survivors that were accepted."""
    for one in model.held:
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
        if not same and one.size <= planned.complete_to:
            raise Broken(f"P2 {one.name}: the root of {one.size} is another, and none was to be")
        since = any(item.is_lost and model.lost_in[n] > one.side for n, item in enumerate(reader.leaves[: one.size]))
        if not same and not since and one.key in reader.keys and one.key not in model.given_up:
            raise Broken(f"P2 {one.name}: the root of {one.size} is another, and nothing was lost since")


def check_end(model: "RandomHistory") -> None:
    """All properties, when all is quiet."""
    model.stale_workers = []
    model.wires = {}
    model.lost_records = []
    _quiet(model)
    archived = model.log.copy(model.log.ends)  # trimmed payloads are read too, as from an archive
    true, believing = (Reader(model.broken, has_tree=has_tree) for has_tree in (True, False))
    for reader in (true, believing):
        reader.read(archived)
    if true.sealed or not true.at_end(archived):
        raise Broken("L the log does not go on")
    for worker in model.workers:
        one = worker.reader
        if (one.hashes, one.decided, one.spent) != (true.hashes, true.decided, true.spent):
            raise Broken(f"P4 worker {worker.name} and a new reader differ")
    for start in [*model.snapshots, Reader(model.broken)]:
        reader = start.persisted()
        try:
            reader.read(model.log)
        except Missing as problem:
            if start.size or not any(model.log.start):
                raise Broken("P6 a reader that needs nothing trimmed stops") from problem
            continue
        if reader.hashes != true.hashes:
            raise Broken("P4 a snapshot and a new reader differ")
    if believing.view != base_of(model.log, model.snapshots, model.broken).view:
        raise Broken("P4 a reader without a tree has another history")
    times = [item.decision.time for item in true.leaves if item.decision is not None]
    if times != sorted(times):
        raise Broken("P1 log time goes back")
    consumers: dict[int, str] = {}
    for item in true.leaves:
        for state in item.inputs or ():
            if consumers.setdefault(state, item.decision.id if item.decision else "") != (item.decision.id if item.decision else ""):
                raise Broken(f"P3 state {state} was consumed twice")
    for offset in true.counted:
        if offset >= model.since and model.made.get(model.log.order[offset][1]) != model.generation:
            raise Broken(f"P7 record {offset} of the old side counts")
    reader = base_of(model.log, model.snapshots, model.broken)
    check_held(model, reader, model.planned)
    for receipt in model.receipts:
        if true.decided.get(receipt.decision.id) != receipt.decision or root(true.hashes[: receipt.size]) != receipt.root:
            raise Broken(f"P4 {receipt.name} of the new side is contradicted")


def _quiet(model: "RandomHistory") -> None:
    """Let the new side go on without faults until it has decided something new."""
    before = max(worker.reader.size for worker in model.workers)
    for _ in range(600):
        model.clock[0] += 1
        while model.wires and model.draw.random() < 0.9:
            model.deliver()
        for worker in model.workers:
            worker.step()
        model.look_after()
        if all(worker.ready and worker.reader.size > before for worker in model.workers):
            break
    else:
        raise Broken(
            f"L the new side decides nothing: {[(w.stopped, w.reader.suspected, w.reader.sealed, w.reader.hole) for w in model.workers]}"
        )
    for _ in range(600):
        while model.wires:
            model.deliver()
        for worker in model.workers:
            worker.keys, keep = set(), worker.keys
            worker.step()
            worker.keys = keep
            if worker.reader.hole is not None and not worker._passed():
                worker.waited = 7
                worker.step()
        if not model.wires and all(worker.reader.at_end(model.log) and worker.reader.hole is None for worker in model.workers):
            return
    raise Broken("L the log does not come to rest")
