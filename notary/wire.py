"""The JSON of answers (docs/formats.md, Decision): its structs, its encoder and its decoder, for the service, the clients and the verifier.

The structs are also the schemas of the OpenAPI document (`notary.http.openapi`), which names each as its class without `Json`. Decoding
skips unknown members, so that newer workers may add some; `decision_of_object` rejects them, since no receipt proves them.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from notary.decision import CONFLICT_US, CONFLICTS_A_PIECE, KINDS, REASONS, Conflict, Decision, Kind, Outcome
from ordering.errors import Malformed
from ordering.ids import INDEX_MAX, format_state, parse_hash, parse_state
from ordering.pieces import Pieces
from payload import TIME_MAX_MS

Reason: TypeAlias = Literal["input-conflict", "reference-conflict", "outside-time-window"]

_MOST: Final = str(INDEX_MAX)
# Shorter than the largest index, or as long and smaller at its first other digit, or the largest.
_INDEX: Final = "|".join(
    ["0", f"[1-9][0-9]{{0,{len(_MOST) - 2}}}"]
    + [
        f"{_MOST[:at]}[{int(not at)}-{int(digit) - 1}][0-9]{{{len(_MOST) - at - 1}}}"
        for at, digit in enumerate(_MOST)
        if int(digit) > int(not at)
    ]
    + [_MOST]
)
HASH_SCHEMA: Final = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
STATE_SCHEMA: Final = {
    "type": "string",
    "pattern": f"^[0-9a-f]{{64}}:({_INDEX})$",
    "description": f"`<transaction id>:<index>`, up to {_MOST}",
}
INT64: Final = {"format": "int64"}
"""Without a format, generated clients take 32 bits: log time has more."""

HashText: TypeAlias = Annotated[str, msgspec.Meta(pattern=HASH_SCHEMA["pattern"])]
StateText: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema=STATE_SCHEMA)]
"""A state reference; `parse_state` checks it, since a pattern would do so at a higher price."""
Position: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1, extra_json_schema=INT64)]
Time: TypeAlias = Annotated[
    int, msgspec.Meta(ge=-TIME_MAX_MS, le=TIME_MAX_MS, description="ms since 1970-01-01 UTC", extra_json_schema=INT64)
]


class ConflictJson(msgspec.Struct, frozen=True, gc=False):
    """A state that was consumed before. `consumed_by` is the SHA-256 of the consuming transaction's id, 64 hex digits."""

    state: StateText
    kind: Literal["input", "reference"]
    consumed_by: HashText


class DecisionJson(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A decision in JSON, members in the contract's order, with its receipt if the answer had one."""

    transaction_id: HashText
    position: Position
    outcome: Literal["committed", "rejected"]
    reason: Reason | None
    conflicts: tuple[ConflictJson, ...]
    log_time: Time
    """Log time of the decision, in milliseconds since 1970-01-01 UTC."""
    receipt: str | None = None
    """A C2SP tlog-proof, which can be verified offline. The clients verify it (`notary.client.trust`)."""

    @property
    def committed(self) -> bool:
        """True if this transaction consumed its inputs."""
        return self.outcome == "committed"

    def same_decision(self, other: "DecisionJson") -> bool:
        """Returns true if both are equal apart from their receipts: one decision may be proved under many checkpoints."""
        return msgspec.structs.replace(self, receipt=None) == msgspec.structs.replace(other, receipt=None)


class DecisionsJson(msgspec.Struct, frozen=True):
    """The answer to a submission, in the order of its requests; null for a request that is not decided yet."""

    decisions: tuple[DecisionJson | None, ...]


class StateJson(msgspec.Struct, frozen=True):
    """The consumer of a state, as far as the answering worker has read the log; None and None for no consumer. See `ConflictJson`."""

    state: StateText
    consumed_by: HashText | None
    position: Position | None


_NO_CONFLICTS: Final = b'"conflicts":[]'
_MEMBERS: Final = frozenset(DecisionJson.__struct_fields__)
_CONFLICT_MEMBERS: Final = frozenset(ConflictJson.__struct_fields__)
_OUTCOMES: Final = {reason: Outcome(number) for number, reason in enumerate(REASONS)}
_encode = msgspec.json.Encoder().encode
decode_decision: Final = msgspec.json.Decoder(DecisionJson).decode
decode_decisions: Final = msgspec.json.Decoder(DecisionsJson).decode
decode_state: Final = msgspec.json.Decoder(StateJson).decode


def to_json(decision: Decision) -> DecisionJson:
    """Returns the decision in the contract's JSON form, without a receipt."""
    outcome = decision.outcome
    return DecisionJson(
        decision.transaction_id.hex(),
        decision.position,
        "rejected" if outcome else "committed",
        REASONS[outcome],
        _conflicts(decision.conflicts),
        decision.log_time_ms,
    )


def encode_decision(decision: Decision, receipt: bytes = b"") -> bytes:
    """Encodes a decision. `receipt` is its receipt as a JSON string; empty: the object has no such member."""
    return _with_receipt(_encode(to_json(decision)), receipt)


def encode_in_pieces(decision: Decision, receipt: bytes = b"") -> Pieces[bytes]:
    """The work of `encode_decision` in pieces of `CONFLICTS_A_PIECE` conflicts."""
    if len(decision.conflicts) <= CONFLICTS_A_PIECE:
        return encode_decision(decision, receipt)
    conflicts: list[bytes] = []
    for at in range(0, len(decision.conflicts), CONFLICTS_A_PIECE):
        piece = decision.conflicts[at : at + CONFLICTS_A_PIECE]
        conflicts.append(_encode(_conflicts(piece))[1:-1])
        yield len(piece) * CONFLICT_US
    head, none, rest = _encode(to_json(msgspec.structs.replace(decision, conflicts=()))).partition(_NO_CONFLICTS)
    return _with_receipt(b"".join([head, none[:-1], b",".join(conflicts), b"]", rest]), receipt)


def encode_decisions(decisions: Sequence[bytes | None]) -> bytes:
    """Encodes the answer to a submission from encoded decisions; None for a request that is not decided."""
    return b'{"decisions":[%b]}' % b",".join([b"null" if one is None else one for one in decisions])


def to_decision(read: DecisionJson, where: str = "") -> Decision:
    """Decodes hashes, states and outcome. Raises `Malformed` with the path of the error, within `where`."""
    if read.committed != (read.reason is None):
        raise Malformed(f"{read.outcome}, with the reason {read.reason}", where)
    within = f"{where}." if where else ""
    conflicts = tuple(
        [
            Conflict(
                parse_state(one.state, f"{within}conflicts[{at}].state"),
                Kind(KINDS.index(one.kind)),
                parse_hash(one.consumed_by, f"{within}conflicts[{at}].consumed_by"),
            )
            for at, one in enumerate(read.conflicts)
        ]
    )
    transaction_id = parse_hash(read.transaction_id, f"{within}transaction_id")
    return Decision(read.position, transaction_id, _OUTCOMES[read.reason], read.log_time, conflicts)


def decision_of_object(found: Mapping[str, Any]) -> tuple[Decision, str | None]:
    """Decodes parsed JSON without unknown members. Returns the decision, and its member `receipt` (None without one).

    Raises `Malformed`, `msgspec.ValidationError`, or `RecursionError`, `TypeError` and `ValueError` for what no JSON parser returns.
    """
    read = msgspec.convert(found, DecisionJson)
    for members, known in ((found, _MEMBERS), *[(one, _CONFLICT_MEMBERS) for one in found["conflicts"]]):
        if unknown := members.keys() - known:
            raise Malformed(f"no decision has the member {min(unknown)!r}")
    return to_decision(read), read.receipt


def _conflicts(conflicts: tuple[Conflict, ...]) -> tuple[ConflictJson, ...]:
    return tuple([ConflictJson(format_state(c.state), KINDS[c.kind], c.consumed_by.hex()) for c in conflicts])


def _with_receipt(encoded: bytes, receipt: bytes) -> bytes:
    return b'%b,"receipt":%b}' % (encoded[:-1], receipt) if receipt else encoded
