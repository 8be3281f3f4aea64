"""Checks all answers, in each process as they arrive, and the positions of all processes together. Pure.

The right answer follows from the way in which a request was generated.

Answers are decoded from the contract alone (docs/formats.md, Decision).

| checked at once | with |
|---|---|
| a request without a possible conflict is committed; one whose window is shut is not | its marks |
| at most one of the requests that name one state as an input commits | the marked states |
| the same transaction sent again gets the same decision | the first decision of a submission that is sent twice |
| a request answered before another is first sent has the lower position | the highest position answered at the time of sending |
| receipts are present, and those of the sample verify | the verifier key |

At the end, when every request was answered, the decisions of all marked requests are replayed in the order of their positions on a plain
dictionary. Outcome, reason, conflicts and consumers must then be exactly the same. `Ledger` checks the positions that all processes saw:
one transaction each, no gap, and log time that never falls.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from struct import Struct
from typing import Final, Literal, TypeAlias

import msgspec

from loadtest.openloop.generate import Marks, PlannedSubmission

Reason: TypeAlias = Literal["input-conflict", "reference-conflict", "outside-time-window"]


class WrongAnswer(Exception):
    """An answer that breaks the contract; the message says where."""


class ReceivedConflict(msgspec.Struct, frozen=True):
    """A state that was consumed before."""

    state: str
    kind: Literal["input", "reference"]
    consumed_by: str


class ReceivedDecision(msgspec.Struct):
    """A decision as returned by a notary. Its receipt is dropped after verification, since later comparisons concern only the decision."""

    transaction_id: str
    position: int
    outcome: Literal["committed", "rejected"]
    reason: Reason | None
    conflicts: tuple[ReceivedConflict, ...]
    log_time: int
    receipt: str | None = None


class _Decisions(msgspec.Struct):
    decisions: list[ReceivedDecision | None]


_decode = msgspec.json.Decoder(_Decisions).decode


def read(body: bytes, ids: bytes, *, complete: bool) -> Sequence[ReceivedDecision | None]:
    """Returns the decisions of a 200 (`complete`: none is null) or a 202, for these ids, in order. Raises `WrongAnswer`."""
    try:
        decisions = _decode(body).decisions
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise WrongAnswer(f"not an answer as the contract has it: {problem}") from None
    if len(decisions) * 32 != len(ids):
        raise WrongAnswer(f"{len(decisions)} decisions for {len(ids) // 32} requests")
    asked = ids.hex()
    for at, decision in enumerate(decisions):
        if decision is None:
            if complete:
                raise WrongAnswer(f"decisions[{at}]: null in an answer that says all is decided")
            continue
        if decision.transaction_id != asked[64 * at : 64 * at + 64]:
            raise WrongAnswer(f"decisions[{at}]: about {decision.transaction_id}, but {asked[64 * at : 64 * at + 64]} was asked")
        if (decision.outcome == "committed") != (decision.reason is None) or decision.position < 0:
            raise WrongAnswer(f"decisions[{at}]: {decision.outcome}, with the reason {decision.reason}, at position {decision.position}")
        if bool(decision.conflicts) != (decision.reason in ("input-conflict", "reference-conflict")):
            raise WrongAnswer(f"decisions[{at}]: {len(decision.conflicts)} conflicts with the reason {decision.reason}")
    return decisions


def hashed(transaction_id: str) -> str:
    """Returns the SHA-256 of a transaction id, by which a decision names the transaction that consumed a state."""
    return sha256(bytes.fromhex(transaction_id)).hexdigest()


def in_window(log_time: int, window: tuple[int | None, int | None]) -> bool:
    """Returns True if `from <= log_time < until`."""
    start, end = window
    return (start is None or start <= log_time) and (end is None or log_time < end)


SEEN_POSITION: Final = Struct(">q8sq")
"""A decision for the ledger: its position, the first bytes of its transaction id, its log time."""

VIOLATIONS_LISTED: Final = 20

Verify = Callable[[ReceivedDecision], str | None]
"""Verifies a decision's receipt: returns None, or the error."""


class Checker:
    """The answers that one process received. `sample` returns True if the next receipt is to be verified; the first one always is."""

    def __init__(self, *, receipts: bool = True, verify: Verify | None = None, sample: Callable[[], bool] = lambda: True) -> None:
        self._receipts = receipts
        self._verify = verify
        self._sample = sample
        self._consumers: dict[str, str] = {}  # marked state -> the transaction that committed with it
        self._first: dict[str, ReceivedDecision] = {}  # for submissions sent twice, until the second answer
        self._marked: list[tuple[ReceivedDecision, Marks]] = []
        self._seen_positions = bytearray()
        self.position_highest = -1
        """The highest position answered so far; read when a submission is first sent."""
        self.decided = 0
        """The number of transactions decided, each counted once."""
        self.counts: dict[str, int] = {}
        self.violations: list[str] = []

    def take_seen_positions(self) -> bytes:
        """Returns the decisions since the last call, as `SEEN_POSITION` records, for the ledger."""
        seen = bytes(self._seen_positions)
        self._seen_positions.clear()
        return seen

    def answered(self, asked: PlannedSubmission, answers: Sequence[ReceivedDecision], position_before: int) -> None:
        """Check all decisions of a submission. Raises `WrongAnswer`, and then has changed nothing.

        `position_before`: `position_highest` when it was first sent.
        """
        for decision in answers:
            if (decision.receipt is not None) != self._receipts:
                raise WrongAnswer(f"{decision.transaction_id} has {'no receipt' if self._receipts else 'a receipt that was not requested'}")
        position = self.position_highest
        for at, decision in enumerate(answers):
            if decision.position > position:
                position = decision.position
            self._seen_positions += SEEN_POSITION.pack(decision.position, bytes.fromhex(decision.transaction_id[:16]), decision.log_time)
            self._check_receipt(decision)
            decision.receipt = None
            if asked.twice and not self._is_first(decision):
                self._count("repeated")
                continue
            self.decided += 1
            self._count("committed" if decision.reason is None else decision.reason)
            # A submission sent twice may have been decided by the copy whose answer has not arrived yet.
            if decision.position <= position_before and not asked.twice:
                self._violated(
                    f"{decision.transaction_id} has position {decision.position}, but {position_before} was answered before it was sent"
                )
            marks = asked.marks.get(at)
            if marks is None:
                if decision.reason is not None:
                    self._violated(f"{decision.transaction_id} is the only one that names its states, and was rejected: {decision.reason}")
            else:
                self._check_marked(decision, marks)
        self.position_highest = position

    def settle(self) -> None:
        """Replay the marked decisions. Call it only when every request was answered: a missing answer could explain any result."""
        consumer: dict[str, str] = {}
        for decision, marks in sorted(self._marked, key=lambda each: each[0].position):
            reason, conflicts = _expected(decision, marks, consumer)
            if (decision.reason, decision.conflicts) != (reason, conflicts):
                wanted = f"{reason or 'committed'} with {len(conflicts)} conflicts"
                self._violated(f"{decision.transaction_id} was {_short(decision)}; the decisions before it make it {wanted}")
            if decision.reason is None:
                by = hashed(decision.transaction_id)
                consumer.update(dict.fromkeys(marks.inputs, by))
        self._marked.clear()

    def _is_first(self, decision: ReceivedDecision) -> bool:
        first = self._first.pop(decision.transaction_id, None)
        if first is None:
            self._first[decision.transaction_id] = decision
        elif first != decision:
            self._violated(f"{decision.transaction_id} was decided twice: {_short(first)}, then {_short(decision)}")
        return first is None

    def _check_marked(self, decision: ReceivedDecision, marks: Marks) -> None:
        self._marked.append((decision, marks))
        if decision.reason is not None:
            return
        for state in marks.inputs:
            other = self._consumers.setdefault(state, decision.transaction_id)
            if other != decision.transaction_id:
                self._violated(f"DOUBLE SPEND of {state}: both {other} and {decision.transaction_id} committed")
        if marks.window is not None and not in_window(decision.log_time, marks.window):
            self._violated(f"{decision.transaction_id} committed at log time {decision.log_time}, outside its window {marks.window}")

    def _check_receipt(self, decision: ReceivedDecision) -> None:
        # The first always, so that even a short run with a small sample verifies one.
        if self._verify is not None and (self._sample() or "receipts_verified" not in self.counts):
            problem = self._verify(decision)
            self._count("receipts_verified")
            if problem is not None:
                self._violated(f"the receipt of {decision.transaction_id} does not verify: {problem}")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _violated(self, text: str) -> None:
        self._count("violations")
        if len(self.violations) < VIOLATIONS_LISTED:
            self.violations.append(text)


def same_so_far(before: Sequence[ReceivedDecision | None], now: Sequence[ReceivedDecision | None]) -> Sequence[ReceivedDecision | None]:
    """Returns the merged decisions of two answers to one submission. Raises `WrongAnswer` if a decision changed; receipts may differ."""
    for first, then in zip(before, now, strict=True):
        if first is not None and then is not None and _bare(first) != _bare(then):
            raise WrongAnswer(f"{first.transaction_id} was {_short(first)}, and then {_short(then)}")
    # A worker that lags returns null: it does not know the decision, which contradicts nothing.
    return [then or first for first, then in zip(before, now, strict=True)]


def _expected(decision: ReceivedDecision, marks: Marks, consumer: dict[str, str]) -> tuple[str | None, tuple[ReceivedConflict, ...]]:
    """Returns (reason, conflicts) by the contract's precedence. Unmarked states are never consumed by another request."""
    kinds: tuple[tuple[Literal["input", "reference"], Sequence[str]], ...] = (("input", marks.inputs), ("reference", marks.references))
    for kind, states in kinds:
        # In the order of their bytes.
        taken = sorted([state for state in states if state in consumer], key=lambda state: (state[:64], int(state[65:])))
        if taken:
            return f"{kind}-conflict", tuple([ReceivedConflict(state, kind, consumer[state]) for state in taken])
    if marks.window is not None and not in_window(decision.log_time, marks.window):
        return "outside-time-window", ()
    return None, ()


def _bare(decision: ReceivedDecision) -> ReceivedDecision:
    return msgspec.structs.replace(decision, receipt=None)


def _short(decision: ReceivedDecision) -> str:
    place = f"at position {decision.position}, log time {decision.log_time}"
    return f"{decision.reason or decision.outcome} {place}, {len(decision.conflicts)} conflicts"


# ---- the positions of all processes ----

PAGE: Final = 4_096
_SEEN: Final = Struct(">8sq")
"""A decision in a page: the first bytes of its transaction id, its log time."""
_NONE: Final = bytes(8)


class Ledger:
    """Checks the positions of one run. `position_first`: the number of decisions before the run.

    They are kept in pages, 16 bytes a position: a soak of ten million decisions takes 160 MB, in the master alone.
    """

    def __init__(self, position_first: int) -> None:
        self._first = position_first
        self._pages: defaultdict[int, bytearray] = defaultdict(lambda: bytearray(_SEEN.size * PAGE))
        """By position // `PAGE`."""
        self.positions_seen = 0
        """The number of positions seen."""
        self.violations: list[str] = []

    def add(self, records: bytes) -> None:
        """Add the `SEEN_POSITION` records of one process."""
        for position, mark, log_time in SEEN_POSITION.iter_unpack(records):
            page, at = self._pages[position // PAGE], position % PAGE * _SEEN.size
            there, log_time_there = _SEEN.unpack_from(page, at)
            if there == _NONE:
                _SEEN.pack_into(page, at, mark, log_time)
                self.positions_seen += 1
                if position < self._first:
                    self._violated(f"{mark.hex()}... has position {position}, from before the run: was it sent with this --seed before?")
            elif (there, log_time_there) != (mark, log_time):
                self._violated(f"position {position} was reported for {there.hex()}... and for {mark.hex()}..., or with two log times")

    def close(self, *, alone: bool) -> None:
        """Check all positions at the end: log times, and gaps if no other client sent requests (`alone`)."""
        last, log_time_highest = self._first - 1, -(2**63)
        for position, log_time in self._in_order():
            if alone and position != last + 1 and position >= self._first:
                self._violated(f"no process saw the positions {last + 1} to {position - 1}: gaps, or another client sent requests too")
            if log_time < log_time_highest:
                self._violated(f"at position {position} log time falls to {log_time}, it was {log_time_highest}")
            last, log_time_highest = max(last, position), max(log_time_highest, log_time)

    def _in_order(self) -> Iterator[tuple[int, int]]:
        for number, page in sorted(self._pages.items()):
            for position, (mark, log_time) in enumerate(_SEEN.iter_unpack(page), number * PAGE):
                if mark != _NONE:
                    yield position, log_time

    def _violated(self, text: str) -> None:
        if len(self.violations) < VIOLATIONS_LISTED:
            self.violations.append(text)
