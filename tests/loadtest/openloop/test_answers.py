"""Tests the parsing of answers: one that breaks the contract, or is about something else, is a wrong answer."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from loadtest.openloop.answers import WrongAnswer, read
from loadtest.openloop.checker import same_so_far
from tests.loadtest.openloop.honest import Honest, asked


def _body(decisions: list[Any]) -> bytes:
    return json.dumps({"decisions": decisions}).encode()


def test_an_honest_answer_is_read() -> None:
    """An honest answer is parsed with every member, in the order of the requests."""
    one = asked(1)[0]
    told = Honest().answer(one)
    assert read(_body(msgspec.to_builtins(told)), one.ids, complete=True) == told


@pytest.mark.parametrize(
    "spoil",
    [
        lambda decisions: decisions[::-1],
        lambda decisions: decisions[:-1],
        lambda decisions: [*decisions, decisions[0]],
        lambda decisions: [None, *decisions[1:]],
        lambda decisions: [decisions[0] | {"transaction_id": "00" * 32}, *decisions[1:]],
        lambda decisions: [decisions[0] | {"outcome": "rejected", "reason": None}, *decisions[1:]],
        lambda decisions: [decisions[0] | {"outcome": "committed", "reason": "input-conflict"}, *decisions[1:]],
        lambda decisions: [decisions[0] | {"outcome": "rejected", "reason": "input-conflict", "conflicts": []}, *decisions[1:]],
        lambda decisions: [decisions[0] | {"outcome": "rejected", "reason": "no reason"}, *decisions[1:]],
        lambda decisions: [decisions[0] | {"position": -1}, *decisions[1:]],
        lambda decisions: [decisions[0] | {"position": "0"}, *decisions[1:]],
    ],
    ids=["order", "one too few", "one too many", "null", "id", "no reason", "reason", "no conflicts", "unknown", "position", "text"],
)
def test_wrong_answers(spoil: Callable[[list[Any]], list[Any]]) -> None:
    """An answer with another order, number, id or form is rejected."""
    one = asked(1)[0]
    body = _body(spoil(msgspec.to_builtins(Honest().answer(one))))
    with pytest.raises(WrongAnswer):
        read(body, one.ids, complete=True)


def test_what_a_202_has_decided_stays_decided() -> None:
    """After a 202 a later answer may decide more or fewer requests, but none differently."""
    one = asked(1)[0]
    told = Honest().answer(one)
    half = [told[0], None, None]
    assert same_so_far(half, [None, told[1], None]) == [told[0], told[1], None]
    with pytest.raises(WrongAnswer, match="and then"):
        same_so_far(half, [msgspec.structs.replace(told[0], position=9), *told[1:]])
