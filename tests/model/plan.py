"""The choice of what a salvage puts back, from the kept log and all that survives: an item for each position, or a refusal with the place.

All sources are statements about one tree. An index states every leaf up to its size. A receipt states one leaf, the hashes beside it on
the way up, and the root of a size; the request beside it gives the states, since the id is its hash. Two sources disagree if a node of the
tree gets two hashes, or if no notary gives these decisions together: a transaction twice, a state consumed twice, time that goes back.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tests.model.log import COMMITTED, Decision, Item, Request
from tests.model.reader import Reader, tag
from tests.model.tree import node, nodes, split

THE_LOG = "the log"


class Receipt(NamedTuple):
    """A party keeps it: the decision, the request unless it was thrown away, and the proof under a checkpoint (size, root)."""

    name: str
    decision: Decision
    request: Request | None
    size: int
    root: bytes
    proof: tuple[bytes, ...]
    key: str
    """The notary's key that signed the checkpoint."""
    side: int = 0
    """The number of salvages done before it was issued. For the checks: a plan does not look at it."""


class Index(NamedTuple):
    """A surviving index or snapshot."""

    name: str
    leaves: tuple[Item, ...]
    spent: tuple[tuple[int, str], ...]


class Refused(Exception):
    """Two sources disagree, or one says too little; nothing has been written."""

    def __init__(self, position: int, why: str, *names: str) -> None:
        super().__init__(f"position {position}: {why}: {', '.join(names)}")
        self.position, self.why, self.names = position, why, names


class Plan(NamedTuple):
    """Items from the log's size on. `complete_to`: all checkpoints up to this size keep their roots, since no position below it is lost."""

    items: list[Item]
    complete_to: int


class _Tree:
    """The nodes that the sources state, each with the name of one of them.

    `lost`: the positions that a salvage before declared lost. Sources from before it state other nodes above them, and are right.
    """

    def __init__(self, lost: set[int], *, merges: bool) -> None:
        self._lost = lost
        self.stated: dict[tuple[int, int], tuple[bytes, str]] = {}
        self._derived: dict[tuple[int, int], tuple[bytes, str] | None] = {}
        self._merges = merges

    def show(self, place: tuple[int, int], value: bytes, name: str, lost_before: set[int]) -> None:
        """Take a node of a proof. `lost_before`: the positions that were declared lost when it was signed."""
        is_lost_leaf = place[1] - place[0] == 1 and value == Item().leaf(
            place[0]
        )  # a salvage has declared it lost, so nothing else is there
        if is_lost_leaf or not (self._lost - lost_before).intersection(range(*place)):
            self.state(place, value, name)

    def state(self, place: tuple[int, int], value: bytes, name: str) -> None:
        old = self.stated.setdefault(place, (value, name))
        if old[0] != value and not self._merges:
            raise Refused(place[0], f"two hashes of the leaves from {place[0]} to {place[1]}", old[1], name)

    def check(self) -> None:
        for place in list(self.stated):
            self._derive(place)

    def _derive(self, place: tuple[int, int]) -> tuple[bytes, str] | None:
        if place not in self._derived:
            low, high = place
            stated, derived = self.stated.get(place), None
            if high - low > 1:
                left, right = self._derive((low, low + split(high - low))), self._derive((low + split(high - low), high))
                if left and right:
                    derived = node(left[0], right[0]), left[1] if left[1] != THE_LOG else right[1]
            if derived and stated and derived[0] != stated[0] and not self._merges:
                raise Refused(low, f"two hashes of the leaves from {low} to {high}", derived[1], stated[1])
            self._derived[place] = stated or derived
        return self._derived[place]


def plan(log: Reader, survivors: Iterable[Index | Receipt], broken: frozenset[str] = frozenset()) -> Plan:
    """Returns what the log lacks. Raises `Refused`."""
    survivors = list(survivors)
    tree = _Tree(_declared_lost(log, survivors), merges="sources are merged" in broken)
    known: dict[int, tuple[Item, str]] = {}
    end = log.size

    def leaf(position: int, item: Item, name: str) -> None:
        tree.state((position, position + 1), item.leaf(position), name)
        mine, whose = known.get(position, (Item(), ""))
        if mine.decision is None or mine.inputs is None:
            known[position] = item, name
        elif item.inputs is not None and item.decision is not None and mine.inputs != item.inputs and not tree._merges:
            raise Refused(position, "two lists of consumed states", whose, name)
        if position < log.size and item.decision is not None and log.leaves[position].decision is None:
            raise Refused(position, "the log has the hash of this decision alone, for good", THE_LOG, name)

    for position, item in enumerate(log.leaves):
        leaf(position, item, THE_LOG)
    for source in survivors:
        if isinstance(source, Index):
            for position, item in enumerate(source.leaves):
                leaf(position, item, source.name)
            end = max(end, len(source.leaves))
            continue
        decision = source.decision
        inputs = () if decision.outcome != COMMITTED else source.request.inputs if source.request else None
        item = Item(decision, inputs)
        shown = nodes(decision.position, item.leaf(decision.position), source.proof, 0, source.size)
        if shown[0, source.size] != source.root:  # the signature of (size, root) is left out of the model
            raise Refused(decision.position, "a receipt does not verify", source.name)
        number = log.keys.index(source.key) if source.key in log.keys and "keys are not compared" not in broken else -1
        lost_before = {position for position, under in log.lost_under.items() if under <= number}
        for place, value in shown.items():
            tree.show(place, value, source.name, lost_before)
        leaf(decision.position, item, source.name)
        end = max(end, decision.position + 1 if "positions are used again" in broken else source.size)
    tree.check()

    items: list[Item] = []
    complete_to = min([end, *[position for position, item in enumerate(log.leaves) if item.is_lost]])
    for position in range(log.size, end):
        item, name = known.get(position, (Item(), ""))
        if item.inputs is None:
            raise Refused(position, "a receipt of a committed transaction without its request", name)
        if item.decision is None and not item.hash and (position, position + 1) in tree.stated and not name:
            value = tree.stated[position, position + 1][0]
            item = Item() if value == Item().leaf(position) else Item(hash=value)  # a proof may show a leaf that was declared lost
        if item.is_lost:
            complete_to = min(complete_to, position)
        if item.is_lost and not name:
            if "gaps end it" in broken:
                break
            if "gaps are closed" in broken:
                continue
        items.append(item)
    if "decisions are not compared" not in broken:
        spent = _fold(log, items, known)
        for source in survivors:
            if isinstance(source, Index) and any(spent.get(state) != consumer for state, consumer in source.spent):
                raise Refused(log.size, "an index shows states as consumed that its decisions did not consume", source.name)
    return Plan(items, complete_to)


def _declared_lost(log: Reader, survivors: list[Index | Receipt]) -> set[int]:
    sources = [log.leaves, *[one.leaves for one in survivors if isinstance(one, Index)]]
    lost = {position for leaves in sources for position, item in enumerate(leaves) if item.is_lost}
    for one in survivors:
        if isinstance(one, Receipt):
            beside = one.decision.position ^ 1
            if one.proof and one.proof[0] == Item().leaf(beside):
                lost.add(beside)
    return lost


def _fold(log: Reader, items: list[Item], known: dict[int, tuple[Item, str]]) -> dict[int, str]:
    """Go through the decisions as a notary would have made them; returns the states consumed. Raises `Refused` where none would have."""
    ids = {decision.id: position for position, decision in enumerate(item.decision for item in log.leaves) if decision is not None}
    spent, unknown = dict(log.spent), any(item.decision is None for item in log.leaves)
    # Batches without a decision may have moved the log's time on since the loss.
    time = max([item.decision.time for item in log.leaves if item.decision is not None], default=0)
    for position, item in enumerate(items, log.size):
        decision, name = item.decision, known.get(position, (item, ""))[1]
        if decision is None:
            unknown = True
            continue
        if decision.id in ids:
            raise Refused(position, f"transaction {decision.id} stands at {ids[decision.id]} already", name, THE_LOG)
        if decision.time < time:
            raise Refused(position, "log time goes back", name, THE_LOG)
        ids[decision.id], time = position, decision.time
        for state in item.inputs or ():
            # An earlier conflict may show this consumer: a salvage that the log has lost reserved the state for it.
            if spent.setdefault(state, tag(decision.id)) != tag(decision.id):
                raise Refused(position, f"state {state} was consumed before", name, THE_LOG)
        for state, _, consumer in decision.conflicts:
            if state not in spent and unknown:
                spent[state] = consumer
            if spent.get(state) != consumer:
                raise Refused(position, f"state {state} was not consumed like that", name, THE_LOG)
    return spent
