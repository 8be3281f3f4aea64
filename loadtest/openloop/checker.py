"""One process's check of all its answers as they arrive: how a request was generated determines the right answer. Pure.

Answers are decoded from the contract alone (docs/formats.md, Decision).

| checked at once | with |
|---|---|
| a request without a possible conflict is committed; one whose window is shut is not | its marks |
| at most one of the requests that name one state as an input commits | the marked states |
| the same transaction sent again gets the same decision | the first decision of a submission that is sent twice |
| a request answered before another is first sent has the lower position | the highest position answered at the time of sending |
| receipts are present, and those of the sample verify | the verifier key |

At the end, when every request was answered, the decisions of all marked requests are replayed in the order of their positions on a plain
dictionary. Outcome, reason, conflicts and consumers must then be exactly the same. `ledger` checks the positions of all processes together.
"""

from collections.abc import Callable, Sequence
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
    for at, told in enumerate(decisions):
        if told is None:
            if complete:
                raise WrongAnswer(f"decisions[{at}]: null in an answer that says all is decided")
            continue
        if told.transaction_id != asked[64 * at : 64 * at + 64]:
            raise WrongAnswer(f"decisions[{at}]: about {told.transaction_id}, but {asked[64 * at : 64 * at + 64]} was asked")
        if (told.outcome == "committed") != (told.reason is None) or told.position < 0:
            raise WrongAnswer(f"decisions[{at}]: {told.outcome}, with the reason {told.reason}, at position {told.position}")
        if bool(told.conflicts) != (told.reason in ("input-conflict", "reference-conflict")):
            raise WrongAnswer(f"decisions[{at}]: {len(told.conflicts)} conflicts with the reason {told.reason}")
    return decisions


def hashed(transaction_id: str) -> str:
    """Returns the SHA-256 of a transaction id, by which a decision names the transaction that consumed a state."""
    return sha256(bytes.fromhex(transaction_id)).hexdigest()


def in_window(log_time: int, window: tuple[int | None, int | None]) -> bool:
    """Returns True if `from <= log_time < until`."""
    start, end = window
    return (start is None or start <= log_time) and (end is None or log_time < end)


def order(state: str) -> tuple[str, int]:
    """Returns a sort key: states sorted by it are in ascending byte order."""
    return state[:64], int(state[65:])


HEARD: Final = Struct(">q8sq")
"""A decision for the ledger: its position, the first bytes of its transaction id, its log time."""

VIOLATIONS_TOLD: Final = 20

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
        self._heard = bytearray()
        self.position_highest = -1
        """The highest position answered so far; read when a submission is first sent."""
        self.decided = 0
        """The number of transactions decided, each counted once."""
        self.counts: dict[str, int] = {}
        self.violations: list[str] = []

    def take_heard(self) -> bytes:
        """Returns the decisions since the last call, as `HEARD` records, for the ledger."""
        heard = bytes(self._heard)
        self._heard.clear()
        return heard

    def answered(self, asked: PlannedSubmission, answers: Sequence[ReceivedDecision], position_before: int) -> None:
        """Check all decisions of a submission. Raises `WrongAnswer`, and then has changed nothing.

        `position_before`: `position_highest` when it was first sent.
        """
        for told in answers:
            if (told.receipt is not None) != self._receipts:
                raise WrongAnswer(f"{told.transaction_id} has {'no receipt' if self._receipts else 'a receipt that nobody asked for'}")
        position = self.position_highest
        for at, told in enumerate(answers):
            if told.position > position:
                position = told.position
            self._heard += HEARD.pack(told.position, bytes.fromhex(told.transaction_id[:16]), told.log_time)
            self._check_receipt(told)
            told.receipt = None
            if asked.twice and not self._is_first(told):
                self._count("repeated")
                continue
            self.decided += 1
            self._count("committed" if told.reason is None else told.reason)
            # A submission sent twice may have been decided by the copy whose answer has not arrived yet.
            if told.position <= position_before and not asked.twice:
                self._violated(f"{told.transaction_id} has position {told.position}, but {position_before} was told before it was sent")
            marks = asked.marks.get(at)
            if marks is None:
                if told.reason is not None:
                    self._violated(f"{told.transaction_id} is the only one that names its states, and was rejected: {told.reason}")
            else:
                self._check_marked(told, marks)
        self.position_highest = position

    def settle(self) -> None:
        """Replay the marked decisions. Call it only when every request was answered: a missing answer could explain any result."""
        consumer: dict[str, str] = {}
        for told, marks in sorted(self._marked, key=lambda each: each[0].position):
            reason, conflicts = _judge(told, marks, consumer)
            if (told.reason, told.conflicts) != (reason, conflicts):
                wanted = f"{reason or 'committed'} with {len(conflicts)} conflicts"
                self._violated(f"{told.transaction_id} was {_short(told)}; what stands before it makes it {wanted}")
            if told.reason is None:
                by = hashed(told.transaction_id)
                consumer.update(dict.fromkeys(marks.inputs, by))
        self._marked.clear()

    def _is_first(self, told: ReceivedDecision) -> bool:
        first = self._first.pop(told.transaction_id, None)
        if first is None:
            self._first[told.transaction_id] = told
        elif first != told:
            self._violated(f"{told.transaction_id} was decided twice: {_short(first)}, then {_short(told)}")
        return first is None

    def _check_marked(self, told: ReceivedDecision, marks: Marks) -> None:
        self._marked.append((told, marks))
        if told.reason is not None:
            return
        for state in marks.inputs:
            other = self._consumers.setdefault(state, told.transaction_id)
            if other != told.transaction_id:
                self._violated(f"DOUBLE SPEND of {state}: both {other} and {told.transaction_id} committed")
        if marks.window is not None and not in_window(told.log_time, marks.window):
            self._violated(f"{told.transaction_id} committed at log time {told.log_time}, outside its window {marks.window}")

    def _check_receipt(self, told: ReceivedDecision) -> None:
        # The first always, so that even a short run with a small sample verifies one.
        if self._verify is not None and (self._sample() or "receipts_verified" not in self.counts):
            problem = self._verify(told)
            self._count("receipts_verified")
            if problem is not None:
                self._violated(f"the receipt of {told.transaction_id} does not verify: {problem}")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _violated(self, text: str) -> None:
        self._count("violations")
        if len(self.violations) < VIOLATIONS_TOLD:
            self.violations.append(text)


def same_so_far(before: Sequence[ReceivedDecision | None], now: Sequence[ReceivedDecision | None]) -> Sequence[ReceivedDecision | None]:
    """Returns the merged decisions of two answers to one submission. Raises `WrongAnswer` if a decision changed; receipts may differ."""
    for first, then in zip(before, now, strict=True):
        if first is not None and then is not None and _bare(first) != _bare(then):
            raise WrongAnswer(f"{first.transaction_id} was {_short(first)}, and then {_short(then)}")
    # A worker that lags returns null: it does not know the decision, which contradicts nothing.
    return [then or first for first, then in zip(before, now, strict=True)]


def _judge(told: ReceivedDecision, marks: Marks, consumer: dict[str, str]) -> tuple[str | None, tuple[ReceivedConflict, ...]]:
    """Returns (reason, conflicts) by the contract's precedence. Unmarked states are never consumed by another request."""
    kinds: tuple[tuple[Literal["input", "reference"], Sequence[str]], ...] = (("input", marks.inputs), ("reference", marks.references))
    for kind, states in kinds:
        taken = sorted([state for state in states if state in consumer], key=order)
        if taken:
            return f"{kind}-conflict", tuple([ReceivedConflict(state, kind, consumer[state]) for state in taken])
    if marks.window is not None and not in_window(told.log_time, marks.window):
        return "outside-time-window", ()
    return None, ()


def _bare(told: ReceivedDecision) -> ReceivedDecision:
    return msgspec.structs.replace(told, receipt=None)


def _short(told: ReceivedDecision) -> str:
    return f"{told.reason or told.outcome} at position {told.position}, log time {told.log_time}, {len(told.conflicts)} conflicts"
