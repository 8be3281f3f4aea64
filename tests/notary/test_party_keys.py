"""The checks of parties' signatures: both libraries accept the same ones, at the borders of the rules too."""

import hashlib
import os

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from notary import party_keys
from notary.party_keys import by_libsodium, by_vodozemac, load_public_key, verifier
from ordering.errors import ConfigurationError
from tests import edwards25519 as curve
from tests.notary.party import Bank

SECRET, NONCE, MESSAGE = 0x1234567 << 200, 0x89ABCDEF << 190, b"message"
KEY = curve.multiply(SECRET, curve.BASE)


@pytest.mark.parametrize("p256", [False, True], ids=["ed25519", "p256"])
def test_a_verifier_takes_good_signatures_only(p256: bool) -> None:
    """Only the right signature over the right message verifies; garbage gives False, and raises nothing."""
    bank = Bank(p256=p256)
    verify = verifier(load_public_key(bank.public_pem, "x"))
    good = bank.sign(MESSAGE)
    assert verify(good, MESSAGE)
    near = [good[:-1], good + b"\0", Bank(p256=not p256).sign(MESSAGE)]
    for bad in (b"", *near, b"\0" * 64, b"\xff" * 64, bytes.fromhex("3006020101020101"), b"\x30\x80", os.urandom(1000)):
        assert not verify(bad, MESSAGE)
    assert not verify(good, b"messagf")
    assert not verify(good, b"")


@given(st.binary(max_size=200), st.integers(0, 511), st.booleans())
def test_three_libraries_agree(message: bytes, bit: int, altered: bool) -> None:
    """libsodium and vodozemac, for admission, and OpenSSL, for auditors, accept the same signatures, for any changed bit."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    signature = bytearray(key.sign(message))
    signature[bit // 8] ^= altered << bit % 8
    try:
        key.public_key().verify(bytes(signature), message)
        good = True
    except InvalidSignature:
        good = False
    public = key.public_key().public_bytes_raw()
    answers = {by(public)(bytes(signature), message) for by in (by_libsodium, by_vodozemac)}
    assert answers == {good} == {not altered}


def signature_of(r: curve.Point, *, more: int = 0) -> bytes:
    """Returns the owner's signature whose first half is this point, with `more` added to the scalar."""
    head = curve.encoded(r)
    k = int.from_bytes(hashlib.sha512(head + curve.encoded(KEY) + MESSAGE).digest(), "little")
    nonce = 0 if r == curve.IDENTITY else NONCE
    return head + ((nonce + k * SECRET) % curve.ORDER + more).to_bytes(32, "little")


GOOD = curve.multiply(NONCE, curve.BASE)
BORDERS = {
    "good": (signature_of(GOOD), True),
    "S is not reduced": (signature_of(GOOD, more=curve.ORDER), False),
    "R has a part of small order, which a check with the cofactor accepts": (signature_of(curve.add(GOOD, curve.TORSION)), False),
    "R is the identity": (signature_of(curve.IDENTITY), False),
    "R is the identity in a longer form": (b"\xee" + b"\xff" * 30 + b"\x7f" + signature_of(curve.IDENTITY)[32:], False),
    "R is a point of order 8": (signature_of(curve.TORSION), False),
    "R is no point": (b"\x02" + bytes(31) + signature_of(GOOD)[32:], False),
}


@pytest.mark.parametrize("by", [by_libsodium, by_vodozemac])
@pytest.mark.parametrize(("signature", "good"), BORDERS.values(), ids=BORDERS)
def test_both_libraries_have_the_same_borders(by: party_keys.ByLibrary, signature: bytes, good: bool) -> None:
    """A check with the cofactor, or one that reduces S, would accept what another worker refuses."""
    assert by(curve.encoded(KEY))(signature, MESSAGE) is good


INVALID = {
    "the identity": curve.encoded(curve.IDENTITY),
    "a point of order 8": curve.encoded(curve.TORSION),
    "a key with a part of small order": curve.encoded(curve.add(KEY, curve.TORSION)),
    "a longer form of y": (curve.P + 1).to_bytes(32, "little"),
    "no point of the curve": b"\x02" + bytes(31),
}


@pytest.mark.parametrize("public", INVALID.values(), ids=INVALID)
def test_a_point_without_a_private_key_is_rejected(public: bytes) -> None:
    """A signature under a point of small order is good for many messages: such a key is an error when the file is read."""
    pem = Ed25519PublicKey.from_public_bytes(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(ConfigurationError, match=r"parties\.json, party 'x' is no Ed25519 public key: no private key has this point"):
        load_public_key(pem, "parties.json, party 'x'")


def test_the_installed_library_is_used() -> None:
    """The development environment has vodozemac, and the workers of the tests use it."""
    assert party_keys.ED25519_LIBRARY == "vodozemac"
    verify = verifier(load_public_key(Bank().public_pem, "x"))
    assert verify.__qualname__.startswith("by_vodozemac")
