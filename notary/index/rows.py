"""Row formats of the index, to the byte (big-endian). Pure.

Some keys have older names: `life` is an incarnation, `doubts` are open suspicions.

| meta key | value |
|---|---|
| `format` | u32 index format version |
| `notary` | the notary's name, UTF-8 |
| `log` | the log's identity, UTF-8 |
| `progress` | u64 next position, i64 log time |
| `log state` | the log's own description, such as keys and versions: MessagePack of `joiner.LogState` |
| `doubts` | MessagePack: the number of records up to which others last agreed; the open suspicion of each suspected worker name (R10) |
| `agreement` | the comparison of the workers' roots: MessagePack of `notary.agreement.Agreement` |
| `agreement-before` | the same, as of the last record that took effect: a restart reads again from there |
| `offset` + i32 topic-partition | u64 next offset; topic-partition -1 is the ordering topic |
| `mark` + i32 topic-partition | u64 offset, 32-byte fingerprint: of the last record there that took effect |
| `effect` + u32 (seen mod 65,536) | a record that took effect: see `effect_row` |
| `items` + u64 first position | items of the open salvage, as its record has them |
| `life` + u64 incarnation | u64 last sequence, i64 active at, u8 fenced, u16 format version, 16-byte nonce, worker name |
"""

from struct import Struct, error
from typing import Final

import msgspec

from joiner import Effect, IncarnationState, Mark
from joiner.history import HISTORY_KEPT, NO_CONTENT, NONE_SKIPPED
from ordering.errors import CorruptRecord
from ordering.ids import TRANSACTION_ID_BYTES, TransactionId
from ordering.records import HASH_BYTES
from ordering.salvage import Decided, Hashed, Item, Lost

FORMAT_KEY: Final = b"format"
NOTARY_KEY: Final = b"notary"
LOG_KEY: Final = b"log"
PROGRESS_KEY: Final = b"progress"
LOG_STATE_KEY: Final = b"log state"
SUSPICIONS_KEY: Final = b"doubts"
AGREEMENT_KEY: Final = b"agreement"
AGREEMENT_BEFORE_KEY: Final = b"agreement-before"
OFFSET_PREFIX: Final = b"offset"
INCARNATION_PREFIX: Final = b"life"
MARK_PREFIX: Final = b"mark"
EFFECT_PREFIX: Final = b"effect"
ITEMS_PREFIX: Final = b"items"

U32 = Struct(">I")
U64 = Struct(">Q")
PROGRESS = Struct(">Qq")
_PARTITION = Struct(">i")
_INCARNATION = Struct(">QqBH16s")
_MARK = Struct(">Q32s")
_EFFECT = Struct(">Q32sQq32siQ32sq32s")
_STATE = Struct(">32sQ")
_TILE = Struct(">BQ")
RESERVED: Final = 2**64 - 1
"""The position in the row of a reserved state."""
_HASHED, _LOST = b"\1", b"\2"


def tile_key(level: int, index: int) -> bytes:
    """Returns the key of a tile: u8 level, u64 index."""
    return _TILE.pack(level, index)


def offset_key(partition: int) -> bytes:
    """Returns the meta key of a topic-partition's next offset."""
    return OFFSET_PREFIX + _PARTITION.pack(partition)


def partition_of(key: bytes) -> int:
    """Returns the topic-partition of an offset key."""
    (partition,) = _PARTITION.unpack_from(key, len(OFFSET_PREFIX))
    return int(partition)


def incarnation_key(incarnation: int) -> bytes:
    """Returns the meta key of an incarnation."""
    return INCARNATION_PREFIX + U64.pack(incarnation)


def incarnation_row(state: IncarnationState) -> bytes:
    """Returns the meta value of an incarnation."""
    row = _INCARNATION.pack(state.sequence_last, state.active_at_ms, state.fenced, state.format_version, state.nonce)
    return row + state.name.encode()


def incarnation_of(key: bytes, row: bytes) -> IncarnationState:
    """Decodes the incarnation of a meta row. Raises `CorruptRecord`."""
    try:
        (incarnation,) = U64.unpack_from(key, len(INCARNATION_PREFIX))
        sequence_last, active_at_ms, fenced, format_version, nonce = _INCARNATION.unpack_from(row)
        return IncarnationState(
            incarnation, row[_INCARNATION.size :].decode(), nonce, sequence_last, bool(fenced), active_at_ms, format_version
        )
    except (error, UnicodeDecodeError) as problem:
        raise CorruptRecord(f"an index row of an incarnation does not decode: {problem}") from problem


def mark_key(partition: int) -> bytes:
    """Returns the meta key of a topic-partition's mark."""
    return MARK_PREFIX + _PARTITION.pack(partition)


def mark_row(mark: Mark) -> bytes:
    """Returns the meta value of a mark."""
    return _MARK.pack(mark.offset, mark.fingerprint)


def mark_of(key: bytes, row: bytes) -> tuple[int, Mark]:
    """Decodes the topic-partition and mark of a meta row. Raises `CorruptRecord`."""
    try:
        (partition,) = _PARTITION.unpack_from(key, len(MARK_PREFIX))
        return int(partition), Mark(*_MARK.unpack(row))
    except error as problem:
        raise CorruptRecord(f"an index row of a mark does not decode: {problem}") from problem


def effect_key(seen: int) -> bytes:
    """Returns the meta key of an effect. An effect overwrites the row of the effect `HISTORY_KEPT` records earlier."""
    return EFFECT_PREFIX + U32.pack(seen % HISTORY_KEPT)


def effect_row(effect: Effect) -> bytes:
    """Returns the meta value of an effect.

    u64 seen, 32-byte history, u64 offset, i64 append time, 32-byte fingerprint, i32 partition (-1: none), u64 content offset, 32-byte
    content fingerprint, i64 offset of the first record skipped before it (-1: none), 32-byte hash of the skipped records.
    """
    return _EFFECT.pack(*msgspec.structs.astuple(effect))


def effect_of(row: bytes) -> Effect:
    """Decodes the effect of a meta row. Raises `CorruptRecord`."""
    try:
        effect = Effect(*_EFFECT.unpack(row))
    except error as problem:
        raise CorruptRecord(f"an index row of a record that took effect does not decode: {problem}") from problem
    if effect.partition == NO_CONTENT:
        effect = msgspec.structs.replace(effect, content_fingerprint=b"")
    return effect if effect.skipped_first != NONE_SKIPPED else msgspec.structs.replace(effect, skipped_hash=b"")


def state_row(transaction_id: TransactionId, position: int) -> bytes:
    """Returns the row of a consumed state: 32-byte transaction id, u64 position."""
    return _STATE.pack(transaction_id, position)


def state_of(row: bytes) -> tuple[TransactionId, int]:
    """Decodes a row of `states`: (consuming transaction id, its position), or of a reserved one. Raises `CorruptRecord`."""
    if len(row) != _STATE.size:
        raise CorruptRecord(f"an index row of a state has {len(row)} bytes, not {_STATE.size}")
    transaction_id, position = _STATE.unpack(row)
    return transaction_id, position


def reserved_row(consumed_by: bytes) -> bytes:
    """Returns the row of a reserved state: SHA-256 of its consumer's transaction id, which is unknown (R11), and `RESERVED`."""
    return _STATE.pack(consumed_by, RESERVED)


def items_key(first: int) -> bytes:
    """Returns the meta key of the items of the open salvage from position `first` on."""
    return ITEMS_PREFIX + U64.pack(first)


def position_row(item: Item) -> bytes:
    """Returns the row of `positions` of a salvaged item: the transaction id, or 1 and the leaf's hash, or 2 for a lost leaf."""
    if isinstance(item, Decided):
        return item.transaction_id
    return _HASHED + item.leaf_hash if isinstance(item, Hashed) else _LOST


def undecided_of(row: bytes) -> Hashed | Lost | None:
    """Decodes a row of `positions`; None for one with a transaction id. Raises `CorruptRecord`."""
    if len(row) == TRANSACTION_ID_BYTES:
        return None
    if row == _LOST:
        return Lost()
    if len(row) == HASH_BYTES + 1 and row[:1] == _HASHED:
        return Hashed(row[1:])
    raise CorruptRecord(f"an index row of a position has {len(row)} bytes and is no transaction id, hash or lost leaf")
