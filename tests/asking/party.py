"""A party that signs its submissions. Written from the contract alone, to check that the contract is sufficient."""

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.checkers.history import Submission

OPEN_FROM, OPEN_UNTIL = -(2**63), 2**63 - 1


def digest(text: str) -> str:
    """Returns a hash that identifies this text."""
    return hashlib.sha256(text.encode()).hexdigest()


def state(text: str, index: int = 0) -> str:
    """Returns a state reference."""
    return f"{digest(text)}:{index}"


class Party:
    """A party with its signing key."""

    def __init__(self, notary: str, name: str = "O=Bank A,L=London,C=GB", key: Ed25519PrivateKey | None = None) -> None:
        self.notary = notary
        self.name = name
        self._key = key or Ed25519PrivateKey.generate()

    @property
    def public_pem(self) -> bytes:
        """The public key in PEM, as the notary registers it."""
        kind = serialization.PublicFormat.SubjectPublicKeyInfo
        return self._key.public_key().public_bytes(serialization.Encoding.PEM, kind)

    def submission(self, *requests: Mapping[str, Any]) -> Submission:
        """Returns a signed submission of these requests."""
        ids = [self._id(request) for request in requests]
        message = b"notary/submission/v1\n" + _text(self.notary) + _text(self.name) + len(ids).to_bytes(4, "big") + b"".join(ids)
        signature = base64.b64encode(self._key.sign(message)).decode()
        body = json.dumps({"party": self.name, "signature": signature, "requests": requests}).encode()
        return Submission(body, requests, [id_.hex() for id_ in ids])

    def _id(self, request: Mapping[str, Any]) -> bytes:
        window = request.get("time_window") or {}
        ends = [window.get("from"), window.get("until")]
        hashed = b"notary/transaction/v1\n" + _text(self.notary)
        for states in (request.get("inputs", ()), request.get("references", ())):
            found = sorted(bytes.fromhex(each[:64]) + int(each[65:]).to_bytes(4, "big") for each in states)
            hashed += len(found).to_bytes(4, "big") + b"".join(found)
        for end, open_end in zip(ends, (OPEN_FROM, OPEN_UNTIL), strict=True):
            hashed += (open_end if end is None else end).to_bytes(8, "big", signed=True)
        return hashlib.sha256(hashed + bytes.fromhex(request["content_hash"])).digest()


def spend(*inputs: str, content: str = "", **others: Any) -> dict[str, Any]:
    """Returns a request that consumes these states."""
    return {"inputs": list(inputs), "content_hash": digest(content), **others}


def _text(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()
