"""The decision function: precedence, conflicts inside a step, decided once (R6, R7)."""

from hashlib import sha256

import pytest

from joiner import OrderedBatch
from notary.decide import DecidedStep, decide
from notary.decision import Conflict, Decision, Kind, Outcome
from ordering.ids import StateRef, TransactionId
from payload import OPEN_FROM_MS, OPEN_UNTIL_MS, Request

A, B, C = [letter * 36 for letter in (b"A", b"B", b"C")]
T1, T2, T3, T4 = [bytes([n]) * 32 for n in (1, 2, 3, 4)]
NOW = 1000


def _ask(
    id_: TransactionId,
    *inputs: StateRef,
    references: tuple[StateRef, ...] = (),
    from_ms: int = OPEN_FROM_MS,
    until_ms: int = OPEN_UNTIL_MS,
) -> Request:
    return Request(id_, tuple(sorted(inputs)), tuple(sorted(references)), from_ms, until_ms, bytes(32))


def _batch(*requests: Request, log_time_ms: int = NOW) -> OrderedBatch:
    return OrderedBatch(0, 1, 1, log_time_ms, False, requests)


def _decide(*requests: Request, consumed: dict[StateRef, TransactionId] | None = None, log_time_ms: int = NOW) -> DecidedStep:
    return decide([_batch(*requests, log_time_ms=log_time_ms)], 0, {}, consumed if consumed is not None else {})


def _outcomes(decided: DecidedStep) -> list[Outcome]:
    return [decision.outcome for answers in decided.outcomes for decision in answers]


EXAMPLES = {
    Outcome.COMMITTED: _ask(T2, B),
    Outcome.INPUT_CONFLICT: _ask(T2, A),
    Outcome.REFERENCE_CONFLICT: _ask(T2, B, references=(A,)),
    Outcome.OUTSIDE_TIME_WINDOW: _ask(T2, B, from_ms=NOW + 1),
}
"""A request for each outcome, where T1 has consumed A."""


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_request_that_gets_it(outcome: Outcome) -> None:
    """There is an example for every outcome, and it is decided so."""
    assert _outcomes(_decide(EXAMPLES[outcome], consumed={A: T1})) == [outcome]


def test_commit_consumes_inputs() -> None:
    """A committed transaction consumes its inputs; a later transaction with the same input gets the consumer's hash only."""
    decided = _decide(_ask(T1, A, B), _ask(T2, B, C))
    assert _outcomes(decided) == [Outcome.COMMITTED, Outcome.INPUT_CONFLICT]
    assert decided.outcomes[0][1].conflicts == (Conflict(B, Kind.INPUT, sha256(T1).digest()),)


def test_rejected_consumes_nothing() -> None:
    """The inputs of a rejected transaction stay free for others."""
    assert _outcomes(_decide(_ask(T1, A), _ask(T2, A, B), _ask(T3, B))) == [
        Outcome.COMMITTED,
        Outcome.INPUT_CONFLICT,
        Outcome.COMMITTED,
    ]


def test_references_are_not_consumed() -> None:
    """Two transactions may refer to one state, and a third may consume it; later references to it conflict."""
    decided = _decide(_ask(T1, references=(A,)), _ask(T2, references=(A,)), _ask(T3, A), _ask(T4, references=(A, B)))
    assert _outcomes(decided) == [Outcome.COMMITTED] * 3 + [Outcome.REFERENCE_CONFLICT]
    assert decided.outcomes[0][3].conflicts == (Conflict(A, Kind.REFERENCE, sha256(T3).digest()),)


def test_every_conflict_in_order() -> None:
    """All consumed inputs are listed in ascending order of the state, without any reference."""
    decided = _decide(_ask(T4, C, A, B, references=(A, C)), consumed={C: T1, A: T2})
    assert decided.outcomes[0][0].conflicts == (
        Conflict(A, Kind.INPUT, sha256(T2).digest()),
        Conflict(C, Kind.INPUT, sha256(T1).digest()),
    )


def test_inputs_come_before_references_and_window() -> None:
    """Input conflicts come before reference conflicts, and these before the time window."""
    late = NOW + 1
    consumed = {A: T1}
    assert _outcomes(_decide(_ask(T2, A, references=(A,), from_ms=late), consumed=dict(consumed))) == [Outcome.INPUT_CONFLICT]
    assert _outcomes(_decide(_ask(T2, B, references=(A,), from_ms=late), consumed=dict(consumed))) == [Outcome.REFERENCE_CONFLICT]
    assert _outcomes(_decide(_ask(T2, B, references=(C,), from_ms=late), consumed=dict(consumed))) == [Outcome.OUTSIDE_TIME_WINDOW]


def test_input_and_reference_of_one_transaction() -> None:
    """A transaction may refer to a state that it consumes."""
    assert _outcomes(_decide(_ask(T1, A, references=(A,)))) == [Outcome.COMMITTED]


def test_the_window_includes_its_start_only() -> None:
    """`from <= log time < until`: the start is inside the window, the end is not."""
    asked = [
        _ask(T1, from_ms=NOW),
        _ask(T2, from_ms=NOW + 1),
        _ask(T3, until_ms=NOW),
        _ask(T4, until_ms=NOW + 1),
    ]
    outside = Outcome.OUTSIDE_TIME_WINDOW
    assert _outcomes(_decide(*asked)) == [Outcome.COMMITTED, outside, outside, Outcome.COMMITTED]
    assert _outcomes(_decide(_ask(T1), log_time_ms=OPEN_UNTIL_MS)) == [outside]


def test_an_id_gets_its_first_decision_again() -> None:
    """The same id again, in the step or before it, gets its first decision, even if the rules would now give another one (R7)."""
    first = _ask(T1, A)
    window = _ask(T2, B, until_ms=NOW)
    decided = decide([_batch(first, window), _batch(first, window, log_time_ms=0)], 5, {}, {})
    assert decided.outcomes[0] == decided.outcomes[1]
    assert [decision.position for decision, _ in decided.new] == [5, 6]
    before = Decision(3, T1, Outcome.OUTSIDE_TIME_WINDOW, 7)
    later = decide([_batch(first)], 9, {T1: before}, {})
    assert later.outcomes == [[before]]
    assert later.new == []


def test_filled_batches_have_no_outcomes() -> None:
    """Outcomes are listed by batch, with an empty list for a filled batch, which takes no positions."""
    decided = decide([_batch(), _batch(_ask(T1, A)), _batch()], 0, {}, {})
    assert [len(answers) for answers in decided.outcomes] == [0, 1, 0]
    assert decided.outcomes[1][0].position == 0
