"""The calls of all clients, and the check that one honest notary could have given these answers.

The checker knows the contract and none of the code that it checks. It replays the decisions of one index in the order of their positions,
on a plain dictionary of consumed states, and compares every answer that any client received with that index. The position shows the order,
so nothing has to be searched: the work grows with the number of answers, not with its square.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from json import JSONDecoder

from tests.checkers.precedence import Asked, Decided, expected_reason, hashed
from tests.checkers.violation import Kind, Violation, describe

_scan = JSONDecoder().raw_decode


@dataclass(frozen=True)
class Submission:
    """A party's signed submission: the same bytes at every retry."""

    body: bytes
    requests: Sequence[Asked]
    ids: Sequence[str]


@dataclass(frozen=True)
class Call:
    """One call: the times of sending and answer, and the decisions in the answer (None for a request without one)."""

    submission: Submission
    url: str
    sent_s: float
    answered_s: float
    status: int
    """The HTTP status; 0 when the connection broke."""
    decisions: Sequence[Decided | None]
    """The decisions; each may have the member "receipt"."""
    body: bytes | None = None
    """The answer itself, if it was kept: then its bytes are compared."""


@dataclass
class History:
    """All calls of all clients of one notary. All times are of one clock."""

    calls: list[Call] = field(default_factory=list)
    """Every send is a call, with status 0 if it got no answer: the first send of a submission bounds its possible positions."""
    submissions: list[Submission] = field(default_factory=list)
    """All submissions that were ever sent, answered or not."""

    def statuses(self) -> dict[int, int]:
        """Returns the number of calls by status."""
        return Counter(call.status for call in self.calls)

    def answered(self) -> dict[str, Decided]:
        """Returns the first answer about each transaction, without its receipt."""
        return self._answered([])

    def receipts(self) -> Iterator[Decided]:
        """Yields every decision that came with a receipt, as it was returned."""
        for call in self.calls:
            yield from (decision for decision in call.decisions if decision is not None and "receipt" in decision)

    def check(self, decisions: Sequence[Decided], consumed: AbstractSet[str]) -> None:
        """Raises `AssertionError`, naming the first few, if there are violations."""
        found = self.violations(decisions, consumed)
        assert not found, describe(found)

    def violations(self, decisions: Sequence[Decided], consumed: AbstractSet[str]) -> list[Violation]:
        """Compare all answers with the decisions of an index or replay (by position) and its consumed states; returns the violations."""
        found: list[Violation] = []
        self._replay(decisions, consumed, found)
        self._hold_answers(decisions, found)
        self._hold_real_time(decisions, found)
        return found

    def _replay(self, decisions: Sequence[Decided], consumed: AbstractSet[str], found: list[Violation]) -> None:
        """Check that positions are dense, no id is decided twice, and each outcome follows from the decisions before it."""
        asked = {id_: request for submission in self.submissions for id_, request in zip(submission.ids, submission.requests, strict=True)}
        consumer: dict[str, str] = {}
        seen: set[str] = set()
        log_time = position_next = 0
        all_asked = True
        for decision in decisions:
            id_, position = decision["transaction_id"], decision["position"]
            place = f"position {position}"
            if position != position_next:
                found.append(Violation(Kind.POSITION_GAP, place, position, position_next))
            position_next = position + 1
            if id_ in seen:
                found.append(Violation(Kind.DECIDED_TWICE, place, id_, "an id that stands nowhere before"))
                continue
            seen.add(id_)
            if decision["log_time"] < log_time:
                found.append(Violation(Kind.LOG_TIME_FELL, place, decision["log_time"], f"{log_time} or later"))
            log_time = decision["log_time"]
            request = asked.get(id_)
            if request is None:
                all_asked = False
                found.append(Violation(Kind.NEVER_ASKED, place, id_, "a transaction that a client sent"))
                continue
            _hold_outcome(decision, request, consumer, found)
            # A wrong decision stands: the later ones are checked against the answers that clients have received.
            if decision["outcome"] == "committed":
                by = hashed(id_)
                for state in request.get("inputs", ()):
                    consumer.setdefault(state, by)
        missing, extra = consumer.keys() - consumed, consumed - consumer.keys()
        if missing or (extra and all_asked):
            few = [sorted(states)[:5] for states in (extra, missing)]
            found.append(
                Violation(Kind.WRONG_CONSUMED, "the consumed states", f"{len(extra)} besides, {few[0]}", f"{len(missing)} more, {few[1]}")
            )

    def _answered(self, found: list[Violation]) -> dict[str, Decided]:
        """Returns the first answer about each transaction that was not contradicted."""
        returned: dict[str, Decided] = {}
        texts: dict[str, str] = {}
        contradicted: set[str] = set()
        for number, call in enumerate(self.calls):
            if not call.decisions:
                continue
            ids = call.submission.ids
            if len(call.decisions) != len(ids) or (call.status == 200 and None in call.decisions):
                decided = sum([decision is not None for decision in call.decisions])
                found.append(Violation(Kind.WRONG_SHAPE, f"call {number}", f"{decided} decisions, {call.status}", f"{len(ids)} decisions"))
                continue
            pieces = _cut(call.body)
            if pieces is not None and len(pieces) != len(ids):
                found.append(Violation(Kind.WRONG_SHAPE, f"call {number}", call.body, f"{len(ids)} decisions, written as JSON"))
                pieces = None
            for at, decision in enumerate(call.decisions):
                if decision is None:
                    continue
                id_ = ids[at]
                place = f"call {number}, {id_}"
                if decision["transaction_id"] != id_:
                    found.append(Violation(Kind.WRONG_SHAPE, place, decision["transaction_id"], id_))
                    continue
                if "receipt" in decision:
                    decision = {name: value for name, value in decision.items() if name != "receipt"}
                first = returned.setdefault(id_, decision)
                if first is not decision and first != decision:
                    contradicted.add(id_)
                    found.append(Violation(Kind.CONTRADICTION, place, decision, first))
                elif pieces is not None and texts.setdefault(id_, pieces[at]) != pieces[at]:
                    found.append(Violation(Kind.OTHER_BYTES, place, pieces[at], texts[id_]))
        return {id_: decision for id_, decision in returned.items() if id_ not in contradicted} if contradicted else returned

    def _hold_answers(self, decisions: Sequence[Decided], found: list[Violation]) -> None:
        """Check that every acknowledged decision is in the index, member for member."""
        by_id: dict[str, Decided] = {}
        for decision in decisions:
            by_id.setdefault(decision["transaction_id"], decision)
        for id_, returned in self._answered(found).items():
            there = by_id.get(id_)
            if there is None:
                found.append(Violation(Kind.LOST, id_, None, returned))
            elif there != returned:
                found.append(Violation(Kind.CHANGED, id_, there, returned))

    def _hold_real_time(self, decisions: Sequence[Decided], found: list[Violation]) -> None:
        """Check linearizability: a transaction that was answered before another was first sent has the lower position."""
        sent: dict[str, float] = {}
        answered: dict[str, float] = {}
        for call in self.calls:
            for at, id_ in enumerate(call.submission.ids):
                if call.sent_s < sent.get(id_, float("inf")):
                    sent[id_] = call.sent_s
                if at < len(call.decisions) and call.decisions[at] is not None and call.answered_s < answered.get(id_, float("inf")):
                    answered[id_] = call.answered_s
        sent_latest_s, latest = float("-inf"), ""
        for decision in decisions:
            id_ = decision["transaction_id"]
            answered_s = answered.pop(id_, None)
            if answered_s is not None and answered_s < sent_latest_s:
                text = f"a position before that of {latest}, which was sent at {sent_latest_s}"
                found.append(Violation(Kind.AGAINST_REAL_TIME, id_, f"{decision['position']}, answered at {answered_s}", text))
            if (sent_s := sent.get(id_, float("-inf"))) > sent_latest_s:
                sent_latest_s, latest = sent_s, id_


def _hold_outcome(decision: Decided, request: Asked, consumer: Mapping[str, str], found: list[Violation]) -> None:
    reason, conflicts = expected_reason(request, consumer, decision["log_time"])
    returned = decision["reason"]
    wanted: object
    if decision["outcome"] != ("rejected" if returned else "committed"):
        kind, wanted = Kind.WRONG_OUTCOME, reason
    elif returned != reason:
        kind, wanted = Kind.WRONG_REASON, reason
        if reason is None:
            kind = Kind.NO_EARLIER_CAUSE
        elif returned is None and reason == "input-conflict":
            kind = Kind.DOUBLE_SPEND
    elif decision["conflicts"] != conflicts:
        kind, wanted = Kind.WRONG_CONFLICTS, conflicts
    else:
        return
    found.append(Violation(kind, f"position {decision['position']}", decision, wanted))


def _cut(body: bytes | None) -> list[str] | None:
    """Returns the texts of an answer's decisions, as far as they can be parsed, without their receipts (the last member).

    Returns None if the answer was not kept.
    """
    if body is None:
        return None
    text = body.decode()
    at = text.find("[") + 1
    pieces: list[str] = []
    while at and at < len(text) and text[at] != "]":
        try:
            _, end = _scan(text, at)
        except ValueError:
            break
        pieces.append(text[at:end].partition(',"receipt":')[0].removesuffix("}"))
        at = end + text[end : end + 1].count(",")
    return pieces
