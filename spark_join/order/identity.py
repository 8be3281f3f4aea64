"""Whose log it is, and which key signs where (R10; docs/formats.md, Log records).

The genesis record names the notary, its first key and the owner's key. From then on only `key` records change the notary's key: they are
signed by the owner, and the new key endorses the change from the key in force. So few of them count that the driver can follow them, one
query each, however many copies and forgeries there are.

Signatures are verified by OpenSSL. Workers verify with libsodium: an independent verifier has another library. libsodium is the stricter
one: it takes no point of small order, with which one signature can be good for every message, and no key that is not in canonical form.
Nobody makes such a thing by accident; whoever has the notary's key could, so that only some of the readers would accept the record.
"""

from bisect import bisect_right
from functools import lru_cache
from hashlib import sha256
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from spark_join.constants import FILL_BYTES, FILL_DOMAIN, HASH_BYTES, LOG_KEY_DOMAIN, NO_LOG_ID, RECORD_DOMAIN, SIGNATURE_BYTES

NOTARY_KINDS = frozenset({"entry", "register", "fence", "checkpoint"})
"""Kinds 1 to 4, signed with the notary's key in force; all others are signed with the owner's."""

_P: Final = 2**255 - 19
_ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER: Final = {0, 1, _P - 1, _ORDER_8, _P - _ORDER_8}
"""The y coordinates of the points of order 1, 2, 4 and 8."""


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A log, as its genesis and `key` records describe it."""

    log_id: bytes
    notary_name: str
    owner_key: bytes
    notary_keys: tuple[tuple[int, bytes], ...]
    """(offset from which on it signs, key), all that were ever in force, in their order"""

    def notary_key(self, offset: int) -> bytes:
        """The notary's key in force at that ordering offset."""
        return self.notary_keys[bisect_right(self.notary_keys, offset, key=lambda each: each[0]) - 1][1]

    def has_signed(self, kind: str, offset: int, value: bytes | None) -> bool:
        """Whether the ordering record of that kind at that offset has the signature that it needs; false for one that is malformed."""
        if value is None or kind == "malformed":
            return False
        key = self.notary_key(offset) if kind in NOTARY_KINDS else self.owner_key
        log_id = NO_LOG_ID if kind == "genesis" else self.log_id
        return is_signed(key, value[-SIGNATURE_BYTES:], RECORD_DOMAIN + log_id + value[:-SIGNATURE_BYTES])

    def is_fill(self, value: bytes, offset: int, partition: int, batch_key: bytes, payload_hash: bytes) -> bool:
        """Whether `value` is a good fill for the entry at that ordering offset, which names this partition, key and hash (R3)."""
        message = b"".join((FILL_DOMAIN, self.log_id, partition.to_bytes(4, "big"), batch_key, payload_hash))
        is_for_it = len(value) == FILL_BYTES and value[:HASH_BYTES] == payload_hash
        return is_for_it and is_signed(self.notary_key(offset), value[HASH_BYTES:], message)

    def endorsed(self, fields: dict[str, bytes]) -> bool:
        """Whether a `key` record with these fields replaces the newest key here: it names a new key, which endorses that."""
        _, newest = self.notary_keys[-1]
        public_key = fields["public_key"]
        is_new = all(public_key != key for _, key in self.notary_keys)
        return is_new and is_signed(public_key, fields["endorsement"], LOG_KEY_DOMAIN + self.log_id + newest)


def identity_of(genesis: bytes, fields: dict[str, object]) -> Identity | None:
    """The identity that a genesis record with this value and these fields gives; None where its owner has not signed it."""
    owner_key, notary_key, name = fields["owner_key"], fields["notary_key"], fields["notary_name"]
    assert isinstance(owner_key, bytes)
    assert isinstance(notary_key, bytes)
    assert isinstance(name, bytes)
    found = Identity(sha256(genesis).digest(), name.decode(), owner_key, ((0, notary_key),))
    return found if found.has_signed("genesis", 0, genesis) else None


def is_signed(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether this is that key's Ed25519 signature over the message; false for anything that is no key or no signature."""
    if _y(public_key) >= _P or not {_y(public_key), _y(signature[:32]) % _P}.isdisjoint(_SMALL_ORDER):
        return False
    try:
        _key(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _y(point: bytes) -> int:
    return int.from_bytes(point, "little") & (2**255 - 1)


@lru_cache(maxsize=64)
def _key(public_key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public_key)
