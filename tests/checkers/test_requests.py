"""Tests that the replay decodes payloads as strictly as the notary, by altering good ones."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ordering.errors import CorruptRecord
from payload import decode_requests
from tests.checkers.requests import requests_of
from tests.checkers.signed_log import NOTARY
from tests.clients.party import digest, spend, state
from tests.examples import some

SHARED = settings(deadline=None, max_examples=some(300), suppress_health_check=[HealthCheck.too_slow])
WINDOW = {"from": -5, "until": 1760000000000}
GOOD = [
    {"party": "O=A", "signature": "AAAA", "requests": [spend(state("x"), state("x", 4294967295), references=[state("x")])]},
    {"party": "O=\u00c4", "signature": "", "requests": [spend(time_window=WINDOW), spend(references=[state("y")], content="y")]},
]
VALUE = json.dumps(GOOD, separators=(",", ":"), ensure_ascii=False).encode()

# Pieces of a good value, and the replacements for each.
PIECES = rb'"~[~]~{~}~,~:~-5~1760000000000~null~AAAA~O=A~:0~:4294967295~a'.split(b"~")
PIECES += [f'"{name}"'.encode() for name in ("party", "signature", "requests", "content_hash", "inputs", "references", "time_window")]
PIECES += [b'"from"', b'"until"']
INSTEAD = [*PIECES, b"", b" ", b"\n", b"\x00", b"\xff", b"\xef\xbb\xbf"]
INSTEAD += rb"A~AA~AAA=~AAB=~:00~:4294967296~true~NaN~-Infinity~1.0~-0~0~1e3~01~9007199254740991~9007199254740992".split(b"~")
INSTEAD += [b"-9007199254740993", b"9" * 30, rb"\ud800", rb"\ud83d\ude00", rb"\u0041", rb"\n", rb"\x", rb'"part\u0079"']
INSTEAD += rb'"party":"O=A","party"~"party":1,"party"~"inputs":[],"inputs"~"inputs":["x"],"inputs"~"inputs":[1],"inputs"'.split(b"~")
INSTEAD += rb'"from":"x","from"~"from":9007199254740992,"from"~"more":1,"from"~"time_window":null,"time_window"'.split(b"~")
INSTEAD += [b'"time_window":{"from":1,"until":0},"time_window"']


def _reference(value: bytes) -> list[str] | None:
    try:
        return [request.transaction_id.hex() for request in decode_requests(value, NOTARY)]
    except CorruptRecord:
        return None


def _ids(value: bytes) -> list[str] | None:
    found = requests_of(value, NOTARY)
    return None if found is None else [id_ for id_, _ in found]


@st.composite
def altered(draw: st.DrawFn) -> bytes:
    """Draw a good value with a few pieces replaced."""
    value = VALUE
    for _ in range(draw(st.integers(1, 3))):
        piece, instead = draw(st.sampled_from(PIECES)), draw(st.sampled_from(INSTEAD))
        parts = value.split(piece)
        if len(parts) > 1:
            at = draw(st.integers(1, len(parts) - 1))
            value = piece.join(parts[:at]) + instead + piece.join(parts[at:])
    return value


def test_good_value_is_read() -> None:
    """The unaltered value is decoded."""
    assert _ids(VALUE) == _reference(VALUE)
    assert len(_ids(VALUE) or ()) == 3
    assert _ids(b"[]") == []


@SHARED
@given(altered())
def test_altered_value_is_read_alike(value: bytes) -> None:
    """For an altered value both decoders return the same ids, or both reject it."""
    assert _ids(value) == _reference(value)


LONG = [spend(state("x"), content=f"{n}") for n in range(1_001)]
WIDE = spend(*[state("x", n) for n in range(10_000)])


LIMITS: list[tuple[Any, bool]] = [
    ([], True),
    (None, False),
    ({}, False),
    ([None], False),
    ([{**GOOD[0], "requests": []}], False),
    ([{**GOOD[0], "requests": LONG[:1_000]}], True),
    ([{**GOOD[0], "requests": LONG}], False),
    ([{**GOOD[0], "requests": [WIDE]}], True),
    ([{**GOOD[0], "requests": [{**WIDE, "references": [state("x")]}]}], False),
    ([{**GOOD[0], "requests": [LONG[0], LONG[0]]}], False),
    ([GOOD[0], GOOD[0]], True),
    ([{**GOOD[0], "party": ""}], False),
    ([{**GOOD[0], "party": "\u00c4" * 128}], False),
    ([{**GOOD[0], "requests": [spend(content="nothing")]}], False),
    ([{**GOOD[0], "requests": [spend(state("x"), state("x"))]}], False),
    ([{**GOOD[0], "requests": [spend(time_window={"from": None, "until": None})]}], False),
    ([{**GOOD[0], "requests": [spend(time_window={"from": 1})]}], False),
    ([{**GOOD[0], "requests": [spend(time_window={"from": 1, "until": 1})]}], False),
    ([{**GOOD[0], "requests": [{"content_hash": digest("x").upper(), "inputs": [state("x")]}]}], False),
    ([{**GOOD[0], "requests": [{"content_hash": digest("x"), "inputs": [state("x").replace(":", "-")]}]}], False),
]
"""(a batch, whether it is decoded)"""
GARBAGE = [b"", b"[", b"{}", b"null", b"[" * 100_000, b'[{"party":' + b'{"a":' * 100_000, b"9" * 5_000]


@pytest.mark.parametrize(("batch", "read"), LIMITS)
def test_limits_are_alike(batch: object, read: bool) -> None:
    """At each limit of the contract both decoders accept, or both reject."""
    value = json.dumps(batch).encode()
    assert (_ids(value) is not None) == read
    assert _ids(value) == _reference(value)


@pytest.mark.parametrize("value", GARBAGE)
def test_garbage_is_none(value: bytes) -> None:
    """Bytes that are no batch at all count as a fill, and stop nothing."""
    assert requests_of(value, NOTARY) is None
    assert _reference(value) is None
