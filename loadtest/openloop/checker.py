"""One process's check of all that it is told, as it comes: what an answer must be is known from how its request was made. Pure.

| checked at once | with |
|---|---|
| a request that nothing can happen to is committed; one whose window is shut is not | its marks |
| of those that name one state as an input, one commits at most | the states that were marked |
| the same transaction asked again gets the same decision | the first decision of what is sent twice |
| whoever is answered before another is first sent has the lower position | the highest position answered when it left |
| receipts are there, and those of the sample verify | the verifier key |

In the end, when every request was answered, the decisions of all marked requests are played again in the order of their positions on a
plain dictionary: then outcome, reason, conflicts and consumers are what they must be, to the letter. Positions of all processes together
are the ledger's business (`ledger`).
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, Literal

import msgspec

from loadtest.openloop.answers import Conflict, Told, WrongAnswer, hashed, in_window, order
from loadtest.openloop.generate import Asked, Marks

HEARD: Final = Struct(">q8sq")
"""A decision for the ledger: its position, the first bytes of its transaction id, its log time."""

VIOLATIONS_TOLD: Final = 20

Verify = Callable[[Told], str | None]
"""Whether a decision's receipt proves it: None, or what is wrong."""


class Checker:
    """What one process has heard. `sample`: whether the next receipt is verified; the first one is in any case."""

    def __init__(self, *, receipts: bool = True, verify: Verify | None = None, sample: Callable[[], bool] = lambda: True) -> None:
        self._receipts = receipts
        self._verify = verify
        self._sample = sample
        self._consumers: dict[str, str] = {}  # marked state -> the transaction that committed with it
        self._first: dict[str, Told] = {}  # of what is sent twice, until the second answer
        self._marked: list[tuple[Told, Marks]] = []
        self._heard = bytearray()
        self.position_highest = -1
        """The highest position answered so far; to be read when a submission first leaves."""
        self.decided = 0
        """Transactions, each once."""
        self.counts: dict[str, int] = {}
        self.violations: list[str] = []

    def take_heard(self) -> bytes:
        """What was heard since the last call, as `HEARD` records, for the ledger."""
        heard = bytes(self._heard)
        self._heard.clear()
        return heard

    def answered(self, asked: Asked, answers: Sequence[Told], position_before: int) -> None:
        """All decisions of a submission. `position_before`: `position_highest` when it first left. `WrongAnswer` changes nothing here."""
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
            # What is sent twice may have been decided by the sending whose answer is not here yet.
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
        """Play the marked decisions again. Only when every request was answered: an answer that is missing explains anything."""
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

    def _is_first(self, told: Told) -> bool:
        first = self._first.pop(told.transaction_id, None)
        if first is None:
            self._first[told.transaction_id] = told
        elif first != told:
            self._violated(f"{told.transaction_id} was decided twice: {_short(first)}, then {_short(told)}")
        return first is None

    def _check_marked(self, told: Told, marks: Marks) -> None:
        self._marked.append((told, marks))
        if told.reason is not None:
            return
        for state in marks.inputs:
            other = self._consumers.setdefault(state, told.transaction_id)
            if other != told.transaction_id:
                self._violated(f"DOUBLE SPEND of {state}: both {other} and {told.transaction_id} committed")
        if marks.window is not None and not in_window(told.log_time, marks.window):
            self._violated(f"{told.transaction_id} committed at log time {told.log_time}, outside its window {marks.window}")

    def _check_receipt(self, told: Told) -> None:
        # The first in any case: a short run with a small sample verifies something, too.
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


def same_so_far(before: Sequence[Told | None], now: Sequence[Told | None]) -> Sequence[Told | None]:
    """What is known after another answer about the same: what was said to be decided stays so, else `WrongAnswer`. Receipts may differ."""
    for first, then in zip(before, now, strict=True):
        if first is not None and then is not None and _bare(first) != _bare(then):
            raise WrongAnswer(f"{first.transaction_id} was {_short(first)}, and then {_short(then)}")
    # A worker that has not read so far says null: it does not know, which takes nothing back.
    return [then or first for first, then in zip(before, now, strict=True)]


def _judge(told: Told, marks: Marks, consumer: dict[str, str]) -> tuple[str | None, tuple[Conflict, ...]]:
    """The contract's precedence. Of unmarked states none is ever consumed before."""
    kinds: tuple[tuple[Literal["input", "reference"], Sequence[str]], ...] = (("input", marks.inputs), ("reference", marks.references))
    for kind, states in kinds:
        taken = sorted([state for state in states if state in consumer], key=order)
        if taken:
            return f"{kind}-conflict", tuple([Conflict(state, kind, consumer[state]) for state in taken])
    if marks.window is not None and not in_window(told.log_time, marks.window):
        return "outside-time-window", ()
    return None, ()


def _bare(told: Told) -> Told:
    return msgspec.structs.replace(told, receipt=None)


def _short(told: Told) -> str:
    return f"{told.reason or told.outcome} at position {told.position}, log time {told.log_time}, {len(told.conflicts)} conflicts"
