"""What clients were told, without what a fault excuses: only from the process that it struck, and only while it could not know."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from notary.index.store import STATES
from tests.checkers import indexes, receipts
from tests.checkers.history import Call, History
from tests.checkers.replay import Replayed
from tests.checkers.violation import Kind, Violation
from tests.simulation.damage import contradicts

if TYPE_CHECKING:
    from tests.simulation.world import World

Decided = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """What is to be held against the log."""

    history: History
    receipts: list[Decided]
    looked_up: list[Decided]


def told(world: "World", replayed: Replayed) -> Told:
    """Everything that was told and is not excused; an excuse is needed only for what the log does not say."""
    calls: list[Call] = []
    proven: list[Decided] = []
    for number, call in enumerate(world.history.calls):
        name, at_s, unmet = call.url, call.answered_s, world.losses.unmet(world.clients.calls.met_in_call.get(number, frozenset()))
        decisions = [None if one is None or _excused(world, replayed, name, at_s, unmet, one) else one for one in call.decisions]
        same = decisions == list(call.decisions)
        calls.append(call if same else replace(call, status=202, decisions=decisions, body=None))
        proven += [
            one for one in decisions if one is not None and "receipt" in one and not _other_tree(world, replayed, name, at_s, unmet, one)
        ]
    looked_up = [
        one
        for name, at_s, one in world.clients.looked_up
        if not _excused(world, replayed, name, at_s, world.losses.unmet(world.clients.calls.met_when_told(one)), one)
    ]
    return Told(History(calls, world.history.submissions), proven, looked_up)


def index_violations(world: "World", replayed: Replayed) -> list[Violation]:
    """The indexes of all workers against the log; none that holds what the log has lost."""
    slots = (*world.slots, *world.gone)
    of_now = [slot for slot in slots if not contradicts(slot.disk, world.cluster)]
    sound = {slot.label: slot.disk.contents() for slot in of_now if not slot.disk.altered}
    found = indexes.all_violations(sound, replayed)
    for slot in of_now:
        if slot.disk.altered == {STATES}:
            # It changed no decision, or it would have been found out: all else is as it should be.
            found += [one for one in indexes.violations(slot.disk.contents(), replayed, slot.label) if one.kind is not Kind.WRONG_STATE]
    return found


def wrong_roots(world: "World", replayed: Replayed) -> list[str]:
    """What workers wrote of their roots (R9): each is the log's, but for those of a worker that had come to decide otherwise."""
    roots = [root for root in replayed.checkpoints if root.counted]
    world.counts["checkpoints"] = len(roots)
    wrong = [root for root in roots if root.size > len(replayed.decisions) or root.root != replayed.root(root.size)]
    excused = [root for root in wrong if any(one.wrote(replayed.lives[root.incarnation - 1].nonce) for one in world.divergences)]
    world.counts["wrong roots"] = len(excused)
    return [
        f"checkpoint of life {root.incarnation} at {root.size} decisions has another root than the log"
        for root in wrong
        if root not in excused
    ]


def _excused(world: "World", replayed: Replayed, name: str, at_s: float, unmet: frozenset[int], decision: Decided) -> bool:
    plain = {member: value for member, value in decision.items() if member != "receipt"}
    if not plain:
        return False
    if unmet and world.losses.explains(unmet, plain):
        # It may have been decided again, and the same: then it has another place in time.
        world.count("excused answers from a lost log")
        return True
    if plain in replayed.decisions[plain["position"] :][:1]:
        return False
    if any(one.excuses(name, at_s) and one.explains(plain, replayed) for one in world.divergences):
        world.count("excused answers of a diverged index")
        return True
    return False


def _other_tree(world: "World", replayed: Replayed, name: str, at_s: float, unmet: frozenset[int], decision: Decided) -> bool:
    """Whether its receipt is excused, for its tree alone: the lost log's, or another one, of a worker that may have such a one."""
    if any(one.excuses(name, at_s) for one in world.divergences):
        found = receipts.violations(world.owner.verifier_keys, [decision], replayed.tree)
        return {violation.kind for violation in found} == {Kind.OTHER_TREE}
    return any(not receipts.violations(world.owner.verifier_keys, [decision], log.tree) for log in world.losses.logs(unmet))
