"""`Decision`, and its two binary encodings: its leaf in the tree and its row in the index (docs/formats.md, Decision).

`notary.wire` has its JSON. A request gets one decision, for ever. Its *position* is the number of decisions made before it.
"""

from collections.abc import Sequence
from enum import IntEnum
from hashlib import sha256
from itertools import pairwise
from struct import Struct, error
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from notary.tree import leaf_hash
from ordering.errors import CorruptRecord, Malformed
from ordering.ids import StateRef, TransactionId
from ordering.pieces import Pieces
from ordering.salvage import CONFLICT_BYTES, LEAF, LEAF_PREFIX, Decided, Hashed, Item, leaf_of

CONFLICTS_A_PIECE: Final = 250
CONFLICT_US: Final = 1
"""The time to read a conflict from a row, or to write it as JSON."""

_ROW = Struct(">QqB")
ROW_HEAD_BYTES: Final = _ROW.size
"""The bytes of an index row before its conflicts."""
_HASH_OF_NOTHING = sha256(b"").digest()


class Outcome(IntEnum):
    """The outcome byte of a leaf. If two rejections apply, the lower number wins; an earlier decision (R7) comes before both."""

    COMMITTED = 0
    INPUT_CONFLICT = 1
    REFERENCE_CONFLICT = 2
    OUTSIDE_TIME_WINDOW = 3


Reason: TypeAlias = Literal["input-conflict", "reference-conflict", "outside-time-window"]
REASONS: Final[tuple[Reason | None, ...]] = (None, *get_args(Reason))
"""The reason of each `Outcome`, by its number."""


class Kind(IntEnum):
    """The place of a consumed state in its request: among the inputs or the references."""

    INPUT = 0
    REFERENCE = 1


KINDS: Final[tuple[Literal["input", "reference"], ...]] = ("input", "reference")


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """A state that was consumed before; `consumed_by` is the SHA-256 of the consuming transaction's id, 32 bytes."""

    state: StateRef
    kind: Kind
    consumed_by: bytes


class Decision(msgspec.Struct, frozen=True, gc=False):
    """One decision. `conflicts` are sorted by the bytes of their states."""

    position: int
    transaction_id: TransactionId
    outcome: Outcome
    log_time_ms: int
    conflicts: tuple[Conflict, ...] = ()


def check_conflicts(decision: Decision, where: str = "") -> None:
    """Raise `Malformed`, with a path within `where`, unless the conflicts are such as a notary lists under that outcome."""
    conflicts, reason = decision.conflicts, REASONS[decision.outcome]
    if (decision.outcome in (Outcome.INPUT_CONFLICT, Outcome.REFERENCE_CONFLICT)) != bool(conflicts):
        raise Malformed(f"{len(conflicts)} conflicts with the reason {reason}", where)
    for at, conflict in enumerate(conflicts):
        if f"{KINDS[conflict.kind]}-conflict" != reason:
            raise Malformed(f"an {KINDS[conflict.kind]} listed under {reason}", f"{where}.conflicts[{at}]")
    if any(first.state >= second.state for first, second in pairwise(conflicts)):
        raise Malformed("conflicts do not ascend", where)


def leaf(decision: Decision) -> bytes:
    """Returns the leaf of a decision: the 104 bytes that a receipt proves."""
    conflicts = decision.conflicts
    digest = sha256(_conflict_bytes(conflicts)).digest() if conflicts else _HASH_OF_NOTHING
    return LEAF.pack(
        LEAF_PREFIX, decision.position, decision.transaction_id, decision.log_time_ms, decision.outcome, len(conflicts), digest
    )


def leaf_of_row(transaction_id: TransactionId, row: bytes) -> bytes:
    """Returns the leaf of an index row without decoding it: the row's conflict bytes are those that the leaf hashes.

    Raises `CorruptRecord`.
    """
    conflict_bytes = len(row) - _ROW.size
    if conflict_bytes < 0 or conflict_bytes % CONFLICT_BYTES:
        raise CorruptRecord(f"the decision row of {transaction_id.hex()} has {len(row)} bytes")
    position, log_time_ms, outcome = _ROW.unpack_from(row)
    digest = sha256(memoryview(row)[_ROW.size :]).digest()
    return LEAF.pack(LEAF_PREFIX, position, transaction_id, log_time_ms, outcome, conflict_bytes // CONFLICT_BYTES, digest)


def to_row(decision: Decision) -> bytes:
    """Encodes the index row of a decision: u64 position, i64 log time, u8 outcome, then 69 bytes for each conflict."""
    head = _ROW.pack(decision.position, decision.log_time_ms, decision.outcome)
    return head + _conflict_bytes(decision.conflicts) if decision.conflicts else head


def hashes_of(first: int, items: Sequence[Item]) -> list[bytes]:
    """Returns the leaf hashes of the items of a salvage from position `first` on."""
    return [item.leaf_hash if isinstance(item, Hashed) else leaf_hash(leaf_of(item, at)) for at, item in enumerate(items, first)]


def row_of_item(item: Decided) -> bytes:
    """Encodes the index row of a salvaged decision."""
    _, position, _, log_time_ms, outcome, _, _ = LEAF.unpack(item.leaf)
    return _ROW.pack(position, log_time_ms, outcome) + item.conflicts


def from_row(transaction_id: TransactionId, row: bytes) -> Decision:
    """Decodes an index row. Raises `CorruptRecord`."""
    try:
        position, log_time_ms, outcome = _ROW.unpack_from(row)
        if (len(row) - _ROW.size) % CONFLICT_BYTES:
            raise CorruptRecord(f"the decision row of {transaction_id.hex()} has {len(row)} bytes")
        conflicts = tuple(
            [
                Conflict(row[at : at + 36], Kind(row[at + 36]), row[at + 37 : at + CONFLICT_BYTES])
                for at in range(_ROW.size, len(row), CONFLICT_BYTES)
            ]
        )
        return Decision(position, transaction_id, Outcome(outcome), log_time_ms, conflicts)
    except (error, ValueError) as problem:
        raise CorruptRecord(f"the decision row of {transaction_id.hex()} does not decode: {problem}") from problem


def from_row_in_pieces(transaction_id: TransactionId, row: bytes) -> Pieces[Decision]:
    """Decodes an index row as `from_row` does, in pieces of `CONFLICTS_A_PIECE` conflicts."""
    if len(row) <= _ROW.size + CONFLICTS_A_PIECE * CONFLICT_BYTES:
        return from_row(transaction_id, row)
    head = row[: _ROW.size]
    conflicts: list[Conflict] = []
    for at in range(_ROW.size, len(row), CONFLICTS_A_PIECE * CONFLICT_BYTES):
        piece = from_row(transaction_id, head + row[at : at + CONFLICTS_A_PIECE * CONFLICT_BYTES]).conflicts
        conflicts += piece
        yield len(piece) * CONFLICT_US
    return msgspec.structs.replace(from_row(transaction_id, head), conflicts=tuple(conflicts))


def position_of_row(transaction_id: TransactionId, row: bytes) -> int:
    """Returns the position in an index row. Raises `CorruptRecord`."""
    return from_row(transaction_id, row[: _ROW.size]).position


def _conflict_bytes(conflicts: tuple[Conflict, ...]) -> bytes:
    return b"".join([c.state + bytes((c.kind,)) + c.consumed_by for c in conflicts])
