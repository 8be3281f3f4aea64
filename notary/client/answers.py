"""Decoders of workers' replies, which compare each reply with its request (docs/formats.md, Decision).

The client trusts no reply because of its sender. A reply that breaks the contract, or that answers another request, raises `Malformed`;
the caller then treats its sender as unreachable. Unknown members are skipped, so that newer workers may add members.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

import msgspec

from notary.receipts.key_history import HistoricKey
from ordering.errors import Malformed
from ordering.ids import NAME_BYTES_MAX, excerpt, parse_hash, parse_state
from payload import TIME_MAX_MS, Request
from payload.strict_json import decode_strictly

Reason: TypeAlias = Literal["input-conflict", "reference-conflict", "outside-time-window"]

_Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Position = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Time = Annotated[int, msgspec.Meta(ge=-TIME_MAX_MS, le=TIME_MAX_MS)]


class Conflict(msgspec.Struct, frozen=True):
    """A state that was consumed before. `consumed_by` is the SHA-256 of the consuming transaction's id, 64 hex digits."""

    state: str
    kind: Literal["input", "reference"]
    consumed_by: _Hash


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision in the contract's JSON form, with its receipt if the reply had one. `msgspec.json.encode` encodes it again."""

    transaction_id: _Hash
    position: _Position
    outcome: Literal["committed", "rejected"]
    reason: Reason | None
    conflicts: tuple[Conflict, ...]
    log_time: _Time
    """Log time of the decision, in milliseconds since 1970-01-01 UTC."""
    receipt: str | None = None
    """A C2SP tlog-proof, which can be verified offline. The clients verify it (`trust`)."""

    @property
    def committed(self) -> bool:
        """True if this transaction consumed its inputs."""
        return self.outcome == "committed"

    def same_decision(self, other: "Answer") -> bool:
        """Returns true if both answers are equal apart from their receipts: one decision may be proved under many checkpoints."""
        return msgspec.structs.replace(self, receipt=None) == msgspec.structs.replace(other, receipt=None)


class StateAnswer(msgspec.Struct, frozen=True):
    """The consumer of a state, as far as the answering worker has read the log; None and None for no consumer. See `Conflict`."""

    state: str
    consumed_by: _Hash | None
    position: _Position | None


class NotaryDescription(msgspec.Struct, frozen=True):
    """The notary, as `GET /v1/notary` returns it. `name` goes into every transaction id."""

    name: str
    origin: str = ""
    verifier_key: str = ""
    software_version: str = ""
    limits: dict[str, int] = {}
    keys: tuple[HistoricKey, ...] = ()
    """The notary's verifier keys from the first to the present one, each endorsed by the one before it."""


class _Decisions(msgspec.Struct):
    decisions: tuple[Answer | None, ...]


_decode_decisions = msgspec.json.Decoder(_Decisions).decode
_decode_answer = msgspec.json.Decoder(Answer).decode
_decode_state = msgspec.json.Decoder(StateAnswer).decode
_decode_notary = msgspec.json.Decoder(NotaryDescription).decode


def read_decisions(body: bytes, requests: Sequence[Request], *, complete: bool) -> tuple[Answer | None, ...]:
    """Decodes the answers of a 200 (`complete`: no null) or a 202, in the order of `requests`. Raises `Malformed`."""
    answers = decode_strictly(_decode_decisions, body).decisions
    if len(answers) != len(requests):
        raise Malformed(f"{len(answers)} decisions for {len(requests)} requests", "decisions")
    for at, (answer, request) in enumerate(zip(answers, requests, strict=True)):
        where = f"decisions[{at}]"
        if answer is None:
            if complete:
                raise Malformed("null in an answer that says all is decided", where)
            continue
        if answer.transaction_id != request.transaction_id.hex():
            raise Malformed(f"about {answer.transaction_id}, but {request.transaction_id.hex()} was asked", f"{where}.transaction_id")
        _check(answer, where)
        _check_conflicts(answer, request, f"{where}.conflicts")
    positions = [answer.position for answer in answers if answer is not None]
    if len(set(positions)) != len(positions):
        raise Malformed("two transactions at one position", "decisions")
    return answers


def read_transaction(body: bytes, transaction_id: str) -> Answer:
    """Decodes the decision of `GET /v1/transactions/{id}`. Raises `Malformed`."""
    answer = decode_strictly(_decode_answer, body)
    if answer.transaction_id != transaction_id:
        raise Malformed(f"about {answer.transaction_id}, but {transaction_id} was asked", "transaction_id")
    _check(answer, "")
    return answer


def read_state(body: bytes, state: str) -> StateAnswer:
    """Decodes the answer of `GET /v1/states/{ref}`. Raises `Malformed`."""
    answer = decode_strictly(_decode_state, body)
    if answer.state != state:
        raise Malformed(f"about {excerpt(answer.state)}, but {state} was asked", "state")
    if (answer.consumed_by is None) != (answer.position is None):
        raise Malformed("only one of consumed_by and position is null")
    return answer


def read_notary(body: bytes) -> NotaryDescription:
    """Decodes the answer of `GET /v1/notary`. Raises `Malformed`."""
    notary = decode_strictly(_decode_notary, body)
    if not 0 < len(notary.name.encode()) <= NAME_BYTES_MAX:
        raise Malformed(f"{excerpt(notary.name)} is not 1 to {NAME_BYTES_MAX} bytes of UTF-8", "name")
    return notary


def _check(answer: Answer, where: str) -> None:
    """Raise `Malformed` unless the members of a decision are consistent with each other."""
    if answer.committed != (answer.reason is None):
        raise Malformed(f"{answer.outcome}, with the reason {answer.reason}", where)
    listing = answer.reason in ("input-conflict", "reference-conflict")
    if listing != bool(answer.conflicts):
        raise Malformed(f"{len(answer.conflicts)} conflicts with the reason {answer.reason}", where)
    for at, conflict in enumerate(answer.conflicts):
        if f"{conflict.kind}-conflict" != answer.reason:
            raise Malformed(f"an {conflict.kind} listed under {answer.reason}", f"{where}.conflicts[{at}]")
    states = [parse_state(conflict.state, f"{where}.conflicts[{at}].state") for at, conflict in enumerate(answer.conflicts)]
    if any(first >= second for first, second in pairwise(states)):
        raise Malformed("conflicts do not ascend", where)


def _check_conflicts(answer: Answer, request: Request, where: str) -> None:
    """Raise `Malformed` unless each conflict is about a state that the request names as that kind."""
    asked: Iterable[bytes] = request.inputs if answer.reason == "input-conflict" else request.references
    asked = set(asked) if answer.conflicts else ()
    for at, conflict in enumerate(answer.conflicts):
        if parse_state(conflict.state) not in asked:
            raise Malformed(f"{conflict.state} is not among the request's {conflict.kind}s", f"{where}[{at}]")


def canonical_id(transaction_id: str | bytes) -> str:
    """Returns a transaction id in its text form, 64 hex digits, from text or 32 bytes. Raises `Malformed`."""
    return parse_hash(transaction_id.hex() if isinstance(transaction_id, bytes) else transaction_id, "transaction id").hex()
