"""Decodes the value of a payload record by the text of docs/formats.md (Submission), and checks the parties' signatures again.

msgspec's typed decoder rejects invalid JSON, unknown and missing members, numbers with a fraction, and lone surrogates. This module checks
the rest, on the decoded values. So of a duplicate member only the last value is checked fully; earlier ones need only have its type.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from spark_join.constants import (
    INDEX_MAX,
    OPEN_FROM_MS,
    OPEN_UNTIL_MS,
    PARTY_BYTES_MAX,
    REQUESTS_MAX,
    STATES_MAX,
    SUBMISSION_DOMAIN,
    TIME_MAX_MS,
    TRANSACTION_DOMAIN,
)
from spark_join.errors import CouldNotVerify

_Instant = Annotated[int, msgspec.Meta(ge=-TIME_MAX_MS, le=TIME_MAX_MS)]
_is_hash = re.compile("[0-9a-f]{64}").fullmatch
_is_state = re.compile("[0-9a-f]{64}:(0|[1-9][0-9]{0,9})").fullmatch
Check = Callable[[bytes, bytes], None]
"""A function of signature and message; raises `InvalidSignature`."""

Keys = Mapping[str, str | Sequence[str]]
"""For each party its PEM public key or certificate, or a list of them: all that it has had while the log was written"""

BAD_SIGNATURE = "bad-signature"
UNKNOWN_PARTY = "unknown-party"


class _Window(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    from_: _Instant | None = msgspec.field(name="from")
    until: _Instant | None


class _Asked(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content_hash: str
    inputs: list[str] = []
    references: list[str] = []
    time_window: _Window | msgspec.UnsetType = msgspec.UNSET


class _Signed(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    party: str
    signature: str
    requests: list[_Asked]


class DecodedRequest(msgspec.Struct, frozen=True, gc=False):
    """The request of one transaction. States have 36 bytes and are in ascending order."""

    id: bytes
    inputs: list[bytes]
    references: list[bytes]
    from_ms: int
    until_ms: int


class DecodedSubmission(msgspec.Struct, frozen=True, gc=False):
    """The requests that a party signed together, with its signature."""

    party: str
    signature: bytes
    requests: list[DecodedRequest]


_decode = msgspec.json.Decoder(list[_Signed]).decode


class PayloadDecoder:
    """Decodes payload values of one notary, whose name is part of every transaction id."""

    def __init__(self, notary_name: str) -> None:
        name = notary_name.encode()
        self._prefix = TRANSACTION_DOMAIN + len(name).to_bytes(2, "big") + name

    def read(self, value: bytes) -> list[DecodedSubmission] | None:
        """Returns the submissions of a batch; None for a value that does not decode, which decides nothing (R3)."""
        try:
            return [self._submission(each) for each in _decode(value)]
        except (msgspec.DecodeError, ValueError, OverflowError, RecursionError):
            return None

    def _submission(self, signed: _Signed) -> DecodedSubmission:
        _demand(1 <= len(signed.party.encode()) <= PARTY_BYTES_MAX)
        signature = b64decode(signed.signature, validate=True)
        _demand(b64encode(signature).decode() == signed.signature)
        _demand(1 <= len(signed.requests) <= REQUESTS_MAX)
        requests = [self._request(asked) for asked in signed.requests]
        _demand(len({request.id for request in requests}) == len(requests))
        return DecodedSubmission(signed.party, signature, requests)

    def _request(self, asked: _Asked) -> DecodedRequest:
        _demand(len(asked.inputs) + len(asked.references) <= STATES_MAX)
        from_ms, until_ms = OPEN_FROM_MS, OPEN_UNTIL_MS
        window = asked.time_window
        if isinstance(window, _Window):
            _demand(window.from_ is not None or window.until is not None)
            from_ms = OPEN_FROM_MS if window.from_ is None else window.from_
            until_ms = OPEN_UNTIL_MS if window.until is None else window.until
            _demand(from_ms < until_ms)
        else:
            _demand(bool(asked.inputs or asked.references))
        inputs, references = _states(asked.inputs), _states(asked.references)
        hashed = sha256(self._prefix)
        for states in (inputs, references):
            hashed.update(len(states).to_bytes(4, "big") + b"".join(states))
        hashed.update(from_ms.to_bytes(8, "big", signed=True) + until_ms.to_bytes(8, "big", signed=True))
        _demand(_is_hash(asked.content_hash) is not None)
        hashed.update(bytes.fromhex(asked.content_hash))
        return DecodedRequest(hashed.digest(), inputs, references, from_ms, until_ms)


def _states(texts: list[str]) -> list[bytes]:
    states = []
    for text in texts:
        _demand(_is_state(text) is not None)
        index = int(text[65:])
        _demand(index <= INDEX_MAX)
        states.append(bytes.fromhex(text[:64]) + index.to_bytes(4, "big"))
    _demand(len(set(states)) == len(states))
    states.sort()
    return states


def _demand(condition: bool) -> None:
    if not condition:
        raise ValueError


class _Entry(msgspec.Struct):
    """A party with a weight or a quota, which no signature depends on."""

    public_key: str


def read_keys(file: Path) -> Keys:
    """Reads the parties' keys from a JSON object such as the notary's `parties.json`; a party may have a list of keys.

    Raises `CouldNotVerify` if the file or a key in it cannot be used.
    """
    try:
        entries = msgspec.json.decode(file.read_bytes(), type=dict[str, str | list[str] | _Entry])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise CouldNotVerify(
            f"the parties' keys, {file}: {problem}. It should be a JSON object of party name -> PEM public key, or a list of such keys"
        ) from None
    keys = {name: entry.public_key if isinstance(entry, _Entry) else entry for name, entry in entries.items()}
    for name, pems in keys.items():
        try:
            if not _checks(pems):
                raise ValueError("there is none")
        except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as problem:
            raise CouldNotVerify(f"the parties' keys, {file}: the key of {name!r} cannot be used: {problem}") from None
    return keys


class Signatures:
    """Checks submissions to one notary with the parties' keys."""

    def __init__(self, notary_name: str, keys: Keys) -> None:
        self._head = SUBMISSION_DOMAIN + _named(notary_name)
        self._checks = {name: _checks(pems) for name, pems in keys.items()}

    def fault(self, submission: DecodedSubmission) -> str | None:
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


def _checks(pems: str | Sequence[str]) -> list[Check]:
    return [_check(pem.encode()) for pem in ([pems] if isinstance(pems, str) else pems)]


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
