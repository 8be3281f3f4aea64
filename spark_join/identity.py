"""The identity of a log: its notary, its owner, and the notary's key in force at each offset (R10; docs/formats.md, Log records).

The genesis record names the notary, its first key and the owner's key. After it only `key` records change the notary's key: the owner signs
them, and the new key endorses the change from the key in force. Few of them take effect, so the driver follows them with one query each,
however many copies and forgeries there are.

OpenSSL verifies the signatures here, and libsodium in the workers: an independent verifier uses another library. libsodium is stricter. It
rejects points of small order, with which one signature can be valid for every message, and keys that are not in canonical form. This module
rejects both too. They do not occur by accident. But a holder of the notary's key could make them, and only some readers would accept the
record.
"""

from bisect import bisect_right
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from spark_join.constants import FILL_BYTES, FILL_DOMAIN, HASH_BYTES, LOG_KEY_DOMAIN, NO_LOG_ID, RECORD_DOMAIN, SEAL_DOMAIN, SIGNATURE_BYTES

NOTARY_KINDS = frozenset({"entry", "register", "fence", "checkpoint"})
"""Kinds 1 to 4, signed with the notary's key in force; all others are signed with the owner's."""

_P: Final = 2**255 - 19
_ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER: Final = {0, 1, _P - 1, _ORDER_8, _P - _ORDER_8}
"""The y coordinates of the points of order 1, 2, 4 and 8."""


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The identity of a log, from its genesis and `key` records."""

    log_id: bytes
    notary_name: str
    owner_key: bytes
    notary_keys: tuple[tuple[int, bytes], ...]
    """(first offset at which it is in force, key) for all keys that were ever in force, in their order"""

    def notary_key(self, offset: int) -> bytes:
        """Returns the notary's key in force at an ordering offset."""
        return self.notary_keys[bisect_right(self.notary_keys, offset, key=lambda each: each[0]) - 1][1]

    def has_signed(self, kind: str, offset: int, value: bytes | None) -> bool:
        """Returns True if an ordering record of this kind at this offset has the right signature; False for a malformed one."""
        if value is None or kind == "malformed":
            return False
        key = self.notary_key(offset) if kind in NOTARY_KINDS else self.owner_key
        log_id = NO_LOG_ID if kind == "genesis" else self.log_id
        return is_signed(key, value[-SIGNATURE_BYTES:], RECORD_DOMAIN + log_id + value[:-SIGNATURE_BYTES])

    def is_fill(self, value: bytes, offset: int, partition: int, batch_key: bytes, payload_hash: bytes) -> bool:
        """Returns True if `value` is a valid fill for the entry at this ordering offset, which names this partition, key and hash (R3)."""
        return self._stands_for(FILL_DOMAIN, self.notary_key(offset), value, partition, batch_key, payload_hash)

    def is_seal(self, value: bytes, offset: int, partition: int, batch_key: bytes, payload_hash: bytes) -> bool:
        """Returns True if `value` is a valid seal for the entry at this ordering offset, which names this partition, key and hash (R11)."""
        return self._stands_for(SEAL_DOMAIN, self.owner_key, value, partition, batch_key, payload_hash, self.notary_key(offset))

    def _stands_for(
        self, domain: bytes, signer: bytes, value: bytes, partition: int, batch_key: bytes, payload_hash: bytes, in_force: bytes = b""
    ) -> bool:
        message = b"".join((domain, self.log_id, partition.to_bytes(4, "big"), batch_key, payload_hash, in_force))
        is_for_it = len(value) == FILL_BYTES and value[:HASH_BYTES] == payload_hash
        return is_for_it and is_signed(signer, value[HASH_BYTES:], message)

    def endorsed(self, fields: dict[str, bytes]) -> bool:
        """Returns True if a `key` record with these fields replaces the newest key: its key is new and has signed the endorsement."""
        _, newest = self.notary_keys[-1]
        public_key = fields["public_key"]
        is_new = all(public_key != key for _, key in self.notary_keys)
        return is_new and is_signed(public_key, fields["endorsement"], LOG_KEY_DOMAIN + self.log_id + newest)


def identity_of(genesis: bytes, fields: dict[str, Any]) -> Identity | None:
    """Returns the identity that a genesis record with this value and these fields defines; None if its owner has not signed it."""
    found = Identity(sha256(genesis).digest(), fields["notary_name"].decode(), fields["owner_key"], ((0, fields["notary_key"]),))
    return found if found.has_signed("genesis", 0, genesis) else None


def is_signed(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Returns True for a valid Ed25519 signature of the message; False also for bytes that are no key or no signature."""
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
