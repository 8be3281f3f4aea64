"""Checks the signatures of submissions again, with the parties' keys (docs/formats.md, Submission)."""

from collections.abc import Callable, Mapping, Sequence
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
"""A function of signature and message; raises `InvalidSignature`."""

Keys = Mapping[str, str | Sequence[str]]
"""For each party its PEM public key or certificate, or a list of them: all that it has had while the log was written"""

BAD_SIGNATURE = "bad-signature"
UNKNOWN_PARTY = "unknown-party"


class _Entry(msgspec.Struct):
    """A party with a weight or a quota, which say nothing of what it has signed."""

    public_key: str


def read_keys(file: Path) -> Keys:
    """Reads the parties' keys from a JSON object such as the notary's `parties.json`; a party may have a list of keys.

    Raises `CouldNotVerify` if the file or a key in it cannot be used.
    """
    try:
        entries = msgspec.json.decode(file.read_bytes(), type=dict[str, str | list[str] | _Entry])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise CouldNotVerify(
            f"the parties' keys, {file}: {problem}. It should be a JSON object of party name -> PEM public key, or a list of such keys"
        ) from None
    keys = {name: entry.public_key if isinstance(entry, _Entry) else entry for name, entry in entries.items()}
    for name, told in keys.items():
        try:
            if not _checks(told):
                raise ValueError("there is none")
        except (ValueError, UnsupportedAlgorithm) as problem:
            raise CouldNotVerify(f"the parties' keys, {file}: the key of {name!r} cannot be used: {problem}") from None
    return keys


class Signatures:
    """Checks submissions to one notary with the parties' keys."""

    def __init__(self, notary_name: str, keys: Keys) -> None:
        self._head = SUBMISSION_DOMAIN + _named(notary_name)
        self._checks = {name: _checks(told) for name, told in keys.items()}

    def fault(self, submission: Submission) -> str | None:
        """Returns `bad-signature`, `unknown-party`, or None if its party has signed it with any of its keys."""
        checks = self._checks.get(submission.party)
        if checks is None:
            return UNKNOWN_PARTY
        ids = [request.id for request in submission.requests]
        message = b"".join((self._head, _named(submission.party), len(ids).to_bytes(4, "big"), *ids))
        for check in checks:
            try:
                check(submission.signature, message)
            except InvalidSignature:
                continue
            return None
        return BAD_SIGNATURE


def _checks(told: str | Sequence[str]) -> list[Check]:
    return [_check(pem.encode()) for pem in ([told] if isinstance(told, str) else told)]


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
