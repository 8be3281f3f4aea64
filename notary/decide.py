"""The decision function (R6, R7). Pure: decisions follow from the batches in their order and what was decided before, from nothing else.

Precedence, for each request in turn:

1. its transaction id is decided already: that decision, whatever it was;
2. an input is consumed: `input-conflict`, every consumed input listed;
3. a reference is consumed: `reference-conflict`, every consumed reference listed;
4. the log time is not in `from <= log_time < until`: `outside-time-window`;
5. committed: that consumes its inputs, and leaves its references as they are.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec

from joiner.ready import OrderedBatch  # `joiner` itself imports the shell too
from notary.decision import Conflict, Decision, Kind, Outcome
from ordering.ids import StateRef, TransactionId
from payload import Request


class Decided(msgspec.Struct, frozen=True):
    """One step's decisions: `outcomes` for each batch in the order of its requests; `new` are those made now, in order of position."""

    outcomes: list[list[Decision]]
    new: list[tuple[Decision, Request]]


def decide(
    batches: Sequence[OrderedBatch],
    position_next: int,
    decided: dict[TransactionId, Decision],
    consumed: dict[StateRef, TransactionId],
) -> Decided:
    """Decide every request of the batches, in order.

    `decided` and `consumed` hold what the index has on the ids and states of these batches; they are added to, so that conflicts inside
    the step are seen.
    """
    outcomes: list[list[Decision]] = []
    new: list[tuple[Decision, Request]] = []
    untouched = consumed.keys().isdisjoint
    for batch in batches:
        log_time_ms = batch.log_time_ms
        answers: list[Decision] = []
        for request in batch.requests:
            id_ = request.transaction_id
            decision = decided.get(id_)
            if decision is None:
                inputs = request.inputs
                if untouched(inputs) and untouched(request.references) and request.from_ms <= log_time_ms < request.until_ms:
                    decision = Decision(position_next, id_, Outcome.COMMITTED, log_time_ms)
                    consumed.update(dict.fromkeys(inputs, id_))
                else:
                    decision = _reject(request, position_next, log_time_ms, consumed)
                decided[id_] = decision
                new.append((decision, request))
                position_next += 1
            answers.append(decision)
        outcomes.append(answers)
    return Decided(outcomes, new)


def _reject(request: Request, position: int, log_time_ms: int, consumed: dict[StateRef, TransactionId]) -> Decision:
    id_ = request.transaction_id
    if conflicts := _conflicts(request.inputs, Kind.INPUT, consumed):
        return Decision(position, id_, Outcome.INPUT_CONFLICT, log_time_ms, conflicts)
    if conflicts := _conflicts(request.references, Kind.REFERENCE, consumed):
        return Decision(position, id_, Outcome.REFERENCE_CONFLICT, log_time_ms, conflicts)
    return Decision(position, id_, Outcome.OUTSIDE_TIME_WINDOW, log_time_ms)


def _conflicts(states: Iterable[StateRef], kind: Kind, consumed: dict[StateRef, TransactionId]) -> tuple[Conflict, ...]:
    """The states that are consumed, in the ascending order in which a request holds them."""
    return tuple([Conflict(state, kind, sha256(consumed[state]).digest()) for state in states if state in consumed])
