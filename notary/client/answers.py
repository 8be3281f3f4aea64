"""Decoders of workers' replies, which compare each reply with its request (docs/formats.md, Decision).

The client trusts no reply because of its sender. A reply that breaks the contract, or that answers another request, raises `Malformed`;
the caller then treats its sender as unreachable. Unknown members are skipped, so that newer workers may add members.
"""

from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise

from notary.decision import check_conflicts
from notary.wire import ConflictJson as Conflict
from notary.wire import DecisionJson as Answer
from notary.wire import NotaryJson as NotaryDescription
from notary.wire import StateJson as StateAnswer
from notary.wire import decode_decision, decode_decisions, decode_notary, decode_state, to_decision
from ordering.errors import Malformed
from ordering.ids import NAME_BYTES_MAX, STATE_REF_BYTES, excerpt, format_state, parse_hash, parse_state
from payload import Request
from payload.strict_json import decode_strictly

__all__ = ["Answer", "Conflict", "NotaryDescription", "StateAnswer"]  # else mypy keeps the names of an import private


def read_decisions(body: bytes, requests: Sequence[Request], *, complete: bool) -> tuple[Answer | None, ...]:
    """Decodes the answers of a 200 (`complete`: no null) or a 202, in the order of `requests`. Raises `Malformed`."""
    answers = decode_strictly(decode_decisions, body).decisions
    if len(answers) != len(requests):
        raise Malformed(f"{len(answers)} decisions for {len(requests)} requests", "decisions")
    for at, (answer, request) in enumerate(zip(answers, requests, strict=True)):
        where = f"decisions[{at}]"
        if answer is None:
            if complete:
                raise Malformed("null in an answer with status 200, in which every request is decided", where)
            continue
        if answer.transaction_id != request.transaction_id.hex():
            raise Malformed(f"about {answer.transaction_id}, but the request is {request.transaction_id.hex()}", f"{where}.transaction_id")
        _check(answer, where)
    return answers


def check_outcome(answer: Answer, request: Request) -> None:
    """Raise `Malformed` if the outcome contradicts the request's time window, or a conflict its states or its transaction."""
    inside = request.from_ms <= answer.log_time < request.until_ms
    if (answer.outcome == "committed" and not inside) or (answer.reason == "outside-time-window" and inside):
        side = "inside" if inside else "outside"
        raise Malformed(f"{answer.reason or answer.outcome} at log_time {answer.log_time}, which is {side} the request's time window")
    if not answer.conflicts:
        return
    asked = set(request.inputs if answer.reason == "input-conflict" else request.references)
    itself = sha256(request.transaction_id).hexdigest()
    for conflict in answer.conflicts:
        if parse_state(conflict.state) not in asked:
            raise Malformed(f"{conflict.state} is not among the request's {conflict.kind}s")
        if conflict.consumed_by == itself:
            raise Malformed(f"{conflict.state} is consumed by the rejected transaction itself")


def contradicting(answers: Sequence[Answer | None], requests: Sequence[Request]) -> tuple[str, int, int] | None:
    """Returns (reason, place, place) of two answers that cannot both be true; None if there are none."""
    in_order = sorted([(answer.position, answer.log_time, at, answer.committed) for at, answer in enumerate(answers) if answer is not None])
    for (position, log_time, at, _), (position_next, log_time_next, at_next, _) in pairwise(in_order):
        if position == position_next:
            return f"two decisions at position {position} contradict each other", at, at_next
        if log_time > log_time_next:
            return f"log_time falls from {log_time} at position {position} to {log_time_next} at {position_next}", at, at_next
    consumed: dict[bytes, tuple[int, int]] = {}
    consumers: dict[bytes, tuple[str, int]] = {}  # state -> the hash of its consumer's id, and the answer that says so first
    for position, _, at, committed in in_order:
        answer, request = answers[at], requests[at]
        assert answer is not None
        listed = {parse_state(conflict.state): conflict.consumed_by for conflict in answer.conflicts}
        touched = request.inputs if answer.reason == "input-conflict" else (*request.inputs, *request.references)
        for state in touched:
            if state not in listed and (before := consumed.get(state)) is not None:
                name = format_state(state)
                if committed:
                    why = f"is committed, and that at position {before[0]} consumed its state {name}"
                else:
                    why = f"does not list {name}, which that at position {before[0]} consumed"
                return f"the transaction at position {position} {why}", before[1], at
        if committed:
            consumed |= dict.fromkeys(request.inputs, (position, at))
            listed = dict.fromkeys(request.inputs, sha256(request.transaction_id).hexdigest())
        for state, consumer in listed.items():
            known, at_known = consumers.setdefault(state, (consumer, at))
            if known != consumer:
                return f"two decisions have two consumers of the state {format_state(state)}", at_known, at
    return None


def read_transaction(body: bytes, transaction_id: str) -> Answer:
    """Decodes the decision of `GET /v1/transactions/{id}`. Raises `Malformed`."""
    answer = decode_strictly(decode_decision, body)
    if answer.transaction_id != transaction_id:
        raise Malformed(f"about {answer.transaction_id}, but {transaction_id} was asked", "transaction_id")
    _check(answer, "")
    return answer


def read_state(body: bytes, state: str) -> StateAnswer:
    """Decodes the answer of `GET /v1/states/{ref}`. Raises `Malformed`."""
    answer = decode_strictly(decode_state, body)
    if answer.state != state:
        raise Malformed(f"about {excerpt(answer.state)}, but {state} was asked", "state")
    if (answer.consumed_by is None) != (answer.position is None):
        raise Malformed("only one of consumed_by and position is null")
    return answer


def read_notary(body: bytes) -> NotaryDescription:
    """Decodes the answer of `GET /v1/notary`. Raises `Malformed`."""
    notary = decode_strictly(decode_notary, body)
    if not 0 < len(notary.name.encode()) <= NAME_BYTES_MAX:
        raise Malformed(f"{excerpt(notary.name)} is not 1 to {NAME_BYTES_MAX} bytes of UTF-8", "name")
    return notary


def _check(answer: Answer, where: str) -> None:
    """Raise `Malformed` unless the members of a decision are consistent with each other."""
    check_conflicts(to_decision(answer, where), where)


def canonical_id(transaction_id: str | bytes) -> str:
    """Returns a transaction id in its text form, 64 hex digits, from text or 32 bytes. Raises `Malformed`."""
    return parse_hash(transaction_id.hex() if isinstance(transaction_id, bytes) else transaction_id, "transaction id").hex()


def canonical_state(state: str | bytes) -> str:
    """Returns a state reference in its text form, from text or 36 bytes. Raises `Malformed`."""
    if isinstance(state, str):
        parse_state(state, "state")
        return state
    if len(state) != STATE_REF_BYTES:
        raise Malformed(f"expected {STATE_REF_BYTES} bytes, got {len(state)}", "state")
    return format_state(state)
