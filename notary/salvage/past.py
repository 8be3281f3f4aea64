"""Checks the log with its new items: refuses them if no correct notary makes these decisions in this order (R6, R7, R11). Pure.

Two forks may have no node in common that could be compared, for example if receipts of both are far apart. Their decisions can still
contradict each other.
"""

from collections.abc import Sequence
from hashlib import sha256
from itertools import islice
from typing import Final

from notary.salvage.statements import THE_LOG, ChoiceRefused, KeptLog, Survivor
from ordering.ids import STATE_REF_BYTES, StateRef, TransactionId, format_state
from ordering.salvage import CONFLICT_BYTES, Decided, Item

AT_ONCE: Final = 1_000
"""The number of items whose ids and states are looked up in the log together."""


def check_past(log: KeptLog, items: Sequence[Item], names: Sequence[str], indexes: Sequence[Survivor]) -> None:
    """Replay the items as a notary that decides them. Raises `ChoiceRefused` for the first that a correct notary would not decide so.

    `names`: the source of each item. Each index must have the consumed states that this replay gives.
    """
    past = _Past(log)
    past.take(items, names)
    for index in indexes:
        past.compare(index)


class _Past:
    """The state of the log with the items up to some position."""

    def __init__(self, log: KeptLog) -> None:
        self._log = log
        self._log_time_ms = log.log_time_ms
        self._has_gap = bool(log.gaps())
        """True if the decision at an earlier position is unknown: it may have consumed any state."""
        self._decided: dict[TransactionId, tuple[int, str]] = {}
        self._consumed: dict[StateRef, tuple[bytes, str]] = {}

    def take(self, items: Sequence[Item], names: Sequence[str]) -> None:
        position = self._log.tree.size
        for at in range(0, len(items), AT_ONCE):
            some = items[at : at + AT_ONCE]
            self._look_up([item for item in some if isinstance(item, Decided)])
            for item, name in zip(some, names[at : at + AT_ONCE], strict=True):
                if isinstance(item, Decided):
                    self._decide(position, item, name)
                else:
                    self._has_gap = True
                position += 1

    def compare(self, index: Survivor) -> None:
        """Raise `ChoiceRefused` for a state that the index shows as consumed by a transaction that did not consume it.

        A leaf does not contain the states that its decision consumed. So an index with right leaves may still have wrong rows of states.
        """
        found = index.states()
        while some := list(islice(found, AT_ONCE)):
            there = self._log.consumed([state for state, _ in some if state not in self._consumed])
            for state, shown in some:
                consumer = self._consumed[state][0] if state in self._consumed else there.get(state)
                if consumer != shown:
                    why = "consumed by another transaction" if consumer else "consumed by none"
                    raise ChoiceRefused(
                        self._log.tree.size,
                        f"the index shows the state {format_state(state)}, which its decisions have as {why}",
                        [index.name],
                    )

    def _look_up(self, items: Sequence[Decided]) -> None:
        """Look up the ids and states of these items in the log."""
        ids = [item.transaction_id for item in items]
        states = [state for item in items for state in (*item.inputs, *[state for state, _ in conflicts_of(item)])]
        for id_, position in self._log.decided(ids).items():
            self._decided.setdefault(id_, (position, THE_LOG))
        for state, consumer in self._log.consumed(states).items():
            self._consumed.setdefault(state, (consumer, THE_LOG))

    def _decide(self, position: int, item: Decided, name: str) -> None:
        id_ = item.transaction_id
        if (there := self._decided.get(id_)) is not None:
            raise ChoiceRefused(position, f"transaction {id_.hex()} stands at position {there[0]} already", [name], [there[1]])
        if item.log_time_ms < self._log_time_ms:
            raise ChoiceRefused(position, f"log time goes back from {self._log_time_ms} to {item.log_time_ms}", [name], [self._before])
        self._decided[id_] = position, name
        self._log_time_ms, self._before = item.log_time_ms, name
        me = sha256(id_).digest()
        for state in item.inputs:
            # If an earlier conflict shows this consumer, a salvage that the log has lost reserved the state for it.
            consumer, whose = self._consumed.setdefault(state, (me, name))
            if consumer != me:
                raise ChoiceRefused(position, f"the state {format_state(state)} was consumed before", [name], [whose])
        for state, shown in conflicts_of(item):
            if state not in self._consumed and self._has_gap:
                self._consumed[state] = shown, name
            consumer, whose = self._consumed.get(state, (b"", THE_LOG))
            if consumer != shown:
                why = "consumed by another transaction" if consumer else "not consumed before, and each decision before is known"
                raise ChoiceRefused(position, f"a conflict shows the state {format_state(state)}, which was {why}", [name], [whose])

    _before: str = THE_LOG
    """The source of the last decision."""


def conflicts_of(item: Decided) -> list[tuple[StateRef, bytes]]:
    """Returns the states in a decision's conflicts, each with the SHA-256 of its consumer's id."""
    data = item.conflicts
    return [
        (data[at : at + STATE_REF_BYTES], data[at + STATE_REF_BYTES + 1 : at + CONFLICT_BYTES])
        for at in range(0, len(data), CONFLICT_BYTES)
    ]
