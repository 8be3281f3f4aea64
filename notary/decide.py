"""The decision function (R6, R7). Pure: decisions depend only on the batches, in their order, and on earlier decisions.

For each request in turn, the first case that applies:

1. Its transaction id is decided already: it gets that decision.
2. An input is consumed: `input-conflict`, which lists every consumed input. A state that is reserved for another transaction is consumed.
3. A reference is consumed: `reference-conflict`, which lists every consumed reference.
4. The log time is not in `from <= log_time < until`: `outside-time-window`.
5. Otherwise: committed, which consumes its inputs and does not consume its references.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec

from joiner.ready import OrderedBatch  # the package `joiner` imports IO modules too
from notary.decision import Conflict, Decision, Kind, Outcome
from ordering.ids import StateRef, TransactionId
from payload import Request


class DecidedStep(msgspec.Struct, frozen=True):
    """One step's decisions. `outcomes`: per batch, in the order of its requests. `new`: the decisions made in this step, by position."""

    outcomes: list[list[Decision]]
    new: list[tuple[Decision, Request]]


def decide(
    batches: Sequence[OrderedBatch],
    position_next: int,
    decided: dict[TransactionId, Decision],
    consumed: dict[StateRef, TransactionId],
    reserved: dict[StateRef, bytes] | None = None,
) -> DecidedStep:
    """Decide every request of the batches, in order.

    `decided` and `consumed` hold the index's rows for the ids and states of these batches. This function adds the new decisions to both, so
    that conflicts inside the step are found. `reserved` has, by state, the SHA-256 of the only transaction id that may consume it (R11).
    """
    reserved = reserved or {}
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
                free = not reserved or _is_free(request, reserved)
                if free and untouched(inputs) and untouched(request.references) and request.from_ms <= log_time_ms < request.until_ms:
                    decision = Decision(position_next, id_, Outcome.COMMITTED, log_time_ms)
                    consumed.update(dict.fromkeys(inputs, id_))
                else:
                    decision = _reject(request, position_next, log_time_ms, consumed, reserved)
                decided[id_] = decision
                new.append((decision, request))
                position_next += 1
            answers.append(decision)
        outcomes.append(answers)
    return DecidedStep(outcomes, new)


def _is_free(request: Request, reserved: dict[StateRef, bytes]) -> bool:
    """Returns True if no state of the request is reserved for another transaction."""
    found = {reserved[state] for state in (*request.inputs, *request.references) if state in reserved}
    return not found or found == {sha256(request.transaction_id).digest()}


def _reject(
    request: Request, position: int, log_time_ms: int, consumed: dict[StateRef, TransactionId], reserved: dict[StateRef, bytes]
) -> Decision:
    id_ = request.transaction_id
    own = sha256(id_).digest()
    consumers = {state: consumer for state, consumer in reserved.items() if consumer != own} if reserved else {}
    consumers |= {state: sha256(consumed[state]).digest() for state in (*request.inputs, *request.references) if state in consumed}
    if conflicts := _conflicts(request.inputs, Kind.INPUT, consumers):
        return Decision(position, id_, Outcome.INPUT_CONFLICT, log_time_ms, conflicts)
    if conflicts := _conflicts(request.references, Kind.REFERENCE, consumers):
        return Decision(position, id_, Outcome.REFERENCE_CONFLICT, log_time_ms, conflicts)
    return Decision(position, id_, Outcome.OUTSIDE_TIME_WINDOW, log_time_ms)


def _conflicts(states: Iterable[StateRef], kind: Kind, consumers: dict[StateRef, bytes]) -> tuple[Conflict, ...]:
    """Returns the conflicts, in the ascending order of the request's states. `consumers`: by state, the hash of its consumer's id."""
    return tuple([Conflict(state, kind, consumers[state]) for state in states if state in consumers])
