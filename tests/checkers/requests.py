"""A decoder for the content of a payload record, with the standard library's JSON parser, as strict as the contract (R3)."""

import json
import re
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Any

from tests.checkers.precedence import OPEN_FROM, OPEN_UNTIL, Asked

TIME_MAX = 2**53 - 1
INDEX_MAX = 2**32 - 1
REQUESTS_MAX = 1_000
STATES_MAX = 10_000
VALUES_KEPT = 4_096

_hash = re.compile("[0-9a-f]{64}").fullmatch
_state = re.compile("[0-9a-f]{64}:(0|[1-9][0-9]{0,9})").fullmatch
_WINDOW = Struct(">qq")

Read = Callable[[Any], Any]


class _BadError(Exception):
    """Raised for a value that breaks the contract."""


class _Members(list[tuple[str, Any]]):
    """A JSON object with its members in order; a repeated member appears twice."""


@lru_cache(maxsize=VALUES_KEPT)
def requests_of(value: bytes, notary: str) -> tuple[tuple[str, Asked], ...] | None:
    """Returns (id, request) for all requests of all submissions, in order; None for a payload that counts as a fill."""
    try:
        text = value.decode()
        found = json.loads(text, object_pairs_hook=_Members, parse_float=_refuse, parse_constant=_refuse)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # a lone surrogate is no character
        requests: list[tuple[str, Asked]] = []
        for submission in _BATCH(found):
            requests += _of_submission(submission, notary)
    except (_BadError, ValueError, RecursionError):
        return None
    return tuple(requests)


def _of_submission(submission: dict[str, Any], notary: str) -> list[tuple[str, Asked]]:
    party, signature = submission["party"], submission["signature"]
    _want(1 <= len(party.encode()) <= 255)
    try:
        _want(b64encode(b64decode(signature, validate=True)).decode() == signature)
    except Error:
        raise _BadError from None
    _want(1 <= len(submission["requests"]) <= REQUESTS_MAX)
    found = [(_id_of(request, notary), request) for request in submission["requests"]]
    _want(len({id_ for id_, _ in found}) == len(found))
    return found


def _id_of(request: Asked, notary: str) -> str:
    inputs, references = request.get("inputs", []), request.get("references", [])
    window = request.get("time_window")
    _want(bool(inputs or references or window))
    _want(len(inputs) + len(references) <= STATES_MAX)
    name = notary.encode()
    parts = [b"notary/transaction/v1\n", len(name).to_bytes(2, "big"), name]
    for states in (inputs, references):
        _want(len(set(states)) == len(states))
        parts.append(len(states).to_bytes(4, "big"))
        parts += sorted([_state_bytes(state) for state in states])
    start = end = None
    if window is not None:
        start, end = window["from"], window["until"]
        _want(start is not None or end is not None)
        _want(start is None or end is None or start < end)
    parts.append(_WINDOW.pack(OPEN_FROM if start is None else start, OPEN_UNTIL if end is None else end))
    _want(_hash(request["content_hash"]) is not None)
    parts.append(bytes.fromhex(request["content_hash"]))
    return sha256(b"".join(parts)).hexdigest()


def _state_bytes(state: str) -> bytes:
    if not _state(state) or (index := int(state[65:])) > INDEX_MAX:
        raise _BadError
    return bytes.fromhex(state[:64]) + index.to_bytes(4, "big")


def _want(condition: bool) -> None:
    if not condition:
        raise _BadError


def _refuse(_: str) -> Any:
    raise _BadError


# ---- the types of the contract's JSON; each copy of a repeated member must have its type, and the last one counts ----


def _text(value: Any) -> Any:
    if type(value) is not str:
        raise _BadError
    return value


def _time(value: Any) -> Any:
    _want(value is None or (type(value) is int and -TIME_MAX <= value <= TIME_MAX))
    return value


def _array(of: Read) -> Read:
    def read(value: Any) -> Any:
        _want(type(value) is list)
        return [of(each) for each in value]

    return read


def _object(required: dict[str, Read], optional: dict[str, Read] | None = None) -> Read:
    known = required | (optional or {})

    def read(value: Any) -> Any:
        _want(type(value) is _Members)
        found: dict[str, Any] = {}
        for name, member in value:
            _want(name in known)
            found[name] = known[name](member)
        _want(required.keys() <= found.keys())
        return found

    return read


_WINDOW_READ = _object({"from": _time, "until": _time})
_REQUEST = _object({"content_hash": _text}, {"inputs": _array(_text), "references": _array(_text), "time_window": _WINDOW_READ})
_BATCH = _array(_object({"party": _text, "signature": _text, "requests": _array(_REQUEST)}))
