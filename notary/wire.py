"""The JSON of answers (docs/formats.md, Decision): its structs, its encoder and its decoder, for the service, the clients and the verifier.

The structs are also the schemas of the OpenAPI document (`notary.http.openapi`), which names each as its class without `Json`. Decoding
skips unknown members, so that newer workers may add some; `decision_of_object` rejects them, since no receipt proves them.
"""

from binascii import hexlify
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from notary.decision import CONFLICT_US, CONFLICTS_A_PIECE, KINDS, REASONS, Conflict, Decision, Kind, Outcome, Reason
from ordering.errors import Malformed
from ordering.ids import HASH_SCHEMA, STATE_SCHEMA, format_state, parse_hash, parse_state
from ordering.pieces import Pieces
from payload.request import Time

HashText: TypeAlias = Annotated[str, msgspec.Meta(pattern=HASH_SCHEMA["pattern"])]
StateText: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema=STATE_SCHEMA)]
"""A state reference. `parse_state` checks it, at a lower cost than a pattern."""
Position: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1, extra_json_schema={"format": "int64"})]


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
    receipt: Annotated[str, msgspec.Meta(description="C2SP tlog-proof@v1; only in the answer to a submission")] | None = None
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
    """A state and its consumer: SHA-256 of the transaction's id, and its position. Both are null if the worker has read of none yet."""

    state: StateText
    consumed_by: HashText | None
    position: Position | None


class HistoricKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key of the notary's key history; `endorsement` is a note signed by the key before it; the first key has none."""

    verifier_key: str
    endorsement: str | None = None


class NotaryJson(msgspec.Struct, frozen=True, kw_only=True):
    """The notary that a worker belongs to. `name` goes into every transaction id. A worker sends all members."""

    name: str
    origin: str = ""
    verifier_key: Annotated[str, msgspec.Meta(description="the one that signs now")] = ""
    keys: Annotated[
        tuple[HistoricKey, ...],
        msgspec.Meta(
            description="the key history, from the first key to the present one; each is endorsed by the one before it",
            extra_json_schema={"minItems": 1},
        ),
    ] = ()
    software_version: str = ""
    format_version: Annotated[
        int, msgspec.Meta(description="of log records, the newest that this worker reads", extra_json_schema={"format": "int32"})
    ] = 0
    worker: Annotated[str, msgspec.Meta(description="the name of the worker that answers")] = ""
    reads: Annotated[
        str,
        msgspec.Meta(description="who may read transactions, receipts, states and leaves", extra_json_schema={"enum": ["open", "parties"]}),
    ] = ""
    limits: dict[str, int] = {}


_COMMITTED: Final = b'{"transaction_id":"%b","position":%d,"outcome":"committed","reason":null,"conflicts":[],"log_time":%d,"receipt":%b}'
"""A `DecisionJson` that was committed, with its receipt. It takes half of the encoder's time."""
_NO_CONFLICTS: Final = b'"conflicts":[]'
_MEMBERS: Final = frozenset(DecisionJson.__struct_fields__)
_CONFLICT_MEMBERS: Final = frozenset(ConflictJson.__struct_fields__)
_OUTCOMES: Final = {reason: Outcome(number) for number, reason in enumerate(REASONS)}
_encode = msgspec.json.Encoder().encode
decode_decision: Final = msgspec.json.Decoder(DecisionJson).decode
decode_decisions: Final = msgspec.json.Decoder(DecisionsJson).decode
decode_state: Final = msgspec.json.Decoder(StateJson).decode
decode_notary: Final = msgspec.json.Decoder(NotaryJson).decode
encode_answer: Final = _encode
"""Encodes a `StateJson` or a `NotaryJson`."""


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
    if receipt and not decision.outcome and not decision.conflicts:
        return _COMMITTED % (hexlify(decision.transaction_id), decision.position, decision.log_time_ms, receipt)
    return _with_receipt(_encode(to_json(decision)), receipt)


def encode_in_pieces(decision: Decision, receipt: bytes = b"") -> Pieces[bytes]:
    """Encodes a decision as `encode_decision` does, in pieces of `CONFLICTS_A_PIECE` conflicts."""
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
