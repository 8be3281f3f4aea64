"""The public keys of parties, and the check of their signatures.

An Ed25519 signature is checked by vodozemac if it is installed (the extra `fast`), else by libsodium. Both accept the same signatures:
RFC 8032, 5.1.7, without the cofactor, and no first half of small order (tests/notary/test_party_keys.py).
"""

import importlib.util
from binascii import b2a_base64
from collections.abc import Callable
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from nacl.bindings import crypto_core_ed25519_is_valid_point, crypto_sign_open
from nacl.bindings import crypto_sign_BYTES as ED25519_SIGNATURE_BYTES
from nacl.exceptions import BadSignatureError

from ordering.errors import ConfigurationError

PartyKey: TypeAlias = Ed25519PublicKey | ec.EllipticCurvePublicKey
Verify: TypeAlias = Callable[[bytes, bytes], bool]
"""(signature, message) -> True if the signature is good."""
ByLibrary: TypeAlias = Callable[[bytes], Verify]
"""The 32 bytes of a valid Ed25519 key -> the check of its signatures."""

ED25519_LIBRARY: Final = "libsodium" if importlib.util.find_spec("vodozemac") is None else "vodozemac"
"""The library that checks Ed25519 signatures in this process."""


def load_public_key(pem: bytes, source: str) -> PartyKey:
    """Returns the Ed25519 or P-256 key of a PEM public key or certificate. Raises `ConfigurationError`, which names `source`."""
    try:
        certificate = b"BEGIN CERTIFICATE" in pem
        key: object = x509.load_pem_x509_certificate(pem).public_key() if certificate else serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as problem:
        if b"PRIVATE KEY" in pem:
            raise ConfigurationError(
                f"{source} is a private key, which only the party may have: register the output of `openssl pkey -in FILE -pubout`"
            ) from None
        raise ConfigurationError(f"{source} is no PEM public key or certificate: {problem}") from None
    if isinstance(key, Ed25519PublicKey):
        if not crypto_core_ed25519_is_valid_point(key.public_bytes_raw()):
            raise ConfigurationError(f"{source} is no Ed25519 public key: no private key has this point; ask the party for its key again")
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ConfigurationError(f"{source} holds a key of another kind: a party signs with Ed25519 or ECDSA P-256")


def verifier(key: PartyKey) -> Verify:
    """Returns the signature check for a key that `load_public_key` returned. A P-256 signature is DER."""
    if isinstance(key, Ed25519PublicKey):
        by: ByLibrary = by_libsodium if ED25519_LIBRARY == "libsodium" else by_vodozemac
        return by(key.public_bytes_raw())
    algorithm = ec.ECDSA(hashes.SHA256())

    def verify_p256(signature: bytes, message: bytes) -> bool:
        try:
            key.verify(signature, message, algorithm)
        except InvalidSignature:
            return False
        return True

    return verify_p256


def by_libsodium(public_key: bytes) -> Verify:
    """Returns libsodium's check of Ed25519 signatures, in half of OpenSSL's time (docs/decisions/signatures.md)."""

    def verify(signature: bytes, message: bytes) -> bool:
        if len(signature) != ED25519_SIGNATURE_BYTES:
            return False
        try:
            crypto_sign_open(signature + message, public_key)
        except BadSignatureError:
            return False
        return True

    return verify


def by_vodozemac(public_key: bytes) -> Verify:
    """Returns vodozemac's check, in two thirds of libsodium's time."""
    from vodozemac import Ed25519PublicKey, Ed25519Signature, SignatureException

    check, parse = Ed25519PublicKey.from_base64(_base64(public_key)).verify_signature, Ed25519Signature.from_base64

    def verify(signature: bytes, message: bytes) -> bool:
        try:
            check(message, parse(_base64(signature)))
        except SignatureException:
            return False
        return True

    return verify


def _base64(content: bytes) -> str:
    return b2a_base64(content, newline=False).decode()
