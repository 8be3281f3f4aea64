"""The choice against the model (tests/model): on random histories it chooses what the model chooses, and every property holds with it."""

from collections.abc import Iterable

import pytest

from notary.decision import ROW_HEAD_BYTES, Conflict, Decision, Kind, leaf, to_row
from notary.salvage import choice, forest, past
from notary.salvage.choice import Choice, choose
from notary.salvage.statements import ChoiceRefused, Receipt
from notary.tree import leaf_hash
from ordering.salvage import Decided, Hashed, Item, Lost, lost_leaf
from tests.examples import some
from tests.model import log as model
from tests.model import owner
from tests.model import plan as planning
from tests.model.random_history import RandomHistory
from tests.model.reader import Reader, tag
from tests.model.real import OUTCOMES
from tests.model.traffic import Broken
from tests.notary.salvage.witnesses import MemoryIndex, id_of, state_of, tag_of

SEEDS = some(100)


class Translation:
    """The model's values as the notary's. `tags`: the hashes of the ids seen so far, by the model's short ones."""

    def __init__(self) -> None:
        self.tags: dict[str, bytes] = {}

    def decision(self, decision: model.Decision) -> Decision:
        id_ = id_of(decision.id)
        self.tags[tag(decision.id)] = tag_of(id_)
        conflicts = [
            Conflict(state_of(state), Kind.INPUT if kind == "input" else Kind.REFERENCE, self.tags[by])
            for state, kind, by in decision.conflicts
        ]
        return Decision(decision.position, id_, OUTCOMES[decision.outcome], decision.time, tuple(conflicts))

    def item(self, item: model.Item) -> Item:
        if item.decision is None:
            return Hashed(item.hash) if item.hash else Lost()
        decision = self.decision(item.decision)
        return Decided(leaf(decision), to_row(decision)[ROW_HEAD_BYTES:], tuple([state_of(state) for state in sorted(item.inputs or ())]))

    def leaf(self, item: model.Item, position: int) -> bytes:
        """Returns the hash of the leaf, in place of `Item.leaf`: so the model's trees and proofs are the notary's."""
        if item.decision is not None:
            return leaf_hash(leaf(self.decision(item.decision)))
        return item.hash or leaf_hash(lost_leaf(position))

    def log(self, reader: Reader) -> MemoryIndex:
        consumed = {state_of(state): self.tags[by] for state, by in reader.spent.items()}
        return MemoryIndex(
            "the log",
            [self.item(item) for item in reader.leaves],
            consumed=consumed,
            keys=[key.encode() for key in reader.keys],
            salvages=[(position, position + 1, number) for position, number in reader.lost_under.items()],
        )

    def index(self, one: planning.Index) -> MemoryIndex:
        items = [self.item(item) for item in one.leaves]
        return MemoryIndex(one.name, items, consumed={state_of(state): self.tags.get(by, tag_of(id_of(by))) for state, by in one.spent})

    def receipt(self, one: planning.Receipt) -> Receipt:
        inputs = one.request.inputs if one.request and one.decision.outcome == model.COMMITTED else ()
        item = self.item(model.Item(one.decision, inputs))
        assert isinstance(item, Decided)
        bare = one.decision.outcome == model.COMMITTED and one.request is None
        return Receipt(one.name, one.decision.position, item, one.size, one.root, one.proof, one.key.encode(), with_inputs=not bare)


class Compared:
    """Plays the model's plan with the choice under test, and compares both."""

    def __init__(self) -> None:
        self.translation = Translation()
        self.chosen = self.refused = 0

    def plan(
        self, log: Reader, survivors: Iterable[planning.Index | planning.Receipt], broken: frozenset[str] = frozenset()
    ) -> planning.Plan:
        survivors = list(survivors)
        indexes = [self.translation.index(one) for one in survivors if isinstance(one, planning.Index)]
        receipts = [self.translation.receipt(one) for one in survivors if isinstance(one, planning.Receipt)]
        wanted, why = self._planned(log, survivors, broken)
        found, refusal = self._chosen(self.translation.log(log), indexes, receipts)
        if refusal is not None:
            assert wanted is None, f"the model does not refuse: {refusal}"
            assert set(refusal.names) <= {one.name for one in survivors} | {planning.THE_LOG}, refusal
            self.refused += 1
            # The simulated operator knows the two kinds of refusals by the model's words.
            words = "without its request" if "without its request" in refusal.why else "sources disagree"
            raise planning.Refused(refusal.position, words, *refusal.names)
        assert wanted is not None, f"the model refuses: {why}"
        assert found is not None
        assert list(found.items) == [self._as_chosen(item, position) for position, item in enumerate(wanted.items, log.size)]
        assert found.same_roots_to <= wanted.complete_to
        self.chosen += 1
        return wanted

    @staticmethod
    def _planned(
        log: Reader, survivors: list[planning.Index | planning.Receipt], broken: frozenset[str]
    ) -> tuple[planning.Plan | None, planning.Refused | None]:
        try:
            return planning.plan(log, survivors, broken), None
        except planning.Refused as refusal:
            return None, refusal

    @staticmethod
    def _chosen(log: MemoryIndex, indexes: list[MemoryIndex], receipts: list[Receipt]) -> tuple[Choice | None, ChoiceRefused | None]:
        try:
            return choose(log, indexes, receipts), None
        except ChoiceRefused as refusal:
            return None, refusal

    def _as_chosen(self, item: model.Item, position: int) -> Item:
        made = self.translation.item(item)
        return Lost() if made == Hashed(leaf_hash(lost_leaf(position))) else made


def played(seeds: range, monkeypatch: pytest.MonkeyPatch) -> Compared:
    """Play the histories of these seeds with the choice. Returns the comparison; raises `AssertionError` for a difference."""
    compared = Compared()
    monkeypatch.setattr(model.Item, "leaf", lambda item, position: compared.translation.leaf(item, position))
    monkeypatch.setattr(owner, "plan", compared.plan)
    for seed in seeds:
        RandomHistory(seed).run_all()
    return compared


@pytest.mark.seconds
@pytest.mark.parametrize("first", range(1, SEEDS + 1, 50))
def test_choices_on_random_histories(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On random logs, cuts and survivors the choice is the model's, it refuses what the model refuses, and all properties hold with it."""
    compared = played(range(first, min(first + 50, SEEDS + 1)), monkeypatch)
    assert compared.chosen > 0
    assert compared.refused > 0


def test_a_cited_consumer_may_be_decided_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A salvage that the log lost reserved the state for it. Random histories hardly ever show that."""
    compared = Compared()
    compared.translation.tags[tag("again")] = tag_of(id_of("again"))
    monkeypatch.setattr(model.Item, "leaf", lambda item, position: compared.translation.leaf(item, position))
    refused = model.Decision(1, "refused", 1, model.INPUT_CONFLICT, ((9, "input", tag("again")),))
    leaves = model.Item(), model.Item(refused), model.Item(model.Decision(2, "again", 2, model.COMMITTED), (9,))
    assert compared.plan(Reader(), [planning.Index("a", leaves, ((9, tag("again")),))]).items == [*leaves]


MUTANTS: dict[str, tuple[object, str, object, int]] = {
    "indexes are not compared": (choice, "compare_indexes", lambda indexes: None, 1),
    "decisions are not compared": (choice, "check_past", lambda log, items, names, indexes: None, 1),
    "proofs are not compared": (choice, "compare_receipts", lambda largest, receipts, lost, before: {}, 1),
    "hashes that follow from others are not compared": (forest, "_derive", lambda largest, beyond: None, 261),
    "a position that was declared lost makes old receipts contradict": (forest, "bisect_left", lambda lost, place: 0, 71),
    "states of indexes are not compared": (past._Past, "compare", lambda past, index: None, 1),
    "receipts need no request": (choice._Known, "check_inputs", lambda known: None, 21),
}
"""The part that each lacks, and the seed from which to search: few histories show the rare ones, and those before it did not."""


@pytest.mark.seconds
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_choice_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice that lacks one of its checks differs from the model within 1,000 histories."""
    where, attribute, broken, first = MUTANTS[name]
    monkeypatch.setattr(where, attribute, broken)
    with pytest.raises((AssertionError, Broken)):
        played(range(first, first + 1_000), monkeypatch)
