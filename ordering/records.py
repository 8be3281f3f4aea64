"""The records of the ordering topic, to the byte (docs/formats.md, Log records).

First byte: format version; second byte: kind; then the body, big-endian; the last 64 bytes are an Ed25519 signature over all bytes before
it (`ordering.signatures`). `decode` is total: any bytes give a record or `CorruptRecord`. It does not check the signature.

A *view* is u64 seen, 32-byte history: the state of the log as the writer knew it at the time of writing (R10).

Kinds 1 to 4 are signed by the notary, the others by its owner. Kinds 11 and 12 belong to format version 2, kind 10 to both, and all others
to version 1.

| kind | body |
|---|---|
| 1 entry | u64 incarnation, u64 sequence, view, i64 sent_at, u32 payload partition, SHA-256 of the payload, u32 count, transaction ids |
| 2 register | 16-byte nonce, view, u16 highest format version, u16 length, worker name, u16 length, software version |
| 3 fence | u64 incarnation of the writer, view, u64 incarnation, u64 last sequence counted |
| 4 checkpoint | u64 incarnation, view, u64 tree size, 32-byte root |
| 5 activate | u16 format version |
| 6 genesis | 16 random bytes, u32 payload partitions, notary's key, owner's key, u16 length, notary name, u16 length, origin |
| 7 key | 32-byte new public key, its 64-byte endorsement |
| 8 partitions | u32 payload partitions |
| 9 retire | u64 incarnation |
| 10 settle | in format version 2 the 32-byte public key in force, then in both: view |
| 11 salvage | 32-byte public key in force, view, u8 step: 0 begin, 1 items, 2 done; then |
| begin | u64 position |
| items | u64 first position, u32 count, that many items (`ordering.salvage`) |
| done | u64 tree size, 32-byte root |
| 12 trim | 32-byte public key in force, view, u64 position, 32-byte root |
"""

from collections.abc import Container
from struct import Struct, error
from typing import Any, Final, TypeAlias

import msgspec

from ordering.errors import CorruptRecord
from ordering.ids import NAME_BYTES_MAX, TRANSACTION_ID_BYTES, TransactionId
from ordering.salvage import Item, decode_items, encode_items

FORMAT_VERSION: Final = 2
"""The highest format version that this software reads. A new rule of decisions needs the next version (docs/architecture.md)."""

RECORD_FORMAT: Final = 1
"""The format version of the records that this software writes."""

ACTIVE_AT_START: Final = frozenset({1})
SALVAGE_FORMAT: Final = 2
"""The format version of salvage and trim records, of settle records that name the key in force, and of seals."""
SALVAGE_BYTES_MAX: Final = 1 << 20
"""The maximum length of a salvage record, signature included."""

NONCE_BYTES: Final = 16
HASH_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_FORMATS_OF: Final = {10: (1, SALVAGE_FORMAT), 11: (SALVAGE_FORMAT,), 12: (SALVAGE_FORMAT,)}
"""The format versions of these kinds; all others have version 1 alone."""
_HEAD = Struct(">BB")
_ENTRY_BODY = Struct(">QQQ32sqI32sI")
_REGISTER_BODY = Struct(">16sQ32sH")
_FENCE_BODY = Struct(">QQ32sQQ")
_CHECKPOINT_BODY = Struct(">QQ32sQ32s")
_ACTIVATE_BODY = Struct(">H")
_GENESIS_BODY = Struct(">16sI32s32s")
_KEY_BODY = Struct(">32s64s")
_PARTITIONS_BODY = Struct(">I")
_RETIRE_BODY = Struct(">Q")
_SETTLE_BODY = Struct(">Q32s")
_SETTLE_KEY_BODY = Struct(">32sQ32s")
_SALVAGE_BODY = Struct(">32sQ32sB")
_BEGIN_REST = Struct(">Q")
_DONE_REST = Struct(">Q32s")
_TRIM_BODY = Struct(">32sQ32sQ32s")
_U16 = Struct(">H")
_BATCH_KEY = Struct(">QQ")


class View(msgspec.Struct, frozen=True, gc=False):
    """The log as the writer of a record knew it: `seen` records had taken effect, and `history` is the running hash over them (R10)."""

    seen: int
    history: bytes


class Entry(msgspec.Struct, frozen=True, gc=False):
    """Batch (incarnation, sequence) takes this place in the global order; its content is in payload partition `partition`."""

    incarnation: int
    sequence: int
    view: View
    sent_at_ms: int
    partition: int
    payload_hash: bytes
    transaction_ids: tuple[TransactionId, ...]


class Register(msgspec.Struct, frozen=True, gc=False):
    """A new incarnation of a worker begins; its number is the ordinal of this record among all that took effect (R5)."""

    nonce: bytes
    view: View
    format_version: int
    name: str
    software_version: str


class Fence(msgspec.Struct, frozen=True, gc=False):
    """`incarnation` ends if `sequence_last` (0 for none) is still its last counted sequence (R5). `writer` appends the record."""

    writer: int
    view: View
    incarnation: int
    sequence_last: int


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """The root that `incarnation` has at `tree_size` decisions (R9)."""

    incarnation: int
    view: View
    tree_size: int
    root: bytes


class Activate(msgspec.Struct, frozen=True, gc=False):
    """Records of `format_version` count too, from here on; a worker that cannot read them stops before this record."""

    format_version: int


class Genesis(msgspec.Struct, frozen=True, gc=False):
    """The first record of a log: it names the owner of the log (R10). `salt` makes the log id unique."""

    salt: bytes
    payload_partitions: int
    notary_key: bytes
    owner_key: bytes
    notary_name: str
    origin: str


class Key(msgspec.Struct, frozen=True, gc=False):
    """`public_key` is the notary's only key from the next record on. `endorsement` proves possession of its private half."""

    public_key: bytes
    endorsement: bytes


class Partitions(msgspec.Struct, frozen=True, gc=False):
    """Entries may name payload partitions below `payload_partitions`, from here on."""

    payload_partitions: int


class Retire(msgspec.Struct, frozen=True, gc=False):
    """`incarnation` ends, and its worker's name has no vote until it registers again (R9)."""

    incarnation: int


class Settle(msgspec.Struct, frozen=True, gc=False):
    """The owner confirms that this history is the valid one (R10)."""

    view: View
    key: bytes = b""
    """The notary's key in force; empty in format version 1."""


class SalvageBegin(msgspec.Struct, frozen=True, gc=False):
    """A salvage begins: its items follow from `position` on, the size of the tree (R11). `key` is the notary's key in force."""

    key: bytes
    view: View
    position: int


class SalvageItems(msgspec.Struct, frozen=True, gc=False):
    """The items of a salvage from position `first` on. They take effect with its `SalvageDone`."""

    key: bytes
    view: View
    first: int
    items: tuple[Item, ...]


class SalvageDone(msgspec.Struct, frozen=True, gc=False):
    """All items since the last `SalvageBegin` take effect, if the tree has that size and root with them."""

    key: bytes
    view: View
    tree_size: int
    root: bytes


class Trim(msgspec.Struct, frozen=True, gc=False):
    """Payloads of decisions below `position` may be freed. `root` is the root of the tree at that size. `key` is as in a salvage."""

    key: bytes
    view: View
    position: int
    root: bytes


WorkerRecord: TypeAlias = Entry | Register | Fence | Checkpoint
"""Kinds 1 to 4: workers write them, signed with the notary's key."""
SalvageRecord: TypeAlias = SalvageBegin | SalvageItems | SalvageDone
"""Kind 11."""
OwnerRecord: TypeAlias = Activate | Genesis | Key | Partitions | Retire | Settle | SalvageRecord | Trim
"""Kinds 5 to 12: commands write them, signed with the owner's key."""
OrderingRecord: TypeAlias = WorkerRecord | OwnerRecord


def encode(record: OrderingRecord) -> bytes:
    """Returns the record's bytes in its format version, unsigned. The caller ensures that names have at most 255 UTF-8 bytes."""
    match record:
        case Entry(incarnation, sequence, view, sent_at_ms, partition, payload_hash, ids):
            body = _ENTRY_BODY.pack(incarnation, sequence, view.seen, view.history, sent_at_ms, partition, payload_hash, len(ids))
            return b"".join((_HEAD.pack(RECORD_FORMAT, 1), body, *ids))
        case Register(nonce, view, format_version, name, software_version):
            body = _REGISTER_BODY.pack(nonce, view.seen, view.history, format_version) + _text(name) + _text(software_version)
            return _HEAD.pack(RECORD_FORMAT, 2) + body
        case Fence(writer, view, incarnation, sequence_last):
            return _HEAD.pack(RECORD_FORMAT, 3) + _FENCE_BODY.pack(writer, view.seen, view.history, incarnation, sequence_last)
        case Checkpoint(incarnation, view, tree_size, root):
            return _HEAD.pack(RECORD_FORMAT, 4) + _CHECKPOINT_BODY.pack(incarnation, view.seen, view.history, tree_size, root)
        case Activate(format_version):
            return _HEAD.pack(RECORD_FORMAT, 5) + _ACTIVATE_BODY.pack(format_version)
        case Genesis(salt, payload_partitions, notary_key, owner_key, notary_name, origin):
            body = _GENESIS_BODY.pack(salt, payload_partitions, notary_key, owner_key) + _text(notary_name) + _text(origin)
            return _HEAD.pack(RECORD_FORMAT, 6) + body
        case Key(public_key, endorsement):
            return _HEAD.pack(RECORD_FORMAT, 7) + _KEY_BODY.pack(public_key, endorsement)
        case Partitions(payload_partitions):
            return _HEAD.pack(RECORD_FORMAT, 8) + _PARTITIONS_BODY.pack(payload_partitions)
        case Retire(incarnation):
            return _HEAD.pack(RECORD_FORMAT, 9) + _RETIRE_BODY.pack(incarnation)
        case Settle(view, key):
            if key:
                return _HEAD.pack(SALVAGE_FORMAT, 10) + _SETTLE_KEY_BODY.pack(key, view.seen, view.history)
            return _HEAD.pack(RECORD_FORMAT, 10) + _SETTLE_BODY.pack(view.seen, view.history)
        case SalvageBegin(key, view, position):
            return _salvage(key, view, 0) + _BEGIN_REST.pack(position)
        case SalvageItems(key, view, first, items):
            return _salvage(key, view, 1) + encode_items(first, items)
        case SalvageDone(key, view, tree_size, root):
            return _salvage(key, view, 2) + _DONE_REST.pack(tree_size, root)
        case Trim(key, view, position, root):
            return _HEAD.pack(SALVAGE_FORMAT, 12) + _TRIM_BODY.pack(key, view.seen, view.history, position, root)


def decode(value: bytes | None, active: Container[int] = ACTIVE_AT_START) -> OrderingRecord:
    """Decodes a record, signature included, to its last byte. Raises `CorruptRecord` for anything else, never another exception.

    `active`: the format versions that are active at the record's place.
    """
    if value is None or len(value) < _HEAD.size + SIGNATURE_BYTES:
        raise CorruptRecord(f"an ordering record has at least {_HEAD.size + SIGNATURE_BYTES} bytes: version, kind and signature")
    version, kind = value[0], value[1]
    if version not in active:
        raise CorruptRecord(f"format version {version} is not active")
    if version not in _FORMATS_OF.get(kind, (1,)):
        raise CorruptRecord(f"kind {kind} is unknown to format version {version}")
    if kind == 11 and len(value) > SALVAGE_BYTES_MAX:
        raise CorruptRecord(f"a salvage record has at most {SALVAGE_BYTES_MAX} bytes, this one has {len(value)}")
    try:
        return _decode_body(version, kind, value[_HEAD.size : -SIGNATURE_BYTES])
    except (error, UnicodeDecodeError) as problem:
        raise CorruptRecord(f"an ordering record of kind {kind} does not decode: {problem}") from None


def batch_key(incarnation: int, sequence: int) -> bytes:
    """Returns the payload record's key for a batch: u64 incarnation, u64 sequence."""
    return _BATCH_KEY.pack(incarnation, sequence)


def decode_batch_key(key: bytes | None) -> tuple[int, int]:
    """Returns (incarnation, sequence) from a payload record's key. Raises `CorruptRecord` if it is not 16 bytes."""
    if key is None or len(key) != _BATCH_KEY.size:
        raise CorruptRecord(f"a payload key has 16 bytes, this one has {0 if key is None else len(key)}")
    incarnation, sequence = _BATCH_KEY.unpack(key)
    return incarnation, sequence


def _decode_body(version: int, kind: int, body: bytes) -> OrderingRecord:
    match kind:
        case 1:
            incarnation, sequence, seen, history, sent_at_ms, partition, payload_hash, count = _ENTRY_BODY.unpack_from(body)
            _exactly(kind, body, _ENTRY_BODY.size + count * TRANSACTION_ID_BYTES)
            ids = tuple([body[at : at + TRANSACTION_ID_BYTES] for at in range(_ENTRY_BODY.size, len(body), TRANSACTION_ID_BYTES)])
            return Entry(incarnation, sequence, View(seen, history), sent_at_ms, partition, payload_hash, ids)
        case 2:
            nonce, seen, history, format_version = _REGISTER_BODY.unpack_from(body)
            name, at = _take_text(body, _REGISTER_BODY.size)
            software_version, at = _take_text(body, at)
            _exactly(kind, body, at)
            return Register(nonce, View(seen, history), format_version, name, software_version)
        case 3:
            writer, seen, history, incarnation, sequence_last = _unpacked(kind, _FENCE_BODY, body)
            return Fence(writer, View(seen, history), incarnation, sequence_last)
        case 4:
            incarnation, seen, history, tree_size, root = _unpacked(kind, _CHECKPOINT_BODY, body)
            return Checkpoint(incarnation, View(seen, history), tree_size, root)
        case 5:
            (format_version,) = _unpacked(kind, _ACTIVATE_BODY, body)
            if format_version == 0:
                raise CorruptRecord("an activate record names format version 0, which does not exist")
            return Activate(format_version)
        case 6:
            return _decode_genesis(body)
        case 7:
            return Key(*_unpacked(kind, _KEY_BODY, body))
        case 8:
            return Partitions(*_unpacked(kind, _PARTITIONS_BODY, body))
        case 9:
            return Retire(*_unpacked(kind, _RETIRE_BODY, body))
        case 10:
            if version == 1:
                return Settle(View(*_unpacked(kind, _SETTLE_BODY, body)))
            key, seen, history = _unpacked(kind, _SETTLE_KEY_BODY, body)
            return Settle(View(seen, history), key)
        case 11:
            return _decode_salvage(body)
        case 12:
            key, seen, history, position, root = _unpacked(kind, _TRIM_BODY, body)
            return Trim(key, View(seen, history), position, root)
        case _:
            raise CorruptRecord(f"kind {kind} is unknown to all format versions up to {FORMAT_VERSION}")


def _salvage(key: bytes, view: View, step: int) -> bytes:
    return _HEAD.pack(SALVAGE_FORMAT, 11) + _SALVAGE_BODY.pack(key, view.seen, view.history, step)


def _decode_salvage(body: bytes) -> SalvageRecord:
    key, seen, history, step = _SALVAGE_BODY.unpack_from(body)
    view, rest = View(seen, history), body[_SALVAGE_BODY.size :]
    match step:
        case 0:
            return SalvageBegin(key, view, *_unpacked(11, _BEGIN_REST, rest))
        case 1:
            return SalvageItems(key, view, *decode_items(rest))
        case 2:
            return SalvageDone(key, view, *_unpacked(11, _DONE_REST, rest))
        case _:
            raise CorruptRecord(f"a salvage record has step {step}, which does not exist")


def _decode_genesis(body: bytes) -> Genesis:
    salt, payload_partitions, notary_key, owner_key = _GENESIS_BODY.unpack_from(body)
    notary_name, at = _take_text(body, _GENESIS_BODY.size)
    origin, at = _take_text(body, at)
    _exactly(6, body, at)
    if payload_partitions == 0:
        raise CorruptRecord("a genesis record declares no payload partition")
    for text in (notary_name, origin):
        if not 0 < len(text.encode()) <= NAME_BYTES_MAX:
            raise CorruptRecord(f"a name or origin in a genesis record has 1 to {NAME_BYTES_MAX} bytes, this one has {len(text.encode())}")
    return Genesis(salt, payload_partitions, notary_key, owner_key, notary_name, origin)


def _unpacked(kind: int, form: Struct, body: bytes) -> tuple[Any, ...]:
    _exactly(kind, body, form.size)
    return form.unpack(body)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _U16.pack(len(encoded)) + encoded


def _take_text(body: bytes, at: int) -> tuple[str, int]:
    (length,) = _U16.unpack_from(body, at)
    start = at + _U16.size
    if start + length > len(body):
        raise CorruptRecord(f"an ordering record ends inside a text of {length} bytes")
    return body[start : start + length].decode(), start + length


def _exactly(kind: int, body: bytes, length: int) -> None:
    if len(body) != length:
        raise CorruptRecord(f"the body of an ordering record of kind {kind} should have {length} bytes and has {len(body)}")
