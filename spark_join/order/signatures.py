"""Submissions' signatures, checked again with the parties' keys (docs/formats.md, Submission)."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from spark_join.constants import SUBMISSION_DOMAIN
from spark_join.errors import CouldNotVerify
from spark_join.order.payloads import Submission

Check = Callable[[bytes, bytes], None]
"""(signature, message); raises `InvalidSignature`."""

BAD_SIGNATURE = "bad-signature"
UNKNOWN_PARTY = "unknown-party"


def read_keys(file: Path) -> dict[str, str]:
    """The PEM public key or certificate of each party, from a JSON object such as the notary's `parties.json`; all can be used."""
    try:
        keys = msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise CouldNotVerify(f"the parties' keys, {file}: {problem}. It should be a JSON object of party name -> PEM public key") from None
    for name, pem in keys.items():
        try:
            _check(pem.encode())
        except (ValueError, UnsupportedAlgorithm) as problem:
            raise CouldNotVerify(f"the parties' keys, {file}: the key of {name!r} cannot be used: {problem}") from None
    return keys


class Signatures:
    """Holds submissions to one notary against the parties' keys."""

    def __init__(self, notary_name: str, keys: Mapping[str, str]) -> None:
        self._head = SUBMISSION_DOMAIN + _named(notary_name)
        self._checks = {name: _check(pem.encode()) for name, pem in keys.items()}

    def fault(self, submission: Submission) -> str | None:
        """`bad-signature`, `unknown-party`, or None when its party has signed it."""
        check = self._checks.get(submission.party)
        if check is None:
            return UNKNOWN_PARTY
        ids = [request.id for request in submission.requests]
        message = b"".join((self._head, _named(submission.party), len(ids).to_bytes(4, "big"), *ids))
        try:
            check(submission.signature, message)
        except InvalidSignature:
            return BAD_SIGNATURE
        return None


def _check(pem: bytes) -> Check:
    is_certificate = b"-----BEGIN CERTIFICATE" in pem
    key = x509.load_pem_x509_certificate(pem).public_key() if is_certificate else load_pem_public_key(pem)
    if isinstance(key, Ed25519PublicKey):
        return key.verify
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1":
        curve_key, algorithm = key, ec.ECDSA(SHA256())
        return lambda signature, message: curve_key.verify(signature, message, algorithm)
    raise ValueError("a party signs with Ed25519 or with ECDSA on P-256")


def _named(name: str) -> bytes:
    octets = name.encode()
    return len(octets).to_bytes(2, "big") + octets
