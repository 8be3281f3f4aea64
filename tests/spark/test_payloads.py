"""Tests that the second decoder of payload values is as strict as the others."""

import json

import pytest
from hypothesis import given

from spark_join.order.payloads import Reader
from tests.checkers.requests import requests_of
from tests.checkers.signed_log import NOTARY
from tests.checkers.test_requests import GARBAGE, LIMITS, SHARED, VALUE, altered

READER = Reader(NOTARY)


def _read(value: bytes) -> list[tuple[str, int]] | None:
    found = READER.read(value)
    return None if found is None else [(request.id.hex(), len(request.inputs)) for each in found for request in each.requests]


def _expected(value: bytes) -> list[tuple[str, int]] | None:
    found = requests_of(value, NOTARY)
    return None if found is None else [(id_, len(request.get("inputs", ()))) for id_, request in found]


def test_good_value_is_read() -> None:
    """The unaltered value is decoded."""
    assert _read(VALUE) == _expected(VALUE)
    assert len(_read(VALUE) or ()) == 3


@SHARED
@given(altered())
def test_altered_value_is_read_alike(value: bytes) -> None:
    """For an altered value both decoders return the same requests, or both reject it."""
    assert _read(value) == _expected(value)


@pytest.mark.parametrize(("batch", "read"), LIMITS)
def test_limits_are_alike(batch: object, read: bool) -> None:
    """At each limit of the contract the value is decoded or rejected as it should be."""
    value = json.dumps(batch).encode()
    assert (_read(value) is not None) == read
    assert _read(value) == _expected(value)


@pytest.mark.parametrize("value", GARBAGE)
def test_garbage_is_none(value: bytes) -> None:
    """Bytes that are no batch at all decide nothing, and stop nothing."""
    assert READER.read(value) is None
