"""The checker of the other tests finds what it is there to find."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.kafka.asking import Party, spend, state
from tests.kafka.history import Call, Decided, History

PARTY = Party("O=Notary,L=London,C=GB")


def honest() -> tuple[History, list[Decided], set[str]]:
    """Two spendings of one state and one of another, asked one after the other, answered by an honest notary."""
    requests = [spend(state("x")), spend(state("x"), content="double"), spend(state("y"))]
    submissions = [PARTY.submission(request) for request in requests]
    (first,), (second,), (third,) = [submission.ids for submission in submissions]
    conflict = {"state": state("x"), "kind": "input", "consumed_by": hashlib.sha256(bytes.fromhex(first)).hexdigest()}
    decisions: list[dict[str, Any]] = [
        {"transaction_id": first, "position": 0, "outcome": "committed", "reason": None, "conflicts": [], "log_time": 5},
        {
            "transaction_id": second,
            "position": 1,
            "outcome": "rejected",
            "reason": "input-conflict",
            "conflicts": [conflict],
            "log_time": 5,
        },
        {"transaction_id": third, "position": 2, "outcome": "committed", "reason": None, "conflicts": [], "log_time": 6},
    ]
    calls = [
        Call(submission, "url", at, at + 0.5, 200, [decision])
        for at, (submission, decision) in enumerate(zip(submissions, decisions, strict=True))
    ]
    return History(calls, submissions), list(decisions), {state("x"), state("y")}


def test_honest_notary_passes() -> None:
    """A history without fault is one."""
    history, decisions, consumed = honest()
    history.check(decisions, consumed)


def commits_twice(history: History, decisions: list[Decided]) -> None:
    decisions[1] = {**decisions[1], "outcome": "committed", "reason": None, "conflicts": []}
    history.calls[1] = replace(history.calls[1], decisions=[decisions[1]])


def loses_an_answer(history: History, decisions: list[Decided]) -> None:
    decisions.pop()


def leaves_a_gap(history: History, decisions: list[Decided]) -> None:
    decisions[2] = {**decisions[2], "position": 3}
    history.calls[2] = replace(history.calls[2], decisions=[decisions[2]])


def answers_otherwise(history: History, decisions: list[Decided]) -> None:
    decisions[2] = {**decisions[2], "log_time": 7}


def answers_a_retry_otherwise(history: History, decisions: list[Decided]) -> None:
    history.calls.append(replace(history.calls[2], decisions=[{**decisions[2], "log_time": 7}]))


def goes_back_in_time(history: History, decisions: list[Decided]) -> None:
    decisions[2] = {**decisions[2], "log_time": 4}
    history.calls[2] = replace(history.calls[2], decisions=[decisions[2]])


def orders_against_real_time(history: History, decisions: list[Decided]) -> None:
    history.calls[0] = replace(history.calls[0], sent_s=10, answered_s=11)


def decides_what_nobody_asked(history: History, decisions: list[Decided]) -> None:
    history.submissions.pop()


@pytest.mark.parametrize(
    "fault",
    [
        commits_twice,
        loses_an_answer,
        leaves_a_gap,
        answers_otherwise,
        answers_a_retry_otherwise,
        goes_back_in_time,
        orders_against_real_time,
        decides_what_nobody_asked,
    ],
)
def test_fault_is_found(fault: Callable[[History, list[Decided]], None]) -> None:
    """Each way of not being a notary is noticed."""
    history, decisions, consumed = honest()
    fault(history, decisions)
    with pytest.raises((AssertionError, KeyError)):
        history.check(decisions, consumed)


def test_lost_spending_is_found() -> None:
    """An index whose consumed states are not those that its decisions consumed is wrong."""
    history, decisions, consumed = honest()
    with pytest.raises(AssertionError):
        history.check(decisions, consumed - {state("y")})
