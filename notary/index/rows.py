"""The rows of the index, to the byte (big-endian). Pure.

| meta key | value |
|---|---|
| `format` | u32 index format version |
| `notary` | the notary's name, UTF-8 |
| `log` | the log's identity, UTF-8 |
| `partitions` | u32 payload partitions |
| `progress` | u64 next position, i64 log time |
| `judged` | the digest of the last ordering record applied (`Record.digest`) |
| `agreement` | what is known of the other workers' roots, MessagePack of `notary.agreement.Agreement` |
| `offset` + i32 stream | u64 next offset; stream -1 is the ordering topic |
| `life` + u64 incarnation | u64 last sequence, i64 active at, u8 fenced, 16-byte nonce, worker name |
"""

from struct import Struct, error
from typing import Final

from joiner import Life
from ordering.errors import CorruptRecord
from ordering.ids import TransactionId

FORMAT_KEY: Final = b"format"
NOTARY_KEY: Final = b"notary"
LOG_KEY: Final = b"log"
PARTITIONS_KEY: Final = b"partitions"
PROGRESS_KEY: Final = b"progress"
JUDGED_KEY: Final = b"judged"
AGREEMENT_KEY: Final = b"agreement"
OFFSET_PREFIX: Final = b"offset"
LIFE_PREFIX: Final = b"life"

U32 = Struct(">I")
U64 = Struct(">Q")
PROGRESS = Struct(">Qq")
_STREAM = Struct(">i")
_LIFE = Struct(">QqB16s")
_STATE = Struct(">32sQ")
_TILE = Struct(">BQ")


def tile_key(level: int, index: int) -> bytes:
    """The key of a tile: u8 level, u64 index."""
    return _TILE.pack(level, index)


def offset_key(stream: int) -> bytes:
    """The meta key of a stream's next offset."""
    return OFFSET_PREFIX + _STREAM.pack(stream)


def stream_of(key: bytes) -> int:
    """The stream of an offset key."""
    (stream,) = _STREAM.unpack_from(key, len(OFFSET_PREFIX))
    return int(stream)


def life_key(incarnation: int) -> bytes:
    """The meta key of a life."""
    return LIFE_PREFIX + U64.pack(incarnation)


def life_row(life: Life) -> bytes:
    """The meta value of a life."""
    return _LIFE.pack(life.sequence_last, life.active_at_ms, life.fenced, life.nonce) + life.name.encode()


def life_of(key: bytes, row: bytes) -> Life:
    """The life of a meta row; `CorruptRecord` when it is none."""
    try:
        (incarnation,) = U64.unpack_from(key, len(LIFE_PREFIX))
        sequence_last, active_at_ms, fenced, nonce = _LIFE.unpack_from(row)
        return Life(incarnation, row[_LIFE.size :].decode(), nonce, sequence_last, bool(fenced), active_at_ms)
    except (error, UnicodeDecodeError) as problem:
        raise CorruptRecord(f"an index row of a life does not decode: {problem}") from problem


def state_row(transaction_id: TransactionId, position: int) -> bytes:
    """The value under a consumed state."""
    return _STATE.pack(transaction_id, position)


def state_of(row: bytes) -> tuple[TransactionId, int]:
    """(consuming transaction id, its position) of a row of `states`; `CorruptRecord` when it is none."""
    if len(row) != _STATE.size:
        raise CorruptRecord(f"an index row of a state has {len(row)} bytes, not {_STATE.size}")
    transaction_id, position = _STATE.unpack(row)
    return transaction_id, position
