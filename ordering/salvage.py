"""The items of a salvage, to the byte (R11; docs/formats.md, Salvage). Pure.

An item restores one position of the tree: its decision, or the hash of its leaf, or the lost leaf. `decode_items` is total: any bytes give
items or `CorruptRecord`. Each item has one encoding.
"""

from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from struct import Struct, error
from typing import Final, TypeAlias

import msgspec

from ordering.errors import CorruptRecord
from ordering.ids import STATE_REF_BYTES, StateRef, TransactionId

LEAF_PREFIX: Final = b"notary/decision/v1\n"
LOST_PREFIX: Final = b"notary/lost/v1\n"
LEAF: Final = Struct(">19sQ32sqBI32s")
"""The leaf of a decision: prefix, position, transaction id, log time, outcome, number of conflicts, SHA-256 of them."""
CONFLICT_BYTES: Final = STATE_REF_BYTES + 1 + 32
_KINDS_BY_OUTCOME: Final = (None, 0, 1, None)
"""By outcome: the kind of all conflicts of such a decision; None if it has no conflicts."""
_FIRST = Struct(">QI")
_U32 = Struct(">I")
_U64 = Struct(">Q")


class Decided(msgspec.Struct, frozen=True, gc=False, tag="decided"):
    """A decision: its leaf, its conflicts as the leaf hashes them, and the states that it consumed, ascending."""

    leaf: bytes
    conflicts: bytes = b""
    inputs: tuple[StateRef, ...] = ()

    @property
    def transaction_id(self) -> TransactionId:
        """The id of the transaction that was decided."""
        id_: bytes = LEAF.unpack(self.leaf)[2]
        return id_

    @property
    def log_time_ms(self) -> int:
        """The log time of the decision."""
        return int(LEAF.unpack(self.leaf)[3])


class Hashed(msgspec.Struct, frozen=True, gc=False, tag="hashed"):
    """The hash of a leaf whose decision is unknown."""

    leaf_hash: bytes


class Lost(msgspec.Struct, frozen=True, gc=False, tag="lost"):
    """A lost decision, of which nothing is known: the tree gets the lost leaf."""


Item: TypeAlias = Decided | Hashed | Lost


def lost_leaf(position: int) -> bytes:
    """Returns the leaf of a position of which nothing is known."""
    return LOST_PREFIX + _U64.pack(position)


def leaf_of(item: Item, position: int) -> bytes:
    """Returns the leaf of an item; empty when only its hash is known."""
    if isinstance(item, Decided):
        return item.leaf
    return b"" if isinstance(item, Hashed) else lost_leaf(position)


def encode_items(first: int, items: Sequence[Item]) -> bytes:
    """Returns the items from position `first` on: u64 first position, u32 count, the items."""
    return _FIRST.pack(first, len(items)) + b"".join([_encode_item(item) for item in items])


def _encode_item(item: Item) -> bytes:
    match item:
        case Decided(leaf, conflicts, inputs):
            return b"".join((b"\0", leaf, conflicts, _U32.pack(len(inputs)), *inputs))
        case Hashed(leaf_hash):
            return b"\1" + leaf_hash
        case Lost():
            return b"\2"


def decode_items(data: bytes) -> tuple[int, tuple[Item, ...]]:
    """Returns (first position, items) from all of the bytes. Raises `CorruptRecord` for anything else, never another exception."""
    try:
        first, count = _FIRST.unpack_from(data)
        items: list[Item] = []
        at = _FIRST.size
        while at < len(data):
            item, at = _decode_item(data, at, first + len(items))
            items.append(item)
    except error as problem:
        raise CorruptRecord(f"the items of a salvage do not decode: {problem}") from None
    if not items or len(items) != count:
        raise CorruptRecord(f"a salvage record should have {count} items, at least 1; it has {len(items)}")
    if first + count >= 2**64:
        raise CorruptRecord(f"the items of a salvage begin at position {first} and do not end below 2^64")
    return first, tuple(items)


def _decode_item(data: bytes, at: int, position: int) -> tuple[Item, int]:
    form = data[at]
    at += 1
    if form == 0:
        return _decode_decided(data, at, position)
    if form == 1:
        return Hashed(_take(data, at, 32)), at + 32
    if form == 2:
        return Lost(), at
    raise CorruptRecord(f"the item at position {position} has form {form}, which does not exist")


def _decode_decided(data: bytes, at: int, position: int) -> tuple[Decided, int]:
    leaf = _take(data, at, LEAF.size)
    at += LEAF.size
    prefix, leaf_position, _, _, outcome, count, digest = LEAF.unpack(leaf)
    if prefix != LEAF_PREFIX or leaf_position != position:
        raise CorruptRecord(f"the item at position {position} has no leaf of that position")
    if outcome >= len(_KINDS_BY_OUTCOME):
        raise CorruptRecord(f"the item at position {position} has outcome {outcome}, which does not exist")
    conflicts = _take(data, at, count * CONFLICT_BYTES)
    at += len(conflicts)
    kind = _KINDS_BY_OUTCOME[outcome]
    if (count > 0) != (kind is not None) or sha256(conflicts).digest() != digest:
        raise CorruptRecord(f"the conflicts of the item at position {position} are not those of its leaf")
    if any(byte != kind for byte in conflicts[STATE_REF_BYTES::CONFLICT_BYTES]):
        raise CorruptRecord(f"the item at position {position} has a conflict of another kind than its outcome")
    _check_ascends([conflicts[start : start + STATE_REF_BYTES] for start in range(0, len(conflicts), CONFLICT_BYTES)], position)
    (input_count,) = _U32.unpack_from(data, at)
    at += _U32.size
    if input_count and outcome:
        raise CorruptRecord(f"the item at position {position} is a rejection and consumes {input_count} states")
    states = _take(data, at, input_count * STATE_REF_BYTES)
    inputs = tuple([states[start : start + STATE_REF_BYTES] for start in range(0, len(states), STATE_REF_BYTES)])
    _check_ascends(inputs, position)
    return Decided(leaf, conflicts, inputs), at + len(states)


def _check_ascends(states: Sequence[StateRef], position: int) -> None:
    if any(before >= after for before, after in pairwise(states)):
        raise CorruptRecord(f"the states of the item at position {position} do not ascend")


def _take(data: bytes, at: int, length: int) -> bytes:
    if at + length > len(data):
        raise CorruptRecord(f"the items of a salvage end before the {length} bytes at byte {at}")
    return data[at : at + length]
