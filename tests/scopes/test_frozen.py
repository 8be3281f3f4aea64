"""Tests that a joiner survives the conversion to a value and back: nothing is left out, nothing changes."""

import pytest

from joiner import Joiner, JoinerSnapshot, JoinerState
from joiner.ready import Ready
from tests.joiner.compared import restored
from tests.joiner.history import History
from tests.scopes import reading
from tests.scopes.explore import Search
from tests.scopes.frozen import NOW_MS, OFFSET, frozen
from tests.scopes.named import SCOPES
from tests.scopes.scope import TOPIC_PARTITIONS, genesis


def _begun() -> Joiner:
    joiner = Joiner(JoinerState(dict.fromkeys(TOPIC_PARTITIONS, 0)))
    joiner.step([genesis()], 0)
    return joiner


def _halfway(joiner: Joiner) -> History:
    """Bring the joiner to a hole with an entry behind it, payloads of a known and an unknown incarnation, and a proposed fill."""
    history = History()
    records = [history.register("w1"), history.entry(1, 1, "a"), history.entry(1, 2, "b", partition=1)]
    records += [history.payload(1, 2, "b", partition=1), history.payload(2, 1, "c")]
    joiner.step(records, NOW_MS - 1_500)
    assert joiner.step((), NOW_MS).fills
    return history


def test_a_restored_joiner_goes_on_like_the_first() -> None:
    """A joiner restored from a value emits the same batches for the same records; only the offsets are relative to another place."""
    joiner, copy = _begun(), Joiner()
    history = _halfway(joiner)
    copy.restore(frozen(joiner, NOW_MS, True))
    late = history.payload(1, 1, "a")
    moved = type(late)(late.partition, OFFSET, late.append_time_ms, late.key, late.value)
    ready: list[Ready] = [joiner.step([late], NOW_MS), copy.step([moved], NOW_MS)]
    first, second = [[(b.incarnation, b.sequence, b.filled, b.requests, b.log_time_ms) for b in one.batches] for one in ready]
    assert len(first) == 2
    assert first == second
    ends = [one.read_next() for one in (joiner, copy)]
    back = [
        {partition: end[partition] - one.offsets_next[partition] for partition in TOPIC_PARTITIONS}
        for end, one in zip(ends, ready, strict=True)
    ]
    assert back[0] == back[1]


@pytest.mark.seconds
def test_no_attribute_is_left_out_in_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each state of a scope with little memory, a restored joiner has all attributes of the first one, and freezes to the same value."""
    compared = 0

    def and_compared(joiner: Joiner, now_ms: int, keep: bool) -> JoinerSnapshot:
        nonlocal compared
        compared += 1
        other = Joiner(limits=joiner.limits, worker_name="reader")
        assert restored(joiner, other) == []
        value = frozen(joiner, now_ms, keep)
        other.restore(value)
        assert frozen(other, NOW_MS, keep) == value
        assert other.snapshot() == value
        return value

    monkeypatch.setattr(reading, "frozen", and_compared)
    assert not Search(SCOPES["tight"]).run(2_000).violation
    assert compared > 100
