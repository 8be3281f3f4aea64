"""The records of the log, decoded by the contract's tables (docs/formats.md, Log records): layouts, signatures, history.

OpenSSL verifies the signatures here, libsodium makes and verifies the notary's own. Where the two differ, the stricter one is right:
OpenSSL accepts points of small order, with which one signature can be valid for every message.
"""

from collections.abc import Container
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

FORMAT_VERSION = 2
"""The highest format version that this decoder knows."""
SALVAGE_FORMAT = 2
"""The format version of kinds 11 and 12, of kind 10 with a key, and of seals."""
VERSIONS_OF = {10: (1, SALVAGE_FORMAT), 11: (SALVAGE_FORMAT,), 12: (SALVAGE_FORMAT,)}
"""The format versions of these kinds; the others have version 1 alone."""
SALVAGE_BYTES_MAX = 1 << 20
OUTCOMES = {None: 0, "input-conflict": 1, "reference-conflict": 2, "outside-time-window": 3}
"""The outcome byte of a leaf, by the reason of the rejection; None: committed."""
SIGNATURE = 64
NO_LOG_ID = bytes(32)
VERIFIED_KEPT = 8_192


class View(NamedTuple):
    """The history of a record's writer: `seen` records had taken effect, and `history` is the hash over them."""

    seen: int
    history: bytes


class Entry(NamedTuple):
    incarnation: int
    sequence: int
    view: View
    sent_at: int
    partition: int
    payload_hash: bytes
    ids: tuple[str, ...]


class Register(NamedTuple):
    nonce: bytes
    view: View
    format_version: int
    name: str


class Fence(NamedTuple):
    writer: int
    view: View
    incarnation: int
    sequence_last: int


class Root(NamedTuple):
    incarnation: int
    view: View
    size: int
    root: bytes


class Activate(NamedTuple):
    version: int


class Genesis(NamedTuple):
    salt: bytes
    partitions: int
    notary_key: bytes
    owner_key: bytes
    name: str
    origin: str


class Key(NamedTuple):
    public_key: bytes
    endorsement: bytes


class Partitions(NamedTuple):
    partitions: int


class Retire(NamedTuple):
    incarnation: int


class Settle(NamedTuple):
    view: View
    key: bytes = b""
    """The key in force; empty in format version 1."""


class Item(NamedTuple):
    """One position that a salvage restores: a decision with its leaf, or the hash of a leaf, or neither: it is lost."""

    leaf: bytes = b""
    conflicts: tuple[tuple[bytes, int, bytes], ...] = ()
    """(state, kind, hash of the consumer's id)"""
    inputs: tuple[bytes, ...] = ()
    leaf_hash: bytes = b""


class Begin(NamedTuple):
    key: bytes
    view: View
    position: int


class Items(NamedTuple):
    key: bytes
    view: View
    first: int
    items: tuple[Item, ...]


class Done(NamedTuple):
    key: bytes
    view: View
    size: int
    root: bytes


class Trim(NamedTuple):
    key: bytes
    view: View
    position: int
    root: bytes


NAME_THE_KEY = (Begin, Items, Done, Trim)
"""The record types that name the notary's key in force."""
WORKERS = (Entry, Register, Fence, Root)
"""The record types that the notary's key signs; the owner's key signs all others."""
Ordering = Entry | Register | Fence | Root | Activate | Genesis | Key | Partitions | Retire | Settle | Begin | Items | Done | Trim


def view_of(record: Ordering) -> View | None:
    """Returns the record's view, None for the kinds that have none."""
    return record.view if isinstance(record, (*WORKERS, Settle, *NAME_THE_KEY)) else None


def ordering_record(value: bytes | None, active: Container[int] = (1,)) -> Ordering | None:
    """Decodes a record without verifying its signature.

    Returns None if it does not decode to its last byte, or its format version is not in `active`.
    """
    if value is None or len(value) < 2 + SIGNATURE or value[0] not in active:
        return None
    if value[0] not in VERSIONS_OF.get(value[1], (1,)) or (value[1] == 11 and len(value) > SALVAGE_BYTES_MAX):
        return None
    body = _Bytes(value[2:-SIGNATURE])
    try:
        record = _body(value[0], value[1], body)
    except (_EndError, UnicodeDecodeError):
        return None
    return record if body.at_end() else None


def is_signed(value: bytes, log_id: bytes, public_key: bytes) -> bool:
    """Returns whether that key signed the ordering record for that log; genesis is signed with a log id of 32 zero bytes."""
    return verified(public_key, value[-SIGNATURE:], b"notary/log/v1\n" + log_id + value[:-SIGNATURE])


def is_endorsed(record: Key, log_id: bytes, key_in_force: bytes) -> bool:
    """Returns whether the new key has signed that it follows the key in force."""
    return verified(record.public_key, record.endorsement, b"notary/log-key/v1\n" + log_id + key_in_force)


def is_fill(value: bytes, log_id: bytes, partition: int, key: bytes, payload_hash: bytes, public_key: bytes) -> bool:
    """Returns whether the value is a fill for the batch of that key in that partition, whose entry names `payload_hash`."""
    return _stands_for(b"notary/fill/v1\n", value, log_id, partition, key, payload_hash, public_key)


def is_seal(value: bytes, log_id: bytes, partition: int, key: bytes, payload_hash: bytes, key_in_force: bytes, owner_key: bytes) -> bool:
    """Returns whether the value is a seal for that batch under that notary's key: the owner says that a disaster took its content."""
    return _stands_for(b"notary/seal/v1\n", value, log_id, partition, key, payload_hash, owner_key, key_in_force)


def _stands_for(
    domain: bytes, value: bytes, log_id: bytes, partition: int, key: bytes, payload_hash: bytes, public_key: bytes, last: bytes = b""
) -> bool:
    message = domain + log_id + partition.to_bytes(4, "big") + key + payload_hash + last
    return len(value) == 32 + SIGNATURE and value[:32] == payload_hash and verified(public_key, value[32:], message)


def next_history(history: bytes, append_time: int, value: bytes, mark: int) -> bytes:
    """Returns H(n + 1), from H(n) and the record in effect; `mark`: 1 for an entry joined with its payload, 2 with a seal, else 0."""
    return sha256(history + append_time.to_bytes(8, "big", signed=True) + sha256(value).digest() + bytes([mark])).digest()


def batch_key(key: bytes | None) -> tuple[int, int] | None:
    """Returns the (incarnation, sequence) of a payload record, None if its key names no batch."""
    if key is None or len(key) != 16:
        return None
    return int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")


def key_of(incarnation: int, sequence: int) -> bytes:
    """Returns the key of a batch's payload record: incarnation and sequence, each a big-endian u64."""
    return incarnation.to_bytes(8, "big") + sequence.to_bytes(8, "big")


# ---- layouts ----


class _EndError(Exception):
    """Raised when there are fewer bytes than the layout needs."""


class _Bytes:
    """A buffer that is read from the front."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise _EndError
        self._at += length
        return self._data[self._at - length : self._at]

    def fixed(self, layout: Struct) -> tuple[Any, ...]:
        return layout.unpack(self.take(layout.size))

    def text(self) -> str:
        return self.take(int.from_bytes(self.take(2), "big")).decode()

    def at_end(self) -> bool:
        return self._at == len(self._data)


_ENTRY = Struct(">QQQ32sqI32sI")
_REGISTER = Struct(">16sQ32sH")
_FENCE = Struct(">QQ32sQQ")
_ROOT = Struct(">QQ32sQ32s")
_GENESIS = Struct(">16sI32s32s")
_KEY = Struct(">32s64s")
_VIEW = Struct(">Q32s")
_SALVAGE = Struct(">32sQ32sB")
_ITEMS = Struct(">QI")
_DONE = Struct(">Q32s")
_TRIM = Struct(">32sQ32sQ32s")
_COUNT = Struct(">I")
LEAF = Struct(">19sQ32sqBI32s")
LEAF_PREFIX = b"notary/decision/v1\n"


def _body(version: int, kind: int, body: _Bytes) -> Ordering | None:
    match kind:
        case 1:
            incarnation, sequence, seen, history, sent_at, partition, payload_hash, count = body.fixed(_ENTRY)
            ids = body.take(32 * count)
            hexed = tuple([ids[at : at + 32].hex() for at in range(0, len(ids), 32)])
            return Entry(incarnation, sequence, View(seen, history), sent_at, partition, payload_hash, hexed)
        case 2:
            nonce, seen, history, version = body.fixed(_REGISTER)
            name, _ = body.text(), body.text()
            return Register(nonce, View(seen, history), version, name)
        case 3:
            writer, seen, history, incarnation, last = body.fixed(_FENCE)
            return Fence(writer, View(seen, history), incarnation, last)
        case 4:
            incarnation, seen, history, size, root = body.fixed(_ROOT)
            return Root(incarnation, View(seen, history), size, root)
        case 5:
            version = int.from_bytes(body.take(2), "big")
            return Activate(version) if version else None
        case 6:
            salt, partitions, notary_key, owner_key = body.fixed(_GENESIS)
            genesis = Genesis(salt, partitions, notary_key, owner_key, body.text(), body.text())
            named = all(1 <= len(text.encode()) <= 255 for text in (genesis.name, genesis.origin))
            return genesis if genesis.partitions and named else None
        case 7:
            return Key(*body.fixed(_KEY))
        case 8:
            return Partitions(int.from_bytes(body.take(4), "big"))
        case 9:
            return Retire(int.from_bytes(body.take(8), "big"))
        case 10:
            key = body.take(32) if version == SALVAGE_FORMAT else b""
            return Settle(View(*body.fixed(_VIEW)), key)
        case 11:
            return _salvage(body)
        case 12:
            key, seen, history, position, root = body.fixed(_TRIM)
            return Trim(key, View(seen, history), position, root)
    return None


def _salvage(body: _Bytes) -> Ordering | None:
    key, seen, history, step = body.fixed(_SALVAGE)
    view = View(seen, history)
    match step:
        case 0:
            return Begin(key, view, int.from_bytes(body.take(8), "big"))
        case 1:
            first, count = body.fixed(_ITEMS)
            items: list[Item] = []
            while len(items) < count:  # not `range`: a count of 2^32 - 1 items is not believed before they are there
                item = _item(body, first + len(items))
                if item is None:
                    return None
                items.append(item)
            return Items(key, view, first, tuple(items)) if 0 < count < 2**64 - first else None
        case 2:
            return Done(key, view, *body.fixed(_DONE))
    return None


def _item(body: _Bytes, position: int) -> Item | None:
    """Decodes the item of that position; None if it breaks a rule."""
    form = body.take(1)[0]
    if form:
        return Item(leaf_hash=body.take(32)) if form == 1 else Item() if form == 2 else None
    leaf = body.take(LEAF.size)
    prefix, at, _, _, outcome, count, digest = LEAF.unpack(leaf)
    raw = body.take(69 * count)
    conflicts = tuple([(raw[at : at + 36], raw[at + 36], raw[at + 37 : at + 69]) for at in range(0, len(raw), 69)])
    (number,) = body.fixed(_COUNT)
    states = body.take(36 * number)
    inputs = tuple([states[at : at + 36] for at in range(0, len(states), 36)])
    if (prefix, at, digest) != (LEAF_PREFIX, position, sha256(raw).digest()) or outcome not in OUTCOMES.values():
        return None
    has_conflicts, may_consume = outcome in (1, 2), outcome == 0
    right = bool(count) == has_conflicts and all(kind == outcome - 1 for _, kind, _ in conflicts) and (may_consume or not number)
    met = [state for state, _, _ in conflicts]
    ascend = met == sorted(set(met)) and list(inputs) == sorted(set(inputs))
    return Item(leaf, conflicts, inputs) if right and ascend else None


# ---- Ed25519 ----

_P = 2**255 - 19
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = {0, 1, _P - 1, _P, _P + 1, _ORDER_8, _P - _ORDER_8}
"""The y coordinates of the points of order 1, 2, 4 and 8, in every 255-bit encoding."""


def _is_small(point: bytes) -> bool:
    return int.from_bytes(point, "little") & (2**255 - 1) in _SMALL_ORDER


@lru_cache(maxsize=VERIFIED_KEPT)
def verified(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Returns whether this is that key's signature over the message. Recent results are cached, since logs are replayed often."""
    if len(public_key) != 32 or len(signature) != SIGNATURE or _is_small(public_key) or _is_small(signature[:32]):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
