"""Tests that the checker finds nothing against an honest notary, and each false answer; a malformed answer is a wrong one."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from loadtest.openloop.checker import Checker, ReceivedDecision, WrongAnswer, read, same_so_far
from loadtest.openloop.generate import PlannedSubmission
from loadtest.openloop.plan import Mix
from tests.loadtest.openloop.honest import Honest, asked, checked

replace = msgspec.structs.replace


def _run(count: int = 150) -> list[tuple[PlannedSubmission, list[ReceivedDecision]]]:
    honest = Honest()
    return [(one, honest.answer(one)) for one in asked(count)]


def _first(
    run: list[tuple[PlannedSubmission, list[ReceivedDecision]]], reason: str | None, *, marked: bool | None = None
) -> tuple[int, int]:
    """Returns the place of the first decision with that reason that was returned once; `marked`: whether its request has a mark."""
    for number, (one, answers) in enumerate(run):
        for at, returned in enumerate(answers):
            if returned.reason == reason and not one.twice and (marked is None or marked == (at in one.marks)):
                return number, at
    raise AssertionError(f"the load has no {reason}")


@pytest.mark.parametrize("shuffled", [False, True])
def test_an_honest_notary_is_clean(shuffled: bool) -> None:
    """The answers of an honest notary are clean for any requests, and in any order of arrival."""
    checker = Checker(receipts=False)
    run = _run()
    if shuffled:
        Random(1).shuffle(run)
    for one, answers in run:
        # All of them were in flight when the first answer came.
        checker.answered(one, answers, -1)
    checker.settle()
    assert checker.violations == []
    assert {"committed", "input-conflict", "reference-conflict", "outside-time-window", "repeated"} <= checker.counts.keys()
    assert checker.decided == len({returned.transaction_id for _, answers in run for returned in answers})


def test_a_double_spend_that_commits() -> None:
    """Two committed transactions with a common input are both named, at once and not only at the end."""
    run = _run()
    number, at = _first(run, "input-conflict")
    one, answers = run[number]
    answers[at] = replace(answers[at], outcome="committed", reason=None, conflicts=())
    checker = Checker(receipts=False)
    for one, answers in run:
        checker.answered(one, answers, checker.position_highest)
    assert [text for text in checker.violations if "DOUBLE SPEND" in text]


def test_a_lone_request_that_is_rejected() -> None:
    """A request whose states no other request names cannot be rejected for a conflict."""
    run = _run()
    number, at = _first(run, None, marked=False)
    refused = run[_first(run, "input-conflict")[0]][1][_first(run, "input-conflict")[1]]
    run[number][1][at] = replace(run[number][1][at], outcome="rejected", reason="input-conflict", conflicts=refused.conflicts)
    assert any("the only one that names its states" in text for text in checked(run))


@pytest.mark.parametrize("reason", ["input-conflict", "reference-conflict", "outside-time-window"])
def test_each_rejection_must_follow_from_what_came_before(reason: str) -> None:
    """A request that was rightly rejected and is reported as committed is found."""
    run = _run()
    number, at = _first(run, reason)
    run[number][1][at] = replace(run[number][1][at], outcome="committed", reason=None, conflicts=())
    assert checked(run)


def test_conflicts_are_held_to_the_letter() -> None:
    """A conflict with another consumer than the real one is found."""
    run = _run()
    number, at = _first(run, "input-conflict")
    returned = run[number][1][at]
    conflicts = tuple([replace(conflict, consumed_by="00" * 32) for conflict in returned.conflicts])
    run[number][1][at] = replace(returned, conflicts=conflicts)
    assert any("the decisions before it make it" in text for text in checked(run))


@pytest.mark.parametrize("member", ["position", "log_time"])
def test_a_retry_that_is_decided_otherwise(member: str) -> None:
    """A retry with the same bytes must get the same answer, member for member."""
    run = _run()
    number = next(number for number, (one, _) in enumerate(run) if one in [before for before, _ in run[:number]])
    run[number][1][0] = replace(run[number][1][0], **{member: 10**6})
    assert any("was decided twice" in text for text in checked(run))


def test_a_decision_from_before_it_was_asked() -> None:
    """A decision that was answered before another was sent must have the lower position."""
    one, other = asked(2, Mix(double_spends=0, references=0, windows=0, retries=0))
    honest = Honest()
    late, early = honest.answer(other), honest.answer(one)
    checker = Checker(receipts=False)
    checker.answered(one, early, checker.position_highest)
    checker.answered(other, late, checker.position_highest)
    assert any("was answered before it was sent" in text for text in checker.violations)


def test_receipts_of_the_sample_are_verified() -> None:
    """All sampled receipts of an honest notary verify, and their number is right."""
    honest = Honest()
    checker = Checker(verify=honest.verify)
    for one in asked(30):
        checker.answered(one, honest.answer(one, receipts=True), -1)
    assert checker.violations == []
    assert checker.counts["receipts_verified"] == 90


def test_a_receipt_of_another_decision() -> None:
    """A receipt that proves another decision than the answer's is found."""
    honest = Honest()
    checker = Checker(verify=honest.verify)
    [one] = asked(1)
    returned = honest.answer(one, receipts=True)
    checker.answered(one, [replace(returned[0], receipt=returned[1].receipt), *returned[1:]], -1)
    assert any("does not verify: wrong-position" in text for text in checker.violations)


@pytest.mark.parametrize("receipts", [True, False])
def test_receipts_are_there_when_they_were_asked_for(receipts: bool) -> None:
    """An answer without a requested receipt, or with one that was not requested, is a wrong answer."""
    honest = Honest()
    [one] = asked(1)
    checker = Checker(receipts=receipts, verify=honest.verify)
    with pytest.raises(WrongAnswer, match="receipt"):
        checker.answered(one, honest.answer(one, receipts=not receipts), -1)
    assert not checker.counts


def _body(decisions: list[Any]) -> bytes:
    return json.dumps({"decisions": decisions}).encode()


def test_an_honest_answer_is_read() -> None:
    """An honest answer is parsed with every member, in the order of the requests."""
    one = asked(1)[0]
    returned = Honest().answer(one)
    assert read(_body(msgspec.to_builtins(returned)), one.ids, complete=True) == returned


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
def test_wrong_answers_are_rejected(spoil: Callable[[list[Any]], list[Any]]) -> None:
    """An answer with another order, number, id or form is rejected."""
    one = asked(1)[0]
    body = _body(spoil(msgspec.to_builtins(Honest().answer(one))))
    with pytest.raises(WrongAnswer):
        read(body, one.ids, complete=True)


def test_what_a_202_has_decided_stays_decided() -> None:
    """After a 202 a later answer may decide more or fewer requests, but none differently."""
    one = asked(1)[0]
    returned = Honest().answer(one)
    half = [returned[0], None, None]
    assert same_so_far(half, [None, returned[1], None]) == [returned[0], returned[1], None]
    with pytest.raises(WrongAnswer, match="and then"):
        same_so_far(half, [msgspec.structs.replace(returned[0], position=9), *returned[1:]])
