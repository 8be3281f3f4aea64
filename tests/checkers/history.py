"""What was asked and answered, and whether one honest notary could have answered so.

The checker knows the contract and nothing of the code that it checks. It plays the decisions of one index again, in the order of their
positions, on a plain dictionary of consumed states; and it holds every answer that any client ever got against that index.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Decided = Mapping[str, Any]
"""A decision as the contract's JSON object."""


@dataclass(frozen=True)
class Submission:
    """What a party signed: the same bytes however often it is sent."""

    body: bytes
    requests: Sequence[Mapping[str, Any]]
    ids: Sequence[str]


@dataclass(frozen=True)
class Call:
    """One call: when it left, when its answer was here, and what the answer decided of the submission (None: nothing)."""

    submission: Submission
    url: str
    sent_s: float
    answered_s: float
    status: int
    """0 when the connection broke."""
    decisions: Sequence[Decided | None]


@dataclass
class History:
    """All calls of all clients of one notary."""

    calls: list[Call] = field(default_factory=list)
    submissions: list[Submission] = field(default_factory=list)
    """Everything that was ever sent, answered or not."""

    def answered(self) -> dict[str, Decided]:
        """Every decision that any client was told, by transaction id; two answers about one id are the same, member for member."""
        told: dict[str, Decided] = {}
        for call in self.calls:
            assert len(call.decisions) in (0, len(call.submission.ids))
            for id_, decision in zip(call.submission.ids, call.decisions, strict=False):
                if decision is None:
                    continue
                assert decision["transaction_id"] == id_, "answers stand in the order of the requests"
                decision = {name: value for name, value in decision.items() if name != "receipt"}
                assert told.setdefault(id_, decision) == decision, f"two answers about {id_}"
        return told

    def statuses(self) -> dict[int, int]:
        """How many calls ended with which status."""
        counts: dict[int, int] = {}
        for call in self.calls:
            counts[call.status] = counts.get(call.status, 0) + 1
        return counts

    def check(self, decisions: Sequence[Decided], consumed: set[str]) -> None:
        """Hold all answers against the decisions of an index, given by position, and its consumed states."""
        self._replay(decisions, consumed)
        by_id = {decision["transaction_id"]: decision for decision in decisions}
        for id_, told in self.answered().items():
            assert by_id.get(id_) == told, f"what was answered about {id_} is not what the index has"
        self._check_real_time(decisions)

    def _replay(self, decisions: Sequence[Decided], consumed: set[str]) -> None:
        """Positions are dense, no id is decided twice, and each outcome is the one that follows from those before it."""
        asked = {id_: request for submission in self.submissions for id_, request in zip(submission.ids, submission.requests, strict=True)}
        assert [decision["position"] for decision in decisions] == list(range(len(decisions)))
        assert len({decision["transaction_id"] for decision in decisions}) == len(decisions)
        consumer: dict[str, str] = {}
        log_time = 0
        for decision in decisions:
            request = asked[decision["transaction_id"]]
            assert decision["log_time"] >= log_time, "log time fell"
            log_time = decision["log_time"]
            reason, conflicts = _judge(request, consumer, log_time)
            assert (decision["reason"], decision["conflicts"]) == (reason, conflicts), decision
            assert decision["outcome"] == ("rejected" if reason else "committed")
            if reason is None:
                hashed = hashlib.sha256(bytes.fromhex(decision["transaction_id"])).hexdigest()
                for state in request.get("inputs", ()):
                    assert state not in consumer
                    consumer[state] = hashed
        assert consumer.keys() == consumed

    def _check_real_time(self, decisions: Sequence[Decided]) -> None:
        """Linearizable: what was answered before another was first sent has the lower position."""
        sent: dict[str, float] = {}
        answered: dict[str, float] = {}
        for call in self.calls:
            for at, id_ in enumerate(call.submission.ids):
                sent[id_] = min(sent.get(id_, call.sent_s), call.sent_s)
                if call.decisions and call.decisions[at] is not None:
                    answered[id_] = min(answered.get(id_, call.answered_s), call.answered_s)
        sent_latest_s = float("-inf")
        for decision in decisions:
            id_ = decision["transaction_id"]
            if id_ in answered:
                assert answered[id_] >= sent_latest_s, f"{id_} was answered before one at a lower position was sent"
            sent_latest_s = max(sent_latest_s, sent.get(id_, sent_latest_s))


def _judge(request: Mapping[str, Any], consumer: Mapping[str, str], log_time: int) -> tuple[str | None, list[dict[str, str]]]:
    """The contract's precedence, for a transaction that was not decided before."""
    for kind, states in (("input", request.get("inputs", ())), ("reference", request.get("references", ()))):
        taken = sorted((state for state in states if state in consumer), key=_bytes_of)
        if taken:
            return f"{kind}-conflict", [{"state": state, "kind": kind, "consumed_by": consumer[state]} for state in taken]
    window = request.get("time_window") or {}
    start, end = window.get("from"), window.get("until")
    if (start is not None and log_time < start) or (end is not None and log_time >= end):
        return "outside-time-window", []
    return None, []


def _bytes_of(state: str) -> tuple[str, int]:
    id_, index = state.split(":")
    return id_, int(index)
