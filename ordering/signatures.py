"""Signatures over ordering records, fills, seals and new keys: records without one are skipped (R10; docs/formats.md). Pure.

Every signature covers the log id, the SHA-256 of the genesis record, so that a record of one log is invalid in another. Ed25519 is
libsodium's, which takes half of OpenSSL's time and releases the GIL while it verifies.
"""

from hashlib import sha256
from struct import Struct
from typing import Final

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import BadSignatureError

from ordering.errors import CorruptRecord
from ordering.records import (
    HASH_BYTES,
    SIGNATURE_BYTES,
    Genesis,
    Key,
    OrderingRecord,
    decode,
    encode,
)

LOG_ID_BYTES: Final = HASH_BYTES
NO_LOG_ID: Final = bytes(LOG_ID_BYTES)
"""Replaces the log id in the signature of the genesis record, which must be signed before it can be hashed."""
FILL_BYTES: Final = HASH_BYTES + SIGNATURE_BYTES

_RECORD_HEAD: Final = b"notary/log/v1\n"
_FILL_HEAD: Final = b"notary/fill/v1\n"
_SEAL_HEAD: Final = b"notary/seal/v1\n"
_KEY_HEAD: Final = b"notary/log-key/v1\n"
_U32 = Struct(">I")


class SigningKey:
    """An Ed25519 private key, made from its 32-byte seed."""

    __slots__ = ("_secret", "public_key")

    def __init__(self, seed: bytes) -> None:
        self.public_key, self._secret = crypto_sign_seed_keypair(seed)

    def sign(self, message: bytes) -> bytes:
        """Returns the 64-byte signature over a message."""
        return bytes(crypto_sign(message, self._secret)[:SIGNATURE_BYTES])


def is_signed(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Returns True if the signature is that key's over the message; False also for an invalid key or signature."""
    if len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + message, public_key)
    except (BadSignatureError, ValueError):
        return False
    return True


def log_id_of(genesis_value: bytes) -> bytes:
    """Returns the log id: SHA-256 of the genesis record's bytes, signature included."""
    return sha256(genesis_value).digest()


def sign_record(record: OrderingRecord, log_id: bytes, key: SigningKey) -> bytes:
    """Returns the value of an ordering record: its bytes, then the signature. For `Genesis` the log id is `NO_LOG_ID`."""
    unsigned = encode(record)
    return unsigned + key.sign(_RECORD_HEAD + log_id + unsigned)


def record_is_signed(value: bytes, log_id: bytes, public_key: bytes) -> bool:
    """Returns True if `value` is an ordering record that the key has signed for the log with this id."""
    return is_signed(public_key, value[-SIGNATURE_BYTES:], _RECORD_HEAD + log_id + value[:-SIGNATURE_BYTES])


def decode_genesis(value: bytes | None) -> Genesis:
    """Decodes a genesis record signed by the owner that it names. Raises `CorruptRecord` for anything else."""
    record = decode(value)
    if not isinstance(record, Genesis):
        raise CorruptRecord(f"it is no genesis record but one of kind {type(record).__name__.lower()}")
    assert value is not None
    if not record_is_signed(value, NO_LOG_ID, record.owner_key):
        raise CorruptRecord("it is not signed by the owner that it names")
    return record


def sign_fill(log_id: bytes, partition: int, batch_key: bytes, payload_hash: bytes, key: SigningKey) -> bytes:
    """Returns the value of a fill in `partition` for the batch with `batch_key`, whose entry names `payload_hash` (R4)."""
    return payload_hash + key.sign(_message(_FILL_HEAD, log_id, partition, batch_key, payload_hash))


def is_fill(value: bytes, log_id: bytes, partition: int, batch_key: bytes, payload_hash: bytes, public_key: bytes) -> bool:
    """Returns True if this value is a fill for that batch, signed by that key."""
    return _is_signed_replacement(value, payload_hash, public_key, _message(_FILL_HEAD, log_id, partition, batch_key, payload_hash))


def sign_seal(log_id: bytes, partition: int, batch_key: bytes, payload_hash: bytes, public_key_in_force: bytes, owner: SigningKey) -> bytes:
    """Returns the value of a seal in `partition` for the batch with `batch_key`, whose entry names `payload_hash` (R11).

    `public_key_in_force`: the notary's, at the entry. After the next salvage another key is in force. So the seal does not count for an
    entry of the new side that happens to have the same batch key and payload.
    """
    return payload_hash + owner.sign(_message(_SEAL_HEAD, log_id, partition, batch_key, payload_hash) + public_key_in_force)


def is_seal(
    value: bytes, log_id: bytes, partition: int, batch_key: bytes, payload_hash: bytes, public_key_in_force: bytes, owner_key: bytes
) -> bool:
    """Returns True if this value is a seal for that batch under that key in force, signed by the owner."""
    message = _message(_SEAL_HEAD, log_id, partition, batch_key, payload_hash) + public_key_in_force
    return _is_signed_replacement(value, payload_hash, owner_key, message)


def endorse_key(key: SigningKey, log_id: bytes, public_key_in_force: bytes) -> Key:
    """Returns the record that replaces the key in force by `key`, signed by `key` itself as proof that its private half exists."""
    return Key(key.public_key, key.sign(_KEY_HEAD + log_id + public_key_in_force))


def key_is_endorsed(record: Key, log_id: bytes, public_key_in_force: bytes) -> bool:
    """Returns True if the new key itself has signed that it follows the key in force."""
    return is_signed(record.public_key, record.endorsement, _KEY_HEAD + log_id + public_key_in_force)


def _is_signed_replacement(value: bytes, payload_hash: bytes, public_key: bytes, message: bytes) -> bool:
    return len(value) == FILL_BYTES and value[:HASH_BYTES] == payload_hash and is_signed(public_key, value[HASH_BYTES:], message)


def _message(head: bytes, log_id: bytes, partition: int, batch_key: bytes, payload_hash: bytes) -> bytes:
    return b"".join((head, log_id, _U32.pack(partition), batch_key, payload_hash))
