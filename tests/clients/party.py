"""A party that signs its submissions. Written from the contract alone, to check that the contract is sufficient."""

import hashlib
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.checkers.history import Submission
from tests.notary.party import Bank, transaction_id


def digest(text: str) -> str:
    """Returns a hash that identifies this text."""
    return hashlib.sha256(text.encode()).hexdigest()


def state(text: str, index: int = 0) -> str:
    """Returns a state reference."""
    return f"{digest(text)}:{index}"


class Party:
    """A party of a notary, whose submissions carry the ids of their requests."""

    def __init__(self, notary: str, name: str = "O=Bank A,L=London,C=GB", key: Ed25519PrivateKey | None = None) -> None:
        self.notary = notary
        self.name = name
        self._bank = Bank(name, notary=notary, key=key)

    @property
    def public_pem(self) -> bytes:
        """The public key in PEM, as the notary registers it."""
        return self._bank.public_pem

    def submission(self, *requests: Mapping[str, Any]) -> Submission:
        """Returns a signed submission of these requests."""
        return Submission(self._bank.body(*requests), requests, [transaction_id(request, self.notary) for request in requests])


def spend(*inputs: str, content: str = "", **others: Any) -> dict[str, Any]:
    """Returns a request that consumes these states."""
    return {"inputs": list(inputs), "content_hash": digest(content), **others}
