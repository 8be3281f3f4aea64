"""Tests signatures over ordering records, fills and new keys: the worked examples to the byte, and everything that must be rejected."""

import json
from collections.abc import Callable
from hashlib import sha256, sha512
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from ordering.errors import CorruptRecord
from ordering.records import SIGNATURE_BYTES, Entry, Genesis, Key, Partitions, Retire, decode, encode
from ordering.signatures import (
    FILL_BYTES,
    NO_LOG_ID,
    SigningKey,
    decode_genesis,
    endorse_key,
    is_fill,
    is_seal,
    is_signed,
    key_is_endorsed,
    log_id_of,
    record_is_signed,
    sign_fill,
    sign_record,
    sign_seal,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())["log"]
ORDERING = [(example["what"], bytes.fromhex(example["value_hex"])) for example in VECTORS["ordering"]]
LOG_ID = bytes.fromhex(VECTORS["log_id"])
FIRST, SECOND, OWNER = (SigningKey(sha256(f"vector {name} key".encode()).digest()) for name in ("notary", "second notary", "owner"))
GENESIS = ORDERING[0][1]
ENTRY = ORDERING[2][1]
KEY = ORDERING[4][1]
PARTITION, FILLED_KEY, FILL = next(
    (example["partition"], bytes.fromhex(example["key_hex"]), bytes.fromhex(example["value_hex"]))
    for example in VECTORS["payload"]
    if example["what"] == "fill"
)
FILLED_HASH = FILL[:32]
OTHER = b"\x77" * 32

hashes = st.binary(min_size=32, max_size=32)


def signer(at: int) -> SigningKey:
    """Returns the key that signed this example record: the owner's for kinds 5 to 10, else the notary's; one has the former key."""
    what, value = ORDERING[at]
    if value[1] >= 5:
        return OWNER
    return FIRST if at < 4 or "former" in what else SECOND


def changed(value: bytes, at: int) -> bytes:
    """Returns the value with one bit of one byte flipped; a negative `at` counts from the end."""
    copy = bytearray(value)
    copy[at] ^= 1
    return bytes(copy)


def test_keys_of_the_worked_example() -> None:
    """A key made from its seed has the public key in the worked example."""
    assert [FIRST.public_key.hex(), SECOND.public_key.hex()] == VECTORS["notary_keys_hex"]
    assert OWNER.public_key.hex() == VECTORS["owner_key_hex"]


def test_log_id_of_the_worked_example() -> None:
    """The log id is the hash of the genesis record with its signature."""
    assert log_id_of(GENESIS) == LOG_ID
    assert log_id_of(changed(GENESIS, -1)) != LOG_ID


@pytest.mark.parametrize("at", range(len(ORDERING)), ids=[what for what, _ in ORDERING])
def test_signatures_of_the_worked_example(at: int) -> None:
    """Each record of the worked example verifies with its signer's key only, and signing it again gives the same bytes."""
    value = ORDERING[at][1]
    log_id = LOG_ID if at else NO_LOG_ID
    signers = [key for key in (FIRST, SECOND, OWNER) if record_is_signed(value, log_id, key.public_key)]
    assert signers == [signer(at)]
    assert sign_record(decode(value), log_id, signer(at)) == value


@pytest.mark.parametrize("at", range(len(ORDERING)), ids=[what for what, _ in ORDERING])
def test_every_byte_is_signed(at: int) -> None:
    """No byte of a record, and no byte of its signature, can be changed."""
    value, key, log_id = ORDERING[at][1], signer(at).public_key, LOG_ID if at else NO_LOG_ID
    for place in range(len(value)):
        assert not record_is_signed(changed(value, place), log_id, key)


def test_signature_of_another_log() -> None:
    """A record of one log does not verify in another, and the zero log id of genesis is valid for no other log."""
    assert not record_is_signed(ENTRY, OTHER, FIRST.public_key)
    assert not record_is_signed(ENTRY, NO_LOG_ID, FIRST.public_key)
    assert not record_is_signed(GENESIS, LOG_ID, OWNER.public_key)


@given(st.binary(max_size=200), hashes, hashes)
def test_record_is_signed_is_total(value: bytes, log_id: bytes, key: bytes) -> None:
    """Any bytes as record, log id and key give a result, False for everything that was not signed."""
    assert not record_is_signed(value, log_id, key)


@given(st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=80))
def test_is_signed_is_total(key: bytes, signature: bytes, message: bytes) -> None:
    """A key or a signature of any length gives a result, and no exception."""
    assert not is_signed(key, signature, message)


@given(hashes, st.binary(max_size=300))
def test_signs_as_others_do(seed: bytes, message: bytes) -> None:
    """Another implementation of Ed25519 makes the same public key and the same signature."""
    key, other = SigningKey(seed), Ed25519PrivateKey.from_private_bytes(seed)
    signature = key.sign(message)
    assert key.public_key == other.public_key().public_bytes_raw()
    assert signature == other.sign(message)
    assert is_signed(key.public_key, signature, message)
    assert not is_signed(key.public_key, signature, message + b"\0")


L = 2**252 + 27742317777372353535851937790883648493
"""The order of the group of Ed25519."""
IDENTITY = (1).to_bytes(32, "little")
"""The neutral point, as a public key or as the first half of a signature."""


def test_signature_has_one_spelling() -> None:
    """A signature whose second half is increased by the group order is the same number, and is rejected."""
    same = int.from_bytes(ENTRY[-32:], "little") + L
    assert not record_is_signed(ENTRY[:-32] + same.to_bytes(32, "little"), LOG_ID, FIRST.public_key)


def test_points_of_small_order_sign_nothing() -> None:
    """The neutral point is rejected as a key (it would verify any message) and as a first half; libraries differ, so the format says so."""
    assert not is_signed(IDENTITY, IDENTITY + bytes(32), b"message")
    seed = sha256(b"seed").digest()
    key = SigningKey(seed)
    clamped = int.from_bytes(sha512(seed).digest()[:32], "little") & ((1 << 254) - 8) | 1 << 254
    challenge = int.from_bytes(sha512(IDENTITY + key.public_key + b"message").digest(), "little") % L
    signature = IDENTITY + (challenge * clamped % L).to_bytes(32, "little")
    Ed25519PrivateKey.from_private_bytes(seed).public_key().verify(signature, b"message")  # what OpenSSL accepts
    assert not is_signed(key.public_key, signature, b"message")


# ---- genesis ----


def test_genesis_of_the_worked_example() -> None:
    """The genesis record decodes if the owner named in it has signed it."""
    genesis = decode_genesis(GENESIS)
    assert (genesis.notary_key, genesis.owner_key) == (FIRST.public_key, OWNER.public_key)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "at least 66 bytes"),
        (b"garbage", "at least 66 bytes"),
        (ENTRY, "no genesis record but one of kind entry"),
        (changed(GENESIS, 2), "not signed by the owner"),
        (changed(GENESIS, -1), "not signed by the owner"),
        (GENESIS + b"\0", "should have"),
    ],
)
def test_what_is_no_genesis(value: bytes | None, why: str) -> None:
    """A record of another kind, a changed one, or no record at all is rejected with the reason."""
    with pytest.raises(CorruptRecord, match=why):
        decode_genesis(value)


@pytest.mark.parametrize("signed", [lambda g: sign_record(g, NO_LOG_ID, FIRST), lambda g: sign_record(g, LOG_ID, OWNER)])
def test_a_genesis_signed_otherwise_is_rejected(signed: Callable[[Genesis], bytes]) -> None:
    """A genesis record signed by the notary's key, or with another log id than zeros, is rejected."""
    with pytest.raises(CorruptRecord, match="not signed by the owner"):
        decode_genesis(signed(decode_genesis(GENESIS)))


@given(st.binary(max_size=300))
def test_decode_genesis_is_total(value: bytes) -> None:
    """Any unsigned bytes are rejected with `CorruptRecord`."""
    with pytest.raises(CorruptRecord):
        decode_genesis(b"\x01\x06" + value)


# ---- fills ----


def test_fill_of_the_worked_example() -> None:
    """The fill of the worked example is valid for its entry, and signing it again gives the same bytes."""
    entry = decode(ORDERING[3][1])
    assert isinstance(entry, Entry)
    assert (entry.partition, entry.payload_hash) == (PARTITION, FILLED_HASH)
    assert len(FILL) == FILL_BYTES
    assert sign_fill(LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, FIRST) == FILL
    assert is_fill(FILL, LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, FIRST.public_key)


def test_every_byte_of_a_fill_is_signed() -> None:
    """No byte of a fill can be changed, removed or added."""
    for place in range(FILL_BYTES):
        assert not is_fill(changed(FILL, place), LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, FIRST.public_key)
    for length in range(FILL_BYTES):
        assert not is_fill(FILL[:length], LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, FIRST.public_key)
    assert not is_fill(FILL + b"\0", LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, FIRST.public_key)


@pytest.mark.parametrize(
    ("log_id", "partition", "key", "payload_hash", "signed_by"),
    [
        (OTHER, PARTITION, FILLED_KEY, FILLED_HASH, FIRST),
        (LOG_ID, PARTITION + 1, FILLED_KEY, FILLED_HASH, FIRST),
        (LOG_ID, PARTITION, changed(FILLED_KEY, -1), FILLED_HASH, FIRST),
        (LOG_ID, PARTITION, FILLED_KEY, OTHER, FIRST),
        (LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, SECOND),
        (LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, OWNER),
    ],
    ids=["another log", "another partition", "another batch", "another hash", "another key", "the owner's key"],
)
def test_fill_for_something_else(log_id: bytes, partition: int, key: bytes, payload_hash: bytes, signed_by: SigningKey) -> None:
    """A fill for another batch, partition, log, hash or key is not valid for this batch."""
    assert not is_fill(FILL, log_id, partition, key, payload_hash, signed_by.public_key)
    other = sign_fill(log_id, partition, key, payload_hash, signed_by)
    assert is_fill(other, log_id, partition, key, payload_hash, signed_by.public_key)
    assert not is_fill(other, LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, FIRST.public_key)
    assert not is_fill(FILLED_HASH + other[32:], LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, FIRST.public_key)


@given(st.binary(max_size=120), hashes)
def test_is_fill_is_total(value: bytes, key: bytes) -> None:
    """Any bytes give a result, False for everything that was not signed."""
    assert not is_fill(value, LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, key)
    assert not is_fill(FILLED_HASH + value, LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, FIRST.public_key)


# ---- endorsements ----


def test_endorsement_of_the_worked_example() -> None:
    """The second key of the worked example has signed that it follows the first."""
    record = decode(KEY)
    assert isinstance(record, Key)
    assert key_is_endorsed(record, LOG_ID, FIRST.public_key)
    assert endorse_key(SECOND, LOG_ID, FIRST.public_key) == record
    assert sign_record(record, LOG_ID, OWNER) == KEY


def test_endorsement_for_something_else() -> None:
    """An endorsement is valid for one new key, one log and one key in force, and with unchanged bytes only."""
    record = endorse_key(SECOND, LOG_ID, FIRST.public_key)
    assert not key_is_endorsed(record, OTHER, FIRST.public_key)
    assert not key_is_endorsed(record, LOG_ID, SECOND.public_key)
    assert not key_is_endorsed(record, LOG_ID, OWNER.public_key)
    assert not key_is_endorsed(Key(OTHER, record.endorsement), LOG_ID, FIRST.public_key)
    for place in range(SIGNATURE_BYTES):
        assert not key_is_endorsed(Key(record.public_key, changed(record.endorsement, place)), LOG_ID, FIRST.public_key)


# ---- a signature is valid for its kind only ----


def test_signatures_of_different_kinds_are_not_exchangeable() -> None:
    """The signatures by one key of a record, a fill and an endorsement are valid for their own kind only."""
    record = sign_record(Partitions(3), LOG_ID, FIRST)
    endorsement = endorse_key(FIRST, LOG_ID, SECOND.public_key).endorsement
    fill = sign_fill(LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, FIRST)[32:]
    for signature in (endorsement, fill):
        assert not record_is_signed(encode(Retire(1)) + signature, LOG_ID, FIRST.public_key)
    for signature in (record[-SIGNATURE_BYTES:], endorsement):
        assert not is_fill(FILLED_HASH + signature, LOG_ID, PARTITION, FILLED_KEY, FILLED_HASH, FIRST.public_key)
    for signature in (record[-SIGNATURE_BYTES:], fill):
        assert not key_is_endorsed(Key(FIRST.public_key, signature), LOG_ID, SECOND.public_key)


def test_a_seal_is_the_owners_for_one_entry_of_one_log() -> None:
    """A seal has the layout of the page. It counts for its log, partition, batch key, hash and key in force, if the owner signed it."""
    key, hash_, in_force, owner = bytes(range(16)), sha256(b"lost content").digest(), FIRST.public_key, OWNER.public_key
    seal = sign_seal(LOG_ID, 3, key, hash_, in_force, OWNER)
    message = b"notary/seal/v1\n" + LOG_ID + b"\0\0\0\3" + key + hash_ + in_force
    assert seal == hash_ + OWNER.sign(message)
    assert is_seal(seal, LOG_ID, 3, key, hash_, in_force, owner)
    assert not is_fill(seal, LOG_ID, 3, key, hash_, owner)
    assert not is_seal(sign_fill(LOG_ID, 3, key, hash_, OWNER), LOG_ID, 3, key, hash_, in_force, owner)
    others = [
        (bytes(32), 3, key, hash_, in_force, owner),
        (LOG_ID, 2, key, hash_, in_force, owner),
        (LOG_ID, 3, bytes(16), hash_, in_force, owner),
        (LOG_ID, 3, key, bytes(32), in_force, owner),
        (LOG_ID, 3, key, hash_, SECOND.public_key, owner),
        (LOG_ID, 3, key, hash_, in_force, FIRST.public_key),
    ]
    assert not any(is_seal(seal, *other) for other in others)
    assert not is_seal(seal[:-1], LOG_ID, 3, key, hash_, in_force, owner)
