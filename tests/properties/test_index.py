"""Tests that the index, on a real RocksDB, agrees with a naive model of the contract's rules for any sequence of steps.

There are few states and ids, so that conflicts, references to consumed states, closed windows and repeated ids are frequent.
"""

from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joiner import IncarnationState, OrderedBatch, Ready
from notary.decision import Decision, Kind, Outcome, leaf
from notary.index import Index, IndexSettings
from ordering.log import ORDERING
from payload import OPEN_FROM_MS, OPEN_UNTIL_MS, Request
from tests.checkers.tree import Tree
from tests.examples import some

SHARED = settings(deadline=None, max_examples=some(50), suppress_health_check=[HealthCheck.too_slow])
SMALL = IndexSettings(cache_bytes=1 << 20, write_buffer_bytes=64 << 10)

states = st.integers(0, 6).map(lambda n: bytes([n % 3]) * 32 + n.to_bytes(4, "big"))
state_sets = st.frozensets(states, max_size=3).map(lambda chosen: tuple(sorted(chosen)))
windows = st.sampled_from([(OPEN_FROM_MS, OPEN_UNTIL_MS)] * 4 + [(5, OPEN_UNTIL_MS), (OPEN_FROM_MS, 5), (3, 8), (-5, 0)])


@st.composite
def universes(draw: st.DrawFn) -> list[Request]:
    """Draw a few requests; their ids do not depend on the content, which is the harder case."""
    asked = draw(st.lists(st.tuples(state_sets, state_sets, windows), min_size=1, max_size=10))
    return [
        Request(sha256(bytes([n])).digest(), inputs, references, *window, bytes(32)) for n, (inputs, references, window) in enumerate(asked)
    ]


batch_of = st.tuples(st.lists(st.integers(0, 9), max_size=5), st.integers(0, 3))
steps = st.lists(st.tuples(st.lists(batch_of, max_size=3), st.booleans()), min_size=1, max_size=6)


class Model:
    """The contract's decision rules, request by request, on dicts."""

    def __init__(self) -> None:
        self.decided: dict[bytes, tuple[Any, ...]] = {}
        self.by: dict[bytes, bytes] = {}
        self.order: list[bytes] = []

    def decide(self, request: Request, log_time: int) -> tuple[Any, ...]:
        id_ = request.transaction_id
        if id_ not in self.decided:
            inputs = [(s, "input", sha256(self.by[s]).digest()) for s in sorted(request.inputs) if s in self.by]
            references = [(s, "reference", sha256(self.by[s]).digest()) for s in sorted(request.references) if s in self.by]
            if inputs:
                outcome = (1, inputs)
            elif references:
                outcome = (2, references)
            elif not request.from_ms <= log_time < request.until_ms:
                outcome = (3, [])
            else:
                outcome = (0, [])
                self.by |= dict.fromkeys(request.inputs, id_)
            self.decided[id_] = (len(self.order), id_, log_time, *outcome)
            self.order.append(id_)
        return self.decided[id_]


def _plain(decision: Decision) -> tuple[Any, ...]:
    conflicts = [(c.state, "input" if c.kind is Kind.INPUT else "reference", c.consumed_by) for c in decision.conflicts]
    return decision.position, decision.transaction_id, decision.log_time_ms, int(decision.outcome), conflicts


def _open(directory: Path) -> Index:
    return Index.open(directory, notary_name="N", log_identity="L", settings=SMALL)


@SHARED
@given(universes(), steps)
def test_index_equals_the_model(universe: list[Request], plan: list[Any]) -> None:
    """Every answer, every row and the offsets to resume from are the model's, for any split into steps and any reopening."""
    model, incarnations = Model(), {}
    log_time = offset = 0
    with TemporaryDirectory() as directory:
        index = _open(Path(directory) / "index")
        try:
            for batches, reopen in plan:
                ordered, expected = [], []
                for asked, passed_ms in batches:
                    log_time += passed_ms
                    requests = tuple([universe[n % len(universe)] for n in asked])
                    ordered.append(OrderedBatch(offset, 1, offset + 1, log_time, False, requests))
                    expected.append([model.decide(request, log_time) for request in requests])
                    offset += 1
                incarnations[1] = IncarnationState(1, "w1", bytes(16), offset, False, log_time)
                ready = Ready({ORDERING: offset, 0: 2 * offset, 1: 0}, log_time, True, ordered, list(incarnations.values()))
                outcomes = index.apply(ready)
                assert [[_plain(decision) for decision in answers] for answers in outcomes] == expected
                if reopen:
                    index.close()
                    index = _open(Path(directory) / "index")
                _compare(index, model, universe)
                state = index.joiner_state()
                assert state.offsets_next == {ORDERING: offset, 0: 2 * offset, 1: 0}
                assert (state.log_time_ms, state.incarnations) == (log_time, tuple(incarnations.values()))
        finally:
            index.close()


def _compare(index: Index, model: Model, universe: list[Request]) -> None:
    assert index.position_next == len(model.order)
    for request in universe:
        decision = index.decision(request.transaction_id)
        assert (None if decision is None else _plain(decision)) == model.decided.get(request.transaction_id)
        for state in (*request.inputs, *request.references):
            consumed = index.consumed(state)
            by = model.by.get(state)
            expected = None if by is None else (sha256(by).digest(), model.decided[by][0])
            assert (None if consumed is None else (consumed.by_hash, consumed.position)) == expected
    assert [index.transaction_at(position) for position in range(len(model.order))] == model.order
    size, rows = len(model.order), index.contents()
    tree = Tree([leaf(decision) for id_ in model.order if (decision := index.decision(id_)) is not None])
    assert {name: len(found) for name, found in rows.items()} == {
        "states": len(model.by),
        "decisions": size,
        "positions": size,
        "tiles": len(tree.tiles(size)),
    }
    assert index.tree.view().root == tree.root(size)
    assert [key for key, _ in rows["states"]] == sorted(model.by)


def test_outcomes_have_the_numbers_of_the_contract() -> None:
    """The model above and the leaf of the contract use the same numbers for outcomes."""
    assert [outcome.name for outcome in Outcome] == ["COMMITTED", "INPUT_CONFLICT", "REFERENCE_CONFLICT", "OUTSIDE_TIME_WINDOW"], (
        "add a new outcome here: the model decides in format version 1, without it"
    )
