"""Parties for tests: keys, requests and signatures, written from the contract alone (Request, Submission).

This module uses nothing of `payload`, so that the service is compared with an independent implementation.
"""

import base64
import datetime
import hashlib
import itertools
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

NOTARY = "O=Notary Service,L=London,C=GB"

PrivateKey = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
RequestObject = dict[str, Any]

_serial = itertools.count()
_RUN = uuid.uuid4().hex


def fresh_hash() -> str:
    """Returns 64 hex digits that no test in any process has used."""
    return hashlib.sha256(f"{_RUN} {next(_serial)}".encode()).hexdigest()


def fresh_state() -> str:
    """Returns a state that no transaction has consumed."""
    return f"{fresh_hash()}:0"


def spend(*inputs: str, **members: Any) -> RequestObject:
    """Returns a request that consumes these states, or a fresh one; its content is fresh."""
    given = {"inputs": list(inputs)} if inputs or members else {"inputs": [fresh_state()]}
    return {**given, "content_hash": fresh_hash(), **members}


class Bank:
    """A party with its key."""

    def __init__(
        self, name: str = "O=Bank A,L=London,C=GB", *, p256: bool = False, notary: str = NOTARY, key: PrivateKey | None = None
    ) -> None:
        self.name = name
        self.notary = notary
        self.key = key or (ec.generate_private_key(ec.SECP256R1()) if p256 else ed25519.Ed25519PrivateKey.generate())

    @property
    def public_pem(self) -> bytes:
        """The public key, PEM."""
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @property
    def private_pem(self) -> bytes:
        """The private key, PEM."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def certificate_pem(self) -> bytes:
        """Returns the public key in a self-signed certificate, PEM."""
        subject = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Bank")])
        since = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        return (
            x509.CertificateBuilder(subject, subject, self.key.public_key(), 1, since, since.replace(year=2027))
            .sign(self.key, None if isinstance(self.key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )

    def sign(self, message: bytes) -> bytes:
        """Returns a signature of the kind of its key."""
        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            return self.key.sign(message)
        return self.key.sign(message, ec.ECDSA(hashes.SHA256()))

    def message(self, requests: Sequence[Mapping[str, Any]]) -> bytes:
        """Returns the message to sign for these requests."""
        ids = [bytes.fromhex(transaction_id(request, self.notary)) for request in requests]
        return message_to_sign(self.notary, self.name, ids)

    def submission(self, *requests: Mapping[str, Any], **members: Any) -> dict[str, Any]:
        """Returns a signed submission; `members` replace its own."""
        signature = base64.b64encode(self.sign(self.message(requests))).decode()
        return {"party": self.name, "signature": signature, "requests": list(requests), **members}

    def body(self, *requests: Mapping[str, Any], **members: Any) -> bytes:
        """Returns a signed submission as JSON."""
        return json.dumps(self.submission(*requests, **members)).encode()


def message_to_sign(notary: str, party: str, ids: Sequence[bytes]) -> bytes:
    """Returns the message that a party signs for transactions with these ids."""
    return b"notary/submission/v1\n" + _text(notary) + _text(party) + len(ids).to_bytes(4, "big") + b"".join(ids)


def transaction_id(request: Mapping[str, Any], notary: str = NOTARY) -> str:
    """Returns the transaction id of a well-formed request."""
    hashed = b"notary/transaction/v1\n" + _text(notary)
    for member in ("inputs", "references"):
        states = sorted(bytes.fromhex(ref[:64]) + int(ref[65:]).to_bytes(4, "big") for ref in request.get(member, ()))
        hashed += len(states).to_bytes(4, "big") + b"".join(states)
    window = request.get("time_window") or {}
    for end, open_end in (("from", -(2**63)), ("until", 2**63 - 1)):
        given = window.get(end)
        hashed += (open_end if given is None else given).to_bytes(8, "big", signed=True)
    return hashlib.sha256(hashed + bytes.fromhex(request["content_hash"])).hexdigest()


def _text(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(2, "big") + encoded
