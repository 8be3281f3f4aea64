"""Tests when a worker trusts its log: each event in each state, and how long a contradiction may last."""

from collections.abc import Callable, Mapping

import pytest

from joiner.evidence import Evidence
from joiner.log_trust import EXAMINED, INTERRUPTED, NOT_COMPARED, LogTrust
from ordering.errors import Fatal, FatalCode
from ordering.records import View

LIMIT_S = 10.0
VIEW = Evidence(offset=7, view=View(5, bytes(32)), writer="w2", seen_here=6)
CONTRADICTION = "the log contradicts this worker's index, and the worker stops if that lasts 10 s: record 7 is another one"

Event = Callable[[LogTrust], object]


def _contradict(trust: LogTrust) -> None:
    trust.contradicted("record 7 is another one", 100.0, 100.0)


def _examined(trust: LogTrust) -> None:
    trust.examining = None
    trust.agreed()


STATES: Mapping[str, tuple[Event, ...]] = {
    "not compared": (),
    "trusted": (LogTrust.agreed,),
    "interrupted": (LogTrust.agreed, LogTrust.suspend),
    "examining": (LogTrust.agreed, lambda trust: trust.examine(VIEW)),
    "contradicted": (LogTrust.agreed, _contradict),
}
"""The events that lead to each state."""
EVENTS: Mapping[str, Event] = {
    "suspend": LogTrust.suspend,
    "agreed": LogTrust.agreed,
    "examine": lambda trust: trust.examine(VIEW),
    "examined": _examined,
    "contradicted": _contradict,
    "unreachable": LogTrust.unreachable,
}
AFTER: Mapping[str, Mapping[str, str]] = {
    "not compared": {"agreed": "", "examined": "", "contradicted": CONTRADICTION},
    "trusted": {"suspend": INTERRUPTED, "examine": EXAMINED, "contradicted": CONTRADICTION},
    "interrupted": {"agreed": "", "examined": "", "contradicted": CONTRADICTION},
    "examining": {"examined": "", "contradicted": CONTRADICTION},
    "contradicted": {"agreed": "", "examined": ""},
}
"""The suspicion after an event in a state; an event that is not listed changes nothing."""
SUSPICIONS = dict(zip(STATES, (NOT_COMPARED, "", INTERRUPTED, EXAMINED, CONTRADICTION), strict=True))


def _in(state: str) -> LogTrust:
    trust = LogTrust(LIMIT_S)
    for event in STATES[state]:
        event(trust)
    assert trust.suspicion == SUSPICIONS[state]
    return trust


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_every_event_in_every_state(state: str, event: str) -> None:
    """Only a comparison without a difference ends a suspicion, and not while a foreign view waits for its own comparison."""
    trust = _in(state)
    EVENTS[event](trust)
    assert trust.suspicion == AFTER[state].get(event, SUSPICIONS[state])


@pytest.mark.parametrize("event", EVENTS)
def test_what_refuted_the_log_holds_until_it_agrees(event: str) -> None:
    """After a contradiction all topic-partitions must be compared, also those without a leader, until the log agrees."""
    trust = _in("contradicted")
    EVENTS[event](trust)
    assert trust.refuted is (event not in {"agreed", "examined"})


@pytest.mark.parametrize(
    ("event", "next_is_deleted", "lasts"),
    [
        (LogTrust.suspend, False, True),
        (LogTrust.suspend, True, True),
        (LogTrust.agreed, False, False),
        (LogTrust.agreed, True, True),  # a comparison does not bring back what the log has deleted
        (LogTrust.unreachable, True, False),
    ],
)
def test_a_contradiction_stops_the_worker_unless_it_ends(event: Event, *, next_is_deleted: bool, lasts: bool) -> None:
    """The log may contradict the index for `contradiction_s`. Agreement and a log that does not answer begin that time again."""
    trust = _in("contradicted")
    trust.offsets_checked(next_is_deleted=next_is_deleted)
    event(trust)
    assert trust.contradicted("still", 109.9, 109.9) is not lasts
    if lasts:
        with pytest.raises(Fatal, match="still") as stopped:
            trust.contradicted("still", 110.0, 110.0)
        assert stopped.value.code is FatalCode.INDEX_AHEAD_OF_LOG
    else:
        trust.contradicted("still", 110.0, 110.0)


def test_a_comparison_that_takes_long_finds_the_same_contradiction() -> None:
    """The comparison of a long history may take longer than a contradiction may last. It began when the last one was found."""
    trust = _in("contradicted")
    with pytest.raises(Fatal, match="record 7"):
        trust.contradicted("record 7 is another one", 100.0, 150.0)


def test_a_comparison_that_began_much_later_finds_another_contradiction() -> None:
    """Two replies of brokers that lag for a moment, with a long time between them, do not stop a worker."""
    trust = _in("contradicted")
    assert trust.contradicted("another", 110.1, 111.0)
    assert not trust.contradicted("another", 111.0, 120.9)
    with pytest.raises(Fatal):
        trust.contradicted("another", 120.9, 121.0)
