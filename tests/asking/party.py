"""A party that signs what it asks. Written from the contract alone, so that it also checks that the contract is enough."""

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
    """A hash to name something by."""
    return hashlib.sha256(text.encode()).hexdigest()


def state(text: str, index: int = 0) -> str:
    """A state reference."""
    return f"{digest(text)}:{index}"


class Party:
    """One who asks, with a key."""

    def __init__(self, notary: str, name: str = "O=Bank A,L=London,C=GB", key: Ed25519PrivateKey | None = None) -> None:
        self.notary = notary
        self.name = name
        self._key = key or Ed25519PrivateKey.generate()

    @property
    def public_pem(self) -> bytes:
        """What the notary has to know."""
        kind = serialization.PublicFormat.SubjectPublicKeyInfo
        return self._key.public_key().public_bytes(serialization.Encoding.PEM, kind)

    def submission(self, *requests: Mapping[str, Any]) -> Submission:
        """Sign requests."""
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
    """A request."""
    return {"inputs": list(inputs), "content_hash": digest(content), **others}


def _text(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()
