"""Decodes the value of a payload record by the text of docs/formats.md: its submissions, their requests, and the transaction ids.

msgspec's typed decoder rejects invalid JSON, unknown and missing members, numbers with a fraction, and lone surrogates. This module checks
the rest, on the decoded values. So of a duplicate member only the last value is checked fully; earlier ones need only have its type.
"""

import re
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Annotated

import msgspec

from spark_join.constants import (
    INDEX_MAX,
    OPEN_FROM_MS,
    OPEN_UNTIL_MS,
    PARTY_BYTES_MAX,
    REQUESTS_MAX,
    STATES_MAX,
    TIME_MAX_MS,
    TRANSACTION_DOMAIN,
)

_Instant = Annotated[int, msgspec.Meta(ge=-TIME_MAX_MS, le=TIME_MAX_MS)]
_is_hash = re.compile("[0-9a-f]{64}").fullmatch
_is_state = re.compile("[0-9a-f]{64}:(0|[1-9][0-9]{0,9})").fullmatch


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


class Request(msgspec.Struct, frozen=True, gc=False):
    """The request of one transaction. States have 36 bytes and are in ascending order."""

    id: bytes
    inputs: list[bytes]
    references: list[bytes]
    from_ms: int
    until_ms: int


class Submission(msgspec.Struct, frozen=True, gc=False):
    """The requests that a party signed together, with its signature."""

    party: str
    signature: bytes
    requests: list[Request]


_decode = msgspec.json.Decoder(list[_Signed]).decode


class Reader:
    """Decodes payload values of one notary, whose name is part of every transaction id."""

    def __init__(self, notary_name: str) -> None:
        name = notary_name.encode()
        self._prefix = TRANSACTION_DOMAIN + len(name).to_bytes(2, "big") + name

    def read(self, value: bytes) -> list[Submission] | None:
        """Returns the submissions of a batch; None for a value that does not decode, which decides nothing (R3)."""
        try:
            return [self._submission(each) for each in _decode(value)]
        except (msgspec.DecodeError, ValueError, OverflowError, RecursionError):
            return None

    def _submission(self, signed: _Signed) -> Submission:
        _demand(1 <= len(signed.party.encode()) <= PARTY_BYTES_MAX)
        signature = b64decode(signed.signature, validate=True)
        _demand(b64encode(signature).decode() == signed.signature)
        _demand(1 <= len(signed.requests) <= REQUESTS_MAX)
        requests = [self._request(asked) for asked in signed.requests]
        _demand(len({request.id for request in requests}) == len(requests))
        return Submission(signed.party, signature, requests)

    def _request(self, asked: _Asked) -> Request:
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
        return Request(hashed.digest(), inputs, references, from_ms, until_ms)


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
