"""Tests that the history checker finds each fault, names it rightly, and reports nothing else."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.checkers.history import Call, Decided, History
from tests.checkers.violation import SHOWN_MAX, Kind, Violation, describe
from tests.clients.party import Party, spend, state

PARTY = Party("O=Notary,L=London,C=GB")


class Case:
    """The data that a fault may change: the calls, the decisions of the index, and its consumed states."""

    def __init__(self) -> None:
        """Five requests, submitted one after the other and answered by an honest notary; the first is retried at the end."""
        requests = [
            spend(state("x")),
            spend(state("x"), content="double"),
            spend(state("y")),
            spend(references=[state("x")]),
            spend(state("late"), time_window={"from": None, "until": 6}),
        ]
        submissions = [PARTY.submission(request) for request in requests]
        ids = [submission.ids[0] for submission in submissions]
        by = hashlib.sha256(bytes.fromhex(ids[0])).hexdigest()
        verdicts: list[tuple[str | None, list[dict[str, str]]]] = [
            (None, []),
            ("input-conflict", [{"state": state("x"), "kind": "input", "consumed_by": by}]),
            (None, []),
            ("reference-conflict", [{"state": state("x"), "kind": "reference", "consumed_by": by}]),
            ("outside-time-window", []),
        ]
        self.decisions: list[dict[str, Any]] = [
            {
                "transaction_id": id_,
                "position": at,
                "outcome": "rejected" if reason else "committed",
                "reason": reason,
                "conflicts": conflicts,
                "log_time": 5 + at // 2,
            }
            for at, (id_, (reason, conflicts)) in enumerate(zip(ids, verdicts, strict=True))
        ]
        self.consumed = {state("x"), state("y")}
        self.history = History([], list(submissions))
        for at in (0, 1, 2, 3, 4, 0):
            sent_s = float(len(self.history.calls))
            decision = {**self.decisions[at], "receipt": f"under the checkpoint of {sent_s}"}
            self.history.calls.append(Call(submissions[at], "url", sent_s, sent_s + 0.5, 200, [decision], self.body(decision)))

    @staticmethod
    def body(*decisions: Decided | None) -> bytes:
        return json.dumps({"decisions": decisions}, separators=(",", ":")).encode()

    def decide(self, at: int, **members: Any) -> None:
        """Change one decision in the index and in every answer."""
        self.decisions[at] = {**self.decisions[at], **members}
        self.history.calls = [
            replace(call, decisions=[self.decisions[at]], body=None) if call.submission is self.history.submissions[at] else call
            for call in self.history.calls
        ]

    def answer(self, at: int, **members: Any) -> None:
        """Change one call and its answer."""
        self.history.calls[at] = replace(self.history.calls[at], **members)

    def violations(self) -> list[Violation]:
        return self.history.violations(self.decisions, self.consumed)


def test_honest_notary_passes() -> None:
    """A history without fault has no violations."""
    case = Case()
    assert case.violations() == []
    case.history.check(case.decisions, case.consumed)
    assert case.history.statuses() == {200: 6}
    assert len(list(case.history.receipts())) == 6


def _refuses_without_a_cause(case: Case) -> None:
    case.decide(2, outcome="rejected", reason="input-conflict", conflicts=[])
    case.consumed = {state("x")}


def _decides_what_nobody_asked(case: Case) -> None:
    case.history.submissions.pop()
    case.history.calls.pop(4)


def _loses_a_decision_in_the_middle(case: Case) -> None:
    case.decisions.pop(3)
    case.history.calls.pop(3)


def _swaps_two_positions(case: Case) -> None:
    case.decisions[2:4] = [{**case.decisions[3], "position": 2, "log_time": 6}, {**case.decisions[2], "position": 3, "log_time": 6}]
    case.answer(2, decisions=[case.decisions[3]], body=None)
    case.answer(3, decisions=[case.decisions[2]], body=None)


FAULTS: dict[str, tuple[Callable[[Case], object], Kind]] = {
    "commits twice": (lambda case: case.decide(1, outcome="committed", reason=None, conflicts=[]), Kind.DOUBLE_SPEND),
    "commits against a reference": (lambda case: case.decide(3, outcome="committed", reason=None, conflicts=[]), Kind.WRONG_REASON),
    "refuses without a cause": (_refuses_without_a_cause, Kind.NO_EARLIER_CAUSE),
    "refuses for a later reason": (lambda case: case.decide(1, reason="outside-time-window", conflicts=[]), Kind.WRONG_REASON),
    "lists no conflicts": (lambda case: case.decide(1, conflicts=[]), Kind.WRONG_CONFLICTS),
    "blames another": (
        lambda case: case.decide(
            1, conflicts=[{**case.decisions[1]["conflicts"][0], "consumed_by": hashlib.sha256(bytes(32)).hexdigest()}]
        ),
        Kind.WRONG_CONFLICTS,
    ),
    "names no outcome": (lambda case: case.decide(2, reason="input-conflict"), Kind.WRONG_OUTCOME),
    "leaves a gap": (lambda case: case.decide(4, position=5), Kind.POSITION_GAP),
    "gives a position twice": (lambda case: case.decide(4, position=3), Kind.POSITION_GAP),
    "decides twice": (lambda case: case.decisions.append({**case.decisions[0], "position": 5, "log_time": 9}), Kind.DECIDED_TWICE),
    "decides what nobody asked": (_decides_what_nobody_asked, Kind.NEVER_ASKED),
    "goes back in time": (lambda case: case.decide(2, log_time=4), Kind.LOG_TIME_FELL),
    "loses an answer": (lambda case: case.decisions.pop(), Kind.LOST),
    "loses a decision in the middle": (_loses_a_decision_in_the_middle, Kind.POSITION_GAP),
    "changes its answer": (lambda case: case.decisions[4].update(log_time=8), Kind.CHANGED),
    "answers a retry otherwise": (
        lambda case: case.answer(5, decisions=[{**case.decisions[0], "log_time": 4}], body=None),
        Kind.CONTRADICTION,
    ),
    "writes a retry otherwise": (lambda case: case.answer(5, body=case.body(dict(reversed(case.decisions[0].items())))), Kind.OTHER_BYTES),
    "answers another transaction": (lambda case: case.answer(5, decisions=[case.decisions[1]], body=None), Kind.WRONG_SHAPE),
    "answers too much": (lambda case: case.answer(5, decisions=case.decisions[:2], body=None), Kind.WRONG_SHAPE),
    "answers 200 and does not know": (lambda case: case.answer(5, decisions=[None], body=None), Kind.WRONG_SHAPE),
    "answers what cannot be read": (lambda case: case.answer(5, body=b'{"decisions":[{'), Kind.WRONG_SHAPE),
    "orders against real time": (lambda case: case.answer(3, sent_s=10, answered_s=11), Kind.AGAINST_REAL_TIME),
    "swaps two positions": (_swaps_two_positions, Kind.AGAINST_REAL_TIME),
    "loses a spending": (lambda case: case.consumed.remove(state("y")), Kind.WRONG_CONSUMED),
    "consumes what was refused": (lambda case: case.consumed.add(state("late")), Kind.WRONG_CONSUMED),
}


@pytest.mark.parametrize(("fault", "kind"), FAULTS.values(), ids=FAULTS)
def test_each_fault_is_found_under_its_own_kind(fault: Callable[[Case], object], kind: Kind) -> None:
    """Each fault is found once, under its own kind."""
    case = Case()
    fault(case)
    assert [violation.kind for violation in case.violations()] == [kind]
    with pytest.raises(AssertionError, match=kind):
        case.history.check(case.decisions, case.consumed)


def test_unknown_outcomes_are_no_fault() -> None:
    """A request whose call broke, or that was never answered, may be decided or not."""
    case = Case()
    unsure = PARTY.submission(spend(state("z")), spend(state("w")))
    case.history.submissions.append(unsure)
    case.history.calls.append(Call(unsure, "url", 7, 8, 0, ()))
    assert case.violations() == []
    first = {
        "transaction_id": unsure.ids[0],
        "position": 5,
        "outcome": "committed",
        "reason": None,
        "conflicts": [],
        "log_time": 7,
    }
    case.decisions.append(first)
    case.consumed |= {state("z")}
    case.history.calls.append(Call(unsure, "url", 9, 10, 202, [first, None], case.body(first, None)))
    assert case.violations() == []


def test_answers_that_overlap_may_stand_either_way() -> None:
    """Two calls that overlap in time have no order in real time."""
    case = Case()
    case.history.calls.pop(5)
    case.history.calls[0] = replace(case.history.calls[0], sent_s=1.4, answered_s=1.5)
    assert case.violations() == []


def test_description_is_short() -> None:
    """A description of many violations names the first few and the number of the others."""
    many = [Violation(Kind.LOST, f"{at}", b"\xff" * SHOWN_MAX, None) for at in range(7)]
    lines = describe(many, 2).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("lost at 0: found ffff")
    assert len(lines[0]) < 2 * SHOWN_MAX
    assert lines[2] == "and 5 more"
