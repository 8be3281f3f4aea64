"""Tests that a joiner survives the conversion to a value and back: nothing is left out, nothing changes."""

import pytest

from joiner import Joiner, JoinerState
from joiner.ready import Ready
from tests.joiner.history import History
from tests.scopes.frozen import NOW_MS, OFFSET, frozen, thawed
from tests.scopes.scope import STREAMS, genesis


class _Remembers(Joiner):
    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._secret = 0


def _model(kind: type[Joiner] = Joiner) -> Joiner:
    joiner = kind(JoinerState(dict.fromkeys(STREAMS, 0)))
    joiner.step([genesis()], 0)
    joiner.incarnations.changed.clear()
    return joiner


def _halfway(joiner: Joiner) -> History:
    """Bring the joiner to a hole with an entry behind it, payloads of a known and an unknown incarnation, and a proposed fill."""
    history = History()
    records = [history.register("w1"), history.entry(1, 1, "a"), history.entry(1, 2, "b", partition=1)]
    records += [history.payload(1, 2, "b", partition=1), history.payload(2, 1, "c")]
    joiner.step(records, NOW_MS - 1_500)
    assert joiner.step((), NOW_MS).fills
    return history


def test_thawing_gives_the_same_joiner() -> None:
    """A value that is thawed and frozen again is the same."""
    model = _model()
    _halfway(model)
    value = frozen(model, NOW_MS, model, True)
    assert frozen(thawed(value, model), NOW_MS, model, True) == value


def test_thawed_joiner_goes_on_like_the_first() -> None:
    """A thawed joiner emits the same batches for the same records; only the offsets are relative to another place."""
    joiner, model = _model(), _model()
    joiner._own = model._own
    joiner.log_state, joiner._worker_name, joiner._limits = model.log_state, model._worker_name, model._limits
    history = _halfway(joiner)
    copy = thawed(frozen(joiner, NOW_MS, model, True), model)
    late = history.payload(1, 1, "a")
    moved = type(late)(late.stream, OFFSET, late.append_time_ms, late.key, late.value)
    ready: list[Ready] = [joiner.step([late], NOW_MS), copy.step([moved], NOW_MS)]
    first, second = [[(b.incarnation, b.sequence, b.filled, b.requests, b.log_time_ms) for b in one.batches] for one in ready]
    assert len(first) == 2
    assert first == second
    ends = [one.read_next() for one in (joiner, copy)]
    back = [{stream: end[stream] - one.offsets_next[stream] for stream in STREAMS} for end, one in zip(ends, ready, strict=True)]
    assert back[0] == back[1]


def test_an_unknown_field_stops_the_search() -> None:
    """A joiner with a field that is not listed stops the search, which would prove nothing without it."""
    model = _model(_Remembers)
    with pytest.raises(AssertionError, match="_secret"):
        frozen(model, NOW_MS, model, True)
